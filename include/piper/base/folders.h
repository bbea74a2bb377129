// Folders of files that are replaced as a whole.
#pragma once

#include <string>

#include "piper/base/base.h"

namespace piper {

// Puts the folder `built` in the place of `folder`, which exists, in one step where the file system
// can exchange two names, and in two renames where it cannot. Returns where the old folder is then.
// Error (kStorage): a rename fails; `folder` is then as it was.
Result<std::string> replace_folder(const std::string& built, const std::string& folder);

}  // namespace piper
