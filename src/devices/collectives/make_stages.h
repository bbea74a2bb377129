// The pieces of which stages are made, and the stages of values of which members have shards.
// Private to the collectives room.
#pragma once

#include <algorithm>

#include "stages.h"

namespace piper::device_fabric {

inline constexpr int64_t kAlign = 256;
inline int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

inline Stage move_stage(StridedMove move) {
  Stage stage;
  stage.kind = Stage::kMove;
  stage.move = std::move(move);
  return stage;
}
inline Stage launch_stage(int32_t binding) {
  Stage stage;
  stage.kind = Stage::kLaunch;
  stage.binding = binding;
  return stage;
}
inline Stage sum_stage(std::optional<Links::Sum> sum = {}) {
  Stage stage;
  stage.kind = Stage::kAdd;
  if (sum) stage.sums.push_back(*sum);
  return stage;
}
inline Stage gather_stage(std::optional<Links::Gather> gather = {}) {
  Stage stage;
  stage.kind = Stage::kGather;
  if (gather) stage.gathers.push_back(*gather);
  return stage;
}
inline Stage zero_stage(std::byte* to, DType dtype, int64_t count) {
  Stage stage;
  stage.kind = Stage::kFill;
  stage.to = to;
  stage.type = {dtype, {count}};
  return stage;
}
inline void add_block(std::vector<Links::Block>& blocks, int64_t member, std::byte* data,
                      int64_t bytes) {
  if (bytes > 0) blocks.push_back({member, data, bytes});
}

// Says which elements members have of a stretch of `count`, by position: runs of `each`, of which
// the last may be shorter or empty.
struct Runs {
  int64_t count = 0, each = 0;
  int64_t begin(int64_t k) const { return std::min(k * each, count); }
  int64_t size(int64_t k) const { return begin(k + 1) - begin(k); }
};
// All begin where wide loads can, for pieces that do.
inline constexpr int64_t kWide = 16;  // bytes, and what programs ask of their arguments
inline Runs even_runs(int64_t count, int64_t members, int64_t size) {
  const int64_t step = std::max<int64_t>(1, kWide / size);
  return {count, ((count + members - 1) / members + step - 1) / step * step};
}

// Describes what is added up at once: of each member a run, side by side in the slot.
struct Term {
  std::byte* to = nullptr;
  DType dtype = DType::kF32;
  Reduction reduction = Reduction::kSum;
  int64_t count = 0;   // elements of the own run
  int64_t offset = 0;  // of the slot: the first member's run
  int64_t step = 0;    // bytes from member to member
};

// Adds up the members' runs that are in the slot.
Status add_up(const Seated& group, Arithmetic& arithmetic, std::byte* slot,
              std::span<const Term> terms, Stages& stages);

// ---- Shards -------------------------------------------------------------------------------------

// Returns the elements of a part that are of one stretch.
int64_t run_of(const Shard& shard);
// Moves stretches between [first, last) of the whole and, at `packed`, the members' blocks of them,
// one after the other: in every second stretch of a mirrored whole members count from its end.
void move_stretches(const Shard& shard, int64_t members, int64_t first, int64_t last,
                    std::byte* packed, bool packs, Stages& stages);
// These return what is added up at once: elements of a part of one stretch, and stretches.
int64_t most_of_part(int64_t size, int64_t members, int64_t limit);
int64_t stretches_to_add(const Shard& shard, int64_t members, int64_t limit);

// Each adds the stages of one shard: of one stretch (flat) or of several (blocks), whose blocks are
// put side by side; added up by programs (reduce) or by the library (sum).
Status reduce_flat(const Preparer& with, const Shard& shard, Stages& stages);
Status reduce_blocks(const Preparer& with, const Shard& shard, Stages& stages);
// Queues the library's own sums of one stretch: one call where all members have as much of it, else
// one for each of them. After them what is padding.
void sum_flat(const Seated& group, const Shard& shard, Stage& sum, Stages& behind);
Status sum_blocks(const Preparer& with, const Shard& shard, Stages& stages);
void gather_flat(const Seated& group, const Shard& shard, Stage& bring);
Status gather_blocks(const Preparer& with, const Shard& shard, Stages& stages);

}  // namespace piper::device_fabric
