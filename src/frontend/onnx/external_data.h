// The data files beside a model. Only this class opens them, by relative paths without links.
#pragma once

#include "piper/base/base.h"

namespace piper::onnx_import {

class ExternalData {
 public:
  explicit ExternalData(const std::string& model_path);
  // Maps `length` bytes from `offset`; below 0: all that follows.
  Result<Bytes> read(const std::string& location, int64_t offset, int64_t length);
  bool holds(const Bytes& window) const;  // false: the bytes are a copy

 private:
  Result<Bytes> open(const std::string& location);
  std::string directory_;
  std::vector<std::pair<std::string, Bytes>> open_files_;
};

}  // namespace piper::onnx_import
