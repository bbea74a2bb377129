// Whole values: the padding after the end of a dim, which makes the parts of all ranks equally
// large.
//
// States are padded with zeros, and so are results of ops that map zeros to zeros. Where an op
// computes another number in the padding, its result gets a symbol of its own until the padding is
// masked: set to zero, or to a number that does not count. An op that reduces over a padded dim
// gives the result of one device only if the padding does not count.
#include <cmath>
#include <limits>

#include "whole.h"

namespace piper {
namespace {

constexpr double kAnything = std::numeric_limits<double>::quiet_NaN();

bool is_number(const TensorType& type) { return type.dtype != DType::kBool; }

// Returns whether a number acts as an infinite one of that sign when added to an element before
// exp(), in f16 too.
bool counts_as(double number, double none) {
  constexpr double kFar = 60000;
  return std::isinf(none) ? std::isfinite(number) && std::abs(number) >= kFar &&
                                std::signbit(number) == std::signbit(none)
                          : number == none;
}

}  // namespace

uint64_t WholeRun::ends_in(uint64_t symbol, double number) {
  if (number == 0) return symbol;
  const std::string how = std::isnan(number) ? "anything behind" : fmt::format("{} behind", number);
  const uint64_t made = join_symbols(symbol_of(how), symbol);
  values_.behind.try_emplace(made, Values::Behind{symbol, number});
  return made;
}

// Returns the number in the padding of an op that only moves elements.
double WholeRun::moved_end(const Use& use) {
  double number = 0;
  bool is_first = true;
  for (const Operand& one : use.inputs) {
    if (!is_first && one.behind != number) return kAnything;
    number = one.behind, is_first = false;
  }
  return number;
}

// Returns the number in the padding of an Expand: that of the operand, whose elements it repeats.
double WholeRun::repeated_end(const Use& use) const {
  const auto row = values_.rows.find(use.inputs[0].symbol);
  if (!values_.whole_shapes || (row != values_.rows.end() && row->second.is_all(0)))
    return moved_end(use);
  const auto known = values_.whole_shapes->made.find(use.inputs[0].symbol);
  if (known == values_.whole_shapes->made.end()) return moved_end(use);
  const Shape &from = use.inputs[0].type->shape, &to = use.outputs[0].shape;
  const size_t more = to.size() - from.size();
  bool any = false;
  for (const Shape& whole : known->second) {
    if (!may_be_part(to, whole)) continue;
    bool is_equal = true;
    for (size_t d = 0; d < to.size(); ++d)
      if (to[d] != 1 && (d < more || from[d - more] == 1))
        is_equal = is_equal && is_equal_part(to[d], whole[d]);
    if (is_equal) return moved_end(use);
    any = true;
  }
  return any ? kAnything : moved_end(use);
}

bool counts_packed(const std::vector<CutDim>* cuts, size_t d) {
  return cuts && d < 32 && std::any_of(cuts->begin(), cuts->end(), [&](const CutDim& cut) {
           return cut.ranks == CutDim::kPacked && (cut.dims >> d & 1) != 0;
         });
}

bool WholeRun::may_be_part(const Shape& own, const Shape& whole,
                           const std::vector<CutDim>* cuts) const {
  bool fits = own.size() == whole.size();
  for (size_t d = 0; fits && d < own.size(); ++d)
    fits = counts_packed(cuts, d) || may_be_part(own[d], whole[d]);
  return fits;
}
bool WholeRun::is_equal_part(int64_t own, int64_t whole) const {
  return own > 0 && whole % own == 0 && values_.parts.contains(whole / own);
}

// Returns into how many parts ranks cut dim d; 0: unknown. Among the dims that may be the cut one
// it must be the only one that is smaller than on one device.
int64_t WholeRun::parts_of(const std::vector<CutDim>* cuts, size_t d, const Shape& own,
                           const Shape& whole) {
  if (!cuts || own.size() > 32) return 0;
  int64_t parts = 1;
  for (const CutDim& cut : *cuts) {
    if (cut.ranks < 0 || !(cut.dims >> d & 1)) continue;
    for (size_t other = 0; other < own.size(); ++other)
      if (other != d && (cut.dims >> other & 1) && own[other] < whole[other]) return 0;
    parts *= cut.ranks;
  }
  return parts;
}

// Removes letters from dims that have one element on one device: the operand is broadcast along
// them, though on a rank its element may look like a block.
void WholeRun::clear_repeated(LoopRule& rule, uint64_t symbol, bool swapped) const {
  const auto known = values_.whole_shapes->operands.find(symbol);
  if (known == values_.whole_shapes->operands.end()) return;
  for (size_t i = 0; i < rule.inputs.size(); ++i) {
    std::vector<LoopRule::Dim>& dims = rule.inputs[swapped ? rule.inputs.size() - 1 - i : i];
    for (size_t d = 0; d < dims.size(); ++d) {
      const auto is_one = [&](const std::vector<Shape>& whole) {
        return i < whole.size() && whole[i].size() == dims.size() && whole[i][d] == 1;
      };
      if (std::all_of(known->second.begin(), known->second.end(), is_one)) dims[d].clear();
    }
  }
}

// Adds to `here` the letters of a value's one-letter dims, and to `equal` those of dims that divide
// the whole dim exactly, so that they have no padding. Where the number of parts is unknown, a dim
// counts as equal if some number of parts fits; with `doubtful`, only if it cannot be padded.
void WholeRun::note_letters(const std::vector<LoopRule::Dim>& dims, const std::vector<CutDim>* cuts,
                            const Shape& own, const Shape& whole, bool doubtful, std::string& here,
                            std::string& equal) const {
  for (size_t d = 0; d < own.size() && dims.size() == own.size(); ++d) {
    if (dims[d].size() != 1) continue;
    const int64_t known = parts_of(cuts, d, own, whole),
                  parts = known > 0 || !doubtful ? known : values_.ranks;
    const bool may_go_on = own[d] < whole[d] && own[d] * parts > whole[d];
    here += dims[d][0];
    if (counts_packed(cuts, d)) equal += dims[d][0];
    if (is_equal_part(own[d], whole[d]) && !may_go_on) equal += dims[d][0];
  }
}

// Returns the letters whose dims are padded, whichever shapes one device has. If an operand has
// something else than zeros in its padding, dims with an unknown number of parts count as padded,
// too.
std::string WholeRun::letters_that_go_on(const LoopRule& rule, const Use& use, uint64_t symbol,
                                         bool swapped) const {
  const std::string letters = letters_that_go_on(rule, use, symbol, swapped, false);
  const bool ends = std::any_of(use.inputs.begin(), use.inputs.end(),
                                [](const Operand& one) { return one.behind != 0; });
  return letters.empty() && ends ? letters_that_go_on(rule, use, symbol, swapped, true) : letters;
}
std::string WholeRun::letters_that_go_on(const LoopRule& rule, const Use& use, uint64_t symbol,
                                         bool swapped, bool doubtful) const {
  const auto known = values_.whole_shapes->operands.find(symbol);
  if (known == values_.whole_shapes->operands.end()) return "";
  const auto input = [&](size_t i) -> const Operand& {
    return use.inputs[swapped ? use.inputs.size() - 1 - i : i];
  };
  // On one device rows may be in several dims that a rank has joined.
  const auto in_dims_of = [](const Shape& whole, const Shape& own) {
    return with_dims(whole, own.size());
  };
  std::string here, equal;
  bool any = false;
  for (const std::vector<Shape>& whole : known->second) {
    bool fits =
        !whole.empty() &&
        whole.size() <= use.inputs.size();  // operands that tell where a part begins come last
    for (size_t i = 0; fits && i < whole.size(); ++i)
      fits = whole[i].empty() ||
             may_be_part(input(i).type->shape, in_dims_of(whole[i], input(i).type->shape),
                         input(i).cuts);
    for (size_t i = 0; fits && i < whole.size(); ++i)
      if (!whole[i].empty())
        note_letters(rule.inputs[swapped ? use.inputs.size() - 1 - i : i], input(i).cuts,
                     input(i).type->shape, in_dims_of(whole[i], input(i).type->shape), doubtful,
                     here, equal);
    any = any || fits;
  }
  for (size_t o = 0; o < rule.outputs.size() && rule.outputs.size() == 1; ++o)
    if (const auto made = values_.whole_shapes->made.find(symbol);
        made != values_.whole_shapes->made.end())
      for (const Shape& as_made : made->second)
        if (const Shape whole = in_dims_of(as_made, use.outputs[o].shape);
            may_be_part(use.outputs[o].shape, whole, use.cuts)) {
          note_letters(rule.outputs[o], use.cuts, use.outputs[o].shape, whole, doubtful, here,
                       equal);
          any = true;
        }
  std::string letters;
  for (const char letter : here)
    if (any && equal.find(letter) == equal.npos && letters.find(letter) == letters.npos)
      letters += letter;
  return letters;
}

// Gives results whose padding is not zero their own symbols.
WholeRun::Made WholeRun::with_ends(const OpDef& def, const LoopRule& rule, const Use& use,
                                   const std::string& letters, Made made) {
  const auto numbers = ends(def, rule, use, letters);
  for (size_t o = 0; o < made.size(); ++o)
    made[o] = numbers ? ends_in(made[o], (*numbers)[o])
                      : join_symbols(made[o], symbol_of("what is behind counts"));
  return made;
}

// Returns whether a result is zero in the padding of the letter's dim: the op is linear in operands
// that are zero there, or all its operands are and it maps zeros to zeros. Integers that tell where
// a part begins do not count as operands.
bool WholeRun::makes_zeros(const OpDef& def, const LoopRule& rule, const Use& use, char letter,
                           size_t output) const {
  const bool is_float = info(use.outputs[output].dtype).is_float;
  std::vector<int> zeros;
  size_t numbers = 0;
  bool reads = false;  // numbers that have the letter
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const Operand& one = use.inputs[i];
    const bool is_place = one.type && !info(one.type->dtype).is_float && is_float &&
                          std::all_of(rule.inputs[i].begin(), rule.inputs[i].end(),
                                      [](const LoopRule::Dim& dim) { return dim.empty(); });
    if (!one.type || !is_number(*one.type) || is_place) continue;
    const auto row = values_.rows.find(one.symbol);
    const bool is_zero = row != values_.rows.end() && row->second.is_all(0);
    const bool has_letter = occurrences(rule.inputs[i], letter) > 0;
    numbers += 1, reads = reads || has_letter;
    if (is_zero || (has_letter && one.behind == 0)) zeros.push_back(static_cast<int>(i));
  }
  if (!reads && tells_first(rule, letter)) return true;  // no index names an element of the padding
  for (const std::vector<int>& set : rule.linear)
    if (std::includes(zeros.begin(), zeros.end(), set.begin(), set.end())) return true;
  const bool is_made = std::count(def.nonzero.begin(), def.nonzero.end(), output) > 0;
  return !is_made && numbers > 0 && zeros.size() == numbers;
}

// Returns the numbers in the padding of the results. Nothing: the operands' padding changes
// results.
std::optional<std::vector<double>> WholeRun::ends(const OpDef& def, const LoopRule& rule,
                                                  const Use& use, const std::string& letters) {
  const auto absent_in = static_cast<size_t>(def.absent_in);
  bool any = false;
  for (const Operand& one : use.inputs) any = any || one.behind != 0;
  std::vector<double> made(use.outputs.size(), any && letters.empty() ? kAnything : 0);
  for (const char letter : letters) {
    const auto reads = [&](const auto& dims) { return occurrences(dims, letter) > 0; };
    const bool reads_none = std::none_of(rule.inputs.begin(), rule.inputs.end(), reads),
               has_none = def.absent && (reads_none || reads(rule.inputs[absent_in]));
    const bool whole = is_whole(rule, letter);
    for (size_t o = 0; o < made.size(); ++o) {
      const bool has_letter = occurrences(rule.outputs[o], letter) > 0;
      const bool takes = whole || (!has_letter && rule.reduces == LoopRule::kMax);
      if (takes && has_none) {
        if (!reads_none && !counts_as(use.inputs[absent_in].behind, *def.absent))
          return std::nullopt;
        if (has_letter && std::count(def.nonzero.begin(), def.nonzero.end(), o))
          made[o] = kAnything;
      } else if (!makes_zeros(def, rule, use, letter, o)) {
        if (!has_letter && rule.reduces == LoopRule::kSum) return std::nullopt;
        made[o] = kAnything;
      }
    }
  }
  for (size_t o = 0; o < made.size(); ++o)
    if (!is_number(use.outputs[o])) made[o] = 0;
  return made;
}

}  // namespace piper
