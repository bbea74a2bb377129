// Claims what the exporter computed from parameters, for claims_by_calls: the parameter is found
// again where there is one exact answer, or where another place has it.
#include <algorithm>

#include "folds.h"
#include "pieces.h"

namespace piper::onnx_import {

std::optional<OnnxTensor> value_of_parameter(const CallGraph& graph, const CallClaims& claims,
                                             const std::string& name) {
  const auto given = claims.found.given.find(name);
  if (given != claims.found.given.end()) return given->second;
  for (const Claim& claim : claims.found.list) {
    if (claim.name != name || claim.copy) continue;
    if (claim.initializer < 0)
      return OnnxTensor{name, claim.type, Bytes::zeros(static_cast<size_t>(claim.type.bytes()))};
    Result<OnnxTensor> value = parameter_of(claim.derivation, graph.tensor(claim.initializer));
    return value ? std::optional(*std::move(value)) : std::nullopt;
  }
  return {};
}

void claim_fold(const CallGraph& graph, CallClaims& claims, const Fold& fold, const Slot& slot,
                const std::string& name, bool copy) {
  const OnnxTensor& folded = graph.tensor(slot);
  TensorType type = folded.type;
  if (!fold.derivation.empty()) type.shape = fold.derivation[0].from;
  claims.add({slot.node, slot.input, slot.initializer, name, fold.derivation, type,
              "folded from it, as " + folded.name, copy});
}

namespace {

void claim_solved(const CallGraph& graph, CallClaims& claims, Fold& fold, Derivation derivation,
                  bool copy) {
  fold.solved = true;
  fold.derivation = std::move(derivation);
  fold.derivation.insert(fold.derivation.end(), fold.layout.begin(), fold.layout.end());
  for (const Slot& slot : fold.own) claim_fold(graph, claims, fold, slot, fold.sources[0], copy);
}

// What was computed of one parameter in several ways is derived in the way that explains the others
// too: near where it is flat, a function tells its parameter less well.
bool explains_others(const CallGraph& graph, const Fold& fold, const Derivation& derivation,
                     const std::vector<Fold>& folds) {
  const Result<OnnxTensor> parameter = parameter_of(derivation, made_by_chain(graph, fold));
  return parameter && std::all_of(folds.begin(), folds.end(), [&](const Fold& other) {
           return &other == &fold || other.sources != fold.sources ||
                  way_forth(*parameter, made_by_chain(graph, other), other.chain);
         });
}

// A convolution reads as many dims as the operator wants, so that dims of 1 that came and went
// before it have left the parameter's shape.
bool keeps_shape(const CallGraph& graph, const Fold& fold) {
  const auto moves_nothing = [](const std::string& function) {
    const PieceKind kind = kind_of(function);
    return kind == PieceKind::kReshape || kind == PieceKind::kSame;
  };
  const auto convolves = [&](const Slot& slot) {
    return graph.node(slot.node).op == "Conv" && slot.input == 1;
  };
  const Shape& shape = graph.tensor(fold.initializer).type.shape;
  return !fold.own.empty() && std::all_of(fold.own.begin(), fold.own.end(), convolves) &&
         std::count(shape.begin(), shape.end(), 1) > 0 &&
         std::all_of(fold.chain.functions.begin(), fold.chain.functions.end(), moves_nothing);
}

// Finds a fold's parameter from the fold's value. `cut` allows ways by which only a part of the
// parameter is left, or its shape is lost.
void solve_back(const CallGraph& graph, CallClaims& claims, Fold& fold,
                const std::vector<Fold>& folds, bool cut, const PriorKnowledge& prior) {
  if (fold.solved || fold.sources.size() > 1 || value_of_parameter(graph, claims, fold.sources[0]))
    return;
  const auto& functions = fold.chain.functions;
  if (std::count(functions.begin(), functions.end(), "softplus") &&
      !is_plain_softplus(graph, fold)) {
    fold.why = ": the factor of 'softplus' is lost";
    return;
  }
  if (std::count(functions.begin(), functions.end(), "add"))
    fold.chain.plus = added_number(graph, fold, prior);
  Result<Way> way = keeps_shape(graph, fold) ? Way{graph.tensor(fold.initializer).type, {}}
                                             : way_back(made_by_chain(graph, fold), fold.chain);
  if (!way) fold.why = ": " + way.error().message;
  if (!way || (!cut && !way->note.empty())) return;
  if (!explains_others(graph, fold, way->derivation, folds)) {
    fold.why = ", and so was another value, which its bytes do not show";
    return;
  }
  if (!way->note.empty() && !fold.own.empty()) {
    claims.found.notes.push_back({fold.sources[0], way->note});
    claims.partial.emplace(fold.sources[0], fold.initializer);
  }
  claim_solved(graph, claims, fold, std::move(way->derivation), false);
}

// Finds a fold's way from its parameter, which another place has: the bytes tell it.
void solve_forth(const CallGraph& graph, CallClaims& claims, Fold& fold) {
  if (fold.solved || fold.sources.size() > 1) return;
  const auto value = value_of_parameter(graph, claims, fold.sources[0]);
  if (!value) return;
  auto derivation = way_forth(*value, made_by_chain(graph, fold), fold.chain);
  if (derivation)
    claim_solved(graph, claims, fold, *std::move(derivation), true);
  else
    fold.why = ", which its bytes do not show";
}

void report_unsolved(const CallGraph& graph, CallClaims& claims, const Fold& fold) {
  const std::string place = graph.place_of(fold.own.empty() ? fold.copies[0] : fold.own[0]);
  const bool one = fold.sources.size() == 1;
  for (const std::string& source : fold.sources) {
    MissingParam& lost = claims.report(
        source, one ? fmt::format("{} was computed from it{}", place, fold.why)
                    : fmt::format("{} was computed from {}", place, join(fold.sources, " and ")));
    lost.by_value = one && has_way_forth(fold.chain) && !claims.found.given.count(source);
  }
}

// A part of a parameter stands for it where the other parts are unused. One of them may be read
// where a call names a part that no node makes, and a constant that was equal to it is read.
void report_other_parts(const CallGraph& graph, CallClaims& claims, const Fold& fold) {
  const auto part = std::find_if(fold.chain.functions.begin(), fold.chain.functions.end(), is_part);
  if (!fold.solved || !claims.partial.count(fold.sources[0]) || part == fold.chain.functions.end())
    return;
  for (const Group& group : graph.groups()) {
    if (group.slots.empty()) continue;
    for (const std::string& value : graph.unknowns(group))
      if (is_part(stem_of(value)))
        claims.report(fold.sources[0],
                      fmt::format("'{}', which {} reads, may be another part of it", value,
                                  graph.node(group.slots[0].node).label()));
  }
}

// Reports folds that are choices, made once and for all, and removes folds of other types than
// floats. The others are shapes.
void report_choices(const CallGraph& graph, CallClaims& claims, std::vector<Fold>& folds) {
  std::erase_if(folds, [&](const Fold& fold) {
    const OnnxTensor& t = graph.tensor(fold.initializer);
    if (info(t.type.dtype).is_float) return false;
    if (t.type.dtype == DType::kBool || !is_literal(t.name)) report_unsolved(graph, claims, fold);
    return true;
  });
}

// Notes parameters that are saved otherwise than the file has them, which users would not expect:
// those whose first claim is among the claims from `first` on. `named` are those claimed before.
void note_stored(CallClaims& claims, size_t first, std::set<std::string> named) {
  std::map<std::string, std::vector<std::string>> stored;  // parameters, by how they are stored
  for (size_t k = first; k < claims.found.list.size(); ++k) {
    const Claim& claim = claims.found.list[k];
    if (named.insert(claim.name).second && !claim.copy && !is_layout(claim.derivation))
      stored[describe(claim.derivation)].push_back(claim.name);
  }
  for (const auto& [how, names] : stored)
    for (const std::string& name : names) claims.found.notes.push_back({name, "stored as " + how});
}

}  // namespace

CallClaims claim_folded(const CallGraph& graph, CallClaims claims, const PriorKnowledge& prior) {
  const size_t first = claims.found.list.size();
  const std::set<std::string> named = claims.named;
  std::vector<Fold> folds = find_folds(graph, claims);
  report_choices(graph, claims, folds);
  for (const bool cut : {false, true})
    for (Fold& fold : folds) solve_back(graph, claims, fold, folds, cut, prior);
  for (Fold& fold : folds) solve_forth(graph, claims, fold);
  for (const Fold& fold : folds)
    if (!fold.solved) report_unsolved(graph, claims, fold);
  claim_merged_folds(graph, claims, folds);
  for (const Fold& fold : folds) report_other_parts(graph, claims, fold);
  note_stored(claims, first, named);
  return claims;
}

}  // namespace piper::onnx_import
