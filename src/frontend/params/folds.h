// Initializers that the exporter computed from parameters while it folded constants: what they were
// computed from, and by which functions.
#pragma once

#include "calls.h"
#include "ways.h"

namespace piper::onnx_import {

struct Fold {
  int initializer = -1;
  std::vector<std::string> sources = {};  // parameters
  Chain chain = {};
  Derivation layout = {};                   // after the chain, by the call that reads it
  std::vector<Slot> own = {}, copies = {};  // read for itself, and for what was merged with it
  Derivation derivation = {};               // where it is solved
  bool solved = false;
  std::string why = {};  // why it is not solved: ": the factor of 'softplus' is lost"

  std::vector<Slot> slots() const;  // own ones, then copies
};

std::vector<Fold> find_folds(const CallGraph& graph, const CallClaims& claims);
// Returns the layout that a call's place has for what the exporter computed of its argument.
std::optional<Derivation> layout_in_call(const CallGraph& graph, const Slot& slot);
// Returns the value that the chain made, before the layout.
OnnxTensor made_by_chain(const CallGraph& graph, const Fold& fold);
// Returns the number that was added to the fold's parameter, which is not in the file: from the
// strategy, else from the program's line. Norms add 1.
std::optional<double> added_number(const CallGraph& graph, const Fold& fold,
                                   const PriorKnowledge& prior);
// Returns whether the program's line calls softplus with a factor of 1.
bool is_plain_softplus(const CallGraph& graph, const Fold& fold);

// Returns the value of a claimed parameter, as far as the file or the user tells it.
std::optional<OnnxTensor> value_of_parameter(const CallGraph& graph, const CallClaims& claims,
                                             const std::string& name);
// Claims a slot as derived from the parameter `name`.
void claim_fold(const CallGraph& graph, CallClaims& claims, const Fold& fold, const Slot& slot,
                const std::string& name, bool copy);

// Claims the slots of values that were merged with folds. `folds` are all of them.
void claim_merged_folds(const CallGraph& graph, CallClaims& claims, const std::vector<Fold>& folds);

}  // namespace piper::onnx_import
