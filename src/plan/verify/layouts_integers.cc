// Follows integers that ranks make in blocks, such as positions and indices, over mesh axes.
#include "layouts_integers.h"

#include <algorithm>

namespace piper {
namespace {

// The first word of descriptions that are made here. Those of callers begin with a coordinate or a
// cell, which is never negative.
constexpr int64_t kPart = -1, kJoined = -2;

}  // namespace

int32_t Integers::number_of(std::vector<int64_t> words) {
  const auto next = static_cast<int32_t>(numbers_.size()) + 1;
  return numbers_.try_emplace(std::move(words), next).first->second;
}

Integers::Part Integers::description_of(int32_t number) const {
  const auto known = parts_.find(number);
  return known == parts_.end() ? Part{number, {}} : known->second;
}

// Brings the factors into a normal form, in which neighbouring stretches are one factor, and
// returns its words.
std::vector<int64_t> Integers::reduce(Part& part) {
  std::vector<Factor> factors;
  for (const Factor& one : part.factors) {
    if (one.axes == 0 && !factors.empty() && factors.back().axes == 0)
      factors.back().count *= one.count;
    else if (one.axes != 0 || one.count != 1)
      factors.push_back(one);
  }
  if (!factors.empty() && factors.back().axes == 0) factors.pop_back();
  std::vector<int64_t> words{kPart, part.of};
  for (const Factor& one : factors)
    words.insert(words.end(), {one.axes, one.mirrored ? -one.count : one.count});
  part.factors = std::move(factors);
  return words;
}
int32_t Integers::number_of(Part part) {
  std::vector<int64_t> words = reduce(part);
  if (part.factors.empty()) return part.of;
  const int32_t number = number_of(std::move(words));
  parts_.try_emplace(number, std::move(part));
  return number;
}
void Integers::describe(int32_t number, Part part) {
  std::vector<int64_t> words = reduce(part);
  numbers_.try_emplace(std::move(words), number);
  parts_.insert_or_assign(number, std::move(part));
}

// Returns the index of the factor that begins after `stretches` stretches, counted as one rank has
// them; splits a factor if it must. Nothing: no factor can begin there.
std::optional<size_t> Integers::split_at(std::vector<Factor>& factors, int64_t stretches) {
  for (size_t i = 0; i < factors.size(); ++i) {
    if (stretches == 1) return i;
    Factor& one = factors[i];
    if (one.axes != 0) continue;
    if (stretches % one.count == 0) {
      stretches /= one.count;
    } else if (one.count % stretches == 0) {
      const int64_t inside = one.count / stretches;
      one.count = stretches;
      factors.insert(factors.begin() + static_cast<std::ptrdiff_t>(i) + 1, Factor{0, inside});
      return i + 1;
    } else {
      return std::nullopt;
    }
  }
  if (stretches > 1) factors.push_back({0, stretches});
  return factors.size();
}

// Axes that already cut the same stretches remain outside: the new blocks are blocks of theirs.
std::optional<int32_t> Integers::part_of(int32_t whole, const Blocks& blocks) {
  Part part = description_of(whole);
  std::optional<size_t> at = split_at(part.factors, blocks.stretches);
  while (at && *at < part.factors.size() && part.factors[*at].axes != 0) ++*at;
  if (!at) return std::nullopt;
  if (*at < part.factors.size()) {
    int64_t& count = part.factors[*at].count;
    if (count % blocks.members != 0) return std::nullopt;
    count /= blocks.members;
  }
  part.factors.insert(part.factors.begin() + static_cast<std::ptrdiff_t>(*at),
                      {blocks.axes, blocks.members, blocks.mirrored});
  return number_of(std::move(part));
}

std::optional<int32_t> Integers::whole_of(int32_t number, const Blocks& blocks) {
  Part part = description_of(number);
  const std::optional<size_t> begin = split_at(part.factors, blocks.stretches);
  if (!begin) return std::nullopt;
  size_t at = *begin;
  for (; at < part.factors.size() && part.factors[at].axes != 0; ++at) {
    Factor& one = part.factors[at];
    if (one.axes != blocks.axes || one.mirrored != blocks.mirrored) continue;
    one = {0, one.count};
    return number_of(std::move(part));
  }
  // These integers were computed in blocks: their whole gets a new number, and they become its
  // blocks.
  int64_t before = 1;
  for (size_t i = 0; i < at; ++i) before *= part.factors[i].count;
  const Factor own{blocks.axes, blocks.members, blocks.mirrored};
  const int32_t whole =
      number_of({kJoined, part.of, before, own.axes, own.mirrored ? -own.count : own.count});
  if (!parts_.contains(part.of)) describe(part.of, {whole, {{0, before}, own}});
  part.of = whole;
  part.factors.insert(part.factors.begin() + static_cast<std::ptrdiff_t>(at), own);
  describe(number, part);
  part.factors[at] = {0, own.count};
  return number_of(std::move(part));
}

bool Integers::are_blocks(int32_t number, uint32_t axes) const {
  const Part part = description_of(number);
  return std::any_of(part.factors.begin(), part.factors.end(),
                     [&](const Factor& one) { return one.axes == axes; });
}

}  // namespace piper
