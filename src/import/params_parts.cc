// Parts of parameters, which nodes without a call make: those of equal parameters were merged.
#include <algorithm>

#include "host.h"
#include "params_calls.h"

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
    const OnnxTensor& t = tensor(claim.initializer);
    if (!is_uniform(t.data, t.type.dtype)) continue;
    for (const std::string& lost : missing())
      if (leaf_of(lost) == leaf_of(claim.name) && copy_parts(Claim(claim), lost)) return true;
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
  copy_node(claim.node, {claim}, {name}, own);
  return true;
}

// Those that did not come apart: a parameter of a module that reads such a part has its own in it.
void CallClaims::find_merged_parts() {
  for (const Claim& claim : claims_.list) {
    if (claim.name.empty() || group_at(claim.node)) continue;
    for (const std::string& part : model_.nodes[claim.node].outputs) {
      const std::vector<const Group*> readers = readers_of(part);
      for (const Group* reader : readers)
        for (const Group* other : readers)
          if (reader != other && names_apart(*reader, {other}))
            swallow_module(
                scopes_[reader->nodes[0]],
                fmt::format("'{}', a part of '{}', stands for several values", part, claim.name));
    }
  }
}

}  // namespace piper::onnx_import
