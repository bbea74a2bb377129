// What a simulated timeline says: how long a step is, where devices idle and why, which
// communication is not hidden, the critical path, and how much of it all is known how well.
#pragma once

#include <span>

#include "piper/inspect/simulate.h"

namespace piper {

// Says what a device waited for while it computed nothing.
enum class IdleReason : uint8_t {
  kMoving,    // the bytes of a message or collective were under way: exposed communication
  kOthers,    // other ranks had not come to it yet
  kLocal,     // copies, inputs and parts, which take their lane's time
  kHost,      // the host had not issued it yet
  kOrder,     // its lane, whose earlier instructions had not ended
  kStepEnds,  // the step before had not ended
  kNothing,   // nothing was left to compute
};
inline constexpr std::array<const char*, 7> kIdleReasons = {
    "communication", "other ranks", "copies", "the host", "its lane", "the step's end", "no work"};

struct IdlePiece {
  double from = 0, to = 0;
  IdleReason reason = IdleReason::kNothing;
  int32_t step = -1;  // of the row: what it waited in; -1: none
  // What that waited for, of any row; -1: none.
  int32_t cause_row = -1, cause_step = -1;
};
// Returns the pieces of the row's time in [from, to) in which its device computes nothing, in
// order.
std::vector<IdlePiece> idle_pieces(const Timeline& timeline, size_t row, double from, double to);

// Sums up one kind of message or collective of all ranks in a step.
struct MovedKind {
  std::string what;    // "all_gather over dp"
  std::string stream;  // its name
  double count = 0;    // of a rank, on average
  double moving = 0;   // seconds under way, of the rank with most
  double exposed = 0;  // of these, seconds in which that rank's device waited for it
};
struct RowTimes {
  std::vector<int64_t> ranks;
  double busy = 0;               // in a steady step
  std::array<double, 7> idle{};  // by IdleReason
  double span = 0;               // of one step by itself: its last end - its first begin
};
// Describes a piece of the longest chain of instructions that wait for each other.
struct PathKind {
  std::string what;  // "F stage=1", "all_gather over dp", "the host"
  double time = 0, count = 0;
};
struct StepReport {
  double first = 0;  // from nothing to the end of the first step
  double step = 0;   // each further one
  double alone = 0;  // one step by itself, from its begin to its end on all ranks
  double span = 0;   // the largest span of a row: what steps take that follow without a barrier
  double bound = 0;  // the work of the busiest device: no order of it is shorter
  double idle = 0;   // share of all devices' time in a steady step
  std::vector<double> outer;    // each outer update, by itself
  std::vector<double> exposed;  // of these, what lengthens a run: less where it is beside a step
  double average = 0;           // a step with its share of the outer updates
  double evaluation = 0;  // the forward pass alone, of one batch; 0: the plans cannot evaluate
  std::vector<RowTimes> rows;
  std::vector<MovedKind> moved;     // most exposed first
  std::vector<PathKind> path;       // of a steady step, longest first
  std::array<double, 4> origins{};  // shares of all costs, by CostOrigin
};
// Errors: as simulate().
Result<StepReport> report_step(const PlanSet& set, const Machine& machine);

// Names kinds of costs that a prediction may be wrong about.
enum class CostKind : uint8_t { kPrograms, kMessages, kCollectives, kCopies, kHost };
inline constexpr std::array<const char*, 5> kCostKinds = {"computations", "messages", "collectives",
                                                          "copies", "host"};
// Returns a machine on which costs of this kind are so many times what they are on `machine`, which
// it refers to.
std::unique_ptr<Machine> scaled_machine(const Machine& machine, CostKind kind, double factor);

// Returns names for people: "rank 3 waits for …", the end of a sentence about why a rank's device
// computes nothing at this time, or what it computes; lines of a chain of causes. Behind each cause
// is the directive of the strategy that makes it, if the text of the strategy is given and has one.
Result<std::vector<std::string>> explain_time(const Timeline& timeline, int64_t rank, double time,
                                              const std::string& strategy_text = "");

// How much longer a step is where costs of a kind are by this share off: with less, with more.
struct Sensitivity {
  CostKind kind = CostKind::kPrograms;
  double less = 0, more = 0;  // shares of the step: 0.05 is 5 % longer
};
// Kinds that change nothing are left out.
Result<std::vector<Sensitivity>> sensitivity(const PlanSet& set, const Machine& machine,
                                             const StepReport& report, double share);

// Says what the machine has, for a report. 0: not known.
struct MachineFacts {
  std::string name;  // "h100x8.yaml", "stated costs"
  // In bytes: what plans may use of a device, and what the rank there needs, where the two are
  // closest.
  double memory = 0, peak_bytes = 0;
  double peak_flops = 0;           // of all ranks' devices together
  std::vector<std::string> notes;  // what does not fit together, for people
};
std::string print_report(const PlanSet& set, const StepReport& report, const MachineFacts& facts,
                         std::span<const Sensitivity> sensitivity);
std::string report_json(const PlanSet& set, const StepReport& report, const MachineFacts& facts,
                        std::span<const Sensitivity> sensitivity);
// Prints a trace for Perfetto and chrome://tracing, in the form of piper-run --trace.
std::string timeline_trace(const Timeline& timeline);

// "all_gather over dp", "messages over pp"; of others the kind.
std::string what_of(const RoleProgram& role, const Instruction& one);
// "1.234 ms".
std::string human_seconds(double seconds);

}  // namespace piper
