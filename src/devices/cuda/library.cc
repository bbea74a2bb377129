// Finds a shared library: in folders that variables name, of the system, of Python's packages.
#include "library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

namespace piper::cuda {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Returns what is in a folder, in the order of names; nothing where it cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code ignored;
  for (fs::directory_iterator it(folder, ignored), end; it != end; it.increment(ignored))
    entries.push_back(it->path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

void add(const fs::path& folder, std::vector<std::string>& to) {
  std::error_code ignored;
  const std::string name = folder.string();
  if (fs::is_directory(folder, ignored) && std::find(to.begin(), to.end(), name) == to.end())
    to.push_back(name);
}

// Wheels are in …/python3.X/{site,dist}-packages/nvidia/LIBRARY/lib.
void add_wheels(const fs::path& prefix, std::vector<std::string>& to) {
  for (const fs::path& python : entries_of(prefix)) {
    if (!python.filename().string().starts_with("python3")) continue;
    for (const char* packages : {"site-packages", "dist-packages"})
      for (const fs::path& wheel : entries_of(python / packages / "nvidia")) add(wheel / "lib", to);
  }
}

// Adds the wheels of the python3 that the shell would start: of an environment that is on PATH,
// whether it is activated or not, and of the installation that its links lead to.
void add_wheels_of_python(std::vector<std::string>& to) {
  for (const std::string& folder : split_text(variable("PATH"), ':')) {
    const fs::path python = fs::path(folder) / "python3";
    if (folder.empty() || access(python.c_str(), X_OK) != 0) continue;
    std::error_code ignored;
    add_wheels(python.parent_path().parent_path() / "lib", to);
    const fs::path real = fs::canonical(python, ignored);
    if (!real.empty()) add_wheels(real.parent_path().parent_path() / "lib", to);
    return;
  }
}

std::string file_of(void* handle) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map->l_name ? map->l_name : "";
}

}  // namespace

Folders library_folders() {
  Folders folders;
  std::string own = variable("PIPER_CUDA_PATH");
  for (size_t begin = 0; begin < own.size();) {
    const size_t end = std::min(own.find(':', begin), own.size());
    if (end > begin) add(own.substr(begin, end - begin), folders.first);
    begin = end + 1;
  }
  if (const std::string home = variable("VIRTUAL_ENV"); !home.empty())
    add_wheels(fs::path(home) / "lib", folders.first);
  add_wheels_of_python(folders.first);
  if (const std::string home = variable("HOME"); !home.empty())
    add_wheels(fs::path(home) / ".local/lib", folders.first);
  for (const char* prefix : {"/usr/local/lib", "/usr/lib"}) add_wheels(prefix, folders.first);
  if (const std::string home = variable("CONDA_PREFIX"); !home.empty()) {
    add_wheels(fs::path(home) / "lib", folders.first);
    add(fs::path(home) / "lib", folders.first);
  }
  if (const std::string home = variable("CUDA_HOME"); !home.empty())
    add(fs::path(home) / "lib64", folders.last);
  add("/usr/local/cuda/lib64", folders.last);
  return folders;
}

Result<Library> open_library(std::span<const char* const> names, const Folders& folders) {
  std::string problem;
  const auto opened = [&](const std::string& path) -> void* {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    // A file that is there and does not load says more than that others are not there.
    const char* text = handle ? nullptr : dlerror();
    if (text && (problem.empty() || path.find('/') != std::string::npos)) problem = text;
    return handle;
  };
  const auto in_folders = [&](const std::vector<std::string>& all) -> void* {
    for (const std::string& folder : all)
      for (const char* name : names) {
        const fs::path path = fs::path(folder) / name;
        std::error_code ignored;
        if (!fs::exists(path, ignored)) continue;
        if (void* handle = opened(path.string())) return handle;
      }
    return nullptr;
  };
  void* handle = in_folders(folders.first);
  for (const char* name : names)
    if (!handle) handle = opened(name);
  if (!handle) handle = in_folders(folders.last);
  if (!handle) return fail("{}", problem);
  return Library{handle, file_of(handle)};
}

void load_beside(const Library& library, std::string_view prefix) {
  for (const fs::path& file : entries_of(fs::path(library.path).parent_path()))
    if (file.filename().string().starts_with(prefix)) dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
}

Result<void*> function_in(const Library& library, const char* name) {
  void* function = dlsym(library.handle, name);
  if (!function) return fail("{} has no function {}", library.path, name);
  return function;
}

}  // namespace piper::cuda
