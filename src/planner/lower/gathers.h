// Where the communication between replicas is among the instructions of a cell: reductions rise
// to just after what they add up, whole parameters are gathered shortly before they are used.
#pragma once

#include "piper/plan/bundle.h"
#include "piper/planner/make_dag.h"

namespace piper {

// Names a whole parameter that is gathered when it is used.
struct GatheredBuffer {
  int32_t whole = 0, part = 0;  // buffers
  int32_t group = 0;            // of the parts
  TaskId task;                  // that gathers it
  Gather when = Gather::kPass;
  InBlocks in = {};    // it travels so
  int64_t bucket = 0;  // see Part
};
// Describes a static piece of the arena that buckets of gathered parameters take in turn.
struct Slot {
  int64_t bytes = 0;
  std::vector<std::pair<int32_t, int64_t>> buffers;  // with their offsets in the slot
};

// Returns by task whether it is a reduction that the order places.
std::vector<bool> placed_reductions(const Dag& dag, const std::vector<TaskId>& tasks);
// Returns whether it is a reduction between peers, what is added up or rounded for it, or a sum of
// what one has left.
bool rises(const RoleProgram& role, const Instruction& one, const Dag& dag);
// Knows which computations have a matrix product: what has none, such as the gradient of an
// embedding or a sum, takes no time beside a collective. Where none has any, or programs are
// elsewhere, all count.
class ProgramProducts {
 public:
  explicit ProgramProducts(const RoleProgram& role);
  bool are_in(const Instruction& one) const;

 private:
  std::vector<bool> have_;  // by program
};
// Returns by instruction the last one of the overlap that it is in, or -1.
std::vector<int64_t> ends_of_overlaps(const std::vector<Overlap>& overlaps, size_t instructions);
// Both change role.body only (insert_gathers may add buffers) and give by old position the new
// one. `stays`, of the first instructions: those that an order has placed. `pool`: what is gathered
// for each pass is there.
std::vector<int32_t> raise_reductions(RoleProgram& role, const Dag& dag,
                                      const std::vector<Overlap>& overlaps,
                                      const std::vector<bool>& stays = {});
// Inserts gathers without waits: they are added later.
std::vector<int32_t> insert_gathers(RoleProgram& role, const std::vector<GatheredBuffer>& gathered,
                                    const Dag& dag, std::vector<Slot>& pool);

// Returns each before the instruction of its position, or after all; ascending. Gives by old
// position the new one; number k is at its position + k.
std::vector<int32_t> insert_before(std::vector<Instruction>& body,
                                   std::vector<std::pair<int64_t, Instruction>> added);

}  // namespace piper
