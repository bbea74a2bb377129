// The YAML file that names several sources of tokens and says how they are mixed (formats/data.md).
#pragma once

#include "token_set.h"

namespace piper {

// Names of files in it are relative to its folder. Errors name the place in the file.
Result<TokenSpec> read_mix(const std::string& path);

}  // namespace piper
