// What a program leaves in its arguments, as symbols: hashes of the ops and of what they read, but
// sums where something is added, so that "adds to its argument" and "sets it" can be compared.
#include <algorithm>

#include "model.h"
#include "piper/ops.h"

namespace piper {
namespace {

class Reader {
 public:
  Reader(const Program& program, Roundings roundings) : program_(program), roundings_(roundings) {
    for (size_t v = 0; v < program.values.size(); ++v) held_.push_back(initial_symbol(v));
    for (const auto& [value, bytes] : program.literals) held_[value] = symbol_of(bytes);
  }

  std::vector<uint64_t> run() {
    for (const ProgramOp& op : program_.ops) {
      const std::vector<uint64_t> made = results(op);
      for (size_t i = 0; i < made.size(); ++i)
        if (op.outputs[i] >= 0) held_[op.outputs[i]] = made[i];
    }
    held_.resize(static_cast<size_t>(program_.num_args));
    return std::move(held_);
  }

 private:
  const TensorType& type(int32_t value) const { return program_.values[value]; }
  uint64_t load(int32_t value) const { return value < 0 ? 0 : held_[value]; }
  // Where in its input an op finds its result, when it only copies a run of bytes: what one program
  // copies another may read in place.
  std::optional<int64_t> copied_from(const ProgramOp& op) const {
    if (op.inputs.size() != 1 || op.outputs.size() != 1 || op.inputs[0] < 0) return std::nullopt;
    const TensorType &from = type(op.inputs[0]), &to = type(op.outputs[0]);
    const OpDef* def = find_op(op.op);
    return def && def->first_byte ? def->first_byte(from, to, op.attrs) : std::nullopt;
  }
  // Whether sums may be cast to the type: nothing is lost, or a result of the program has it.
  bool keeps_sums(const ProgramOp& op, DType to) const {
    if (!info(to).is_float || roundings_ == Roundings::kAny) return info(to).is_float;
    const bool exact =
        to == DType::kF64 ||
        (to == DType::kF32 && std::none_of(op.inputs.begin(), op.inputs.end(), [&](int32_t input) {
           return input >= 0 && type(input).dtype == DType::kF64;
         }));
    if (exact) return true;
    for (size_t arg = 0; arg < static_cast<size_t>(program_.num_args); ++arg)
      if (program_.arg_written[arg] && program_.values[arg].dtype == to) return true;
    return false;
  }

  std::vector<uint64_t> results(const ProgramOp& op) const {
    if (op.op == "Cast" && op.inputs.size() == 1 && op.inputs[0] >= 0 &&
        info(type(op.inputs[0]).dtype).is_float && keeps_sums(op, type(op.outputs[0]).dtype))
      return {load(op.inputs[0])};
    if (const auto from = copied_from(op)) {
      const uint64_t whole = load(op.inputs[0]);
      const int64_t bytes = type(op.outputs[0]).bytes();
      if (bytes == type(op.inputs[0]).bytes()) return {whole};
      return {join_symbols(whole, join_symbols(*from, bytes))};
    }
    const bool one_type = op.inputs.size() == 2 && op.inputs[0] >= 0 && op.inputs[1] >= 0 &&
                          type(op.inputs[0]) == type(op.outputs[0]) &&
                          type(op.inputs[1]) == type(op.outputs[0]);
    if (op.op == "Add" && one_type) return {load(op.inputs[0]) + load(op.inputs[1])};
    const bool adds = op.attrs.integer("accumulate") != 0 && op.inputs.size() == 3;
    Attrs attrs;
    for (const auto& [name, value] : op.attrs.items())
      if (!adds || name != "accumulate") attrs.set(name, value);
    uint64_t symbol = join_symbols(symbol_of(op.op), symbol_of(print_attrs(attrs)));
    for (size_t i = 0; i < op.inputs.size() - (adds ? 1 : 0); ++i) {
      const int32_t input = op.inputs[i];
      const uint64_t of_type = input < 0 ? 0 : symbol_of(to_string(type(input)));
      symbol = join_symbols(symbol, join_symbols(of_type, load(input)));
    }
    std::vector<uint64_t> made;
    for (size_t i = 0; i < op.outputs.size(); ++i) made.push_back(join_symbols(symbol, i));
    if (adds) made[0] += load(op.inputs[2]);
    return made;
  }

  const Program& program_;
  const Roundings roundings_;
  std::vector<uint64_t> held_;  // by value
};

}  // namespace

uint64_t symbol_of(std::string_view text) {
  uint64_t symbol = text.size();
  for (char c : text) symbol = join_symbols(symbol, static_cast<unsigned char>(c));
  return symbol;
}

uint64_t initial_symbol(size_t arg) { return join_symbols(symbol_of("argument"), arg); }

std::vector<uint64_t> sums_of(const Program& program, Roundings roundings) {
  return Reader(program, roundings).run();
}

}  // namespace piper
