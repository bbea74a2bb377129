// Gives the parameters among a call's arguments to the initializers that its nodes read: by the
// place that the function has for them, else by name. claims_by_calls calls claim_arguments first.
#include <algorithm>
#include <cmath>

#include "folds.h"

namespace piper::onnx_import {
namespace {

// Names an op input that may hold a function's parameter. The first that is found counts.
struct RolePlace {
  std::string_view op;
  size_t input;
  bool transposed;        // of PyTorch's orientation; Gemm: unless transB says otherwise
  bool channels = false;  // one dim in PyTorch; here with dims of 1 around it
  bool indexed = false;   // the dims that are indexed come first
  bool padded = false;    // dims of 1 may have been put in front
};
struct ParamRole {
  std::string_view function;
  int position;
  std::vector<RolePlace> places;
};

const std::vector<ParamRole>& param_roles() {
  static const std::vector<ParamRole> kParamRoles = {
      {"aten.linear", 1, {{"Gemm", 1, true}, {"MatMul", 1, true}, {"Transpose", 0, false}}},
      {"aten.linear", 2, {{"Gemm", 2, false}, {"Add", 1, false}, {"Add", 0, false}}},
      {"aten.addmm", 0, {{"Gemm", 2, false}, {"Add", 0, false}, {"Add", 1, false}}},
      {"aten.addmm", 2, {{"Gemm", 1, false}, {"MatMul", 1, false}}},
      {"aten.mm", 1, {{"Gemm", 1, false}, {"MatMul", 1, false}}},
      {"aten.index", 0, {{"GatherND", 0, false, false, true}}},
      {"aten.clamp", 1, {{"Clip", 1, false}}},
      {"aten.clamp", 2, {{"Clip", 2, false}}},
      {"aten.embedding", 0, {{"Gather", 0, false}}},
      {"aten.layer_norm", 2, {{"LayerNormalization", 1, false}}},
      {"aten.layer_norm", 3, {{"LayerNormalization", 2, false}}},
      {"aten.rms_norm", 2, {{"RMSNormalization", 1, false}}},
      {"aten.group_norm", 2, {{"GroupNormalization", 1, false}, {"Mul", 1, false, true}}},
      {"aten.group_norm", 3, {{"GroupNormalization", 2, false}, {"Add", 1, false, true}}},
      {"aten.prelu", 1, {{"PRelu", 1, false, true}}},
      {"aten.repeat", 0, {{"Tile", 0, false, false, false, true}}},
      {"aten.conv1d", 1, {{"Conv", 1, false}}},
      {"aten.conv1d", 2, {{"Conv", 2, false}}},
      {"aten.conv2d", 1, {{"Conv", 1, false}}},
      {"aten.conv2d", 2, {{"Conv", 2, false}}},
      {"aten.conv3d", 1, {{"Conv", 1, false}}},
      {"aten.conv3d", 2, {{"Conv", 2, false}}},
      {"aten.convolution", 1, {{"Conv", 1, false}}},
      {"aten.convolution", 2, {{"Conv", 2, false}}},
  };
  return kParamRoles;
}

const ParamRole* find_role(const Call& call, int position) {
  for (const ParamRole& role : param_roles()) {
    if (role.function == call.function && role.position == position) return &role;
  }
  return nullptr;
}

// Returns for x[i, :, j] the dims with an index, then the others.
std::vector<int64_t> indexed_first(const std::string& list, size_t rank) {
  std::vector<int64_t> first, rest;
  int64_t dim = 0;
  for (const std::string& index : split_text(list, ','))
    (index.find('%') != index.npos ? first : rest).push_back(dim++);
  for (; dim < static_cast<int64_t>(rank); ++dim) rest.push_back(dim);
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

// Returns the way from the framework's parameter to the tensor of the shape `stored` at its place.
Derivation layout_at(const RolePlace& place, const OnnxNode& node, const Call& call,
                     const Shape& stored) {
  const bool turned = place.op == "Gemm" && place.input == 1 && node.get_or<int64_t>("transB") != 0;
  if (place.transposed != turned && stored.size() == 2)
    return transposition({stored[1], stored[0]});
  if (place.channels && stored.size() > 1) return {reshape_step({num_elements(stored)}, stored)};
  if (!place.indexed || call.words.size() < 2) return {};
  const std::vector<int64_t> perm = indexed_first(call.words[1], stored.size());
  if (perm.size() != stored.size() || std::is_sorted(perm.begin(), perm.end())) return {};
  Shape own(stored.size());
  for (size_t d = 0; d < own.size(); ++d) own[static_cast<size_t>(perm[d])] = stored[d];
  return {permute_step(own, perm)};
}

// Returns whether the tensor may be the parameter itself. A number beside it, as addmm's beta,
// makes another value of it.
bool may_stand(const RolePlace& place, const OnnxTensor& tensor, const SignatureInput& input) {
  // A literal that the exporter added beside it is a scalar; a bias has one dim.
  const Shape& shape = tensor.type.shape;
  if (place.op == "Add" && !place.channels && shape.size() != 1) return false;
  const auto ones = static_cast<size_t>(std::count(shape.begin(), shape.end(), 1));
  if (place.channels) return !shape.empty() && ones + 1 >= shape.size();
  const std::vector<std::string>& of = tensor.folded_from;
  return place.padded || of.size() < 2 || !std::count(of.begin(), of.end(), input.target);
}

// Returns whether a program is likely to have the number as a literal.
bool is_round(double number) {
  return std::fabs(number) <= 1024 && number * 16 == std::floor(number * 16);
}

std::string evidence_of(const Group& group) { return "signature + call " + group.call.name; }

bool claim_by_role(const CallGraph& graph, CallClaims& claims, const Group& group,
                   const CallArg& arg, const SignatureInput& input) {
  const ParamRole* role = find_role(group.call, arg.position);
  if (!role) return false;
  for (const RolePlace& place : role->places) {
    for (const Slot& slot : group.slots) {
      const OnnxNode& node = graph.node(slot.node);
      if (claims.is_taken(slot) || node.op != place.op || slot.input != place.input) continue;
      const OnnxTensor& stored = graph.tensor(slot);
      if (!may_stand(place, stored, input)) continue;
      if (place.op == "Clip" && !graph.unknowns(group).empty()) continue;  // a bound of two
      const bool itself = place.indexed && stored.name == input.target;
      if (place.padded && stored.name != input.target && stored.type.shape.front() == 1)
        claims.found.notes.push_back({input.target, kKeepsShape});
      claims.take(graph, slot, input,
                  itself ? Derivation() : layout_at(place, node, group.call, stored.type.shape),
                  evidence_of(group));
      return true;
    }
  }
  return false;
}

bool may_be_zeros(const CallGraph& graph, const CallClaims& claims, const std::string& name) {
  return std::all_of(claims.found.list.begin(), claims.found.list.end(), [&](const Claim& claim) {
    if (claim.name != name || claim.initializer < 0) return true;
    const OnnxTensor& t = graph.tensor(claim.initializer);
    return is_uniform(t.data, t.type.dtype) && read_number(t.data, t.type.dtype, 0) == 0;
  });
}

// The exporter deletes all-zero biases from Gemm and Conv: the call still names them.
bool claim_zero_bias(const CallGraph& graph, CallClaims& claims, const Group& group,
                     const CallArg& arg, const SignatureInput& input) {
  const ParamRole* role = find_role(group.call, arg.position);
  if (!role || !may_be_zeros(graph, claims, input.target)) return false;
  for (const size_t n : group.nodes) {
    const OnnxNode& node = graph.node(n);
    const RolePlace& place = role->places[0];
    const bool is_bias =
        (node.op == "Gemm" || node.op == "Conv") && place.op == node.op && place.input == 2;
    if (!is_bias || (node.inputs.size() > 2 && !node.inputs[2].empty())) continue;
    const int weight = node.inputs.size() > 1 ? graph.index.find(node.inputs[1]) : -1;
    if (weight < 0 || graph.tensor(weight).type.shape.size() < 2) continue;
    const TensorType& type = graph.tensor(weight).type;
    const bool rows = node.op == "Conv" || node.get_or<int64_t>("transB") != 0;
    const TensorType bias{type.dtype, {rows ? type.shape[0] : type.shape[1]}};
    claims.add({n, 2, -1, input.target, {}, bias, evidence_of(group)});
    return true;
  }
  return false;
}

// Returns whether the file has the input neither under its own name, nor in anything computed.
bool is_merged_away(const CallGraph& graph, const SignatureInput& input) {
  const std::vector<OnnxTensor>& tensors = graph.model.initializers;
  return graph.index.find(input.target) < 0 &&
         std::none_of(tensors.begin(), tensors.end(), [&](const OnnxTensor& t) {
           return std::count(t.folded_from.begin(), t.folded_from.end(), input.target) > 0;
         });
}

// Returns whether some of the slots may read another value that is equal.
bool is_unsure(const CallGraph& graph, const Group& group, const SignatureInput& input,
               const std::vector<const Slot*>& slots) {
  const OnnxTensor& stored = graph.tensor(*slots[0]);
  const auto named = static_cast<size_t>(
      std::count_if(group.call.args.begin(), group.call.args.end(),
                    [&](const CallArg& arg) { return arg.name == input.placeholder; }));
  const bool scalar = num_elements(stored.type.shape) == 1 &&
                      is_round(read_number(stored.data, stored.type.dtype, 0));
  return graph.merges && is_uniform(stored.data, stored.type.dtype) && slots.size() > named &&
         (scalar || !graph.unknowns(group).empty());
}

// A call in several nodes may read a parameter in several; and beside it a number that the exporter
// merged with it, or computed.
void claim_named(const CallGraph& graph, CallClaims& claims, const Group& group,
                 const SignatureInput& input) {
  std::vector<const Slot*> slots;
  for (const Slot& slot : group.slots)
    if (!claims.is_taken(slot) && graph.tensor(slot).name == input.target) slots.push_back(&slot);
  if (slots.empty()) return;
  const bool unsure = is_unsure(graph, group, input, slots);
  for (const Slot* slot : slots) {
    claims.take(graph, *slot, input, {}, evidence_of(group));
    if (unsure && input.kind == "PARAMETER")
      claims.report(input.target,
                    fmt::format("{}, where equal values were merged, is read {} times",
                                graph.place_of(*slot), slots.size()));
  }
}

// Where several were merged into one, they are claimed in the order of the arguments.
void claim_merged(const CallGraph& graph, CallClaims& claims, const Group& group,
                  const std::vector<const SignatureInput*>& inputs) {
  std::vector<const Slot*> open;
  for (const Slot& slot : group.slots) {
    const OnnxTensor& t = graph.tensor(slot);
    if (!claims.is_taken(slot) && t.folded_from.empty() && graph.target(t.name))
      open.push_back(&slot);
  }
  const bool one =
      inputs.size() == 1 && std::all_of(open.begin(), open.end(), [&](const Slot* slot) {
        return slot->initializer == open[0]->initializer;
      });
  if (!one && open.size() != inputs.size()) return;
  for (size_t i = 0; i < open.size(); ++i)
    claims.take(graph, *open[i], *inputs[one ? 0 : i], {}, evidence_of(group));
}

// Claims the inputs for which the call's function has no place.
void claim_rest(const CallGraph& graph, CallClaims& claims, const Group& group,
                const std::vector<const SignatureInput*>& rest) {
  const auto is_merged = [&](const SignatureInput* input) { return is_merged_away(graph, *input); };
  if (std::none_of(rest.begin(), rest.end(), is_merged)) {
    for (const SignatureInput* input : rest) claim_named(graph, claims, group, *input);
    return;
  }
  std::vector<const SignatureInput*> present = rest;
  std::erase_if(present, [&](const SignatureInput* input) {
    return graph.index.find(input->target) < 0 && !is_merged(input);
  });
  claim_merged(graph, claims, group, present);
}

}  // namespace

std::optional<Derivation> layout_in_call(const CallGraph& graph, const Slot& slot) {
  const Group* group = graph.group_at(slot.node);
  const OnnxTensor& stored = graph.tensor(slot);
  const OnnxNode& node = graph.node(slot.node);
  if (!group) return {};
  for (const CallArg& arg : group->call.args) {
    const ParamRole* role = find_role(group->call, arg.position);
    if (!role || !std::count(stored.folded_from.begin(), stored.folded_from.end(), arg.name))
      continue;
    for (const RolePlace& place : role->places)
      if (place.op == node.op && place.input == slot.input)
        return layout_at(place, node, group->call, stored.type.shape);
  }
  return {};
}

CallClaims claim_arguments(const CallGraph& graph, CallClaims claims) {
  for (const Group& group : graph.groups()) {
    std::vector<const SignatureInput*> rest;
    for (const CallArg& arg : group.call.args) {
      const SignatureInput* input = graph.placeholder(arg.name);
      if (!input || claim_by_role(graph, claims, group, arg, *input) ||
          claim_zero_bias(graph, claims, group, arg, *input))
        continue;
      if (find_role(group.call, arg.position) == nullptr) rest.push_back(input);
    }
    claim_rest(graph, claims, group, rest);
  }
  return claims;
}

}  // namespace piper::onnx_import
