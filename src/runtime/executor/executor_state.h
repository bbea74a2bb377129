// What an executor is once loaded: flat instructions, everything resolved.
#pragma once

#include <algorithm>
#include <array>
#include <deque>
#include <map>

#include "faults.h"
#include "nvtx.h"
#include "piper/plan/windows.h"
#include "piper/runtime/executor.h"
#include "recorder.h"

namespace piper {

class Helper;
class Reader;
class Replay;

// Holds what the host writes, by parity of the section: data, or numbers that are always the same.
struct Staged {
  int32_t op = 0;
  int64_t bytes = 0;
  std::byte* at[2] = {};
};

// Holds one instruction, ready to run.
struct Op {  // a cache line: a step is a walk over these
  InstructionKind kind = InstructionKind::kCompute;
  Spent spent = Spent::kOther;
  int32_t handle = -1;                       // binding, route, group or input
  int32_t member = 0;                        // kOwnPart: the own position
  int32_t ahead = 0;                         // steps ahead of the one under way
  std::byte* a = nullptr;                    // args[0]
  std::byte* b = nullptr;                    // args[1]; kPosition: the numbers
  int64_t size = 0;                          // bytes; first sample for kInput
  int64_t count = 0;                         // samples of kInput; parts
  union {                                    // of the kind's own
    const Collective* collective = nullptr;  // of a collective; kOwnPart: its shards
    const MessagePart* parts;                // kSend, kRecv of several args
    const Staged* staged;                    // kInput; kPosition where the backend works by itself
  };
  const char* label = nullptr;  // "instruction 12 (recv F stage=1 mb=3)"
};
static_assert(sizeof(Op) == 64);

// Lists what to do before and after an instruction where the backend queues it.
struct Queued {
  std::vector<int32_t> waits;  // events
  int32_t stream = 0;          // the backend's
  int32_t event = -1;          // recorded behind it, where another stream waits for it
  // A message leaves on a stream of its own, so that nothing after it waits for its receiver: that
  // stream, and the event that it waits for.
  int32_t leaves = -1, ready = -1;
};

// Describes an instruction as one of two threads runs it.
struct LineOp {
  int32_t op = 0;
  int32_t after = 0;        // it waits for so many of the other line; 0: it has no need to look
  bool is_awaited = false;  // by one of the other line
};

struct BoundSection {
  const char* name = nullptr;  // "prologue", "epilogue", "window", …; null for the body
  const std::vector<Instruction>* instructions = nullptr;
  std::vector<Op> ops;
  std::vector<Queued> queued;     // by instruction, where the backend is asynchronous
  std::vector<NvtxRange> ranges;  // by instruction, where a tool listens
  // In the order of issue, where there is a helper: what the rank's thread does, and what that one
  // does; empty where either has nothing to do.
  std::vector<LineOp> lines[2];
  std::deque<Staged> staged;  // in the order of issue
  // Traces have the body, which is `body_count` instructions from `body_first` on, and the others,
  // which are those of an outer update.
  bool is_traced = false;
  int32_t update = -1, body_first = 0, body_count = 0;
};

// Holds events of a step whose times are kept: of its begin, of its body's end, and around each
// instruction of the body and of outer updates.
struct StepEvents {
  int64_t step = -1;  // whose they are; -1: nobody's
  int32_t begin = -1, end = -1;
  double began_us = -1;  // on the host's clock, once that is known
  std::vector<std::pair<int32_t, int32_t>> instructions;
  std::vector<double> issue_us;  // by instruction: the host's
  struct Run {
    const BoundSection* section = nullptr;
    size_t first = 0;  // of `instructions`
    bool is_step = false, is_read = false;
  };
  std::vector<Run> runs;  // in the order in which they are queued
};

// Describes what a trace has of one step.
struct TracedStep {
  int64_t step = -1;
  size_t events = 0;
  std::vector<const BoundSection*> sections;
};

// Keeps how sections follow each other on an asynchronous backend.
struct Queues {
  std::vector<int32_t> streams;    // by stream of the plan
  std::vector<int32_t> all;        // of the backend, those of messages among them
  std::vector<int32_t> joins;      // by stream of `all`: the event of its end
  int32_t ended[2] = {-1, -1};     // by parity of the section: all of it is complete
  int32_t reported[2] = {-1, -1};  // by parity of the step: its reports are on the host
  std::byte* reports[2] = {};      // the same: these, kStagedReportBytes each
  std::map<int32_t, int32_t> stream_of_route;
  StepEvents times[2];  // by parity of the step, where times are kept
  int32_t begun = -1;   // event: what stands before a section is complete
  // The body's graphs are kept by parity of the step, which says where reports go, and of the
  // section, which says where inputs lie. Usually one parity follows from the other; a step that is
  // run again or a prologue may change that. -1: there is none yet. None are kept where some rank
  // cannot.
  bool keeps_graphs = false, has_warmed_up = false;
  int32_t graphs[2][2] = {{-1, -1}, {-1, -1}};
};

struct Executor::State {
  State(const RankSource& from, Backend& on, Control& with, Fabric& over);
  ~State();

  const RankSource source;
  Backend& backend;
  Control& control;
  Fabric& fabric;
  std::atomic<const char*>& activity;
  Recorder recorder;
  const char* queued_last = "an initial value";  // on an asynchronous backend: the label
  std::shared_ptr<const RoleProgram> role;       // as the backend has prepared it
  const RoleProgram* plan = nullptr;
  std::vector<int64_t> coordinates;
  std::vector<int64_t> peers;  // with whom it communicates
  std::byte* arena = nullptr;
  std::byte* host = nullptr;           // the host's arena
  int64_t staged = 0;                  // bytes beside it
  std::vector<std::byte*> workspaces;  // by stream
  BoundSection prologue, body, epilogue, evaluation;
  // By outer update: it alone, and with the body that it runs beside.
  std::deque<BoundSection> outer_updates, bodies_beside;
  // By number in windows_of(): the window's instructions, but for those that the role has. Those of
  // bodies with outer updates beside them follow.
  std::vector<Window> windows;
  std::vector<std::vector<Instruction>> taken;
  std::deque<BoundSection> others;
  const BatchSource* evaluated = nullptr;  // the data of the evaluation under way
  std::vector<std::string> labels;         // never resized after load: others read them
  std::vector<std::vector<Piece>> pieces;
  std::vector<std::vector<Shard>> shards;
  std::vector<std::vector<Exchange>> exchanges;
  std::vector<std::vector<int64_t>> positions;
  std::vector<std::vector<Turn>> turns;
  std::vector<std::vector<Rows>> rows;
  std::deque<Collective> collectives;
  std::vector<std::vector<MessagePart>> messages;
  std::vector<double> reports;
  Queues queues;
  const Nvtx* tool = nullptr;  // null: nobody listens
  NvtxRange step_range;
  int64_t begun = -1;              // step
  int64_t left_out = 0;            // steps of data
  std::unique_ptr<Replay> replay;  // null: no step runs twice
  // PIPER_FAULT within the step under way: behind this instruction of the body; -1: none.
  int64_t fault_at = -1;
  FaultInside fault;
  // States that are one number, with what they held before the step under way; of a backend that
  // is not asynchronous.
  std::vector<std::pair<int32_t, std::array<std::byte, 8>>> numbers;
  int64_t sections = 0;  // begun so far, where the host stages something
  // The last `trace_steps` steps, as a ring of whole steps, each with room for `events_of_step`.
  std::vector<TraceEvent> trace;
  std::vector<TracedStep> traced;
  size_t events_of_step = 0;
  int64_t traced_steps = 0;
  // What the host reads of memory that it does not reach, by buffer; and why it could not last.
  std::map<size_t, std::vector<std::byte>> mirrors;
  Status mirrored = ok_status();
  // Threads, which end before all of that.
  std::unique_ptr<Reader> reader;
  std::unique_ptr<Helper> helper;

  std::byte* at(const Buffer& buffer) const {
    return (role->tensor(buffer).host ? host : arena) + buffer.offset;
  }
  std::byte* at(int32_t buffer) const { return at(role->buffers[static_cast<size_t>(buffer)]); }
  const TensorType& type(int32_t buffer) const { return role->tensor(buffer).type; }
  std::vector<BoundSection*> all_sections() {
    std::vector<BoundSection*> all{&prologue, &body, &epilogue, &evaluation};
    for (std::deque<BoundSection>* more : {&outer_updates, &bodies_beside, &others})
      for (BoundSection& each : *more) all.push_back(&each);
    return all;
  }
  // Returns what runs for `step` of the steps [begin, end).
  const BoundSection& section_for(int64_t step, int64_t begin, int64_t end) {
    const Window wanted = window_at(role->steps_ahead, step, begin, end);
    const auto w = static_cast<size_t>(std::ranges::find(windows, wanted) - windows.begin());
    PIPER_CHECK(w < windows.size(), "no window runs for step {} of [{}, {})", step, begin, end);
    BoundSection* const lists[kWindowsInLists] = {&prologue, &body, &epilogue};
    return w < kWindowsInLists ? *lists[w] : others[w - kWindowsInLists];
  }
  const std::vector<Report>& reports_of(const BoundSection& section) const {
    return &section == &evaluation ? role->evaluation_reports : role->reports;
  }
  // Returns whether an asynchronous backend gets this step op by op, between events.
  bool is_timed(int64_t step) const {
    const int64_t every = source.trace_steps > 0 ? 1 : source.time_every;
    return queues.times[0].begin >= 0 && every > 0 && (step + 1) % every == 0;
  }
  const BatchSource* data_of(const BoundSection& section) const {
    return &section == &evaluation ? evaluated : source.data;
  }
};

// Allocates arenas and workspaces at load, then writes initial values and constants.
Status allocate(Executor::State& state);
// Takes memory from what the plan states for the host's data. Error (kPlan): it states less.
Result<std::byte*> allocate_stage(Executor::State& state, int64_t bytes);
// `bytes`: by stream. Error (kPlan): the plan, which is for this backend, states less.
Status allocate_workspaces(Executor::State& state, std::span<const int64_t> bytes);
Status fill_buffers(Executor::State& state);
Status refill_states(Executor::State& state, const StateSource& from);
void list_numbers(Executor::State& state);
// Queues a section on an asynchronous backend, after the one before; `reports`: that of a step.
Status queue_section(Executor::State& state, const BoundSection& section, int64_t step,
                     bool reports);
// Counts a section that does nothing, so that others keep the parity by which data are staged for
// them.
void skip_section(Executor::State& state);
// The host waits until the event is complete, as long as it waits for another rank.
Status wait_for(Executor::State& state, int32_t event, int64_t step);
// Returns the error, of the device's work, with the rank and the step.
Error of_step(const Executor::State& state, int64_t step, Error error);
// Runs the instructions of an op in order; returns when they are done.
Status run_op(Executor::State& state, const Op& op);
// Prepares events, streams and host memory. Called at load.
Status prepare_queues(Executor::State& state);
Status prepare_section(Executor::State& state, BoundSection& section);
// Prepares at load the events for a trace, where one is kept and the backend knows times.
Status prepare_times(Executor::State& state);
// Reads the times of a step that has been waited for into its part of the trace. Those of outer
// updates after it are `left` until the next step but one begins, or the trace is read.
void read_times(Executor::State& state, int64_t step);
void read_times_left(Executor::State& state, StepEvents& times);
// Decides at load, after all sections, whether bodies can be queued as one. Collective.
Status prepare_graphs(Executor::State& state);
// Waits at the end of a section until its send buffers are its own again, or will be for what is
// queued next.
Status wait_sends(Executor::State& state, int64_t step);
// Returns where the host reads a buffer when all that was queued is done: its memory, or a copy of
// it that refresh_mirrors makes again.
const std::byte* readable(Executor::State& state, const Buffer& buffer);
Status refresh_mirrors(Executor::State& state);
// Copies buffers to the host, when all that was queued is done.
Status copy_out(Executor::State& state, std::span<const std::pair<int32_t, std::byte*>> copies);
Status copy_in(Executor::State& state,
               std::span<const std::pair<int32_t, const std::byte*>> copies);
// Starts the helper at load, where there is one, and decides what it does of each section.
Status start_helper(Executor::State& state);
void draw_lines(const Executor::State& state, BoundSection& section);
// Allocates at load the memory for what the host writes, and starts its reader.
Status stage_inputs(Executor::State& state);
// Waits until what the section reads in this step is staged.
Status take_inputs(Executor::State& state, const BoundSection& section, int64_t step);
// Begins to read what the section after this one will.
void read_ahead(Executor::State& state, const BoundSection& section, int64_t step);
// Returns where the trace takes what the section's instructions do in this step; null: it does not.
TraceEvent* next_trace(Executor::State& state, const BoundSection& section, int64_t step);
// Returns what a trace has of a section's instruction.
TraceEvent event_of(const BoundSection& section, int64_t step, size_t op, double start_us,
                    double end_us, double issue_us);
double now_us();
// Finds at load the tool that listens, if any does. Why not is said where the run is introduced.
void find_tool(Executor::State& state);
// A range's category is the kind of instruction, from 1 on; steps come after.
NvtxRange range_for(const Nvtx& tool, const Instruction& one);
// Opens a range while an instruction is issued, where a tool listens.
inline NvtxScope range_of(const Executor::State& state, const BoundSection& section, size_t op) {
  return section.ranges.empty() ? NvtxScope() : NvtxScope(*state.tool, section.ranges[op]);
}
// Finds what PIPER_FAULT wants within the step that begins, and does it.
Status find_fault(Executor::State& state, int64_t step);
Status do_fault(Executor::State& state);
Error located(const Op& op, int64_t step, Error error);

}  // namespace piper
