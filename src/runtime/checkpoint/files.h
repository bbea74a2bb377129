// How files of tensors are written for other programs: beside the target, read back, then renamed.
// Private to the checkpoint room.
#pragma once

#include "piper/base/data.h"

namespace piper {

// What a folder of Hugging Face has: the index of its shards, or one file without an index.
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kOnlyFile = "model.safetensors";

// Flushes an open file to its disk, and lets the system forget the pages that it keeps of it: what
// is read next comes from there, where the file system keeps no other copy. Returns 0, or errno.
int flush_and_forget(int file);
// Refuses a file that is there, unless it is to be replaced.
Status check_new(const std::string& file, bool replace);
// Writes by `write`, which returns the digest of what it wrote to the path it is given, reads that
// back and compares it with these names and types. A reader finds the file that was there, or the
// whole of the new one.
Status write_checked(const std::string& file, std::span<const NamedTensor> expected,
                     const std::function<Result<std::string>(const std::string&)>& write);

}  // namespace piper
