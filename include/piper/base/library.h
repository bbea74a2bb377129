// The library of files that come with Piper: which file `include: <numerics/bf16>` or
// `--cluster <h100x8>` names.
#pragma once

#include "piper/base/base.h"

namespace piper {

// A part of the library: strategies fill all of it but the folders of the other parts.
enum class LibraryPart : uint8_t { kStrategies, kClusters, kSpaces };

// Returns whether this is a name of the library; all other texts are paths of files.
inline bool is_library_name(std::string_view text) { return text.starts_with('<'); }

// Returns the path of the file that `name` ("<numerics/bf16>") stands for: in the first of these
// folders that has it: `folders`, those of PIPER_STRATEGIES, and share/piper/strategies beside the
// folder of this program. Clusters are in `clusters` of each, spaces of a search in `spaces`.
// Errors, at `from`: what is no name, and a name that no folder has, with the nearest ones.
Result<std::string> find_in_library(std::string_view name, const std::vector<std::string>& folders,
                                    const SourceSpan& from,
                                    LibraryPart part = LibraryPart::kStrategies);
// Adds to the error of a path that leads to no file which names of the library are near it:
// "h100x8" is "<h100x8>".
Error with_library_names(Error error, const std::string& path,
                         const std::vector<std::string>& folders,
                         LibraryPart part = LibraryPart::kStrategies);

}  // namespace piper
