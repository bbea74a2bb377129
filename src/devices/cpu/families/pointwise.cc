// Single pointwise ops: chains of one step.
#include "chain.h"
#include "families.h"

namespace piper::cpu {
namespace {

// The op's one textual choice, see find_block.
std::string option_of(const Use& use) {
  if (use.op == "Cast") return use.attrs.text("to");
  if (use.op == "Gelu" || use.op == "GeluGrad") return use.attrs.text("approximate", "none");
  return use.op == "Mod" && use.attrs.integer("fmod") != 0 ? "fmod" : "";
}

Result<KernelPtr> make_pointwise(const Use& use) {
  const size_t count = block_operands(use.op);
  std::vector<DType> types;
  Step step;
  step.count = static_cast<int>(count);
  for (size_t i = 0; i < count; ++i) {
    types.push_back(use.inputs[i].dtype);
    step.operands[i] = {static_cast<int16_t>(i), -1};
  }
  PIPER_ASSIGN(const Block block, find_block(use.op, option_of(use), types));
  step.run = block.run;
  step.type = block.type;
  step.output = 0;
  return chain_kernel(use, {step});
}

// Returns the bits of Gelu, and those that GeluGrad multiplies dy with.
Result<KernelPtr> make_gelu_and_slope(const Use& use) {
  const std::string option = use.attrs.text("approximate", "none");
  constexpr int64_t kAtOnce = 1024;
  const int64_t count = num_elements(use.in(0)), bytes = info(use.type()).bytes;
  return for_floats(use, use.type(), [&](auto) -> Result<KernelPtr> {
    const SlopeFn run = find_gelu_and_slope(option, use.type());
    return make_units_kernel(InPlace::kYes, (count + kAtOnce - 1) / kAtOnce, kAtOnce / 3.0,
                             [=](Pointers p, std::byte*, int64_t begin, int64_t end) {
                               const int64_t first = begin * kAtOnce, at = first * bytes;
                               run(p[0] + at, p[1] + at, p[2] + at,
                                   std::min(end * kAtOnce, count) - first);
                             });
  });
}

}  // namespace

std::vector<KernelRow> pointwise_kernels() {
  // Those that compare, choose or convert elements.
  constexpr std::array kOfHalves = std::to_array<std::string_view>(
      {"Cast", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Where"});
  std::vector<KernelRow> rows = {{"GeluAndSlope", make_gelu_and_slope}};
  for (const std::string_view op : block_ops())
    rows.push_back({op, make_pointwise, std::ranges::find(kOfHalves, op) != kOfHalves.end()});
  return rows;
}

}  // namespace piper::cpu
