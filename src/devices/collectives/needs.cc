// What the stages of a plan's collectives take for blocks that are under way (prepare.cc). Fast
// sums take no more than those in order, which links make of them that do not add up.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "piper/base/memory.h"
#include "stages.h"

namespace piper {
namespace {

struct Sizes {
  int64_t members = 1, limit = 0;
  // Returns the bytes for one run of each member side by side, or as much of it at once as the
  // limit lets.
  int64_t of_runs(int64_t run_bytes) const {
    const int64_t most = std::max(limit / members / kAlignment * kAlignment, kAlignment);
    return members * std::min(align_up(run_bytes), most);
  }
  // Returns the bytes for so many copies of a whole of equal stretches, or of as many of these as
  // the limit lets.
  int64_t of_stretches(int64_t whole_bytes, int64_t stretches, int64_t copies) const {
    const int64_t all = copies * whole_bytes, one = all / std::max<int64_t>(stretches, 1);
    return std::min(all, std::max(limit, one)) + (members + 2) * kAlignment;
  }
};

int64_t members_of(const RoleProgram& role, const Instruction& one) {
  int64_t members = 1;
  for (const int32_t axis : role.groups[static_cast<size_t>(one.group)].axes)
    members *= role.mesh[static_cast<size_t>(axis)].second;
  return members;
}

int64_t slot_of(const RoleProgram& role, const Instruction& one, const Sizes& sizes) {
  const auto type = [&](size_t arg) -> const TensorType& {
    return role.tensor(one.args[arg]).type;
  };
  const auto bytes = [&](size_t arg) { return type(arg).bytes(); };
  const auto part_in_blocks = [&](size_t arg) {
    return one.in_blocks().bytes(num_elements(type(arg).shape));
  };
  int64_t most = 0;
  switch (one.kind) {
    case InstructionKind::kAllReduce:
      for (size_t a = 0; a < one.args.size(); ++a)
        most += sizes.of_runs(bytes(a) / sizes.members + 2 * kAlignment);
      return std::min(most, std::max(sizes.limit, sizes.members * 4 * kAlignment));
    case InstructionKind::kReduceScatter:
      for (size_t a = 1; one.scaled != Scaled::kNone && a < one.args.size(); a += 2)
        most += align_up(sizes.members * part_in_blocks(a)) +
                sizes.members * align_up(part_in_blocks(a));
      for (size_t a = 0; one.scaled == Scaled::kNone && a + 1 < one.args.size(); a += 2) {
        const int64_t stretches = stretches_of(type(a).shape, one);
        most = std::max(most, stretches == 1 ? sizes.of_runs(bytes(a + 1))
                                             : sizes.of_stretches(bytes(a), stretches, 2));
      }
      return most;
    case InstructionKind::kAllGather:
      for (size_t a = 0; one.scaled != Scaled::kNone && a + 1 < one.args.size(); a += 2)
        most += align_up(part_in_blocks(a)) + align_up(sizes.members * part_in_blocks(a));
      for (size_t a = 1; a < one.args.size(); a += 2)
        if (const int64_t stretches = stretches_of(type(a).shape, one); stretches > 1)
          most = std::max(most, sizes.of_stretches(bytes(a), stretches, 1));
      return most;
    case InstructionKind::kAllToAll:
      if (one.dim < 0 || one.to_dim < 0) return 0;  // blocks travel as they lie
      for (size_t a = 0; a + 1 < one.args.size(); a += 2) most += 2 * bytes(a) + 8 * kAlignment;
      return most;
    case InstructionKind::kDispatch:
      return sizes.of_stretches(bytes(1), stretches_of(type(1).shape, one), 1);
    case InstructionKind::kCombine:
      return 2 * bytes(0) + 2 * bytes(2) + (sizes.members + 4) * kAlignment;
    case InstructionKind::kRotate:  // from buffer to buffer
      return 0;
    default:
      PIPER_CHECK(false, "{} is no collective", to_string(one.kind));
  }
}

}  // namespace

int64_t connect_scratch_bytes(const RoleProgram& role) {
  constexpr int64_t kNumbers = 16;  // of a sum of one number: the own one and the result
  int64_t most = 1;
  for (const Communicator& one : role.communicators) {
    int64_t members = one.is_pair() ? 2 : 1;
    for (const int32_t axis : one.axes) members *= role.mesh[static_cast<size_t>(axis)].second;
    most = std::max(most, members);
  }
  return most == 1 ? 0 : align_up(kNumbers + most);  // and a byte of each member
}

std::vector<int64_t> device_fabric_bytes(const RoleProgram& role, int64_t limit) {
  std::vector<int64_t> most(role.streams.size());
  for (const auto* section : role.sections())
    for (const Instruction& one : *section) {
      if (!is_collective(one.kind) || one.group < 0) continue;
      const Sizes sizes{members_of(role, one), limit};
      if (sizes.members == 1 && one.kind == InstructionKind::kAllReduce) continue;
      int64_t& bytes = most[static_cast<size_t>(one.stream)];
      bytes = std::max(bytes, align_up(slot_of(role, one, sizes)));
    }
  return most;
}

// ---- Programs -----------------------------------------------------------------------------------

namespace {

using namespace device_fabric;  // NOLINT: this room's own

// What is told apart of sums, and the most numbers that one of them is of.
using Sums = std::map<std::tuple<int32_t, DType, Reduction, int64_t>, int64_t>;

void add_sums(const RoleProgram& role, const Instruction& one, int64_t members, int64_t limit,
              Sums& sums) {
  const auto add = [&](DType dtype, int64_t count) {
    int64_t& most = sums[{one.stream, dtype, one.reduction, members}];
    most = std::max(most, count);
  };
  if (!info(one.kind).adds) return;
  if (one.kind == InstructionKind::kAllReduce) {
    for (const int32_t arg : one.args) {
      const TensorType& type = role.tensor(arg).type;
      add(type.dtype, most_reduced(type, members, limit));
    }
    return;
  }
  PIPER_CHECK(one.kind == InstructionKind::kReduceScatter, "{} has no sums", to_string(one.kind));
  if (one.scaled != Scaled::kNone) return;  // see add_blocks
  for (size_t a = 0; a + 1 < one.args.size(); a += 2) {
    const TensorType &whole = role.tensor(one.args[a]).type,
                     &part = role.tensor(one.args[a + 1]).type;
    add(whole.dtype, most_scattered(part, stretches_of(whole.shape, one), members, limit));
  }
}

// What is told apart of parts in blocks: the stream, the type, how they travel, how many elements
// the part and the whole have, and of sums the members.
using Blocks = std::set<std::tuple<int32_t, DType, Scaled, int64_t, int64_t, int64_t, int64_t>>;

void add_blocks(const RoleProgram& role, const Instruction& one, int64_t members, Blocks& known,
                std::vector<FabricProgram>& programs) {
  if (one.scaled == Scaled::kNone) return;
  const size_t adds = info(one.kind).adds ? 1 : 0;  // whole and part, or part and whole
  for (size_t a = 0; a + 1 < one.args.size(); a += 2) {
    const TensorType &part = role.tensor(one.args[a + adds]).type,
                     &whole = role.tensor(one.args[a + 1 - adds]).type;
    Shard shard;
    shard.dtype = whole.dtype;
    shard.count = num_elements(whole.shape), shard.part_count = num_elements(part.shape);
    shard.blocks = one.in_blocks();
    const bool is_new = known
                            .emplace(one.stream, shard.dtype, one.scaled, one.block,
                                     shard.part_count, shard.count, adds * members)
                            .second;
    if (!is_new || shard.count == 0) continue;
    programs.push_back({one.stream, adds ? putting_parts(shard) : putting(shard)});
    programs.push_back({one.stream, adds ? adding_parts(shard, members) : taking(shard)});
  }
}

Rows rows_of(const RoleProgram& role, const Instruction& one, int64_t members) {
  const TensorType &index = role.tensor(one.args[2]).type,
                   &whole =
                       role.tensor(one.args[one.kind == InstructionKind::kDispatch ? 1 : 0]).type;
  Rows rows;
  rows.wide = index.dtype == DType::kI64;
  rows.count = num_elements(index.shape);
  rows.members = members;
  rows.owned = one.owned;
  rows.row_bytes = rows.count > 0 ? whole.bytes() / rows.count : 0;
  return rows;
}

}  // namespace

std::vector<FabricProgram> device_fabric_programs(const RoleProgram& role, int64_t limit) {
  std::vector<FabricProgram> programs;
  Sums sums;
  Blocks blocks;
  std::set<std::tuple<int32_t, InstructionKind, int64_t, int64_t, int64_t, int64_t, bool>> known;
  for (const auto* section : role.sections())
    for (const Instruction& one : *section) {
      if (!is_collective(one.kind) || one.group < 0) continue;
      const int64_t members = members_of(role, one);
      if (members == 1) continue;
      add_sums(role, one, members, limit, sums);
      add_blocks(role, one, members, blocks, programs);
      if (one.kind != InstructionKind::kDispatch && one.kind != InstructionKind::kCombine) continue;
      const Rows rows = rows_of(role, one, members);
      const bool is_new = known
                              .emplace(one.stream, one.kind, members, rows.count, rows.row_bytes,
                                       rows.owned, rows.wide)
                              .second;
      if (is_new && rows.count > 0 && rows.row_bytes > 0)
        programs.push_back({one.stream, one.kind == InstructionKind::kDispatch
                                            ? keeping(rows, 0)
                                            : choosing(rows, rows.count / members)});
    }
  for (const auto& [what, count] : sums) {
    const auto& [stream, dtype, how, members] = what;
    if (count > 0) programs.push_back({stream, reduction(how, dtype, count, members)});
  }
  return programs;
}

}  // namespace piper
