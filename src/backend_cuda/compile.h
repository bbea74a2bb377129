// Sources of kernels -> code for a device, by NVRTC, and a folder that keeps it.
#pragma once

#include <functional>

#include "libraries.h"

namespace piper::cuda {

// Where code is kept between runs: piper in $XDG_CACHE_HOME, or in ~/.cache; empty: nowhere.
std::string cache_folder();

struct CompileSource {
  std::string label;  // for errors
  std::string text;
};
// The least compute capability whose tensor cores multiply bf16, as kernels here do.
inline constexpr int kLeastMajor = 8;
// By source, for devices of this compute capability ("90", "90a"): their own code, or, where NVRTC
// does not know them, PTX of the newest that it knows and that is older, which the driver finishes.
// Fails for devices older than 8.0. What is not in the folder is
// compiled, on all cores, and put there; what is damaged there is made again, and what cannot be
// written is not kept. `note` is told when compiling begins. Errors: NVRTC's log.
Result<std::vector<std::string>> compile(const Opened<Nvrtc>& nvrtc,
                                         std::span<const CompileSource> sources,
                                         const std::string& capability, const std::string& folder,
                                         const std::function<void(const std::string&)>& note);

}  // namespace piper::cuda
