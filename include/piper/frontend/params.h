// Finds the exporting module's parameters again in what the exporter made of them: merged, folded,
// renamed, transposed.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <span>

#include "calls.h"
#include "derivation.h"

namespace piper::onnx_import {

// In the graph's metadata: a list in JSON of {"name": …}, by parameter in the module's order, with
// "also" (the other names of a tied one), "shape", "trained": false and "unused": true.
inline constexpr std::string_view kParametersKey = "piper.parameters";

// "Input `input` of node `node` is the parameter `name`" — or a constant of its own, for an empty
// name.
struct Claim {
  size_t node = 0, input = 0;
  int initializer = -1;   // -1: the exporter deleted an all-zero parameter; `type` says what it was
  std::string name;       // the framework's
  Derivation derivation;  // from the framework's parameter to what the file has
  TensorType type;        // of the framework's parameter
  std::string evidence;
  bool copy = false;  // made of the parameter, whose value another place has
};

struct ParamUse {
  size_t node = 0, input = 0;
  size_t param = 0;
  Derivation derivation = {};  // of what is used there
};

struct RecoveredParam {
  std::string name;
  std::vector<std::string> aliases;
  std::string evidence, initializer;
  TensorType type;
  Bytes data;  // empty: zeros
  bool frozen = false;
  bool running = false;  // a running statistic: the model's own to update
};

// A state, by its name, and the value that it has when forward has run.
struct ChangedBuffer {
  std::string name, value;
  bool read = true;  // else it is no parameter of the recovery
};

// What the exporter computed, from parameters or from constants, which the file does not say.
struct Unnamed {
  std::string initializer, text;  // "onnx::Mul_15 f32[8] at node '/Mul' (Mul)"
  std::string path;               // its name in the scope of the node: "h/0/onnx::Mul_15"
};

// A parameter that the file has not, or not alone: trained without it the model would be another.
struct Swallowed {
  std::string name, why;
  bool unnamed = false;   // no call names it: it may be of no use, or another name of a tied tensor
  bool by_value = false;  // its value may show what the file has of it
  bool placed = false;    // it is among the parameters, but its values are perhaps not its own
};

struct Recovery {
  std::vector<RecoveredParam> params;               // in the framework's order
  std::vector<ParamUse> uses;                       // sorted by node and input
  std::vector<std::pair<size_t, size_t>> detached;  // node, input: no gradient flows back; sorted
  std::vector<std::string> constants, separated;
  std::vector<Note> notes;
  std::vector<ChangedBuffer> changed;  // among the parameters
  std::vector<std::string> lost;  // in the signature, and neither used nor tied as far as we see
  std::vector<Swallowed> swallowed;
  std::vector<Unnamed> unnamed;
  std::vector<std::string> stored;  // parameters that the file has with a number added
  bool given = false;               // initial values were brought
  bool is_swallowed(std::string_view name) const {
    return std::any_of(swallowed.begin(), swallowed.end(),
                       [&](const Swallowed& s) { return s.name == name; });
  }
};

// What is known of the parameters beside the file.
struct Known {
  std::vector<ParamRule> rules;              // of the strategy, of which kStored is looked at
  std::map<std::string, OnnxTensor> values;  // initial values by name: they go before the file's
};
// The number that the strategy says was added to the parameter.
std::optional<double> stored_plus(const Known& known, const std::string& name);

// May add to the model what the exporter deleted: inputs for zero biases, copies of merged nodes.
// `scopes` is by node.
Result<Recovery> recover_params(OnnxModel& model, std::vector<std::string>& scopes,
                                const Known& known);
// With what the options say of parameters: their rules are known but not applied, initial values
// given. Errors in these stand in their file.
Result<Recovery> recover_params(OnnxModel& model, std::vector<std::string>& scopes,
                                const ImportOptions& options);

// Errors stand at the rule. By rule, what it matched.
Result<std::vector<RuleMatch>> apply_param_rules(const OnnxModel& model, Recovery& recovery,
                                                 const std::vector<ParamRule>& rules);
// An error where some are, or are not named: trained without them the model would be another one.
Status check_swallowed(const OnnxModel& model, const Recovery& recovery);

// ---- Between the sources of this part -----------------------------------------------------------

struct Ties {                                                 // names of one tensor
  std::vector<std::pair<std::string, std::string>> alias_of;  // alias, name
};
struct Claims {
  std::vector<Claim> list;
  Ties ties;
  std::vector<std::string> order;  // the framework's names in its order; empty: order of use
  std::vector<Note> notes;
  std::vector<std::string> lost;            // as in Recovery
  std::vector<Swallowed> swallowed;         // likewise
  std::map<std::string, OnnxTensor> given;  // values that go before the file's
  std::vector<Unnamed> unnamed;             // likewise
  std::vector<std::string> stored;          // to which the number 0 was added
  bool listed = false;                      // by claims_by_list: nothing is guessed
  std::set<std::string> frozen;             // names of what is not trained
};
// Of Constant nodes, those of floats, by the names of their results.
std::vector<OnnxTensor> tensors_of_nodes(const OnnxModel& model);
struct InitializerIndex {
  explicit InitializerIndex(const OnnxModel& model);
  const OnnxModel& model;
  int find(std::string_view name) const;  // -1 when there is none
  int find_float(std::string_view name) const;

 private:
  std::vector<std::pair<std::string_view, int>> by_name_;
};
// Adds those of batch norms in training mode.
void find_running_statistics(const OnnxModel& model, const std::vector<std::string>& scopes,
                             Recovery& recovery);
// Buffers that forward changes and reads become parameters in the signature. Errors: the file does
// not have what they become.
Result<std::vector<ChangedBuffer>> find_changed_buffers(const OnnxModel& model,
                                                        std::vector<SignatureInput>& signature,
                                                        std::vector<Note>& notes);
// Batch norms that the exporter multiplied into convolutions: these have other values than their
// parameters. Adds to what is swallowed.
void find_fused_norms(const OnnxModel& model, Recovery& recovery);
// Whether the node is a convolution into which the exporter multiplied a batch norm.
bool is_fused(const OnnxNode& node);
// Marks them as the model's own to update; no gradient flows back through what they become.
void keep_changed_buffers(const OnnxModel& model, std::vector<ChangedBuffer> changed,
                          Recovery& recovery);
// Tables of sinusoids, which library models do not train, are frozen, and noted so.
inline constexpr const char* kSinusoids =
    "a table of sinusoids, which library models do not train: frozen; 'thaw' under 'parameters' "
    "trains it";
void freeze_sinusoids(const OnnxModel& model, Recovery& recovery);
// Random results that were merged come apart again. Errors: the file does not say which.
Status separate_draws(OnnxModel& model, std::vector<std::string>& scopes,
                      const std::vector<SignatureInput>& signature);
// Attention with masks of booleans gives queries that see no key what PyTorch gives them.
void guard_rows_without_keys(OnnxModel& model);
// Adds what was detached. Errors: the file does not say which of a node's inputs that was.
Status find_detached(const OnnxModel& model, const std::vector<SignatureInput>& signature,
                     Recovery& recovery);
// Parameters of recurrent layers that were folded into one tensor come apart.
void separate_recurrent(OnnxModel& model, std::vector<std::string>& scopes);
// Batch norms that train in training mode.
void restore_training_norms(OnnxModel& model, const std::vector<SignatureInput>& signature);
// By the exported program's signature and calls.
Result<Claims> claims_by_calls(OnnxModel& model, std::vector<std::string>& scopes,
                               const std::vector<SignatureInput>& signature, const Known& known);
// By the list of parameters in the file, or its training_info, and with buffers that forward
// changes.
bool lists_parameters(const OnnxModel& model);
Result<Claims> claims_by_list(const OnnxModel& model, std::span<const ChangedBuffer> changed);
// That list, as text for the key kParametersKey.
std::string parameter_list(std::span<const RecoveredParam> params);
// By names, scopes and contents, for files without them; makes the scopes those of the modules.
Result<Claims> claims_by_names(OnnxModel& model, std::vector<std::string>& scopes,
                               const Known& known);

}  // namespace piper::onnx_import
