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

}  // namespace piper::cpu
