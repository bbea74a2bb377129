// What following a program on symbols comes to, whatever these stand for. Private to the verify
// room.
#pragma once

#include "values.h"

namespace piper {

class ProgramRun {
 protected:
  ProgramRun(Values& values, const Program& program, std::span<const uint64_t> args,
             std::span<const int32_t> sums)
      : values_(values), program_(program), held_(args.begin(), args.end()), sums_(sums) {
    held_.resize(program.values.size());
  }

  const TensorType& type(int32_t value) const {
    return program_.values[static_cast<size_t>(value)];
  }
  uint64_t load(int32_t value) const { return value < 0 ? 0 : held_[static_cast<size_t>(value)]; }
  // Returns the symbols of arguments after all ops.
  std::vector<uint64_t> take_args() {
    held_.resize(static_cast<size_t>(program_.num_args));
    return std::move(held_);
  }
  // Returns whether the op adds to an argument that is a sum over the step, its operand `to`.
  bool adds_to_sum(const ProgramOp& op, size_t to) const;
  // Returns the sum over the step after an Add to it; nothing: the op is another one.
  std::optional<uint64_t> added(const ProgramOp& op) const;
  // Records of which values squares, and norms of these, are made.
  void note_squares(const ProgramOp& op, uint64_t made);
  uint64_t norm(const ProgramOp& op);

  Values& values_;
  const Program& program_;
  std::vector<uint64_t> held_;  // by value

 private:
  const std::span<const int32_t> sums_;  // arguments
};

}  // namespace piper
