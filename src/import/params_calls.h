// The state of claims_by_calls (params.h), shared by its two sources.
#pragma once

#include <map>
#include <set>

#include "params.h"

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

class CallClaims {
 public:
  CallClaims(OnnxModel& model, std::vector<std::string>& scopes,
             const std::vector<SignatureInput>& signature)
      : model_(model), scopes_(scopes), index_(model) {
    for (const SignatureInput& s : signature) {
      if (s.kind == "USER_INPUT" || s.target.empty()) continue;
      targets_.emplace(s.placeholder, &s);
      if (s.kind == "PARAMETER") claims_.order.push_back(s.target);
    }
  }
  Result<Claims> run();

 private:
  void make_groups();
  void assign(Group& group);
  bool assign_by_role(Group& group, const CallArg& arg, const SignatureInput& input);
  void assign_rest(Group& group, std::vector<const SignatureInput*> rest);
  bool restore_zero_bias(Group& group, const CallArg& arg, const SignatureInput& input);
  void take(Slot& slot, const SignatureInput& input, bool transposed, const std::string& evidence);
  void claim_by_name();
  void claim_folded();
  void find_folded_apart(const OnnxTensor& constant);
  std::vector<std::string> missing() const;  // parameters without a claim or tie
  // params_merged.cc:
  bool restore_merged_module();
  bool copy_merged(size_t source, const std::string& name, const Group& readers);
  std::string module_beside(const std::vector<Claim>& own) const;
  void tie(const std::string& a, const std::string& b);
  void tie_unused();
  void find_swallowed();
  std::set<std::string> modules_with_losses() const;
  bool is_unknown(const CallArg& arg) const;  // names a result that no node makes
  void find_merged(std::set<std::string>& modules) const;
  void find_merged_beside();
  std::vector<std::string> trained_just_before(std::string_view value) const;
  void find_removed();
  const OnnxTensor& tensor(int i) const { return model_.initializers[static_cast<size_t>(i)]; }

  OnnxModel& model_;
  std::vector<std::string>& scopes_;
  InitializerIndex index_;
  std::map<std::string, const SignatureInput*, std::less<>> targets_;
  std::map<std::string, size_t> group_of_;
  std::vector<Group> groups_;
  std::set<std::pair<size_t, size_t>> taken_;  // node, input
  std::set<std::string> claimed_;
  std::vector<std::string> folded_apart_;  // parameters with a place, of which there is more
  Claims claims_;
};

}  // namespace piper::onnx_import
