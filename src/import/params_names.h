// Between the sources that find parameters by names, scopes and contents.
#pragma once

#include <map>

#include "modules.h"
#include "params.h"

namespace piper::onnx_import {

struct Place {
  size_t node, input;
};

// What reads what, and which nodes stand in which scope.
struct Readers {
  Readers(const OnnxModel& model, const std::vector<std::string>& scopes);
  // The only reader of a node's first result, if it is of this op.
  std::optional<Place> only(size_t node, std::string_view op) const;
  bool is_leaf(const std::string& scope) const;  // that it holds no other
  // That all nodes of the scope are of these ops, one of the first in each call; and it is a leaf.
  bool is_leaf_of(const std::string& scope, std::initializer_list<std::string_view> ops) const;

  const OnnxModel& model;
  const std::vector<std::string>& scopes;
  std::map<std::string_view, std::vector<Place>> of;       // by value
  std::map<std::string_view, std::vector<size_t>> within;  // by scope
};

// Which parameter an anonymous tensor is, by the node that reads it.
struct Role {
  std::string name;      // the framework's
  std::string evidence;  // "the name of its bias", "scope"
  enum class Form { kTransposed, kFlat } form = Form::kTransposed;
};
std::optional<Role> role_of(const Readers& readers, const ModulePaths& modules,
                            const OnnxTensor& tensor, const Place& place);

// The older exporter merges equal tensors: one is left, and the others' names are what an Identity
// of it makes. Gives each its own again and removes those nodes. By name, of which it is a copy.
std::map<std::string, std::string> separate_copies(OnnxModel& model,
                                                   std::vector<std::string>& scopes);

}  // namespace piper::onnx_import
