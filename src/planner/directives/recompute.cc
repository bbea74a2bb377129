// recompute: forward ops that run again in the backward pass (activation checkpointing; Chen et
// al., Training Deep Nets with Sublinear Memory Cost, 2016).
#include <algorithm>
#include <map>
#include <set>

#include "keep.h"
#include "match.h"
#include "piper/ir/ops.h"
#include "piper/planner/job_costs.h"

namespace piper {
namespace {

constexpr int32_t kNone = -1;

// Groups ops that are recomputed together.
struct Group {
  size_t directive = 0;
  std::vector<int64_t> captures;
  std::vector<int32_t> tags;
  auto operator<=>(const Group&) const = default;
};

// Says of an entry how many others hold it, and whether it holds some.
struct Nested {
  size_t depth = 0;
  bool holds = false;
};
// Says which entries hold others: their groups go on over all ops of a task.
struct Nesting {
  std::vector<size_t> tags;   // in Graph::tag_names: those that do not tell tasks apart
  std::vector<size_t> parts;  // likewise: those of parts
  std::vector<bool> holds;    // by entry
};

// Holds what microbatches of one variant have in common.
struct Variant {
  std::vector<int32_t> micros;
  std::vector<int32_t> group;  // by node of the graph without copies
  std::vector<bool> again;     // by node: whether it runs again
};

class Recomputer {
 public:
  Recomputer(Graph graph, const std::vector<Recompute>& recomputes, Nesting nesting,
             const Variables& variables, int64_t microbatches, const JobCosts& costs)
      : graph_(std::move(graph)),
        count_(graph_.nodes.size()),
        recomputes_(recomputes),
        nesting_(std::move(nesting)),
        variables_(variables),
        costs_(costs),
        microbatches_(static_cast<int32_t>(microbatches)) {}

  // An entry holds another one whose ops are some of its own: not all of any of its groups. A
  // budget, which is of all ops of a task, holds each entry that names what runs again.
  Result<std::vector<Nested>> nested() const {
    std::vector<Nested> nested(recomputes_.size());
    for (size_t d = 0; d < nested.size(); ++d)
      nested[d].holds = recomputes_[d].budget_bytes.has_value();
    if (nested.size() < 2 || std::ranges::any_of(recomputes_, by_microbatch)) return nested;
    std::vector<std::vector<std::optional<Group>>> of(recomputes_.size());  // by op
    for (size_t d = 0; d < recomputes_.size(); ++d) {
      const Recompute& one = recomputes_[d];
      const bool is_plain = one.ops.empty() && !one.budget_bytes && !is_rest(one);
      for (size_t i = 0; i < count_ && is_plain; ++i) {
        PIPER_ASSIGN(of[d].emplace_back(), group_for(d, graph_.nodes[i], 0));
      }
    }
    for (size_t d = 0; d < of.size(); ++d)
      for (size_t other = 0; other < of.size(); ++other)
        if (d != other && (lies_within(of[d], of[other]) || fits_beside(d, other)))
          ++nested[d].depth, nested[other].holds = true;
    return nested;
  }
  Graph take() && { return std::move(graph_); }

  Result<Recomputed> run(Explanations& out) {
    PIPER_TRY(find_variants());
    all_readers_ = readers(graph_);
    for (const bool rest : {false, true})
      for (size_t d = 0; d < recomputes_.size(); ++d)
        if (is_rest(recomputes_[d]) == rest) PIPER_TRY(choose(d));
    take_views();
    find_routed();
    kept_.resize(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g)
      if (recomputes_[groups_[g].directive].budget_bytes) PIPER_TRY(fit(g));
    const int64_t before = kept_bytes(nullptr);
    for (Variant& variant : variants_)
      variant.again = needed_by(
          [&](const Node& node, ValueId input) { return reads_again(variant, node, input); },
          [&](const Node& node, ValueId input) { return copies_too(variant, node, input); });
    std::vector<int64_t> after;
    for (const Variant& variant : variants_) after.push_back(kept_bytes(&variant));
    copy_all();
    for (size_t d = 0; d < recomputes_.size(); ++d) PIPER_TRY(report(d, out));
    auto& lines = out.back().lines;
    lines.insert(lines.end(), fitted_.begin(), fitted_.end());
    for (size_t v = 0; v < variants_.size(); ++v)
      lines.push_back(fmt::format(
          "kept for the backward pass: {} instead of {} a microbatch{}", human_bytes(after[v]),
          human_bytes(before),
          variants_.size() > 1
              ? fmt::format(", for {} {}", recomputes_.front().micro, ranges(variants_[v].micros))
              : ""));
    if (variants_.size() > 1)
      lines.push_back("chunks that differ by microbatch are not fused, and no weights are packed");
    Variants made = describe();
    put_copies_in_order(graph_, count_);
    return Recomputed{std::move(graph_), std::move(made)};
  }

 private:
  const Node* producer(ValueId value) const {
    const NodeId id = value.valid() ? graph_.value(value).producer : NodeId();
    return id.valid() ? &graph_.node(id) : nullptr;
  }
  int32_t group_of(const Variant& variant, ValueId value) const {
    const NodeId id = graph_.value(value).producer;
    return id.valid() && id.index() < count_ ? variant.group[id.index()] : kNone;
  }

  // Returns whether the other entry is a budget, and this one none and not about what is left.
  bool fits_beside(size_t d, size_t other) const {
    return recomputes_[other].budget_bytes && !recomputes_[d].budget_bytes &&
           !is_rest(recomputes_[d]);
  }
  static bool lies_within(const std::vector<std::optional<Group>>& inner,
                          const std::vector<std::optional<Group>>& outer) {
    if (inner.size() != outer.size()) return false;
    std::set<Group> held, more;  // of the outer ones: with such ops, with others
    for (size_t i = 0; i < inner.size(); ++i) {
      if (inner[i] && !outer[i]) return false;
      if (outer[i]) (inner[i] ? held : more).insert(*outer[i]);
    }
    return !held.empty() && std::ranges::includes(more, held);
  }

  // ---- Which microbatches ----
  static bool by_microbatch(const Recompute& recompute) {
    return std::any_of(recompute.where.begin(), recompute.where.end(),
                       [&](const Condition& c) { return c.tag == recompute.micro; });
  }
  // Finds the microbatches for which each directive holds in the same regions.
  Status find_variants() {
    std::map<std::vector<int32_t>, const Node*> regions;
    for (const Node& node : graph_.nodes)
      if (node.pass == Pass::kF) regions.emplace(graph_.tags_of(node), &node);
    std::vector<std::vector<bool>> holds(static_cast<size_t>(microbatches_));
    for (const Recompute& recompute : recomputes_)
      for (const auto& [tags, node] : regions)
        for (int32_t m = 0; m < microbatches_ && by_microbatch(recompute); ++m) {
          PIPER_ASSIGN(const auto met, match_node(graph_, *node, recompute.where, variables_,
                                                  {recompute.micro, m}));
          holds[static_cast<size_t>(m)].push_back(met.has_value());
        }
    std::map<std::vector<bool>, size_t> known;
    for (int32_t m = 0; m < microbatches_; ++m) {
      const auto [at, is_new] = known.try_emplace(holds[static_cast<size_t>(m)], variants_.size());
      if (is_new) variants_.push_back({{}, std::vector<int32_t>(count_, kNone), {}});
      variants_[at->second].micros.push_back(m);
    }
    return ok_status();
  }

  // ---- Which ops ----
  // A budget is of a whole region.
  static bool is_rest(const Recompute& one) {
    return is_of_rest(one) && one.ops.empty() && !one.budget_bytes;
  }
  const Recompute& directive_of(int32_t group) const {
    return recomputes_[groups_[static_cast<size_t>(group)].directive];
  }
  static Status check_ops(const Recompute& recompute) {
    for (const auto& [op, at] : recompute.ops) {
      if (find_op(op)) continue;
      std::vector<std::string> names;
      for (const OpDef* def : all_ops()) names.emplace_back(def->name);
      return fail(at, "recompute: unknown op '{}'{}", op, did_you_mean(op, names))
          .with_note("help: `piperc MODEL --describe` lists the ops of a model");
    }
    return ok_status();
  }

  static Error chosen_twice(const Recompute& recompute, const Node& node, const Recompute& other) {
    return fail(recompute.at, "recompute: {} at '{}' is chosen twice", node.op, node.scope)
        .with_note("first at " + place_of(other.at))
        .with_note("help: `match` of one of them without these: [\"**\", \"!SCOPE/**\"]");
  }

  Status choose(size_t d) {
    const Recompute& recompute = recomputes_[d];
    PIPER_TRY(check_ops(recompute));
    int64_t matched = 0;
    for (Variant& variant : variants_)
      for (size_t i = 0; i < count_; ++i) {
        PIPER_ASSIGN(const std::optional<Group> group,
                     group_for(d, graph_.nodes[i], variant.micros.front()));
        if (!group) continue;
        if (const int32_t known = variant.group[i]; known != kNone) {
          if (is_rest(recompute) && !is_rest(directive_of(known))) continue;
          return chosen_twice(recompute, graph_.nodes[i], directive_of(known));
        }
        ++matched;
        const auto [it, is_new] = ids_.emplace(*group, static_cast<int32_t>(groups_.size()));
        if (is_new) groups_.push_back(*group);
        variant.group[i] = it->second;
      }
    return matched > 0 || is_rest(recompute) ? ok_status() : matches_nothing(recompute);
  }
  // Chooses views of the result of an op that is chosen by name, too: else they would be kept in
  // place of the result.
  void take_views() {
    for (Variant& variant : variants_)
      for (size_t i = 0; i < count_; ++i) {
        const Node& node = graph_.nodes[i];
        const OpDef* def = find_op(node.op);
        if (variant.group[i] != kNone || node.pass != Pass::kF || !def || !def->first_byte)
          continue;
        const int32_t group = group_of(variant, node.inputs[0]);
        if (group != kNone && !directive_of(group).ops.empty() &&
            groups_[static_cast<size_t>(group)].tags ==
                region_of(groups_[static_cast<size_t>(group)].directive, node))
          variant.group[i] = group;
      }
  }
  Error matches_nothing(const Recompute& recompute) const {
    std::set<std::string> ops;
    for (const Node& node : graph_.nodes)
      if (node.pass == Pass::kF) ops.insert(node.op);
    std::string what = "recompute: matches no forward op";
    if (by_microbatch(recompute))
      what += fmt::format(" of the microbatches 0 to {}", microbatches_ - 1);
    Error error = no_ops(graph_, what, recompute.at, recompute.match, recompute.where);
    if (!recompute.ops.empty())
      error.notes.push_back(fmt::format(
          "the forward pass has {}", join(std::vector<std::string>(ops.begin(), ops.end()), ", ")));
    return error;
  }
  bool names_parts(const Recompute& one) const {
    return std::ranges::any_of(nesting_.parts, [&](size_t tag) {
      return std::ranges::count(one.where, graph_.tag_names[tag], &Condition::tag) > 0;
    });
  }
  std::vector<int32_t> region_of(size_t d, const Node& node) const {
    std::vector<int32_t> tags = graph_.tags_of(node);
    const bool joins_parts = !names_parts(recomputes_[d]);
    for (const size_t tag : nesting_.tags)
      if (nesting_.holds[d] || (joins_parts && std::ranges::count(nesting_.parts, tag) > 0))
        tags[tag] = kNoTag;
    return tags;
  }
  Result<std::optional<Group>> group_for(size_t d, const Node& node, int32_t micro) const {
    const Recompute& recompute = recomputes_[d];
    Group group{d, {}, region_of(d, node)};
    // What is summed over the step is there once for all microbatches.
    if (node.pass != Pass::kF || is_step_sum(node)) return std::optional<Group>();
    const bool named = recompute.ops.empty() ||
                       std::any_of(recompute.ops.begin(), recompute.ops.end(), [&](const auto& op) {
                         return stands_for(graph_, node, op.first);
                       });
    if (!named) return std::optional<Group>();
    if (recompute.match) {
      const auto match = recompute.match->match(node.scope);
      if (!match) return std::optional<Group>();
      for (const auto& [name, value] : match->captures) group.captures.push_back(value);
    }
    PIPER_ASSIGN(const auto met,
                 match_node(graph_, node, recompute.where, variables_, {recompute.micro, micro}));
    return met ? std::optional<Group>(std::move(group)) : std::nullopt;
  }

  // ---- What is kept ----
  // Returns what it takes to make the op's results again, for each of their bytes.
  Result<double> price_of(const Node& node, const std::vector<int32_t>& kinds) const {
    if (!costs_.devices()) return intensity_of(graph_, node);
    double bytes = 1;
    for (ValueId output : node.outputs)
      if (output.valid()) bytes += static_cast<double>(graph_.value(output).type.bytes());
    PIPER_ASSIGN(const double seconds, costs_.seconds(graph_, node, kinds));
    return seconds / bytes;
  }
  // Returns whether the op makes integers of floats, as the choice of experts does. What is looked
  // up by them may be kept, and goes with the same choice alone.
  bool chooses(const Node& node) const {
    const auto is_float = [&](ValueId id) {
      return id.valid() && info(graph_.value(id).type.dtype).is_float;
    };
    return std::ranges::any_of(node.inputs, is_float) &&
           std::ranges::any_of(node.outputs, [&](ValueId id) {
             return id.valid() && !is_float(id) && graph_.value(id).type.dtype != DType::kBool;
           });
  }
  // Allows more and more ops to be repeated, the cheapest first, until what is left to keep fits.
  Status fit(size_t g) {
    const Recompute& recompute = recomputes_[groups_[g].directive];
    const auto with = std::find_if(variants_.begin(), variants_.end(), [&](const Variant& v) {
      return std::count(v.group.begin(), v.group.end(), static_cast<int32_t>(g)) > 0;
    });
    std::vector<int32_t> kinds;
    if (costs_.devices()) kinds = costs_.kinds_at(costs_.place_of(graph_, groups_[g].tags));
    std::vector<std::pair<double, size_t>> ops;
    for (size_t i = 0; i < count_; ++i) {
      if (with->group[i] != static_cast<int32_t>(g) || chooses(graph_.nodes[i])) continue;
      PIPER_ASSIGN(const double each, price_of(graph_.nodes[i], kinds));
      ops.emplace_back(each, i);
    }
    std::sort(ops.begin(), ops.end());
    std::vector<bool> in_region;
    for (const Node& node : graph_.nodes)
      in_region.push_back(region_of(groups_[g].directive, node) == groups_[g].tags);
    const auto kept_with = [&](size_t count) {
      std::vector<bool> may_repeat(graph_.nodes.size());
      for (size_t k = 0; k < count; ++k) may_repeat[ops[k].second] = true;
      return keep_least(graph_, in_region, may_repeat);
    };
    size_t low = 0, high = ops.size();  // the more may be repeated, the less is kept
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (kept_with(middle).bytes <= *recompute.budget_bytes)
        high = middle;
      else
        low = middle + 1;
    }
    Kept kept = kept_with(low);
    if (kept.bytes > *recompute.budget_bytes) {
      const bool alike = human_bytes(kept.bytes) == human_bytes(*recompute.budget_bytes);
      const auto text = [&](int64_t bytes) {
        return alike ? fmt::format("{} B", bytes) : human_bytes(bytes);
      };
      return fail(recompute.at,
                  "recompute: a microbatch keeps at least {} in {}, more than the budget of {}",
                  text(kept.bytes), region_name(groups_[g].tags), text(*recompute.budget_bytes));
    }
    fitted_.push_back(fmt::format("{} keeps {} a microbatch", region_name(groups_[g].tags),
                                  human_bytes(kept.bytes)));
    kept_[g] = std::move(kept.values);
    return ok_status();
  }
  std::string region_name(const std::vector<int32_t>& tags) const {
    std::string name;
    for (size_t t = 0; t < tags.size(); ++t)
      if (tags[t] != kNoTag)
        name += fmt::format("{}{}={}", name.empty() ? "" : " ", graph_.tag_names[t], tags[t]);
    return name.empty() ? "the model" : name;
  }
  // Finds what works on rows that are at the ranks of their experts, by the value that sent them.
  void find_routed() {
    std::map<ValueId, ValueId> sent_by;
    for (size_t i = 0; i < count_; ++i) {
      const Node& node = graph_.nodes[i];
      if (node.pass != Pass::kF) continue;
      ValueId by = node.op == "Dispatch" ? node.inputs[1] : ValueId();
      for (const ValueId input : node.inputs)
        if (const auto rows = sent_by.find(input); !by.valid() && rows != sent_by.end())
          by = rows->second;
      if (!by.valid()) continue;
      routed_[by].push_back(NodeId(i));
      if (node.op == "Combine") continue;
      for (const ValueId output : node.outputs) sent_by.emplace(output, by);
    }
  }
  // Returns whether rows stay that the value has sent, while others of them are made again: both
  // are in one order only where the value stays, too.
  bool sends_kept_rows(const Variant& variant, ValueId value, int32_t group) const {
    const auto routed = routed_.find(value);
    if (routed == routed_.end()) return false;
    const std::vector<bool>& kept = kept_[static_cast<size_t>(group)];
    return std::ranges::any_of(routed->second, [&](NodeId id) {
      const Node& node = graph_.node(id);
      return variant.group[id.index()] != group ||
             (!kept.empty() && node.op != "Combine" && makes_any(node, kept));
    });
  }
  static bool makes_any(const Node& node, const std::vector<bool>& of) {
    return std::ranges::any_of(node.outputs,
                               [&](ValueId id) { return id.valid() && of[id.index()]; });
  }
  // Returns whether the value is there anyway when the backward pass comes: what a group hands on.
  bool is_kept(const Variant& variant, ValueId value) const {
    const int32_t group = group_of(variant, value);
    if (sends_kept_rows(variant, value, group)) return true;
    if (!kept_[static_cast<size_t>(group)].empty())
      return kept_[static_cast<size_t>(group)][value.index()];
    if (!directive_of(group).ops.empty()) return false;
    for (NodeId reader : all_readers_[value.index()])
      if (graph_.node(reader).pass == Pass::kF && variant.group[reader.index()] != group)
        return true;
    return false;
  }
  // Returns whether a node of the backward pass reads a copy instead of the value: only in its own
  // region.
  bool reads_again(const Variant& variant, const Node& reader, ValueId value) const {
    const int32_t group = value.valid() ? group_of(variant, value) : kNone;
    return group != kNone && !is_kept(variant, value) &&
           region_of(groups_[static_cast<size_t>(group)].directive, reader) ==
               groups_[static_cast<size_t>(group)].tags;
  }
  // Returns whether the input of a copy is a copy itself: what its own group makes.
  bool copies_too(const Variant& variant, const Node& node, ValueId input) const {
    const int32_t group = input.valid() ? group_of(variant, input) : kNone;
    return group != kNone && group == group_of(variant, node.outputs[0]) &&
           !is_kept(variant, input);
  }
  bool any_reads_again(const Node& reader, ValueId value) const {
    return std::any_of(variants_.begin(), variants_.end(),
                       [&](const Variant& v) { return reads_again(v, reader, value); });
  }
  bool any_copies_too(const Node& node, ValueId input) const {
    return std::any_of(variants_.begin(), variants_.end(),
                       [&](const Variant& v) { return copies_too(v, node, input); });
  }
  // Counts the bytes that are kept; without a variant: where nothing runs again. Requires the graph
  // without copies.
  int64_t kept_bytes(const Variant* variant) const {
    std::set<ValueId> kept;
    const auto keep = [&](ValueId input) {
      const Node* from = producer(input);
      if (from && from->pass == Pass::kF) kept.insert(input);
    };
    for (size_t i = 0; i < count_; ++i) {
      const Node& node = graph_.nodes[i];
      const bool again = variant != nullptr && variant->again[i];
      for (ValueId input : node.inputs)
        if (again
                ? !copies_too(*variant, node, input)
                : is_backward(node) && (variant == nullptr || !reads_again(*variant, node, input)))
          keep(input);
    }
    int64_t bytes = 0;
    for (ValueId value : kept) bytes += graph_.value(value).type.bytes();
    return bytes;
  }

  // ---- Copies ----
  // Returns by forward op whether a node reads its copy, or whether what is copied for that node
  // does.
  template <class Reads, class Copies>
  std::vector<bool> needed_by(const Reads& reads, const Copies& copies) const {
    std::vector<bool> needed(count_);
    const auto mark = [&](ValueId value) { needed[graph_.value(value).producer.index()] = true; };
    for (const Node& node : graph_.nodes)
      for (ValueId input : node.inputs)
        if (is_backward(node) && reads(node, input)) mark(input);
    for (size_t i = count_; i-- > 0;)
      for (ValueId input : graph_.nodes[i].inputs)
        if (needed[i] && copies(graph_.nodes[i], input)) mark(input);
    return needed;
  }
  // Copies once each op that some variant runs again; the copy reads copies where some variant's
  // does.
  void copy_all() {
    const std::vector<bool> in_bi = needed_by(  // a copy that pass BI needs belongs to it
        [&](const Node& node, ValueId input) {
          return node.pass == Pass::kBI && any_reads_again(node, input);
        },
        [&](const Node& node, ValueId input) { return any_copies_too(node, input); });
    copies_.assign(count_, NodeId());
    for (size_t i = 0; i < count_; ++i) {
      if (!is_backward(graph_.nodes[i])) continue;
      for (size_t k = 0; k < graph_.nodes[i].inputs.size(); ++k) {
        const ValueId input = graph_.nodes[i].inputs[k];
        if (!any_reads_again(graph_.nodes[i], input)) continue;
        copy_with_inputs(graph_.value(input).producer, in_bi);
        graph_.nodes[i].inputs[k] = copy_of(input);
      }
    }
  }
  ValueId copy_of(ValueId value) const {
    const Value& original = graph_.value(value);
    const NodeId copy = copies_[original.producer.index()];
    return graph_.node(copy).outputs[static_cast<size_t>(original.output_index)];
  }
  // Copies an op whose inputs are copied.
  void copy(const Node& node, NodeId original, bool in_bi) {
    Node again = node;
    for (ValueId& input : again.inputs)
      if (any_copies_too(node, input)) input = copy_of(input);
    again.pass = in_bi ? Pass::kBI : Pass::kBW;
    const NodeId made = graph_.add_copy(std::move(again));
    copies_[original.index()] = made;
  }

  // Copies an op after what its copy reads copies of, without recursion, for chains of ops are
  // long.
  void copy_with_inputs(NodeId id, const std::vector<bool>& in_bi) {
    std::vector<std::pair<NodeId, size_t>> open{{id, 0}};  // with the next input of each to look at
    while (!open.empty()) {
      auto& [original, next] = open.back();
      const Node& node = graph_.node(original);
      const bool is_copied = copies_[original.index()].valid();
      if (!is_copied && next < node.inputs.size()) {
        const ValueId input = node.inputs[next++];
        if (any_copies_too(node, input)) open.emplace_back(graph_.value(input).producer, 0);
        continue;
      }
      if (!is_copied) copy(node, original, in_bi[original.index()]);
      open.pop_back();
    }
  }
  // Returns whether the op's results are bytes that exist anyway: keeping its input is as good for
  // all variants.
  bool is_free(const Node& node) const { return node.op == "Reshape" || casts_state(graph_, node); }
  // Says what each copy is of, and which variants make it.
  void describe_copies(Variants& out) const {
    for (size_t i = 0; i < count_; ++i) {
      if (!copies_[i].valid()) continue;
      const Node &original = graph_.nodes[i], &copy = graph_.node(copies_[i]);
      for (size_t k = 0; k < copy.outputs.size(); ++k) {
        if (!copy.outputs[k].valid()) continue;
        out.copies.emplace_back(copy.outputs[k], original.outputs[k]);
        for (size_t v = 0; v < variants_.size(); ++v)
          if (variants_[v].again[i] || is_free(original)) out.made[v].push_back(copy.outputs[k]);
      }
    }
  }

  Variants describe() const {
    Variants out;
    out.made.resize(variants_.size());
    if (variants_.size() > 1) out.of_micro.resize(static_cast<size_t>(microbatches_));
    for (size_t v = 0; v < variants_.size() && variants_.size() > 1; ++v)
      for (int32_t micro : variants_[v].micros)
        out.of_micro[static_cast<size_t>(micro)] = static_cast<int32_t>(v);
    describe_copies(out);
    std::sort(out.copies.begin(), out.copies.end());
    for (auto& made : out.made) std::sort(made.begin(), made.end());
    return out;
  }

  static bool reads_any(const Node& node, const std::vector<bool>& of) {
    return std::ranges::any_of(node.inputs,
                               [&](ValueId id) { return id.valid() && of[id.index()]; });
  }

  // Returns whether frozen parameters, and none that is trained, are behind what these ops make.
  bool is_before_training(const std::vector<bool>& chosen) const {
    std::vector<bool> frozen(graph_.values.size()), trained(graph_.values.size());
    for (const Param& param : graph_.params)
      (param.gradient.valid() ? trained : frozen)[param.value.index()] = true;
    bool is_frozen = false;
    for (size_t i = 0; i < count_; ++i) {
      const Node& node = graph_.nodes[i];
      const bool by_trained = reads_any(node, trained), by_frozen = reads_any(node, frozen);
      for (const ValueId output : node.outputs)
        if (output.valid()) {
          trained[output.index()] = by_trained;
          frozen[output.index()] = by_frozen;
        }
      if (!chosen[i]) continue;
      if (by_trained) return false;
      is_frozen = is_frozen || by_frozen;
    }
    return is_frozen;
  }

  Status report(size_t d, Explanations& out) const {
    int64_t chosen = 0, again = 0;
    std::set<int32_t> groups;
    std::vector<int32_t> micros;
    std::vector<bool> counted(count_);
    for (const Variant& variant : variants_) {
      bool here = false;
      for (size_t i = 0; i < count_; ++i) {
        const int32_t group = variant.group[i];
        if (group == kNone || groups_[static_cast<size_t>(group)].directive != d) continue;
        here = true;
        groups.insert(group);
        if (counted[i]) continue;
        counted[i] = true;
        ++chosen;
        again += variant.again[i];
      }
      if (here) micros.insert(micros.end(), variant.micros.begin(), variant.micros.end());
    }
    std::sort(micros.begin(), micros.end());
    const std::string nothing = chosen == 0 ? "other entries speak of all ops"
                                : again == 0 && is_before_training(counted)
                                    ? fmt::format(
                                          "the backward pass reads nothing that these {} "
                                          "ops make: no parameter before them is trained",
                                          chosen)
                                    : "";
    if (!nothing.empty()) {
      out.push_back({recomputes_[d].at, "recompute", {"nothing: " + nothing}});
      return ok_status();
    }
    if (again == 0 && !recomputes_[d].budget_bytes)
      return fail(recomputes_[d].at,
                  "recompute: the backward pass reads nothing that these {} ops make", chosen);
    out.push_back(
        {recomputes_[d].at,
         "recompute",
         {fmt::format("of {} forward ops in {} groups {} run again in the backward pass{}", chosen,
                      groups.size(), again,
                      by_microbatch(recomputes_[d])
                          ? fmt::format(" of {} {}", recomputes_[d].micro, ranges(micros))
                          : "")}});
    return ok_status();
  }

  Graph graph_;
  const size_t count_;  // of nodes, without copies
  const std::vector<Recompute>& recomputes_;
  const Nesting nesting_;
  const Variables& variables_;
  const JobCosts& costs_;
  const int32_t microbatches_;
  std::vector<Variant> variants_;
  std::vector<Group> groups_;
  std::map<Group, int32_t> ids_;
  std::vector<std::vector<NodeId>> all_readers_;  // of the graph without copies
  std::map<ValueId, std::vector<NodeId>> routed_;  // by what sends rows to experts, and back
  std::vector<NodeId> copies_;                    // by node
  std::vector<std::vector<bool>> kept_;  // by group, then value: what a budget has chosen; or empty
  std::vector<std::string> fitted_;      // what it chose, for people
};

// Joins what two passes make again, which all microbatches do.
Variants joined(Variants all, const Variants& more) {
  all.copies.insert(all.copies.end(), more.copies.begin(), more.copies.end());
  std::ranges::sort(all.copies);
  all.made.resize(1);
  all.made[0].insert(all.made[0].end(), more.made[0].begin(), more.made[0].end());
  std::ranges::sort(all.made[0]);
  return all;
}

}  // namespace

// Entries that others hold come first: what they run again are then ops of the backward pass, which
// read what the others run again.
Result<Recomputed> apply_recompute(Graph step, const std::vector<Recompute>& recomputes,
                                   const TagsOfOps& tags, const Variables& variables,
                                   int64_t microbatches, const JobCosts& costs, Explanations& out) {
  if (recomputes.empty()) return Recomputed{std::move(step), {}};
  Nesting nesting;
  for (size_t t = 0; t < step.tag_names.size(); ++t) {
    const std::string& name = step.tag_names[t];
    if (std::ranges::count(tags.tasks, name) == 0) nesting.tags.push_back(t);
    if (std::ranges::count(tags.parts, name) > 0) nesting.parts.push_back(t);
  }
  nesting.holds.assign(recomputes.size(), true);
  Recomputer all(std::move(step), recomputes, nesting, variables, microbatches, costs);
  PIPER_ASSIGN(const std::vector<Nested> nested, all.nested());
  step = std::move(all).take();
  const size_t deepest = std::ranges::max(nested, {}, &Nested::depth).depth;
  Recomputed made{std::move(step), {}};
  for (size_t depth = deepest + 1; depth-- > 0;) {
    std::vector<Recompute> some;
    nesting.holds.clear();
    for (size_t d = 0; d < recomputes.size(); ++d)
      if (nested[d].depth == depth)
        some.push_back(recomputes[d]), nesting.holds.push_back(nested[d].holds);
    if (some.empty()) continue;
    PIPER_ASSIGN(
        Recomputed next,
        Recomputer(std::move(made.graph), some, nesting, variables, microbatches, costs).run(out));
    made.graph = std::move(next.graph);
    if (deepest == 0) return Recomputed{std::move(made.graph), std::move(next.variants)};
    made.variants = joined(std::move(made.variants), next.variants);
  }
  return made;
}

}  // namespace piper
