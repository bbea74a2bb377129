// What claims_by_calls (calls.cc) works on: the graph of the exported program's calls, the claims
// so far, and the passes from these to further claims. calls.cc lists the passes in their order.
#pragma once

#include <map>
#include <set>
#include <unordered_map>

#include "claims.h"

namespace piper::onnx_import {

struct Slot {  // an initializer that a node reads
  size_t node, input;
  int initializer;
};

// Holds the nodes that the exporter made of one call, and the float initializers that they read.
struct Group {
  Call call;
  std::vector<size_t> nodes;
  std::vector<Slot> slots;
};

inline constexpr int64_t kMostMerged = 1024;  // elements of the largest tensor that is merged

// Returns whether a value is computed from no other: "val_3", "arange".
bool is_literal(std::string_view name);
// Returns whether the value's function changes nothing with a number of 0 or 1, as "mul_3": such
// calls are removed.
bool is_removable(std::string_view value);
std::string class_of(const OnnxNode& node);  // of the innermost module, or ""

// ---- Copies of nodes, as edits of the model -----------------------------------------------------

struct NodeCopy {
  OnnxNode node;
  std::string scope;
};
// Merged nodes get a copy that makes the value of its own parameters.
struct Edit {
  std::vector<NodeCopy> copies;                    // to be appended
  std::vector<Claim> claims;                       // of the copies
  std::vector<std::pair<size_t, size_t>> readers;  // node, input that reads a copy's result instead
  std::vector<std::string> results;                // by reader
  std::string call;  // a call that had no node, and which now is of the group `of`
  const Group* of = nullptr;
};

// ---- The graph of calls -------------------------------------------------------------------------

// Groups the model's nodes by the call that they come from. Only apply() and add_inputs() change it
// and the model.
class CallGraph {
 public:
  CallGraph(OnnxModel& model, std::vector<std::string>& scopes,
            const std::vector<SignatureInput>& signature);
  // Gives nodes the inputs that claims name: an exporter deletes all-zero biases.
  void add_inputs(std::span<const Claim> claims);
  void apply(const Edit& edit);

  const OnnxModel& model;
  const std::vector<std::string>& scopes;  // by node
  const InitializerIndex index;
  const bool merges;               // the exporter may have merged equal tensors
  std::vector<std::string> order;  // the parameters of the signature

  const std::vector<Group>& groups() const { return groups_; }
  const OnnxNode& node(size_t n) const { return model.nodes[n]; }
  const OnnxTensor& tensor(int i) const { return model.initializers[static_cast<size_t>(i)]; }
  const OnnxTensor& tensor(const Slot& slot) const { return tensor(slot.initializer); }
  const std::string& scope_of(const Group& group) const { return scopes[group.nodes[0]]; }

  // These return null where there is none.
  const Group* group_at(size_t node) const;
  const Group* group_named(std::string_view call) const;
  const SignatureInput* placeholder(std::string_view name) const;
  const SignatureInput* target(std::string_view name) const;  // by the framework's name
  bool is_parameter(std::string_view target) const;
  // Returns the node that makes a value.
  std::optional<size_t> maker(std::string_view value) const;

  bool names(const Group& group, std::string_view value) const;  // among the call's arguments
  bool is_named(const Claim& claim) const;                       // by the call of its node
  bool is_unknown(const CallArg& arg) const;  // it names a result that no node makes
  std::vector<std::string> unknowns(const Group& group) const;  // such arguments that are tensors
  // Returns whether the group knows a value under a name that none of `others` knows.
  bool names_apart(const Group& group, const std::vector<const Group*>& others) const;
  // Returns whether the call's arguments are the inputs of its one node, in their order.
  bool stands_in_place(const Group& group) const;
  // Returns the results that the group's nodes read for an argument that no node makes.
  std::vector<std::string> read_instead(const Group& group, const CallArg& arg) const;
  std::vector<const Group*> readers_of(const std::string& value) const;
  // Returns the groups that read what the node makes, also by way of further nodes.
  std::vector<const Group*> readers_of_node(size_t node) const;
  // Returns the groups that read a result of the node under a name that another reader has not.
  std::vector<const Group*> readers_apart(size_t node) const;
  // Returns whether `known` says so of the node, or of one that it is made of. Adds to `known`.
  bool comes_from(size_t node, std::map<size_t, bool>& known) const;
  std::string place_of(const Slot& slot) const;  // for a message: "'w' at node 'x' (Add)"
  // Returns whether the node's module reads no parameters but its own, except where tied.
  bool ties_alone(size_t node) const;
  // Returns whether `kept` may be all that is left of the equal tensors `kept` and `lost`.
  bool may_stand_for(const std::string& kept, const std::string& lost) const;

 private:
  void make_groups();
  const std::vector<size_t>& nodes_that_read(const std::string& value) const;  // ascending
  void reads(size_t node, const std::string& value);

  OnnxModel& edited_;
  std::vector<std::string>& edited_scopes_;
  std::map<std::string, const SignatureInput*, std::less<>> placeholders_, targets_;
  std::set<std::string, std::less<>> user_inputs_;
  std::map<std::string, size_t, std::less<>> group_of_;  // by the call's name
  std::vector<Group> groups_;
  std::map<size_t, size_t> group_at_;                 // by node
  std::map<std::string, size_t, std::less<>> maker_;  // by result
  std::unordered_map<std::string, std::vector<size_t>> readers_;  // nodes, by value
};

// ---- The claims so far --------------------------------------------------------------------------

struct CallClaims {
  Claims found;
  std::set<std::pair<size_t, size_t>> taken;    // node, input of each claim
  std::set<std::string> named;                  // parameters with a claim or a tie
  std::map<std::string, MissingParam> missing;  // by name
  std::map<std::string, std::string> uncalled;  // why a parameter that no call names may be lost
  std::map<std::string, int> partial;           // parameters of which the file may have a part
  std::vector<std::pair<size_t, std::string>> restored;  // copied nodes, the scope around both
  std::vector<std::pair<std::string, size_t>> apart;     // parameters, the node copied for them

  void add(Claim claim);
  // Claims a slot for an input of the signature. A buffer or constant keeps it, and is no
  // parameter.
  void take(const CallGraph& graph, const Slot& slot, const SignatureInput& input,
            Derivation derivation, const std::string& evidence);
  bool is_taken(const Slot& slot) const { return taken.count({slot.node, slot.input}) > 0; }
  std::vector<std::string> unclaimed() const;  // parameters of the signature without claim or tie
  MissingParam& report(const std::string& name, std::string why, bool uncalled = false);
  void report_uncalled(const std::vector<std::string>& names, const std::string& why);
  // Reports the lost parameters of one module.
  void report_module(const std::string& scope, const std::string& why);
  // Returns the claims of parameters at a node, and at all nodes of a group.
  std::vector<Claim> at(size_t node) const;
  std::vector<Claim> of(const Group& group) const;
};

// Returns the parameters of the calls that a value comes from by way of calls without any.
std::vector<std::string> trained_just_before(const CallGraph& graph, const CallClaims& claims,
                                             std::string_view value);
// Returns another module whose parameters have the values of all in `own`, and which a reader in
// the scope `reader` may have called; "" where there is none.
std::string equal_module(const CallClaims& claims, const std::vector<Claim>& own,
                         const std::string& reader);
// Returns the functions that have a result in no place of the file: the results of each are
// numbered.
std::set<std::string> vanished_functions(const CallGraph& graph);

// Returns the unclaimed parameters that neither a call nor a constant names: of the scope's module,
// else of modules within it.
std::vector<std::string> unseen_in(const CallGraph& graph, const CallClaims& claims,
                                   const std::string& scope);

// ---- Passes that claim --------------------------------------------------------------------------

// Lists initializers that are read under a parameter's name, and which no call explains.
struct KeptNames {
  std::vector<Slot> own;        // read by a call that may mean them
  std::vector<Slot> stand_ins;  // read for a value that no node makes, to which they were equal
  std::vector<Slot> parts;      // read by nodes without a call
};
KeptNames find_kept_names(const CallGraph& graph, const CallClaims& claims);

// Gives the parameters among each call's arguments to the call's initializers, and the all-zero
// biases that were deleted to inputs that nodes do not have yet (add_inputs).
CallClaims claim_arguments(const CallGraph& graph, CallClaims claims);
CallClaims claim_kept_names(const CallGraph& graph, CallClaims claims, const KeptNames& kept);
CallClaims tie_unused(const CallGraph& graph, CallClaims claims);
// Derives what was folded from parameters.
CallClaims claim_folded(const CallGraph& graph, CallClaims claims, const PriorKnowledge& prior);
CallClaims claim_stand_ins(const CallGraph& graph, CallClaims claims, const KeptNames& kept);
// Finds the next merged nodes that can be copied. May report why others cannot.
std::optional<Edit> next_copy(const CallGraph& graph, CallClaims& claims);

// ---- Passes that report what is missing, once claims.found.lost is known ------------------------

CallClaims report_merged(const CallGraph& graph, CallClaims claims);
CallClaims report_merged_parts(const CallGraph& graph, CallClaims claims, const KeptNames& kept);
CallClaims report_unexplained(const CallGraph& graph, CallClaims claims);
CallClaims report_merged_beside(const CallGraph& graph, CallClaims claims);
CallClaims report_removed(const CallGraph& graph, CallClaims claims);
CallClaims report_unread(const CallGraph& graph, CallClaims claims);
CallClaims list_missing(CallClaims claims);
CallClaims tie_lost(CallClaims claims);

}  // namespace piper::onnx_import
