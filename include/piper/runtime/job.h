// A job that runs a plan set: run_job runs all ranks as threads, run_rank_here one rank in this
// process, run_plans does all that piper-run does. And what people see of a job.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>

#include "piper/runtime/checkpoint.h"
#include "piper/runtime/executor.h"
#include "piper/runtime/metrics.h"
#include "piper/runtime/transport.h"

namespace piper {

// A set of data that a job evaluates on.
struct EvaluationSet {
  std::string name;
  const BatchSource* data = nullptr;
  int64_t batches = 0;  // so many of them, from the first on
};

enum class VerifyAgainst {
  kNone,
  // The single-device plan with the same cut of the batch: equal bits, or within bounds where sums
  // are formed in another order.
  kSingle,
  kUncut,  // the single-device plan without microbatches: within bounds
};
// Says whether ranks have a helper (RankSource::helper). kAuto: where the plan leaves it something
// to do and a core is left, see `cores_of`.
enum class HelperThread { kAuto, kOn, kOff };

// Says what becomes of a job when the loss or the norm of the gradients is not finite. Where plans
// scale the loss, skipped steps are no reason to end: the scale is lowered.
enum class OnNan {
  kStop,      // it ends with the state before that step, if the plan makes no such update
  kSkip,      // it goes on without that update
  kRollBack,  // it goes on from a checkpoint, or from where it began, without the data since then
};
// So many steps in a row are skipped before a job ends in any case.
inline constexpr int64_t kMostSkippedInARow = 100;

struct VerifyOptions {
  VerifyAgainst against = VerifyAgainst::kNone;
  double loss_bound = 1e-4;  // |difference| ÷ max(|reference|, 0.05)
  // Largest |difference| ÷ max(largest |reference|, 0.05), per tensor.
  double param_bound = 3e-4;
};

struct JobOptions {
  int64_t steps = 1;
  std::string backend =
      "cpu";         // of piper/devices/registry.h; of run_plans alone, empty: what fits the plan
  bool fuse = true;  // false: every op on its own, with the same bits
  int threads = 0;   // per rank; 0: the machine's cores shared out
  HelperThread helper = HelperThread::kAuto;
  bool graphs = true;  // RankSource::graphs
  // Seconds that a rank waits for another before the job ends: this, or five times the longest step
  // so far where that is more. Nothing: 10, but start_timeout_s before the first step is done.
  std::optional<double> timeout_s;
  double start_timeout_s = 60;  // for all ranks to start and to load
  VerifyOptions verify;
  // Every so many steps (0: never), after the last, and before each checkpoint: what several ranks
  // hold has the same bits; else an error (kNumeric) names it and the rank that differs.
  int64_t check_replicas = 0;
  OnNan on_nan = OnNan::kStop;
  int64_t most_rollbacks = 3;
  Rollbacks rollbacks;  // those before this job
  // Finds what the job goes back to; needed for kRollBack. Collective. `tried`: the step of a
  // checkpoint from which it got no further, so that an older one is better; −1: none.
  std::function<Result<GoneBack>(Control& control, int64_t tried)> find_back;
  // Called on rank 0 when the job has gone back from a step (from 0) to where so many are done.
  std::function<Status(int64_t step, int64_t done)> on_rollback;
  int64_t replay = 0;      // RankSource::replay
  int64_t first_step = 0;  // so many steps were done before this job: `steps` counts them
  int64_t skipped = 0;     // of these, how many were skipped
  const StateSource* states = nullptr;  // what the ranks' states begin with
  // Whether steps say their MFU: of what a rank's device can do, in FLOPs a second; 0: measured, on
  // a backend of the host.
  bool mfu = false;
  double peak_flops = 0;
  std::string recording;  // RankSource::recording
  std::optional<CheckpointOptions> checkpoint;
  std::atomic<bool>* save = nullptr;  // set by a signal: a checkpoint is written after the step
  double time_limit_s = 0;            // the job ends within so long of its start; 0: no limit
  JobPace pace;                       // what is known of it when it begins
  std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  // What is evaluated each `evaluate_every` steps (0: never for that) and at the job's end, unless
  // it was interrupted. The first set's loss is the one by which checkpoints are best. Needs plans
  // that can evaluate.
  std::vector<EvaluationSet> evaluation;
  int64_t evaluate_every = 0;
  std::function<void(const EvaluationMetrics&)> on_evaluation;  // on rank 0
  // Called by every rank between two steps, before it evaluates (`begins`) and after it;
  // collective. What it changes of states before it puts back after.
  std::function<Status(Executor& executor, Transport& transport, bool begins)> around_evaluation;
  std::function<void()> on_loaded;  // called when no rank here reads `states` any more
  // The job goes on with other plans after these steps. Called by every rank then, unless the job
  // has ended before; collective. What is done at a job's end is not done, but that a checkpoint is
  // written.
  std::function<Status(Executor& executor, Transport& transport)> on_end;
  int64_t trace_steps = 0;
  int64_t profile_steps = 0;  // the result has a profile of this many last steps
  bool parameters = true;     // whether the result has them: a copy beside the plan's memory
  // Called on rank 0 at the job's end: while it runs, each parameter is made when it is asked for.
  std::function<void(std::span<const NamedTensor>)> on_parameters;
  // Stop when the mean loss of the last 20 steps is at most this. On an asynchronous backend a step
  // is queued before the one that runs is asked for its results, unless something is compared
  // between steps: then a run ends one step after its loss has said so, which is one step later for
  // a loss that is not finite, too.
  std::optional<double> target_loss;
  std::atomic<bool>* stop = nullptr;  // set by a signal, to any rank: the job ends after the step
  // Set on any rank (of steps that overlap, rank 0) when its data have changed: it ends so, too.
  const std::atomic<bool>* lost = nullptr;
  std::function<Status(const StepMetrics&)> on_step;  // on rank 0; an error ends the job
  // Called on rank 0, if Backend::free_bytes says something there, before the first step and after
  // step 2; an error ends the job.
  std::function<Status(const MemoryMetrics&)> on_memory;
  // Called by every rank before each step; an error is that rank's failure.
  std::function<Status(int64_t rank, int64_t step, const Executor& executor)> before_step;
  // Called by a rank, from its thread, whose data are lost (kStorage) before a step that would take
  // them: the job ends after the step before, as one that is told to stop. Where steps overlap on
  // several ranks there is no such place: then it is the rank's failure.
  std::function<void(const Error&)> on_loss;
  // Called by a rank that fails, before what it has queued on a device ends. Of ranks as threads:
  // called once, at once, by the first of them; ranks that do not come back within grace_s after it
  // end the process, with the error's code.
  std::function<void(const Error&)> on_error;
  double grace_s = 2;
};

struct RankTrace {
  int64_t rank = 0;
  std::shared_ptr<const RoleProgram> role;
  std::vector<TraceEvent> events;
};

struct JobResult {
  std::vector<StepMetrics> steps;  // rank 0's last ones, kKeptSteps at least if there were as many
  JobTotals totals;                // rank 0's
  JobPace pace;                    // rank 0's
  std::vector<EvaluationMetrics> evaluations;
  // By name, aliases included, if they were asked for; of rank 0 only where ranks are processes.
  std::vector<NamedTensor> parameters;
  std::vector<RankTrace> traces;
  int64_t taken_bytes = 0;  // of a device, by the backend of the rank that has taken most
  // What print_profile and busy_note say, of rank 0 only. Empty: not asked for, or nothing to say.
  std::string profile, profile_note;
  bool interrupted = false, reached_target = false;
  bool lost = false;  // some rank has lost data or a checkpoint: the job ends early, on all ranks
  bool goes_on = false;               // JobOptions::on_end was called, on all ranks
  std::optional<GoneBack> goes_back;  // where the job has ended to go on under other plans
  int64_t taken = 0;                  // steps of data, with those that options.first_step counts
  Rollbacks rollbacks;
  int64_t skipped = 0;  // steps, with those that the options name
  // Why the job ended early with its training saved: a step was not finite. On all ranks; the
  // message is rank 0's.
  std::optional<Error> ended_by;
  int64_t compared_parameters = 0;  // by --verify-against, in every step
  bool bitwise = false;             // how; else within bounds
  double worst_loss_error = 0, worst_param_error = 0;
};

// Runs all ranks as threads of this process. `reference` is the reference plan's set when
// options.verify asks for one. The first error of any rank ends all and is the result.
Result<JobResult> run_job(const PlanSet& set, const BatchSource* data, const PlanSet* reference,
                          const BatchSource* reference_data, const JobOptions& options);

// Runs this process's rank of a job of several, over a transport that has agreed. Collective: all
// ranks of the job call it. `device`: a backend instead of the one that options.backend names.
Result<JobResult> run_rank_here(const PlanSet& set, const BatchSource* data,
                                const PlanSet* reference, const BatchSource* reference_data,
                                Transport& transport, const JobOptions& options,
                                Backend* device = nullptr);

// Loads all ranks of the set one after the other, each onto a backend that is made for it, and runs
// none: for backends that note what is loaded. Reads neither initial values nor data, and waits for
// no other rank.
Status load_ranks(PlanSet set,
                  const std::function<Result<std::unique_ptr<Backend>>()>& make_backend);

// ---- What people see ----------------------------------------------------------------------------

// Prints Chrome's trace form: a process per rank, a row per stream.
std::string print_trace(std::span<const RankTrace> traces);
// {"step":1,"loss":2.5,…} on one line: steps count from 1.
std::string print_metrics(const StepMetrics& metrics);
std::string print_metrics(const EvaluationMetrics& metrics);  // {"evaluation":"valid","step":…}
std::string print_metrics(const MemoryMetrics& metrics);      // {"memory":{"stated_bytes":…,…}}

// Says with what a run begins.
struct StartOptions {
  enum class How {
    kFresh,          // with the plans' initial values
    kResume,         // all goes on; no checkpoint is an error
    kResumeOrStart,  // the same, but no checkpoint means a fresh start
    kBranch,         // parameters and states go on; settings and data may be others
    kInit,           // parameters and buffers begin with these values, states fresh
  };
  How how = How::kFresh;
  // A folder of checkpoints, of which the newest undamaged one counts, or one checkpoint; of kInit
  // also a safetensors file.
  std::string from;
  std::vector<std::string> accept;  // settings that may differ, such as "lr" or "global_batch"
};

// Holds what the command line of piper-run says.
struct RunOptions {
  std::string plan;  // a directory of plans, or one rankN.plan
  // Further directories: of all, and of those in folders of several worlds, the first one counts
  // that is for as many ranks as were launched.
  std::vector<std::string> other_plans;
  // After so many steps the job goes on under these plans, a directory. In rising order of steps.
  struct Switch {
    std::string plans;
    int64_t step = 0;
  };
  std::vector<Switch> switches;
  StartOptions start;
  DataOptions data;  // its seed is the plan set's unless `seed` says another
  std::optional<uint64_t> seed;
  // Data to evaluate on: SOURCE, or NAME=SOURCE, which may be repeated for several sources of one
  // set; the first so many batches of each set (0: all).
  std::vector<std::string> evaluation;
  int64_t evaluation_batches = 0;
  bool evaluate_only = false;  // trains nothing
  // Evaluations take the averages of parameters in their place: those that ranks hold, or with
  // evaluate_only those that the checkpoint has.
  bool evaluate_averages = false;
  std::string save, metrics, trace, profile;
  std::string out;         // a folder for strategy, metrics, TensorBoard's events and checkpoints
  std::string rendezvous;  // HOST:PORT where rank 0 listens; "": as the launcher says, or by MPI
  int64_t log_every = 0;   // 0: chosen by the number of steps
  // Told the plans before they run, by the process that speaks for the job; an error ends it.
  std::function<Status(const PlanSet& set)> on_plans;
  // Told each error once, as soon as it is known, from any thread. Nothing: they go to stderr.
  std::function<void(const Error&)> on_error;
  JobOptions job;
};
struct RunOutcome {
  bool interrupted = false;  // by JobOptions::stop
  // Of the first error that did not end the run (a disk that is full; a target that was missed).
  ExitCode code = ExitCode::kOk;
};
// Reads the plans, runs the ranks that belong to this process, writes what was asked for: first
// what was trained. The result's error has been told to on_error.
Result<RunOutcome> run_plans(RunOptions options);

}  // namespace piper
