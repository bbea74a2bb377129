// Checks one use of an op, with its attributes, against the table of ops.
#include <algorithm>

#include "piper/ir/signatures.h"

namespace piper {
namespace {

std::string_view kind_of(const AttrValue& value) {
  constexpr std::string_view kKinds[] = {"an integer", "a number", "a text", "a list of integers"};
  static_assert(std::variant_size_v<AttrValue> == std::size(kKinds));
  return kKinds[value.index()];
}

Status check_attributes(const OpDef& op, const Attrs& attrs) {
  const std::vector<OpAttribute>& all = op.attributes;
  for (const auto& [name, value] : attrs.items()) {
    const auto known = std::find_if(all.begin(), all.end(),
                                    [&](const OpAttribute& each) { return each.name == name; });
    if (known == all.end()) return fail("has no attribute '{}'", quote_control(name));
    if (value.index() != static_cast<size_t>(known->kind))
      return fail("attribute '{}' is {}", name, kind_of(value));
  }
  return ok_status();
}

// Checks which attributes a use of right types reads.
Status check_read(const OpDef& op, const OpTypes& use) {
  for (const OpAttribute& each : op.attributes)
    if (each.is_read && use.attrs.find(each.name) && !each.is_read(op, use))
      return fail("has the attribute '{}', which nothing reads here", each.name);
  return ok_status();
}

std::string list_of(const std::vector<TensorType>& types) {
  std::vector<std::string> words;
  for (const TensorType& type : types) words.push_back(to_string(type));
  return join(words, ", ");
}

// Returns the use without its last input, a sum that the result is added to.
Result<OpTypes> without_sum(const OpTypes& use) {
  if (use.inputs.empty() || !use.present.back() || use.outputs.size() != 1 ||
      use.inputs.back() != use.outputs[0])
    return fail("is added to the last of {}, but makes {}", list_of(use.inputs),
                list_of(use.outputs));
  OpTypes plain = use;
  plain.inputs.pop_back();
  plain.present.pop_back();
  return plain;
}

}  // namespace

OpTypes use_of(std::span<const TensorType> values, std::span<const int32_t> inputs,
               std::span<const int32_t> outputs, const Attrs& attrs) {
  const auto type = [&](int32_t value) { return values[static_cast<size_t>(value)]; };
  OpTypes use;
  use.attrs = attrs;
  for (const int32_t input : inputs) {
    use.present.push_back(input >= 0);
    use.inputs.push_back(input >= 0 ? type(input) : TensorType{});
  }
  for (const int32_t output : outputs) use.outputs.push_back(type(output));
  return use;
}

Status check_use(std::string_view op, const OpTypes& use) {
  const OpDef* def = find_op(op);
  if (!def) {
    std::vector<std::string> names;
    for (const OpDef* each : all_ops()) names.emplace_back(each->name);
    return fail("there is no such op{}", did_you_mean(op, names));
  }
  if (def->collective || def->sums_step) return fail("is not for a single device");
  PIPER_TRY(check_attributes(*def, use.attrs));
  const bool adds = use.attrs.integer("accumulate") != 0;
  PIPER_ASSIGN(const OpTypes plain, adds ? without_sum(use) : Result<OpTypes>(use));
  PIPER_ASSIGN(const std::vector<TensorType> made, def->types(plain));
  if (made != use.outputs) return fail("makes {}, not {}", list_of(made), list_of(use.outputs));
  return check_read(*def, use);
}

Status check_types(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    const OpDef* const def = find_op(node.op);
    if (def == nullptr) return fail("node '{}': there is no op '{}'", node.name, node.op);
    const Result<std::vector<TensorType>> types = def->types(use_of(graph, node));
    if (!types) return fail("node '{}' ({}): {}", node.name, node.op, types.error().message);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const Value& made = graph.value(node.outputs[i]);
      if (i < types->size() && (*types)[i] == made.type) continue;
      return fail("'{}' is {}, and node '{}' ({}) makes {}", made.name, to_string(made.type),
                  node.name, node.op, i < types->size() ? to_string((*types)[i]) : "nothing");
    }
  }
  return ok_status();
}

}  // namespace piper
