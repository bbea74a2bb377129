// Reports parameters that may be missing since the exporter removed what changed nothing: summands
// of 0 and factors of 1, even where they are made of parameters. claims_by_calls calls it.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "folds.h"
#include "pieces.h"

namespace piper::onnx_import {
namespace {

struct Constant {  // a parameter all of whose elements are one number
  std::string name, module;
  double number = 0;
  bool alone = false;  // its module reads no parameters but its own
  bool noted = false;
};

// Describes a value that a call or the model's outputs name, and no node makes.
struct Removed {
  std::string value;
  std::string around;  // the scope around what it stood between
  std::string why;
};

constexpr const char* kPossible =
    "the exporter removed a summand of 0 or a factor of 1 near its module: if that was computed of "
    "this parameter, too, the file has lost it, and one of optimize=False has not";

// Returns what a function makes of a number, or of a tensor of it alone.
std::optional<double> gives(const std::string& function, double number) {
  if (kind_of(function) == PieceKind::kSum)
    return function == "sum" && number != 0 ? std::optional<double>() : number;
  const Derivation steps = function_steps(function, {});
  if (steps.empty() || function == "softmax") return {};
  const Result<OnnxTensor> made = value_of(steps, scalar_literal(number, DType::kF64));
  return made ? std::optional(read_number(made->data, DType::kF64, 0)) : std::nullopt;
}

// Returns the scope around what a removed factor or summand stood between: the group, and what it
// reads in its stead. Integers are no products of parameters.
std::string around_removed(const CallGraph& graph, const Group& group) {
  std::string around = graph.scope_of(group);
  for (const size_t n : group.nodes) {
    for (const std::string& input : graph.node(n).inputs) {
      const std::optional<size_t> made = graph.maker(input);
      if (!made) {
        if (graph.index.find(input) < 0 && !input.empty() && !graph.names(group, input))
          around = "";
        continue;
      }
      const Group* maker = graph.group_at(*made);
      if (maker == &group || (maker && graph.names(group, maker->call.name))) continue;
      if (!graph.model.integers.count(input)) around = common_scope(around, graph.scopes[*made]);
    }
  }
  return around;
}

bool reads_integers_alone(const CallGraph& graph, const Group& group) {
  return std::all_of(group.nodes.begin(), group.nodes.end(), [&](size_t n) {
    const std::vector<std::string>& inputs = graph.node(n).inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](const std::string& input) {
      return input.empty() || graph.model.integers.count(input) || graph.index.find(input) >= 0;
    });
  });
}

// A product with 1 and a sum with 0 are removed: a call names the result, which no node makes.
std::vector<Removed> removed_values(const CallGraph& graph) {
  std::vector<Removed> out;
  for (const Group& group : graph.groups())
    for (const std::string& value : graph.unknowns(group))
      if (is_removable(value) && !reads_integers_alone(graph, group))
        out.push_back({value, around_removed(graph, group),
                       fmt::format("'{}', which {} reads, was removed", value,
                                   graph.node(group.nodes[0]).label())});
  const std::string_view signature = find_metadata(graph.model.metadata, kSignatureKey);
  for (const std::string& value : parse_outputs(signature))
    if (is_removable(value) && graph.is_unknown({0, value}))
      out.push_back({value, "", fmt::format("'{}', which the model returns, was removed", value)});
  return out;
}

// Returns parameters of one number which a program may use elsewhere than in their own modules.
std::vector<Constant> constants(const CallGraph& graph, const CallClaims& claims) {
  std::vector<Constant> out;
  for (const Claim& claim : claims.found.list) {
    if (claim.name.empty() || claim.copy || claim.initializer < 0) continue;
    const OnnxTensor& t = graph.tensor(claim.initializer);
    const std::string of = class_of(graph.node(claim.node));
    if (of.empty() || of.starts_with("torch.nn.") || !is_uniform(t.data, t.type.dtype)) continue;
    const auto parameter = value_of_parameter(graph, claims, claim.name);
    if (!parameter) continue;
    out.push_back({claim.name, scope_of_name(module_of(claim.name)),
                   read_number(parameter->data, parameter->type.dtype, 0),
                   graph.ties_alone(claim.node)});
  }
  return out;
}

enum class Chance { kNone, kPossible, kLikely };  // of a parameter in what was removed

// A summand that was 0, or a factor that was 1, may be made of a parameter that is claimed, too:
// likely of one in the module that computed it, as 1 + 0, or of one to which a function was applied
// that has vanished.
Chance chance_of(const Constant& constant, const Removed& removed,
                 const std::set<std::string>& vanished) {
  if (!is_within(constant.module, removed.around)) return Chance::kNone;
  const bool usual = !constant.alone && (constant.number == 0 || std::fabs(constant.number) == 1);
  if (constant.module == removed.around && usual) return Chance::kLikely;
  const std::string_view stem = stem_of(removed.value);
  const double number = stem == "add" || stem == "sub" ? 0 : 1;
  const bool applied = std::any_of(
      vanished.begin(), vanished.end(),
      [&](const std::string& function) { return gives(function, constant.number) == number; });
  return applied ? Chance::kLikely : usual ? Chance::kPossible : Chance::kNone;
}

// Returns the numbers that the names of values have, by function.
std::map<std::string, std::set<int64_t>> numbers_of_functions(const CallGraph& graph) {
  std::map<std::string, std::set<int64_t>> numbers;
  const auto see = [&](std::string_view name) {
    const std::string_view stem = stem_of(name);
    int64_t number = 0;
    if (stem.size() < name.size())
      std::from_chars(name.data() + stem.size() + 1, name.data() + name.size(), number);
    numbers[std::string(stem)].insert(number);
  };
  for (const Group& group : graph.groups()) {
    see(group.call.name);
    for (const CallArg& arg : group.call.args) see(arg.name);
  }
  for (const OnnxTensor& t : graph.model.initializers) {
    see(t.name);
    for (const std::string& name : t.folded_from) see(name);
  }
  return numbers;
}

void report_constants(const Removed& removed, const std::set<std::string>& vanished,
                      std::vector<Constant>& all, CallClaims& claims) {
  for (Constant& constant : all) {
    const Chance chance = chance_of(constant, removed, vanished);
    if (chance == Chance::kLikely)
      claims.report(constant.name, removed.why + ", and may have been made of it");
    else if (chance == Chance::kPossible && !std::exchange(constant.noted, true))
      claims.found.notes.push_back({constant.name, kPossible});
  }
}

}  // namespace

std::set<std::string> vanished_functions(const CallGraph& graph) {
  std::set<std::string> out;
  for (const auto& [stem, seen] : numbers_of_functions(graph)) {
    const int64_t first = stem == "sum" || stem == "abs" ? 1 : 0;  // names that Python has itself
    if (static_cast<int64_t>(seen.size()) <= *seen.rbegin() - first) out.insert(stem);
  }
  return out;
}

// An unclaimed parameter near a removed value may have been that number.
CallClaims report_removed(const CallGraph& graph, CallClaims claims) {
  std::vector<Constant> all = constants(graph, claims);
  const std::set<std::string> vanished = vanished_functions(graph);
  for (const Removed& removed : removed_values(graph)) {
    const auto is_near = [&](const std::string& name) {
      return is_within(scope_of_name(module_of(name)), removed.around);
    };
    for (const std::string& name : claims.found.lost)
      if (is_near(name)) claims.uncalled.emplace(name, removed.why);
    report_constants(removed, vanished, all, claims);
    for (const auto& [name, initializer] : claims.partial) {
      const std::string& part = graph.tensor(initializer).name;
      if (stem_of(part) == "select" && is_near(name))
        claims.report(name,
                      fmt::format("{}, and the file keeps only '{}' of it", removed.why, part));
    }
  }
  return claims;
}

}  // namespace piper::onnx_import
