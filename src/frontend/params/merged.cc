// Parameters that lost their place because equal things were merged: copies of equal modules, names
// of one tensor, and what is lost for good.
#include <algorithm>

#include "calls.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

// "a.0.w" and "a.1.w".
bool differ_in_one_part(const std::string& a, const std::string& b) {
  const std::vector<std::string> x = split_text(a, '.'), y = split_text(b, '.');
  if (x.size() != y.size()) return false;
  size_t differing = 0;
  for (size_t i = 0; i < x.size(); ++i) differing += x[i] != y[i];
  return differing == 1;
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

// That a call says what is claimed.
bool CallClaims::is_named(const Claim& claim) const {
  const Group* group = group_at(claim.node);
  const auto at = by_target_.find(claim.name);
  return group && at != by_target_.end() && names(*group, at->second->placeholder);
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

// That the call's arguments are the inputs of its one node, in their order.
bool CallClaims::stands_in_place(const Group& group) const {
  const std::vector<std::string>& inputs = model_.nodes[group.nodes[0]].inputs;
  const std::vector<CallArg>& args = group.call.args;
  if (group.nodes.size() != 1 || args.size() != inputs.size()) return false;
  for (size_t i = 0; i < args.size(); ++i)
    if (group_of_.count(args[i].name) && args[i].name != inputs[i]) return false;
  return true;
}

// Where the group reads `merged` for `value`: at its place in the call, else everywhere. None where
// the call names another such value, and which input is which is lost.
std::vector<std::string*> CallClaims::places_of(const Group& group, const std::string& value,
                                                const std::string& merged) {
  const std::vector<CallArg>& args = group.call.args;
  const bool in_place = stands_in_place(group);
  const bool several = std::any_of(args.begin(), args.end(), [&](const CallArg& arg) {
    const bool other = arg.name != value && is_unknown(arg);
    return arg.name == merged || (other && stem_of(arg.name) == stem_of(value));
  });
  std::vector<std::string*> out;
  if (several && !in_place) return out;
  for (const size_t n : group.nodes) {
    std::vector<std::string>& inputs = model_.nodes[n].inputs;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i] == merged && (!in_place || args[i].name == value)) out.push_back(&inputs[i]);
  }
  return out;
}

// The results that the group's nodes read where its call names one that no node makes: of the same
// function, and not at the place of another such argument, as beside a product with 1 that was
// removed.
std::vector<std::string> CallClaims::read_instead(const Group& group, const CallArg& arg) const {
  std::vector<std::string> out;
  const std::vector<CallArg>& args = group.call.args;
  const bool in_place = stands_in_place(group);
  for (const size_t reader : group.nodes) {
    const std::vector<std::string>& inputs = model_.nodes[reader].inputs;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!group_of_.count(inputs[i]) || stem_of(inputs[i]) != stem_of(arg.name)) continue;
      const bool others = in_place && args[i].name != arg.name &&
                          (is_unknown(args[i]) || args[i].name == inputs[i]);
      if (others) continue;
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
  const std::string module = module_of(own[0].name);
  std::map<size_t, std::set<std::string>> found;  // by nearness
  for (const std::string& candidate : lost) {
    const std::string beside = module_of(candidate);
    if (module_of(beside) != module_of(module) &&
        !is_within(reader, scope_of_name(module_of(beside))))
      continue;
    const bool all = std::all_of(own.begin(), own.end(), [&](const Claim& claim) {
      return module_of(claim.name) == module &&
             std::count(lost.begin(), lost.end(), beside + "." + leaf_of(claim.name)) > 0;
    });
    if (all) found[common_scope(scope_of_name(beside), reader).size()].insert(beside);
  }
  if (found.empty()) return {};
  const std::set<std::string>& nearest = found.rbegin()->second;
  if (nearest.size() == 1) return *nearest.begin();
  const std::string which = join(std::vector<std::string>(nearest.begin(), nearest.end()), ", ");
  for (const std::string& name : lost)
    if (nearest.count(module_of(name)))
      unseen_.emplace(name, fmt::format("which of {} is read in '{}' is lost", which, reader));
  return {};
}

// The parameters of which a copy of what was made of `own` is made: those of a module beside, else,
// of one that has not been trained, the only other one of its module without a place.
std::vector<std::string> CallClaims::counterparts(const std::vector<Claim>& own,
                                                  const std::string& reader) {
  std::vector<std::string> out;
  if (own.empty()) return out;
  const std::string module = module_beside(own, reader);
  if (!module.empty()) {
    for (const Claim& claim : own) out.push_back(module + "." + leaf_of(claim.name));
    return out;
  }
  const int initializer = own[0].initializer;
  if (own.size() != 1 || initializer < 0 ||
      !is_uniform(tensor(initializer).data, tensor(initializer).type.dtype))
    return out;
  for (const std::string& name : unseen_in(scope_of_name(module_of(own[0].name))))
    if (module_of(name) == module_of(own[0].name)) out.push_back(name);
  if (out.size() != 1) return {};
  claims_.notes.push_back(
      {out[0], fmt::format("taken for what was merged with '{}', of which it has the value; "
                           "'exclude' it if it is unused",
                           own[0].name)});
  return out;
}

// The name that `name` has among the parameters without a place, as `from` has there that of `to`:
// "a.0.v" that of "b.0.v" where "a.1.w" has that of "b.1.w". "" where there is none.
std::string CallClaims::twin_of(const std::string& name, const std::string& from,
                                const std::string& to) const {
  size_t alike = 0;  // of the parts at their ends
  for (size_t k = 1; k < std::min(from.size(), to.size()); ++k) {
    if (from[from.size() - k] != to[to.size() - k]) break;
    if (from[from.size() - k] == '.') alike = k;
  }
  const std::string before = from.substr(0, from.size() - alike);
  std::string twin;
  if (name == from)
    twin = to;
  else if (alike > 0 && name.starts_with(before + "."))
    twin = to.substr(0, to.size() - alike) + name.substr(before.size());
  return is_parameter(twin) && !claimed_.count(twin) ? twin : std::string();
}

std::vector<Claim> CallClaims::claims_at(size_t node) const {
  std::vector<Claim> own;
  std::copy_if(claims_.list.begin(), claims_.list.end(), std::back_inserter(own),
               [&](const Claim& claim) { return claim.node == node && !claim.name.empty(); });
  return own;
}

// Whether the node is among `known`, or made of one that is.
bool CallClaims::comes_from(size_t node, std::map<size_t, bool>& known) const {
  const auto [entry, fresh] = known.emplace(node, false);
  if (!fresh) return entry->second;
  bool found = false;
  for (const std::string& input : model_.nodes[node].inputs)
    if (const auto made = maker_.find(input); made != maker_.end())
      found = comes_from(made->second, known) || found;
  return known[node] = found;
}

// The nodes that are copied with `node`: those made of parameters of which a twin has no place, and
// what is made of them.
std::vector<size_t> CallClaims::twins_of(size_t node, const std::string& from,
                                         const std::string& to) const {
  std::map<size_t, bool> known;
  for (const Claim& claim : claims_.list)
    if (!twin_of(claim.name, from, to).empty()) known.emplace(claim.node, true);
  const std::map<size_t, bool> own = known;
  bool others = false;
  for (const std::string& input : model_.nodes[node].inputs)
    if (const auto made = maker_.find(input); made != maker_.end() && own.size() > 1)
      others = comes_from(made->second, known) || others;
  std::vector<size_t> out{node}, open{node};
  while (others && !open.empty()) {
    const size_t at = open.back();
    open.pop_back();
    for (const std::string& input : model_.nodes[at].inputs) {
      const auto made = maker_.find(input);
      if (made == maker_.end() || !known[made->second]) continue;
      if (std::count(out.begin(), out.end(), made->second)) continue;
      out.push_back(made->second);
      open.push_back(made->second);
    }
  }
  return out;
}

// A copy of the node with results of its own, made of `names` instead of what `own` claims of it.
void CallClaims::copy_node(size_t original, const std::vector<Claim>& own,
                           const std::vector<std::string>& names,
                           const std::vector<std::string>& outputs) {
  const size_t n = model_.nodes.size();
  OnnxNode copy = model_.nodes[original];
  std::string scope = scopes_[original];
  copy.outputs = outputs;
  for (const std::string& output : outputs)
    if (!output.empty()) maker_.emplace(output, n);
  for (size_t k = 0; k < own.size(); ++k) {
    Claim claim = own[k];
    claim.node = n;
    claim.name = names[k];
    claim.evidence =
        fmt::format("call {} merged into {}", outputs[0], model_.nodes[original].outputs[0]);
    claimed_.insert(claim.name);
    taken_.emplace(n, claim.input);
    claims_.list.push_back(std::move(claim));
    copy.name = model_.nodes[original].name + " for " + module_of(names[k]);
    scope = scope_of_name(module_of(names[k]));
  }
  model_.nodes.push_back(std::move(copy));
  scopes_.push_back(scope);
}

// With all that is copied with it.
void CallClaims::copy_twins(size_t node, const std::string& result, const std::string& from,
                            const std::string& to) {
  const std::vector<size_t> twins = twins_of(node, from, to);
  std::map<std::string, std::string> renamed{{model_.nodes[node].outputs[0], result}};
  std::vector<std::vector<std::string>> names;
  for (const size_t n : twins) {
    for (const std::string& output : model_.nodes[n].outputs)
      renamed.emplace(output, output + " for " + to);
    names.emplace_back();
    for (const Claim& claim : claims_at(n)) {
      const std::string twin = twin_of(claim.name, from, to);
      names.back().push_back(twin.empty() ? claim.name : twin);
    }
  }
  for (size_t k = 0; k < twins.size(); ++k) {
    std::vector<std::string> outputs;
    for (const std::string& output : model_.nodes[twins[k]].outputs)
      outputs.push_back(renamed.at(output));
    copy_node(twins[k], claims_at(twins[k]), names[k], outputs);
    for (std::string& input : model_.nodes.back().inputs)
      if (const auto at = renamed.find(input); at != renamed.end()) input = at->second;
  }
}

bool CallClaims::copy_merged(size_t source, const std::string& name, const Group& readers) {
  const std::string merged = groups_[source].call.name;
  const auto made = maker_.find(merged);
  if (made == maker_.end() || model_.nodes[made->second].outputs.size() != 1) return false;
  const std::vector<std::string*> places = places_of(readers, name, merged);
  if (places.empty()) return false;
  const std::vector<Claim> own = claims_at(made->second);
  const std::vector<std::string> names = counterparts(own, scopes_[readers.nodes[0]]);
  if (names.empty()) return false;
  for (std::string* input : places) *input = name;
  copy_twins(made->second, name, own[0].name, names[0]);
  group_of_.emplace(name, source);
  restored_.emplace_back(made->second, common_scope(scope_of_name(module_of(own[0].name)),
                                                    scope_of_name(module_of(names[0]))));
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
    const std::string scope = scope_of_name(module_of(name));
    for (const Claim& claim : claims_.list) {
      if (claim.name.empty() || scopes_[claim.node] != scope ||
          leaf_of(claim.name) != leaf_of(name))
        continue;
      if (!is_named(claim) && may_stand_for(claim.name, name)) continue;
      if (module_of(claim.name) == module_of(name) || !ties_alone(claim.node)) continue;
      if (is_fused(model_.nodes[claim.node])) continue;
      tie(name, claim.name);
      break;
    }
  }
}

// A parameter that nothing reads under its name, and that of a module within the one that has it
// ("bias" and "decoder.bias") are two names of one: of several such modules, of that whose weight
// has another name as well. Where it is of no use instead, what is saved under its name is, too.
void CallClaims::tie_lost() {
  auto& ties = claims_.ties.alias_of;
  const auto is_tied = [&](const std::string& name) {
    return std::any_of(ties.begin(), ties.end(),
                       [&](const auto& tie) { return tie.first == name || tie.second == name; });
  };
  std::erase_if(claims_.lost, [&](const std::string& name) {
    if (missing_.count(name)) return false;
    std::set<std::string> within, tied;
    for (const Claim& claim : claims_.list) {
      const std::string module = module_of(claim.name);
      if (module.empty() || module_of(module) != module_of(name) ||
          leaf_of(claim.name) != leaf_of(name))
        continue;
      within.insert(claim.name);
      if (is_tied(module + ".weight")) tied.insert(claim.name);
    }
    if (within.size() != 1) within = tied;
    if (within.size() != 1) return false;
    claims_.notes.push_back(
        {name, fmt::format("taken for another name of {}, since nothing reads it under its own",
                           *within.begin())});
    const auto known = std::find_if(ties.begin(), ties.end(),
                                    [&](const auto& tie) { return tie.first == *within.begin(); });
    ties.emplace_back(name, known == ties.end() ? *within.begin() : known->second);
    return true;
  });
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
    if (scope_of_name(module_of(name)) == scope) unseen_.emplace(name, why);
}

// Equal results of calls are merged, and not all of them come apart again: a node reads twice what
// its call names twice. A parameter of that module without a place has its part in it.
void CallClaims::find_merged() {
  for (const Group& group : groups_) {
    for (const CallArg& arg : group.call.args) {
      if (!is_unknown(arg)) continue;
      for (const std::string& input : read_instead(group, arg)) {
        const std::string why = fmt::format("'{}' was merged into '{}'", arg.name, input);
        swallow_module(scopes_[group.nodes[0]], why);
        for (const auto& [name, original] : apart_) {
          std::map<size_t, bool> known{{original, true}};
          if (scopes_[group.nodes[0]] == scope_of_name(module_of(name)) &&
              comes_from(maker_.at(input), known))
            swallow(name, why);
        }
        const std::vector<Claim> own = claims_of(groups_[group_of_.at(input)]);
        const std::string other = equal_module(own, scopes_[group.nodes[0]]);
        if (other.empty()) continue;
        for (const Claim& claim : own)
          swallow(claim.name, fmt::format("{}, and may be of the equal '{}'", why, other));
      }
    }
  }
}

std::vector<Claim> CallClaims::claims_of(const Group& group) const {
  std::vector<Claim> own;
  for (const size_t n : group.nodes) {
    const std::vector<Claim> here = claims_at(n);
    own.insert(own.end(), here.begin(), here.end());
  }
  return own;
}

// Another module with a place, of which all parameters in `own` have the values, and which the
// reader may have called.
std::string CallClaims::equal_module(const std::vector<Claim>& own,
                                     const std::string& reader) const {
  if (own.empty()) return {};
  const auto has = [&](const Claim& of, const std::string& module) {
    return std::any_of(claims_.list.begin(), claims_.list.end(), [&](const Claim& claim) {
      return claim.initializer == of.initializer && claim.type == of.type &&
             claim.name == module + "." + leaf_of(of.name);
    });
  };
  for (const Claim& claim : claims_.list) {
    const std::string module = module_of(claim.name);
    if (claim.initializer != own[0].initializer || module == module_of(own[0].name)) continue;
    if (!is_within(reader, scope_of_name(module_of(module)))) continue;
    if (std::all_of(own.begin(), own.end(), [&](const Claim& of) { return has(of, module); }))
      return module;
  }
  return {};
}

// The parameters of the calls that a value comes from by way of calls without any.
std::vector<std::string> CallClaims::trained_just_before(std::string_view value) const {
  std::map<std::string_view, size_t> maker;
  for (size_t n = 0; n < model_.nodes.size(); ++n)
    for (const std::string& output : model_.nodes[n].outputs)
      if (!output.empty()) maker.emplace(output, n);
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
  for (const auto& [node, around] : restored_)  // whose copy reads what the original reads
    for (const std::string& input : model_.nodes[node].inputs)
      for (const std::string& trained : trained_just_before(input))
        for (const std::string& name : claims_.lost)
          if (leaf_of(name) == leaf_of(trained) &&
              is_within(scope_of_name(module_of(name)), around))
            unseen_.emplace(name, fmt::format("it may have been merged with '{}'", trained));
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

void CallClaims::find_missing() {
  find_merged();
  find_merged_parts();
  find_unexplained();
  find_merged_beside();
  find_removed();
  for (const Group& group : groups_) {  // named by a call, and without a place
    for (const CallArg& arg : group.call.args)
      if (const auto at = targets_.find(arg.name); at != targets_.end())
        if (std::count(claims_.lost.begin(), claims_.lost.end(), at->second->target)) {
          const OnnxNode& node = model_.nodes[group.nodes[0]];
          swallow(at->second->target,
                  is_fused(node) ? fmt::format("the exporter multiplied it into {}", node.label())
                  : has_fused_operators(model_)
                      ? fmt::format("another program fused what read it: {} is left of its call",
                                    node.label())
                      : fmt::format("{} reads it under no name of its own", node.label()));
        }
  }
  for (const std::string& name : claims_.lost)
    if (const auto at = unseen_.find(name); at != unseen_.end()) swallow(name, at->second, true);
  for (const auto& [name, swallowed] : missing_) claims_.missing.push_back(swallowed);
}

}  // namespace piper::onnx_import
