// Between the sources that find parameters by names, scopes and contents.
#pragma once

#include <map>
#include <set>

#include "claims.h"
#include "modules.h"

namespace piper::onnx_import {

struct Place {
  size_t node, input;
};

// Says what reads what, and which nodes are in which scope.
struct Readers {
  Readers(const OnnxModel& model, const std::vector<std::string>& scopes);
  // Returns the only reader of a node's first result, if it is of this op.
  std::optional<Place> only(size_t node, std::string_view op) const;
  bool is_leaf(const std::string& scope) const;  // that it holds no other
  // Returns whether the scope is a leaf and all its nodes are of these ops, one of the first in
  // each call.
  bool is_leaf_of(const std::string& scope, std::initializer_list<std::string_view> ops) const;
  // Returns in how many steps, at most, an anonymous tensor was computed from a parameter.
  int64_t most_steps(std::string_view name) const;

  const OnnxModel& model;
  const std::vector<std::string>& scopes;
  std::map<std::string_view, std::vector<Place>> of;       // by value
  std::map<std::string_view, std::vector<size_t>> within;  // by scope
  std::set<std::string_view> anonymous;                    // tensors of floats
};

// Which parameter an anonymous tensor is, by the node that reads it.
inline constexpr const char* kByBias = "the name of its bias";
struct Role {
  std::string name;      // the framework's
  std::string evidence;  // kByBias, "scope", "norm"
  enum class Form { kTransposed, kFlat, kNorm } form = Form::kTransposed;
  // Of a norm's weight: in how many steps it was computed, at most, and what was added to it if in
  // one; 0: it was converted; none: nobody can tell.
  int64_t steps = 1;
  std::optional<double> plus = {};
};
std::optional<Role> role_of(const Readers& readers, const ModulePaths& modules,
                            const OnnxTensor& tensor, const Place& place);

// Returns whether the tensor has three different numbers, so that it is neither a repeated number
// nor an identity matrix.
bool is_telling(const OnnxTensor& tensor);
bool is_transpose(const OnnxTensor& a, const OnnxTensor& b);
bool is_mask(const OnnxTensor& tensor);

// Finds the parameters of which anonymous tensors may have been computed: those that kept their
// names, and those of a state_dict that are not in the file.
class Sources {
 public:
  Sources(const OnnxModel& model, const PriorKnowledge& prior);
  struct Found {
    const OnnxTensor* parameter;
    Derivation derivation;
  };
  // Returns of which parameters `value`, read in `module`, may have been computed, as the bytes
  // show: those of the module, else others where the numbers tell them apart. `lost` selects those
  // of the state_dict.
  std::vector<Found> of(const OnnxTensor& value, const std::string& module, bool lost) const;
  // Returns one of the state_dict that is in `module`, not seen, and of one number, as where
  // nothing is added or multiplied yet; "" if there is none.
  std::string unseen(const std::string& module, const std::set<std::string>& seen) const;

 private:
  std::vector<OnnxTensor> kept_, lost_;
};

// The older exporter merges equal tensors: one is left, and the others' names are what an Identity
// of it makes. Gives each its own again and removes those nodes. By name, of which it is a copy.
std::map<std::string, std::string> separate_copies(OnnxModel& model,
                                                   std::vector<std::string>& scopes);

}  // namespace piper::onnx_import
