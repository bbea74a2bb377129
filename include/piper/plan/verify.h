// Proves a plan set right from the plans only. Shares no code with the compiler's lowering; piperc
// runs it on all it writes.
//
// Ranks that differ only along axes no send names run one program (SPMD peers) and are checked
// once, as a *cell*: merging peers keeps every cycle and adds none. What is trusted: a backend
// computes what ops say, and the plan for one device is what the model and the strategy say; where
// that is left out, that the first block of samples and the updates are.
//
// Rules, by name in a Finding:
//   structure    constants unwritten, states change once a step, parameters start with their own
//                values; by one name ranks keep, read and sum the same
//   communicator all ranks list the same communicators, and take part in their own
//   transfer     every receive has its send: same communicator, order, type, and value of a
//                microbatch
//   collective   all members of a communicator issue the same collectives in the same order, with
//                the same sizes
//   deadlock     the happens-before graph over all ranks, streams and groups has no cycle
//   order        nothing is read before it is written; streams wait for what they use; a state is
//                read before its update
//   memory       no two buffers alive at once share bytes; the stated peak is the real one
//   layout       over each mesh axis along which ranks have blocks of values: every op takes and
//                makes blocks, terms of a sum or whole values as the letters of its loops allow,
//                collectives turn one into the other, and states, updates and reports get what
//                they are stated to hold
//   single       every block of samples adds to each sum what it does on one device, op by op, and
//                terms of sums are rounded to the same types, as often and when they hold the same
//                samples (where one device plays one of several replicas: the first time);
//                states, parameters and reports start as there and become the same. What ranks
//                have blocks or terms of is compared as the whole value
//   microbatch   without a plan for one device, or where ranks have blocks of values: every block
//                of samples adds the same to each sum, on whichever ranks. Where steps overlap, a
//                body does what prologue and epilogue do; what a backward draws at random, a
//                forward has drawn
//   copies       what several ranks keep of one parameter is updated alike, from sums formed in
//                the same order
//   sum          each sum (gradient, loss, label count) holds every use and sample of its step
//                exactly once when it is read, and is a sum by its programs; every trained
//                parameter is updated exactly once a step, from its own gradient; microbatches
//                read the version before the step, or with two versions the one before that;
//                reports show finished sums
//   update       all updates of a step take one factor of the gradients, one count and one word
//                whether the step is skipped, at rates of that count; the norm holds each
//                gradient once, in the order of the sums; an optimizer's op takes and writes one
//                parameter, with its gradient and its own states, once; what ranks report or count
//                is the same everywhere
//
// Where steps overlap, all that runs for some steps in a row is followed as one list.
#pragma once

#include "piper/plan/bundle.h"
#include "piper/plan/transfer.h"

namespace piper {

struct Finding {
  std::string rule;
  std::string text;  // in the user's words: labels, buffer names, ranks
};
struct VerifyReport {
  std::vector<Finding> findings;  // empty: proved
  int64_t ranks = 0, cells = 0, instructions = 0, transfers = 0, collectives = 0;
  int64_t sums = 0;               // read when finished
  int64_t parameters = 0;         // trained: updated once a step where they are kept
  std::vector<std::string> axes;  // of the mesh, that rule layout has followed
};

// Verifies a set. `single`: the plan for one device with the same cut of the batch; null: nothing
// is compared. An error only if a set is not one at all (roles of different meshes, ranks without
// role).
Result<VerifyReport> verify_plan_set(const PlanSet& set, const PlanSet* single = nullptr);

// Verifies (rule `switch`) that a transfer gives each rank each element of each state that it is to
// hold under `to` and that ranks hold under `from`, once, from a rank that holds it.
std::vector<Finding> verify_transfer(const StateTransfer& transfer, const PlanSet& from,
                                     const PlanSet& to);

// Verifies (rule `switch`) that two stages of a job train the same: by one strategy, with the same
// states, updated by the same ops. Batches, orders and what ranks hold may differ.
std::vector<Finding> verify_stages(const PlanSet& from, const PlanSet& to);
// Verifies (rule `single`) that an oracle's manifest ("single", "uncut") is of the same model and
// strategy, and that the strategy's text has its digest: jobs that resume compare settings by it.
std::vector<Finding> verify_manifest(const Manifest& own, const Manifest& oracle,
                                     std::string_view name);

}  // namespace piper
