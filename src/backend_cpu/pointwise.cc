// Single pointwise ops: chains of one step.
#include "chain.h"
#include "families.h"

namespace piper::cpu {
namespace {

// The op's one textual choice, see find_block.
Result<std::string> option_of(const Use& use) {
  if (use.op == "Cast") return use.text_or("to", "");
  if (use.op == "Gelu" || use.op == "GeluGrad") return use.text_or("approximate", "none");
  if (use.op == "Mod") {
    PIPER_ASSIGN(const int64_t fmod, use.integer_or("fmod", 0));
    return std::string(fmod ? "fmod" : "");
  }
  return std::string();
}

}  // namespace

Result<KernelPtr> make_pointwise(const Use& use) {
  const size_t count = block_operands(use.op);
  PIPER_TRY(use.operands(count, count));
  PIPER_ASSIGN(const std::string option, option_of(use));
  std::vector<DType> types;
  Step step;
  step.count = static_cast<int>(count);
  for (size_t i = 0; i < count; ++i) {
    types.push_back(use.inputs[i].dtype);
    step.operands[i] = {static_cast<int16_t>(i), -1};
  }
  PIPER_ASSIGN(const Block block, find_block(use.op, option, types));
  PIPER_WANT(block.type == use.outputs[0].dtype, "makes {}, not {}", info(block.type).name,
             info(use.outputs[0].dtype).name);
  step.run = block.run;
  step.type = block.type;
  step.output = 0;
  return chain_kernel(use, {step});
}

// The bits of Gelu, and those that GeluGrad multiplies dy with.
Result<KernelPtr> make_gelu_and_slope(const Use& use) {
  PIPER_TRY(use.operands(1, 1, 2));
  PIPER_TRY(use.same_types());
  PIPER_ASSIGN(const std::string option, use.text_or("approximate", "none"));
  PIPER_WANT(use.wanted[1] && use.out(0) == use.in(0) && use.out(1) == use.in(0), "of {} to {}",
             to_string(use.inputs[0]), to_string(use.outputs[0]));
  PIPER_WANT(option == "none" || option == "tanh", "approximate={}", option);
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

}  // namespace piper::cpu
