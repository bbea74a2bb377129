// What tools are told of: the names of steps and instructions on their time lines.
#include "executor_state.h"

namespace piper {
namespace {

// Returns the colour of a pass on a time line.
uint32_t colour_of(TaskPass pass) {
  switch (pass) {
    case TaskPass::kF:
      return 0x2e7d32;
    case TaskPass::kB:
      return 0x1565c0;
    case TaskPass::kBI:
      return 0x00838f;
    case TaskPass::kBW:
      return 0xf9a825;
    case TaskPass::kR:
      return 0xad1457;
    case TaskPass::kU:
      return 0x6a1b9a;
    case TaskPass::kPrepare:
    case TaskPass::kMove:
    case TaskPass::kNone:
      break;
  }
  return 0x757575;
}

}  // namespace

NvtxRange range_for(const Nvtx& tool, const Instruction& one) {
  return tool.range(one.label.empty() ? to_string(one.kind) : one.label,
                    static_cast<uint32_t>(one.kind) + 1, to_string(one.kind), colour_of(one.pass));
}

void find_tool(Executor::State& state) {
  const auto tool = Nvtx::tool();
  if (!tool || !*tool) return;
  state.tool = *tool;
  state.step_range =
      state.tool->range("step", kNumInstructionKinds + 1, "step", colour_of(TaskPass::kNone));
}

}  // namespace piper
