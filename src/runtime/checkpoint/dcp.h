// Distributed checkpoints of PyTorch. Private to the checkpoint room.
#pragma once

#include "piper/base/data.h"

namespace piper {

inline constexpr const char* kDcpFile = ".metadata";

// Holds what a folder of another program has.
struct FoundTensors {
  std::vector<NamedTensor> tensors;  // by name; each is put together when its bytes are made
  std::vector<std::string> others;   // names of what is no tensor
  std::vector<std::string> foreign;  // "NAME (TYPE)": tensors of types that plans do not have
};
// Reads a folder that torch.distributed.checkpoint wrote, and compares the sums of all tensors.
// Error: a pickle that holds more than such checkpoints need, parts of tensors that lack, overlap,
// leave holes, or are not those that the metadata describe.
Result<FoundTensors> read_dcp(const std::string& folder);

}  // namespace piper
