// What one collective does, in order: prepared once, queued in every step.
#pragma once

#include <deque>

#include "piper/devices/collectives.h"

namespace piper::device_fabric {

struct Stage {
  enum Kind : uint8_t { kExchange, kMove, kLaunch, kFill, kAdd, kGather } kind = kExchange;
  std::vector<Links::Block> outgoing, incoming;  // kExchange
  StridedMove move;                              // kMove
  std::vector<Links::Sum> sums;                  // kAdd
  std::vector<Links::Gather> gathers;            // kGather
  int32_t binding = -1;                          // kLaunch
  std::byte* to = nullptr;                       // kFill: zeros
  TensorType type;
};

// Views a group as one of its members sees it.
struct Seated {
  std::vector<int64_t> ranks;
  int64_t own = 0;     // position
  int32_t link = -1;   // of Links
  int32_t stream = 0;  // the backend's
  int64_t size() const { return std::ssize(ranks); }
};

// Hands out memory for blocks that are under way, one region a stream: collectives of a stream
// follow each other, so they share it.
class Slots {
 public:
  Slots(Backend& backend, std::vector<int64_t> reserved, int64_t limit)
      : backend_(backend), reserved_(std::move(reserved)), limit_(limit) {}
  int64_t limit() const { return limit_; }
  Result<std::byte*> at_least(int32_t stream, int64_t bytes);
  // Returns what is stated for the stream, at the first call for it; none, of 0 bytes, at others.
  Result<std::span<std::byte>> reserve(int32_t stream);

 private:
  struct Region {
    int32_t stream = 0;
    int64_t bytes = 0;
    std::byte* at = nullptr;
  };
  Backend& backend_;
  const std::vector<int64_t> reserved_;  // by stream
  const int64_t limit_;
  std::vector<Region> regions_;
};

// Returns the widest element that fits rows that are moved and chosen, not computed with.
DType carrier_of(int64_t row_bytes);

// These programs add and choose. Sums are the reduction of all but the last argument, in their
// order, of 16-bit floats in f32. What a member keeps: rows of the whole of which its own position
// is not the owner become zeros. What it chooses: each of `count` rows from the member that owns
// what the index names; all bits are set where nobody does.
Program reduction(Reduction how, DType dtype, int64_t count, int64_t members);
Program keeping(const Rows& rows, int64_t own);
Program choosing(const Rows& rows, int64_t count);
// Put a part into blocks, and take a whole out of those of all members; put a whole into blocks, by
// part, and add up what members have of a part.
Program putting(const Shard& shard);
Program taking(const Shard& shard);
Program putting_parts(const Shard& shard);
Program adding_parts(const Shard& shard, int64_t members);
// Returns the bytes of a part in blocks.
inline int64_t part_in_blocks(const Shard& shard) { return shard.blocks.bytes(shard.part_count); }
// Returns how many members have something of the whole.
inline int64_t parts_of(const Shard& shard) {
  return (shard.count + shard.part_count - 1) / shard.part_count;
}

// Loads each of these programs once. `workspaces`: by stream, as Slots have it.
class Arithmetic {
 public:
  explicit Arithmetic(Backend& backend, std::vector<int64_t> workspaces = {})
      : backend_(backend), workspaces_(backend, std::move(workspaces), 0) {}
  // What follows runs on this stream.
  void use(int32_t stream) { stream_ = stream; }
  // These return bindings of them.
  Result<int32_t> reduce(Reduction reduction, DType dtype, int64_t count,
                         std::span<std::byte* const> from, std::byte* to);
  Result<int32_t> keep_owned(const Rows& rows, int64_t own);
  Result<int32_t> put_in_blocks(const Shard& shard, std::byte* to);
  Result<int32_t> take_from_blocks(const Shard& shard, std::byte* from);
  Result<int32_t> put_parts_in_blocks(const Shard& shard, std::byte* to);
  // Binds the sum of what members have of the own part. `from`: their terms, in rank order.
  Result<int32_t> add_parts(const Shard& shard, std::span<std::byte* const> from);
  // Binds a choice between members' rows. `from`: as many rows of each member.
  Result<int32_t> choose_owner(const Rows& rows, int64_t count, std::byte* index,
                               std::span<std::byte* const> from, std::byte* to);

 private:
  Result<int32_t> bind(const Program& program, std::span<std::byte* const> args);

  Backend& backend_;
  std::vector<std::pair<std::string, int32_t>> loaded_;  // by digest
  Slots workspaces_;
  int32_t stream_ = 0;
};

// Returns the most numbers of a member that a collective adds up at once, of one piece or part.
int64_t most_reduced(const TensorType& piece, int64_t members, int64_t limit);
int64_t most_scattered(const TensorType& part, int64_t stretches, int64_t members, int64_t limit);

// The stages of collectives. Errors: the backend has no room or no kernel.
using Stages = std::vector<Stage>;
struct Preparer {
  const Seated& group;
  Slots& slots;
  Arithmetic& arithmetic;
  bool adds = false;     // the links do, where a sum is fast
  bool gathers = false;  // the links do, where all members have as much

  Result<Stages> prepare(const Collective& collective);

 private:
  Result<Stages> all_reduce(std::span<const Piece> pieces, bool fast);
  Result<Stages> reduce_scatter(std::span<const Shard> shards, bool fast);
  Result<Stages> all_gather(std::span<const Shard> shards);
  Result<Stages> gather_in_blocks(std::span<const Shard> shards);
  Result<Stages> reduce_in_blocks(std::span<const Shard> shards);
  Result<Stages> all_to_all(std::span<const Exchange> exchanges);
  Result<Stages> rotate(std::span<const Turn> turns);
  Result<Stages> dispatch(const Rows& rows);
  Result<Stages> combine(const Rows& rows);
};

}  // namespace piper::device_fabric
