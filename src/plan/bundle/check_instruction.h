// Checks of single instructions. Private to the bundle room.
#pragma once

#include "piper/plan/role.h"

namespace piper {

// Says what an argument must agree in with what is bound to it, side by side: most of a check is
// this.
struct ArgSize {
  DType dtype = DType::kF32;
  int64_t elements = 0;
  bool operator==(const ArgSize&) const = default;
};
struct ArgSizes {
  std::vector<ArgSize> buffers;
  std::vector<std::vector<ArgSize>> programs;  // by argument

  explicit ArgSizes(const RoleProgram& role) {
    const auto size_of = [](const TensorType& type) {
      return ArgSize{type.dtype, num_elements(type.shape)};
    };
    std::vector<ArgSize> tensors;
    for (const Tensor& tensor : role.tensors) tensors.push_back(size_of(tensor.type));
    buffers.reserve(role.buffers.size());
    for (const Buffer& buffer : role.buffers) buffers.push_back(tensors[buffer.tensor]);
    for (const Program& program : role.programs) {
      const auto end = program.values.begin() + program.num_args;
      std::transform(program.values.begin(), end, std::back_inserter(programs.emplace_back()),
                     size_of);
    }
  }
};

// Checks instruction `id` of one of the role's lists. Error (kPlan): what is wrong with it.
Status check_instruction(const RoleProgram& role, const ArgSizes& sizes,
                         const std::vector<Instruction>& list, size_t id);

}  // namespace piper
