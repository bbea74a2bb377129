#include "ways.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "host.h"

namespace piper::onnx_import {

std::string_view stem_of(std::string_view call) {
  const size_t end = call.find_last_not_of("0123456789");
  if (end == std::string_view::npos || end + 1 == call.size() || call[end] != '_') return call;
  return call.substr(0, end);
}

namespace {

enum class Kind { kUnknown, kSame, kPermute, kReshape, kRepeat, kPart, kLookup, kSum, kNumber };

struct Family {
  Kind kind;
  std::vector<std::string_view> stems;
};
Kind kind_of(std::string_view stem) {
  static const std::vector<Family> kFamilies = {
      {Kind::kSame,
       {"alias", "clone", "contiguous", "detach", "to", "_to_copy", "type_as", "lift_fresh_copy"}},
      {Kind::kPermute,
       {"permute", "transpose", "t", "numpy_t", "mt", "swapaxes", "swapdims", "movedim"}},
      {Kind::kReshape,
       {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze"}},
      {Kind::kRepeat, {"expand", "expand_as", "broadcast_to"}},
      {Kind::kPart, {"slice", "select", "narrow"}},
      {Kind::kLookup, {"embedding"}},
      {Kind::kSum, {"sum", "mean"}},
      {Kind::kNumber, {"add", "sub", "rsub", "mul", "div", "pow", "square"}},
  };
  for (const Family& family : kFamilies)
    if (std::count(family.stems.begin(), family.stems.end(), stem)) return family.kind;
  return Kind::kUnknown;
}

// PyTorch's functions of one value, in ops of ONNX one after another; none: it is not known.
std::vector<std::string> ops_of(std::string_view stem) {
  struct Function {
    std::string_view stem;
    std::vector<std::string> ops;
  };
  static const std::vector<Function> kFunctions = {
      {"abs", {"Abs"}},
      {"cos", {"Cos"}},
      {"elu", {"Elu"}},
      {"erf", {"Erf"}},
      {"exp", {"Exp"}},
      {"gelu", {"Gelu"}},
      {"log", {"Log"}},
      {"log_sigmoid", {"Neg", "Softplus", "Neg"}},
      {"mish", {"Mish"}},
      {"neg", {"Neg"}},
      {"reciprocal", {"Reciprocal"}},
      {"relu", {"Relu"}},
      {"rsqrt", {"Sqrt", "Reciprocal"}},
      {"selu", {"Selu"}},
      {"sigmoid", {"Sigmoid"}},
      {"silu", {"Swish"}},
      {"sin", {"Sin"}},
      {"softmax", {"Softmax"}},
      {"softplus", {"Softplus"}},
      {"softsign", {"Softsign"}},
      {"sqrt", {"Sqrt"}},
      {"tanh", {"Tanh"}},
  };
  for (const Function& function : kFunctions)
    if (function.stem == stem) return function.ops;
  return {};
}

Derivation functions(std::string_view stem, const Shape& shape) {
  Derivation out;
  for (const std::string& op : ops_of(stem)) out.push_back(function_step(op, shape));
  return out;
}

}  // namespace

bool is_function(std::string_view stem) { return !ops_of(stem).empty(); }

namespace {

size_t larger_dims(const Shape& shape) {
  return static_cast<size_t>(
      std::count_if(shape.begin(), shape.end(), [](int64_t d) { return d != 1; }));
}

// ---- Back ---------------------------------------------------------------------------------------

// One function undone: the shape that it was given, and how it came to that of `value`.
struct Piece {
  Shape from;
  Derivation steps;
  std::string note = {};
};

constexpr const char* kKeeps = "has the shape that the file keeps";

Result<Piece> permuted_back(const OnnxTensor& value) {
  const Shape& shape = value.type.shape;
  if (shape.size() < 2) return Piece{shape, {}};
  if (shape.size() > 2) return fail("the order of the dims of {} is lost", to_string(shape));
  const Shape from{shape[1], shape[0]};
  return Piece{from, transposition(from)};
}

// Each unsqueeze made a dim of one; another shape is known where one dim alone is larger.
Result<Piece> reshaped_back(const OnnxTensor& value, std::string_view stem, const Chain& chain) {
  const Shape& shape = value.type.shape;
  Shape from;
  const auto ones = std::count(shape.begin(), shape.end(), 1);
  const bool whole =
      stem == "unsqueeze" && (ones == 0 || ones == std::count(chain.functions.begin(),
                                                              chain.functions.end(), "unsqueeze"));
  if (shape.empty()) return Piece{shape, {}, kKeeps};
  if (larger_dims(shape) > 1 && !whole) return Piece{shape, {}, kKeeps};
  std::copy_if(shape.begin(), shape.end(), std::back_inserter(from),
               [](int64_t d) { return d != 1; });
  if (from.empty()) from = {1};
  if (from == shape) return Piece{shape, {}};
  return Piece{from, {reshape_step(from, shape)}};
}

Result<Piece> repeated_back(const OnnxTensor& value) {
  const Shape& shape = value.type.shape;
  Shape from = compress(value.data, shape, value.type.dtype).first;
  if (larger_dims(from) == 0 && larger_dims(shape) > 0)
    return fail("equal numbers do not show how often they were repeated");
  if (from == shape) return Piece{shape, {}};
  return Piece{from, {expand_step(from, shape)}, kKeeps};
}

bool rows_differ(const Bytes& data, size_t rows) {
  const std::string_view text = as_text(data.span());
  std::set<std::string_view> seen;
  for (size_t r = 0; r < rows; ++r)
    if (!seen.insert(text.substr(r * (text.size() / rows), text.size() / rows)).second)
      return false;
  return true;
}

// A table looked up at constant positions: one that repeats itself along whole dims, as a table of
// positions does along the batch, is taken once. None where rows are equal otherwise, as those of
// relative positions are, since the order of the table is lost then; and none of rows of one number
// each, which may be equal by chance.
Result<Piece> looked_up_back(const OnnxTensor& value) {
  const Shape& shape = value.type.shape;
  const Error lost = fail("which rows it looked up is lost");
  if (shape.size() < 2 || value.data.size == 0) return lost;
  auto [once, data] = compress(value.data, shape, value.type.dtype);
  const int64_t rows = num_elements(once) / shape.back();
  if (once.back() != shape.back() || !rows_differ(data, static_cast<size_t>(rows))) return lost;
  Piece out{{rows, shape.back()}, {}};
  if (once != out.from) out.steps.push_back(reshape_step(out.from, once));
  if (once != shape) out.steps.push_back(expand_step(once, shape));
  out.note = fmt::format(
      "was looked up at constant positions by the exporter: it has the {} row{} that the file "
      "keeps, in the order looked up; --init brings the others",
      rows, rows == 1 ? "" : "s");
  return out;
}

Result<Piece> piece_back(std::string_view stem, const OnnxTensor& value, const Chain& chain) {
  const Shape& shape = value.type.shape;
  switch (kind_of(stem)) {
    case Kind::kSame:
      return Piece{shape, {}};
    case Kind::kPermute:
      return permuted_back(value);
    case Kind::kReshape:
      return reshaped_back(value, stem, chain);
    case Kind::kRepeat:
      return repeated_back(value);
    case Kind::kPart:
      return Piece{shape, {}, "has the part that the file keeps; --init brings the rest"};
    case Kind::kLookup:
      return looked_up_back(value);
    case Kind::kNumber:
      if (stem == "add" && chain.plus)
        return Piece{shape,
                     {literal_step("Add", shape, scalar_literal(*chain.plus, value.type.dtype))}};
      return fail("the other operand of '{}' is lost", stem);
    default:
      break;
  }
  Derivation steps = functions(stem, shape);
  if (steps.empty()) return fail("'{}' has no inverse", stem);
  return Piece{shape, std::move(steps)};
}

// Rows are looked up: what moves their elements elsewhere leaves no rows to be seen.
Status check_rows(const Chain& chain) {
  if (kind_of(chain.functions[0]) != Kind::kLookup) return ok_status();
  for (size_t f = 1; f < chain.functions.size(); ++f) {
    const Kind kind = kind_of(chain.functions[f]);
    if (kind == Kind::kPart || kind == Kind::kPermute || kind == Kind::kSum ||
        (kind == Kind::kReshape && chain.functions[f] != "unsqueeze"))
      return fail("which rows it looked up is lost behind '{}'", chain.functions[f]);
  }
  return ok_status();
}

Result<Way> one_way_back(const OnnxTensor& folded, const Chain& chain) {
  PIPER_TRY(check_rows(chain));
  Way way{folded.type, {}};
  OnnxTensor value = folded;
  for (size_t f = chain.functions.size(); f-- > 0;) {
    PIPER_ASSIGN(Piece piece, piece_back(chain.functions[f], value, chain));
    if (!piece.note.empty()) way.note = piece.note;
    PIPER_ASSIGN(value, parameter_of(piece.steps, value));
    way.derivation.insert(way.derivation.begin(), piece.steps.begin(), piece.steps.end());
  }
  way.type.shape = value.type.shape;
  PIPER_TRY(parameter_of(way.derivation, folded));
  return way;
}

// ---- Forth --------------------------------------------------------------------------------------

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

Bytes slice_of(const OnnxTensor& whole, size_t axis, int64_t start, const Shape& part) {
  const std::vector<int64_t> steps(part.size(), 1);
  std::vector<int64_t> starts(part.size(), 0);
  starts[axis] = start;
  return slice_bytes(whole.data, whole.type.shape, starts, steps, part, whole.type.dtype);
}

// All parts along one dim that have the shape and the bytes.
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
    for (int64_t start = 0; start + length <= shape[axis]; ++start) {
      if (as_text(slice_of(whole, axis, start, cut).span()) != as_text(part.data.span())) continue;
      out.push_back({slice_step(shape, static_cast<int64_t>(axis), start, start + length)});
      if (part.type.shape != cut) out.back().push_back(reshape_step(cut, part.type.shape));
    }
  }
  if (out.size() > 1) out.clear();  // which one is not to be seen
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

// A number and the parameter, or the parameter twice: F tells which, the bytes tell the number.
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

// What one function may have made of `from`; `to`: the value at the end of the chain, where this is
// its last function.
Ways pieces_forth(std::string_view stem, const OnnxTensor& from, const OnnxTensor* to,
                  const Chain& chain) {
  const Shape& shape = from.type.shape;
  switch (kind_of(stem)) {
    case Kind::kSame:
      return {Derivation()};
    case Kind::kPermute: {
      Ways ways = permutations(shape);
      ways.push_back({});
      return ways;
    }
    case Kind::kReshape:
      if (!to || to->type.shape == shape) return {Derivation()};
      if (num_elements(to->type.shape) != num_elements(shape)) return {};
      return {{reshape_step(shape, to->type.shape)}};
    case Kind::kRepeat:
      if (!to || to->type.shape == shape) return {Derivation()};
      if (!aligns(shape, to->type.shape)) return {};
      return {{expand_step(shape, to->type.shape)}};
    case Kind::kPart: {
      Ways ways = to ? parts(from, *to) : Ways();
      ways.push_back({});
      return ways;
    }
    case Kind::kSum:
      return sums(shape, stem);
    case Kind::kNumber:
      return to ? with_number(stem, from, *to, chain.literal) : Ways();
    default:
      break;
  }
  Derivation steps = functions(stem, shape);
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

std::optional<Derivation> forth_from(const OnnxTensor& parameter, const OnnxTensor& at,
                                     const Derivation& so_far, const OnnxTensor& folded,
                                     const Chain& chain, size_t f) {
  const bool last = f + 1 == chain.functions.size();
  for (const Derivation& piece :
       pieces_forth(chain.functions[f], at, last ? &folded : nullptr, chain)) {
    Derivation longer = so_far;
    longer.insert(longer.end(), piece.begin(), piece.end());
    if (last) {
      if (is_made(longer, parameter, folded)) return longer;
      continue;
    }
    const Result<OnnxTensor> next = value_of(piece, at);
    if (!next) continue;
    if (auto found = forth_from(parameter, *next, longer, folded, chain, f + 1)) return found;
  }
  return {};
}

// Which of the inner functions came first is not in the file.
std::vector<Chain> orders(const Chain& chain) {
  constexpr size_t kMost = 4;
  if (chain.functions.size() < 2 || chain.functions.size() > kMost) return {chain};
  std::vector<Chain> out;
  Chain next = chain;
  const auto inner_end = next.functions.end() - 1;
  std::sort(next.functions.begin(), inner_end);
  do out.push_back(next);
  while (std::next_permutation(next.functions.begin(), inner_end));
  return out;
}

}  // namespace

Result<Way> way_back(const OnnxTensor& folded, const Chain& chain) {
  std::optional<Result<Way>> found;
  for (const Chain& order : orders(chain)) {
    Result<Way> way = one_way_back(folded, order);
    if (!found || (way && !*found)) {
      found = std::move(way);
      continue;
    }
    if (!way) continue;
    const Result<OnnxTensor> a = parameter_of((*found)->derivation, folded);
    const Result<OnnxTensor> b = parameter_of(way->derivation, folded);
    if (!a || !b || a->type != b->type || as_text(a->data.span()) != as_text(b->data.span()))
      return fail("the order of {} is lost", join(chain.functions, ", "));
  }
  return *std::move(found);
}

std::optional<Derivation> way_forth(const OnnxTensor& parameter, const OnnxTensor& folded,
                                    const Chain& chain) {
  for (const Chain& order : orders(chain))
    if (auto found = forth_from(parameter, parameter, {}, folded, order, 0)) return found;
  return {};
}

}  // namespace piper::onnx_import
