// The nodes of a model that cannot be imported, as one error.
#pragma once

#include <map>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {

// Collects refused nodes. Nodes that depend on a refused one are not looked at.
class Refusals {
 public:
  void no_rule(const OnnxNode& node, const std::string& scope);
  void refused(const OnnxNode& node, const std::string& scope, Error error);
  bool any() const { return !groups_.empty(); }
  Error error(const OnnxModel& model) const;

 private:
  struct Group {
    size_t count = 0;
    std::vector<std::string> first;  // places
    Error error;                     // of the first, where a rule refused
  };
  void add(const std::string& what, const OnnxNode& node, const std::string& scope, Error error);
  std::map<std::string, Group> groups_;  // by operator, or operator and reason
  size_t missing_ = 0, refused_ = 0;     // groups of each kind
};

}  // namespace piper::onnx_import
