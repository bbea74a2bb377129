// Claims constants that are read for values equal to them, after these were merged: for folded.cc
// (values computed from parameters) and for claims_by_calls (parameters themselves).
#include <algorithm>

#include "folds.h"

namespace piper::onnx_import {
namespace {

// Returns the claimed parameters that give `value` by the chain.
std::vector<std::string> makers_of(const CallGraph& graph, const CallClaims& claims,
                                   const OnnxTensor& value, const Chain& chain) {
  std::set<std::string> out;
  for (const Claim& claim : claims.found.list) {
    if (claim.name.empty() || claim.copy || out.count(claim.name)) continue;
    if (num_elements(claim.type.shape) != num_elements(value.type.shape)) continue;
    const auto of = value_of_parameter(graph, claims, claim.name);
    if (of && way_forth(*of, value, chain)) out.insert(claim.name);
  }
  return {out.begin(), out.end()};
}

const Shape* claimed_shape(const CallClaims& claims, const std::string& name) {
  for (const Claim& claim : claims.found.list)
    if (claim.name == name) return &claim.type.shape;
  return nullptr;
}

const Fold* fold_of(const std::vector<Fold>& folds, const std::string& source) {
  for (const Fold& fold : folds)
    if (fold.sources[0] == source) return &fold;
  return nullptr;
}

// Returns whether, in modules of one kind, the parameter beside `source` that has the leaf of
// `name` differs from it: in its shape, or in what is computed of it.
bool differs_beside(const CallClaims& claims, const std::vector<Fold>& folds,
                    const std::string& source, const std::string& name) {
  const std::string beside =
      source.substr(0, source.rfind('.') + 1) + name.substr(name.rfind('.') + 1);
  const Shape *a = claimed_shape(claims, source), *b = claimed_shape(claims, beside);
  const Fold *x = fold_of(folds, source), *y = fold_of(folds, beside);
  const bool otherwise = x && y && x->chain.functions != y->chain.functions;
  return otherwise || (a && b && *a != *b);
}

// Returns whether another module of the class reads the fold as the slot does. Then the slot's is
// the parameter of the same leaf.
bool is_read_alike(const CallGraph& graph, const Fold& fold, const Slot& slot) {
  const std::string of = class_of(graph.node(slot.node));
  return !of.empty() && std::any_of(fold.own.begin(), fold.own.end(), [&](const Slot& own) {
    const Group* group = graph.group_at(own.node);
    return own.input == slot.input && graph.scopes[own.node] != graph.scopes[slot.node] &&
           class_of(graph.node(own.node)) == of && group &&
           group->call.function == graph.group_at(slot.node)->call.function;
  });
}

// Returns whether a call that reads `result` names an unknown value of the same function.
bool is_read_for_another(const CallGraph& graph, const std::string& result) {
  const std::vector<Group>& groups = graph.groups();
  return std::any_of(groups.begin(), groups.end(), [&](const Group& group) {
    const std::vector<std::string> read = graph.unknowns(group);
    return std::any_of(read.begin(), read.end(),
                       [&](const auto& v) { return stem_of(v) == stem_of(result); }) &&
           std::any_of(group.nodes.begin(), group.nodes.end(), [&](size_t n) {
             const auto& inputs = graph.node(n).inputs;
             return std::count(inputs.begin(), inputs.end(), result) > 0;
           });
  });
}

// Returns whether the values merged into `fold` that the slot's scope reads are several, or the
// slot's call stands for another, too: one of them may be of a parameter of elsewhere.
bool stands_for_several(const CallGraph& graph, const Fold& fold, const Slot& slot) {
  std::set<std::string> values;
  for (const Slot& copy : fold.copies)
    if (graph.scopes[copy.node] == graph.scopes[slot.node])
      for (const std::string& value : graph.unknowns(*graph.group_at(copy.node)))
        if (stem_of(value) == stem_of(graph.tensor(fold.initializer).name)) values.insert(value);
  return values.size() > 1 || is_read_for_another(graph, graph.group_at(slot.node)->call.name);
}

// Claims the slot for a parameter that has a place, and of which `value` may be made.
void claim_of_claimed(const CallGraph& graph, CallClaims& claims, const Fold& fold,
                      const Slot& slot, const std::string& value, const std::string& why) {
  const OnnxTensor& folded = graph.tensor(fold.initializer);
  const bool same = stem_of(value) == stem_of(folded.name);
  Fold copy = fold;
  if (!same) copy.chain = {{std::string(stem_of(value))}};
  // What a call made of its argument is in no layout that the function would tell.
  std::vector<std::string> makers;
  if (!is_literal(folded.name)) makers = makers_of(graph, claims, folded, copy.chain);
  if (makers.size() > 1)
    std::erase_if(makers, [&](const std::string& name) {
      return scope_of_name(name.substr(0, name.rfind('.'))) != graph.scopes[slot.node];
    });
  if (makers.empty() && same && fold.solved)
    return claim_fold(graph, claims, fold, slot, fold.sources[0], true);
  if (makers.size() != 1) {
    for (const std::string& source : fold.sources) claims.report(source, why);
    return;
  }
  copy.derivation = *way_forth(*value_of_parameter(graph, claims, makers[0]), folded, copy.chain);
  claim_fold(graph, claims, copy, slot, makers[0], true);
}

// The call names a value that no node makes: it was equal to the fold. It is made in the same way,
// of the unclaimed parameter of the call's module, else of a claimed one.
void claim_copy(const CallGraph& graph, CallClaims& claims, const std::vector<Fold>& folds,
                const Fold& fold, const Slot& slot) {
  const std::vector<std::string> values = graph.unknowns(*graph.group_at(slot.node));
  const auto same = std::find_if(values.begin(), values.end(), [&](const std::string& value) {
    return stem_of(value) == stem_of(graph.tensor(fold.initializer).name);
  });
  const std::string& value = same == values.end() ? values[0] : *same;
  const std::vector<std::string> unseen = unseen_in(graph, claims, graph.scopes[slot.node]);
  std::vector<std::string> fit = unseen;
  if (unseen.size() > 1)
    std::erase_if(fit, [&](const std::string& name) {
      return differs_beside(claims, folds, fold.sources[0], name) ||
             (is_read_alike(graph, fold, slot) && leaf_of(name) != leaf_of(fold.sources[0]));
    });
  const std::string why = fmt::format("'{}' was merged into {}", value, graph.place_of(slot));
  if (same != values.end() && fold.solved && fit.size() == 1 &&
      !stands_for_several(graph, fold, slot))
    return claim_fold(graph, claims, fold, slot, fit[0], false);
  if (!unseen.empty()) return claims.report_uncalled(unseen, why);
  claim_of_claimed(graph, claims, fold, slot, value, why);
}

// Claims a parameter's own tensor, which is read for a value that was equal to it.
void claim_stand_in(const CallGraph& graph, CallClaims& claims, const Slot& slot) {
  const OnnxTensor& stored = graph.tensor(slot);
  const std::vector<std::string> values = graph.unknowns(*graph.group_at(slot.node));
  const std::string why = fmt::format("'{}' was merged into {}", values[0], graph.place_of(slot));
  const std::vector<std::string> unseen = unseen_in(graph, claims, graph.scopes[slot.node]);
  if (!unseen.empty()) return claims.report_uncalled(unseen, why);
  if (is_uniform(stored.data, stored.type.dtype)) return void(claims.report(stored.name, why));
  Fold fold{.initializer = slot.initializer, .chain = {{std::string(stem_of(values[0]))}}};
  const auto own = value_of_parameter(graph, claims, stored.name);
  const auto derivation = way_forth(own ? *own : stored, stored, fold.chain);
  if (!derivation && !is_removable(values[0])) return void(claims.report(stored.name, why));
  if (derivation) fold.derivation = *derivation;
  claim_fold(graph, claims, fold, slot, stored.name, own.has_value());
}

}  // namespace

void claim_merged_folds(const CallGraph& graph, CallClaims& claims,
                        const std::vector<Fold>& folds) {
  for (const Fold& fold : folds)
    for (const Slot& slot : fold.copies) claim_copy(graph, claims, folds, fold, slot);
}

CallClaims claim_stand_ins(const CallGraph& graph, CallClaims claims, const KeptNames& kept) {
  for (const Slot& slot : kept.stand_ins) claim_stand_in(graph, claims, slot);
  return claims;
}

}  // namespace piper::onnx_import
