// Reports parameters that the file does not have, or perhaps not alone, for claims_by_calls: what
// was merged and did not come apart, and what no node reads.
#include <algorithm>

#include "calls.h"
#include "ways.h"

namespace piper::onnx_import {
namespace {

// Returns whether the names differ in one part, as "a.0.w" and "a.1.w".
bool differ_in_one_part(const std::string& a, const std::string& b) {
  const std::vector<std::string> x = split_text(a, '.'), y = split_text(b, '.');
  if (x.size() != y.size()) return false;
  size_t differing = 0;
  for (size_t i = 0; i < x.size(); ++i) differing += x[i] != y[i];
  return differing == 1;
}

// Says that a result which a call names was merged into another.
struct MergedResult {
  const Group* reader;
  std::string value, into;
  std::string text() const { return fmt::format("'{}' was merged into '{}'", value, into); }
};

std::vector<MergedResult> merged_results(const CallGraph& graph) {
  std::vector<MergedResult> out;
  for (const Group& group : graph.groups())
    for (const CallArg& arg : group.call.args)
      if (graph.is_unknown(arg))
        for (const std::string& input : graph.read_instead(group, arg))
          out.push_back({&group, arg.name, input});
  return out;
}

// Reports the lost parameters whose counterpart one of `trained` is.
void report_counterparts(CallClaims& claims, const std::vector<std::string>& trained,
                         const std::string& why) {
  for (const std::string& with : trained)
    for (const std::string& name : claims.found.lost)
      if (differ_in_one_part(name, with)) claims.uncalled.emplace(name, why);
}

std::map<const Group*, std::vector<std::string>> names_by_call(const CallGraph& graph,
                                                               const CallClaims& claims) {
  std::map<const Group*, std::vector<std::string>> names;
  for (const Claim& claim : claims.found.list)
    if (const Group* group = graph.group_at(claim.node); group && !claim.name.empty())
      names[group].push_back(claim.name);
  return names;
}

}  // namespace

std::string equal_module(const CallClaims& claims, const std::vector<Claim>& own,
                         const std::string& reader) {
  if (own.empty()) return {};
  const std::vector<Claim>& list = claims.found.list;
  const auto has = [&](const Claim& of, const std::string& module) {
    return std::any_of(list.begin(), list.end(), [&](const Claim& claim) {
      return claim.initializer == of.initializer && claim.type == of.type &&
             claim.name == module + "." + leaf_of(of.name);
    });
  };
  for (const Claim& claim : list) {
    const std::string module = module_of(claim.name);
    if (claim.initializer != own[0].initializer || module == module_of(own[0].name)) continue;
    if (!is_within(reader, scope_of_name(module_of(module)))) continue;
    if (std::all_of(own.begin(), own.end(), [&](const Claim& of) { return has(of, module); }))
      return module;
  }
  return {};
}

std::vector<std::string> trained_just_before(const CallGraph& graph, const CallClaims& claims,
                                             std::string_view value) {
  const std::map<const Group*, std::vector<std::string>> names = names_by_call(graph, claims);
  std::vector<std::string> out;
  std::vector<std::string_view> open{value};
  std::set<size_t> seen;
  while (!open.empty()) {
    const std::optional<size_t> made = graph.maker(open.back());
    open.pop_back();
    if (!made || !seen.insert(*made).second) continue;
    const auto known = names.find(graph.group_at(*made));
    if (known != names.end()) {
      out.insert(out.end(), known->second.begin(), known->second.end());
      continue;
    }
    for (const std::string& input : graph.node(*made).inputs) open.push_back(input);
  }
  return out;
}

// Not all merged results of calls come apart again: a node reads one value for two that its call
// names. An unclaimed parameter of the reader's module has its part in the merged value.
CallClaims report_merged(const CallGraph& graph, CallClaims claims) {
  for (const MergedResult& merged : merged_results(graph)) {
    const std::string why = merged.text();
    const std::string& scope = graph.scope_of(*merged.reader);
    claims.report_module(scope, why);
    for (const auto& [name, original] : claims.apart) {
      std::map<size_t, bool> known{{original, true}};
      const std::optional<size_t> made = graph.maker(merged.into);
      if (scope == scope_of_name(module_of(name)) && made && graph.comes_from(*made, known))
        claims.report(name, why);
    }
    const std::vector<Claim> own = claims.of(*graph.group_named(merged.into));
    const std::string other = equal_module(claims, own, scope);
    if (other.empty()) continue;
    for (const Claim& claim : own)
      claims.report(claim.name,
                    fmt::format("{}, and may belong to '{}', which is equal", why, other));
  }
  return claims;
}

// Equal results of folding are merged too, and only the first says what it was made of. The others
// show in a module with an unclaimed parameter: a call there names a value that no node makes, and
// a node reads a constant in its stead. A constant made of no parameter explains itself.
CallClaims report_unexplained(const CallGraph& graph, CallClaims claims) {
  for (const Group& group : graph.groups()) {
    const std::vector<std::string> values = graph.unknowns(group);
    for (const Slot& slot : group.slots) {
      const OnnxTensor& t = graph.tensor(slot);
      if (values.empty() || claims.is_taken(slot) || !t.folded_from.empty()) continue;
      const Metadata& metadata = graph.node(slot.node).metadata;
      const bool rewritten = !find_metadata(metadata, "pkg.onnxscript.rewriter.rule_name").empty();
      if (num_elements(t.type.shape) > 1 || rewritten)
        claims.report_module(
            graph.scopes[slot.node],
            fmt::format("{} is read where the call names '{}'", graph.place_of(slot), values[0]));
    }
  }
  return claims;
}

// Of equal modules, perhaps none came apart. Where a result of theirs was merged, a lost parameter
// is missing whose name differs in one part from that of a claimed one before it.
CallClaims report_merged_beside(const CallGraph& graph, CallClaims claims) {
  if (claims.found.lost.empty()) return claims;
  for (const auto& [node, around] : claims.restored)  // whose copy reads what the original reads
    for (const std::string& input : graph.node(node).inputs)
      for (const std::string& trained : trained_just_before(graph, claims, input))
        for (const std::string& name : claims.found.lost)
          if (leaf_of(name) == leaf_of(trained) &&
              is_within(scope_of_name(module_of(name)), around))
            claims.uncalled.emplace(name,
                                    fmt::format("it may have been merged with '{}'", trained));
  for (const MergedResult& merged : merged_results(graph))
    report_counterparts(claims, trained_just_before(graph, claims, merged.into), merged.text());
  return claims;
}

// Reports lost parameters that a call names.
CallClaims report_unread(const CallGraph& graph, CallClaims claims) {
  const std::set<std::string> lost(claims.found.lost.begin(), claims.found.lost.end());
  for (const Group& group : graph.groups()) {
    const OnnxNode& node = graph.node(group.nodes[0]);
    for (const CallArg& arg : group.call.args) {
      const SignatureInput* input = graph.placeholder(arg.name);
      if (!input || !lost.count(input->target)) continue;
      claims.report(input->target,
                    is_fused(node) ? fmt::format("the exporter multiplied it into {}", node.label())
                    : has_fused_operators(graph.model)
                        ? fmt::format("another program fused what read it: {} is left of its call",
                                      node.label())
                        : fmt::format("{} reads it under no name of its own", node.label()));
    }
  }
  return claims;
}

CallClaims list_missing(CallClaims claims) {
  for (const std::string& name : claims.found.lost)
    if (const auto at = claims.uncalled.find(name); at != claims.uncalled.end())
      claims.report(name, at->second, true);
  for (const auto& [name, param] : claims.missing) claims.found.missing.push_back(param);
  return claims;
}

}  // namespace piper::onnx_import
