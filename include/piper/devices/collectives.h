// A fabric for backends that queue: what collectives do is prepared once, as blocks that members
// exchange and programs that add or choose, and a step queues these. How a block gets from one
// device to another is the only thing that differs: by copies between ranks of one process, or by a
// vendor's library.
//
// Sums are ordered: each member gets its part of every member's numbers, adds them in rank order
// and gives the others what it has made. So the bits are those of any other fabric.
#pragma once

#include "piper/devices/backend.h"

namespace piper {

// Moves blocks from device to device, for one rank. Calls queue work on a stream and return, but
// for what hosts must know of each other; no call of a step allocates.
class Links {
 public:
  // Describes what goes to a member of a group or comes from it.
  struct Block {
    int64_t member = 0;  // position in the group
    std::byte* data = nullptr;
    int64_t bytes = 0;
  };
  // Describes a sum of `count` numbers of each member, which all of them get, in place, or one
  // does; or of as many for each member, in order, of which each gets its own. `to` is where who
  // gets them has it.
  struct Sum {
    static constexpr int64_t kAll = -1, kEach = -2;
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    DType dtype = DType::kF32;
    Reduction reduction = Reduction::kSum;
    int64_t count = 0;
    int64_t member = kAll;  // position
  };
  // Describes what all members get: `bytes` of each, in the order of their positions.
  struct Gather {
    const std::byte* from = nullptr;
    std::byte* to = nullptr;
    int64_t bytes = 0;
  };
  virtual ~Links() = default;
  virtual std::string_view name() const = 0;

  virtual bool is_capturable() const { return false; }  // Fabric's

  // Does what Fabric::add_memory does.
  virtual Status add_memory(std::byte* /*at*/, int64_t /*bytes*/, std::string_view /*layout*/) {
    return ok_status();
  }
  // Sets scratch memory: called before the first communicator is opened, with device memory of
  // connect_scratch_bytes, whose contents members may exchange to connect.
  virtual void use_scratch(std::span<std::byte> /*scratch*/) {}
  // Returns its own end of a communicator, in the order in which all ranks list them; `in_flight`:
  // of a sender, messages between two wait_sends.
  virtual Result<int32_t> add_pair(int64_t from, int64_t to, int32_t communicator, int32_t stream,
                                   int64_t in_flight) = 0;
  virtual Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator,
                                    int32_t stream) = 0;

  // The parts of both sides have as many bytes in all.
  virtual Status send(int32_t pair, std::span<const MessagePart> parts) = 0;
  virtual Status recv(int32_t pair, std::span<const MessagePart> parts) = 0;
  // Exchanges all blocks at once: the n-th block that goes from one member to another is the n-th
  // that this one expects of it, of the same size. The spans stay where they are.
  virtual Status exchange(int32_t group, std::span<const Block> outgoing,
                          std::span<const Block> incoming) = 0;
  // Waits on the sending stream for what receivers still read.
  virtual Status wait_sends() = 0;
  // Returns whether the library adds up itself, in an order of its own; and that, all at once.
  virtual bool adds() const { return false; }
  virtual Status add_up(int32_t /*group*/, std::span<const Sum>) { return ok_status(); }
  // Returns whether the library gathers itself, by whatever way is short; and that, all at once.
  virtual bool gathers() const { return false; }
  virtual Status gather(int32_t /*group*/, std::span<const Gather>) { return ok_status(); }
  virtual Status poll() { return ok_status(); }
  virtual void abort() {}
};

// What blocks that are under way take at once, unless a row or stretch of them takes more.
inline constexpr int64_t kMostSlotBytes = int64_t{32} << 20;
// Returns by stream of the plan what its collectives take for such blocks.
std::vector<int64_t> device_fabric_bytes(const RoleProgram& role, int64_t limit = kMostSlotBytes);

// Returns how many bytes Links::use_scratch is given for communicators of as many members as the
// plan's.
int64_t connect_scratch_bytes(const RoleProgram& role);

// Describes a program that the plan's collectives sum and choose with, the largest of each kind on
// each stream.
struct FabricProgram {
  int32_t stream = 0;
  Program program;
};
std::vector<FabricProgram> device_fabric_programs(const RoleProgram& role,
                                                  int64_t limit = kMostSlotBytes);

// Makes a fabric. `reserved`: by stream, the memory for blocks, which is not exceeded; of streams
// that it does not name as much as is needed. `workspaces`: the same for values of programs. What
// is called fast is added up by the links, if they do that. `scratch_bytes`: Links::use_scratch.
std::unique_ptr<Fabric> make_device_fabric(Backend& backend, Control& control,
                                           std::unique_ptr<Links> links,
                                           std::vector<int64_t> reserved = {},
                                           int64_t limit = kMostSlotBytes,
                                           std::vector<int64_t> workspaces = {},
                                           int64_t scratch_bytes = 0);

// Makes links between ranks of one process, whose backends are of one kind and reach each other's
// memory: receivers copy from where senders have it. `source.local` holds fabrics made of such
// links.
std::unique_ptr<Links> make_local_links(Backend& backend, const FabricSource& source);

}  // namespace piper
