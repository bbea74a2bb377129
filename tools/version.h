// What the programs say of themselves. Made when they are linked, so that a commit compiles one
// small source again (tools/version.cmake).
#pragma once

namespace piper {

const char* version();  // "0.1.0 (commit 0123456789ab)"; the commit is unknown outside git

}  // namespace piper
