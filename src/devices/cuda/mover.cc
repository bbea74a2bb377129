// The kernel that moves strided runs of bytes, for fabrics.
#include "mover.h"

#include <algorithm>

#include "piper/devices/cuda_kernels.h"

namespace piper::cuda {
namespace {

static_assert(StridedMove::kMostLoops <= kStridedLoops);
constexpr int64_t kThreads = 256, kMostBlocks = 4096;

}  // namespace

Result<std::unique_ptr<Mover>> Mover::open(Device& device,
                                           const std::function<void(const std::string&)>& note) {
  PIPER_ASSIGN(const Opened<Nvrtc>* const nvrtc, opened<Nvrtc>());
  const CompileSource source{kMoverLabel, strided_source()};
  const Facts& facts = device.facts();
  PIPER_ASSIGN(const std::vector<std::string> codes,
               compile(*nvrtc, {&source, 1}, fmt::format("{}{}", facts.major, facts.minor),
                       cache_folder(), note));
  std::unique_ptr<Mover> mover(new Mover(device));
  device.enter();
  PIPER_CU(device.driver(), cuModuleLoadDataEx, &mover->module_, codes[0].data(), 0, nullptr,
           nullptr);
  for (int size = 0; size < kSizes; ++size)
    PIPER_CU(device.driver(), cuModuleGetFunction, &mover->functions_[size], mover->module_,
             fmt::format("move_{}", 16 >> size).c_str());
  return mover;
}

Mover::~Mover() {
  if (module_) device_.driver().cuModuleUnload(module_);
}

int Mover::run(const StridedMove& move, CuStream* stream) const {
  // The largest element of which everything is a multiple.
  uint64_t all = reinterpret_cast<uint64_t>(move.from) | reinterpret_cast<uint64_t>(move.to) |
                 static_cast<uint64_t>(move.run);
  int64_t count = 1;
  for (const Exchange::Loop& loop : move.loops) {
    all |= static_cast<uint64_t>(loop.from) | static_cast<uint64_t>(loop.to);
    count *= loop.count;
  }
  int size = 0;
  while (size + 1 < kSizes && all % (uint64_t{16} >> size) != 0) ++size;
  int64_t numbers[kStridedPointers] = {reinterpret_cast<int64_t>(move.from),
                                       reinterpret_cast<int64_t>(move.to), move.run / (16 >> size),
                                       std::ssize(move.loops)};
  for (size_t loop = 0; loop < move.loops.size(); ++loop) {
    numbers[4 + 3 * loop] = move.loops[loop].count;
    numbers[5 + 3 * loop] = move.loops[loop].from;
    numbers[6 + 3 * loop] = move.loops[loop].to;
  }
  count *= numbers[2];
  if (count == 0) return 0;
  const int64_t blocks = std::min((count + kThreads - 1) / kThreads, kMostBlocks);
  void* parameter = numbers;
  return device_.driver().cuLaunchKernel(functions_[size], static_cast<unsigned>(blocks), 1, 1,
                                         static_cast<unsigned>(kThreads), 1, 1, 0, stream,
                                         &parameter, nullptr);
}

}  // namespace piper::cuda
