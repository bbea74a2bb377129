// What the exporter removed, since it changed nothing: summands of 0 and factors of 1, be they made
// of parameters.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "calls.h"
#include "pieces.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

// What a function makes of a number, or of a tensor of it alone.
std::optional<double> gives(const std::string& function, double number) {
  if (kind_of(function) == PieceKind::kSum)
    return function == "sum" && number != 0 ? std::optional<double>() : number;
  const Derivation steps = function_steps(function, {});
  if (steps.empty() || function == "softmax") return {};
  const Result<OnnxTensor> made = value_of(steps, scalar_literal(number, DType::kF64));
  return made ? std::optional(read_number(made->data, DType::kF64, 0)) : std::nullopt;
}

constexpr const char* kPossible =
    "the exporter removed a summand of 0 or a factor of 1 near its module: if that was computed of "
    "this parameter, too, the file has lost it, and one of optimize=False has not";

bool is_removable(const std::string& value) {
  constexpr std::string_view kRemoved[] = {"mul", "add", "sub", "div"};
  return std::count(std::begin(kRemoved), std::end(kRemoved), stem_of(value)) > 0;
}

}  // namespace

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
  constants_ = constants();
  vanished_ = vanished();
  for (const Group& group : groups_)
    for (const std::string& value : unknowns(group))
      if (is_removable(value) && !reads_integers_alone(group))
        find_removed(value, around_removed(group),
                     fmt::format("'{}', which {} reads, was removed", value,
                                 model_.nodes[group.nodes[0]].label()));
  for (const std::string& value : parse_outputs(find_metadata(model_.metadata, kSignatureKey)))
    if (is_removable(value) && is_unknown({0, value}))
      find_removed(value, "", fmt::format("'{}', which the model returns, was removed", value));
}

void CallClaims::find_removed(const std::string& value, const std::string& around,
                              const std::string& why) {
  for (const std::string& name : claims_.lost)
    if (is_within(scope_of_name(module_of(name)), around)) unseen_.emplace(name, why);
  for (Constant& constant : constants_) {
    const Part part = part_of(constant, stem_of(value), around);
    if (part == Part::kLikely)
      swallow(constant.name, why + ", and may have been made of it");
    else if (part == Part::kPossible && !std::exchange(constant.noted, true))
      claims_.notes.push_back({constant.name, kPossible});
  }
  for (const auto& [name, initializer] : partial_)
    if (stem_of(tensor(initializer).name) == "select" &&
        is_within(scope_of_name(module_of(name)), around))
      swallow(name,
              fmt::format("{}, and of it '{}' alone is there", why, tensor(initializer).name));
}

// The functions of which a result is in no place of the file: the results of each are numbered.
std::set<std::string> CallClaims::vanished() const {
  std::map<std::string, std::set<int64_t>> numbers;
  const auto see = [&](std::string_view name) {
    const std::string_view stem = stem_of(name);
    int64_t number = 0;
    if (stem.size() < name.size())
      std::from_chars(name.data() + stem.size() + 1, name.data() + name.size(), number);
    numbers[std::string(stem)].insert(number);
  };
  for (const Group& group : groups_) {
    see(group.call.name);
    for (const CallArg& arg : group.call.args) see(arg.name);
  }
  for (const OnnxTensor& t : model_.initializers) {
    see(t.name);
    for (const std::string& name : t.folded_from) see(name);
  }
  std::set<std::string> out;
  for (const auto& [stem, seen] : numbers) {
    const int64_t first = stem == "sum" || stem == "abs" ? 1 : 0;  // names that Python has itself
    if (static_cast<int64_t>(seen.size()) <= *seen.rbegin() - first) out.insert(stem);
  }
  return out;
}

// Parameters of one number, which a program may use elsewhere than in their modules alone.
std::vector<CallClaims::Constant> CallClaims::constants() const {
  std::vector<Constant> out;
  for (const Claim& claim : claims_.list) {
    if (claim.name.empty() || claim.copy || claim.initializer < 0) continue;
    const OnnxTensor& t = tensor(claim.initializer);
    const std::string of = class_of(model_.nodes[claim.node]);
    if (of.empty() || of.starts_with("torch.nn.") || !is_uniform(t.data, t.type.dtype)) continue;
    const auto parameter = value_of_parameter(claim.name);
    if (!parameter) continue;
    out.push_back({claim.name, scope_of_name(module_of(claim.name)),
                   read_number(parameter->data, parameter->type.dtype, 0), ties_alone(claim.node)});
  }
  return out;
}

// A summand that was 0, or a factor that was 1, may be made of a parameter that has a place, too:
// likely one of the module that computed it, as 1 + 0, or one of which a function has vanished.
CallClaims::Part CallClaims::part_of(const Constant& constant, std::string_view removed,
                                     const std::string& around) const {
  if (!is_within(constant.module, around)) return Part::kNone;
  const bool usual = !constant.alone && (constant.number == 0 || std::fabs(constant.number) == 1);
  if (constant.module == around && usual) return Part::kLikely;
  const double number = removed == "add" || removed == "sub" ? 0 : 1;
  const bool vanished = std::any_of(
      vanished_.begin(), vanished_.end(),
      [&](const std::string& function) { return gives(function, constant.number) == number; });
  return vanished ? Part::kLikely : usual ? Part::kPossible : Part::kNone;
}

bool CallClaims::reads_integers_alone(const Group& group) const {
  return std::all_of(group.nodes.begin(), group.nodes.end(), [&](size_t n) {
    const std::vector<std::string>& inputs = model_.nodes[n].inputs;
    return std::all_of(inputs.begin(), inputs.end(), [&](const std::string& input) {
      return input.empty() || model_.integers.count(input) || index_.find(input) >= 0;
    });
  });
}

}  // namespace piper::onnx_import
