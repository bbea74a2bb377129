// Finds the exporting module's parameters again in what the exporter made of them: merged, folded,
// renamed, transposed.
#pragma once

#include <algorithm>

#include "piper/base/data.h"
#include "piper/frontend/rules.h"

namespace piper::onnx_import {

// ---- How a value of the file comes from a parameter ---------------------------------------------

// Holds one op of ONNX between a parameter and a value of the file. The import emits it; the
// recovery of parameters computes it from the parameter, or inverts it to find the parameter.
struct Step {
  OnnxNode node;                     // its op, as of opset 24, and its attributes
  std::vector<OnnxTensor> operands;  // constants
  bool last = false;                 // the step changes the node's last input; else the first
  Shape from;                        // the shape of that input
};
using Derivation = std::vector<Step>;  // in order; empty: the value is the parameter itself

// Emits the derivation's ops for `parameter`.
Result<Val> derive(Emitter& emit, const Derivation& derivation, Val parameter);

// ---- The parameters -----------------------------------------------------------------------------

// Input `input` of node `node` is derived from parameter `param`.
struct ParamUse {
  size_t node = 0, input = 0;
  size_t param = 0;
  Derivation derivation = {};
};

struct RecoveredParam {
  std::string name;
  std::vector<std::string> aliases;
  std::string evidence, initializer;
  TensorType type;
  Bytes data;           // empty: zeros
  Bytes stored = {};    // begins with the element that `data` begins with; empty: not known
  bool absent = false;  // the data file is not there: zeros stand for what is not known
  bool frozen = false;
  bool running = false;  // a running statistic, which the model updates itself
};

// Names a state, and the value that it has after the forward.
struct ChangedBuffer {
  std::string name, value;
  bool read = true;  // false: forward only writes it, and it is no parameter of the recovery
  // What it begins with, where it is no parameter of the recovery; no data: zeros.
  TensorType type = {};
  Bytes data = {};
};

// Names a constant that the exporter computed, from parameters or from constants; the file does not
// say.
struct UnknownConstant {
  std::string initializer, text;  // "onnx::Mul_15 f32[8] at node '/Mul' (Mul)"
  std::string path;               // its name in the scope of the node: "h/0/onnx::Mul_15"
};

// Names a parameter missing from the file or merged with another: trained without it, the model
// would be another one.
struct MissingParam {
  std::string name, why;
  bool uncalled = false;  // no call names it: perhaps unused, or another name of a tied tensor
  bool by_value = false;  // its value may show what the file has of it
  bool placed = false;    // it is among the parameters, but perhaps with other values than its own
};

struct Recovery {
  std::vector<RecoveredParam> params;               // in the framework's order
  std::vector<ParamUse> uses;                       // sorted by node and input
  std::vector<std::pair<size_t, size_t>> detached;  // node, input: no gradient flows back; sorted
  std::vector<std::string> constants, separated;    // as in Imported
  std::vector<Note> notes;
  std::vector<ChangedBuffer> changed;  // among the parameters
  // What the module's state_dict has beside the parameters, by the names there: no step changes it.
  std::vector<NamedTensor> untouched;
  std::vector<std::string> lost;  // in the signature, but neither used nor known to be tied
  std::vector<MissingParam> missing;
  std::vector<UnknownConstant> unknown;
  std::vector<std::string> stored;  // parameters that the file has with a number added
  bool given = false;               // initial values were brought
  bool is_missing(std::string_view name) const {
    return std::any_of(missing.begin(), missing.end(),
                       [&](const MissingParam& param) { return param.name == name; });
  }
};

// Finds the parameters. `rules` are taken into account but not applied. `initial_values` names a
// safetensors file with the parameters' values, or is empty; errors in it are located there.
// `scopes` is by node. Adds to the model what the exporter deleted: inputs for zero biases, copies
// of merged nodes.
Result<Recovery> recover_params(OnnxModel& model, std::vector<std::string>& scopes,
                                const std::vector<ParamRule>& rules,
                                const std::string& initial_values);

// Applies the rules, and returns what each matched. Errors are located at the rule.
Result<std::vector<RuleMatch>> apply_param_rules(const OnnxModel& model, Recovery& recovery,
                                                 const std::vector<ParamRule>& rules);

// Fails if parameters are missing, or constants unknown: the trained model would be another one.
Status check_missing(const OnnxModel& model, const Recovery& recovery);

// The key of the graph's metadata that lists what else the module's state_dict has, and no step
// changes: a JSON object from names there to initializers.
inline constexpr std::string_view kUntouchedKey = "piper.untouched";

// Returns the text that lists parameters under kParametersKey.
std::string parameter_list(std::span<const RecoveredParam> params);

}  // namespace piper::onnx_import
