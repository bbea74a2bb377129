// The state of claims_by_calls (params.h), shared by its sources.
#pragma once

#include <map>
#include <set>

#include "claims.h"
#include "ways.h"

namespace piper::onnx_import {

struct Slot {  // a float initializer read by a node of the group
  size_t node, input;
  int initializer;
  bool taken = false;
};

struct Group {
  Call call;
  std::vector<size_t> nodes;
  std::vector<Slot> slots;
};

inline constexpr int64_t kMostMerged = 1024;  // elements of tensors that an exporter merges

// Of a value that is made of no other: "val_3", "arange".
bool is_literal(std::string_view name);
std::string class_of(const OnnxNode& node);  // of the innermost module, or ""

class CallClaims {
 public:
  CallClaims(OnnxModel& model, std::vector<std::string>& scopes,
             const std::vector<SignatureInput>& signature, const PriorKnowledge& prior)
      : model_(model), scopes_(scopes), index_(model), prior_(prior) {
    for (const SignatureInput& s : signature) {
      if (s.kind == "USER_INPUT" || s.target.empty()) {
        user_inputs_.insert(s.placeholder);
        continue;
      }
      targets_.emplace(s.placeholder, &s);
      by_target_.emplace(s.target, &s);
      if (s.kind == "PARAMETER") claims_.order.push_back(s.target);
    }
    claims_.given = prior.values;
  }
  Result<Claims> run();

 private:
  void make_groups();
  void assign(Group& group);
  bool assign_by_role(Group& group, const CallArg& arg, const SignatureInput& input);
  void assign_rest(Group& group, const std::vector<const SignatureInput*>& rest);
  void take_named(Group& group, const SignatureInput& input);
  void take_merged(Group& group, const std::vector<const SignatureInput*>& inputs);
  bool merges_equal() const;
  bool may_be_zeros(const std::string& name) const;
  bool restore_zero_bias(Group& group, const CallArg& arg, const SignatureInput& input);
  void take(Slot& slot, const SignatureInput& input, Derivation derivation,
            const std::string& evidence);
  void claim_by_name();
  bool is_merged_away(const SignatureInput& input) const;
  bool is_parameter(std::string_view target) const;
  const Group* group_at(size_t node) const;
  std::vector<std::string> missing() const;  // parameters without a claim or tie
  std::string place_of(const Slot& slot) const;
  MissingParam& swallow(const std::string& name, std::string why, bool unnamed = false);
  void swallow_unseen(const std::vector<std::string>& names, const std::string& why);
  bool names(const Group& group, std::string_view value) const;
  bool is_named(const Claim& claim) const;
  std::vector<std::string> unknowns(const Group& group) const;  // tensors that no node makes
  // params_folded.cc:
  struct Fold {  // an initializer that was computed from parameters
    int initializer = -1;
    std::vector<std::string> sources = {};  // parameters
    Chain chain = {};
    Derivation layout = {};                   // after the chain, by the call that reads it
    std::vector<Slot> own = {}, copies = {};  // read for itself, and for what was merged with it
    Derivation derivation = {};
    bool solved = false;
    std::string why = {};  // it is not
  };
  void claim_folded();
  std::vector<Fold> find_folds() const;
  bool is_made_of(const OnnxTensor& folded, const CallArg& arg) const;
  void find_layout(Fold& fold) const;
  std::optional<Derivation> layout_in_call(const Slot& slot) const;
  OnnxTensor made_by_chain(const Fold& fold) const;
  Chain chain_of(const OnnxTensor& folded, const std::string& source) const;
  std::optional<double> added_number(const Fold& fold) const;
  bool scales_a_norm(const Slot& slot) const;
  bool is_plain_softplus(const Fold& fold) const;
  bool is_read_alike(const Fold& fold, const Slot& slot) const;
  bool differs_beside(const std::string& source, const std::string& name) const;
  bool comes_from(const std::string& value, const std::string& source) const;
  std::optional<OnnxTensor> value_of_parameter(const std::string& name) const;
  void solve_back(Fold& fold, const std::vector<Fold>& folds, bool cut);
  bool keeps_shape(const Fold& fold) const;
  bool explains_others(const Fold& fold, const Derivation& derivation,
                       const std::vector<Fold>& folds) const;
  void solve_forth(Fold& fold);
  void claim_solved(Fold& fold, Derivation derivation, bool copy);
  void swallow_fold(const Fold& fold);
  void check_whole(const Fold& fold);
  void claim_fold(const Fold& fold, const Slot& slot, const std::string& name, bool copy);
  std::vector<std::string> makers_of(const OnnxTensor& value, const Chain& chain) const;
  std::vector<std::string> unseen_in(const std::string& scope) const;
  bool stands_for_several(const Fold& fold, const Slot& slot) const;
  void claim_copy(const Fold& fold, const Slot& slot);
  void claim_stand_in(const Slot& slot);
  void note_stored();
  // params_merged.cc:
  bool restore_merged_module();
  bool restore_merged_parts();
  bool stands_in_place(const Group& group) const;
  std::vector<std::string*> places_of(const Group& group, const std::string& value,
                                      const std::string& merged);
  std::vector<std::string> read_instead(const Group& group, const CallArg& arg) const;
  bool copy_merged(size_t source, const std::string& name, const Group& readers);
  std::string module_beside(const std::vector<Claim>& own, const std::string& reader);
  std::vector<std::string> counterparts(const std::vector<Claim>& own, const std::string& reader);
  std::string twin_of(const std::string& name, const std::string& from,
                      const std::string& to) const;
  std::vector<Claim> claims_at(size_t node) const;
  std::vector<Claim> claims_of(const Group& group) const;
  std::string equal_module(const std::vector<Claim>& own, const std::string& reader) const;
  bool comes_from(size_t node, std::map<size_t, bool>& known) const;
  std::vector<size_t> twins_of(size_t node, const std::string& from, const std::string& to) const;
  void copy_twins(size_t node, const std::string& result, const std::string& from,
                  const std::string& to);
  void copy_node(size_t original, const std::vector<Claim>& own,
                 const std::vector<std::string>& names, const std::vector<std::string>& outputs);
  // params_parts.cc:
  std::vector<const Group*> readers_of(const std::string& value) const;
  std::vector<const Group*> readers_of_node(size_t node) const;
  bool may_stand_for(const std::string& kept, const std::string& lost) const;
  std::string part_in(const std::string& scope, const std::string& kept) const;
  void claim_part(Slot slot);
  void find_merged_part(const Slot& slot);
  std::vector<const Group*> readers_apart(size_t node) const;
  void find_merged_before_parts();
  bool names_apart(const Group& group, const std::vector<const Group*>& others) const;
  bool copy_parts(const Claim& claim, const std::string& name);
  void find_merged_parts();
  void tie(const std::string& a, const std::string& b);
  void tie_unused();
  void tie_lost();
  void find_missing();
  bool is_unknown(const CallArg& arg) const;  // names a result that no node makes
  void find_merged();
  void find_unexplained();
  void swallow_module(const std::string& scope, const std::string& why);
  void find_merged_beside();
  std::vector<std::string> trained_just_before(std::string_view value) const;
  bool ties_alone(size_t node) const;
  // params_removed.cc:
  struct Constant {  // a parameter all of one number
    std::string name, module;
    double number = 0;
    bool alone = false;  // its module reads no parameters but its own
    bool noted = false;
  };
  void find_removed();
  void find_removed(const std::string& value, const std::string& around, const std::string& why);
  std::string around_removed(const Group& group) const;
  bool reads_integers_alone(const Group& group) const;
  std::set<std::string> vanished() const;
  std::vector<Constant> constants() const;
  enum class Part { kNone, kPossible, kLikely };  // in what was removed
  Part part_of(const Constant& constant, std::string_view removed, const std::string& around) const;
  const OnnxTensor& tensor(int i) const { return model_.initializers[static_cast<size_t>(i)]; }

  OnnxModel& model_;
  std::vector<std::string>& scopes_;
  InitializerIndex index_;
  const PriorKnowledge& prior_;
  std::map<std::string, const SignatureInput*, std::less<>> targets_;    // by placeholder
  std::map<std::string, const SignatureInput*, std::less<>> by_target_;  // by name
  std::set<std::string, std::less<>> user_inputs_;
  bool merges_ = true;  // the exporter may have merged equal tensors
  std::vector<std::pair<size_t, std::string>> restored_;  // copied nodes, the scope around both
  std::vector<Slot> stand_ins_;  // tensors of parameters, read for values that no node makes
  std::vector<Slot> parts_;      // tensors of parameters, read by nodes without a call
  std::vector<std::pair<std::string, size_t>>
      apart_;  // parameters, the node that was copied for it
  std::map<std::string, size_t> group_of_;
  std::vector<Group> groups_;
  std::set<std::pair<size_t, size_t>> taken_;  // node, input
  std::set<std::string> claimed_;
  std::map<size_t, size_t> group_at_;                 // by node
  std::map<std::string, size_t, std::less<>> maker_;  // node, by its results
  std::map<std::string, MissingParam> missing_;
  std::map<std::string, int> partial_;  // parameters of which the file may have a part: what it has
  std::map<std::string, std::vector<std::string>> stored_;  // parameters, by how they are
  std::map<std::string, std::vector<std::string>> chains_;  // functions, by what is folded
  std::map<std::string, std::string> unseen_;  // why parameters that no call names may be lost
  std::vector<Constant> constants_;
  std::set<std::string> vanished_;  // functions of which a result is in no place
  Claims claims_;
};

}  // namespace piper::onnx_import
