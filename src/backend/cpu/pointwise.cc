// Single pointwise ops: a block function inside a loop over broadcast operands.
#include "blocks.h"
#include "dtypes.h"
#include "families.h"
#include "loop.h"

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
  std::vector<std::vector<int64_t>> strides{strides_of(use.out())};
  std::array<int64_t, kMaxBlockOperands> bytes{};
  for (size_t i = 0; i < count; ++i) {
    types.push_back(use.inputs[i].dtype);
    bytes[i] = info(types[i]).bytes;
    PIPER_ASSIGN(std::vector<int64_t> own, broadcast_strides(use.in(i), use.out()));
    strides.push_back(std::move(own));
  }
  PIPER_ASSIGN(const Block block, find_block(use.op, option, types));
  PIPER_WANT(block.type == use.outputs[0].dtype, "makes {}, not {}", info(block.type).name,
             info(use.outputs[0].dtype).name);
  const Loop loop = make_loop(use.out(), strides);
  std::array<bool, kMaxBlockOperands> step{};
  for (size_t i = 0; i < count; ++i) step[i] = loop.inner_steps[i + 1] != 0;
  const int64_t out_bytes = info(block.type).bytes;
  return make_kernel(InPlace::kYes, [=, run = block.run](Pointers p, std::byte*) {
    loop.each_row([&](const int64_t* at) {
      const std::byte* in[kMaxBlockOperands];
      for (size_t i = 0; i < count; ++i) in[i] = p[i] + at[i + 1] * bytes[i];
      run(in, step.data(), p[count] + at[0] * out_bytes, loop.inner);
    });
  });
}

}  // namespace piper::cpu
