// An Executor walks one rank's instructions. It knows nothing of strategies: all that happens is in
// the plan. job.h runs the ranks of a set.
#pragma once

#include <optional>

#include "piper/base/data.h"
#include "piper/devices/backend.h"
#include "piper/plan/bundle.h"
#include "piper/runtime/data.h"
#include "piper/runtime/transport.h"

namespace piper {

// Serves the values that states begin with in place of the plan's initial ones: a checkpoint's.
class StateSource {
 public:
  virtual ~StateSource() = default;
  // Fills what is held of a state, which `to` has zeros for. `names`: as names_of_state gives them.
  // Returns false where it has no such value, so that the initial one holds.
  virtual Result<bool> fill(const Tensor& tensor, std::span<const std::string> names,
                            const Held& held, std::byte* to) const = 0;
  // Returns what serves this rank, where ranks are served by what is their own.
  virtual const StateSource& of_rank(int64_t) const { return *this; }
};

// Holds what a job goes back to: its states when so many steps were done.
struct GoneBack {
  int64_t step = 0;
  std::shared_ptr<const StateSource> states;
  bool is_of_other_plans = false;  // these steps were done under plans from before a switch
};

class Recorder;

// Lists what an executor is made of; all of it outlives the executor.
struct RankSource {
  const PlanSet* set = nullptr;  // role programs and initial values
  int64_t rank = 0;
  // Inputs in the order of data_needs(*set); may be null when the role reads none.
  const BatchSource* data = nullptr;
  const StateSource* states = nullptr;  // null: states begin with the plan's initial values
  int64_t trace_steps = 0;              // keep the times of this many last steps
  // On a backend that is not asynchronous, where the plan's streams leave something to overlap: a
  // thread of the rank's own talks to other ranks while the caller's computes, and another one
  // reads data one step ahead. The bits are the same.
  bool helper = false;
  int helper_core = -1;  // where these threads are pinned; -1: where the caller may be
  // On a backend that can: a body is queued as one, from the second on, where the fabrics of all
  // ranks can and no times are kept.
  bool graphs = true;
  // Each so many steps forward and backward run twice before the update, and must give the same
  // bits; 0: never.
  int64_t replay = 0;
  std::string recording;  // a folder for what the rank did last, if it fails; "": none is written
  // On an asynchronous backend that keeps times, each so many steps the body is queued op by op, to
  // know how long its instructions take; 0: never.
  int64_t time_every = 0;
};
// Views a trained parameter as a rank holds it.
struct ParameterView {
  std::string name;
  std::vector<std::string> aliases;
  Held held;
  const std::byte* data = nullptr;
  bool trained = true;  // a parameter; else another state
  const TensorType& type() const { return held.whole; }
  int64_t bytes() const { return held.count * info(held.whole.dtype).bytes; }
};

struct TraceEvent {
  int64_t step = 0;
  int32_t instruction = 0;          // of the body, or of an outer update
  double start_us = 0, end_us = 0;  // of the machine's steady clock
  // The host's own time for it: to queue it; or where it does not queue, since the one before, or
  // since what it waited for on the rank's other thread.
  double issue_us = 0;
  int32_t update = -1;  // the number of the outer update
};

// The result of an evaluation of one batch, of ranks that report it.
struct Evaluated {
  std::optional<double> loss;
  std::optional<double> weight;  // by which the loss is a mean; nothing: the batch's samples
};

// Runs one rank: its state and its instructions, bound to memory, kernels and routes at load. Used
// from one thread. A step neither allocates nor locks, and does nothing per instruction but the
// instruction. On an asynchronous backend data are read one section ahead by a thread of the rank's
// own.
class Executor {
 public:
  // Allocates, fills state and constants, loads and binds programs, registers routes and groups.
  // The ranks have agreed. Error (kUsage): one of backend and fabric is asynchronous, the other one
  // is not, and the plan has communicators.
  static Result<std::unique_ptr<Executor>> load(const RankSource& source, Backend& backend,
                                                Control& control, Fabric& fabric);
  ~Executor();
  // A value of `end`: nobody knows yet before which step the others are complete.
  static constexpr int64_t kNoEnd = INT64_MAX / 2;
  // Runs the prologue; where steps overlap, begins `step` and what is ahead of it, but none from
  // `end` on.
  Status run_prologue(int64_t step, int64_t end = kNoEnd) {
    for (int32_t part = 0; part < prologue_parts(); ++part)
      PIPER_TRY(start_prologue(part, step, end));
    return ok_status();
  }
  // These are its parts: an asynchronous backend waits for the one before last of them.
  int32_t prologue_parts() const;
  Status start_prologue(int32_t part, int64_t step, int64_t end);
  // Runs the body with wait_sends, where steps overlap without what is of the steps from `end` on,
  // and then reads the reports. An error names rank, step and instruction.
  Status run_step(int64_t step, int64_t end = kNoEnd) {
    PIPER_TRY(start_step(step, end));
    return finish_step(step);
  }
  // What the body takes of the data in this step, which is the next one, is read; an error leaves
  // all as it was. A step reads what was not read before it.
  Status read_inputs(int64_t step);
  // These are the two halves of run_step. On an asynchronous backend the first one only queues what
  // is to be done, and one more step may start before the second one waits for what this one
  // reports.
  Status start_step(int64_t step, int64_t end = kNoEnd);
  Status finish_step(int64_t step);
  // Runs the epilogue where steps do not overlap; an asynchronous backend only queues it.
  Status run_epilogue(int64_t step);
  // Runs the forward pass on batch `batch` of other data, between two steps that do not overlap.
  // Changes no state. Requires a plan that can evaluate.
  Status start_evaluation(const BatchSource& data, int64_t batch);
  // Waits for what it reports, before the next one starts.
  Result<Evaluated> finish_evaluation(int64_t batch);
  // Waits until all that was queued is done; then parameters and states may be read.
  Status settle();
  // Gives all states that are one number what they had before the last step, which the plan has
  // skipped: counters of random draws and loss scales change in such a step, too. Not on an
  // asynchronous backend.
  void undo_numbers();
  // Fills all states again, after settle(): with the plan's initial value where `states` has none.
  // The steps after it take data of so many steps later than their number says (`left_out`). A
  // prologue comes next.
  Status reload(const StateSource& states, int64_t left_out);

  const RoleProgram& role() const;
  std::shared_ptr<const RoleProgram> prepared() const;  // what the backend runs of it
  const Backend& backend() const;
  const Fabric& fabric() const;
  Recorder& recorder() const;  // what it did last, and how long that took
  bool is_asynchronous() const;
  // Returns whether it knows how long the instructions of this step took, when it has finished.
  bool knows_times(int64_t step) const;
  std::span<const double> reports() const;  // after a step, by RoleProgram::reports
  std::optional<double> report(std::string_view name) const;
  std::vector<ParameterView> parameters() const;
  // Returns them with parts that are trained by themselves as tensors of their own.
  std::vector<ParameterView> trained_parts() const;
  // Returns all that is kept from step to step, parameters among it: under their names, other
  // states under names that are the same on all ranks of the role and on no others.
  std::vector<ParameterView> states() const;
  // Copies whole buffers (positions in RoleProgram::buffers) to the host, after settle().
  Status copy_out(std::span<const std::pair<int32_t, std::byte*>> copies);
  Status copy_in(std::span<const std::pair<int32_t, const std::byte*>> copies);  // and back
  std::span<const std::byte> buffer(
      std::string_view name) const;       // empty when there is none: for tests
  std::vector<TraceEvent> trace() const;  // oldest first

  struct State;

 private:
  explicit Executor(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Returns all parameters of these executors, in rank order, the first holder's value; by name,
// aliases included. Each is put together when it is asked for, of what the executors have then.
std::vector<NamedTensor> collect_parameters(std::span<const Executor* const> executors);

// Returns the inputs of all roles of a set, each name once, in order of roles.
Result<std::vector<InputNeed>> data_needs(const PlanSet& set);

}  // namespace piper
