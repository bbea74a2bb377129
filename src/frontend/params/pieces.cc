// Derivations by name: which of PyTorch's functions a tensor's name says were applied.
#include "pieces.h"

#include <algorithm>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

struct Family {
  PieceKind kind;
  std::vector<std::string_view> stems;
};
// Returns PyTorch's function of one value as ops of ONNX, one after another; nothing where it is
// not known.
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

}  // namespace

PieceKind kind_of(std::string_view stem) {
  static const std::vector<Family> kFamilies = {
      {PieceKind::kSame,
       {"alias", "clone", "contiguous", "detach", "to", "_to_copy", "type_as", "lift_fresh_copy"}},
      {PieceKind::kPermute,
       {"permute", "transpose", "t", "numpy_t", "mt", "swapaxes", "swapdims", "movedim"}},
      {PieceKind::kReshape,
       {"view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze"}},
      {PieceKind::kRepeat, {"expand", "expand_as", "broadcast_to", "repeat"}},
      {PieceKind::kPart, {"slice", "select", "narrow"}},
      {PieceKind::kLookup, {"embedding"}},
      {PieceKind::kIndex, {"index", "index_select", "gather", "take"}},
      {PieceKind::kSum, {"sum", "mean"}},
      {PieceKind::kNumber, {"add", "sub", "rsub", "mul", "div", "pow", "square"}},
  };
  for (const Family& family : kFamilies)
    if (std::count(family.stems.begin(), family.stems.end(), stem)) return family.kind;
  return PieceKind::kUnknown;
}

Derivation function_steps(std::string_view stem, const Shape& shape) {
  Derivation out;
  for (const std::string& op : ops_of(stem)) out.push_back(function_step(op, shape));
  return out;
}

std::string_view stem_of(std::string_view call) {
  const size_t end = call.find_last_not_of("0123456789");
  if (end == std::string_view::npos || end + 1 == call.size() || call[end] != '_') return call;
  return call.substr(0, end);
}

bool is_function(std::string_view stem) { return !ops_of(stem).empty(); }
bool is_part(std::string_view stem) { return kind_of(stem) == PieceKind::kPart; }
bool is_lookup(std::string_view stem) {
  return kind_of(stem) == PieceKind::kLookup || kind_of(stem) == PieceKind::kIndex;
}

bool looks_up(const Chain& chain) {
  return std::any_of(chain.functions.begin(), chain.functions.end(), is_lookup);
}

std::vector<Chain> orders(const Chain& chain) {
  if (chain.functions.size() < 2 || chain.functions.size() > kMostOrdered) return {chain};
  std::vector<Chain> out;
  Chain next = chain;
  const auto inner_end = next.functions.end() - 1;
  std::sort(next.functions.begin(), inner_end);
  do out.push_back(next);
  while (std::next_permutation(next.functions.begin(), inner_end));
  return out;
}

Bytes slice_of(const OnnxTensor& whole, size_t axis, int64_t start, const Shape& part) {
  const std::vector<int64_t> steps(part.size(), 1);
  std::vector<int64_t> starts(part.size(), 0);
  starts[axis] = start;
  return slice_bytes(whole.data, whole.type.shape, starts, steps, part, whole.type.dtype);
}

}  // namespace piper::onnx_import
