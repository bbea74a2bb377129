// Finds names of one tensor among the parameters that no call names, for claims_by_calls.
#include <algorithm>

#include "calls.h"

namespace piper::onnx_import {
namespace {

void add_tie(CallClaims& claims, const std::string& a, const std::string& b) {
  const std::vector<std::string>& order = claims.found.order;
  const auto place = [&](const std::string& name) {
    return std::find(order.begin(), order.end(), name);
  };
  auto& ties = claims.found.ties.alias_of;
  claims.named.insert(a);
  // The first name in the signature is PyTorch's own; b may be an alias already.
  const auto known =
      std::find_if(ties.begin(), ties.end(), [&](const auto& tie) { return tie.first == b; });
  const std::string of = known == ties.end() ? b : known->second;
  const std::string& first = place(a) < place(of) ? a : of;
  const std::string& other = &first == &a ? of : a;
  for (auto& tie : ties)
    if (tie.second == other) tie.second = first;
  ties.emplace_back(other, first);
}

// Returns whether the claim's parameter does the work of `name` in the module of `name`.
bool does_work_of(const CallGraph& graph, const Claim& claim, const std::string& name) {
  if (claim.name.empty() || graph.scopes[claim.node] != scope_of_name(module_of(name)) ||
      leaf_of(claim.name) != leaf_of(name))
    return false;
  if (!graph.is_named(claim) && graph.may_stand_for(claim.name, name)) return false;
  return module_of(claim.name) != module_of(name) && graph.ties_alone(claim.node) &&
         !is_fused(graph.node(claim.node));
}

// Returns the one parameter with the leaf of `name` in a module within that of `name`. Of several,
// it is the one whose weight is tied.
std::optional<std::string> name_within(const Claims& found, const std::string& name) {
  const auto& ties = found.ties.alias_of;
  const auto is_tied = [&](const std::string& of) {
    return std::any_of(ties.begin(), ties.end(),
                       [&](const auto& tie) { return tie.first == of || tie.second == of; });
  };
  std::set<std::string> within, tied;
  for (const Claim& claim : found.list) {
    const std::string module = module_of(claim.name);
    if (module.empty() || module_of(module) != module_of(name) ||
        leaf_of(claim.name) != leaf_of(name))
      continue;
    within.insert(claim.name);
    if (is_tied(module + ".weight")) tied.insert(claim.name);
  }
  if (within.size() != 1) within = tied;
  return within.size() == 1 ? std::optional(*within.begin()) : std::nullopt;
}

}  // namespace

// Makes a parameter that no call names another name of the one that is used in its module.
CallClaims tie_unused(const CallGraph& graph, CallClaims claims) {
  for (const std::string& name : claims.unclaimed()) {
    const auto claim =
        std::find_if(claims.found.list.begin(), claims.found.list.end(),
                     [&](const Claim& other) { return does_work_of(graph, other, name); });
    if (claim != claims.found.list.end()) add_tie(claims, name, claim->name);
  }
  return claims;
}

// Makes a parameter that nothing reads, and one of a module within its own ("bias" and
// "decoder.bias"), two names of one tensor. If the name is unused instead, the value that is saved
// under it is of no use either.
CallClaims tie_lost(CallClaims claims) {
  auto& ties = claims.found.ties.alias_of;
  std::erase_if(claims.found.lost, [&](const std::string& name) {
    if (claims.missing.count(name)) return false;
    const std::optional<std::string> within = name_within(claims.found, name);
    if (!within) return false;
    claims.found.notes.push_back(
        {name, fmt::format("taken for another name of {}, since nothing reads it under its own",
                           *within)});
    const auto known = std::find_if(ties.begin(), ties.end(),
                                    [&](const auto& tie) { return tie.first == *within; });
    ties.emplace_back(name, known == ties.end() ? *within : known->second);
    return true;
  });
  return claims;
}

}  // namespace piper::onnx_import
