// Copies nodes that equal modules, or parts of equal parameters, were merged into, so that each
// parameter has its own. claims_by_calls applies one copy after another.
#include <algorithm>

#include "calls.h"
#include "ways.h"

namespace piper::onnx_import {
namespace {

using NodeInput = std::pair<size_t, size_t>;  // node, input

// Returns where the group reads `merged` for `value`: at its place in the call, else everywhere.
// Returns nothing where the call names another such value, so that it is lost which input is which.
std::vector<NodeInput> places_of(const CallGraph& graph, const Group& group,
                                 const std::string& value, const std::string& merged) {
  const std::vector<CallArg>& args = group.call.args;
  const bool in_place = graph.stands_in_place(group);
  const bool several = std::any_of(args.begin(), args.end(), [&](const CallArg& arg) {
    const bool other = arg.name != value && graph.is_unknown(arg);
    return arg.name == merged || (other && stem_of(arg.name) == stem_of(value));
  });
  std::vector<NodeInput> out;
  if (several && !in_place) return out;
  for (const size_t n : group.nodes) {
    const std::vector<std::string>& inputs = graph.node(n).inputs;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i] == merged && (!in_place || args[i].name == value)) out.emplace_back(n, i);
  }
  return out;
}

// ---- Of which parameters a copy is made ---------------------------------------------------------

// Returns the module of which `own` is a copy, nearest to the reader: it has parameters of the same
// leaves, all unclaimed, and lies beside theirs or around the reader. Returns "" and reports them
// where there are several, and "" where there is none.
std::string module_beside(CallClaims& claims, const std::vector<Claim>& own,
                          const std::string& reader) {
  const std::vector<std::string> lost = claims.unclaimed();
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
      claims.uncalled.emplace(name,
                              fmt::format("which of {} is read in '{}' is lost", which, reader));
  return {};
}

// Returns the only unclaimed parameter beside one that has not been trained; empty: there are
// others.
std::vector<std::string> only_other(const CallGraph& graph, CallClaims& claims,
                                    const std::vector<Claim>& own) {
  std::vector<std::string> out;
  const int initializer = own[0].initializer;
  if (own.size() != 1 || initializer < 0 ||
      !is_uniform(graph.tensor(initializer).data, graph.tensor(initializer).type.dtype))
    return out;
  for (const std::string& name : unseen_in(graph, claims, scope_of_name(module_of(own[0].name))))
    if (module_of(name) == module_of(own[0].name)) out.push_back(name);
  if (out.size() != 1) return {};
  return out;
}

// Returns the parameters of which a copy of what was made of `own` is made: those of a module
// beside, else, of one that has not been trained, the only other unclaimed one of its module.
std::vector<std::string> counterparts(const CallGraph& graph, CallClaims& claims,
                                      const std::vector<Claim>& own, const std::string& reader) {
  std::vector<std::string> out;
  if (own.empty()) return out;
  const std::string module = module_beside(claims, own, reader);
  if (!module.empty()) {
    for (const Claim& claim : own) out.push_back(module + "." + leaf_of(claim.name));
    return out;
  }
  out = only_other(graph, claims, own);
  if (out.empty()) return out;
  claims.found.notes.push_back(
      {out[0], fmt::format("taken for what was merged with '{}', of which it has the value; "
                           "'exclude' it if it is unused",
                           own[0].name)});
  return out;
}

// Returns the unclaimed parameter that corresponds to `name` as `to` does to `from`: "a.0.v" to
// "b.0.v" where "a.1.w" does to "b.1.w". Returns "" where there is none.
std::string twin_of(const CallGraph& graph, const CallClaims& claims, const std::string& name,
                    const std::string& from, const std::string& to) {
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
  return graph.is_parameter(twin) && !claims.named.count(twin) ? twin : std::string();
}

// Returns the node and, of those it comes from, the ones that `known` marks.
std::vector<size_t> known_before(const CallGraph& graph, size_t node,
                                 std::map<size_t, bool>& known) {
  std::vector<size_t> out{node}, open{node};
  while (!open.empty()) {
    const size_t at = open.back();
    open.pop_back();
    for (const std::string& input : graph.node(at).inputs) {
      const auto made = graph.maker(input);
      if (!made || !known[*made] || std::count(out.begin(), out.end(), *made)) continue;
      out.push_back(*made);
      open.push_back(*made);
    }
  }
  return out;
}

// Returns the nodes that are copied with `node`: those made of parameters with an unclaimed twin,
// and what is made of them.
std::vector<size_t> twins_of(const CallGraph& graph, const CallClaims& claims, size_t node,
                             const std::string& from, const std::string& to) {
  std::map<size_t, bool> known;
  for (const Claim& claim : claims.found.list)
    if (!twin_of(graph, claims, claim.name, from, to).empty()) known.emplace(claim.node, true);
  const bool several = known.size() > 1;
  bool others = false;
  for (const std::string& input : graph.node(node).inputs)
    if (const auto made = graph.maker(input); made && several)
      others = graph.comes_from(*made, known) || others;
  return others ? known_before(graph, node, known) : std::vector<size_t>{node};
}

// ---- Copies -------------------------------------------------------------------------------------

// Adds a copy of a node with results of its own, which is made of `names` where `own` claims the
// original.
void add_copy(const CallGraph& graph, Edit& edit, size_t original, const std::vector<Claim>& own,
              const std::vector<std::string>& names, const std::vector<std::string>& outputs) {
  NodeCopy copy{graph.node(original), graph.scopes[original]};
  copy.node.outputs = outputs;
  for (size_t k = 0; k < own.size(); ++k) {
    Claim claim = own[k];
    claim.node = graph.model.nodes.size() + edit.copies.size();
    claim.name = names[k];
    claim.evidence =
        fmt::format("call {} merged into {}", outputs[0], graph.node(original).outputs[0]);
    copy.node.name = graph.node(original).name + " for " + module_of(names[k]);
    copy.scope = scope_of_name(module_of(names[k]));
    edit.claims.push_back(std::move(claim));
  }
  edit.copies.push_back(std::move(copy));
}

// Adds a copy of the node, with `result`, and of all that is copied with it.
void add_twins(const CallGraph& graph, const CallClaims& claims, Edit& edit, size_t node,
               const std::string& result, const std::string& from, const std::string& to) {
  const std::vector<size_t> twins = twins_of(graph, claims, node, from, to);
  std::map<std::string, std::string> renamed{{graph.node(node).outputs[0], result}};
  for (const size_t n : twins)
    for (const std::string& output : graph.node(n).outputs)
      renamed.emplace(output, output.empty() ? "" : output + " for " + to);
  for (const size_t n : twins) {
    const std::vector<Claim> own = claims.at(n);
    std::vector<std::string> names, outputs;
    for (const Claim& claim : own) {
      const std::string twin = twin_of(graph, claims, claim.name, from, to);
      names.push_back(twin.empty() ? claim.name : twin);
    }
    for (const std::string& output : graph.node(n).outputs) outputs.push_back(renamed.at(output));
    add_copy(graph, edit, n, own, names, outputs);
    for (std::string& input : edit.copies.back().node.inputs)
      if (const auto at = renamed.find(input); at != renamed.end()) input = at->second;
  }
}

// Returns the copy of the group's result that `reader` reads under the name `value`.
std::optional<Edit> copy_for(const CallGraph& graph, CallClaims& claims, const Group& group,
                             const std::string& value, const Group& reader) {
  const std::string& merged = group.call.name;
  const auto made = graph.maker(merged);
  if (!made || graph.node(*made).outputs.size() != 1) return {};
  Edit edit{.call = value, .of = &group};
  edit.readers = places_of(graph, reader, value, merged);
  if (edit.readers.empty()) return {};
  edit.results.assign(edit.readers.size(), value);
  const std::vector<Claim> own = claims.at(*made);
  const std::vector<std::string> names = counterparts(graph, claims, own, graph.scope_of(reader));
  if (names.empty()) return {};
  add_twins(graph, claims, edit, *made, value, own[0].name, names[0]);
  claims.restored.emplace_back(*made, common_scope(scope_of_name(module_of(own[0].name)),
                                                   scope_of_name(module_of(names[0]))));
  return edit;
}

// Equal modules on one input were merged: a call names a result ("%layer_norm_1") that no node
// makes, and reads that of another call of the same function instead.
std::optional<Edit> next_module(const CallGraph& graph, CallClaims& claims) {
  if (claims.unclaimed().empty()) return {};
  for (const Group& reader : graph.groups())
    for (const CallArg& arg : reader.call.args) {
      if (!graph.is_unknown(arg)) continue;
      for (const std::string& input : graph.read_instead(reader, arg))
        if (auto edit = copy_for(graph, claims, *graph.group_named(input), arg.name, reader))
          return edit;
    }
  return {};
}

// Returns the copy of the node that makes parts of the claim's parameter, for `name`.
std::optional<Edit> copy_parts(const CallGraph& graph, CallClaims& claims, const Claim& claim,
                               const std::string& name) {
  const std::vector<std::string>& outputs = graph.node(claim.node).outputs;
  const std::string scope = scope_of_name(module_of(name));
  std::vector<std::string> own;
  for (const std::string& output : outputs)
    own.push_back(output.empty() ? "" : output + " of " + name);
  Edit edit;
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (outputs[k].empty()) continue;
    std::vector<const Group*> here, others;
    for (const Group* reader : graph.readers_of(outputs[k]))
      (graph.scope_of(*reader) == scope ? here : others).push_back(reader);
    for (const Group* reader : here) {
      if (others.empty() || !graph.names_apart(*reader, others)) return {};
      for (const size_t n : reader->nodes)
        for (size_t i = 0; i < graph.node(n).inputs.size(); ++i) {
          if (graph.node(n).inputs[i] != outputs[k]) continue;
          edit.readers.emplace_back(n, i);
          edit.results.push_back(own[k]);
        }
    }
  }
  if (edit.readers.empty()) return {};
  claims.apart.emplace_back(name, claim.node);
  add_copy(graph, edit, claim.node, {claim}, {name}, own);
  return edit;
}

// Nodes without a call make parts of a parameter, and those of equal parameters are merged. Where
// the calls of another module read them under other names, they are parts of its own parameter.
std::optional<Edit> next_parts(const CallGraph& graph, CallClaims& claims) {
  for (const Claim& claim : claims.found.list) {
    if (claim.name.empty() || claim.initializer < 0 || graph.group_at(claim.node)) continue;
    const std::string& kept = graph.tensor(claim.initializer).name;
    for (const std::string& lost : claims.unclaimed()) {
      if (leaf_of(lost) != leaf_of(claim.name) || !graph.may_stand_for(kept, lost)) continue;
      if (auto edit = copy_parts(graph, claims, claim, lost)) return edit;
    }
  }
  return {};
}

}  // namespace

std::optional<Edit> next_copy(const CallGraph& graph, CallClaims& claims) {
  std::optional<Edit> edit = next_module(graph, claims);
  return edit ? edit : next_parts(graph, claims);
}

}  // namespace piper::onnx_import
