// Whole values: ops that only move elements, and rows that mask the padding after the end of a dim.
#include <numeric>

#include "piper/base/float16.h"
#include "whole.h"

namespace piper {
namespace {

// Returns a symbol for the share count / extent, which is the same for a part and its whole.
uint64_t share_symbol(int64_t count, int64_t extent) {
  const int64_t common = std::max<int64_t>(1, std::gcd(count, extent));
  return join_symbols(static_cast<uint64_t>(count / common),
                      static_cast<uint64_t>(extent / common));
}

}  // namespace

// Checks the shapes of an op that only moves elements. Its symbol may be that of its operand, so
// shapes are recorded under the symbol joined with the op.
uint64_t WholeRun::in_dims(uint64_t symbol, const Use& use) {
  for (const std::string_view op : {"Reshape", "Cast", "ToBlocks", "FromBlocks"})
    if (use.op == op) return symbol;
  std::vector<Part> parts;
  for (const Operand& one : use.inputs)
    parts.push_back({one.type ? one.type->shape : Shape(), one.cuts});
  parts.push_back({use.outputs[0].shape, use.cuts});
  return of_shapes(symbol, join_symbols(symbol_of(use.op), symbol), parts);
}

uint64_t WholeRun::cast(const Use& use) {
  const DType from = use.inputs[0].type->dtype, to = use.outputs[0].dtype;
  const bool widens = is_half(from) && info(to).is_float;
  if (from == to || is_half(to) || widens) return use.inputs[0].symbol;  // see rounded()
  const uint64_t made = values_.cast(use.inputs[0].symbol, info(to).name);
  if (const auto row = values_.rows.find(use.inputs[0].symbol); row != values_.rows.end())
    values_.rows.try_emplace(made, row->second);
  return made;
}

// Returns the symbol of a 16-bit value as rounded: terms of a sum are f32, and only their sum is
// rounded.
uint64_t WholeRun::rounded(uint64_t symbol, DType dtype) {
  if (!is_half(dtype)) return symbol;
  const auto known = values_.behind.find(symbol);
  const uint64_t of = known == values_.behind.end() ? symbol : known->second.of;
  const double number = known == values_.behind.end() ? 0 : known->second.number;
  const uint64_t made = values_.rounded(of, info(dtype).name);
  if (const auto row = values_.rows.find(of); row != values_.rows.end())
    values_.rows.try_emplace(made, row->second);
  return ends_in(made, number);
}

// Recognizes a Slice that removes from all runs of a value, in one row, the padding at their end,
// which is shorter than the number of runs. Returns the symbol of the value.
std::optional<uint64_t> WholeRun::without_last(const Use& use) const {
  const auto runs = values_.runs_of_all.find(use.inputs[0].symbol);
  if (runs == values_.runs_of_all.end()) return std::nullopt;
  const Shape &from = use.inputs[0].type->shape, &to = use.outputs[0].shape;
  const int64_t count = num_elements(to), all = num_elements(from);
  const auto is = [](int64_t wanted) { return [=](int64_t number) { return number == wanted; }; };
  const bool is_begin = !from.empty() && all == from.back() && count == to.back() &&
                        all - count < runs->second.ranks &&
                        std::ranges::all_of(use.attrs.integers("starts"), is(0)) &&
                        std::ranges::all_of(use.attrs.integers("steps"), is(1));
  const std::vector<Shape>& known = values_.whole_shapes->made.at(runs->second.of);
  return is_begin && std::ranges::count(known, count, num_elements) > 0
             ? std::optional(runs->second.of)
             : std::nullopt;
}

uint64_t WholeRun::sliced(const Use& use) {
  if (const auto value = without_last(use)) return *value;
  const Shape &from = use.inputs[0].type->shape, &to = use.outputs[0].shape;
  const std::vector<int64_t> starts = use.attrs.integers("starts"),
                             steps = use.attrs.integers("steps");
  uint64_t how = symbol_of("Slice");
  bool cuts = false;
  const auto joins = values_.concats.find(use.inputs[0].symbol);
  for (size_t d = 0; d < from.size() && d < to.size() && d < starts.size(); ++d) {
    const int64_t step = d < steps.size() ? steps[d] : 1;
    if (to[d] == from[d] && step == 1) continue;
    if (joins != values_.concats.end() && joins->second.axis == d && !cuts) {
      __int128 first = 0, all = 0;  // joined on whole values, perhaps, of which this is a part
      for (const auto& [symbol, extent] : joins->second.parts) all += extent;
      for (const auto& [symbol, extent] : joins->second.parts) {
        const bool rest = std::equal(from.begin() + static_cast<std::ptrdiff_t>(d) + 1, from.end(),
                                     to.begin() + static_cast<std::ptrdiff_t>(d) + 1, to.end());
        if (rest && first * from[d] == starts[d] * all && extent * from[d] == to[d] * all)
          return symbol;
        first += extent;
      }
    }
    cuts = true;
    how = join_symbols(how, d);
    if (step == 1) {
      how = join_symbols(how, share_symbol(starts[d], from[d]));
      how = join_symbols(how, share_symbol(to[d], from[d]));
    } else {
      for (const int64_t number : {starts[d], to[d], step})
        how = join_symbols(how, static_cast<uint64_t>(number));
    }
  }
  return cuts ? values_.moved(how, {use.inputs[0].symbol}) : use.inputs[0].symbol;
}

uint64_t WholeRun::padded(const Use& use) {
  const std::vector<int64_t> before = use.attrs.integers("before"),
                             after = use.attrs.integers("after");
  const Shape& shape = use.inputs[0].type->shape;
  uint64_t how = symbol_of(word_of("Pad", without(use.attrs, {"before", "after"})));
  for (size_t d = 0; d < shape.size() && d < before.size() && d < after.size(); ++d) {
    how = join_symbols(how, share_symbol(before[d], shape[d]));
    how = join_symbols(how, share_symbol(after[d], shape[d]));
  }
  const uint64_t of = use.inputs[0].symbol, made = join_symbols(how, of);
  const auto all = [](const std::vector<int64_t>& counts, auto is) {
    return std::all_of(counts.begin(), counts.end(), is);
  };
  const bool at_end =
      all(before, [](int64_t n) { return n == 0; }) && all(after, [](int64_t n) { return n >= 0; });
  const uint64_t result = rounded(made, use.outputs[0].dtype);
  const bool is_own = values_.whole_shapes && !values_.whole_shapes->made.contains(result);
  if (!at_end || !is_own) return made;
  const double value = use.attrs.real("value");
  const auto row = values_.rows.find(of);
  if (row == values_.rows.end() || !row->second.is_all(row->second.there))
    return ends_in(of, value);  // the padding of what ranks read
  const int64_t count = num_elements(shape);
  const uint64_t of_count = join_symbols(made, static_cast<uint64_t>(count));
  values_.rows.try_emplace(of_count, Values::Row{row->second.there, value, count});
  return of_count;
}

// Recognizes ops that change only the padding, which one device does not have: an Add of a row to
// zeros, and a Where that sets the padding to zeros. Returns the symbol of the value without it.
std::optional<uint64_t> WholeRun::without_padding(const Use& use) {
  const auto row_of = [&](size_t i) {
    const auto row = values_.rows.find(use.inputs[i].symbol);
    return row == values_.rows.end() ? nullptr : &row->second;
  };
  const auto ends = [&](size_t i, const Operand& of) {
    return ends_where(row_of(i)->count, *use.inputs[i].type, of);
  };
  const auto is_row = [&](size_t i, double there, double behind) {
    return row_of(i) && row_of(i)->there == there && row_of(i)->behind == behind;
  };
  if (use.op == "Add" && row_of(1) && row_of(1)->there == 0 && row_of(1)->behind != 0 &&
      use.inputs[0].behind == 0 && ends(1, use.inputs[0]))
    return ends_in(use.inputs[0].symbol, row_of(1)->behind);
  if (use.op == "Where" && is_row(0, 1, 0) && is_row(2, 0, 0) && ends(0, use.inputs[1]))
    return use.inputs[1].symbol;
  return std::nullopt;
}

// Returns whether a row has as many elements before its padding as the value has on one device in
// the first dim of the row, or a part of these: over some of the axes that cut the dim.
bool WholeRun::ends_where(int64_t count, const TensorType& row, const Operand& of) const {
  if (!values_.whole_shapes || count <= 0) return false;
  const auto known = values_.whole_shapes->made.find(of.symbol);
  if (known == values_.whole_shapes->made.end()) return false;
  return std::any_of(known->second.begin(), known->second.end(), [&](const Shape& shape) {
    if (shape.size() < row.shape.size() || row.shape.empty()) return false;
    const int64_t extent = shape[shape.size() - row.shape.size()];
    if (extent % count != 0) return false;
    if (!of.cuts || of.type->shape.size() < row.shape.size())
      return values_.parts.contains(extent / count);
    return parts_along(*of.cuts, of.type->shape.size() - row.shape.size()).contains(extent / count);
  });
}

// Returns into how many parts some of the axes that cut the dim cut it.
std::set<int64_t> WholeRun::parts_along(const std::vector<CutDim>& cuts, size_t dim) const {
  std::set<int64_t> parts{1};
  for (const CutDim& cut : cuts) {
    if (cut.ranks < 0 || (cut.dims >> dim & 1) == 0) continue;
    for (const int64_t before : std::set(parts))
      parts.insert(before * (cut.ranks > 0 ? cut.ranks : values_.ranks));
  }
  return parts;
}

uint64_t WholeRun::concatenated(const Use& use) {
  int64_t axis = use.attrs.integer("axis"), all = 0;
  Values::Joined joins;
  std::vector<uint64_t> of;
  for (const Operand& one : use.inputs) {
    const auto rank = static_cast<int64_t>(one.type ? one.type->shape.size() : 0);
    if (axis < 0) axis += rank;
    const int64_t extent =
        axis >= 0 && axis < rank ? one.type->shape[static_cast<size_t>(axis)] : 0;
    joins.parts.emplace_back(one.symbol, extent);
    of.push_back(one.symbol);
    all += extent;
  }
  if (of.size() == 1) return of[0];
  joins.axis = static_cast<size_t>(axis);
  uint64_t how = join_symbols(symbol_of("Concat"), static_cast<uint64_t>(axis));
  for (const auto& [symbol, extent] : joins.parts)
    how = join_symbols(how, share_symbol(extent, all));
  const uint64_t made = values_.moved(how, std::move(of));
  values_.concats.try_emplace(made, std::move(joins));
  return made;
}

}  // namespace piper
