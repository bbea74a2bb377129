// Files of tensors: safetensors and .npy, mapped and checked.
#pragma once

#include <map>

#include "piper/base/base.h"

namespace piper {

struct NamedTensor {
  std::string name;
  TensorType type;
  Bytes data;
};
// Begins the names of tensors of a plan set that belong to the module's state_dict, but that no
// step reads as a parameter or changes. They are saved as they are.
inline const std::string kUntouched = "untouched/";

// Header and offsets are checked (at most 100 MB of header, sorted, no overlap, inside the file);
// data stay mapped.
Result<std::vector<NamedTensor>> read_safetensors(const std::string& path);
// Returns the texts that the file's header says about it.
Result<std::map<std::string, std::string>> read_safetensors_metadata(const std::string& path);
// Returns how a file of these tensors begins: only their sizes count.
std::string safetensors_header(std::span<const NamedTensor> tensors,
                               std::span<const std::pair<std::string, std::string>> metadata);
// Writes the tensors in the given order, atomically; names are unique, and the bytes depend on the
// arguments only.
Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                         std::span<const std::pair<std::string, std::string>> metadata = {});
// Writes the same bytes to a new file, tensor by tensor, neither atomic nor flushed to the disk:
// for a folder that is renamed when it is whole. Deferred tensors are made one at a time. Gives the
// file's digest.
Result<std::string> write_safetensors_part(const std::string& path,
                                           std::span<const NamedTensor> tensors);

// Holds an array as a file has it. `tensor.type` is the type that plans have for its values; in the
// data each is `width` bytes, which is less for integers of 8, 16 or 32 bits.
struct StoredArray {
  NamedTensor tensor;
  int width = 0;  // bytes of an element
  bool is_signed = true;
};
// Reads an array of C order, little endian, of a type of base.h or of integers of 8 to 32 bits.
Result<StoredArray> read_npy(const std::string& path);
// Reads what read_safetensors does, and integers of 8 to 32 bits, too.
Result<std::vector<StoredArray>> read_safetensors_arrays(const std::string& path);

// Holds a list of integers as a file has it; widths of a plan's types are not all that files use.
struct IntegerList {
  int bytes = 8;  // of an integer
  bool is_signed = true;
  int64_t count = 0;
  Bytes data;
};
// Reads a .npy file, or a safetensors file of one tensor, whose array has one dim and integers of 8
// to 64 bits; an unsigned one of 64 bits is none. Nothing for other arrays.
Result<std::optional<IntegerList>> read_npy_list(const std::string& path);
Result<std::optional<IntegerList>> read_safetensors_list(const std::string& path);

}  // namespace piper
