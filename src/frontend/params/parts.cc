// Parts of parameters, which nodes without a call make: those of equal parameters were merged.
#include <algorithm>

#include "calls.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {

std::vector<const Group*> CallClaims::readers_of(const std::string& value) const {
  std::vector<const Group*> out;
  for (const Group& group : groups_)
    if (std::any_of(group.nodes.begin(), group.nodes.end(), [&](size_t n) {
          const std::vector<std::string>& inputs = model_.nodes[n].inputs;
          return std::count(inputs.begin(), inputs.end(), value) > 0;
        }))
      out.push_back(&group);
  return out;
}

// The calls that read what the node makes, by way of nodes without a call and of what is within
// one: the first steps of equal calls are merged.
std::vector<const Group*> CallClaims::readers_of_node(size_t node) const {
  std::vector<const Group*> out;
  std::set<std::string> open(model_.nodes[node].outputs.begin(), model_.nodes[node].outputs.end());
  for (size_t n = node + 1; n < model_.nodes.size(); ++n) {
    const std::vector<std::string>& inputs = model_.nodes[n].inputs;
    if (std::none_of(inputs.begin(), inputs.end(),
                     [&](const std::string& input) { return open.count(input) > 0; }))
      continue;
    const Group* group = group_at(n);
    if (group) out.push_back(group);
    for (const std::string& output : model_.nodes[n].outputs)
      if (!group || output != group->call.name) open.insert(output);
  }
  return out;
}

// Of equal tensors the first in the signature's order stands for all. Of several names of one
// tensor, it is the last.
bool CallClaims::may_stand_for(const std::string& kept, const std::string& lost) const {
  const auto place = [&](const std::string& name) {
    return std::find(claims_.order.begin(), claims_.order.end(), name);
  };
  const int found = index_.find(kept);
  return merges_ && found >= 0 && num_elements(tensor(found).type.shape) <= kMostMerged &&
         place(kept) < place(lost);
}

// The parameter without a place that `scope` reads in parts of what is stored as `kept`.
std::string CallClaims::part_in(const std::string& scope, const std::string& kept) const {
  for (const std::string& lost : unseen_in(scope))
    if (leaf_of(lost) == leaf_of(kept) && scope_of_name(module_of(lost)) == scope)
      return may_stand_for(kept, lost) ? lost : kept;
  return {};
}

// A node without a call says nothing of the parameter that it reads under its name: in another
// module it is that one's own, if it has no place. Else it may be a constant of equal numbers.
void CallClaims::claim_part(Slot slot) {
  const OnnxTensor& t = tensor(slot.initializer);
  const std::string own = scope_of_name(module_of(t.name));
  std::string name;
  for (const Group* reader : readers_of_node(slot.node)) {
    const std::string& scope = scopes_[reader->nodes[0]];
    if (scope == own) name = t.name;
    if (name.empty()) name = part_in(scope, t.name);
  }
  if (name.empty() && merges_ && is_uniform(t.data, t.type.dtype) && claimed_.count(t.name)) return;
  if (name.empty() || name == t.name)
    take(slot, *by_target_.find(t.name)->second, {}, "kept name");
  else
    take(slot, *by_target_.find(name)->second, {}, fmt::format("merged with {}", t.name));
}

// That a call knows a value under another name than all of `others` do.
bool CallClaims::names_apart(const Group& group, const std::vector<const Group*>& others) const {
  const std::vector<std::string> own = unknowns(group);
  return !own.empty() && std::all_of(others.begin(), others.end(), [&](const Group* other) {
    return std::none_of(own.begin(), own.end(),
                        [&](const std::string& value) { return names(*other, value); });
  });
}

// Nodes without a call make parts of a parameter, and those of equal ones are merged: where the
// calls of another module read them, under other names, they are those of its own.
bool CallClaims::restore_merged_parts() {
  for (const Claim& claim : claims_.list) {
    if (claim.name.empty() || claim.initializer < 0 || group_at(claim.node)) continue;
    const std::string& kept = tensor(claim.initializer).name;
    for (const std::string& lost : missing())
      if (leaf_of(lost) == leaf_of(claim.name) && may_stand_for(kept, lost) &&
          copy_parts(Claim(claim), lost))
        return true;
  }
  return false;
}

bool CallClaims::copy_parts(const Claim& claim, const std::string& name) {
  const std::vector<std::string> outputs = model_.nodes[claim.node].outputs;
  const std::string scope = scope_of_name(module_of(name));
  std::vector<std::pair<std::string*, size_t>> places;  // and which output
  for (size_t k = 0; k < outputs.size(); ++k) {
    std::vector<const Group*> here, others;
    for (const Group* reader : readers_of(outputs[k]))
      (scopes_[reader->nodes[0]] == scope ? here : others).push_back(reader);
    for (const Group* reader : here) {
      if (others.empty() || !names_apart(*reader, others)) return false;
      for (const size_t n : reader->nodes)
        for (std::string& input : model_.nodes[n].inputs)
          if (input == outputs[k]) places.emplace_back(&input, k);
    }
  }
  if (places.empty()) return false;
  std::vector<std::string> own;
  for (const std::string& output : outputs) own.push_back(output + " of " + name);
  for (const auto& [input, k] : places) *input = own[k];
  apart_.emplace_back(name, claim.node);
  copy_node(claim.node, {claim}, {name}, own);
  return true;
}

// Those that did not come apart: a parameter of a module that reads such a part has its own in it.
void CallClaims::find_merged_parts() {
  for (const Claim& claim : claims_.list) {
    if (claim.name.empty() || group_at(claim.node)) continue;
    for (const Group* reader : readers_apart(claim.node))
      swallow_module(scopes_[reader->nodes[0]],
                     fmt::format("'{}', a part of '{}', stands for several values",
                                 model_.nodes[claim.node].outputs[0], claim.name));
  }
  for (const Slot& slot : parts_) find_merged_part(slot);
  find_merged_before_parts();
}

// The calls that read a part under other names than another call has for it.
std::vector<const Group*> CallClaims::readers_apart(size_t node) const {
  std::vector<const Group*> out;
  for (const std::string& part : model_.nodes[node].outputs) {
    const std::vector<const Group*> readers = readers_of(part);
    for (const Group* reader : readers)
      if (std::any_of(readers.begin(), readers.end(), [&](const Group* other) {
            return other != reader && names_apart(*reader, {other});
          }))
        out.push_back(reader);
  }
  return out;
}

// Equal results of calls were merged, and so was what cuts them into parts, which says of neither
// whose it was: of two modules of equal parameters, perhaps.
void CallClaims::find_merged_before_parts() {
  const std::set<std::string> gone = vanished();
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    if (group_at(n) || model_.nodes[n].inputs.empty()) continue;
    const std::string& value = model_.nodes[n].inputs[0];
    const auto made = maker_.find(value);
    const Group* call = made == maker_.end() ? nullptr : group_at(made->second);
    if (!call || !gone.count(std::string(stem_of(call->call.name)))) continue;
    const std::vector<const Group*> readers = readers_apart(n);
    if (readers.empty()) continue;
    const std::vector<std::string> trained = trained_just_before(value);
    std::vector<Claim> own;
    for (const Claim& claim : claims_.list)
      if (std::count(trained.begin(), trained.end(), claim.name)) own.push_back(claim);
    for (const Group* reader : readers) {
      const std::string why = fmt::format("'{}', of which {} reads parts, may stand for several",
                                          value, reader->call.name);
      const std::string& scope = scopes_[reader->nodes[0]];
      if (!own.empty()) swallow_module(scope, why);
      const std::string other = equal_module(own, scope);
      if (other.empty()) continue;
      for (const Claim& claim : own)
        swallow(claim.name, fmt::format("{}, and be of the equal '{}'", why, other));
    }
  }
}

// What other modules read in parts, beside that of which it has the name, may be their own; and
// what is read elsewhere, too, may be two parameters of its module.
void CallClaims::find_merged_part(const Slot& slot) {
  const std::string& kept = tensor(slot.initializer).name;
  std::string own;  // the module
  bool elsewhere = std::any_of(parts_.begin(), parts_.end(), [&](const Slot& other) {
    return other.initializer == slot.initializer && other.node != slot.node;
  });
  for (const Claim& claim : claims_.list) {
    if (claim.node == slot.node && claim.input == slot.input)
      own = scope_of_name(module_of(claim.name));
    else
      elsewhere = elsewhere || claim.initializer == slot.initializer;
  }
  for (const Group* reader : readers_of_node(slot.node)) {
    const std::string& scope = scopes_[reader->nodes[0]];
    if (scope == own && !elsewhere) continue;
    std::vector<std::string> unseen = unseen_in(scope);
    std::erase_if(unseen, [&](const std::string& lost) {
      const bool beside = scope == own && scope_of_name(module_of(lost)) != own;
      return beside || !may_stand_for(kept, lost);
    });
    swallow_unseen(unseen, fmt::format("'{}', of which {} reads parts, may stand for it", kept,
                                       reader->call.name));
  }
}

}  // namespace piper::onnx_import
