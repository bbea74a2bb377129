// Claims initializers that are read under a parameter's name, and which no call explains, for
// claims_by_calls.
#include "calls.h"

namespace piper::onnx_import {
namespace {

// Returns the unclaimed parameter of which `scope` reads parts, if `kept` is what is stored.
std::string part_in(const CallGraph& graph, const CallClaims& claims, const std::string& scope,
                    const std::string& kept) {
  for (const std::string& lost : unseen_in(graph, claims, scope))
    if (leaf_of(lost) == leaf_of(kept) && scope_of_name(module_of(lost)) == scope)
      return graph.may_stand_for(kept, lost) ? lost : kept;
  return {};
}

// A node without a call says nothing of the parameter that it reads under its name. Read in another
// module, it is that one's own parameter, if that is unclaimed. Else it may be a constant of equal
// numbers.
void claim_part(const CallGraph& graph, CallClaims& claims, const Slot& slot) {
  const OnnxTensor& t = graph.tensor(slot);
  const std::string own = scope_of_name(module_of(t.name));
  std::string name;
  for (const Group* reader : graph.readers_of_node(slot.node)) {
    const std::string& scope = graph.scope_of(*reader);
    if (scope == own) name = t.name;
    if (name.empty()) name = part_in(graph, claims, scope, t.name);
  }
  if (name.empty() && graph.merges && is_uniform(t.data, t.type.dtype) &&
      claims.named.count(t.name))
    return;
  if (name.empty() || name == t.name)
    claims.take(graph, slot, *graph.target(t.name), {}, "kept name");
  else
    claims.take(graph, slot, *graph.target(name), {}, fmt::format("merged with {}", t.name));
}

}  // namespace

KeptNames find_kept_names(const CallGraph& graph, const CallClaims& claims) {
  KeptNames out;
  for (size_t n = 0; n < graph.model.nodes.size(); ++n) {
    const OnnxNode& node = graph.node(n);
    const Group* group = graph.group_at(n);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const Slot slot{n, i, graph.index.find_float(node.inputs[i])};
      if (slot.initializer < 0 || claims.is_taken(slot)) continue;
      const std::string& name = graph.tensor(slot).name;
      if (!graph.is_parameter(name)) continue;
      const bool stands_in = graph.merges && group && !is_fused(node) &&
                             !graph.names(*group, graph.target(name)->placeholder) &&
                             !graph.unknowns(*group).empty();
      (stands_in ? out.stand_ins : group ? out.own : out.parts).push_back(slot);
    }
  }
  return out;
}

// An initializer that holds one repeated number may be a constant that was merged with a claimed
// parameter.
CallClaims claim_kept_names(const CallGraph& graph, CallClaims claims, const KeptNames& kept) {
  for (const Slot& slot : kept.own) {
    const OnnxTensor& t = graph.tensor(slot);
    const bool uniform = is_uniform(t.data, t.type.dtype);
    if (graph.merges && uniform && claims.named.count(t.name)) continue;
    claims.take(graph, slot, *graph.target(t.name), {}, "kept name");
  }
  for (const Slot& slot : kept.parts) claim_part(graph, claims, slot);
  return claims;
}

}  // namespace piper::onnx_import
