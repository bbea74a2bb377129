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

// The innermost scope that both are in.
std::string common_scope(const std::string& a, const std::string& b) {
  const std::vector<std::string> x = split_text(a, '/'), y = split_text(b, '/');
  size_t same = 0;
  while (same < x.size() && same < y.size() && x[same] == y[same]) ++same;
  return join(std::span(x.data(), same), "/");
}

// Scopes: "a/b" is within "a", "a/b" and "".
bool is_within(const std::string& inner, const std::string& outer) {
  return outer.empty() || inner == outer || inner.starts_with(outer + "/");
}

}  // namespace

bool CallClaims::is_unknown(const CallArg& arg) const {
  return !group_of_.count(arg.name) && !targets_.count(arg.name) && !user_inputs_.count(arg.name) &&
         index_.find(arg.name) < 0;
}

bool CallClaims::names(const Group& group, std::string_view value) const {
  return std::any_of(group.call.args.begin(), group.call.args.end(),
                     [&](const CallArg& arg) { return arg.name == value; });
}

std::vector<std::string> CallClaims::unknowns(const Group& group) const {
  std::vector<std::string> out;
  for (const CallArg& arg : group.call.args)
    if (is_unknown(arg) && is_tensor(group.call, arg) && !is_literal(arg.name))
      out.push_back(arg.name);
  return out;
}

void CallClaims::swallow_unseen(const std::vector<std::string>& names, const std::string& why) {
  for (const std::string& name : names) unseen_.emplace(name, why);
}

// The results that the group's nodes read where its call names one that no node makes: of the same
// function, and not at the place of another such argument, as beside a product with 1 that was
// removed.
std::vector<std::string> CallClaims::read_instead(const Group& group, const CallArg& arg) const {
  std::vector<std::string> out;
  const std::vector<CallArg>& args = group.call.args;
  for (const size_t reader : group.nodes) {
    const std::vector<std::string>& inputs = model_.nodes[reader].inputs;
    const bool in_place = group.nodes.size() == 1 && args.size() == inputs.size();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!group_of_.count(inputs[i]) || stem_of(inputs[i]) != stem_of(arg.name)) continue;
      if (in_place && args[i].name != arg.name && is_unknown(args[i])) continue;
      out.push_back(inputs[i]);
    }
  }
  return out;
}

// Equal modules on one input were merged: a call names a result ("%layer_norm_1") that no node
// makes, and reads that of another call of the same function instead.
bool CallClaims::restore_merged_module() {
  if (missing().empty()) return false;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (const CallArg& arg : groups_[g].call.args) {
      if (!is_unknown(arg)) continue;
      for (const std::string& input : read_instead(groups_[g], arg))
        if (copy_merged(group_of_.at(input), arg.name, groups_[g])) return true;
    }
  }
  return false;
}

// The module of which `own` is a copy: with parameters of the same own names, all without a place,
// beside theirs or around the reader; the nearest to the reader. "" where there is none, or not
// one.
std::string CallClaims::module_beside(const std::vector<Claim>& own, const std::string& reader) {
  const std::vector<std::string> lost = missing();
  const std::string module = parent_of(own[0].name);
  std::map<size_t, std::set<std::string>> found;  // by nearness
  for (const std::string& candidate : lost) {
    const std::string beside = parent_of(candidate);
    if (parent_of(beside) != parent_of(module) &&
        !is_within(reader, scope_of_name(parent_of(beside))))
      continue;
    const bool all = std::all_of(own.begin(), own.end(), [&](const Claim& claim) {
      return parent_of(claim.name) == module &&
             std::count(lost.begin(), lost.end(), beside + "." + leaf_of(claim.name)) > 0;
    });
    if (all) found[common_scope(scope_of_name(beside), reader).size()].insert(beside);
  }
  if (found.empty()) return {};
  const std::set<std::string>& nearest = found.rbegin()->second;
  if (nearest.size() == 1) return *nearest.begin();
  const std::string which = join(std::vector<std::string>(nearest.begin(), nearest.end()), ", ");
  for (const std::string& name : lost)
    if (nearest.count(parent_of(name)))
      unseen_.emplace(name, fmt::format("which of {} is read in '{}' is lost", which, reader));
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
  const std::string module =
      own.empty() ? std::string() : module_beside(own, scopes_[readers.nodes[0]]);
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

// Modules that read no parameters but their own, unless these are tied.
bool CallClaims::ties_alone(size_t node) const {
  const std::string of = class_of(model_.nodes[node]);
  constexpr std::string_view kKinds[] = {"Linear", "Embedding", "Conv", "Norm"};
  return of.empty() || of.starts_with("torch.nn.") ||
         std::any_of(std::begin(kKinds), std::end(kKinds), [&](std::string_view kind) {
           return of.find(kind, of.rfind('.')) != std::string::npos;
         });
}

// A parameter that no call names is another name of one that does the work in its module.
void CallClaims::tie_unused() {
  for (const std::string& name : missing()) {
    const std::string scope = scope_of_name(parent_of(name));
    for (const Claim& claim : claims_.list) {
      if (claim.name.empty() || scopes_[claim.node] != scope ||
          leaf_of(claim.name) != leaf_of(name))
        continue;
      if (parent_of(claim.name) == parent_of(name) || !ties_alone(claim.node)) continue;
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

void CallClaims::swallow_module(const std::string& scope, const std::string& why) {
  for (const std::string& name : claims_.lost)
    if (scope_of_name(parent_of(name)) == scope) unseen_.emplace(name, why);
}

// Equal results of calls are merged, and not all of them come apart again: a node reads twice what
// its call names twice. A parameter of that module without a place has its part in it.
void CallClaims::find_merged() {
  for (const Group& group : groups_) {
    for (const CallArg& arg : group.call.args) {
      if (!is_unknown(arg)) continue;
      for (const std::string& input : read_instead(group, arg))
        swallow_module(scopes_[group.nodes[0]],
                       fmt::format("'{}' was merged into '{}'", arg.name, input));
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
      for (const std::string& input : read_instead(group, arg))
        for (const std::string& trained : trained_just_before(input))
          for (const std::string& name : claims_.lost)
            if (differ_in_one_part(name, trained))
              unseen_.emplace(name, fmt::format("'{}' was merged into '{}'", arg.name, input));
    }
  }
}

// The scope around what a removed factor or summand stood between: what the group reads in its
// stead, and the group. Integers are no products of parameters.
std::string CallClaims::around_removed(const Group& group) const {
  std::string around = scopes_[group.nodes[0]];
  for (const size_t n : group.nodes) {
    for (const std::string& input : model_.nodes[n].inputs) {
      const auto made = maker_.find(input);
      if (made == maker_.end()) {
        if (index_.find(input) < 0 && !input.empty() && !names(group, input)) around = "";
        continue;
      }
      const Group* maker = group_at(made->second);
      if (maker == &group || (maker && names(group, maker->call.name))) continue;
      if (!model_.integers.count(input)) around = common_scope(around, scopes_[made->second]);
    }
  }
  return around;
}

// A product with 1 and a sum with 0 are removed, be they parameters: a call names the result, which
// no node makes. What has no place near it may have been that number.
void CallClaims::find_removed() {
  constexpr std::string_view kRemoved[] = {"mul", "add", "sub", "div"};
  for (const Group& group : groups_) {
    for (const std::string& value : unknowns(group)) {
      if (!std::count(std::begin(kRemoved), std::end(kRemoved), stem_of(value))) continue;
      if (reads_integers_alone(group)) continue;
      const std::string around = around_removed(group);
      const std::string why = fmt::format("'{}', which {} reads, was removed", value,
                                          model_.nodes[group.nodes[0]].label());
      for (const std::string& name : claims_.lost)
        if (is_within(scope_of_name(parent_of(name)), around)) unseen_.emplace(name, why);
      for (const auto& [name, initializer] : partial_)
        if (stem_of(tensor(initializer).name) == "select" &&
            is_within(scope_of_name(parent_of(name)), around))
          swallow(name,
                  fmt::format("{}, and of it '{}' alone is there", why, tensor(initializer).name));
    }
  }
}

bool CallClaims::reads_integers_alone(const Group& group) const {
  return std::all_of(group.nodes.begin(), group.nodes.end(), [&](size_t n) {
    const std::vector<std::string>& inputs = model_.nodes[n].inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](const std::string& input) {
      return input.empty() || model_.integers.count(input) || index_.find(input) >= 0;
    });
  });
}

// Equal results of folding are merged too, and only the first says what it was made of. The others
// show in a module with a parameter that has no place: a call there names a value that no node
// makes, and a node reads a constant in its stead. One made of no parameter explains itself.
void CallClaims::find_unexplained() {
  for (const Group& group : groups_) {
    const std::vector<std::string> values = unknowns(group);
    for (const Slot& slot : group.slots) {
      const OnnxTensor& t = tensor(slot.initializer);
      if (values.empty() || taken_.count({slot.node, slot.input}) || !t.folded_from.empty())
        continue;
      const bool rewritten =
          !find_metadata(model_.nodes[slot.node].metadata, "pkg.onnxscript.rewriter.rule_name")
               .empty();
      if (num_elements(t.type.shape) > 1 || rewritten)
        swallow_module(scopes_[slot.node], fmt::format("{} stands where the call names '{}'",
                                                       place_of(slot), values[0]));
    }
  }
}

void CallClaims::find_swallowed() {
  find_merged();
  find_unexplained();
  find_merged_beside();
  find_removed();
  for (const Group& group : groups_) {  // named by a call, and without a place
    for (const CallArg& arg : group.call.args)
      if (const auto at = targets_.find(arg.name); at != targets_.end())
        if (std::count(claims_.lost.begin(), claims_.lost.end(), at->second->target))
          swallow(at->second->target, fmt::format("{} reads it under no name of its own",
                                                  model_.nodes[group.nodes[0]].label()));
  }
  for (const std::string& name : claims_.lost)
    if (const auto at = unseen_.find(name); at != unseen_.end()) swallow(name, at->second, true);
  for (const auto& [name, swallowed] : swallowed_) claims_.swallowed.push_back(swallowed);
}

}  // namespace piper::onnx_import
