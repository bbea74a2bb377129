// Reports parameters that may be missing since parts of equal parameters, which nodes without a
// call make, were merged and did not come apart. claims_by_calls calls it.
#include <algorithm>

#include "calls.h"
#include "ways.h"

namespace piper::onnx_import {
namespace {

// Reports the parameters of modules that read a merged part: each has its own in it.
void report_part_readers(const CallGraph& graph, CallClaims& claims) {
  for (const Claim& claim : claims.found.list) {
    if (claim.name.empty() || graph.group_at(claim.node)) continue;
    for (const Group* reader : graph.readers_apart(claim.node))
      claims.report_module(graph.scope_of(*reader),
                           fmt::format("'{}', a part of '{}', stands for several values",
                                       graph.node(claim.node).outputs[0], claim.name));
  }
}

bool is_read_elsewhere(const KeptNames& kept, const Slot& slot) {
  return std::any_of(kept.parts.begin(), kept.parts.end(), [&](const Slot& other) {
    return other.initializer == slot.initializer && other.node != slot.node;
  });
}

std::vector<std::string> unseen_parts(const CallGraph& graph, const CallClaims& claims,
                                      const std::string& scope, const std::string& own,
                                      const std::string& stored) {
  std::vector<std::string> unseen = unseen_in(graph, claims, scope);
  std::erase_if(unseen, [&](const std::string& lost) {
    const bool beside = scope == own && scope_of_name(module_of(lost)) != own;
    return beside || !graph.may_stand_for(stored, lost);
  });
  return unseen;
}

// What other modules read in parts, beside that whose name it has, may be their own; and what is
// read elsewhere, too, may be two parameters of its module.
void report_part(const CallGraph& graph, CallClaims& claims, const KeptNames& kept,
                 const Slot& slot) {
  const std::string& stored = graph.tensor(slot).name;
  std::string own;  // the module
  bool elsewhere = is_read_elsewhere(kept, slot);
  for (const Claim& claim : claims.found.list) {
    if (claim.node == slot.node && claim.input == slot.input)
      own = scope_of_name(module_of(claim.name));
    else
      elsewhere = elsewhere || claim.initializer == slot.initializer;
  }
  for (const Group* reader : graph.readers_of_node(slot.node)) {
    const std::string& scope = graph.scope_of(*reader);
    if (scope == own && !elsewhere) continue;
    const std::vector<std::string> unseen = unseen_parts(graph, claims, scope, own, stored);
    claims.report_uncalled(unseen, fmt::format("'{}', of which {} reads parts, may stand for it",
                                               stored, reader->call.name));
  }
}

// Equal results of calls were merged, and so were the nodes that cut them into parts. The file does
// not say whose they were: perhaps of two modules of equal parameters.
void report_merged_before_parts(const CallGraph& graph, CallClaims& claims) {
  const std::set<std::string> vanished = vanished_functions(graph);
  for (size_t n = 0; n < graph.model.nodes.size(); ++n) {
    if (graph.group_at(n) || graph.node(n).inputs.empty()) continue;
    const std::string& value = graph.node(n).inputs[0];
    const std::optional<size_t> made = graph.maker(value);
    const Group* call = made ? graph.group_at(*made) : nullptr;
    if (!call || !vanished.count(std::string(stem_of(call->call.name)))) continue;
    const std::vector<const Group*> readers = graph.readers_apart(n);
    if (readers.empty()) continue;
    const std::vector<std::string> trained = trained_just_before(graph, claims, value);
    std::vector<Claim> own;
    for (const Claim& claim : claims.found.list)
      if (std::count(trained.begin(), trained.end(), claim.name)) own.push_back(claim);
    for (const Group* reader : readers) {
      const std::string why = fmt::format("'{}', of which {} reads parts, may stand for several",
                                          value, reader->call.name);
      const std::string& scope = graph.scope_of(*reader);
      if (!own.empty()) claims.report_module(scope, why);
      const std::string other = equal_module(claims, own, scope);
      if (other.empty()) continue;
      for (const Claim& claim : own)
        claims.report(claim.name,
                      fmt::format("{}, and belong to '{}', which is equal", why, other));
    }
  }
}

}  // namespace

CallClaims report_merged_parts(const CallGraph& graph, CallClaims claims, const KeptNames& kept) {
  report_part_readers(graph, claims);
  for (const Slot& slot : kept.parts) report_part(graph, claims, kept, slot);
  report_merged_before_parts(graph, claims);
  return claims;
}

}  // namespace piper::onnx_import
