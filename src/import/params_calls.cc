// Parameters of files that carry the exported program's signature and, by node, the call it came
// from.
//
// Nodes are grouped by call. In each, the placeholders among the call's arguments are given to the
// group's float initializers by role: what an initializer is called decides only where the roles
// leave a choice, because equal tensors were merged under one name. Then ties, folded tables and
// deleted biases are looked for; what was merged comes apart again in params_merged.cc.
#include "params_calls.h"

#include <algorithm>
#include <map>

#include "host.h"
#include "piper/parallel.h"

namespace piper::onnx_import {
namespace {

// Where a function's parameter stands: its argument, and the op inputs that it may be in, the first
// found wins.
struct RolePlace {
  std::string_view op;
  size_t input;
  bool transposed;        // as against PyTorch's orientation; Gemm: unless transB says otherwise
  bool channels = false;  // one dim in PyTorch; here with dims of 1 around it
};
struct Role {
  std::string_view function;
  int position;
  std::vector<RolePlace> places;
};

const std::vector<Role>& roles() {
  static const std::vector<Role> kRoles = {
      {"aten.linear", 1, {{"Gemm", 1, true}, {"MatMul", 1, true}, {"Transpose", 0, false}}},
      {"aten.linear", 2, {{"Gemm", 2, false}, {"Add", 1, false}, {"Add", 0, false}}},
      {"aten.addmm", 0, {{"Gemm", 2, false}, {"Add", 0, false}, {"Add", 1, false}}},
      {"aten.addmm", 2, {{"Gemm", 1, false}, {"MatMul", 1, false}}},
      {"aten.mm", 1, {{"Gemm", 1, false}, {"MatMul", 1, false}}},
      {"aten.embedding", 0, {{"Gather", 0, false}}},
      {"aten.layer_norm", 2, {{"LayerNormalization", 1, false}}},
      {"aten.layer_norm", 3, {{"LayerNormalization", 2, false}}},
      {"aten.rms_norm", 2, {{"RMSNormalization", 1, false}}},
      {"aten.group_norm", 2, {{"GroupNormalization", 1, false}, {"Mul", 1, false, true}}},
      {"aten.group_norm", 3, {{"GroupNormalization", 2, false}, {"Add", 1, false, true}}},
      {"aten.prelu", 1, {{"PRelu", 1, false, true}}},
      {"aten.conv1d", 1, {{"Conv", 1, false}}},
      {"aten.conv1d", 2, {{"Conv", 2, false}}},
      {"aten.conv2d", 1, {{"Conv", 1, false}}},
      {"aten.conv2d", 2, {{"Conv", 2, false}}},
      {"aten.conv3d", 1, {{"Conv", 1, false}}},
      {"aten.conv3d", 2, {{"Conv", 2, false}}},
      {"aten.convolution", 1, {{"Conv", 1, false}}},
      {"aten.convolution", 2, {{"Conv", 2, false}}},
  };
  return kRoles;
}

const Role* find_role(const Call& call, int position) {
  for (const Role& role : roles()) {
    if (role.function == call.function && role.position == position) return &role;
  }
  return nullptr;
}

int64_t attr_integer(const OnnxNode& node, std::string_view name) {
  const OnnxAttr* attr = node.find(name);
  const auto* value = attr ? std::get_if<int64_t>(&attr->value) : nullptr;
  return value ? *value : 0;
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
    std::optional<Call>& call = calls[n];
    if (!call) continue;
    const auto [entry, fresh] = group_of_.emplace(call->name, groups_.size());
    if (fresh) groups_.push_back({*std::move(call), {}, {}});
    Group& group = groups_[entry->second];
    group.nodes.push_back(n);
    for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
      const int found = index_.find_float(model_.nodes[n].inputs[i]);
      if (found >= 0) group.slots.push_back({n, i, found});
    }
  }
}

void CallClaims::take(Slot& slot, const SignatureInput& input, bool transposed,
                      const std::string& evidence) {
  slot.taken = true;
  taken_.emplace(slot.node, slot.input);
  // A buffer or lifted constant keeps its place, but is no parameter.
  const bool is_param = input.kind == "PARAMETER";
  TensorType type = tensor(slot.initializer).type;
  Derivation derivation;
  if (transposed && type.shape.size() == 2) {
    std::swap(type.shape[0], type.shape[1]);
    derivation = transposition(type.shape);
  }
  if (is_param) claimed_.insert(input.target);
  claims_.list.push_back({slot.node, slot.input, slot.initializer, is_param ? input.target : "",
                          std::move(derivation), std::move(type), evidence});
}

bool CallClaims::assign_by_role(Group& group, const CallArg& arg, const SignatureInput& input) {
  const Role* role = find_role(group.call, arg.position);
  if (!role) return false;
  for (const RolePlace& place : role->places) {
    for (Slot& slot : group.slots) {
      const OnnxNode& node = model_.nodes[slot.node];
      if (slot.taken || node.op != place.op || slot.input != place.input) continue;
      // A literal that the exporter added beside it is a scalar; a bias has one dim.
      const Shape& shape = tensor(slot.initializer).type.shape;
      if (place.op == "Add" && !place.channels && shape.size() != 1) continue;
      const auto ones = static_cast<size_t>(std::count(shape.begin(), shape.end(), 1));
      if (place.channels && (shape.empty() || ones + 1 < shape.size())) continue;
      bool transposed = place.transposed;
      if (node.op == "Gemm" && slot.input == 1) {
        transposed = transposed != (attr_integer(node, "transB") != 0);
      }
      take(slot, input, transposed, "signature + call " + group.call.name);
      if (place.channels && shape.size() > 1) {
        Claim& claim = claims_.list.back();
        claim.type.shape = {num_elements(shape)};
        claim.derivation = {reshape_step(claim.type.shape, shape)};
      }
      return true;
    }
  }
  return false;
}

// All-zero biases are deleted from Gemm and Conv: the call still names them.
bool CallClaims::restore_zero_bias(Group& group, const CallArg& arg, const SignatureInput& input) {
  const Role* role = find_role(group.call, arg.position);
  if (!role || claimed_.count(input.target)) return false;
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
    const bool rows = conv || attr_integer(node, "transB") != 0;
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

void CallClaims::assign_rest(Group& group, std::vector<const SignatureInput*> rest) {
  std::vector<Slot*> open;
  for (Slot& slot : group.slots) {
    if (!slot.taken) open.push_back(&slot);
  }
  auto same_name = [&](const Slot& slot, const SignatureInput& input) {
    const OnnxTensor& t = tensor(slot.initializer);
    return t.name == input.target ||
           std::count(t.folded_from.begin(), t.folded_from.end(), input.target) > 0;
  };
  const std::string evidence = "signature + call " + group.call.name;
  // Names decide where each names exactly one of the places.
  for (auto it = rest.begin(); it != rest.end();) {
    std::vector<Slot*> named;
    for (Slot* slot : open) {
      if (!slot->taken && same_name(*slot, **it)) named.push_back(slot);
    }
    if (named.size() == 1 && tensor(named[0]->initializer).name == (*it)->target) {
      take(*named[0], **it, false, evidence);
      it = rest.erase(it);
    } else {
      ++it;
    }
  }
  std::erase_if(open, [](const Slot* slot) { return slot->taken; });
  // Literals are scalars; the rest stands in the order of the arguments.
  if (open.size() > rest.size()) {
    std::erase_if(open, [&](const Slot* slot) {
      return num_elements(tensor(slot->initializer).type.shape) == 1;
    });
  }
  if (open.size() != rest.size()) return;
  for (size_t i = 0; i < open.size(); ++i) {
    // What the exporter computed from the parameter is not the parameter: see claim_folded.
    if (tensor(open[i]->initializer).folded_from.empty()) take(*open[i], *rest[i], false, evidence);
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
  assign_rest(group, std::move(rest));
}

// Uses that no call explains: an initializer under a parameter's name is that parameter, unless it
// holds one repeated number and may be a constant that was merged with it.
void CallClaims::claim_by_name() {
  std::map<std::string, const SignatureInput*> by_target;
  for (const auto& [placeholder, input] : targets_) {
    if (input->kind == "PARAMETER") by_target.emplace(input->target, input);
  }
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
      const int found = index_.find_float(model_.nodes[n].inputs[i]);
      if (found < 0 || taken_.count({n, i})) continue;
      const auto named = by_target.find(tensor(found).name);
      if (named == by_target.end()) continue;
      const bool uniform = is_uniform(tensor(found).data, tensor(found).type.dtype);
      if (uniform && claimed_.count(named->first)) continue;
      Slot slot{n, i, found};
      take(slot, *named->second, false, "kept name");
    }
  }
}

// A constant that was computed from a parameter beside its place, such as a penalty on a weight: it
// would not follow when the parameter is trained.
void CallClaims::find_folded_apart(const OnnxTensor& constant) {
  for (const std::string& source : constant.folded_from)
    if (claimed_.count(source)) folded_apart_.push_back(source);
}

// Constants that were computed from a parameter without another place.
void CallClaims::claim_folded() {
  const std::vector<std::string> lost = missing();
  std::map<std::string, int> by_source;  // the initializer that stands for it
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
      const int found = index_.find_float(model_.nodes[n].inputs[i]);
      if (found < 0 || taken_.count({n, i})) continue;
      const OnnxTensor& t = tensor(found);
      std::vector<std::string> sources;
      for (const std::string& name : lost) {
        if (std::count(t.folded_from.begin(), t.folded_from.end(), name)) sources.push_back(name);
      }
      const std::optional<Unfolded> way = unfold(t);
      const bool last =
          lost.size() == 1 && t.folded_from.empty() && !is_uniform(t.data, t.type.dtype);
      if (sources.empty() && way && last) sources = lost;
      if (sources.empty()) {
        find_folded_apart(t);
        continue;
      }
      if (sources.size() > 1 || !way ||
          by_source.emplace(sources[0], found).first->second != found) {
        claims_.swallowed.insert(claims_.swallowed.end(), sources.begin(), sources.end());
        continue;
      }
      if (claimed_.insert(sources[0]).second && !way->note.empty())
        claims_.notes.push_back({sources[0], way->note});
      taken_.emplace(n, i);
      claims_.list.push_back(
          {n, i, found, sources[0], way->derivation, way->type, "folded from it, as " + t.name});
    }
  }
}

std::vector<std::string> CallClaims::missing() const {
  std::vector<std::string> out;
  std::copy_if(claims_.order.begin(), claims_.order.end(), std::back_inserter(out),
               [&](const std::string& name) { return !claimed_.count(name); });
  return out;
}

Result<Claims> CallClaims::run() {
  make_groups();
  for (Group& group : groups_) assign(group);
  claim_by_name();
  tie_unused();
  claim_folded();
  while (restore_merged_module()) {
  }
  claims_.lost = missing();
  find_swallowed();
  return std::move(claims_);
}

Result<Claims> claims_by_calls(OnnxModel& model, std::vector<std::string>& scopes,
                               const std::vector<SignatureInput>& signature) {
  return CallClaims(model, scopes, signature).run();
}

}  // namespace piper::onnx_import
