// What a step moves between devices: messages and collectives, on streams, by communicator. All
// fabrics give the same bits: a reduction adds in rank order per element, (((r0 + r1) + r2) + …),
// whatever the message's size; 16-bit floats are added in f32 and rounded once. Only sums that are
// called fast may be formed by a device's own library, in an order of its own. `max` propagates
// NaN.
//
// A fabric belongs to one rank, is used from one thread of it at a time, and may be combined with
// any Control (control.h). Everything that a step needs is registered first (add_send, add_recv,
// add_group: these may allocate and lock); the calls of a step do neither. Waits end as control.h
// says. After an error a fabric is good for abort and destruction only.
#pragma once

#include <functional>

#include "piper/devices/control.h"
#include "piper/devices/message_parts.h"
#include "piper/plan/bundle.h"

namespace piper {

// What the hosts' fabrics between processes allocate for a rank that has a group of more than one
// member (a plan's transport_bytes where it is made for the CPU).
inline constexpr int64_t kTransportSlotBytes = int64_t{2} << 20;

// Names a part of one all-reduce message.
struct Piece {
  std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t count = 0;
  Reduction reduction = Reduction::kSum;
  bool operator==(const Piece&) const = default;
};

// Describes one tensor of a reduce-scatter or all-gather. `whole` is [stretches, members, run], and
// member k's part is [:, k, :]. Where `mirrored`, every second stretch has the members in reverse
// order. With one stretch, `whole` may end early: parts are zero beyond its end.
struct Shard {
  std::byte* whole = nullptr;
  std::byte* part = nullptr;
  DType dtype = DType::kF32;
  int64_t count = 0, part_count = 0;  // members × part_count >= count; equal for several stretches
  int64_t stretches = 1;
  bool mirrored = false;
  // With one stretch: each part, or term of it, travels so, and all have it as it arrives.
  InBlocks blocks = {};
  // With one stretch, a message may have `slice` elements of each part, from `first` on; 0: all.
  int64_t first = 0, slice = 0;
  bool operator==(const Shard&) const = default;
  int64_t end() const { return slice > 0 ? first + slice : part_count; }
  // Names bytes that are contiguous in the whole and in a part.
  struct Run {
    int64_t whole = 0, part = 0, bytes = 0;
  };
  // Visits what is in the whole of the bytes [begin, end) of member k's part.
  template <class Visit>
  void for_each_run(int64_t k, int64_t begin, int64_t end, Visit visit) const {
    const int64_t size = info(dtype).bytes, stretch = count / stretches * size,
                  run = part_count / stretches * size;
    const int64_t first = std::min(k * run, stretch), length = std::min(run, stretch - first);
    for (int64_t at = begin; at < end && length > 0;) {
      const int64_t s = at / run, inside = at - s * run;
      const int64_t from = mirrored && s % 2 != 0 ? stretch - run - first : first;
      const int64_t bytes = std::min(length - inside, end - at);
      if (bytes <= 0) return;  // the rest is padding, of the one stretch
      visit(Run{s * stretch + from + inside, at, bytes});
      at += bytes;
    }
  }
  template <class Visit>
  void for_each_run(int64_t k, Visit visit) const {
    for_each_run(k, first * info(dtype).bytes, end() * info(dtype).bytes, visit);
  }
};
// Describes one tensor of an all-to-all: for each member a block of bytes, which are found by
// nested loops around contiguous runs. All members have the same loops.
struct Exchange {
  struct Loop {
    int64_t count = 0, from = 0, to = 0;  // bytes from one turn to the next
    bool operator==(const Loop&) const = default;
  };
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::vector<Loop> loops;               // the outermost first
  int64_t run = 0;                       // bytes
  int64_t from_block = 0, to_block = 0;  // bytes from one member's block to the next one's
  bool operator==(const Exchange&) const = default;
  int64_t block_bytes() const {
    int64_t bytes = run;
    for (const Loop& loop : loops) bytes *= loop.count;
    return bytes;
  }
  // Visits the bytes [begin, end) of a block: visit(offset in `from`, offset in `to`, place,
  // bytes).
  template <class Visit>
  void for_each_run(int64_t begin, int64_t end, Visit visit) const {
    for (int64_t at = begin; at < end;) {
      int64_t turn = at / run, inside = at % run, source = inside, target = inside;
      for (auto loop = loops.rbegin(); loop != loops.rend(); turn /= loop++->count) {
        source += turn % loop->count * loop->from;
        target += turn % loop->count * loop->to;
      }
      const int64_t bytes = std::min(run - inside, end - at);
      visit(source, target, at, bytes);
      at += bytes;
    }
  }
};
// Describes rows of a tensor that an index sends to their owners and back, as the tokens of a
// mixture go to their experts. The whole's rows lie over the members as a Shard's runs do. The
// index has a number for each row and is the same on all members; member k owns the numbers
// [k × owned, (k + 1) × owned). A negative number counts back from the last one.
struct Rows {
  std::byte *whole = nullptr, *part = nullptr;
  const std::byte* index = nullptr;
  bool wide = true;                  // the index is i64, or else i32
  int64_t count = 0, row_bytes = 0;  // of the whole
  int64_t stretches = 1, members = 1, owned = 0;
  bool mirrored = false;
  bool operator==(const Rows&) const = default;
  // Returns who owns what row `r` names; none: past the last member.
  int64_t owner(int64_t r) const {
    int64_t at = wide ? reinterpret_cast<const int64_t*>(index)[r]
                      : reinterpret_cast<const int32_t*>(index)[r];
    if (at < 0) at += members * owned;
    return at < 0 || at >= members * owned ? members : at / owned;
  }
  // Visits member k's part, in order: visit(byte of the whole, byte of the part, owner).
  template <class Visit>
  void for_each(int64_t k, Visit visit) const {
    const int64_t block = count / (stretches * members);
    for (int64_t s = 0; s < stretches; ++s)
      for (int64_t i = 0; i < block; ++i) {
        const int64_t own = mirrored && s % 2 != 0 ? members - 1 - k : k;
        const int64_t r = (s * members + own) * block + i;
        visit(r * row_bytes, (s * block + i) * row_bytes, owner(r));
      }
  }
};
// Describes one turn of a rotation: `to` becomes what the member `shift` positions before brings in
// `from`. Positions count in a circle.
struct Turn {
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  int64_t bytes = 0;
  int32_t shift = 0;
  bool operator==(const Turn&) const = default;
};

// Describes one collective of a group: its kind, and operands of that kind's form, which travel as
// one message. Members bring the same kind, element types, counts, reductions, stretches and
// `fast`.
//   kAllReduce      pieces: each becomes the reduction of all members' pieces, in place; not bool
//   kReduceScatter  shards: a part becomes the member's own part of the sum of all wholes, which
//                   are not changed
//   kAllGather      shards: a whole is gathered from all parts; the member's own part may be in it
//                   where there is one stretch
//   kAllToAll       exchanges: block k of `from` goes to member k, where it becomes the block of
//                   the sender's position in `to`
//   kRotate         turns
//   kDispatch       rows: of the rows that a member owns, its whole gets each from the part that
//                   has it, and zeros elsewhere
//   kCombine        rows: a part gets its rows from their owners' wholes, and NaN where there is no
//                   owner. Only rows that another member has or owns are sent.
struct Collective {
  InstructionKind kind = InstructionKind::kAllReduce;
  bool fast = false;  // sums may be formed by the device's own library, in an order of its own
  std::span<const Piece> pieces = {};
  std::span<const Shard> shards = {};
  std::span<const Exchange> exchanges = {};
  std::span<const Turn> turns = {};
  std::span<const Rows> rows = {};  // of one
};

class Fabric {
 public:
  virtual ~Fabric() = default;
  virtual std::string_view name() const = 0;
  virtual int64_t rank() const = 0;
  virtual int64_t world() const = 0;
  // Returns whether the calls of a step are on streams of an asynchronous backend and return
  // before they are done.
  virtual bool is_asynchronous() const { return false; }
  // Returns whether they may be in a graph of that backend (Backend::begin_capture), which is
  // queued again without them. Ranks that have it so capture the same calls, or none of them does.
  virtual bool is_capturable() const { return false; }

  // ---- Before the first step --------------------------------------------------------------------
  // Adds memory in which messages are, before the communicators that move them.
  // `layout`: a text that describes the buffers there.
  // Ranks have the same text if their buffers are alike.
  virtual Status add_memory(std::byte* /*at*/, int64_t /*bytes*/, std::string_view /*layout*/) {
    return ok_status();
  }
  // Adds this rank's end of a communicator: of a pair, to or from `peer`; the number is what send
  // and recv take. At most `in_flight` messages of it are sent between two wait_sends; they arrive
  // in order. `communicator` is the same number on all members, from 0. `stream`: the backend's on
  // which its calls are in line, where the fabric is asynchronous.
  virtual Result<int32_t> add_send(int64_t peer, int32_t communicator, int64_t in_flight,
                                   int32_t stream = 0) = 0;
  virtual Result<int32_t> add_recv(int64_t peer, int32_t communicator, int32_t stream = 0) = 0;
  // Adds a message of several parts that send or recv will take; the span stays valid.
  virtual Status add_message(std::span<const MessagePart> parts) = 0;
  // Adds a group: each rank once, this rank among them, in the order of their blocks. The members
  // issue its collectives in one order.
  virtual Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator = 0,
                                    int32_t stream = 0) = 0;
  // Makes the calls of collectives that steps will make, if there is anything to prepare for them:
  // they queue nothing.
  virtual Status prepare(const std::function<Status()>& /*calls*/) { return ok_status(); }

  // ---- During a step ----------------------------------------------------------------------------
  // Returns at once. The caller does not touch the bytes until the receive is known to be complete,
  // at the latest wait_sends.
  virtual Status send(int32_t route, const std::byte* data, int64_t bytes);
  virtual Status recv(int32_t route, std::byte* to, int64_t bytes);
  // Sends all parts as one message, without a copy of them side by side; what is received has the
  // same parts.
  virtual Status send(int32_t route, std::span<const MessagePart> parts) = 0;
  virtual Status recv(int32_t route, std::span<const MessagePart> parts) = 0;
  virtual Status run(int32_t group, const Collective& collective) = 0;
  virtual Status wait_sends() = 0;

  // ---- Where calls return before they are done --------------------------------------------------
  // Returns what has gone wrong in any communicator; asked for while the host waits for the device.
  virtual Status poll() { return ok_status(); }
  // Ends what is under way after an error, though others never come.
  virtual void abort() {}
};

// Returns how many stretches the whole has that an instruction cuts: one for each index of the dims
// before the one that is cut, times those of the dim.
int64_t stretches_of(const Shape& whole, const Instruction& from);

// Errors (kPlan) of registration: the peer is the rank itself or none; a rank is there twice, or
// this rank is not among them.
Status check_peer(int64_t rank, int64_t world, int64_t peer);
Status check_group(int64_t rank, int64_t world, std::span<const int64_t> ranks);

// Holds what a backend makes a fabric of its own from (Backend::make_fabric).
struct FabricSource {
  Control& control;
  const RoleProgram& role;
  // By rank: the fabrics of ranks that are threads of this process, all of them before the first
  // add_… call; empty where each rank is a process.
  std::span<const std::atomic<Fabric*>> local;
};

}  // namespace piper
