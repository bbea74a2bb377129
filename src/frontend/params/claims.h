// What the three ways to find parameters (by list, by calls, by names) return, and the repairs of
// the model before and after them. recover.cc calls all of this.
#pragma once

#include <map>
#include <set>

#include "derivation.h"

namespace piper::onnx_import {

// Input `input` of node `node` is the parameter `name`; "": it is a constant, and not a parameter.
struct Claim {
  size_t node = 0, input = 0;
  int initializer = -1;   // -1: the exporter deleted an all-zero parameter; `type` says its type
  std::string name;       // the framework's
  Derivation derivation;  // from the framework's parameter to what the file has
  TensorType type;        // of the framework's parameter
  std::string evidence;
  bool copy = false;  // derived from the parameter, whose own value is at another place
};

// Holds what is known of the parameters beside the file.
struct PriorKnowledge {
  std::vector<ParamRule> rules;              // of the strategy; only kStored matters here
  std::map<std::string, OnnxTensor> values;  // initial values by name, which replace the file's
};
// Returns the number that the strategy says was added to the parameter.
std::optional<double> stored_plus(const PriorKnowledge& prior, const std::string& name);

struct Ties {                                                 // names of one tensor
  std::vector<std::pair<std::string, std::string>> alias_of;  // alias, name
};
struct Claims {
  std::vector<Claim> list;
  Ties ties;
  std::vector<std::string> order;  // the framework's names in its order; empty: order of use
  std::vector<Note> notes;
  std::vector<std::string> lost;            // as in Recovery
  std::vector<MissingParam> missing;        // as in Recovery
  std::map<std::string, OnnxTensor> given;  // values that replace the file's
  std::vector<UnknownConstant> unknown;     // as in Recovery
  std::vector<std::string> stored;          // parameters to which the number 0 was added
  bool listed = false;                      // claims_by_list made them: nothing is guessed
  std::set<std::string> frozen;             // names of what is not trained
};

// Finds parameters by the list in the file, or by its training_info, and with the buffers that
// forward changes.
Result<Claims> claims_by_list(const OnnxModel& model, std::span<const ChangedBuffer> changed);
// Finds parameters under their own names alone, in a file without a list whose values are not
// there: nothing is told by contents.
Result<Claims> claims_without_values(const OnnxModel& model,
                                     std::span<const SignatureInput> signature);
// Finds parameters by the exported program's signature and calls.
Result<Claims> claims_by_calls(OnnxModel& model, std::vector<std::string>& scopes,
                               const std::vector<SignatureInput>& signature,
                               const PriorKnowledge& prior);
// Finds parameters by names, scopes and contents. Ensures: `scopes` are those of the modules.
Result<Claims> claims_by_names(OnnxModel& model, std::vector<std::string>& scopes,
                               const PriorKnowledge& prior);

// Returns the floats of Constant nodes, under the names of the nodes' results.
std::vector<OnnxTensor> tensors_of_nodes(const OnnxModel& model);
struct InitializerIndex {
  explicit InitializerIndex(const OnnxModel& model);
  const OnnxModel& model;
  int find(std::string_view name) const;  // returns -1 where there is none
  int find_float(std::string_view name) const;

 private:
  std::vector<std::pair<std::string_view, int>> by_name_;
};

// ---- Before the search --------------------------------------------------------------------------

// Makes batch norms that train, of which the file has the form for inference.
void restore_training_norms(OnnxModel& model, const std::vector<SignatureInput>& signature);
// Makes the parameters of recurrent layers separate again, which were folded into one tensor.
void separate_recurrent(OnnxModel& model, std::vector<std::string>& scopes);
// Separates random results that were merged. Fails where the file does not say which they were.
Status separate_draws(OnnxModel& model, std::vector<std::string>& scopes,
                      const std::vector<SignatureInput>& signature);
// Makes attention with boolean masks give to queries that see no key what PyTorch gives them.
void guard_rows_without_keys(OnnxModel& model);
// Makes parameters of buffers that forward changes and reads, in the signature. Fails where the
// file does not have what they become.
Result<std::vector<ChangedBuffer>> find_changed_buffers(const OnnxModel& model,
                                                        std::vector<SignatureInput>& signature,
                                                        std::vector<Note>& notes);

// ---- After the search ---------------------------------------------------------------------------

// Returns whether the node is a convolution into which the exporter multiplied a batch norm.
bool is_fused(const OnnxNode& node);
// Reports parameters of such convolutions as missing: their values are not the file's.
void find_fused_norms(const OnnxModel& model, Recovery& recovery);
// Adds the running statistics of batch norms in training mode.
void find_running_statistics(const OnnxModel& model, const std::vector<std::string>& scopes,
                             Recovery& recovery);
// Adds what was detached. Fails where the file does not say which of a node's inputs that was.
Status find_detached(const OnnxModel& model, const std::vector<SignatureInput>& signature,
                     Recovery& recovery);
// Marks buffers as the model's own to update. No gradient flows back through what they become.
void keep_changed_buffers(const OnnxModel& model, std::vector<ChangedBuffer> changed,
                          Recovery& recovery);
// Adds what the file lists of the module's state_dict beside the parameters.
Status find_untouched(const OnnxModel& model, Recovery& recovery);
// Freezes tables of sinusoids, which library models do not train, with a note.
inline constexpr const char* kSinusoids =
    "a table of sinusoids, which library models do not train: frozen; 'thaw' under 'parameters' "
    "trains it";
void freeze_sinusoids(const OnnxModel& model, Recovery& recovery);

// Finds the parameters once, with what is known of them.
Result<Recovery> recover_params(OnnxModel& model, std::vector<std::string>& scopes,
                                const PriorKnowledge& prior);

}  // namespace piper::onnx_import
