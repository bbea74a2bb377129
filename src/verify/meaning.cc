// What a program leaves in its arguments, as symbols: hashes of the ops and of what they read, but
// sums where something is added, so that "adds to its argument" and "sets it" can be compared.
#include <algorithm>
#include <charconv>
#include <map>

#include "model.h"
#include "piper/ops.h"

namespace piper {
namespace {

class Reader {
 public:
  Reader(const Program& program, Roundings roundings)
      : program_(program),
        roundings_(roundings),
        bases_(program.bases()),
        at_(program.values.size()) {
    for (const ProgramView& view : program.views) at_[view.value] = view.offset;
    for (size_t v = 0; v < program.values.size(); ++v) held_.push_back(initial_symbol(v));
    for (const auto& [value, bytes] : program.literals) held_[value] = symbol_of(bytes);
  }

  std::vector<uint64_t> run() {
    for (const ProgramOp& op : program_.ops) {
      const std::vector<uint64_t> made = results(op);
      for (size_t i = 0; i < made.size(); ++i)
        if (op.outputs[i] >= 0) store(op.outputs[i], made[i]);
    }
    held_.resize(static_cast<size_t>(program_.num_args));
    return std::move(held_);
  }

 private:
  const TensorType& type(int32_t value) const { return program_.values[value]; }
  // Whether the value is all of its base.
  bool whole(int32_t value) const { return type(value).bytes() == type(bases_[value]).bytes(); }
  uint64_t load(int32_t value) const { return value < 0 ? 0 : part_of(value, 0, type(value)); }
  // The bytes of `value` from `from` on, as many as `type` has: all views of them have one symbol.
  // A part of a part is a part of the whole; how many bytes it has, the types of its readers say.
  uint64_t part_of(int32_t value, int64_t from, const TensorType& part) const {
    const int32_t base = bases_[value];
    if (part.bytes() == type(base).bytes()) return held_[base];
    const int64_t first = at_[value] + from;
    return join_symbols(held_[base], join_symbols(first, part.bytes()));
  }
  // Where in its input an op finds its result, when it only copies a run of bytes: what one program
  // copies another may read in place.
  std::optional<int64_t> copied_from(const ProgramOp& op) const {
    if (op.inputs.size() != 1 || op.outputs.size() != 1 || op.inputs[0] < 0) return std::nullopt;
    const TensorType &from = type(op.inputs[0]), &to = type(op.outputs[0]);
    const OpDef* def = find_op(op.op);
    return def && def->first_byte ? def->first_byte(from, to, op.attrs) : std::nullopt;
  }
  void store(int32_t value, uint64_t symbol) {
    uint64_t& base = held_[bases_[value]];
    base = whole(value) ? symbol : join_symbols(join_symbols(base, at_[value]), symbol);
  }

  // Whether it adds two 16-bit floats in f32 and rounds the sum.
  bool adds_rounded(const ProgramOp& op) const {
    return op.op == "Fused" &&
           op.attrs.text("expr") == fmt::format("0 Cast:f32 1 Cast:f32 Add Cast:{}",
                                                info(type(op.outputs[0]).dtype).name) &&
           info(type(op.outputs[0]).dtype).bytes == 2;
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

  // Sums and roundings of them, as groups of pointwise ops do them; nothing: more than that.
  std::optional<std::vector<uint64_t>> fused_sums(const ProgramOp& op) const {
    std::vector<uint64_t> stack;
    std::map<std::string, uint64_t> named;
    for (const std::string& word : split_text(op.attrs.text("expr"), ' ')) {
      if (word == "Add") {
        if (stack.size() < 2) return std::nullopt;
        const uint64_t right = stack.back();
        stack.pop_back();
        stack.back() += right;
      } else if (word.starts_with('=') || word.starts_with('@')) {
        if (word[0] == '@' ? !named.contains(word.substr(1)) : stack.empty()) return std::nullopt;
        if (word[0] == '=')
          named[word.substr(1)] = stack.back();
        else
          stack.push_back(named[word.substr(1)]);
      } else if (word.starts_with("Cast:")) {
        const auto to = parse_dtype(word.substr(5));
        if (stack.empty() || !to || !keeps_sums(op, *to)) return std::nullopt;
      } else {
        size_t input = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), input);
        if (error != std::errc() || end != word.data() + word.size() || input >= op.inputs.size() ||
            op.inputs[input] < 0)
          return std::nullopt;
        const TensorType& from = type(op.inputs[input]);
        if (!info(from.dtype).is_float || from.shape != type(op.outputs[0]).shape)
          return std::nullopt;
        stack.push_back(load(op.inputs[input]));
      }
    }
    if (stack.size() != op.outputs.size()) return std::nullopt;
    return stack;
  }

  std::vector<uint64_t> results(const ProgramOp& op) const {
    if (op.op == "Fused")
      if (const auto sums = fused_sums(op)) return *sums;
    if (op.op == "Cast" && op.inputs.size() == 1 && op.inputs[0] >= 0 &&
        info(type(op.inputs[0]).dtype).is_float && keeps_sums(op, type(op.outputs[0]).dtype))
      return {load(op.inputs[0])};
    if (const auto from = copied_from(op))
      return {part_of(op.inputs[0], *from, type(op.outputs[0]))};
    const bool one_type = op.inputs.size() == 2 && op.inputs[0] >= 0 && op.inputs[1] >= 0 &&
                          type(op.inputs[0]) == type(op.outputs[0]) &&
                          type(op.inputs[1]) == type(op.outputs[0]);
    if ((op.op == "Add" || adds_rounded(op)) && one_type)
      return {load(op.inputs[0]) + load(op.inputs[1])};
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
  std::vector<int32_t> bases_;
  std::vector<int64_t> at_;     // by value: its byte in its base
  std::vector<uint64_t> held_;  // by base
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
