// Sources of kernels -> code for a device, by NVRTC, and a folder that keeps it.
#pragma once

#include <functional>

#include "libraries.h"

namespace piper::cuda {

// Returns where code is kept between runs: piper in $XDG_CACHE_HOME, or in ~/.cache; empty:
// nowhere.
std::string cache_folder();

// Returns the compute capabilities that this NVRTC compiles for: 90, 100.
Result<std::vector<int>> known_architectures(const Nvrtc& nvrtc);

struct CompileSource {
  std::string label;  // for errors
  std::string text;
};
// Counts the sources of one call; equal ones count once.
struct CompileReport {
  size_t programs = 0;
  size_t found = 0;      // of these, the folder had so many before
  size_t unwritten = 0;  // and so many could not be written there
  int64_t bytes = 0;     // of code
};
// The least compute capability whose tensor cores multiply bf16, as kernels here do.
inline constexpr int kLeastMajor = 8;
// Returns, by source, code for devices of this compute capability ("90", "90a"). If NVRTC does not
// know it, that is PTX of the newest older one that it knows, which the driver finishes. Fails for
// devices older than 8.0. What is not in the folder is
// compiled, on all cores, and put there; what is damaged there is made again, and what cannot be
// written is not kept. `note` is told when compiling begins, and every ten seconds how far it is.
// Errors: NVRTC's log.
Result<std::vector<std::string>> compile(const Opened<Nvrtc>& nvrtc,
                                         std::span<const CompileSource> sources,
                                         const std::string& capability, const std::string& folder,
                                         const std::function<void(const std::string&)>& note,
                                         CompileReport* report = nullptr);

}  // namespace piper::cuda
