// A device that is not there, for tests of whoever queues work on one: the kernels of the CPU run
// when their turn comes, in any order that streams, events and communicators allow, drawn from a
// seed. Everything happens on the caller's thread, and the same calls give the same run.
//
// Vector clocks (Mattern, Virtual time and global states of distributed systems, 1989) on all
// memory that a world has allocated tell whether what is read or written was ordered before, in
// whatever order it ran. Communicators keep the rules of NCCL: the operations of one are done one
// at a time, in the order in which each host has queued them, when those of all members are at
// the heads of their streams; a send is complete when it has been received.
//
// What is wrong ends the run with an error that names rank, stream and the instructions: a race, a
// wait for an event that was never recorded, members that bring different things, a deadlock.
#pragma once

#include "piper/runtime/job.h"

namespace piper {

class SimWorld {
 public:
  virtual ~SimWorld() = default;
  // These belong to one rank. Control carries nothing, because hosts that take turns have nothing
  // to tell each other.
  virtual Backend& device(int64_t rank) = 0;
  virtual Transport& transport(int64_t rank) = 0;
  // Runs what is queued anywhere. Error: as finish of any device.
  virtual Status drain() = 0;
};
std::unique_ptr<SimWorld> make_sim_world(int64_t world, uint64_t seed);

// A job on such a world, the hosts taking turns on this thread: losses, norms and parameters; and
// after the steps the loss of each batch of `evaluation`.
Result<JobResult> run_simulated(const PlanSet& set, const BatchSource* data, SimWorld& world,
                                int64_t steps, const BatchSource* evaluation = nullptr);

}  // namespace piper
