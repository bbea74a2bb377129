// Transpose{perm}: output dim d is input dim perm[d].
#include "rules.h"

namespace piper {
namespace {

Result<std::vector<int64_t>> perm_of(const OpTypes& use) {
  const size_t rank = use.inputs[0].shape.size();
  PIPER_ASSIGN(std::vector<int64_t> perm, check_list(use.attrs, "perm", rank));
  std::vector<bool> seen(rank);
  for (int64_t d : perm) {
    if (d < 0 || d >= static_cast<int64_t>(rank) || seen[static_cast<size_t>(d)]) {
      return fail("perm {} does not name each of the {} dims once", to_string(perm), rank);
    }
    seen[static_cast<size_t>(d)] = true;
  }
  return perm;
}

TypesResult transpose_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_ASSIGN(const std::vector<int64_t> perm, perm_of(use));
  Shape shape;
  for (int64_t d : perm) shape.push_back(use.inputs[0].shape[static_cast<size_t>(d)]);
  return std::vector<TensorType>{{use.inputs[0].dtype, std::move(shape)}};
}

Grads transpose_gradient(Builder& build, const GradientArgs& args) {
  const std::vector<int64_t> perm = args.attrs.integers("perm");
  std::vector<int64_t> inverse(perm.size());
  for (size_t d = 0; d < perm.size(); ++d) {
    inverse[static_cast<size_t>(perm[d])] = static_cast<int64_t>(d);
  }
  return {build.transpose(args.output_grads[0], std::move(inverse))};
}

LoopRule transpose_rule(const OpTypes& use) {
  LoopBuilder build;
  const Dims dims = build.letters(use.inputs[0].shape);
  build.rule.inputs = {dims};
  build.rule.outputs.emplace_back();
  for (int64_t d : use.attrs.integers("perm")) {
    build.rule.outputs[0].push_back(dims[static_cast<size_t>(d)]);
  }
  build.rule.linear = {{0}};
  return build.rule;
}

// Returns where the extents above 1 stay in their order. `blocks` is how kernels read a tile of
// several.
std::optional<int64_t> transpose_first_byte(const TensorType& from, const TensorType& to,
                                            const Attrs& attrs) {
  int64_t last = -1;
  for (const int64_t d : attrs.integers("perm")) {
    if (d < 0 || d >= static_cast<int64_t>(from.shape.size())) return std::nullopt;
    if (from.shape[static_cast<size_t>(d)] == 1) continue;
    if (d < last) return std::nullopt;
    last = d;
  }
  return attrs.find("blocks") ? std::nullopt : same_bytes(from, to, attrs);
}

}  // namespace

std::vector<OpDef> transpose_ops() {
  OpDef def{.name = "Transpose",
            .types = transpose_types,
            .gradient = transpose_gradient,
            .loops = transpose_rule};
  def.cost = moves;
  def.elements = OpDef::Elements::kPermuted;
  def.first_byte = transpose_first_byte;
  def.samples = {
      {.inputs = {f64({4, 2, 1})}, .attrs = {{"perm", std::vector<int64_t>{2, 0, 1}}}},
      {.inputs = {f64({4, 2})}, .attrs = {{"perm", std::vector<int64_t>{1, 0}}}},
      {.inputs = {f64({2, 3, 4, 5})}, .attrs = {{"perm", std::vector<int64_t>{2, 0, 3, 1}}}}};
  def.attributes = {{"perm", kIntegers}, {"blocks"}};
  return {def};
}

}  // namespace piper
