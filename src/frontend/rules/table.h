// Which rule reads a node, and what to say of the nodes that none reads.
#pragma once

#include <map>
#include <set>

#include "rules.h"

namespace piper::onnx_import {

class RuleTable {
 public:
  RuleTable();
  // Null when there is none for the op in this opset.
  const ImportRule* find(const OnnxNode& node, int64_t opset) const;
  const std::vector<const ImportRule*>& rules() const { return rules_; }  // by name

 private:
  std::vector<const ImportRule*> rules_;
};

// Has no rule: an If is replaced by a branch where its condition is known, a Loop or Scan by its
// turns where their number is.
inline bool is_nested(const OnnxNode& node) {
  return node.domain.empty() && (node.op == "If" || node.op == "Loop" || node.op == "Scan");
}

// All that a model asks for in vain, said at once. What depends on a refused node is not looked at.
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
