// Pad{before, after, value}: so many elements more at both ends of each dim; negative numbers cut
// off.
#include <numeric>

#include "rules.h"

namespace piper {
namespace {

TypesResult pad_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  TensorType result = use.inputs[0];
  PIPER_ASSIGN(const std::vector<int64_t> before,
               check_list(use.attrs, "before", result.shape.size()));
  PIPER_ASSIGN(const std::vector<int64_t> after,
               check_list(use.attrs, "after", result.shape.size()));
  for (size_t d = 0; d < before.size(); ++d) {
    const int64_t most = int64_t{1} << 40;
    const bool small = before[d] > -most && before[d] < most && after[d] > -most && after[d] < most;
    if (small) result.shape[d] += before[d] + after[d];
    if (!small || result.shape[d] < 0) {
      return fail("padding {} before and {} after does not fit dim {} of {}", before[d], after[d],
                  d, operands(use));
    }
  }
  return std::vector<TensorType>{std::move(result)};
}

Grads pad_gradient(Builder& build, const GradientArgs& args) {
  std::vector<int64_t> before = args.attrs.integers("before"), after = args.attrs.integers("after");
  for (int64_t& n : before) n = -n;
  for (int64_t& n : after) n = -n;
  return {build.op1("Pad", {args.output_grads[0]},
                    {{"before", before}, {"after", after}, {"value", 0.0}})};
}

LoopRule pad_rule(const OpTypes& use) {
  LoopBuilder build;
  const Shape& shape = use.inputs[0].shape;
  const std::vector<int64_t> before = use.attrs.integers("before"),
                             after = use.attrs.integers("after");
  Dims dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    // Whole blocks at both ends: the gradient of a slice that takes whole blocks.
    const int64_t unit = std::gcd(std::gcd(before[d], after[d]), shape[d]);
    const bool plain = before[d] == 0 && after[d] == 0;
    dims.push_back(plain ? Dim{build.letter(shape[d])} : block_letters(build, shape[d], unit));
  }
  build.rule.inputs = {dims};
  build.rule.outputs = {dims};
  if (use.attrs.real("value") == 0) build.rule.linear = {{0}};
  return build.rule;
}

Attrs pad_localise(const OpTypes& use, const std::vector<Shape>& local_outputs) {
  Attrs attrs = use.attrs;
  for (const char* name : {"before", "after"}) {
    std::vector<int64_t> sizes = attrs.integers(name);
    for (size_t d = 0; d < sizes.size(); ++d) {
      const int64_t whole = use.outputs[0].shape[d], local = local_outputs[0][d];
      if (local != whole && whole > 0) sizes[d] = sizes[d] * local / whole;
    }
    attrs.set(name, sizes);
  }
  return attrs;
}

OpSample pad_sample(Shape shape, std::vector<int64_t> before, std::vector<int64_t> after,
                    double value) {
  return {.inputs = {f64(std::move(shape))},
          .attrs = {{"before", before}, {"after", after}, {"value", value}}};
}

}  // namespace

std::vector<OpDef> pad_ops() {
  OpDef def{.name = "Pad", .types = pad_types, .gradient = pad_gradient, .loops = pad_rule};
  def.cost = moves;
  def.localise = pad_localise;
  def.nonzero = {0};  // of another value
  def.samples = {pad_sample({4, 3}, {0, 1}, {0, 2}, 0),
                 pad_sample({2, 3, 4}, {1, 0, 0}, {0, 0, 2}, 1.5),
                 pad_sample({4, 5}, {0, -1}, {0, -2}, 0), pad_sample({4, 3}, {4, 0}, {8, 3}, 0),
                 pad_sample({12, 3}, {-4, 0}, {-4, 0}, 0)};
  def.attributes = {{"before", kIntegers}, {"after", kIntegers}, {"value", kReal}};
  return {def};
}

}  // namespace piper
