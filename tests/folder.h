// A folder of files for one test, which goes with it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "piper/base/base.h"

namespace piper {

class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "piper-XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  // The file's path.
  std::string write(const std::string& name, std::string_view text) const {
    const std::string file = path_ + "/" + name;
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  // An error as a user in this folder would see it.
  std::string print(const Error& error) const {
    std::string text = print_error(error);
    const std::string here = path_ + "/";
    for (size_t at = text.find(here); at != std::string::npos; at = text.find(here))
      text.erase(at, here.size());
    return text;
  }

 private:
  std::string path_;
};

}  // namespace piper
