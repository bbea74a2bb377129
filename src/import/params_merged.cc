// Parameters that lost their place because equal things were merged: copies of equal modules, names
// of one tensor, and what is lost for good.
#include <algorithm>

#include "params_calls.h"

namespace piper::onnx_import {
namespace {

std::string parent_of(const std::string& dotted_name) {
  const size_t dot = dotted_name.rfind('.');
  return dot == std::string::npos ? "" : dotted_name.substr(0, dot);
}
std::string leaf_of(const std::string& dotted_name) {
  return dotted_name.substr(dotted_name.rfind('.') + 1);
}

// "a.0.w" and "a.1.w".
bool differ_in_one_part(const std::string& a, const std::string& b) {
  const std::vector<std::string> x = split_text(a, '.'), y = split_text(b, '.');
  if (x.size() != y.size()) return false;
  size_t differing = 0;
  for (size_t i = 0; i < x.size(); ++i) differing += x[i] != y[i];
  return differing == 1;
}

// Scopes: "a/b" is within "a", "a/b" and "".
bool is_within(const std::string& inner, const std::string& outer) {
  return outer.empty() || inner == outer || inner.starts_with(outer + "/");
}

}  // namespace

bool CallClaims::is_unknown(const CallArg& arg) const {
  return !group_of_.count(arg.name) && !targets_.count(arg.name);
}

// Equal modules on one input were merged: a call names a result ("%layer_norm_1") that no node
// makes, and reads that of another call of the same function instead.
bool CallClaims::restore_merged_module() {
  if (missing().empty()) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const CallArg& arg : groups_[g].call.args) {
      if (!is_unknown(arg)) continue;
      for (const size_t reader : groups_[g].nodes) {
        for (size_t i = 0; i < model_.nodes[reader].inputs.size(); ++i) {
          const std::string input = model_.nodes[reader].inputs[i];
          const auto source = group_of_.find(input);
          if (source == group_of_.end() || stem_of(input) != stem_of(arg.name)) continue;
          if (copy_merged(source->second, arg.name, groups_[g])) return true;
        }
      }
    }
  }
  return false;
}

// The first module beside `name`'s with parameters of the same own names, all without a place; ""
// if there is none.
std::string CallClaims::module_beside(const std::vector<Claim>& own) const {
  const std::vector<std::string> lost = missing();
  const std::string module = parent_of(own[0].name);
  for (const std::string& candidate : lost) {
    const std::string beside = parent_of(candidate);
    if (parent_of(beside) != parent_of(module)) continue;
    const bool all = std::all_of(own.begin(), own.end(), [&](const Claim& claim) {
      return parent_of(claim.name) == module &&
             std::count(lost.begin(), lost.end(), beside + "." + leaf_of(claim.name)) > 0;
    });
    if (all) return beside;
  }
  return {};
}

bool CallClaims::copy_merged(size_t source, const std::string& name, const Group& readers) {
  if (groups_[source].nodes.size() != 1) return false;
  for (const CallArg& arg : readers.call.args) {
    if (arg.name == groups_[source].call.name)
      return false;  // reads both: which input is which is lost
  }
  const size_t original = groups_[source].nodes[0];
  std::vector<Claim> own;
  for (const Claim& claim : claims_.list) {
    if (claim.node == original && !claim.name.empty()) own.push_back(claim);
  }
  const std::string module = own.empty() ? std::string() : module_beside(own);
  if (module.empty() || model_.nodes[original].outputs.size() != 1) return false;
  OnnxNode copy = model_.nodes[original];
  const std::string merged = copy.outputs[0];
  copy.outputs[0] = name;
  copy.name += " for " + module;
  const size_t n = model_.nodes.size();
  for (Claim& claim : own) {
    claim.node = n;
    claim.name = module + "." + leaf_of(claim.name);
    claim.evidence = fmt::format("call {} merged into {}", name, merged);
    claimed_.insert(claim.name);
    taken_.emplace(n, claim.input);
    claims_.list.push_back(claim);
  }
  model_.nodes.push_back(std::move(copy));
  scopes_.push_back(scope_of_name(module));
  group_of_.emplace(name, source);
  for (const size_t reader : readers.nodes) {
    for (std::string& input : model_.nodes[reader].inputs) {
      if (input == merged) input = name;
    }
  }
  return true;
}

// A parameter that no call names is another name of one that does the work in its module.
void CallClaims::tie_unused() {
  for (const std::string& name : missing()) {
    const std::string scope = scope_of_name(parent_of(name));
    for (const Claim& claim : claims_.list) {
      if (claim.name.empty() || scopes_[claim.node] != scope ||
          leaf_of(claim.name) != leaf_of(name))
        continue;
      if (parent_of(claim.name) == parent_of(name)) continue;
      tie(name, claim.name);
      break;
    }
  }
}

void CallClaims::tie(const std::string& a, const std::string& b) {
  const auto place = [&](const std::string& name) {
    return std::find(claims_.order.begin(), claims_.order.end(), name);
  };
  auto& ties = claims_.ties.alias_of;
  claimed_.insert(a);
  // The first name in the signature is PyTorch's own; b may be an alias already.
  const auto known =
      std::find_if(ties.begin(), ties.end(), [&](const auto& tie) { return tie.first == b; });
  const std::string of = known == ties.end() ? b : known->second;
  const std::string& first = place(a) < place(of) ? a : of;
  const std::string& other = &first == &a ? of : a;
  for (auto& tie : ties) {
    if (tie.second == other) tie.second = first;
  }
  ties.emplace_back(other, first);
}

// Equal results of calls are merged, and not all of them come apart again: a node reads twice what
// its call names twice. A parameter of that module without a place has its part in it.
void CallClaims::find_merged(std::set<std::string>& modules) const {
  for (const Group& group : groups_) {
    for (const CallArg& arg : group.call.args) {
      if (!is_unknown(arg)) continue;
      for (const size_t reader : group.nodes)
        for (const std::string& input : model_.nodes[reader].inputs)
          if (group_of_.count(input) && stem_of(input) == stem_of(arg.name))
            modules.insert(scopes_[reader]);
    }
  }
}

// The parameters of the calls that a value comes from by way of calls without any.
std::vector<std::string> CallClaims::trained_just_before(std::string_view value) const {
  std::map<std::string_view, size_t> maker;
  for (size_t n = 0; n < model_.nodes.size(); ++n)
    for (const std::string& output : model_.nodes[n].outputs) maker.emplace(output, n);
  std::map<size_t, size_t> group_by_node;
  for (size_t g = 0; g < groups_.size(); ++g)
    for (const size_t n : groups_[g].nodes) group_by_node.emplace(n, g);
  std::map<size_t, std::vector<std::string>> names;  // by group
  for (const Claim& claim : claims_.list)
    if (const auto at = group_by_node.find(claim.node); at != group_by_node.end())
      if (!claim.name.empty()) names[at->second].push_back(claim.name);
  std::vector<std::string> out;
  std::vector<std::string_view> open{value};
  std::set<size_t> seen;
  while (!open.empty()) {
    const auto made = maker.find(open.back());
    open.pop_back();
    if (made == maker.end() || !seen.insert(made->second).second) continue;
    const auto group = group_by_node.find(made->second);
    if (group != group_by_node.end() && names.count(group->second)) {
      out.insert(out.end(), names[group->second].begin(), names[group->second].end());
      continue;
    }
    for (const std::string& input : model_.nodes[made->second].inputs) open.push_back(input);
  }
  return out;
}

// Equal modules of which neither came apart again: where a result of theirs was merged, a parameter
// without a place is lost whose name differs in one part from that of one with a place before it.
void CallClaims::find_merged_beside() {
  if (claims_.lost.empty()) return;
  for (const Group& group : groups_) {
    for (const CallArg& arg : group.call.args) {
      if (!is_unknown(arg)) continue;
      for (const size_t reader : group.nodes)
        for (const std::string& input : model_.nodes[reader].inputs) {
          if (!group_of_.count(input) || stem_of(input) != stem_of(arg.name)) continue;
          for (const std::string& trained : trained_just_before(input))
            for (const std::string& name : claims_.lost)
              if (differ_in_one_part(name, trained)) claims_.swallowed.push_back(name);
        }
    }
  }
}

// A product with 1 and a sum with 0 are removed, be they parameters: a call names the result, which
// no node makes. What has no place near it may have been that number.
void CallClaims::find_removed() {
  constexpr std::string_view kRemoved[] = {"mul", "add", "sub", "div"};
  for (const Group& group : groups_) {
    const bool reads_removed =
        std::any_of(group.call.args.begin(), group.call.args.end(), [&](const CallArg& arg) {
          return is_unknown(arg) && index_.find(arg.name) < 0 && is_tensor(group.call, arg) &&
                 std::count(std::begin(kRemoved), std::end(kRemoved), stem_of(arg.name)) > 0;
        });
    if (!reads_removed) continue;
    const std::string& reader = scopes_[group.nodes[0]];
    for (const std::string& name : claims_.lost) {
      const std::string module = scope_of_name(parent_of(name));
      if (is_within(reader, scope_of_name(parent_of(parent_of(name)))) || is_within(module, reader))
        claims_.swallowed.push_back(name);
    }
  }
}

// Equal results of folding are merged too, and only the first says what it was made of. The others
// show in a module with a parameter that has no place: a call there names a value that no node
// makes, and a node reads a constant in its stead.
std::set<std::string> CallClaims::modules_with_losses() const {
  std::set<std::string> modules;
  find_merged(modules);
  for (const Group& group : groups_) {
    const bool names_unknown = std::any_of(group.call.args.begin(), group.call.args.end(),
                                           [&](const CallArg& arg) { return is_unknown(arg); });
    for (const Slot& slot : group.slots) {
      const bool is_constant = !taken_.count({slot.node, slot.input}) &&
                               num_elements(tensor(slot.initializer).type.shape) > 1;
      if (names_unknown && is_constant) modules.insert(scopes_[slot.node]);
    }
  }
  return modules;
}

void CallClaims::find_swallowed() {
  const std::set<std::string> modules = modules_with_losses();
  find_merged_beside();
  find_removed();
  std::vector<std::string>& out = claims_.swallowed;
  for (const Group& group : groups_) {  // named by a call, and without a place
    for (const CallArg& arg : group.call.args)
      if (const auto at = targets_.find(arg.name); at != targets_.end())
        out.push_back(at->second->target);
  }
  for (const std::string& name : claims_.lost) {
    if (modules.count(scope_of_name(parent_of(name)))) out.push_back(name);
  }
  std::erase_if(out, [&](const std::string& name) {
    return !std::count(claims_.lost.begin(), claims_.lost.end(), name);
  });
  out.insert(out.end(), folded_apart_.begin(), folded_apart_.end());
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
}

}  // namespace piper::onnx_import
