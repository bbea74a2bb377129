// Rule layout: ops on a rank's own blocks and on those that rotate through a ring, as in ring
// attention.
#include "layouts_ops.h"

namespace piper {

// Follows an op (attention) whose operands with one letter are blocks of one rank (queries), and
// those with another letter blocks of another rank (keys), maybe of more stretches. Its results are
// parts, which together with those of all other ranks are the result.
OpLayouts::Made OpLayouts::by_turns(const Use& use, const Cut& cut) const {
  if (!use.rule.turns) return std::nullopt;
  const LoopRule::Turns& turns = *use.rule.turns;
  if (cut.letter != turns.own && cut.letter != turns.other) return std::nullopt;
  const char letters[] = {turns.own, turns.other};
  std::optional<Lies::Turn> of[2];  // queries, keys
  std::optional<Cut> cuts[2];
  cuts[cut.letter == turns.other] = cut;
  for (size_t i = 0; i < use.inputs.size(); ++i)
    if (use.inputs[i].present && use.inputs[i].lies.kind == Lies::kCut)
      for (const Cut& one : cuts_of(use, i))
        for (const size_t which : {0, 1})
          if (one.letter == letters[which] && !cuts[which]) cuts[which] = one;
  if (!cuts[0] || !cuts[1]) return std::nullopt;
  const auto blocks = [&](const Dims& dims, const Shape& shape, size_t which) {
    return placed(use.rule, dims, shape, letters[which], cuts[which]->outer, cuts[which]->mirrored);
  };
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const LaidOut& one = use.inputs[i];
    if (!one.present || one.type.dtype == DType::kI64) continue;  // tells where a block begins
    const Dims& dims = use.rule.inputs[i];
    const size_t which = occurrences(dims, letters[0]) > 0 ? 0 : 1;
    if (one.lies.kind == Lies::kWhole && is_repeated(use, i, letters[which])) continue;
    auto wanted = blocks(dims, one.type.shape, which);
    if (!wanted || occurrences(dims, letters[1 - which]) > 0) return std::nullopt;
    if (!of[which]) of[which] = one.lies.turn;
    wanted->turn.before = of[which]->before;
    if (!one.lies.fits(*wanted) || one.lies.turn.beside != of[which]->beside) return std::nullopt;
  }
  if (!of[0] || !of[1]) return std::nullopt;
  for (const auto& [letter, input] : use.rule.firsts)
    if (letter != turns.own || !begins(use, static_cast<size_t>(input), *cuts[0], of[0]->before))
      return std::nullopt;
  if (turns.first >= 0 && !begins(use, static_cast<size_t>(turns.first), *cuts[1], of[1]->before))
    return std::nullopt;
  const auto [outside, inside] = beside_all(use);
  std::vector<Lies> made;
  for (size_t o = 0; o < use.rule.outputs.size(); ++o) {
    const Dims& dims = use.rule.outputs[o];
    const size_t which = occurrences(dims, letters[0]) > 0 ? 0 : 1;
    auto lies = blocks(dims, use.types.outputs[o].shape, which);
    if (!lies) return std::nullopt;
    lies->outside = outside, lies->inside = inside;
    const Lies::Turn& other = *of[1 - which];
    lies->turn = {.before = of[which]->before,
                  .beside = of[which]->beside,
                  .rings = of[which]->rings | other.rings,
                  .of = {{other.before, other.beside}},
                  .merges = use.rule.reduces == LoopRule::kMerge};
    made.push_back(*std::move(lies));
  }
  return made;
}

// Joins two partial results. Nothing: they belong to different results, or both have the part of
// one rank. With the parts of all ranks of the axis, as many along other axes of each, it is the
// complete result.
std::optional<Lies::Turn> OpLayouts::together(Lies::Turn a, const Lies::Turn& b) const {
  if (a.before != b.before || a.beside != b.beside || a.merges != b.merges || a.of.empty() ||
      b.of.empty())
    return std::nullopt;
  std::vector<Lies::Turn::Rank> of;
  std::ranges::set_union(a.of, b.of, std::back_inserter(of));
  if (of.size() < a.of.size() + b.of.size()) return std::nullopt;
  a.of = std::move(of);
  a.rings |= b.rings;
  const bool is_complete = std::ranges::all_of(a.of, [&](Lies::Turn::Rank rank) {
    rank.first = (rank.first + 1) % ranks_;
    return std::ranges::binary_search(a.of, rank);
  });
  if (!is_complete) return a;
  return Lies::Turn{.before = a.before, .beside = a.beside, .rings = a.beside ? a.rings : 0};
}

// Follows the op as if its operands were complete, and gives the results `turn`.
OpLayouts::Made OpLayouts::of_parts(const Use& use, const Lies::Turn& turn) {
  std::vector<LaidOut> inputs(use.inputs.begin(), use.inputs.end());
  for (LaidOut& one : inputs) one.lies.turn = {};
  Use blocks = use;
  blocks.inputs = inputs;
  Made made =
      cut_blocks(blocks, first_of(inputs, [](const Lies& l) { return l.kind == Lies::kCut; }));
  for (size_t o = 0; made && o < made->size(); ++o) {
    (*made)[o] = of_each((*made)[o], [&](Lies lies) {
      lies.turn = turn;
      return lies.kind == Lies::kCut ? lies : Lies{Lies::kUnknown};
    });
    if ((*made)[o].kind == Lies::kUnknown)
      return refuse("which sums over the dim that is cut into blocks");
  }
  return made;
}

OpLayouts::Made OpLayouts::merge_parts(const Use& use) {
  const size_t half = use.inputs.size() / 2;
  for (size_t i = 0; i < use.inputs.size(); ++i)
    if (!use.inputs[i].lies.turn.fits(use.inputs[i < half ? 0 : half].lies.turn) ||
        !use.inputs[i].lies.turn.merges)
      return refuse("whose operands are different parts of attention");
  const auto turn = together(use.inputs[0].lies.turn, use.inputs[half].lies.turn);
  return turn ? of_parts(use, *turn) : refuse("which merges the part of a rank twice");
}

OpLayouts::Made OpLayouts::add_parts(const Use& use) {
  std::vector<int> parts;
  std::optional<Lies::Turn> turn;
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const Lies& lies = use.inputs[i].lies;
    if (!use.inputs[i].present || lies.kind == Lies::kWhole) continue;
    turn = parts.empty() ? lies.turn : turn ? together(*turn, lies.turn) : std::nullopt;
    parts.push_back(static_cast<int>(i));
    if (lies.kind != Lies::kCut || lies.run != 0 || lies.turn.of.empty()) turn.reset();
  }
  if (!turn) return refuse("which adds the part of a rank twice, or parts of different results");
  const auto& sets = use.rule.linear;
  const bool rounds = use.def->name == "Cast" && info(use.types.outputs[0].dtype).is_float;
  const bool moves = rounds || (use.inputs.size() == 1 && use.def->cost(use.types).flops == 0);
  if ((std::find(sets.begin(), sets.end(), parts) == sets.end() && !rounds) ||
      (!moves && use.inputs[static_cast<size_t>(parts[0])].lies.turn.merges))
    return refuse("which is not linear in these parts");
  return of_parts(use, *turn);
}

}  // namespace piper
