// Rule layout, one op: each loop of an op has a letter (as in einsum), and shapes are those of a
// rank. A cut of an operand is the cut of a letter, and all other operands must agree with that
// cut.
#include "layouts_ops.h"

#include <algorithm>

namespace piper {

std::string print_operands(std::span<const LaidOut> operands) {
  std::string text;
  for (const LaidOut& one : operands)
    if (one.present)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", to_string(one.type),
                          to_string(one.lies, one.type.shape));
  return text;
}

OpLayouts::Made OpLayouts::refuse(std::string reason) {
  wrong = std::move(reason);
  return std::nullopt;
}

namespace {

// Returns all readings as one, a complete value before partial results.
Lies joined(std::vector<Lies> readings) {
  std::ranges::stable_partition(readings, [](const Lies& one) { return one.turn.is_home(); });
  Lies made = std::move(readings[0]);
  made.also.assign(readings.begin() + 1, readings.end());
  return made;
}

// Returns the operands, once for each combination of their readings. Where these are too many,
// operands with the same readings, such as all chunks of a value, have the same one at a time.
std::vector<std::vector<LaidOut>> combine_readings(std::span<const LaidOut> inputs) {
  constexpr size_t kMost = 64;  // combinations of readings that are tried
  std::vector<std::vector<Lies>> readings;
  size_t count = 1;
  for (const LaidOut& input : inputs) {
    readings.push_back(input.lies.readings());
    count = std::min(count * readings.back().size(), kMost + 1);
  }
  std::vector<std::vector<LaidOut>> all(1);
  std::vector<size_t> before(inputs.size());  // combinations of the operands before this one
  for (size_t i = 0; i < inputs.size(); ++i) {
    size_t like = 0;
    while (like < i && !(count > kMost && readings[like] == readings[i])) ++like;
    if (like == i) {
      if (all.size() * readings[i].size() > kMost) readings[i] = {joined(std::move(readings[i]))};
      before[i] = all.size();
      all.resize(before[i] * readings[i].size());
      for (size_t c = before[i]; c < all.size(); ++c) all[c] = all[c % before[i]];
    }
    for (size_t c = 0; c < all.size(); ++c) {
      const Lies& lies = readings[like][c / before[like] % readings[like].size()];
      all[c].push_back({inputs[i].type, lies, inputs[i].present});
    }
  }
  return all;
}

}  // namespace

OpLayouts::Made OpLayouts::make(std::string_view op, const Attrs& attrs,
                                std::span<const LaidOut> inputs,
                                std::span<const TensorType> outputs) {
  counted.assign(inputs.size(), 0);
  Made made;
  for (const std::vector<LaidOut>& operands : combine_readings(inputs)) {
    const Made one = make_one(op, attrs, operands, outputs);
    for (size_t o = 0; made && one && o < one->size(); ++o) (*made)[o].add_reading((*one)[o]);
    if (!made) made = one;
  }
  return made;
}

OpLayouts::Made OpLayouts::make_one(std::string_view op, const Attrs& attrs,
                                    std::span<const LaidOut> inputs,
                                    std::span<const TensorType> outputs) {
  const auto any = [&](auto is) { return first_of(inputs, is) < inputs.size(); };
  const auto all = [&](Lies::Kind kind) { return std::vector<Lies>(outputs.size(), {kind}); };
  if (any([](const Lies& l) { return l.kind == Lies::kUnset || l.kind == Lies::kUnknown; }))
    return all(Lies::kUnknown);
  if (op == "RowPlaces" && attrs.integer("over", -1) == axis_ && inputs.size() == 1)
    return place_rows(attrs, inputs[0]);
  if (!any([](const Lies& l) { return l.kind != Lies::kWhole; }))
    return keep_whole(op, attrs, inputs, outputs);
  const std::optional<Use> use = use_of(op, attrs, inputs, outputs);
  if (!use) return std::nullopt;
  const auto first = [&](Lies::Kind kind) {
    return first_of(inputs, [&](const Lies& l) { return l.kind == kind; });
  };
  const auto has = [&](Lies::Kind kind) { return first(kind) < inputs.size(); };
  if (use->def->draws >= 0 && has(Lies::kFirst)) return draw_blocks(*use);
  if (has(Lies::kOwn)) return keep_own(*use, first(Lies::kOwn));
  if (has(Lies::kApart)) return tell_apart(*use, op, first(Lies::kApart));
  if (has(Lies::kOnce)) return choose_once(*use, op);
  if (has(Lies::kStack)) return take_row(*use);
  if (has(Lies::kTerms) || has(Lies::kGreatest)) return pass_terms(*use, has(Lies::kGreatest));
  if (has(Lies::kPlaces)) return by_places(*use);
  if (has(Lies::kSent)) return refuse("which reads rows that are on their way");
  if (has(Lies::kRows)) return send_rows(*use, first(Lies::kRows));
  const size_t run = first_of(inputs, [](const Lies& l) { return l.run != 0; });
  if (any([](const Lies& l) { return !l.turn.of.empty(); }))
    return use->rule.merges ? merge_parts(*use) : add_parts(*use);
  if (run < inputs.size()) return op == "Concat" ? stack_runs(*use, run) : cut_runs(*use, run);
  if (has(Lies::kCut)) return cut_blocks(*use, first(Lies::kCut));
  return pass_number(*use, op, first(Lies::kFirst));
}

// Finds dims of the results along which all elements are equal: an op does not know its index in a
// loop, so if it reads nothing along the loop, or equal elements, its results are equal, too.
OpLayouts::Made OpLayouts::keep_whole(std::string_view op, const Attrs& attrs,
                                      std::span<const LaidOut> inputs,
                                      std::span<const TensorType> outputs) {
  std::vector<Lies> made(outputs.size(), {Lies::kWhole});
  if (op == "Expand") {  // also along dims of which this rank has but one element
    if (!use_of(op, attrs, inputs, outputs)) return made;
    const Shape &from = inputs[0].type.shape, &to = outputs[0].shape;
    const size_t more = to.size() - from.size();
    for (size_t d = 0; d < to.size() && d < 32; ++d)
      if (d < more || from[d - more] == 1 || (inputs[0].lies.dims >> (d - more) & 1) != 0)
        made[0].dims |= uint32_t{1} << d;
    return made;
  }
  if (op == "Slice") {  // what is taken of equal elements
    made[0].dims = inputs[0].lies.dims;
    return made;
  }
  const bool may_repeat = std::all_of(inputs.begin(), inputs.end(), [&](const LaidOut& one) {
    return !outputs.empty() && num_elements(one.type.shape) < num_elements(outputs[0].shape);
  });
  const bool repeats = std::any_of(inputs.begin(), inputs.end(),
                                   [](const LaidOut& one) { return one.lies.dims != 0; });
  if (!may_repeat && !repeats) return made;
  const std::optional<Use> use = use_of(op, attrs, inputs, outputs);
  if (!use || use->def->draws >= 0) return made;
  const LoopRule& rule = use->rule;
  const auto differs = [&](char letter) {
    for (const auto& [first, input] : rule.firsts)
      if (first == letter) return true;
    for (size_t i = 0; i < inputs.size(); ++i)
      for (size_t d = 0; d < rule.inputs[i].size() && d < 32; ++d)
        if (std::count(rule.inputs[i][d].begin(), rule.inputs[i][d].end(), letter) > 0 &&
            !(inputs[i].lies.dims >> d & 1))
          return true;
    return needs_whole(rule, letter);
  };
  const auto is_added_up = [&](char letter) {
    return std::ranges::none_of(rule.outputs,
                                [&](const Dims& dims) { return occurrences(dims, letter) > 0; });
  };
  for (size_t i = 0; i < inputs.size() && rule.reduces == LoopRule::kSum; ++i)
    for (size_t d = 0; d < rule.inputs[i].size() && d < 32; ++d)
      if ((inputs[i].lies.dims >> d & 1) && std::ranges::any_of(rule.inputs[i][d], is_added_up))
        counted[i] |= uint32_t{1} << d;
  for (size_t o = 0; o < made.size(); ++o)
    for (size_t d = 0; d < rule.outputs[o].size() && d < 32; ++d) {
      const LoopRule::Dim& letters = rule.outputs[o][d];
      if (!letters.empty() && std::none_of(letters.begin(), letters.end(), differs))
        made[o].dims |= uint32_t{1} << d;
    }
  return made;
}

namespace {

OpTypes types_of(const Attrs& attrs, std::span<const LaidOut> inputs) {
  OpTypes types;
  types.attrs = attrs;
  for (const LaidOut& one : inputs) {
    types.inputs.push_back(one.type);
    types.present.push_back(one.present);
  }
  return types;
}

}  // namespace

std::optional<OpLayouts::Use> OpLayouts::use_of(std::string_view op, const Attrs& attrs,
                                                std::span<const LaidOut> inputs,
                                                std::span<const TensorType> outputs) {
  Use use{find_op(op), {}, {}, inputs};
  const auto none = [&](std::string reason) {
    wrong = std::move(reason);
    return std::nullopt;
  };
  if (!use.def || !use.def->loops) return none("which has no rule for operands in parts");
  use.types = types_of(attrs, inputs);
  const auto types = use.def->types(use.types);
  if (!types) return none(types.error().message);
  if (!std::equal(types->begin(), types->end(), outputs.begin(), outputs.end()))
    return none("whose results have other types");
  use.types.outputs = *types;
  use.rule = use.def->loops(use.types);
  if (use.rule.inputs.size() != inputs.size() || use.rule.outputs.size() != outputs.size())
    return none("whose rule for parts lacks some operands");
  return use;
}

// Follows a number that differs between ranks (kFirst): as the operand that tells an op where the
// rank's block of a result begins, through ops that only move it, and through sums with whole
// numbers.
OpLayouts::Made OpLayouts::pass_number(const Use& use, std::string_view op, size_t from) {
  for (const auto& [letter, input] : use.rule.firsts)
    if (static_cast<size_t>(input) == from)
      if (const Made made = by_cut(use, {letter, num_elements(use.inputs[from].type.shape),
                                         use.inputs[from].lies.mirrored}))
        return made;
  const bool moves = use.inputs.size() == 1 && (op == "Reshape" || op == "Cast" || op == "Expand");
  const size_t whole =
      first_of(use.inputs, [](const Lies& lies) { return lies.kind == Lies::kWhole; });
  const bool adds =
      op == "Add" && use.types.outputs[0].shape.size() <= 1 && whole < use.inputs.size();
  if (!moves && !adds) return refuse("which reads a number that differs between ranks");
  Lies made = use.inputs[from].lies;
  if (adds) made.fixed |= use.inputs[whole].lies.fixed;
  return std::vector<Lies>(use.types.outputs.size(), made);
}

// Returns how many stretches the cuts of an op that draws leave of `rows`, from cut number `cut`
// on: its attribute `cuts` has the axes in the order in which they cut, and a later axis that cuts
// an outer dim leaves fewer rows for the ones before.
int64_t OpLayouts::rows_left(const Use& use, int64_t rows, size_t cut) {
  const std::vector<int64_t> cuts = use.types.attrs.integers("cuts");
  int64_t left = rows;
  for (size_t k = cut; 2 * k < cuts.size(); ++k)
    if (std::abs(cuts[2 * k]) < rows) left /= std::min(left, cuts[2 * k + 1]);
  return left;
}

// Follows an op that draws random numbers for the rank's blocks. An operand tells it the rank's
// position along the axis.
OpLayouts::Made OpLayouts::draw_blocks(const Use& use) {
  const size_t first = static_cast<size_t>(use.def->draws) + 3;
  const std::vector<int64_t> cuts = use.types.attrs.integers("cuts");
  const size_t own = first_of(use.inputs, [](const Lies& l) { return l.kind == Lies::kFirst; });
  if (own < first || use.inputs[own].lies.outer != 1 || use.inputs[own].lies.turn.before != 0 ||
      cuts[2 * (own - first) + 1] != ranks_)
    return refuse("which does not read the begin of the rank's block along the axis");
  const int64_t rows = std::abs(cuts[2 * (own - first)]);
  const int64_t outer = rows_left(use, rows, own - first + 1);
  Lies lies{Lies::kCut, dims_of(use.types.outputs[0].shape, outer, use.def->draws == 0), 0, outer};
  lies.mirrored = cuts[2 * (own - first)] < 0;
  if (lies.mirrored && outer % 2 != 0)
    return refuse("which draws for blocks of an odd number of mirrored stretches");
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const LaidOut& one = use.inputs[i];
    if (!one.present || i == own) continue;
    if (i < static_cast<size_t>(use.def->draws) ? !one.lies.fits(lies)
                                                : one.lies.kind != Lies::kWhole)
      return refuse("which draws for other blocks than those of its operands");
  }
  return std::vector<Lies>{use.def->draws == 0 ? lies : use.inputs[0].lies};
}

// Follows an op that draws random numbers for the rank's samples: an operand has their numbers, and
// the samples are cut before all axes of `cuts`, into `rows` stretches.
OpLayouts::Made OpLayouts::draw_samples(const Use& use) {
  const auto samples = static_cast<size_t>(use.def->draws) + 2;
  const int64_t outer = rows_left(use, use.types.attrs.integer("rows", 1), 0);
  const Lies lies{Lies::kCut, dims_of(use.types.outputs[0].shape, outer, false), 0, outer};
  for (size_t i = 0; i < std::max(use.inputs.size(), samples + 1); ++i) {
    const bool is_there = i < use.inputs.size() && use.inputs[i].present;
    const Lies its = is_there ? use.inputs[i].lies : Lies{Lies::kWhole};
    if (i == samples && !its.fits({Lies::kCut, 1}))
      return refuse("which does not read the numbers of the samples that the rank has");
    if (i < static_cast<size_t>(use.def->draws) ? !its.fits(lies)
                                                : i != samples && its.kind != Lies::kWhole)
      return refuse("which draws for other samples than those of its operands");
  }
  return std::vector<Lies>{use.def->draws == 0 ? lies : use.inputs[0].lies};
}

// Terms of a sum pass an op that is linear in them, if all other operands are whole. Terms of a
// maximum pass an op that only moves elements.
OpLayouts::Made OpLayouts::pass_terms(const Use& use, bool greatest) {
  std::vector<int> terms;
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const LaidOut& one = use.inputs[i];
    if (!one.present || one.lies.kind == Lies::kWhole) continue;
    if (one.lies.kind != (greatest ? Lies::kGreatest : Lies::kTerms))
      return refuse("which cannot combine terms with such operands");
    terms.push_back(static_cast<int>(i));
  }
  const auto& sets = use.rule.linear;
  if (std::find(sets.begin(), sets.end(), terms) == sets.end())
    return refuse("which is not linear in its terms: sum them before");
  const bool moves = use.inputs.size() == 1 && use.def->cost(use.types).flops == 0;
  if (greatest && !moves) return refuse("which is applied before the maximum over ranks is taken");
  return std::vector<Lies>(use.types.outputs.size(),
                           Lies{greatest ? Lies::kGreatest : Lies::kTerms});
}

// Follows routed rows through an op that computes each row by itself. Matrices that such a row is
// multiplied with are looked up by the same index among those that the rank owns, and sums over
// rows (gradients of matrices) add up the valid rows only.
OpLayouts::Made OpLayouts::send_rows(const Use& use, size_t from) {
  const LoopRule& rule = use.rule;
  const Lies& routed = use.inputs[from].lies;
  const auto row_letters = [&](const Dims& dims, const Shape& shape) {
    LoopRule::Dim letters;
    size_t d = 0;
    for (; d < dims.size() && (d == 0 || elements_of(shape, d) < routed.outer); ++d)
      letters.insert(letters.end(), dims[d].begin(), dims[d].end());
    return elements_of(shape, d) == routed.outer ? letters : LoopRule::Dim();
  };
  // Returns whether the operand tells where the rank's part of the table begins along this axis.
  const auto is_own = [&](const auto& first) {
    const auto i = static_cast<size_t>(first.second);
    return i < use.inputs.size() && use.inputs[i].present &&
           use.inputs[i].lies.kind == Lies::kFirst;
  };
  const auto is_index = [&](const Lies& lies) {
    return routed.packed == 0 ? lies.kind == Lies::kWhole && lies.index == routed.index
                              : lies.kind == Lies::kRows && lies.names && lies.fits(routed);
  };
  const bool looks_up = rule.picks >= 0 && rule.firsts.size() == 1 && is_own(rule.firsts[0]) &&
                        is_index(use.inputs[static_cast<size_t>(rule.picks)].lies);
  const size_t by = looks_up ? static_cast<size_t>(rule.picks) : from;
  const size_t first = looks_up ? static_cast<size_t>(rule.firsts[0].second) : use.inputs.size();
  const Cut cut{looks_up ? rule.firsts[0].first : '\0', 1};
  const LoopRule::Dim letters = row_letters(rule.inputs[by], use.inputs[by].type.shape);
  const auto has_rows = [&](const Dims& dims, const Shape& shape) {
    return row_letters(dims, shape) == letters;
  };
  const auto has_any = [&](const Dims& dims) {
    return std::any_of(letters.begin(), letters.end(),
                       [&](char letter) { return occurrences(dims, letter) > 0; });
  };
  if (letters.empty() || std::any_of(letters.begin(), letters.end(),
                                     [&](char letter) { return needs_whole(rule, letter); }))
    return refuse("which does not compute each row by itself");
  const int64_t owned = looks_up ? loop_size(rule, cut.letter) : routed.owned;
  // Other axes may cut what the rank owns along this axis further.
  const bool begins_here = looks_up && routed.owned % owned == 0 && begins(use, first, cut, 0) &&
                           use.inputs[first].lies.outer == routed.owned;
  if (looks_up ? !begins_here : owned != routed.owned)
    return refuse("which looks up rows that another rank owns");
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const LaidOut& one = use.inputs[i];
    if (!one.present || i == first || (looks_up && i == by)) continue;
    const bool is_row = has_rows(rule.inputs[i], one.type.shape);
    const bool stays = routed.packed == 0 && one.lies.kind == Lies::kWhole;
    const bool fits =
        is_row ? stays || one.lies.fits(routed) : !has_any(rule.inputs[i]) && takes(use, i, cut);
    if (!fits) return refuse("which reads other rows, or not all operands of these rows");
    // Dims of one element behind packed rows may count rows on one device.
    const Shape& shape = one.type.shape;
    for (size_t d = 1;
         routed.packed != 0 && is_row && !looks_up && d < shape.size() && shape[d] == 1; ++d)
      for (const char letter : rule.inputs[i][d])
        if (occurrences(rule.outputs[0], letter) == 0)
          return refuse("which may add up rows of several ranks");
  }
  std::vector<Lies> made;
  for (size_t o = 0; o < rule.outputs.size(); ++o) {
    const Shape& shape = use.types.outputs[o].shape;
    const auto table = placed(rule, rule.outputs[o], shape, cut.letter, 1);
    if (!table && has_rows(rule.outputs[o], shape))
      made.push_back(routed), made.back().names = false;
    else if (table && !has_any(rule.outputs[o]))
      made.push_back(*table);
    else
      return refuse("whose results are not the same rows");
  }
  return made;
}

// Each row of the own block gets its place among those that are sent along this axis.
OpLayouts::Made OpLayouts::place_rows(const Attrs& attrs, const LaidOut& index) {
  const Lies& own = index.lies;
  if (own.kind != Lies::kCut || own.run != 0 || !own.turn.is_home() || own.index == 0)
    return refuse("which finds places for rows of no block");
  if (attrs.integer("ranks") != ranks_)
    return refuse("which sends rows to another number of ranks");
  Lies places = own;
  places.kind = Lies::kPlaces, places.dims = 0;
  places.owned = attrs.integer("owned");
  places.packed = ranks_ * attrs.integer("rows");
  const Lies sent{.kind = Lies::kSent,
                  .outer = places.packed,
                  .index = own.index,
                  .owned = places.owned,
                  .packed = places.packed,
                  .names = true};
  return std::vector<Lies>{std::move(places), sent};
}

// By such places rows of the same block are put together, and come back to it.
OpLayouts::Made OpLayouts::by_places(const Use& use) {
  const bool sends = use.def->name == "GatherGrad";
  if ((!sends && use.def->name != "Gather") || use.inputs.size() != 2 ||
      use.inputs[1].lies.kind != Lies::kPlaces || use.types.attrs.integer("axis") != 0 ||
      use.types.attrs.find("padding"))
    return refuse("which reads places of rows as numbers");
  const Lies &rows = use.inputs[0].lies, &places = use.inputs[1].lies;
  const Shape &from = use.inputs[0].type.shape, &to = use.types.outputs[0].shape;
  if ((sends ? to : from)[0] != places.packed) return refuse("which has room for other rows");
  Lies block = places;
  block.kind = Lies::kCut, block.index = 0, block.owned = block.packed = 0;
  block.dims = dims_of(sends ? from : to, places.outer, false);
  const Lies sent{.kind = Lies::kSent,
                  .outer = places.packed,
                  .index = places.index,
                  .owned = places.owned,
                  .packed = places.packed};
  if (!rows.fits(sends ? block : sent)) return refuse("which has places of other rows");
  return std::vector<Lies>{sends ? sent : block};
}

// Flat runs of several values, each [1, n], are put together as the rows of a stack.
OpLayouts::Made OpLayouts::stack_runs(const Use& use, size_t from) {
  const LaidOut& first = use.inputs[from];
  const auto is_row = [&](const LaidOut& one) {
    return one.lies == Lies{Lies::kCut, 0, first.lies.run} && one.type == first.type;
  };
  if (use.types.attrs.integer("axis") != 0 || first.type.shape.size() != 2 ||
      first.type.shape[0] != 1 || !std::ranges::all_of(use.inputs, is_row))
    return refuse("which puts together something else than a run of each of several values");
  return std::vector<Lies>{
      {Lies::kStack, 0, first.lies.run, static_cast<int64_t>(use.inputs.size())}};
}

// A row of a stack is the own run of one value.
OpLayouts::Made OpLayouts::take_row(const Use& use) {
  const LaidOut& stack = use.inputs[0];
  const Shape &from = stack.type.shape, &to = use.types.outputs[0].shape;
  if (use.def->name != "Slice" || from.size() != 2 || from[0] != stack.lies.outer ||
      to != Shape{1, from[1]})
    return refuse("which reads runs of several values");
  return std::vector<Lies>{{Lies::kCut, 0, stack.lies.run}};
}

// A rank that reads values of its own beside such as all ranks have makes values of its own.
OpLayouts::Made OpLayouts::keep_own(const Use& use, size_t from) {
  const Lies own = renewed(use.inputs[from].lies);
  for (const LaidOut& one : use.inputs)
    if (one.present && one.lies.kind != Lies::kWhole && renewed(one.lies) != own)
      return refuse("which reads values of its own with parts of others");
  if (use.def->draws >= 0) return refuse("which draws for values of its own");
  return std::vector<Lies>(use.types.outputs.size(), own);
}

// The first of numbers that differ between ranks is compared with zero, which is that of one rank.
OpLayouts::Made OpLayouts::tell_apart(const Use& use, std::string_view op, size_t from) {
  const auto is_zero = [](int64_t number) { return number == 0; };
  if (op == "Slice" && std::ranges::all_of(use.types.attrs.integers("starts"), is_zero))
    return std::vector<Lies>{{Lies::kApart}};
  if (op != "Equal" || !use.inputs[1 - from].lies.zero)
    return refuse("which reads a number that differs between ranks");
  return std::vector<Lies>{{Lies::kOnce}};
}

// A value where such a comparison holds, and zeros elsewhere, are terms of a sum: one rank has the
// value.
OpLayouts::Made OpLayouts::choose_once(const Use& use, std::string_view op) {
  if (op != "Where" || use.inputs[0].lies.kind != Lies::kOnce ||
      use.inputs[1].lies.kind != Lies::kWhole || use.inputs[2].lies.kind != Lies::kTerms ||
      !use.inputs[2].lies.fixed)
    return refuse("which chooses something else than a value of one rank and zeros of the others");
  return std::vector<Lies>{{Lies::kTerms}};
}

// Flat runs pass an op that computes each element by itself: all operands are the same runs, or do
// not depend on the element.
OpLayouts::Made OpLayouts::cut_runs(const Use& use, size_t from) {
  const Dims& dims = use.rule.inputs[from];
  if (dims.size() != 1 || dims[0].size() != 1 || needs_whole(use.rule, dims[0][0]))
    return refuse("which does not compute each element by itself");
  const char letter = dims[0][0];
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const LaidOut& one = use.inputs[i];
    if (!one.present) continue;
    const bool has = occurrences(use.rule.inputs[i], letter) > 0;
    if (has ? !one.lies.fits(use.inputs[from].lies) : one.lies.kind != Lies::kWhole)
      return refuse("whose operands are different parts");
  }
  std::vector<Lies> made;
  for (const Dims& output : use.rule.outputs)
    made.push_back(occurrences(output, letter) > 0 ? renewed(use.inputs[from].lies)
                                                   : Lies{Lies::kTerms});
  const bool sums = std::find(made.begin(), made.end(), Lies{Lies::kTerms}) != made.end();
  if (sums && use.rule.reduces != LoopRule::kSum)
    return refuse("whose results on ranks are not terms of a sum");
  return made;
}

}  // namespace piper
