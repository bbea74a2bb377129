// Parameters of files that carry the exported program's signature and, by node, the call it came
// from.
//
// Nodes are grouped by call. In each, the placeholders among the call's arguments are given to the
// group's float initializers by role, else by name: equal tensors were merged under one name, so
// that a name alone says little. What was computed from parameters is params_folded.cc's; what was
// merged comes apart again in params_merged.cc.
#include "calls.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "piper/base/parallel.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

// Where a function's parameter stands: its argument, and the op inputs that it may be in, the first
// found wins.
struct RolePlace {
  std::string_view op;
  size_t input;
  bool transposed;        // as against PyTorch's orientation; Gemm: unless transB says otherwise
  bool channels = false;  // one dim in PyTorch; here with dims of 1 around it
  bool indexed = false;   // the dims that are indexed stand first
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

// Of x[i, :, j]: the dims with an index, then the others.
std::vector<int64_t> indexed_first(const std::string& list, size_t rank) {
  std::vector<int64_t> first, rest;
  int64_t dim = 0;
  for (const std::string& index : split_text(list, ','))
    (index.find('%') != index.npos ? first : rest).push_back(dim++);
  for (; dim < static_cast<int64_t>(rank); ++dim) rest.push_back(dim);
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

// From the framework's parameter to the tensor of the shape `stored` at its place.
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

// A number beside the parameter, as in addmm's beta, makes another value of it.
bool may_stand(const RolePlace& place, const OnnxTensor& tensor, const SignatureInput& input) {
  // A literal that the exporter added beside it is a scalar; a bias has one dim.
  const Shape& shape = tensor.type.shape;
  if (place.op == "Add" && !place.channels && shape.size() != 1) return false;
  const auto ones = static_cast<size_t>(std::count(shape.begin(), shape.end(), 1));
  if (place.channels) return !shape.empty() && ones + 1 >= shape.size();
  const std::vector<std::string>& of = tensor.folded_from;
  return place.padded || of.size() < 2 || !std::count(of.begin(), of.end(), input.target);
}

// Numbers of which a program has literals.
bool is_round(double number) {
  return std::fabs(number) <= 1024 && number * 16 == std::floor(number * 16);
}

}  // namespace

void CallClaims::make_groups() {
  constexpr size_t kBlock = 256;
  std::vector<std::optional<Call>> calls(model_.nodes.size());
  in_parallel((calls.size() + kBlock - 1) / kBlock, [&](size_t b) {
    for (size_t n = b * kBlock; n < std::min((b + 1) * kBlock, calls.size()); ++n)
      calls[n] = parse_call(find_metadata(model_.nodes[n].metadata, "pkg.torch.onnx.fx_node"));
  });
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    for (const std::string& output : model_.nodes[n].outputs)
      if (!output.empty()) maker_.emplace(output, n);
    std::optional<Call>& call = calls[n];
    if (!call) continue;
    const auto [entry, fresh] = group_of_.emplace(call->name, groups_.size());
    if (fresh) groups_.push_back({*std::move(call), {}, {}});
    Group& group = groups_[entry->second];
    group.nodes.push_back(n);
    group_at_.emplace(n, entry->second);
    for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
      const int found = index_.find_float(model_.nodes[n].inputs[i]);
      if (found >= 0) group.slots.push_back({n, i, found});
    }
  }
}

// An exporter that merges equal tensors leaves no two of them, and makes initializers of literals.
bool CallClaims::merges_equal() const {
  std::set<std::string> seen;
  for (const OnnxNode& node : model_.nodes)
    if (node.op == "Constant") return false;
  return std::all_of(
      model_.initializers.begin(), model_.initializers.end(), [&](const OnnxTensor& t) {
        if (num_elements(t.type.shape) > kMostMerged) return true;
        return seen.insert(to_string(t.type) + std::string(as_text(t.data.span()))).second;
      });
}

const Group* CallClaims::group_at(size_t node) const {
  const auto at = group_at_.find(node);
  return at == group_at_.end() ? nullptr : &groups_[at->second];
}

bool CallClaims::is_parameter(std::string_view target) const {
  const auto at = by_target_.find(target);
  return at != by_target_.end() && at->second->kind == "PARAMETER";
}

MissingParam& CallClaims::swallow(const std::string& name, std::string why, bool unnamed) {
  return missing_.emplace(name, MissingParam{name, std::move(why), unnamed}).first->second;
}

std::string CallClaims::place_of(const Slot& slot) const {
  const OnnxNode& node = model_.nodes[slot.node];
  return fmt::format("'{}' at {}", node.inputs[slot.input], node.label());
}

void CallClaims::take(Slot& slot, const SignatureInput& input, Derivation derivation,
                      const std::string& evidence) {
  slot.taken = true;
  taken_.emplace(slot.node, slot.input);
  // A buffer or lifted constant keeps its place, but is no parameter.
  const bool is_param = input.kind == "PARAMETER";
  TensorType type = tensor(slot.initializer).type;
  if (!derivation.empty()) type.shape = derivation[0].from;
  if (is_param) claimed_.insert(input.target);
  claims_.list.push_back({slot.node, slot.input, slot.initializer, is_param ? input.target : "",
                          std::move(derivation), std::move(type), evidence});
}

bool CallClaims::assign_by_role(Group& group, const CallArg& arg, const SignatureInput& input) {
  const ParamRole* role = find_role(group.call, arg.position);
  if (!role) return false;
  for (const RolePlace& place : role->places) {
    for (Slot& slot : group.slots) {
      const OnnxNode& node = model_.nodes[slot.node];
      if (slot.taken || node.op != place.op || slot.input != place.input) continue;
      const OnnxTensor& stored = tensor(slot.initializer);
      if (!may_stand(place, stored, input)) continue;
      if (place.op == "Clip" && !unknowns(group).empty()) continue;  // a bound of two
      const bool itself = place.indexed && stored.name == input.target;
      if (place.padded && stored.name != input.target && stored.type.shape.front() == 1)
        claims_.notes.push_back({input.target, kKeepsShape});
      take(slot, input,
           itself ? Derivation() : layout_at(place, node, group.call, stored.type.shape),
           "signature + call " + group.call.name);
      return true;
    }
  }
  return false;
}

// That of what the call names, and the exporter computed, at a place of a known role.
std::optional<Derivation> CallClaims::layout_in_call(const Slot& slot) const {
  const Group* group = group_at(slot.node);
  const OnnxTensor& stored = tensor(slot.initializer);
  const OnnxNode& node = model_.nodes[slot.node];
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

bool CallClaims::may_be_zeros(const std::string& name) const {
  return std::all_of(claims_.list.begin(), claims_.list.end(), [&](const Claim& claim) {
    if (claim.name != name || claim.initializer < 0) return true;
    const OnnxTensor& t = tensor(claim.initializer);
    return is_uniform(t.data, t.type.dtype) && read_number(t.data, t.type.dtype, 0) == 0;
  });
}

// All-zero biases are deleted from Gemm and Conv: the call still names them.
bool CallClaims::restore_zero_bias(Group& group, const CallArg& arg, const SignatureInput& input) {
  const ParamRole* role = find_role(group.call, arg.position);
  if (!role || !may_be_zeros(input.target)) return false;
  for (const size_t n : group.nodes) {
    OnnxNode& node = model_.nodes[n];
    const bool gemm =
        node.op == "Gemm" && role->places[0].op == "Gemm" && role->places[0].input == 2;
    const bool conv =
        node.op == "Conv" && role->places[0].op == "Conv" && role->places[0].input == 2;
    if ((!gemm && !conv) || (node.inputs.size() > 2 && !node.inputs[2].empty())) continue;
    const int weight = node.inputs.size() > 1 ? index_.find(node.inputs[1]) : -1;
    if (weight < 0 || tensor(weight).type.shape.size() < 2) continue;
    const TensorType& type = tensor(weight).type;
    const bool rows = conv || node.get_or<int64_t>("transB") != 0;
    const TensorType bias{type.dtype, {rows ? type.shape[0] : type.shape[1]}};
    node.inputs.resize(3);
    taken_.emplace(n, 2);
    claimed_.insert(input.target);
    claims_.list.push_back(
        {n, 2, -1, input.target, {}, bias, "signature + call " + group.call.name});
    return true;
  }
  return false;
}

// Neither under its own name, nor in anything that was computed.
bool CallClaims::is_merged_away(const SignatureInput& input) const {
  return index_.find(input.target) < 0 &&
         std::none_of(model_.initializers.begin(), model_.initializers.end(),
                      [&](const OnnxTensor& t) {
                        return std::count(t.folded_from.begin(), t.folded_from.end(), input.target);
                      });
}

// A call in several nodes may read a parameter in several; and beside it a number that the exporter
// merged with it, or what it computed.
void CallClaims::take_named(Group& group, const SignatureInput& input) {
  std::vector<Slot*> slots;
  for (Slot& slot : group.slots)
    if (!slot.taken && tensor(slot.initializer).name == input.target) slots.push_back(&slot);
  if (slots.empty()) return;
  const OnnxTensor& stored = tensor(slots[0]->initializer);
  const auto named = static_cast<size_t>(
      std::count_if(group.call.args.begin(), group.call.args.end(),
                    [&](const CallArg& arg) { return arg.name == input.placeholder; }));
  const bool scalar = num_elements(stored.type.shape) == 1 &&
                      is_round(read_number(stored.data, stored.type.dtype, 0));
  const bool unsure = merges_ && is_uniform(stored.data, stored.type.dtype) &&
                      slots.size() > named && (scalar || !unknowns(group).empty());
  for (Slot* slot : slots) {
    take(*slot, input, {}, "signature + call " + group.call.name);
    if (unsure && input.kind == "PARAMETER")
      swallow(input.target, fmt::format("{}, where equal values were merged, is read {} times",
                                        place_of(*slot), slots.size()));
  }
}

// In the order of the arguments, where several were merged into one.
void CallClaims::take_merged(Group& group, const std::vector<const SignatureInput*>& inputs) {
  std::vector<Slot*> open;
  for (Slot& slot : group.slots) {
    const OnnxTensor& t = tensor(slot.initializer);
    if (!slot.taken && t.folded_from.empty() && by_target_.count(t.name)) open.push_back(&slot);
  }
  const bool one = inputs.size() == 1 && std::all_of(open.begin(), open.end(), [&](Slot* slot) {
                     return slot->initializer == open[0]->initializer;
                   });
  if (!one && open.size() != inputs.size()) return;
  for (size_t i = 0; i < open.size(); ++i)
    take(*open[i], *inputs[one ? 0 : i], {}, "signature + call " + group.call.name);
}

void CallClaims::assign_rest(Group& group, const std::vector<const SignatureInput*>& rest) {
  std::vector<const SignatureInput*> merged;
  for (const SignatureInput* input : rest)
    if (is_merged_away(*input)) merged.push_back(input);
  if (merged.empty()) {
    for (const SignatureInput* input : rest) take_named(group, *input);
  } else {
    std::vector<const SignatureInput*> present = rest;
    std::erase_if(present, [&](const SignatureInput* input) {
      return index_.find(input->target) < 0 && !std::count(merged.begin(), merged.end(), input);
    });
    take_merged(group, present);
  }
}

void CallClaims::assign(Group& group) {
  std::vector<const SignatureInput*> rest;
  for (const CallArg& arg : group.call.args) {
    const auto found = targets_.find(arg.name);
    if (found == targets_.end()) continue;
    const SignatureInput& input = *found->second;
    if (assign_by_role(group, arg, input) || restore_zero_bias(group, arg, input)) continue;
    if (find_role(group.call, arg.position) == nullptr) rest.push_back(&input);
  }
  assign_rest(group, rest);
}

// Uses that no call explains: an initializer under a parameter's name is that parameter, unless it
// holds one repeated number and may be a constant that was merged with it.
void CallClaims::claim_by_name() {
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
      const int found = index_.find_float(model_.nodes[n].inputs[i]);
      if (found < 0 || taken_.count({n, i}) || !is_parameter(tensor(found).name)) continue;
      const SignatureInput& input = *by_target_.find(tensor(found).name)->second;
      const Group* group = group_at(n);
      if (merges_ && group && !is_fused(model_.nodes[n]) && !names(*group, input.placeholder) &&
          !unknowns(*group).empty()) {
        stand_ins_.push_back({n, i, found});
        continue;
      }
      if (!group) {
        parts_.push_back({n, i, found});
        continue;
      }
      const bool uniform = is_uniform(tensor(found).data, tensor(found).type.dtype);
      if (merges_ && uniform && claimed_.count(input.target)) continue;
      Slot slot{n, i, found};
      take(slot, input, {}, "kept name");
    }
  }
  for (const Slot& slot : parts_) claim_part(slot);
}

std::vector<std::string> CallClaims::missing() const {
  std::vector<std::string> out;
  std::copy_if(claims_.order.begin(), claims_.order.end(), std::back_inserter(out),
               [&](const std::string& name) { return !claimed_.count(name); });
  return out;
}

Result<Claims> CallClaims::run() {
  make_groups();
  merges_ = merges_equal();
  for (Group& group : groups_) assign(group);
  claim_by_name();
  tie_unused();
  claim_folded();
  for (const Slot& slot : stand_ins_) claim_stand_in(slot);
  while (restore_merged_module() || restore_merged_parts()) {
  }
  claims_.lost = missing();
  find_missing();
  tie_lost();
  return std::move(claims_);
}

Result<Claims> claims_by_calls(OnnxModel& model, std::vector<std::string>& scopes,
                               const std::vector<SignatureInput>& signature,
                               const PriorKnowledge& prior) {
  return CallClaims(model, scopes, signature, prior).run();
}

}  // namespace piper::onnx_import
