// What tools are told of: the names of steps and instructions on their time lines.
#include "executor_state.h"

namespace piper {
namespace {

constexpr std::pair<TaskPass, uint32_t> kColours[] = {
    {TaskPass::kF, 0x2e7d32},  {TaskPass::kB, 0x1565c0}, {TaskPass::kBI, 0x00838f},
    {TaskPass::kBW, 0xf9a825}, {TaskPass::kR, 0xad1457}, {TaskPass::kU, 0x6a1b9a}};

// Returns the colour of a pass on a time line; what is of no pass is grey.
uint32_t colour_of(TaskPass pass) {
  const auto found = std::ranges::find(kColours, pass, &std::pair<TaskPass, uint32_t>::first);
  return found == std::end(kColours) ? 0x757575 : found->second;
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
