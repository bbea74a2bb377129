// Which sums of what its arguments held a program leaves in them: through ops that add, move or
// round. The sum of arguments is that of their symbols.
#include <algorithm>
#include <map>

#include "values.h"

namespace piper {
namespace {

using Sum = std::optional<uint64_t>;  // none: something else

class Reader {
 public:
  Reader(const Program& program, Roundings roundings)
      : program_(program), roundings_(roundings), held_(program.values.size()) {
    for (size_t a = 0; a < static_cast<size_t>(program.num_args); ++a) held_[a] = initial_symbol(a);
  }

  std::vector<Sum> run() {
    for (const ProgramOp& op : program_.ops) {
      const std::vector<Sum> made = results(op);
      if (op.op == "ToBlocks" && op.outputs[0] >= 0)
        in_blocks_[op.outputs[0]] = {&op, load(op.inputs[0])};
      for (size_t i = 0; i < op.outputs.size(); ++i)
        if (op.outputs[i] >= 0) held_[op.outputs[i]] = i < made.size() ? made[i] : std::nullopt;
    }
    held_.resize(static_cast<size_t>(program_.num_args));
    return std::move(held_);
  }

 private:
  const TensorType& type(int32_t value) const { return program_.values[value]; }
  Sum load(int32_t value) const { return value >= 0 ? held_[value] : std::nullopt; }
  static Sum added(const Sum& a, const Sum& b) { return a && b ? Sum(*a + *b) : std::nullopt; }

  // Returns whether sums may be cast to the type: nothing is lost, or a result of the program has
  // it.
  bool keeps_sums(const ProgramOp& op, DType to) const {
    if (!info(to).is_float || roundings_ == Roundings::kAny) return info(to).is_float;
    if (holds_all(to, type(op.inputs[0]).dtype)) return true;
    for (size_t arg = 0; arg < static_cast<size_t>(program_.num_args); ++arg)
      if (program_.arg_written[arg] && program_.values[arg].dtype == to) return true;
    return false;
  }

  // Returns the sum that was put into blocks, if it is taken out of them as it was put in.
  Sum out_of_blocks(const ProgramOp& op) const {
    const auto known = in_blocks_.find(op.inputs[0]);
    if (known == in_blocks_.end()) return std::nullopt;
    const auto& [put, sum] = known->second;
    const bool same = op.attrs.text("to") == put->attrs.text("to") &&
                      op.attrs.integer("block") == put->attrs.integer("block") &&
                      op.attrs.integer("run") == put->attrs.integer("run") &&
                      op.attrs.integer("axis") == put->attrs.integer("axis") &&
                      op.attrs.integers("piece") == put->attrs.integers("piece");
    return same && type(op.outputs[0]) == type(put->inputs[0]) ? sum : std::nullopt;
  }

  std::vector<Sum> results(const ProgramOp& op) const {
    const bool one_type = op.inputs.size() == 2 && op.inputs[0] >= 0 && op.inputs[1] >= 0 &&
                          type(op.inputs[0]) == type(op.outputs[0]) &&
                          type(op.inputs[1]) == type(op.outputs[0]);
    if (op.op == "Add" && one_type) return {added(load(op.inputs[0]), load(op.inputs[1]))};
    if (op.op == "FromBlocks" && roundings_ == Roundings::kAny) return {out_of_blocks(op)};
    const bool rounds = op.op == "Cast" && op.inputs.size() == 1 && op.inputs[0] >= 0 &&
                        info(type(op.inputs[0]).dtype).is_float &&
                        keeps_sums(op, type(op.outputs[0]).dtype);
    return {rounds || renames(program_, op) ? load(op.inputs[0]) : std::nullopt};
  }

  const Program& program_;
  const Roundings roundings_;
  std::vector<Sum> held_;  // by value
  // By value: what put it into blocks, and the sum that this was.
  std::map<int32_t, std::pair<const ProgramOp*, Sum>> in_blocks_;
};

}  // namespace

uint64_t symbol_of(std::string_view text) {
  uint64_t symbol = text.size();
  for (char c : text) symbol = join_symbols(symbol, static_cast<unsigned char>(c));
  return symbol;
}

uint64_t initial_symbol(size_t arg) { return join_symbols(symbol_of("argument"), arg); }

std::vector<std::optional<uint64_t>> sums_of(const Program& program, Roundings roundings) {
  return Reader(program, roundings).run();
}

}  // namespace piper
