// The directive `shard`: which dims are cut over which axes.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "match.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

class Seeds {
 public:
  Seeds(const Graph& graph, const ShardRule& shard, const Variables& variables)
      : graph_(graph), shard_(shard), variables_(variables) {}

  Result<std::vector<ShardSeed>> find() {
    if (shard_.match) {
      PIPER_TRY(find_parameters());
    } else if (shard_.scope) {
      PIPER_TRY(find_made());
    } else {
      PIPER_TRY(find_input());
    }
    return std::move(seeds_);
  }

  // Finds the attentions of a step, and how each is done.
  Result<AttentionCut> find_attention(const AxisCut& cut) {
    std::vector<std::string> all;
    for (const Node& node : graph_.nodes) {
      if (node.op != "Attention") continue;
      all.push_back(node.scope);
      if (!shard_.attention->match(node.scope)) continue;
      seeds_.push_back({node.outputs[0]});
      for (const AttentionCut& other : cut.attention)
        if (other.scope.match(node.scope))
          return fail(shard_.at, "shard: two directives say how attention in {} is done over '{}'",
                      quote_control(node.scope), cut.name)
              .with_note(fmt::format("the other one is at {}", line_of(other.at, shard_.at)));
    }
    // What is no attention is gathered all the same.
    if (all.empty() && way().by != AttentionBy::kGather) return no_attention(cut.name);
    if (!all.empty()) PIPER_TRY(nothing("attention", *shard_.attention, all));
    return AttentionCut{*shard_.attention, way().by, shard_.at};
  }
  size_t count() const { return seeds_.size(); }
  struct Way {
    AttentionBy by = AttentionBy::kGather;
    const char* name = "gather";
  };
  Way way() const {
    if (shard_.by == ShardRule::By::kRing) return {AttentionBy::kRing, "ring"};
    if (shard_.by == ShardRule::By::kHeads) return {AttentionBy::kHeads, "heads"};
    return {};
  }

 private:
  Status find_parameters() {
    const auto by = readers(graph_);
    bool any = false;
    for (const Param& param : graph_.params) {
      if (!has_name(param, *shard_.match)) continue;
      any = true;
      PIPER_ASSIGN(const bool met,
                   is_read_where(graph_, by[param.value.index()], shard_.where, variables_));
      if (met)
        PIPER_TRY(add(param.value, fmt::format("parameter '{}'", quote_control(param.name))));
    }
    if (any && seeds_.empty())
      return none_where(*shard_.match, "no parameter that matches '{}' is read only");
    std::vector<std::string> all;
    for (const Param& param : graph_.params)
      if (seeds_.empty()) std::ranges::move(paths_of(param), std::back_inserter(all));
    return nothing("parameter", *shard_.match, all);
  }

  Status find_input() {
    std::vector<std::string> all;
    const int64_t extent = extent_of_many();
    for (ValueId id : graph_.inputs) {
      if (id == graph_.sample) continue;  // no input of the model
      const std::string& name = all.emplace_back(graph_.value(id).name);
      if (!shard_.input->match(name)) continue;
      if (!is_named(name) && extent > 0 && extent_at(id) != extent) continue;
      PIPER_TRY(add(id, fmt::format("input '{}'", quote_control(name))));
    }
    return nothing("input", *shard_.input, all);
  }

  bool is_named(const std::string& input) const {
    const std::vector<std::string> patterns = split_text(shard_.input->pattern(), ',');
    return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
      return pattern == input || pattern == " " + input;
    });
  }
  // Returns the extent of the input's dim that is to be cut; 0: it has none.
  int64_t extent_at(ValueId id) const {
    const Shape& shape = graph_.value(id).type.shape;
    const int64_t dim = *shard_.dim < 0 ? *shard_.dim + std::ssize(shape) : *shard_.dim;
    return dim >= 0 && dim < std::ssize(shape) ? shape[static_cast<size_t>(dim)] : 0;
  }
  // A pattern means the inputs that have samples, or tokens, along the dim: as many as an input
  // whose samples these are, or the first input of integers has there, or else the first that has
  // the dim at all. 0: none has.
  int64_t extent_of_many() const {
    int64_t extent = 0;
    bool told = false;
    for (ValueId id : graph_.inputs) {
      const Value& value = graph_.value(id);
      if (!shard_.dim || id == graph_.sample || !shard_.input->match(value.name)) continue;
      if (value.batch_dim >= 0 && value.batch_dim == *shard_.dim) return extent_at(id);
      const bool tells = extent_at(id) > 1 && !info(value.type.dtype).is_float;
      if (extent <= 1 || (tells && !told)) extent = extent_at(id);
      told = told || tells;
    }
    return extent;
  }

  // Finds what modules make that others read.
  Status find_made() {
    std::vector<bool> inside(graph_.nodes.size());
    std::vector<std::string> all;
    bool any = false;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.pass != Pass::kF) continue;
      if (!node.scope.empty() && (all.empty() || all.back() != node.scope))
        all.push_back(node.scope);
      if (!shard_.scope->match(node.scope)) continue;
      any = true;
      PIPER_ASSIGN(const auto met, match_node(graph_, node, shard_.where, variables_));
      inside[i] = met.has_value();
    }
    const bool none = std::find(inside.begin(), inside.end(), true) == inside.end();
    if (any && none) return none_where(*shard_.scope, "no op of '{}' is");
    const auto all_readers = readers(graph_);
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      for (ValueId output : graph_.nodes[i].outputs) {
        const auto& by = all_readers[output.index()];
        const bool leaves = std::any_of(by.begin(), by.end(), [&](NodeId reader) {
          return graph_.node(reader).pass == Pass::kF && !inside[reader.index()];
        });
        if (inside[i] && leaves)
          PIPER_TRY(add(output, fmt::format("'{}' of {}", quote_control(graph_.value(output).name),
                                            graph_.nodes[i].scope)));
      }
    if (seeds_.empty() && !none)
      return fail(shard_.of_at, "shard: nothing reads what '{}' makes",
                  quote_control(shard_.scope->pattern()))
          .with_note("help: 'scope' names modules whose results other modules read");
    return nothing("module", *shard_.scope, all);
  }

  Error none_where(const Glob& wanted, fmt::format_string<std::string> what) const {
    return fail(shard_.where.front().at, "shard: {} where 'where' says",
                fmt::format(what, quote_control(wanted.pattern())))
        .with_note("help: `piperc MODEL STRATEGY --dump annotate` lists the tags of ops");
  }

  Error no_attention(std::string_view axis) const {
    return fail(shard_.of_at,
                "shard: no attention of the model is recognised, so '{}' matches none",
                quote_control(shard_.attention->pattern()))
        .with_note(
            "`piperc MODEL --describe` says which softmaxes of products it has, and what of "
            "each did not fit")
        .with_note(fmt::format("help: without this directive tokens are cut over '{}' all the same "
                               "(strategies/context/gather.yaml): what each rank attends to is "
                               "gathered",
                               axis));
  }

  Status nothing(std::string_view what, const Glob& wanted,
                 const std::vector<std::string>& all) const {
    if (!seeds_.empty()) return ok_status();
    const std::string& pattern = wanted.pattern();
    Error error = fail(shard_.of_at, "shard: no {} matches '{}'{}", what, quote_control(pattern),
                       did_you_mean(pattern.substr(0, pattern.find(", ")), all));
    if (all.empty()) error.notes.push_back(fmt::format("the model has no {}", what));
    if (!all.empty() && all.size() <= 8)
      error.notes.push_back(fmt::format("there are {}", join(all, ", ")));
    error = with_deeper(std::move(error), wanted, all);
    error.notes.push_back("help: `piperc MODEL --describe` lists parameters, inputs and modules");
    return error;
  }

  Status add(ValueId id, const std::string& what) {
    const auto rank = static_cast<int64_t>(graph_.value(id).type.shape.size());
    ShardSeed seed{id, -1, shard_.at, shard_.pad ? 1 : 0};
    seed.zigzag = shard_.zigzag;
    if (shard_.dim) {
      const int64_t dim = *shard_.dim < 0 ? *shard_.dim + rank : *shard_.dim;
      if (dim < 0 || dim >= rank)
        return fail(shard_.dim_at, "shard: {} has no dim {}", what, *shard_.dim)
            .with_note(fmt::format("its type is {}", to_string(graph_.value(id).type)));
      seed.dim = static_cast<int>(dim);
    }
    seeds_.push_back(seed);
    return ok_status();
  }

  const Graph& graph_;
  const ShardRule& shard_;
  const Variables& variables_;
  std::vector<ShardSeed> seeds_;
};

// What helps where a dim does not divide.
std::string help_divide(const Graph& graph, const AxisCut& cut, const ShardSeed& seed,
                        int64_t parts) {
  const Value& value = graph.value(seed.value);
  const int64_t extent = value.type.shape[static_cast<size_t>(seed.dim)];
  if (seed.dim == value.batch_dim)
    return fmt::format(
        "help: a microbatch has {} sample{}, of which each rank of '{}' has a block: a multiple of "
        "{} can be cut",
        extent, extent == 1 ? "" : "s", cut.name, parts);
  if (value.kind == ValueKind::kState && can_be_padded(graph, cut, seed, parts))
    return "help: `pad: true` adds zeros after it that never count";
  if (seed.zigzag && extent % (parts / 2) == 0)
    return "help: `order: contiguous` has one block a rank";
  std::vector<std::string> sizes;
  for (int64_t n = 2; n <= extent && sizes.size() < 6; ++n)
    if (extent % n == 0) sizes.push_back(std::to_string(n));
  if (sizes.empty()) return "help: another dim";
  return fmt::format("help: another dim, or together {} ranks", join(sizes, " or "));
}

// All axes that cut a dim divide it together, or it goes on into zeros for all of them.
Status check_divides(const Graph& graph, std::span<const AxisCut> before, const AxisCut& cut,
                     const ShardSeed& seed) {
  const TensorType& type = graph.value(seed.value).type;
  if (seed.dim < 0) return ok_status();
  int64_t parts = cut.ranks * (seed.zigzag && cut.ranks > 1 ? 2 : 1);
  std::string over = fmt::format("'{}'{}", cut.name, parts > cut.ranks ? ", two a rank" : "");
  std::vector<std::string> notes;
  for (const AxisCut& axis : before)
    for (const ShardSeed& other : axis.seeds) {
      if (other.value != seed.value || other.dim != seed.dim) continue;
      notes.push_back(
          fmt::format("it is cut over '{}' at {}", axis.name, line_of(other.at, seed.at)));
      // Of an input a rank loads its own samples, all of each, and takes its own block once.
      const Value& value = graph.value(seed.value);
      const bool together = other.at.line == seed.at.line && other.at.file == seed.at.file;
      if (value.kind == ValueKind::kInput && value.batch_dim != seed.dim && !together)
        return fail(seed.at, "not supported: dim {} of input '{}' in blocks over two axes",
                    seed.dim, quote_control(graph.value(seed.value).name))
            .with_note(notes.back())
            .with_note(fmt::format("help: one line says which of them has the longer blocks: "
                                   "`over: [{}, {}]`",
                                   axis.name, cut.name));
      parts *= axis.ranks * (other.zigzag ? 2 : 1);
      over = fmt::format("'{}' and {}", axis.name, over);
    }
  const int64_t extent = type.shape[static_cast<size_t>(seed.dim)];
  if (extent % parts == 0 || seed.pad_to > 0) return ok_status();
  Error error =
      fail(seed.at, "shard: dim {} of '{}' ({}) cannot be cut into {} equal parts over {}",
           seed.dim, quote_control(graph.value(seed.value).name), to_string(type), parts, over);
  for (std::string& note : notes) error.notes.push_back(std::move(note));
  error.notes.push_back(help_divide(graph, cut, seed, parts));
  return error;
}

// Sets into how many parts a dim padded with zeros is cut: by this axis and all after it.
void add_zeros(std::vector<AxisCut>& cuts) {
  for (size_t c = cuts.size(); c-- > 0;)
    for (ShardSeed& seed : cuts[c].seeds) {
      bool pads = seed.pad_to > 0;
      int64_t parts = cuts[c].ranks;
      for (size_t other = 0; other < cuts.size(); ++other)
        for (const ShardSeed& also : cuts[other].seeds) {
          if (other == c || also.value != seed.value || also.dim != seed.dim) continue;
          pads = pads || also.pad_to > 0;
          if (other > c) parts *= cuts[other].ranks;
        }
      seed.pad_to = pads ? parts : 0;
    }
}

Status add_seeds(const Graph& graph, AxisCut& cut, std::vector<ShardSeed> seeds) {
  for (ShardSeed& seed : seeds) {
    const auto other = std::find_if(cut.seeds.begin(), cut.seeds.end(), [&](const ShardSeed& each) {
      return each.value == seed.value;
    });
    if (other != cut.seeds.end())
      return fail(seed.at, "shard: two directives cut '{}' over '{}'",
                  quote_control(graph.value(seed.value).name), cut.name)
          .with_note(fmt::format("the other one is at {}", line_of(other->at, seed.at)));
    cut.seeds.push_back(std::move(seed));
  }
  return ok_status();
}

Status add_attention(const Graph& step, const ShardRule& shard, const Variables& variables,
                     AxisCut& cut, Explanations& out) {
  Seeds found(step, shard, variables);
  PIPER_ASSIGN(AttentionCut attention, found.find_attention(cut));
  cut.attention.push_back(std::move(attention));
  out.push_back(
      {shard.at,
       "shard",
       {found.count() == 0
            ? fmt::format("no attention is recognised: what it reads over {} is gathered", cut.name)
            : fmt::format("attention over {} by {}: {} of them", cut.name, found.way().name,
                          found.count())}});
  return ok_status();
}

// Rows beyond the room become NaN, so the step that has them must not be taken.
Status add_capacity(const ShardRule& shard, const TrainSpec& train, AxisCut& cut) {
  if (!shard.capacity) return ok_status();
  if (cut.capacity && *cut.capacity != *shard.capacity)
    return fail(shard.capacity_at, "shard: two capacities over '{}'", cut.name)
        .with_note(
            fmt::format("the other one is at {}", line_of(cut.capacity_at, shard.capacity_at)));
  if (!skips_nonfinite(train))
    return fail(shard.capacity_at,
                "shard: 'capacity' where updates do not wait for the norm of the gradients")
        .with_note(
            "a step with more rows than there is room for is not finite, and must change "
            "no parameter")
        .with_note("help: 'train: {skip_nonfinite: true}' or clip_norm");
  cut.capacity = shard.capacity, cut.capacity_at = shard.capacity_at;
  return ok_status();
}

// Cuts the samples of coupled replicas into blocks, and keeps whole what lives from step to step:
// all of it, or, where rules of `shard` cut over the axis, too, what entries of `replicate` name.
// What rules name is as they say.
void add_samples(const Graph& step, const Strategy& strategy, const Cut& of_batch, AxisCut& cut,
                 Explanations& out) {
  const auto over = std::ranges::find_if(
      strategy.replicates, [&](const Replicate& one) { return one.is_over(cut.name); });
  const auto rule = std::ranges::find_if(
      strategy.shards, [&](const ShardRule& each) { return each.over.front() == cut.name; });
  const bool has_rules = rule != strategy.shards.end();
  const auto is_named = [&](const Param& param) {
    return std::ranges::any_of(of_batch.lines_of.at(param.name), [&](size_t line) {
      const Replicate& one = strategy.replicates[line];
      return one.is_of_some() && one.is_over(cut.name);
    });
  };
  const std::vector<ShardSeed> by_rules = cut.seeds;
  const SourceSpan& at = has_rules ? rule->at : over->at;
  const auto add = [&](ValueId value, int dim) {
    if (std::ranges::none_of(by_rules, [&](const ShardSeed& one) { return one.value == value; }))
      cut.seeds.push_back({value, dim, at});
  };
  for (ValueId input : step.inputs)
    if (const int dim = step.value(input).batch_dim; dim >= 0) add(input, dim);
  for (const Param& param : step.params)
    if (!has_rules || is_named(param)) add(param.value, -1);
  if (has_rules)
    out.push_back({over->at,
                   "replicate",
                   {fmt::format("over {}, which 'shard' at {} cuts, too: its ranks run one "
                                "graph, each on its block of the inputs of a microbatch",
                                cut.name, line_of(rule->at, over->at))}});
}

bool attends_by(const AxisCut& cut, AttentionBy by) {
  return std::any_of(cut.attention.begin(), cut.attention.end(),
                     [&](const AttentionCut& one) { return one.by == by; });
}
bool exchanges_heads(const AxisCut& cut) { return attends_by(cut, AttentionBy::kHeads); }
// Returns how an attention is done over the axis, where the strategy says it.
const AttentionCut* attention_of(const AxisCut& cut, const Node& node) {
  const auto how = std::ranges::find_if(cut.attention, [&](const AttentionCut& one) {
    return one.scope.match(node.scope).has_value();
  });
  return how == cut.attention.end() ? nullptr : &*how;
}
// Heads are exchanged before keys come by in turn, so that these come once; unless the strategy
// says of another attention that it meets tokens over both axes without an exchange over this one,
// as the keys of that are in the blocks of the longer axis.
bool exchanges_heads_first(const Graph& step, const AxisCut& cut,
                           const std::vector<AxisCut>& cuts) {
  const auto meets_otherwise = [&](const Node& node) {
    const AttentionCut* const how = attention_of(cut, node);
    if (node.op != "Attention" || (how && how->by == AttentionBy::kHeads)) return false;
    return std::ranges::any_of(cuts, [&](const AxisCut& other) {
      return other.axis != cut.axis && attention_of(other, node) != nullptr;
    });
  };
  return exchanges_heads(cut) && std::ranges::none_of(step.nodes, meets_otherwise);
}

// Returns whether a line cuts a dim over `longer` first, and each of its blocks over this axis.
bool cuts_within(const Strategy& strategy, const AxisCut& cut, const AxisCut& longer) {
  return std::ranges::any_of(strategy.shards, [&](const ShardRule& rule) {
    return rule.over.front() == cut.name && !rule.match &&
           std::ranges::count(rule.within, longer.name) > 0;
  });
}

// Returns whether an axis is cut after another of the same rank. Tokens and keys that come by in
// turn or are gathered are stretches of those that the axis with the longer blocks has left. Heads
// are exchanged over the axis with the shorter blocks first, whose tokens are then whole.
bool is_after(const Strategy& strategy, const AxisCut& cut, const AxisCut& other) {
  const bool by_keys = attends_by(cut, AttentionBy::kRing) || attends_by(cut, AttentionBy::kGather);
  if (by_keys) return cuts_within(strategy, cut, other);
  return exchanges_heads(cut) && exchanges_heads(other) && cuts_within(strategy, other, cut);
}

// Returns the stretches that axes after this one cut the rule's dims in.
int64_t stretches_of(const ShardRule& rule, std::span<const AxisCut> later) {
  int64_t outer = 1;
  for (const AxisCut& cut : later)
    for (size_t a = 0; a < rule.within.size(); ++a)
      if (rule.within[a] == cut.name) outer *= cut.ranks * (a == 0 && rule.within_zigzag ? 2 : 1);
  return outer;
}

void set_outer(const Graph& step, const ShardRule& rule, int64_t outer, AxisCut& cut) {
  for (ShardSeed& seed : cut.seeds) {
    const bool of_rule = seed.at.line == rule.at.line && seed.at.file == rule.at.file;
    const Value& value = step.value(seed.value);
    const bool samples = value.kind == ValueKind::kInput && value.batch_dim == seed.dim;
    if (of_rule && !samples && outer > 1) seed.outer = outer;
  }
}

// Returns the axis whose heads are exchanged before the rule's axis cuts tokens into its blocks,
// and after an axis with longer ones passes keys: stretches of stretches, which no attention knows.
const AxisCut* heads_between(const ShardRule& rule, std::span<const AxisCut> before) {
  bool passes_keys = false;
  for (const std::string& longer : rule.within) {
    const auto cut = std::ranges::find(before, longer, &AxisCut::name);
    const bool exchanges = cut != before.end() && exchanges_heads(*cut);
    if (exchanges && passes_keys) return &*cut;
    passes_keys = passes_keys || !exchanges;
  }
  return nullptr;
}

// Of a dim that is cut over several axes the first has the longer blocks. Where an axis after this
// one cuts into longer blocks, this one cuts each of these; and so it does with both blocks that an
// axis before has in the zigzag, if their tokens meet as heads are exchanged.
Status set_stretches(const Graph& step, const Strategy& strategy, std::span<AxisCut> cuts) {
  for (size_t c = 0; c < cuts.size(); ++c)
    for (const ShardRule& rule : strategy.shards) {
      if (rule.over.front() != cuts[c].name || rule.within.empty() || rule.match) continue;
      const std::span<const AxisCut> before = cuts.first(c);
      if (const AxisCut* const heads = heads_between(rule, before))
        return fail(rule.over_at,
                    "not supported: heads exchanged over '{}', whose blocks are longer than those "
                    "of '{}' and within those of '{}'",
                    heads->name, cuts[c].name, rule.within[0])
            .with_note("help: name it first or last in `over`");
      int64_t outer = stretches_of(rule, cuts.subspan(c + 1));
      const bool has_both_ends =
          rule.within_zigzag && std::ranges::any_of(before, [&](const AxisCut& other) {
            return exchanges_heads(other) && other.name == rule.within[0];
          });
      set_outer(step, rule, has_both_ends ? outer * 2 : outer, cuts[c]);
    }
  return ok_status();
}

// Returns the last dim at which it cuts an input; -1: none.
int last_input_dim(const Graph& step, const AxisCut& cut) {
  int last = -1;
  for (const ShardSeed& seed : cut.seeds)
    if (step.value(seed.value).kind == ValueKind::kInput) last = std::max(last, seed.dim);
  return last;
}

// Whether zeros fill up a dim that the ranks do not divide.
bool adds_zeros(const Graph& step, const AxisCut& cut) {
  return std::any_of(cut.seeds.begin(), cut.seeds.end(), [&](const ShardSeed& seed) {
    const Shape& shape = step.value(seed.value).type.shape;
    return seed.pad_to > 0 && seed.dim >= 0 && shape[static_cast<size_t>(seed.dim)] % cut.ranks;
  });
}

}  // namespace

Result<std::vector<AxisCut>> apply_shard(const Graph& step, const Strategy& strategy,
                                         const Cut& of_batch, const Variables& variables,
                                         Explanations& out) {
  std::vector<AxisCut> cuts;
  for (size_t a = 0; a < strategy.mesh.size(); ++a) {
    const MeshAxis& axis = strategy.mesh[a];
    AxisCut cut{static_cast<int32_t>(a), axis.name, axis.size, {}};
    for (const ShardRule& shard : strategy.shards) {
      if (shard.over.front() != axis.name || shard.sends) continue;
      if (axis.size == 1) {
        out.push_back({shard.at, "shard", {one_rank(axis.name)}});
        continue;
      }
      if (shard.attention) {
        PIPER_TRY(add_attention(step, shard, variables, cut, out));
        continue;
      }
      PIPER_ASSIGN(std::vector<ShardSeed> seeds, Seeds(step, shard, variables).find());
      out.push_back({shard.at,
                     "shard",
                     {fmt::format("{} over {}: {} tensor{}",
                                  shard.dim ? fmt::format("dim {}", *shard.dim) : "all", axis.name,
                                  seeds.size(), seeds.size() == 1 ? "" : "s")}});
      PIPER_TRY(add_seeds(step, cut, std::move(seeds)));
      PIPER_TRY(add_capacity(shard, strategy.train, cut));
    }
    if (of_batch.mesh[a].is_coupled()) add_samples(step, strategy, of_batch, cut, out);
    if (cut.seeds.empty() && !cut.attention.empty() && cut.ranks > 1)
      return fail(cut.attention.front().at, "shard: nothing is cut over '{}'", cut.name)
          .with_note(fmt::format("help: `shard: {{input: \"*\", dim: 1, over: {}}}` cuts tokens",
                                 cut.name));
    if (!cut.seeds.empty() && cut.ranks > 1) cuts.push_back(std::move(cut));
  }
  // The order of the mesh decides nothing but where axes are alike: zeros are masked in what is
  // whole, not in what comes by in turn; what inputs begin with all ops after them have, and
  // tokens are mixed by fewer ops than samples are by lookups.
  std::set<int32_t> heads_first;  // axes
  for (const AxisCut& cut : cuts)
    if (exchanges_heads_first(step, cut, cuts)) heads_first.insert(cut.axis);
  const auto rank = [&](const AxisCut& cut) {
    return std::tuple(adds_zeros(step, cut), last_input_dim(step, cut),
                      heads_first.contains(cut.axis));
  };
  std::ranges::stable_sort(cuts, std::greater(), rank);
  for (size_t c = 1; c < cuts.size(); ++c)
    for (size_t i = c;
         i > 0 && rank(cuts[i - 1]) == rank(cuts[i]) && is_after(strategy, cuts[i - 1], cuts[i]);
         --i)
      std::swap(cuts[i - 1], cuts[i]);
  PIPER_TRY(set_stretches(step, strategy, cuts));
  add_zeros(cuts);
  for (size_t c = 0; c < cuts.size(); ++c)
    for (const ShardSeed& seed : cuts[c].seeds)
      PIPER_TRY(check_divides(step, std::span(cuts).first(c), cuts[c], seed));
  return cuts;
}

namespace {

// Returns by value whether it is made in one cell and read in another.
std::vector<bool> sent_values(const Dag& dag) {
  std::vector<std::set<int32_t>> made_in(dag.graph.values.size());
  for (const Chunk& chunk : dag.chunks)
    for (ValueId value : chunk.writes) made_in[value.index()].insert(chunk.cell);
  std::vector<bool> sent(dag.graph.values.size());
  for (const Chunk& chunk : dag.chunks)
    for (ValueId value : chunk.reads)
      for (int32_t cell : made_in[value.index()])
        if (cell != chunk.cell) sent[value.index()] = true;
  return sent;
}

// Returns whether the ranks of the axis hold the value alike, and it has an element for each.
bool can_be_sliced(const Dag& dag, const Value& value, int32_t axis) {
  return num_elements(value.type.shape) >= dag.mesh[static_cast<size_t>(axis)].size &&
         std::none_of(value.over.begin(), value.over.end(),
                      [&](const AxisLayout& lies) { return lies.axis == axis; });
}

}  // namespace

Result<Dag> apply_sends(Dag dag, const std::vector<ShardRule>& shards, Explanations& out) {
  std::vector<bool> sent;
  for (const ShardRule& shard : shards) {
    if (!shard.sends) continue;
    if (sent.empty()) sent = sent_values(dag);
    dag.sliced.resize(dag.graph.values.size());
    const auto named = std::find_if(dag.mesh.begin(), dag.mesh.end(), [&](const DagAxis& axis) {
      return axis.name == shard.over.front();
    });
    if (named->size == 1) {
      out.push_back({shard.at, "shard", {one_rank(named->name)}});
      continue;
    }
    const auto axis = static_cast<int32_t>(named - dag.mesh.begin());
    int64_t count = 0, bytes = 0, alike = 0;
    for (size_t v = 0; v < dag.sliced.size(); ++v) {
      const Value& value = dag.graph.values[v];
      if (!sent[v] || !can_be_sliced(dag, value, axis)) continue;
      ++alike;
      if (!shard.sends->match(dag.graph.node(value.producer).scope)) continue;
      ++count;
      bytes += value.type.bytes();
      std::vector<int32_t>& axes = dag.sliced[v];
      const auto at = std::lower_bound(axes.begin(), axes.end(), axis);
      if (at == axes.end() || *at != axis) axes.insert(at, axis);
    }
    const bool is_sent = std::find(sent.begin(), sent.end(), true) != sent.end();
    if (alike == 0 && is_sent)
      return fail(shard.of_at, "shard: nothing that stages send is held alike by the ranks of '{}'",
                  named->name)
          .with_note("they send parts of it already, as other lines of 'shard' cut it")
          .with_note("help: leave this line out");
    if (count == 0 && (is_sent || of_one_rank(dag).empty()))
      return fail(shard.of_at, "shard: no message between stages matches '{}'",
                  quote_control(shard.sends->pattern()))
          .with_note(fmt::format("of {} values that stages send, ranks along '{}' hold {} alike",
                                 std::count(sent.begin(), sent.end(), true), named->name, alike))
          .with_note("help: `--explain=comm` lists the messages");
    if (count == 0) {
      out.push_back({shard.at, "shard", {of_one_rank(dag)}});
      continue;
    }
    out.push_back(
        {shard.at,
         "shard",
         {fmt::format("{} value{} ({}) a microbatch sent in {} parts, each by one rank of "
                      "{}, and put together on arrival",
                      count, count == 1 ? "" : "s", human_bytes(bytes), named->size,
                      named->name)}});
  }
  return dag;
}

namespace {

bool has_replicas(const Strategy& strategy) {
  return std::any_of(strategy.mesh.begin(), strategy.mesh.end(), [&](const MeshAxis& axis) {
    return axis.size > 1 &&
           std::any_of(strategy.replicates.begin(), strategy.replicates.end(),
                       [&](const Replicate& one) { return one.is_over(axis.name); });
  });
}

}  // namespace

void explain_axis(const ShardedGraph& made, const AxisCut& cut, const Strategy& strategy,
                  Explanations& out, std::vector<std::string>& each) {
  struct Sum {
    int64_t count = 0, bytes = 0;
    bool is_expected = false;  // where an index says what travels
  };
  std::map<std::pair<Pass, std::string>, Sum> sums;
  for (const Conversion& conversion : made.conversions) {
    const Node& node = made.graph.node(conversion.node);
    Sum& sum = sums[{node.pass, node.op}];
    ++sum.count;
    sum.bytes += conversion.bytes;
    sum.is_expected |= node.attrs.find("owned") != nullptr;
    const Node* reader = conversion.reader.valid() ? &made.graph.node(conversion.reader) : nullptr;
    each.push_back(fmt::format(
        "{} {} over {} of '{}' ({}), {}, {}", kPassNames[static_cast<size_t>(node.pass)], node.op,
        cut.name, made.graph.value(conversion.value).name,
        to_string(made.graph.value(conversion.value).type), human_bytes(conversion.bytes),
        reader ? fmt::format("for {} in {}", reader->op,
                             reader->scope.empty() ? "the model" : reader->scope)
               : "for the end of the step"));
  }
  Sum terms;
  for (const Node& node : made.graph.nodes) {
    if (!is_step_sum(node)) continue;
    const auto& over = made.graph.value(node.inputs[0]).over;
    if (std::find(over.begin(), over.end(), AxisLayout{cut.axis, {LayoutKind::kPartial}}) ==
        over.end())
      continue;
    ++terms.count;
    terms.bytes += made.graph.value(node.outputs[0]).type.bytes();
    each.push_back(fmt::format("U sum over {} of '{}' ({}), once a step", cut.name, node.name,
                               to_string(made.graph.value(node.outputs[0]).type)));
  }
  Explanation report{cut.seeds.front().at, "shard", {}};
  if (terms.count > 0)
    report.lines.push_back(
        fmt::format("U: {} sum{} ({}) over {}, once a step{}", terms.count,
                    terms.count == 1 ? "" : "s", human_bytes(terms.bytes), cut.name,
                    has_replicas(strategy) ? ", in the messages of replicas" : ""));
  for (const auto& [of, sum] : sums)
    report.lines.push_back(fmt::format("{}: {} × {} over {}, {} a rank and microbatch{}",
                                       kPassNames[static_cast<size_t>(of.first)], sum.count,
                                       of.second, cut.name, human_bytes(sum.bytes),
                                       sum.is_expected ? ", if as many rows go to each rank" : ""));
  out.push_back(std::move(report));
}

namespace {

std::string explain_whole_attention(size_t count, int32_t ranks, const std::string& example,
                                    bool of_tokens) {
  return fmt::format(
      "{} attention{} run{} whole on each of the {} ranks, which put {} together for {}: {}", count,
      count == 1 ? "" : "s", count == 1 ? "s" : "", ranks, example, count == 1 ? "it" : "them",
      of_tokens ? "`attention` in 'shard' says by which of gather, heads and ring its tokens meet"
                : "heads are cut only into as many equal blocks as there are ranks");
}

// Notes attention that each rank does whole, of heads that are gathered for it.
void note_whole_attention(const ShardedGraph& made, const AxisCut& cut,
                          std::vector<std::string>& notes) {
  std::set<int32_t> whole;
  std::string example;
  bool of_tokens = false;
  for (const Conversion& conversion : made.conversions) {
    if (!cut.attention.empty() || !conversion.reader.valid()) continue;
    const Node &reader = made.graph.node(conversion.reader),
               &node = made.graph.node(conversion.node);
    if (reader.op != "Attention" || node.op != "AllGather" || node.pass != Pass::kF) continue;
    whole.insert(conversion.reader.value);
    example = fmt::format("'{}' ({})", made.graph.value(node.outputs[0]).name,
                          to_string(made.graph.value(node.outputs[0]).type));
    const std::vector<int64_t> first = reader.attrs.integers("tokens_first");
    of_tokens = node.attrs.integer("dim") == (!first.empty() && first[0] != 0 ? 1 : 2);
  }
  if (whole.empty()) return;
  notes.push_back(explain_whole_attention(whole.size(), cut.ranks, example, of_tokens));
}

int64_t sent_by(const ShardedGraph& made) {
  int64_t bytes = 0;
  for (const Conversion& conversion : made.conversions) bytes += conversion.bytes;
  return bytes;
}

// Notes weights of two dims that send much less if each is cut along its other one: files have
// products with weights [in, out] and [out, in].
Status note_other_way(const Graph& graph, const ShardedGraph& made, AxisCut cut,
                      std::vector<std::string>& notes) {
  constexpr double kMuch = 0.6;
  size_t weights = 0;
  std::string example;
  for (ShardSeed& seed : cut.seeds) {
    const Value& value = graph.value(seed.value);
    const bool is_weight = value.kind == ValueKind::kState && value.type.shape.size() == 2;
    if (!is_weight || seed.dim < 0 || seed.pad_to > 0) continue;
    if (value.type.shape[static_cast<size_t>(1 - seed.dim)] % cut.ranks != 0) return ok_status();
    example = fmt::format("'{}' ({})", value.name, to_string(value.type));
    seed.dim = 1 - seed.dim;
    ++weights;
  }
  const auto forward = std::count_if(made.conversions.begin(), made.conversions.end(),
                                     [&](const Conversion& conversion) {
                                       return made.graph.node(conversion.node).pass == Pass::kF;
                                     });
  // Two products need one collective if the first is cut along what it makes and the next along
  // what it reads.
  if (weights < 2 || static_cast<size_t>(forward) < weights) return ok_status();
  PIPER_ASSIGN(const ShardedGraph other, shard_axis(graph, cut));
  if (static_cast<double>(sent_by(other)) > kMuch * static_cast<double>(sent_by(made)))
    return ok_status();
  notes.push_back(
      fmt::format("a rank sends {} a microbatch in {} collectives; if each of the {} weights of "
                  "two dims, as {}, "
                  "were cut along its other one, {} in {}: are they stored as [in, out]?",
                  human_bytes(sent_by(made)), made.conversions.size(), weights, example,
                  human_bytes(sent_by(other)), other.conversions.size()));
  return ok_status();
}

std::vector<std::string> describe_dims(const Value& value, const std::vector<AxisCut>& cuts) {
  std::vector<std::string> dims;
  for (const AxisLayout& lies : value.over)
    for (const AxisCut& cut : cuts)
      if (cut.axis == lies.axis)
        dims.push_back(fmt::format(
            "dim {} over {}{}", lies.layout.dim, cut.name,
            lies.layout.outer > 1 ? fmt::format(", in each of {} parts", lies.layout.outer) : ""));
  for (size_t d = 0; d < value.unpadded.size(); ++d)
    if (value.unpadded[d] > 0)
      dims.push_back(fmt::format("dim {} is {} and zeros", d, value.unpadded[d]));
  return dims;
}

}  // namespace

std::vector<std::string> notes_of(const Graph& graph, const ShardedGraph& made,
                                  const AxisCut& cut) {
  std::vector<std::string> notes;
  note_whole_attention(made, cut, notes);
  // What cannot be cut the other way needs no note.
  static_cast<void>(note_other_way(graph, made, cut, notes));
  return notes;
}

std::vector<std::string> layouts_of(const Graph& graph, const std::vector<AxisCut>& cuts) {
  std::vector<std::string> lines;
  for (const Param& param : graph.params) {
    const Value& value = graph.value(param.value);
    const std::vector<std::string> dims = describe_dims(value, cuts);
    if (!dims.empty())
      lines.push_back(
          fmt::format("{}: {} a rank, {}", param.name, to_string(value.type), join(dims, ", ")));
  }
  return lines;
}

}  // namespace piper
