// Tensors that torch.save wrote. Private to the checkpoint room.
#pragma once

#include "piper/base/base.h"

namespace piper {

// Describes a tensor as a file has it, with elements by strides.
struct TorchTensor {
  std::string dtype;  // as PyTorch calls it: "float32"
  Shape sizes, strides;
  Bytes elements;  // from the first element on
};
// Reads the one tensor of an archive that fills `window`, which begins at byte `at` of the file
// `path`. Nothing is believed: sizes and offsets lie inside, sums of the bytes are compared.
Result<TorchTensor> read_torch_tensor(const Bytes& window, const std::string& path, uint64_t at);

// Returns our type of a type of PyTorch, or nothing.
std::optional<DType> dtype_of_torch(std::string_view name);

}  // namespace piper
