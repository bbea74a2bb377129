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
// Checks the second of these alone: that no output is among `inputs`.
Status check_not_read(std::span<const OutputFile> outputs, std::span<const std::string> inputs);

}  // namespace piper
