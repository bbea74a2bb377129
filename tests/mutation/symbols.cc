#include "mutation/symbols.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

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
// Two 16-bit floats added in f32 and rounded: a sum like any other, in whatever order.
bool adds_rounded(const ProgramOp& op, const std::vector<TensorType>& outputs) {
  return op.op == "Fused" && outputs.size() == 1 &&
         op.attrs.text("expr") ==
             fmt::format("0 Cast:f32 1 Cast:f32 Add Cast:{}", info(outputs[0].dtype).name);
}
// Word by word, so that operands of sums and products may change places.
std::vector<Symbols> expression(const ProgramOp& op, const std::vector<Operand>& inputs,
                                const std::vector<TensorType>& outputs) {
  constexpr std::string_view kTwo =
      " Add Sub Mul Div Pow Max Min Mod Equal Less LessOrEqual Greater GreaterOrEqual And Or Xor "
      "GeluGrad SiluGrad SwiGlu ";
  std::vector<Symbol> stack;
  std::map<std::string, Symbol> named;
  for (const std::string& word : split_text(op.attrs.text("expr"), ' ')) {
    if (word[0] >= '0' && word[0] <= '9') {
      const Operand& input = inputs.at(static_cast<size_t>(std::stoi(word)));
      stack.push_back(join(symbol_of(to_string(input.type)), symbol_of(input.cells)));
      continue;
    }
    if (word[0] == '=') named[word.substr(1)] = stack.back();
    if (word[0] == '@') stack.push_back(named[word.substr(1)]);
    if (word[0] == '=' || word[0] == '@') continue;
    const std::string name = word.substr(0, word.find(':'));
    const size_t takes = name == "Where" ? 3 : kTwo.find(" " + name + " ") != kTwo.npos ? 2 : 1;
    if (stack.size() < takes) return {};
    const auto first = stack.end() - static_cast<std::ptrdiff_t>(takes);
    if (name == "Add" || name == "Mul") std::sort(first, stack.end());
    Symbol made = symbol_of(word);
    for (auto it = first; it != stack.end(); ++it) made = join(made, *it);
    stack.erase(first, stack.end());
    stack.push_back(made);
  }
  std::vector<Symbols> made;
  for (size_t i = 0; i < outputs.size() && i < stack.size(); ++i)
    made.push_back(spread(stack[i], cells_of(outputs[i])));
  return made;
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
  if (op.op == "Reshape" && inputs.size() == 1 && inputs[0].type.dtype == outputs[0].dtype &&
      inputs[0].type.bytes() == outputs[0].bytes())
    return {inputs[0].cells};
  if (op.op == "Fused") return expression(op, inputs, outputs);
  std::vector<Symbols> made;
  for (size_t i = 0; i < outputs.size(); ++i)
    made.push_back(opaque(op.op, op.attrs, inputs, i, outputs[i]));
  return made;
}

}  // namespace piper::mutation
