// Reads safetensors files of other programs, whose tensors may be of types that plans do not have.
#pragma once

#include "piper/base/data.h"

namespace piper {

// Holds the tensors of a file whose types plans have, and the names and types of the others.
struct KnownTensors {
  std::vector<NamedTensor> tensors;
  std::vector<std::pair<std::string, std::string>> foreign;
};
// Reads what read_safetensors does, which fails at a tensor of another type.
Result<KnownTensors> read_known_safetensors(const std::string& path);

}  // namespace piper
