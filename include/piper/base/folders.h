// Replaces a folder of files as a whole, and lists what else is in one.
#pragma once

#include <string>
#include <vector>

#include "piper/base/base.h"

namespace piper {

// Puts the folder `built` in the place of `folder`, which exists, in one step where the file system
// can exchange two names, and in two renames where it cannot. Returns where the old folder is then.
// Error (kStorage): a rename fails; `folder` is then as it was.
Result<std::string> replace_folder(const std::string& built, const std::string& folder);

// Returns in order the names of the files in the folder of `path` that end as `extension` says
// (".yaml"); none where there is no such folder.
std::vector<std::string> files_beside(const std::string& path, std::string_view extension);

}  // namespace piper
