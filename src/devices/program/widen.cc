// 16-bit floats in programs: stored in 16 bits, computed with in 32.
//
//   y = Gelu x16   ->   a = Cast x16 {f32};  b = Gelu a;  y = Cast b {bf16}
//
// Casts are in front of Slices and Reshapes of what is read whole anyway, and after a Concat, so
// that an attention of columns stays one.
#include <algorithm>
#include <map>
#include <set>

#include "piper/base/float16.h"
#include "piper/devices/program.h"

namespace piper {
namespace {

class Widener {
 public:
  Widener(Program program, TakesHalves takes) : program_(std::move(program)), takes_(takes) {}

  Program run() {
    std::vector<ProgramOp> ops = std::move(program_.ops);
    program_.ops.clear();
    find_roots(ops);
    for (ProgramOp& op : ops) add(std::move(op));
    return std::move(program_);
  }

 private:
  bool narrow_value(int32_t value) const { return value >= 0 && is_half(dtype_of(value)); }
  DType dtype_of(int32_t value) const { return program_.values[static_cast<size_t>(value)].dtype; }
  int32_t wide_value(int32_t like) {
    TensorType type = program_.values[static_cast<size_t>(like)];
    type.dtype = DType::kF32;
    program_.values.push_back(std::move(type));
    return static_cast<int32_t>(program_.values.size()) - 1;
  }
  void cast(int32_t from, int32_t to) {
    const std::string name = info(dtype_of(to)).name;
    program_.ops.push_back({"Cast", {{"to", name}}, {from}, {to}});
  }

  bool computes(const ProgramOp& op) const { return !takes_(op.op); }

  // A cast between f32 and 16 bits is as wide as it will be.
  bool is_widened(const ProgramOp& op) const {
    if (op.op != "Cast") return false;
    const bool from = narrow_value(op.inputs[0]), to = narrow_value(op.outputs[0]);
    return from != to && dtype_of(from ? op.outputs[0] : op.inputs[0]) == DType::kF32;
  }

  // Finds values of which parts are read by ops that compute, as many bytes as they have.
  void find_roots(const std::vector<ProgramOp>& ops) {
    std::map<int32_t, std::set<int32_t>> parts;
    std::map<int32_t, size_t> writes;  // that are still to come
    std::vector<int32_t> renamed;      // in order
    for (const ProgramOp& op : ops)
      for (int32_t output : op.outputs) ++writes[output];
    for (const ProgramOp& op : ops) {
      for (int32_t input : op.inputs) {
        if (!computes(op) || !narrow_value(input)) continue;
        int32_t root = input;
        for (auto at = renamed_.find(root); at != renamed_.end(); at = renamed_.find(root))
          root = at->second.inputs[0];
        if (root != input) parts[root].insert(input);
      }
      if ((op.op == "Reshape" || op.op == "Slice") && narrow_value(op.outputs[0]) &&
          op.outputs[0] >= program_.num_args && writes[op.inputs[0]] == 0 &&
          renamed_.emplace(op.outputs[0], op).second)
        renamed.push_back(op.outputs[0]);
      for (int32_t output : op.outputs) --writes[output];
    }
    for (const auto& [root, values] : parts) {
      int64_t bytes = 0;
      for (int32_t value : values) bytes += program_.values[static_cast<size_t>(value)].bytes();
      if (bytes >= program_.values[static_cast<size_t>(root)].bytes()) roots_.insert(root);
    }
    for (const int32_t value : renamed)
      if (has_root(renamed_.at(value).inputs[0])) parts_.insert(value);
  }
  bool has_root(int32_t value) const { return roots_.contains(value) || parts_.contains(value); }

  // Returns the value in f32 whose rounding it is; -1 when there is none.
  int32_t exact(int32_t value) {
    std::vector<int32_t> names;
    auto known = exact_.find(value);
    for (; known == exact_.end(); known = exact_.find(value)) {
      const auto at = renamed_.find(value);
      if (at == renamed_.end() || at->second.op != "Reshape") return -1;
      names.push_back(value);
      value = at->second.inputs[0];
    }
    return rename_again(known->second, names, exact_);
  }
  // Makes names of `wide` like these, the last of which names what it is; `made`: by name. Loops
  // follow names, for chains of them are as long as a model makes them.
  int32_t rename_again(int32_t wide, std::span<const int32_t> names,
                       std::map<int32_t, int32_t>& made) {
    for (size_t n = names.size(); n-- > 0;) {
      const ProgramOp& like = renamed_.at(names[n]);
      const int32_t from = std::exchange(wide, wide_value(names[n]));
      program_.ops.push_back({like.op, like.attrs, {from}, {wide}});
      made[names[n]] = wide;
    }
    return wide;
  }
  bool concat_exact(const ProgramOp& op) {
    if (op.op != "Concat" || !narrow_value(op.outputs[0])) return false;
    ProgramOp wide = op;
    for (int32_t& input : wide.inputs)
      if ((input = exact(input)) < 0) return false;
    wide.outputs = {wide_value(op.outputs[0])};
    const int32_t made = wide.outputs[0];
    program_.ops.push_back(std::move(wide));
    cast(made, op.outputs[0]);
    exact_[op.outputs[0]] = made;
    wide_.erase(op.outputs[0]);
    return true;
  }

  void add(ProgramOp op) {
    if (concat_exact(op)) return;
    const std::vector<int32_t> made = op.outputs;
    if (computes(op) && !is_widened(op)) {
      for (int32_t& input : op.inputs)
        if (narrow_value(input)) input = widened(input);
      for (int32_t& output : op.outputs)
        if (narrow_value(output)) output = wide_value(output);
    }
    const std::vector<int32_t> outputs = op.outputs;
    program_.ops.push_back(std::move(op));
    for (size_t i = 0; i < made.size(); ++i) {
      wide_.erase(made[i]);
      exact_.erase(made[i]);
      if (outputs[i] == made[i]) continue;
      cast(outputs[i], made[i]);
      exact_[made[i]] = outputs[i];
    }
  }

  int32_t widened(int32_t value) {
    std::vector<int32_t> names;
    for (auto at = renamed_.find(value);
         !wide_.contains(value) && at != renamed_.end() && has_root(at->second.inputs[0]);
         at = renamed_.find(value)) {
      names.push_back(value);
      value = at->second.inputs[0];
    }
    const auto [known, is_new] = wide_.try_emplace(value);
    if (is_new) {
      known->second = wide_value(value);
      cast(value, known->second);
    }
    return rename_again(known->second, names, wide_);
  }

  Program program_;
  const TakesHalves takes_;
  std::map<int32_t, int32_t> wide_;       // by value in 16 bits: the same in f32
  std::map<int32_t, int32_t> exact_;      // what it was rounded from
  std::map<int32_t, ProgramOp> renamed_;  // by local: the Reshape or Slice that makes it
  std::set<int32_t> roots_;
  std::set<int32_t> parts_;  // of these, by any number of names
};

}  // namespace

Program widened(Program program, TakesHalves takes) {
  return Widener(std::move(program), takes).run();
}

}  // namespace piper
