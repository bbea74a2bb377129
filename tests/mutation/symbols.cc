#include "mutation/symbols.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace piper::mutation {
namespace {

Symbols added(Symbols a, const Symbols& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

Symbols opaque(const std::string& op, const Attrs& attrs, const std::vector<Operand>& inputs,
               size_t output, const TensorType& type) {
  Symbol of = join(symbol_of(op), symbol_of(print_attrs(attrs)));
  std::vector<Symbol> read;
  for (const Operand& input : inputs)
    read.push_back(join(symbol_of(to_string(input.type)), symbol_of(input.cells)));
  if (op == "Mul" || op == "Add") std::sort(read.begin(), read.end());  // the same bits
  for (const Symbol symbol : read) of = join(of, symbol);
  return spread(join(of, output), cells_of(type));
}

// Whether an op moves or repeats numbers and changes none.
bool only_moves(std::string_view op) {
  return op == "Reshape" || op == "Expand" || op == "Concat" || op == "Transpose" ||
         op == "Slice" || op == "Cast";
}
// ---- Sums of 16-bit floats ----
// They are added in f32 and rounded: sums like any other, in whatever order. A cell holds two, so
// each of them is the cell times an odd number, which sums keep and an inverse undoes.
Symbol factor(DType dtype, size_t half) { return scramble(symbol_of(info(dtype).name) + half) | 1; }
Symbol inverse(Symbol odd) {  // modulo 2^64, by Newton's iteration
  Symbol x = odd;
  for (int i = 0; i < 5; ++i) x *= 2 - odd * x;
  return x;
}
bool is_half(DType dtype) { return info(dtype).is_float && info(dtype).bytes == 2; }
// Nothing: more than a sum of such numbers.
std::optional<Symbols> converted(const Operand& from, DType to) {
  const DType own = from.type.dtype;
  if (own == to) return from.cells;
  const auto count = static_cast<size_t>(num_elements(from.type.shape));
  Symbols made(is_half(to) ? from.cells.size() / 2 + from.cells.size() % 2 : count);
  if (is_half(own) && to == DType::kF32) {
    for (size_t i = 0; i < count; ++i) made[i] = from.cells[i / 2] * factor(own, i % 2);
    return made;
  }
  if (!is_half(to) || own != DType::kF32) return std::nullopt;
  const Symbol undo[] = {inverse(factor(to, 0)), inverse(factor(to, 1))};
  for (size_t i = 0; i < count; ++i) {
    const Symbol cell = from.cells[i] * undo[i % 2];
    if (i % 2 == 1 && made[i / 2] != cell) return std::nullopt;
    made[i / 2] = cell;
  }
  return made;
}
bool is_zero(const Operand& operand) {
  return std::all_of(operand.cells.begin(), operand.cells.end(),
                     [](Symbol cell) { return cell == 0; });
}

// Of numbers in a row: side by side, or some of them that lie so. Nothing: it is something else.
std::optional<Symbols> in_a_row(const ProgramOp& op, const std::vector<Operand>& inputs,
                                const TensorType& output) {
  const int64_t cells = info(output.dtype).bytes / 4;
  const auto is_row = [](const TensorType& type) { return type.shape.size() == 1; };
  if (cells == 0 || !is_row(output) || !is_row(inputs[0].type)) return std::nullopt;
  Symbols made;
  if (op.op == "Concat") {
    for (const Operand& input : inputs)
      made.insert(made.end(), input.cells.begin(), input.cells.end());
    return made;
  }
  if (op.op != "Slice" || op.attrs.integers("steps")[0] != 1) return std::nullopt;
  const auto first = inputs[0].cells.begin() + op.attrs.integers("starts")[0] * cells;
  made.assign(first, first + output.shape[0] * cells);
  return made;
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
  if (op.op == "Add" && inputs.size() == 2 && inputs[0].type == outputs[0] &&
      inputs[1].type == outputs[0])
    return {added(inputs[0].cells, inputs[1].cells)};
  if (op.attrs.integer("accumulate") != 0 && inputs.size() == 3 && inputs[2].type == outputs[0]) {
    const Symbols term =
        opaque(op.op, without(op.attrs, "accumulate"), {inputs[0], inputs[1]}, 0, outputs[0]);
    return {added(inputs[2].cells, term)};
  }
  if (only_moves(op.op) && outputs.size() == 1 &&
      std::all_of(inputs.begin(), inputs.end(), is_zero))
    return {Symbols(static_cast<size_t>(cells_of(outputs[0])))};
  if ((op.op == "Reshape" || op.op == "Expand") && inputs.size() == 1 &&
      inputs[0].type.dtype == outputs[0].dtype && inputs[0].type.bytes() == outputs[0].bytes())
    return {inputs[0].cells};
  if (op.op == "Cast" && inputs.size() == 1)
    if (const auto same = converted(inputs[0], outputs[0].dtype)) return {*same};
  if (const auto row = in_a_row(op, inputs, outputs[0])) return {*row};
  std::vector<Symbols> made;
  for (size_t i = 0; i < outputs.size(); ++i)
    made.push_back(opaque(op.op, op.attrs, inputs, i, outputs[i]));
  return made;
}

}  // namespace piper::mutation
