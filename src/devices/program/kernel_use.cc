// Uses of ops and the strides of their operands, as makers of kernels see them.
#include "piper/devices/kernel_use.h"

namespace piper {

KernelUse kernel_use(const Program& program, const ProgramOp& op) {
  KernelUse use{op.op, op.attrs, {}, {}, {}};
  const auto type = [&](int32_t value) { return program.values[static_cast<size_t>(value)]; };
  for (const int32_t input : op.inputs) {
    use.inputs.push_back(input < 0 ? TensorType{} : type(input));
    use.present.push_back(input >= 0);
  }
  for (const int32_t output : op.outputs) use.outputs.push_back(type(output));
  return use;
}

std::vector<int64_t> row_major(const Shape& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

std::vector<int64_t> spread_strides(const Shape& from, const Shape& to) {
  std::vector<int64_t> strides(to.size(), 0);
  const std::vector<int64_t> own = row_major(from);
  const size_t lead = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d)
    if (from[d] != 1) strides[lead + d] = own[d];
  return strides;
}

Walk folded(const Shape& extents, const std::vector<std::vector<int64_t>>& strides,
            int64_t single) {
  Walk walk{{}, std::vector<std::vector<int64_t>>(strides.size())};
  for (size_t d = 0; d < extents.size(); ++d) {
    if (extents[d] == 1) continue;
    bool merges = !walk.extents.empty();
    for (size_t k = 0; merges && k < strides.size(); ++k)
      merges = walk.strides[k].back() == strides[k][d] * extents[d];
    if (merges)
      walk.extents.back() *= extents[d];
    else
      walk.extents.push_back(extents[d]);
    for (size_t k = 0; k < strides.size(); ++k) {
      walk.strides[k].resize(walk.extents.size());
      walk.strides[k].back() = strides[k][d];
    }
  }
  if (!walk.extents.empty()) return walk;
  return {{1}, std::vector<std::vector<int64_t>>(strides.size(), {single})};
}

}  // namespace piper
