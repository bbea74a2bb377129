// What a role needs beside its instructions: where buffers are, the waits that their sharing of
// memory asks for, data inputs.
#pragma once

#include "gathers.h"
#include "piper/base/memory.h"
#include "piper/plan/bundle.h"
#include "piper/planner/make_dag.h"

namespace piper {

// `held_until`: of sends, see send_lifetimes.h; `pool`: of gathered parameters.
void place_buffers(RoleProgram& role, const std::vector<int64_t>& held_until,
                   const std::vector<Overlap>& overlaps, const std::vector<Slot>& pool);
// Places the role's buffers. What is kept for ever comes first, then the pool; the others have no
// offset yet, and place_others gives them one by their lifetimes. If its device needs more than
// `most` bytes for that, it gives up: the role's size is greater, and its offsets mean nothing.
std::vector<Block> place_kept(const RoleProgram& role, const std::vector<Slot>& pool);
void place_others(RoleProgram& role, const std::vector<Block>& blocks, int64_t circle,
                  int64_t most = INT64_MAX);
// Returns, by instruction of the body, until when its arguments keep their memory. Those of a
// collective keep it through the next computation of another stream, and the next one that has a
// matrix product: a value of that one in their place would make it wait for a collective that it
// does not need, such as the reduce-scatter of the gradients before it.
std::vector<int64_t> kept_until(const RoleProgram& role, const std::vector<int64_t>& held_until);
// Returns how ranks hold a state: a rank has so much of `whole`, with the zeros after it.
std::vector<TensorCut> cuts_of(const Dag& dag, const Value& state, Shape own, Shape whole);
// Describes the role's data inputs, and what transports and kernels may allocate. `readers`: of the
// graph's values.
void describe_needs(RoleProgram& role, const Dag& dag,
                    const std::vector<std::vector<NodeId>>& readers);
// An instruction waits for the last ones on other streams that wrote what it reads or writes, or
// read what it writes.
void wait_for_data(RoleProgram& role);
void wait_for_memory(RoleProgram& role, const std::vector<int64_t>& held_until);
// Leaves out the waits that follow from others and from the order on streams: each that stays is
// needed.
void drop_implied_waits(std::vector<Instruction>& section, size_t streams);

}  // namespace piper
