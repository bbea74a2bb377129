// Says before work of minutes or days which of its files would replace what it reads.
#pragma once

#include "piper/base/base.h"

namespace piper {

// Names a file that is to be written, and the flag for it: "--save", "trained.safetensors".
struct OutputFile {
  std::string flag, path;  // an empty path is no file
};
// Checks that each output can be written (check_output), is none of `inputs`, which are read, and
// is not written twice. Links to a file are that file; a device, as /dev/null, may have many uses.
// Errors: as check_output; kUsage for a file with two uses.
Status check_outputs(std::span<const OutputFile> outputs, std::span<const std::string> inputs);

// Returns the regular files directly in a folder; none where there is no such folder.
std::vector<std::string> files_in(const std::string& folder);

}  // namespace piper
