// Schedule -> plans: instructions, chunk programs shared by content, buffers with offsets, one role
// program per cell.
#pragma once

#include "piper/bundle.h"
#include "piper/schedule.h"

namespace piper {

struct Lowered {
  std::vector<RoleProgram> roles;                                // by cell
  std::vector<std::pair<std::string, TensorType>> tensor_types;  // initial values by name
  std::vector<std::pair<std::string, Bytes>> tensors;
};

// Each task's nodes are cut into segments by layer (the path up to the first number in the scope),
// and every segment is a program: equal layers, whatever their parameters, share one.
Result<Lowered> lower(const Dag& dag, const Schedule& schedule);

}  // namespace piper
