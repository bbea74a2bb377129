// Says before work of minutes or days which of its files would replace what it reads.
#pragma once

#include "piper/base/base.h"

namespace piper {

// Is a file that is to be written, with the flag that names it: "--save", "trained.safetensors".
struct OutputFile {
  std::string flag, path;  // an empty path is no file
};
// Checks that each can be written (check_output), is none of `inputs`, files that are read, and is
// not written twice. Paths that lead to one file are one, and devices may have all. Errors: as
// check_output; kUsage for a file with two uses.
Status check_outputs(std::span<const OutputFile> outputs, std::span<const std::string> inputs);

// Returns the regular files directly in a folder; none where there is no such folder.
std::vector<std::string> files_in(const std::string& folder);

}  // namespace piper
