// Lookups at places that no file has: rows of a table whose values are known show where they stand.
#include <algorithm>
#include <map>
#include <numeric>

#include "piper/frontend/onnx.h"
#include "ways.h"

namespace piper::onnx_import {
namespace {

using Ways = std::vector<Derivation>;

// Returns the place of each of the table's rows, by their bytes; -1: several rows are equal.
std::map<std::string_view, int64_t> places_of_rows(const OnnxTensor& table) {
  std::map<std::string_view, int64_t> out;
  const std::string_view text = as_text(table.data.span());
  const int64_t rows = table.type.shape[0];
  const size_t size = rows == 0 ? 0 : text.size() / static_cast<size_t>(rows);
  for (int64_t r = 0; r < rows; ++r) {
    const auto entry = out.emplace(text.substr(static_cast<size_t>(r) * size, size), r);
    if (!entry.second) entry.first->second = -1;
  }
  return out;
}

// Returns the rows that `looked_up` has along its last dim, or element by element. Each must have
// one place in the table.
std::optional<OnnxTensor> rows_in(const OnnxTensor& table, const OnnxTensor& looked_up) {
  const auto places = places_of_rows(table);
  Shape shape = looked_up.type.shape;
  if (table.type.shape.size() == 2) shape.pop_back();
  std::vector<int64_t> rows(static_cast<size_t>(num_elements(shape)));
  const std::string_view text = as_text(looked_up.data.span());
  const size_t size = rows.empty() ? 0 : text.size() / rows.size();
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto place = places.find(text.substr(i * size, size));
    if (place == places.end() || place->second < 0) return {};
    rows[i] = place->second;
  }
  return OnnxTensor{"", {DType::kI64, shape}, bytes_of(rows)};
}

// A dim comes to stand last; and as it was.
struct Turn {
  std::vector<int64_t> last, back;
  Turn(size_t rank, size_t dim) : last(rank), back(rank) {
    std::iota(last.begin(), last.end(), int64_t{0});
    const auto at = last.begin() + static_cast<int64_t>(dim);
    std::rotate(at, at + 1, last.end());
    for (size_t k = 0; k < rank; ++k) back[static_cast<size_t>(last[k])] = static_cast<int64_t>(k);
  }
};

OnnxTensor permuted(const OnnxTensor& value, const std::vector<int64_t>& perm) {
  Shape shape;
  for (const int64_t dim : perm) shape.push_back(value.type.shape[static_cast<size_t>(dim)]);
  return {"",
          {value.type.dtype, shape},
          permute_bytes(value.data, value.type.shape, perm, value.type.dtype)};
}

// Finds lookups in a vector, or in a matrix, whose rows' elements may lie along any dim.
Ways lookups(const OnnxTensor& table, const OnnxTensor& folded) {
  Ways out;
  const Shape &from = table.type.shape, &shape = folded.type.shape;
  if (from.size() == 1)
    if (const auto rows = rows_in(table, folded)) out.push_back({gather_step(from, *rows)});
  for (size_t d = 0; d < shape.size() && from.size() == 2; ++d) {
    if (shape[d] != from[1]) continue;
    const Turn turn(shape.size(), d);
    const OnnxTensor turned = permuted(folded, turn.last);
    if (const auto rows = rows_in(table, turned))
      out.push_back({gather_step(from, *rows), permute_step(turned.type.shape, turn.back)});
  }
  return out;
}

// Finds lookups of rows or of columns.
Ways all_lookups(const OnnxTensor& table, const OnnxTensor& folded) {
  Ways out = lookups(table, folded);
  if (table.type.shape.size() != 2) return out;
  for (Derivation& way : lookups(permuted(table, {1, 0}), folded)) {
    way.insert(way.begin(), transposition(table.type.shape)[0]);
    out.push_back(std::move(way));
  }
  return out;
}

// Functions that leave what is above 0 as it is do not show in such values.
bool may_hide(const Chain& chain, const OnnxTensor& folded) {
  if (std::none_of(chain.functions.begin(), chain.functions.end(),
                   [](const std::string& stem) { return stem == "relu" || stem == "abs"; }))
    return false;
  for (size_t i = 0; i < static_cast<size_t>(num_elements(folded.type.shape)); ++i)
    if (read_number(folded.data, folded.type.dtype, i) < 0) return false;
  return true;
}

}  // namespace

std::optional<Derivation> looked_up_forth(const OnnxTensor& table, const OnnxTensor& folded,
                                          const Chain& chain) {
  if (folded.type.dtype != table.type.dtype || folded.data.size == 0) return {};
  if (may_hide(chain, folded)) return {};
  const Ways ways = all_lookups(table, folded);
  if (ways.size() != 1) return {};
  const Result<OnnxTensor> made = value_of(ways[0], table);
  const bool same = made && made->type == folded.type &&
                    as_text(made->data.span()) == as_text(folded.data.span());
  return same ? std::optional(ways[0]) : std::nullopt;
}

}  // namespace piper::onnx_import
