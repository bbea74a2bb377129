// The directive `split` of a region of ops: which ops run in parts, and what of their operands is
// cut.
#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <unordered_set>

#include "match.h"
#include "piper/frontend/autodiff.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

constexpr int32_t kOutside = -1;

// Finds the regions of a directive: ops whose scope a pattern matches, one region for each of its
// captures, and ops without a scope that work on what a region makes. Each site, and each share of
// samples or chunk of tokens, has regions of its own.
class PartFinder {
 public:
  // `apart` lists tags whose values have regions of their own.
  PartFinder(const Graph& graph, const Split& split, int32_t first,
             const std::vector<std::string>& apart)
      : graph_(graph), split_(split), first_(first) {
    for (const std::string& tag : apart) apart_.push_back(graph.tag_index(tag));
  }

  Result<PartCut> find() {
    PIPER_TRY(find_regions());
    cut_.name = split_.as;
    cut_.into = split_.into;
    cut_.at = split_.at;
    cut_.dim_at = split_.dim_at;
    PIPER_TRY(!split_.tensor ? find_read() : find_parameters());
    return std::move(cut_);
  }
  size_t count() const { return ids_.size(); }
  const std::set<std::string>& tensors() const { return tensors_; }

 private:
  // What takes a chunk or a block of an input is of no region, which begins with what it takes.
  bool takes_of_input(const Node& node) const {
    return node.op == "Slice" && graph_.value(node.inputs[0]).kind == ValueKind::kInput;
  }

  // Casts of parameters are theirs, wherever they are read.
  // So are ops that put trained parts together.
  bool is_of_state(const Node& node) const {
    const int joined = graph_.tag_index(kJoinedParts);
    return casts_state(graph_, node) || (joined >= 0 && graph_.tag(node, joined) != kNoTag);
  }

  // Finds what brings gradients to parts that are trained by themselves.
  void find_brought() {
    if (graph_.tag_index(kJoinedParts) < 0) return;
    const std::vector<bool> parts = trained_parts(graph_);
    for (size_t p = 0; p < parts.size(); ++p) {
      const Param& param = graph_.params[p];
      if (!param.gradient.valid() || !parts[p]) continue;
      for (ValueId id : graph_.node(graph_.value(param.gradient).producer).inputs)
        while (graph_.value(id).kind == ValueKind::kNode) {
          const NodeId maker = graph_.value(id).producer;
          if (graph_.node(maker).op != "Slice" && graph_.node(maker).op != "Cast") break;
          brings_.insert(maker.index());
          id = graph_.node(maker).inputs[0];
        }
    }
  }

  Status find_regions() {
    find_brought();
    std::vector<std::string> scopes;
    cut_.region.assign(graph_.nodes.size(), kOutside);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (node.pass == Pass::kU || is_step_sum(node) || is_of_state(node) || takes_of_input(node) ||
          brings_.contains(n))
        continue;
      cut_.region[n] = node.scope.empty() ? joined(node) : matched(node);
      if (node.pass == Pass::kF && !node.scope.empty()) scopes.push_back(node.scope);
    }
    for (const bool backward : {false, true}) join_between(backward);
    if (!ids_.empty()) return ok_status();
    const std::string& wanted = split_.scope->pattern();
    Error error = fail(split_.scope_at, "split: no op's scope matches '{}'{}",
                       quote_control(wanted), did_you_mean(wanted, scopes));
    error = with_deeper(std::move(error), *split_.scope, scopes);
    error.notes.push_back("help: `piperc MODEL --describe` lists modules");
    return error;
  }
  int32_t matched(const Node& node) {
    const auto match = split_.scope->match(node.scope);
    if (!match) return kOutside;
    std::vector<int64_t> captures;
    for (const int tag : apart_) {
      captures.push_back(tag < 0 ? 0 : graph_.tag(node, tag));
      if (captures.back() == kNoTag) return kOutside;
    }
    for (const auto& [name, value] : match->captures) captures.push_back(value);
    const auto next = first_ + static_cast<int32_t>(ids_.size());
    return ids_.try_emplace(std::move(captures), next).first->second;
  }
  int32_t joined(const Node& node) const {
    for (ValueId input : node.inputs)
      if (input.valid() && graph_.value(input).kind == ValueKind::kNode)
        if (const int32_t in = cut_.region[graph_.value(input).producer.index()]; in != kOutside)
          return in;
    return kOutside;
  }

  // Ops between two of a region are in it, too: a part goes through from end to end.
  void join_between(bool backward) {
    struct Range {
      size_t first = 0, end = 0;  // of `nodes`: from the first op of the region past its last one
    };
    std::vector<size_t> nodes;
    std::map<int32_t, Range> ranges;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      if (is_backward(node) != backward || node.pass == Pass::kU || is_step_sum(node)) continue;
      if (const int32_t in = cut_.region[n]; in != kOutside)
        ranges.try_emplace(in, Range{nodes.size()}).first->second.end = nodes.size() + 1;
      nodes.push_back(n);
    }
    for (const auto& [in, range] : ranges)
      join_between(in, std::span(nodes).subspan(range.first, range.end - range.first));
  }
  static bool has_any(const std::vector<ValueId>& ids, const std::unordered_set<int32_t>& of) {
    return std::ranges::any_of(ids,
                               [&](ValueId id) { return id.valid() && of.contains(id.value); });
  }

  void join_between(int32_t in, std::span<const size_t> nodes) {
    std::unordered_set<int32_t> after, before;  // made of what it makes; what it is made of
    std::vector<bool> follows(nodes.size());
    for (size_t i = 0; i < nodes.size(); ++i) {
      const Node& node = graph_.nodes[nodes[i]];
      follows[i] = has_any(node.inputs, after);
      if (follows[i] || cut_.region[nodes[i]] == in)
        for (const ValueId made : node.outputs) after.insert(made.value);
    }
    for (size_t i = nodes.size(); i-- > 0;) {
      const Node& node = graph_.nodes[nodes[i]];
      const bool leads = has_any(node.outputs, before);
      if (!leads && cut_.region[nodes[i]] != in) continue;
      for (const ValueId read : node.inputs) before.insert(read.value);
      if (follows[i] && cut_.region[nodes[i]] == kOutside) cut_.region[nodes[i]] = in;
    }
  }

  Error not_in_equal_parts(const Value& value, int64_t dim, int64_t blocks) const {
    const int64_t extent = value.type.shape[static_cast<size_t>(dim)];
    return fail(split_.at, "split: dim {} of '{}' ({}) cannot be cut into {} equal parts{}", dim,
                quote_control(value.name), to_string(value.type), split_.into,
                blocks > 1 ? fmt::format(" of each of {} blocks", blocks) : "")
        .with_note(fmt::format("the dim is given at line {}", split_.dim_at.line))
        .with_note(fmt::format("help: 'into' must divide {}{}", extent,
                               dim == 0 ? ", what a microbatch has on each replica" : ""));
  }

  Status add(int32_t in, ValueId id, const SourceSpan& at) {
    const Value& value = graph_.value(id);
    const auto rank = static_cast<int64_t>(value.type.shape.size());
    const int64_t dim = *split_.dim < 0 ? *split_.dim + rank : *split_.dim;
    const std::string type = to_string(value.type);
    if (dim < 0 || dim >= rank)
      return fail(split_.dim_at, "split: '{}' ({}) has no dim {}", quote_control(value.name), type,
                  *split_.dim)
          .with_note(fmt::format("it is what the scope at {} reads", line_of(at, split_.dim_at)));
    const int64_t extent = value.type.shape[static_cast<size_t>(dim)];
    const int64_t blocks = std::max<int64_t>(cut_.outer, 1);
    if (extent % (split_.into * blocks) != 0) return not_in_equal_parts(value, dim, blocks);
    cut_.seeds.push_back({in, id, static_cast<int>(dim)});
    tensors_.insert(fmt::format("dim {} of {}", dim, type));
    return ok_status();
  }

  // Cuts the first value that each region reads and does not make.
  Status find_read() {
    std::set<int32_t> known;
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const int32_t in = cut_.region[n];
      if (in == kOutside || graph_.nodes[n].pass != Pass::kF || known.contains(in)) continue;
      for (ValueId input : graph_.nodes[n].inputs) {
        if (!input.valid() || known.contains(in) || !is_made_outside(input, in)) continue;
        known.insert(in);
        PIPER_TRY(add(in, input, split_.scope_at));
      }
    }
    if (!known.empty()) return ok_status();
    return fail(split_.scope_at, "split: '{}' reads nothing that other ops make",
                quote_control(split_.scope->pattern()))
        .with_note("help: 'tensor' names what is cut of its parameters");
  }
  bool is_made_outside(ValueId id, int32_t in) const {
    const Value& value = graph_.value(id);
    if (value.kind == ValueKind::kInput) return true;
    if (value.kind != ValueKind::kNode || value.type.shape.empty()) return false;
    const NodeId producer = value.producer;
    return cut_.region[producer.index()] != in && !is_of_state(graph_.node(producer));
  }

  Status find_parameters() {
    std::vector<std::string> all;
    std::map<ValueId, std::vector<std::pair<int32_t, ValueId>>> reads;  // (region, value), in order
    for (const Param& param : graph_.params) {
      std::ranges::move(paths_of(param), std::back_inserter(all));
      if (has_name(param, *split_.tensor)) reads[param.value];
    }
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (cut_.region[n] == kOutside || graph_.nodes[n].pass != Pass::kF) continue;
      for (ValueId input : graph_.nodes[n].inputs)
        if (const auto found = input.valid() ? reads.find(source_of(input)) : reads.end();
            found != reads.end())
          found->second.emplace_back(cut_.region[n], input);
    }
    std::set<std::pair<int32_t, ValueId>> known;
    for (const Param& param : graph_.params)
      if (const auto found = reads.find(param.value); found != reads.end())
        for (const auto& [in, value] : found->second)
          if (known.emplace(in, value).second) PIPER_TRY(add(in, value, split_.tensor_at));
    if (!cut_.seeds.empty()) return ok_status();
    const std::string& wanted = split_.tensor->pattern();
    constexpr size_t kShown = 4;
    const std::vector<std::string> read = read_by_scope();
    return fail(split_.tensor_at, "split: no parameter that the scope reads matches '{}'{}",
                quote_control(wanted), did_you_mean(wanted, all))
        .with_note(
            read.empty()
                ? "the scope reads no parameter"
                : fmt::format("it reads {}{}",
                              join(std::span(read).first(std::min(read.size(), kShown)), ", "),
                              read.size() > kShown ? ", …" : ""))
        .with_note(
            fmt::format("the scope is given at {}", line_of(split_.scope_at, split_.tensor_at)));
  }
  std::vector<std::string> read_by_scope() const {
    std::set<ValueId> read;
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (cut_.region[n] != kOutside && graph_.nodes[n].pass == Pass::kF)
        for (const ValueId input : graph_.nodes[n].inputs)
          if (input.valid()) read.insert(source_of(input));
    std::vector<std::string> names;
    for (const Param& param : graph_.params)
      if (read.contains(param.value)) names.push_back(quote_control(paths_of(param).front()));
    return names;
  }
  ValueId source_of(ValueId id) const {
    while (graph_.value(id).kind == ValueKind::kNode &&
           is_of_state(graph_.node(graph_.value(id).producer)))
      id = graph_.node(graph_.value(id).producer).inputs[0];
    return id;
  }

  const Graph& graph_;
  const Split& split_;
  const int32_t first_;     // the number of the first region
  std::vector<int> apart_;  // tags of nodes: the site, and the share or chunk; -1: nodes have none
  PartCut cut_;
  std::map<std::vector<int64_t>, int32_t> ids_;  // by the tags of apart_, and captures
  std::set<std::string> tensors_;
  std::set<size_t> brings_;  // nodes
};

// An op is in parts of one split only.
Status check_once(const Graph& graph, const Strategy& strategy, const Split& split,
                  const PartCut& cut) {
  for (const Split& other : strategy.splits) {
    if (&other == &split) return ok_status();
    const int tag = other.of_region() ? graph.tag_index(other.as) : -1;
    for (size_t n = 0; tag >= 0 && n < graph.nodes.size(); ++n) {
      const Node& node = graph.nodes[n];
      if (cut.region[n] == kOutside || graph.tag(node, tag) == kNoTag) continue;
      return fail(split.at, "split: {} is in parts already",
                  node.scope.empty() ? fmt::format("{} '{}'", node.op, quote_control(node.name))
                                     : fmt::format("an op of '{}'", quote_control(node.scope)))
          .with_note(fmt::format("by the split at {}", line_of(other.at, split.at)))
          .with_note("help: scopes that share no op");
    }
  }
  return ok_status();
}

Error pass_beside_parts(const Order& order, const Split& split, const std::string& pass,
                        bool is_named) {
  return fail(order.at, "not supported: '{}' in an order {} parts: '{}'", pass,
              is_named ? "that names" : "beside placed", split.as)
      .with_note(fmt::format("the region is split at {}", line_of(split.at, order.at)))
      .with_note(
          "help: without it a backward takes its R itself, and sums and updates "
          "come when their gradients are final");
}

}  // namespace

std::vector<bool> ops_in_parts(const Graph& graph, const Split& split) {
  PartFinder finder(graph, split, 0, {});
  std::vector<bool> in_parts(graph.nodes.size());
  const Result<PartCut> cut = finder.find();  // apply_parts says what is wrong with it
  for (size_t n = 0; cut && n < in_parts.size(); ++n) in_parts[n] = cut->region[n] != kOutside;
  return in_parts;
}

bool is_placed(const Strategy& strategy, const Split& split) {
  const auto names = [&](const Condition& condition) { return condition.tag == split.as; };
  return split.of_region() && split.into > 1 &&
         std::ranges::any_of(strategy.places, [&](const Place& place) {
           return std::ranges::any_of(place.where, names);
         });
}

Result<std::vector<std::string>> parts_in_orders(const Strategy& strategy) {
  std::vector<std::string> parts;
  for (const Order& order : strategy.orders) {
    PIPER_ASSIGN(const auto named, tags_named(order));
    PIPER_ASSIGN(const auto passes, passes_named(order));
    PIPER_ASSIGN(const bool updates, names_updates(order));
    for (const Split& split : strategy.splits) {
      const bool is_named = std::ranges::count(named, split.as) > 0;
      if (!split.of_region() || split.into == 1 || !(is_named || is_placed(strategy, split)))
        continue;
      if (is_named && !std::ranges::count(parts, split.as)) parts.push_back(split.as);
      for (const std::string pass : {"R", "S", "U"})
        if (pass == "U" ? updates : std::ranges::count(passes, pass) > 0)
          return pass_beside_parts(order, split, pass, is_named);
    }
  }
  return parts;
}

Result<std::vector<std::string>> placed_parts(const Strategy& strategy) {
  std::vector<std::string> parts;
  for (const Split& split : strategy.splits) {
    if (!is_placed(strategy, split)) continue;
    if (!std::ranges::count(parts, split.as)) parts.push_back(split.as);
    const auto beside = [&](const SourceSpan& at, std::string_view what) {
      return fail(at, "not supported: {} beside parts that 'place' puts on devices: '{}'", what,
                  split.as)
          .with_note(fmt::format("the region is split at {}", line_of(split.at, at)));
    };
    if (!strategy.weight_versions.empty())
      return beside(strategy.weight_versions[0].at, "several versions of the weights");
    for (const Order& order : strategy.orders)
      if (order.policy) return beside(order.policy->at, "a policy");
  }
  return parts;
}

namespace {

// Returns whether a scope without captures names ops of several layers, which are one region with
// all that is between.
bool joins_layers(const Graph& graph, const Split& split) {
  if (!split.scope->capture_names().empty()) return false;
  std::map<std::string, std::string> of_kind;  // a scope, by its path without numbers
  for (const Node& node : graph.nodes) {
    if (node.scope.empty() || !split.scope->match(node.scope)) continue;
    std::string kind = node.scope;
    std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });
    if (of_kind.try_emplace(kind, node.scope).first->second != node.scope) return true;
  }
  return false;
}

// Returns whether inputs are cut over the axis along the dim of the split: what regions read is
// then cut over it, too.
bool cuts_inputs_alike(const Strategy& strategy, const Split& split, const std::string& axis) {
  return std::ranges::any_of(strategy.shards, [&](const ShardRule& rule) {
    return rule.input && rule.dim && rule.dim == split.dim && rule.over.front() == axis;
  });
}

// Returns into how many blocks axes cut the dim of which a part has its share in each; 0: none do.
int64_t blocks_within(const Strategy& strategy, const Split& split) {
  if (split.within.empty()) return 0;
  const auto is_named = [&](const std::string& axis) {
    return std::ranges::count(split.within, axis) > 0 || cuts_inputs_alike(strategy, split, axis);
  };
  int64_t blocks = 1;
  for (const MeshAxis& axis : strategy.mesh)
    if (is_named(axis.name)) blocks *= axis.size;
  const bool has_two_a_rank = std::ranges::any_of(strategy.shards, [&](const ShardRule& rule) {
    return rule.zigzag && is_named(rule.over.front());
  });
  return has_two_a_rank ? 2 * blocks : blocks;
}

}  // namespace

bool casts_state(const Graph& graph, const Node& node) {
  return node.op == "Cast" && graph.value(node.inputs[0]).kind == ValueKind::kState;
}

Result<Graph> apply_parts(Graph step, const Strategy& strategy, Explanations& out) {
  int32_t first = 0;
  std::vector<std::string> apart;
  if (!strategy.local_steps.empty()) apart.push_back(strategy.local_steps[0].over);
  if (const Split* const chunks = strategy.chunk_split()) apart.push_back(chunks->as);
  for (const Split& split : strategy.splits) {
    if (!split.of_region()) continue;
    PartFinder finder(step, split, first, apart);
    PIPER_ASSIGN(PartCut cut, finder.find());
    cut.outer = blocks_within(strategy, split);
    PIPER_TRY(check_once(step, strategy, split, cut));
    first += static_cast<int32_t>(finder.count());
    cut.is_placed = is_placed(strategy, split);
    std::vector<std::string> lines{fmt::format(
        "{} region{} in {} parts each, by {}", finder.count(), finder.count() == 1 ? "" : "s",
        split.into, join(std::vector(finder.tensors().begin(), finder.tensors().end()), " or "))};
    if (split.into > 1) {
      const bool of_layers = joins_layers(step, split);
      Result<Parts> made = cut_in_parts(std::move(step), cut);
      if (!made && of_layers)
        return std::move(made).error().with_note(
            "help: the scope names ops of several layers, and what is between belongs to the "
            "region: '{layer}' in it makes a region of each, \"**/{layer}/mlp/**\"");
      if (!made) return std::move(made).error();
      lines.push_back(
          fmt::format("{} ops run part by part; after the last part {} values are put "
                      "together, and {} are sums over the parts",
                      made->ops, made->joined, made->summed));
      step = std::move(made->graph);
    }
    out.push_back({split.at, "split", std::move(lines)});
  }
  return step;
}

}  // namespace piper
