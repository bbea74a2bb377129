// Which module of the framework a scope stands for, in files that say no more than node names and
// the names of parameters.
#pragma once

#include <map>
#include <set>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {

// Returns whether the framework does not call it so: "onnx::MatMul_562", "562",
// "/h.0/Constant_output_0"; and "val_9", "permute_3" in a file that lacks calls.
bool is_anonymous(const OnnxModel& model, std::string_view name);

// The exporter leaves out of a scope what is not called ("h" of "h.0", a ModuleDict), and gives the
// second call of a module a number ("h/fc_1"). A parameter that is read in its own module's scope
// tells which module that is, and so for the scopes around it.
class ModulePaths {
 public:
  // `scopes` is by node.
  ModulePaths(const OnnxModel& model, const std::vector<std::string>& scopes);
  // Dotted: "h.0.fc1".
  std::string of(const std::string& scope) const;
  // Returns the same, if the scope is that of a module's first call.
  std::string of_first_call(const std::string& scope) const;
  // Returns whether a module beside this one is known to be called this often.
  bool called_again(const std::string& scope) const;

 private:
  void learn(const std::string& scope, std::string_view module);
  std::map<std::string, std::string, std::less<>> known_;
  std::set<std::string, std::less<>> scopes_;  // and those around them
  std::set<std::string, std::less<>> again_;   // "h_2": a module in 'h' is called a third time
};

// "fc" of "h/fc_2", and "_2"; nothing where a scope does not end in a number.
struct CallNumber {
  std::string first;   // "h/fc"
  std::string suffix;  // "_2"
};
std::optional<CallNumber> call_number(const std::string& scope);

}  // namespace piper::onnx_import
