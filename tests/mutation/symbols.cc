#include "mutation/symbols.h"

#include <fmt/format.h>

#include <algorithm>

namespace piper::mutation {
namespace {

Symbols added(Symbols a, const Symbols& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Symbols opaque(const std::string& op, const Attrs& attrs, const std::vector<Operand>& inputs,
               size_t output, const TensorType& type) {
  Symbol of = join(symbol_of(op), symbol_of(print_attrs(attrs)));
  for (const Operand& input : inputs)
    of = join(of, join(symbol_of(to_string(input.type)), symbol_of(input.cells)));
  return spread(join(of, output), cells_of(type));
}

// Whether an op moves or repeats numbers and changes none.
bool only_moves(std::string_view op) {
  return op == "Reshape" || op == "Expand" || op == "Concat" || op == "Transpose" ||
         op == "Slice" || op == "Cast";
}
// Two 16-bit floats added in f32 and rounded: a sum like any other, in whatever order.
bool adds_rounded(const ProgramOp& op, const std::vector<TensorType>& outputs) {
  return op.op == "Fused" && outputs.size() == 1 &&
         op.attrs.text("expr") ==
             fmt::format("0 Cast:f32 1 Cast:f32 Add Cast:{}", info(outputs[0].dtype).name);
}
bool is_zero(const Operand& operand) {
  return std::all_of(operand.cells.begin(), operand.cells.end(),
                     [](Symbol cell) { return cell == 0; });
}

Attrs without(const Attrs& attrs, std::string_view name) {
  Attrs rest;
  for (const auto& [key, value] : attrs.items())
    if (key != name) rest.set(key, value);
  return rest;
}

}  // namespace

std::vector<Symbols> apply(const ProgramOp& op, const std::vector<Operand>& inputs,
                           const std::vector<TensorType>& outputs) {
  if ((op.op == "Add" || adds_rounded(op, outputs)) && inputs.size() == 2 &&
      inputs[0].type == outputs[0] && inputs[1].type == outputs[0])
    return {added(inputs[0].cells, inputs[1].cells)};
  if (op.attrs.integer("accumulate") != 0 && inputs.size() == 3 && inputs[2].type == outputs[0]) {
    const Symbols term =
        opaque(op.op, without(op.attrs, "accumulate"), {inputs[0], inputs[1]}, 0, outputs[0]);
    return {added(inputs[2].cells, term)};
  }
  if (only_moves(op.op) && outputs.size() == 1 &&
      std::all_of(inputs.begin(), inputs.end(), is_zero))
    return {Symbols(static_cast<size_t>(cells_of(outputs[0])))};
  std::vector<Symbols> made;
  for (size_t i = 0; i < outputs.size(); ++i)
    made.push_back(opaque(op.op, op.attrs, inputs, i, outputs[i]));
  return made;
}

}  // namespace piper::mutation
