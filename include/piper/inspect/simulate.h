// When each instruction of a plan set runs: a simulation of all ranks by discrete events, from plan
// files and costs.
//
// Ranks that run the same role at the same kind of place are one row. A row works through its lanes
// in order: streams, or threads of a host. What a lane has reached waits for the instructions that
// it names, for its message or for the members of its group, and for the device.
//
// A device does one computation at a time, whichever lane it is on, in issue order among those that
// can begin. The two halves of an overlapped pair begin together and share the device in proportion
// to their work, so they end together unless one waits: the other then has all of the device.
// Messages and collectives that move at one time over one link of a rank share it: where together
// they would take more than all of it, all get slower by the same factor.
#pragma once

#include <memory>

#include "piper/plan/bundle.h"

namespace piper {

// Says how a cost is known, from the best to the worst.
enum class CostOrigin : uint8_t {
  kStated,        // by the user
  kMeasured,      // of this very program, or of messages of this size
  kInterpolated,  // between measured ones
  kGuessed,       // from peaks and bandwidths
};
inline constexpr std::array<const char*, 4> kCostOrigins = {"stated", "measured", "interpolated",
                                                            "guessed"};

// Says that bytes pass one of the rank's links, counted from 0, and which share of it they take
// while they move as fast as they can by themselves: 1 of the slowest one.
struct LinkShare {
  int32_t link = 0;
  double share = 1;
  bool operator==(const LinkShare&) const = default;
};
// Holds what an instruction takes by itself: in seconds, or all in one other unit.
struct StepCost {
  double device = 0;  // kCompute: of the device
  // All others: of its lane; of a message, what its call holds up; of a collective, what its lane
  // takes once all bytes have moved.
  double lane = 0;
  double latency = 0;            // messages and collectives: until bytes move
  double wire = 0;               // … and until all have moved, where nothing shares the link
  std::vector<LinkShare> links;  // of the rank; none: nothing shares the way
  double host = 0;               // until the host has issued it, behind the instruction before it
  CostOrigin origin = CostOrigin::kGuessed;
  bool operator==(const StepCost&) const = default;
};
// Says what works through a rank's instructions.
enum class RankLanes : uint8_t {
  kStreams,     // a device, through each stream by itself
  kThread,      // a thread runs all instructions one after the other
  kTwoThreads,  // a second thread runs those that communicate, and streams that do not compute
};
// Holds a rank's costs, by instruction of each section.
struct RankCosts {
  std::vector<StepCost> prologue, body, epilogue;
  // Computations slow down by this share while messages or collectives move: 0 to below 1.
  double slowed = 0;
  // The host's own work takes so long between two steps.
  double between_steps = 0;
  RankLanes lanes = RankLanes::kStreams;
};

// Describes the machine that plans run on.
class Machine {
 public:
  virtual ~Machine() = default;
  // Ranks of one role with the same number take the same.
  virtual int64_t place_of(const PlanSet& set, int64_t rank) const;
  virtual Result<RankCosts> costs_of(const PlanSet& set, int64_t rank) const = 0;

  // Whether a message moves only once its receiver has come to it.
  bool sends_wait = false;
};

// Describes a machine on which each forward, backward, half of a backward and update of a
// microbatch takes what is stated, and nothing else takes time.
struct StatedCosts {
  double forward = 1, backward = 2, input_half = 1, weight_half = 1, update = 0;
  double send = 0;  // from the end of a send to its receiver
  // By stage, where they differ; those that are not there are as above.
  std::map<int32_t, std::array<double, 4>> of_stage;  // F, B, BI, BW
};
std::unique_ptr<Machine> stated_machine(const StatedCosts& costs,
                                        RankLanes lanes = RankLanes::kStreams);
// Each computation takes its FLOPs, and nothing else takes time.
std::unique_ptr<Machine> flops_machine();

// Says what a step waited for last before it began.
enum class Cause : uint8_t {
  kStart,    // nothing: it is the first
  kLane,     // the instruction before it on its lane or stream
  kWaits,    // one that it names
  kSection,  // the end of the section before
  kHost,     // its issue by the host
  kDevice,   // the device, which ran another one
  kPair,     // the other half of its pair
  kMessage,  // its sender; of a message that waits for its receiver: that one
  kMembers,  // the last member of its group
  kOrder,    // the operation before it on its communicator
};

// Describes an instruction as a row ran it.
struct TimedStep {
  const Instruction* one = nullptr;
  int32_t number = 0;   // of the training step, from 0
  int32_t section = 0;  // of the row
  StepCost cost;
  bool paired = false, second = false;  // in an overlapped pair; in its second half
  double ready = -1;                    // when its lane had come to it and what it names had ended
  double start = -1;                    // when it ran, or its bytes began to move
  double end = -1;
  // Why it was not ready sooner, and why it began no sooner: by a step of the row, and of any row;
  // -1: none.
  Cause ready_cause = Cause::kStart, cause = Cause::kStart;
  int32_t ready_step = -1, cause_row = -1, cause_step = -1;
};
struct TimedSection {
  int32_t first = 0, count = 0;  // of the row's steps
  double end = 0;                // all have run, and what they sent has arrived
  double computed = 0;           // the last computation
};
struct TimedRow {
  std::vector<int64_t> ranks;  // all of which do the same
  const RoleProgram* role = nullptr;
  std::vector<TimedStep> steps;  // in the order of issue, section by section
  std::vector<TimedSection> sections;
};
// Refers to the plan set that it was made of.
struct Timeline {
  std::vector<TimedRow> rows;
  std::vector<int32_t> row_of_rank;
  double length = 0;
};

// Simulates so many steps, of which a row begins each when it has ended the one before; where steps
// overlap, so many bodies between prologue and epilogue. Error: a plan that cannot be followed to
// its end, with the instruction that waits; roles that are not at hand; costs that are unknown.
Result<Timeline> simulate(const PlanSet& set, const Machine& machine, int32_t steps);

// Returns the pass of a forward or a backward, and kU for everything else.
TaskPass shown_pass(const Instruction& one);

}  // namespace piper
