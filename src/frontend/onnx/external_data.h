// The data files beside a model. Only this class opens them, by relative paths without links.
#pragma once

#include <set>

#include "piper/base/base.h"

namespace piper::onnx_import {

class ExternalData {
 public:
  // `may_be_absent`: zeros stand for floats whose file is not there.
  ExternalData(const std::string& model_path, bool may_be_absent);
  // Maps `length` bytes from `offset`, of a tensor of this type; below 0: all that follows.
  Result<Bytes> read(const std::string& location, int64_t offset, int64_t length,
                     const TensorType& type);
  int64_t absent_bytes() const { return absent_bytes_; }
  bool holds(const Bytes& window) const;     // false: the bytes are a copy
  bool is_absent(const Bytes& bytes) const;  // they are zeros, since their file is not there

 private:
  Result<Bytes> open(const std::string& location);
  bool is_absent(const std::string& location) const;
  Result<Bytes> zeros(const std::string& location, const TensorType& type);

  std::string directory_;
  const bool may_be_absent_;
  int64_t absent_bytes_ = 0;
  std::vector<std::pair<std::string, Bytes>> open_files_;
  std::set<const void*> zeros_;
};

}  // namespace piper::onnx_import
