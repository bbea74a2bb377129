// Zeros after dims that a cut does not divide, and after the same loop of all ops that meet them.
//
// What goes on into zeros is zero there wherever it is read. An op makes zeros of zeros where it is
// linear in what goes on, or all its operands do and OpDef::nonzero does not name the result; where
// it does not, zeros are put there after it. So a loop that is added up adds zeros, gradients are
// zero, and what is updated stays zero. What takes its elements together (the classes of a softmax)
// reads what counts as none there, mostly the least number. Inputs and constants end where they
// did: what reads them along such a loop reads them with zeros after.
#include "pad.h"

#include <algorithm>
#include <climits>
#include <map>

#include "pad_rewrite.h"
#include "rewrite.h"

namespace piper {
namespace {

// Returns whether the op, or those that it is decomposed into, is told how many elements of the
// letter there are.
bool knows_whole(const Loops& loops, char letter) {
  return tells_first(loops.rule, letter) || (needs_whole(loops.rule, letter) && loops.def->apart);
}

// Calls f(value, how the op uses it) for each operand and result.
template <class F>
void each_operand(const Node& node, const Loops& loops, F f) {
  for (size_t i = 0; i < node.inputs.size(); ++i)
    if (node.inputs[i].valid()) f(node.inputs[i], loops.input(i));
  for (size_t o = 0; o < node.outputs.size(); ++o) f(node.outputs[o], loops.output(o));
}

bool sums(const Loops& loops, const PadPlace& place) {
  for (size_t o = 0; o < loops.rule.outputs.size(); ++o)
    if (occurrences(loops.output(o), place.letter) == 0) return true;
  return false;
}

// Returns whether the op takes its elements in the loop together, and some number counts as none
// there.
bool skips(const Loops& loops, const PadPlace& place) {
  if (!loops.def->absent) return false;
  const bool takes = is_whole(loops.rule, place.letter) ||
                     (loops.rule.reduces == LoopRule::kMax && sums(loops, place));
  if (!takes || !place.is_all()) return false;
  const auto at = static_cast<size_t>(loops.def->absent_in);
  bool any = false;
  for (size_t i = 0; i < loops.rule.inputs.size(); ++i)
    any = any || occurrences(loops.input(i), place.letter) > 0;
  if (any && occurrences(loops.input(at), place.letter) == 0) return false;
  return *loops.def->absent == 0 || info(loops.types.inputs[at].dtype).is_float;
}

// Returns whether zeros may be in the loop, as far as its letters say.
bool passes(const Loops& loops, const PadPlace& place) {
  if (!stands_once(loops, place.letter)) return false;
  if (tells_first(loops.rule, place.letter) && !place.is_all()) return false;
  if (skips(loops, place)) return true;
  return !needs_whole(loops.rule, place.letter) &&
         (loops.rule.reduces == LoopRule::kSum || !sums(loops, place));
}

bool is_zero(const Value& value) {
  const auto* bytes = reinterpret_cast<const char*>(value.data.data);
  return value.kind == ValueKind::kConstant && value.data.size > 0 &&
         std::all_of(bytes, bytes + value.data.size, [](char byte) { return byte == 0; });
}

class Padding {
 public:
  Padding(Graph graph, AxisCut& cut)
      : graph_(std::move(graph)), cut_(cut), readers_(readers(graph_)) {}

  Result<Graph> run() {
    std::vector<const ShardSeed*> seeds;
    for (const ShardSeed& seed : cut_.seeds)
      if (seed.pad_to > 0 && seed.dim >= 0) seeds.push_back(&seed);
    // Fewer heads of keys say how those of queries go on.
    std::stable_sort(seeds.begin(), seeds.end(), [&](const ShardSeed* a, const ShardSeed* b) {
      return extent_of(*a) < extent_of(*b);
    });
    for (const ShardSeed* seed : seeds) {
      const PadMark mark = choose(*seed);
      if (found_.marks.count(seed->value.value) == 0 && mark.extent != mark.there)
        spread(found_.marks, seed->value, mark);
    }
    if (found_.marks.empty()) return std::move(graph_);
    for (size_t n = 0; n < graph_.nodes.size(); ++n) PIPER_TRY(check(NodeId(n)));
    PIPER_TRY(check_states());
    PIPER_TRY(add_seeds());
    return rewrite_padded(std::move(graph_), cut_.name, std::move(found_));
  }

 private:
  // ---- What goes on ----

  const Loops& loops_at(NodeId id) { return *loops_.find(graph_, graph_.node(id), id); }
  int64_t extent_of(const ShardSeed& seed) const {
    return graph_.value(seed.value).type.shape[static_cast<size_t>(seed.dim)];
  }

  // Decides into which stretches and units the dim is divided: those that end in the fewest ops,
  // then those with the fewest zeros.
  struct Ends {
    int refused = 0, sums = 0;
  };
  PadMark choose(const ShardSeed& seed) {
    constexpr size_t kMostWays = 32;
    const int64_t stretches = std::max<int64_t>(seed.outer, 1);
    std::vector<PadMark> ways{{seed.dim, stretches, extent_of(seed) / stretches, 1, 0, &seed}};
    size_t best = 0;
    std::tuple<int, int, int64_t, int64_t, int64_t> least{INT_MAX, 0, 0, 0, 0};
    for (size_t w = 0; w < ways.size() && w < kMostWays; ++w) {
      ways[w].extent = (ways[w].there + seed.pad_to - 1) / seed.pad_to * seed.pad_to;
      PadMarks trial;
      const PadMark way = ways[w];
      const Ends ends = spread(trial, seed.value, way, &ways);
      const std::tuple count{ends.refused, ends.sums, way.padded(), way.outer, way.unit};
      if (count < least) least = count, best = w;
    }
    return ways[best];
  }

  // Marks all that the loops of a dim reach, and returns how many ops it does not pass, or is added
  // up in. Of a trial, near it only, `ways` are added in which ops take the dim apart.
  Ends spread(PadMarks& marks, ValueId from, const PadMark& mark,
              std::vector<PadMark>* ways = nullptr) {
    constexpr size_t kMost = 64;
    std::vector<ValueId> open{from};
    marks[from.value] = mark;
    Ends ends;
    for (size_t at = 0; at < open.size() && (!ways || at < kMost); ++at) {
      std::vector<NodeId> beside = readers_[open[at].index()];
      const Value& value = graph_.value(open[at]);
      if (value.kind == ValueKind::kNode) beside.push_back(value.producer);
      const PadMark of = marks.at(open[at].value);
      for (NodeId id : beside) {
        const Node& node = graph_.node(id);
        if (ways && node.pass != Pass::kF) continue;
        const Loops& loops = loops_at(id);
        std::optional<PadPlace> place;
        each_operand(node, loops, [&](ValueId operand, const Operand& stands) {
          if (operand != open[at]) return;
          if (ways) note_ways(stands, of, mark, *ways);
          if (!place) place = place_of(stands, of);
        });
        const bool passes_on = place && passes(loops, *place);
        if (passes_on) mark_others(node, loops, *place, of, marks, open);
        ends.refused += !passes_on;
        ends.sums += passes_on && sums(loops, *place);
      }
    }
    return ends;
  }
  void mark_others(const Node& node, const Loops& loops, const PadPlace& place, const PadMark& of,
                   PadMarks& marks, std::vector<ValueId>& open) const {
    each_operand(node, loops, [&](ValueId operand, const Operand& stands) {
      const ValueKind kind = graph_.value(operand).kind;
      if (marks.count(operand.value) || (kind != ValueKind::kState && kind != ValueKind::kNode))
        return;
      const std::optional<PadMark> made = mark_at(stands, place, of);
      if (!made) return;
      marks[operand.value] = *made;
      open.push_back(operand);
    });
  }
  static void note_ways(const Operand& stands, const PadMark& here, const PadMark& at_seed,
                        std::vector<PadMark>& ways) {
    each_letter(stands, static_cast<size_t>(here.dim),
                [&](char, int64_t size, int64_t before, int64_t after) {
                  const int64_t outer = before / here.outer, unit = after / here.unit;
                  if (before % here.outer != 0 || after % here.unit != 0 ||
                      outer * size * unit != here.there)
                    return;
                  PadMark way = at_seed;
                  way.outer *= outer, way.there = size, way.unit *= unit;
                  const auto is_way = [&](const PadMark& other) {
                    return other.outer == way.outer && other.there == way.there;
                  };
                  if (std::none_of(ways.begin(), ways.end(), is_way)) ways.push_back(way);
                });
  }

  // ---- What counts ----

  // All operands of the loop must go on alike, and a sum over it must add zeros.
  Status check(NodeId id) {
    Node& node = graph_.node(id);
    const Loops& loops = loops_at(id);
    ValueId first;
    std::optional<PadPlace> place;
    each_operand(node, loops, [&](ValueId operand, const Operand& stands) {
      if (first.valid() || !found_.mark_of(operand)) return;
      first = operand;
      place = place_of(stands, *found_.mark_of(operand));
    });
    if (!first.valid()) return ok_status();
    const PadMark mark = *found_.mark_of(first);
    if (!place || !passes(loops, *place)) return refuse(node, first, mark);
    for (size_t i = 0; i < node.inputs.size(); ++i)
      if (const ValueId id = node.inputs[i]; id.valid() && !found_.mark_of(id))
        if (const auto wanted = mark_at(loops.input(i), *place, mark);
            wanted && is_given(id, wanted->dim))
          node.inputs[i] = with_zeros(id, *wanted);
    ValueId other;
    each_operand(node, loops, [&](ValueId operand, const Operand& stands) {
      const PadMark* known = found_.mark_of(operand);
      const std::optional<PadMark> wanted = mark_at(stands, *place, mark);
      const bool reads = occurrences(stands, place->letter) > 0;
      if (reads != (known != nullptr) || (known && !(wanted && wanted->same(*known))))
        other = operand;
    });
    if (other.valid()) return refuse(node, other, mark);
    return check_results(id, *place, mark);
  }
  bool is_given(ValueId id, int dim) const {
    const Value& value = graph_.value(id);
    const auto cuts = [&](const Layout& layout) { return layout.dim == dim; };
    return (value.kind == ValueKind::kInput || value.kind == ValueKind::kConstant) &&
           !cuts(value.layout) &&
           std::none_of(value.over.begin(), value.over.end(),
                        [&](const AxisLayout& lies) { return cuts(lies.layout); });
  }
  // Returns what is given, with zeros after: made before the first op that reads it so.
  ValueId with_zeros(ValueId given, const PadMark& mark) {
    ValueId& made = with_zeros_[{given.value, mark.dim, mark.outer, mark.extent * mark.unit}];
    if (made.valid()) return made;
    const Value& of = graph_.value(given);
    made = graph_.add_value(
        {.name = of.name + "_padded", .type = of.type, .layout = of.layout, .over = of.over});
    found_.marks[made.value] = mark;
    found_.given.emplace(made.value, given);
    return made;
  }

  Status check_results(NodeId id, const PadPlace& place, const PadMark& mark) {
    Node& node = graph_.node(id);
    const Loops& loops = loops_at(id);
    const bool skipped = skips(loops, place);
    if (skipped && loops.def->absent != 0.0) found_.masked.insert(id.value);
    if (loops.def->draws >= 0) note_draw(node, loops, place, mark);
    if (knows_whole(loops, place.letter))  // how much is there
      node.attrs.set("whole", loop_size(loops.rule, place.letter));
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const auto& nonzero = loops.def->nonzero;
      const bool has_letter = occurrences(loops.output(o), place.letter) > 0;
      const bool is_none =
          skipped && !(has_letter && std::count(nonzero.begin(), nonzero.end(), o));
      if (is_none || (!skipped && makes_zeros(node, loops, place.letter, o))) continue;
      if (!has_letter) return refuse(node, node.inputs[0], mark);
      if (graph_.value(node.outputs[o]).type.dtype != DType::kBool && !is_merged(node.outputs[o]))
        found_.nonzero.insert(node.outputs[o].value);
    }
    return ok_status();
  }

  // Returns whether only merges of partial attentions read it. They weigh zeros, whatever the
  // weights, and what they give gets zeros.
  bool is_merged(ValueId id) {
    const std::vector<NodeId>& by = readers_[id.index()];
    return !by.empty() &&
           std::ranges::all_of(by, [&](NodeId reader) { return loops_at(reader).rule.merges; });
  }

  // Others are drawn as if there were no zeros.
  static void note_draw(Node& node, const Loops& loops, const PadPlace& place, const PadMark& of) {
    const std::optional<PadMark> mark = mark_at(loops.output(0), place, of);
    if (!mark) return;
    const Shape& shape = loops.types.outputs[0].shape;
    const int64_t rows = stretches_of(shape, mark->dim, mark->outer);
    int64_t behind = (mark->extent - mark->there) * mark->unit;
    for (size_t d = static_cast<size_t>(mark->dim) + 1; d < shape.size(); ++d) behind *= shape[d];
    std::vector<int64_t> zeros = node.attrs.integers("zeros");
    zeros.insert(zeros.end(), {std::ssize(node.attrs.integers("cuts")) / 2, rows, behind});
    node.attrs.set("zeros", std::move(zeros));
  }

  // Returns whether the op makes zeros of these operands, which are zero.
  static bool keeps_zeros(const Loops& loops, size_t output, const std::vector<int>& zeros,
                          size_t numbers) {
    const auto& sets = loops.rule.linear;
    if (std::find(sets.begin(), sets.end(), zeros) != sets.end()) return true;
    const auto& but = loops.def->nonzero;
    if (std::find(but.begin(), but.end(), static_cast<int>(output)) != but.end()) return false;
    return (numbers > 0 && zeros.size() == numbers) ||
           std::any_of(sets.begin(), sets.end(), [&](const std::vector<int>& set) {
             return std::includes(zeros.begin(), zeros.end(), set.begin(), set.end());
           });
  }

  bool makes_zeros(const Node& node, const Loops& loops, char letter, size_t output) const {
    std::vector<int> zeros;
    size_t numbers = 0, reads = 0;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid()) continue;
      const Value& value = graph_.value(node.inputs[i]);
      const bool has_letter = occurrences(loops.input(i), letter) > 0;
      const bool tells_place = std::ranges::any_of(
          loops.rule.firsts, [&](const auto& first) { return std::cmp_equal(first.second, i); });
      const bool is_number = value.type.dtype != DType::kBool && !tells_place;
      numbers += is_number, reads += has_letter;
      if (is_number && (has_letter || is_zero(value))) zeros.push_back(static_cast<int>(i));
    }
    if (tells_first(loops.rule, letter) && reads == 0)
      return true;  // no index is one behind the end
    if (loops.def->states >= 0 && node.attrs.real("eps", 1) > 0) return true;
    return keeps_zeros(loops, output, zeros, numbers);
  }

  Status check_states() const {
    for (const StateUpdate& update : graph_.updates) {
      const PadMark *state = found_.mark_of(update.state), *next = found_.mark_of(update.next);
      if (state && !(next && next->same(*state))) return refuse("its update", update.state, *state);
    }
    for (const auto& [id, mark] : found_.marks) {
      const Value& value = graph_.value(ValueId(id));
      for (const AxisLayout& lies : value.over)
        if (value.kind == ValueKind::kState && lies.layout.dim == mark.dim)
          return refuse("blocks over another axis", ValueId(id), mark);
    }
    return ok_status();
  }

  Error other_dim(ValueId value, const ShardSeed& known, int dim, const ShardSeed& seed) const {
    return fail(known.at, "shard: '{}' must be cut at dim {} over '{}', which goes on into zeros",
                quote_control(graph_.value(value).name), dim, cut_.name)
        .with_note(fmt::format("as dim {} of '{}' does at line {}", seed.dim,
                               quote_control(graph_.value(seed.value).name), seed.at.line));
  }

  // Each stretch is cut, so that zeros are at its end.
  Status add_seeds() {
    std::vector<ShardSeed> more;
    for (const auto& [id, mark] : found_.marks) {
      const ValueId value(id);
      if (graph_.value(value).kind != ValueKind::kState) continue;
      const auto known = std::find_if(cut_.seeds.begin(), cut_.seeds.end(),
                                      [&](const ShardSeed& seed) { return seed.value == value; });
      if (known != cut_.seeds.end() && known->dim != mark.dim)
        return other_dim(value, *known, mark.dim, *mark.seed);
      if (known != cut_.seeds.end())
        known->outer = mark.outer;
      else
        more.push_back({value, mark.dim, mark.seed->at, 0, mark.outer});
    }
    cut_.seeds.insert(cut_.seeds.end(), more.begin(), more.end());
    return ok_status();
  }

  Error refuse(const Node& node, ValueId operand, const PadMark& mark) const {
    return refuse(
        fmt::format("{}{}", node.op, node.scope.empty() ? "" : " in " + quote_control(node.scope)),
        operand, mark);
  }
  Error refuse(const std::string& reader, ValueId operand, const PadMark& mark) const {
    const ShardSeed& of = *mark.seed;
    const Value& seed = graph_.value(of.value);
    return fail(of.at, "dim {} of '{}' ({}) cannot be padded for {} ranks over '{}'", of.dim,
                quote_control(seed.name), to_string(seed.type), cut_.ranks, cut_.name)
        .with_note(fmt::format("elements past the end of '{}' ({}) would count in {}",
                               quote_control(graph_.value(operand).name),
                               to_string(graph_.value(operand).type), reader));
  }

  Graph graph_;
  AxisCut& cut_;
  std::vector<std::vector<NodeId>> readers_;
  LoopTable loops_;  // of the nodes as they were
  Padded found_;
  std::map<std::tuple<int32_t, int, int64_t, int64_t>, ValueId> with_zeros_;  // with zeros behind
};

}  // namespace

Result<Graph> pad(Graph graph, AxisCut& cut) { return Padding(std::move(graph), cut).run(); }

bool can_be_padded(const Graph& graph, const AxisCut& cut, const ShardSeed& seed, int64_t to) {
  AxisCut alone{cut.axis, cut.name, cut.ranks, {seed}};
  alone.seeds[0].pad_to = to;
  return pad(graph, alone).ok();
}

}  // namespace piper
