// Parameters of files that carry the exported program's signature and, by node, the call it came
// from. recover.cc calls claims_by_calls; the list of its passes is here.
//
// Nodes are grouped by call. In each group, the placeholders among the call's arguments are given
// to the group's float initializers by role, else by name: equal tensors were merged under one
// name, so that a name alone says little.
#include "calls.h"

#include <algorithm>

namespace piper::onnx_import {

void CallClaims::add(Claim claim) {
  taken.emplace(claim.node, claim.input);
  if (!claim.name.empty()) named.insert(claim.name);
  found.list.push_back(std::move(claim));
}

void CallClaims::take(const CallGraph& graph, const Slot& slot, const SignatureInput& input,
                      Derivation derivation, const std::string& evidence) {
  TensorType type = graph.tensor(slot).type;
  if (!derivation.empty()) type.shape = derivation[0].from;
  add({slot.node, slot.input, slot.initializer, input.kind == "PARAMETER" ? input.target : "",
       std::move(derivation), std::move(type), evidence});
}

std::vector<std::string> CallClaims::unclaimed() const {
  std::vector<std::string> out;
  std::copy_if(found.order.begin(), found.order.end(), std::back_inserter(out),
               [&](const std::string& name) { return !named.count(name); });
  return out;
}

MissingParam& CallClaims::report(const std::string& name, std::string why, bool is_uncalled) {
  return missing.emplace(name, MissingParam{name, std::move(why), is_uncalled}).first->second;
}

void CallClaims::report_uncalled(const std::vector<std::string>& names, const std::string& why) {
  for (const std::string& name : names) uncalled.emplace(name, why);
}

void CallClaims::report_module(const std::string& scope, const std::string& why) {
  for (const std::string& name : found.lost)
    if (scope_of_name(module_of(name)) == scope) uncalled.emplace(name, why);
}

std::vector<Claim> CallClaims::at(size_t node) const {
  std::vector<Claim> own;
  std::copy_if(found.list.begin(), found.list.end(), std::back_inserter(own),
               [&](const Claim& claim) { return claim.node == node && !claim.name.empty(); });
  return own;
}

std::vector<Claim> CallClaims::of(const Group& group) const {
  std::vector<Claim> own;
  for (const size_t n : group.nodes) {
    const std::vector<Claim> here = at(n);
    own.insert(own.end(), here.begin(), here.end());
  }
  return own;
}

std::vector<std::string> unseen_in(const CallGraph& graph, const CallClaims& claims,
                                   const std::string& scope) {
  std::set<std::string> seen;
  for (const OnnxTensor& t : graph.model.initializers)
    seen.insert(t.folded_from.begin(), t.folded_from.end());
  for (const Group& group : graph.groups())
    for (const CallArg& arg : group.call.args)
      if (const SignatureInput* input = graph.placeholder(arg.name)) seen.insert(input->target);
  std::vector<std::string> own, within;
  for (const std::string& name : claims.unclaimed()) {
    if (seen.count(name)) continue;
    const std::string module = scope_of_name(module_of(name));
    if (module == scope)
      own.push_back(name);
    else if (scope.empty() || module.starts_with(scope + "/"))
      within.push_back(name);
  }
  return own.empty() ? within : own;
}

Result<Claims> claims_by_calls(OnnxModel& model, std::vector<std::string>& scopes,
                               const std::vector<SignatureInput>& signature,
                               const PriorKnowledge& prior) {
  CallGraph graph(model, scopes, signature);
  CallClaims claims;
  claims.found.order = graph.order;
  claims.found.given = prior.values;

  claims = claim_arguments(graph, std::move(claims));
  graph.add_inputs(claims.found.list);
  const KeptNames kept = find_kept_names(graph, claims);
  claims = claim_kept_names(graph, std::move(claims), kept);
  claims = tie_unused(graph, std::move(claims));
  claims = claim_folded(graph, std::move(claims), prior);
  claims = claim_stand_ins(graph, std::move(claims), kept);
  // Each copy shows what else was merged: the next is found in the edited graph.
  while (const std::optional<Edit> edit = next_copy(graph, claims)) {
    for (const Claim& claim : edit->claims) claims.add(claim);
    graph.apply(*edit);
  }

  claims.found.lost = claims.unclaimed();
  claims = report_merged(graph, std::move(claims));
  claims = report_merged_parts(graph, std::move(claims), kept);
  claims = report_unexplained(graph, std::move(claims));
  claims = report_merged_beside(graph, std::move(claims));
  claims = report_removed(graph, std::move(claims));
  claims = report_unread(graph, std::move(claims));
  claims = list_missing(std::move(claims));
  claims = tie_lost(std::move(claims));
  return std::move(claims.found);
}

}  // namespace piper::onnx_import
