// Shared libraries that are looked for by name, and the functions in them.
#pragma once

#include <memory>

#include "piper/base/base.h"

namespace piper::cuda {

// Stays loaded: libraries of this kind leave threads and handlers running.
struct Library {
  void* handle = nullptr;
  std::string path;
};

// Lists folders that are searched before the system's loader, and after it, without missing ones.
struct Folders {
  std::vector<std::string> first, last;
};
Folders library_folders();

// Returns the first of `names` that loads, folder by folder. The error is the loader's own for a
// file that is there, and says that there is none otherwise.
Result<Library> open_library(std::span<const char* const> names, const Folders& folders);
// Loads every file of the library's folder whose name begins with `prefix`, so that the library
// finds it when it asks the loader for the bare name. Files that do not load are left: the library
// itself says what it misses.
void load_beside(const Library& library, std::string_view prefix);
Result<void*> function_in(const Library& library, const char* name);

}  // namespace piper::cuda
