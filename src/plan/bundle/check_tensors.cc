// What tensors and their buffers must be.
#include <algorithm>

#include "bad.h"
#include "files.h"
#include "piper/base/memory.h"
#include "piper/plan/cuts.h"
#include "piper/plan/sites.h"
#include "piper/plan/trained_parts.h"

namespace piper {

int64_t members_of(const RoleProgram& role, int32_t group) {
  int64_t size = 1;
  for (int32_t axis : role.groups[group].axes) size *= role.mesh[axis].second;
  return size;
}

bool is_part(const RoleProgram& role, int64_t own, int64_t whole, int64_t members) {
  int64_t together = 0;
  return !__builtin_mul_overflow(own, members, &together) && together >= whole &&
         together - whole < ranks_of(role.mesh);
}

bool cut_dim(Shape& shape, int64_t dim, int64_t outer, int64_t parts) {
  int64_t blocks = 0;
  if (!in_range(dim, shape.size()) || outer < 1 || __builtin_mul_overflow(outer, parts, &blocks) ||
      shape[dim] % blocks != 0)
    return false;
  shape[dim] /= parts;
  return true;
}

namespace {

std::string named(const RoleProgram& role, size_t buffer) {
  return quote_control(role.name(role.buffers[buffer]));
}

// Cuts a state into blocks that may go on past the end of their stretch, as long as some of the
// block is inside.
bool cut_state(Shape& shape, const TensorCut& cut, int64_t parts) {
  if (cut.block == 0) return cut_dim(shape, cut.dim, cut.outer, parts);
  int64_t padded = 0;
  if (cut.block < 0 || !in_range(cut.dim, shape.size()) || cut.outer < 1 ||
      shape[cut.dim] % cut.outer != 0 || __builtin_mul_overflow(cut.block, parts, &padded) ||
      __builtin_mul_overflow(padded, cut.outer, &padded) || padded <= shape[cut.dim])
    return false;
  shape[cut.dim] = cut_extent(shape[cut.dim], cut, parts);
  return true;
}

// Checks a part that is trained by itself: its name says which it is.
bool cut_part(const Tensor& tensor, const TensorCut& cut, Shape& left) {
  if (&cut != &tensor.cuts[0] || !in_range(cut.dim, left.size()) || cut.block < 1 ||
      left[cut.dim] % cut.block != 0 || cut.outer < 0 || cut.outer >= left[cut.dim] / cut.block)
    return false;
  left[cut.dim] = cut.block;
  const std::string prefix = prefix_of_part(cut.outer);
  const auto begins = [&](const std::string& name) {
    const auto site = site_of(name);
    return (site ? site->name : name).starts_with(prefix);
  };
  return begins(tensor.name) && (tensor.param.empty() || begins(tensor.param)) &&
         std::ranges::all_of(tensor.aliases, begins);
}

// Checks blocks of what the cuts before left, each over an axis of its own.
Status check_cuts(const RoleProgram& role, const Tensor& tensor, size_t b, Shape& left) {
  std::vector<bool> used(role.mesh.size());
  if (tensor.part_of >= 0)
    for (int32_t axis : role.groups[tensor.part_of].axes) used[axis] = true;
  for (const TensorCut& cut : tensor.cuts) {
    const int32_t axis = cut.axis;
    if (axis < 0) {
      if (!cut_part(tensor, cut, left))
        return bad("buffer {} '{}' is no part {} of {} elements of dim {} of {}", b, named(role, b),
                   cut.outer, cut.block, cut.dim, to_string(tensor.whole));
      continue;
    }
    const auto& [name, size] = role.mesh[axis];
    if (used[axis])
      return bad("buffer {} '{}' is cut twice over axis '{}'", b, named(role, b),
                 quote_control(name));
    used[axis] = true;
    if (!cut_state(left, cut, size))
      return bad("buffer {} '{}': dim {} of {} has no {} x {} {} for axis '{}'", b, named(role, b),
                 cut.dim, to_string(left), cut.outer, size,
                 cut.block == 0 ? "equal blocks" : fmt::format("blocks of {}", cut.block),
                 quote_control(name));
  }
  return ok_status();
}

// Checks what a rank holds of a tensor: blocks, a flat run, or a flat run of blocks.
Status check_part(const RoleProgram& role, const Tensor& tensor, size_t b) {
  if (tensor.is_whole() && tensor.whole.empty()) return ok_status();
  const auto name = [&] { return named(role, b); };
  const bool flat = tensor.part_of >= 0;
  if (tensor.kind != BufferKind::kState || tensor.is_whole() || !bytes_of(tensor.whole_type()))
    return bad("buffer {} '{}' is a part of nothing possible", b, name());
  Shape left = tensor.whole;
  PIPER_TRY(check_cuts(role, tensor, b, left));
  const std::string of = to_string(TensorType{tensor.type.dtype, left});
  if (!flat && tensor.type.shape != left)
    return bad("buffer {} '{}' is {}, not the {} that its cuts leave", b, name(),
               to_string(tensor.type), of);
  if (flat && !is_part(role, num_elements(tensor.type.shape), num_elements(left),
                       members_of(role, tensor.part_of)))
    return bad("buffer {} '{}' is {}, no part of {} over {} ranks", b, name(),
               to_string(tensor.type), of, members_of(role, tensor.part_of));
  return ok_status();
}

// Bounds the versions of a parameter, and so the walk from the oldest to the newest.
constexpr int32_t kMostVersions = 64;

// Checks an older version of a parameter or copy, cut alike, or of the step's number, which has one
// such.
Status check_version(const RoleProgram& role, const Tensor& tensor, size_t b) {
  if (tensor.previous_of == -1) return ok_status();
  const auto fits = [&] {
    if (tensor.kind != BufferKind::kState) return false;
    const Tensor& newest = role.tensor(tensor.previous_of);
    const bool number = newest.type == TensorType{DType::kI64, {}};
    const Tensor* first = &newest;
    int32_t versions = 2;
    for (; first->previous_of >= 0 && versions <= kMostVersions; ++versions)
      first = &role.tensor(first->previous_of);
    if (versions > (number ? 2 : kMostVersions)) return false;
    const bool weight = !first->param.empty() || first->copy_of >= 0;
    return newest.kind == BufferKind::kState && weight != number && tensor.param.empty() &&
           newest.part_of == tensor.part_of && newest.cuts == tensor.cuts &&
           newest.whole == tensor.whole && newest.type == tensor.type;
  };
  if (fits()) return ok_status();
  return bad("buffer {} '{}' is the previous version of no parameter or step", b, named(role, b));
}

// Returns whether the parameter is the same run as the copy, or a run of it.
bool cuts_less(const RoleProgram& role, const Tensor& copy, const Tensor& master) {
  if (copy.part_of < 0) return true;
  if (master.part_of < 0) return false;
  const std::vector<int32_t>&its = role.groups[copy.part_of].axes,
        &all = role.groups[master.part_of].axes;
  return its.size() <= all.size() && std::equal(its.begin(), its.end(), all.begin());
}

// Checks a parameter in 16 bits: cut alike, or by fewer axes where the parameter is a part; or
// gathered from such parts.
Status check_copy(const RoleProgram& role, const Tensor& tensor, size_t b) {
  if (tensor.copy_of == -1) return ok_status();
  const auto fits = [&] {
    const Tensor& master = role.tensor(tensor.copy_of);
    const bool half = tensor.type.dtype == DType::kBF16 || tensor.type.dtype == DType::kF16;
    if (master.kind != BufferKind::kState || master.param.empty() ||
        master.type.dtype != DType::kF32 || !half)
      return false;
    if (tensor.kind == BufferKind::kStep) return tensor.param == master.param;
    return tensor.kind == BufferKind::kState && tensor.param.empty() && tensor.previous_of < 0 &&
           cuts_less(role, tensor, master) && tensor.cuts == master.cuts &&
           tensor.whole_type().shape == master.whole_type().shape;
  };
  if (fits()) return ok_status();
  return bad("buffer {} '{}' is a copy of no parameter", b, named(role, b));
}

Status check_tensor(const RoleProgram& role, const Tensor& tensor, size_t b) {
  const bool gathered = tensor.kind == BufferKind::kStep && !tensor.param.empty();
  if (tensor.host && (tensor.kind == BufferKind::kConstant || gathered))
    return bad("buffer {} '{}' on the host is a constant or a gathered parameter", b,
               named(role, b));
  if (tensor.kind == BufferKind::kStep && (!tensor.init.empty() || tensor.fill != 0))
    return bad("step buffer {} '{}' has an initial value", b, named(role, b));
  if (!tensor.init.empty() && tensor.fill != 0)
    return bad("buffer {} '{}' starts with the values '{}' and at {}", b, named(role, b),
               quote_control(tensor.init), tensor.fill);
  if (tensor.kind == BufferKind::kConstant && !tensor.param.empty())
    return bad("buffer {} '{}' is a parameter but constant", b, named(role, b));
  PIPER_TRY(check_part(role, tensor, b));
  PIPER_TRY(check_copy(role, tensor, b));
  return check_version(role, tensor, b);
}

// Each buffer is of a tensor, each tensor of a buffer, and what is kept of one only.
Status check_tensors(const RoleProgram& role) {
  std::vector<int32_t> buffers(role.tensors.size());
  for (size_t b = 0; b < role.buffers.size(); ++b) {
    const auto [tensor, micro, offset] = role.buffers[b];
    const bool kept = role.tensors[tensor].kind != BufferKind::kStep;
    if (kept && (micro >= 0 || buffers[tensor] > 0))
      return bad("buffer {} '{}' cannot be of microbatch {}", b, named(role, b), micro);
    ++buffers[tensor];
  }
  const auto none = std::find(buffers.begin(), buffers.end(), 0);
  if (none == buffers.end()) return ok_status();
  const std::string& name = role.tensors[none - buffers.begin()].name;
  return bad("tensor '{}' has no buffer", quote_control(name));
}

}  // namespace

Status check_buffers(const RoleProgram& role) {
  PIPER_TRY(check_tensors(role));
  std::vector<int64_t> bytes(role.tensors.size(), -1);  // -1: not seen yet
  for (size_t b = 0; b < role.buffers.size(); ++b) {
    const Buffer& buffer = role.buffers[b];
    const Tensor& tensor = role.tensor(buffer);
    int64_t& size = bytes[buffer.tensor];
    const bool is_new = size < 0;
    if (is_new) {
      const auto possible = bytes_of(tensor.type);
      if (!possible) return bad("buffer {} '{}' has no possible type", b, named(role, b));
      size = *possible;
    }
    if (buffer.offset % kAlignment != 0)
      return bad("buffer {} '{}' has the offset {}, which is no multiple of {}", b, named(role, b),
                 buffer.offset, kAlignment);
    const int64_t arena = tensor.host ? role.host_bytes : role.arena_bytes;
    int64_t end = 0;
    if (__builtin_add_overflow(buffer.offset, size, &end) || end > arena)
      return bad("buffer {} '{}' at {} with {} bytes ends after the arena of {}", b, named(role, b),
                 buffer.offset, size, arena);
    if (is_new) PIPER_TRY(check_tensor(role, tensor, b));
  }
  return ok_status();
}

}  // namespace piper
