// From a parameter whose value is known to what the exporter computed.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "pieces.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

using Ways = std::vector<Derivation>;

bool aligns(const Shape& from, const Shape& to) {  // as Expand would have it
  if (from.size() > to.size()) return false;
  for (size_t d = 0; d < from.size(); ++d)
    if (from[from.size() - 1 - d] != 1 && from[from.size() - 1 - d] != to[to.size() - 1 - d])
      return false;
  return true;
}

Ways permutations(const Shape& from) {
  Ways out;
  constexpr size_t kMost = 4;
  if (from.size() < 2 || from.size() > kMost) return out;
  std::vector<int64_t> perm(from.size());
  std::iota(perm.begin(), perm.end(), int64_t{0});
  while (std::next_permutation(perm.begin(), perm.end())) out.push_back({permute_step(from, perm)});
  return out;
}

void add_parts(const OnnxTensor& whole, const OnnxTensor& part, size_t axis, const Shape& cut,
               Ways& out) {
  const Shape& shape = whole.type.shape;
  const int64_t length = cut[axis];
  for (int64_t start = 0; start + length <= shape[axis]; ++start) {
    const OnnxTensor here{
        "", {whole.type.dtype, part.type.shape}, slice_of(whole, axis, start, cut)};
    if (!nearly_equal(here, part, 4)) continue;
    out.push_back({slice_step(shape, static_cast<int64_t>(axis), start, start + length)});
    if (part.type.shape != cut) out.back().push_back(reshape_step(cut, part.type.shape));
  }
}

// Returns all parts along one dim that have the shape and the bytes.
Ways parts(const OnnxTensor& whole, const OnnxTensor& part) {
  Ways out;
  const Shape& shape = whole.type.shape;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int64_t others = num_elements(shape) / std::max<int64_t>(1, shape[axis]);
    const int64_t length = others == 0 ? 0 : num_elements(part.type.shape) / others;
    if (length == 0 || length >= shape[axis]) continue;
    Shape cut = shape;
    cut[axis] = length;
    Shape dropped = cut;
    dropped.erase(dropped.begin() + static_cast<int64_t>(axis));
    if (part.type.shape != cut && !(length == 1 && part.type.shape == dropped)) continue;
    add_parts(whole, part, axis, cut, out);
  }
  if (out.size() > 1) out.clear();  // which one is not to be seen
  return out;
}

// Returns the repetitions that make `to`, beginning with the last dims.
Ways tiles(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return {};
  Shape padded(to.size() - from.size(), 1);
  padded.insert(padded.end(), from.begin(), from.end());
  std::vector<int64_t> times;
  for (size_t d = 0; d < to.size(); ++d) {
    if (padded[d] == 0 || to[d] % padded[d] != 0) return {};
    times.push_back(to[d] / padded[d]);
  }
  return {{reshape_step(from, padded), tile_step(padded, times)}};
}

// Returns all parts along one dim with this many elements; a selected one has lost the dim.
Ways parts_of_size(const Shape& shape, int64_t size, bool selected) {
  Ways out;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int64_t others = num_elements(shape) / std::max<int64_t>(1, shape[axis]);
    const int64_t length = others == 0 ? 0 : size / others;
    if (length == 0 || length >= shape[axis] || length * others != size) continue;
    if (selected && length != 1) continue;
    Shape cut = shape, dropped = shape;
    cut[axis] = length;
    dropped.erase(dropped.begin() + static_cast<int64_t>(axis));
    for (int64_t start = 0; start + length <= shape[axis]; ++start) {
      out.push_back({slice_step(shape, static_cast<int64_t>(axis), start, start + length)});
      if (selected) out.back().push_back(reshape_step(cut, dropped));
    }
  }
  return out;
}

Ways sums(const Shape& from, std::string_view stem) {
  Ways out;
  constexpr size_t kMost = 4;
  if (from.size() > kMost) return out;
  for (size_t set = 1; set < (size_t{1} << from.size()); ++set) {
    std::vector<int64_t> axes;
    for (size_t d = 0; d < from.size(); ++d)
      if (set >> d & 1) axes.push_back(static_cast<int64_t>(d));
    for (const bool keepdims : {false, true}) {
      out.push_back({sum_step(from, axes, keepdims)});
      if (stem == "mean") out.back()[0].node.op = "ReduceMean";
    }
  }
  return out;
}

// A program's numbers are short in decimal; what is measured is rounded.
double shortened(double number, double scale) {
  const double rounded = std::round(number * 1e4) / 1e4;
  return std::fabs(rounded - number) <= 4e-7 * scale ? rounded : number;
}

// Returns sums or products of a number and the parameter, or of the parameter twice: F tells which,
// the bytes tell the number.
Ways with_number(std::string_view stem, const OnnxTensor& from, const OnnxTensor& to,
                 bool literal) {
  const Shape& shape = from.type.shape;
  const DType dtype = from.type.dtype;
  if (shape != to.type.shape || num_elements(shape) == 0) return {};
  const double x = read_number(from.data, dtype, 0), y = read_number(to.data, to.type.dtype, 0);
  const auto step = [&](const char* op, double number, bool last = false) {
    const double scale = std::max({std::fabs(x), std::fabs(y), std::fabs(number)});
    return Derivation{
        literal_step(op, shape, scalar_literal(shortened(number, scale), dtype), last)};
  };
  if (stem == "square" || (stem == "mul" && !literal)) return {step("Pow", 2)};
  if (stem == "add" && !literal) return {step("Mul", 2)};
  if (!literal) return {};
  if (stem == "add") return {step("Add", y - x)};
  if (stem == "sub" || stem == "rsub") {
    if (is_uniform(from.data, dtype)) return {};  // x - c and c - x are one
    return {step("Sub", x - y), step("Sub", x + y, true)};
  }
  if (stem == "pow") {
    if (is_uniform(from.data, dtype)) return {};
    return {step("Pow", 2), step("Pow", 3), step("Pow", 4), step("Pow", 0.5), step("Pow", -1)};
  }
  if (x == 0 || y == 0) return {};
  if (stem == "mul") return {step("Mul", y / x)};
  return {step("Div", x / y), step("Div", x * y, true)};
}

// Returns what one function may have made of `from`. `to` is the value at the end of the chain,
// where this is its last function, and `size` its number of elements.
Ways pieces_forth(std::string_view stem, const OnnxTensor& from, const OnnxTensor* to, int64_t size,
                  const Chain& chain) {
  const Shape& shape = from.type.shape;
  switch (kind_of(stem)) {
    case PieceKind::kSame:
      return {Derivation()};
    case PieceKind::kPermute: {
      Ways ways = permutations(shape);
      ways.push_back({});
      return ways;
    }
    case PieceKind::kReshape:
      if (!to || to->type.shape == shape) return {Derivation()};
      if (num_elements(to->type.shape) != num_elements(shape)) return {};
      return {{reshape_step(shape, to->type.shape)}};
    case PieceKind::kRepeat:
      if (!to || to->type.shape == shape) return {Derivation()};
      if (stem == "repeat") return tiles(shape, to->type.shape);
      if (!aligns(shape, to->type.shape)) return {};
      return {{expand_step(shape, to->type.shape)}};
    case PieceKind::kPart: {
      Ways ways = to ? parts(from, *to) : parts_of_size(shape, size, stem == "select");
      ways.push_back({});
      return ways;
    }
    case PieceKind::kSum:
      return sums(shape, stem);
    case PieceKind::kNumber:
      return to ? with_number(stem, from, *to, chain.literal) : Ways();
    default:
      break;
  }
  Derivation steps = function_steps(stem, shape);
  return steps.empty() ? Ways() : Ways{std::move(steps)};
}

bool is_made(const Derivation& derivation, const OnnxTensor& parameter, const OnnxTensor& folded) {
  const Result<OnnxTensor> made = value_of(derivation, parameter);
  if (!made || made->type != folded.type) return false;
  if (as_text(made->data.span()) == as_text(folded.data.span())) return true;
  if (is_layout(derivation)) return false;
  const bool sums = std::any_of(derivation.begin(), derivation.end(), [](const Step& step) {
    return step.node.op.starts_with("Reduce");
  });
  return nearly_equal(*made, folded, sums ? 100 : 4);
}

// Returns what a function made, where those after it have inverses; 1 / x is 1 · reciprocal(x).
std::optional<OnnxTensor> made_at(const Chain& chain, size_t f, const OnnxTensor& folded) {
  Derivation behind;
  for (size_t k = f + 1; k < chain.functions.size(); ++k) {
    if (chain.functions[k] == "mul") continue;
    const Derivation steps = function_steps(chain.functions[k], folded.type.shape);
    if (steps.empty()) return {};
    behind.insert(behind.end(), steps.begin(), steps.end());
  }
  Result<OnnxTensor> made = parameter_of(behind, folded);
  return made ? std::optional(*std::move(made)) : std::nullopt;
}

// Returns nothing where two parts of one value would do.
std::optional<Derivation> forth_from(const OnnxTensor& parameter, const OnnxTensor& at,
                                     const Derivation& so_far, const OnnxTensor& folded,
                                     const Chain& chain, size_t f) {
  const bool last = f + 1 == chain.functions.size();
  const std::string& stem = chain.functions[f];
  const int64_t size = num_elements(folded.type.shape);
  std::optional<OnnxTensor> to;
  if (last || kind_of(stem) == PieceKind::kNumber) to = made_at(chain, f, folded);
  std::optional<Derivation> found;
  for (const Derivation& piece : pieces_forth(stem, at, to ? &*to : nullptr, size, chain)) {
    Derivation longer = so_far;
    longer.insert(longer.end(), piece.begin(), piece.end());
    std::optional<Derivation> way;
    if (last) {
      if (is_made(longer, parameter, folded)) way = std::move(longer);
    } else if (const Result<OnnxTensor> next = value_of(piece, at)) {
      way = forth_from(parameter, *next, longer, folded, chain, f + 1);
    }
    if (way && found) return {};
    if (way && !is_part(stem)) return way;
    if (way) found = std::move(way);
  }
  return found;
}

bool is_elementwise(const std::string& stem) {
  return kind_of(stem) == PieceKind::kNumber || (is_function(stem) && stem != "softmax");
}
bool keeps_elements(const std::string& stem) {
  return kind_of(stem) == PieceKind::kReshape || kind_of(stem) == PieceKind::kSame;
}

// Returns what is done to each element, if the rest only changes shapes: the functions of elements
// may come last.
std::optional<Chain> by_element(const Chain& chain) {
  Chain out = chain;
  std::erase_if(out.functions, keeps_elements);
  const bool only = std::all_of(out.functions.begin(), out.functions.end(), is_elementwise);
  return only && !out.functions.empty() ? std::optional(out) : std::nullopt;
}

std::optional<Derivation> forth_by_element(const OnnxTensor& parameter, OnnxTensor folded,
                                           const Chain& chain) {
  const Shape to = std::exchange(folded.type.shape, parameter.type.shape);
  if (num_elements(to) != num_elements(parameter.type.shape)) return {};
  for (const Chain& order : orders(chain))
    if (auto found = forth_from(parameter, parameter, {}, folded, order, 0)) {
      if (to != parameter.type.shape) found->push_back(reshape_step(parameter.type.shape, to));
      return found;
    }
  return {};
}

}  // namespace

std::optional<Derivation> way_forth(const OnnxTensor& parameter, const OnnxTensor& folded,
                                    const Chain& chain) {
  if (looks_up(chain)) return looked_up_forth(parameter, folded, chain);
  if (const auto plain = by_element(chain)) return forth_by_element(parameter, folded, *plain);
  for (const Chain& order : orders(chain))
    if (auto found = forth_from(parameter, parameter, {}, folded, order, 0)) return found;
  return {};
}

bool has_way_forth(const Chain& chain) {
  if (looks_up(chain)) return true;
  return by_element(chain).value_or(chain).functions.size() <= kMostOrdered &&
         std::all_of(chain.functions.begin(), chain.functions.end(), [](const std::string& stem) {
           return kind_of(stem) != PieceKind::kUnknown || is_function(stem);
         });
}

}  // namespace piper::onnx_import
