// Runs a job: ranks as threads of this process, or this process as one rank.
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <exception>
#include <mutex>
#include <ranges>
#include <set>
#include <system_error>
#include <thread>

#include "cores.h"
#include "finish.h"
#include "peak.h"
#include "piper/devices/cpu.h"
#include "profile.h"
#include "rank_loop.h"
#include "recorder.h"

namespace piper {
namespace {

// Returns the backend of a rank, made on the thread that will use it.
Result<std::unique_ptr<Backend>> backend_of(const JobOptions& options, const Cores& cores) {
  if (!cores.pinned.empty()) pin_to_core(cores.pinned[0]);
  return make_backend(options, cores);
}

constexpr int64_t kTimedOnDevices = 10;  // each so many steps; SlowRanks judges them

RankSource source_of(const PlanSet& set, int64_t rank, const BatchSource* data,
                     const JobOptions& options, const Cores& cores) {
  return {&set,
          rank,
          data,
          options.states == nullptr ? nullptr : &options.states->of_rank(rank),
          std::max(options.trace_steps, options.profile_steps),
          cores.helper,
          cores.helper_core,
          options.graphs,
          options.replay,
          options.recording,
          set.world() > 1 ? kTimedOnDevices : 0};
}

Result<std::unique_ptr<Replicas>> open_replicas(const JobOptions& options, Control& control,
                                                const Executor& executor) {
  if (options.check_replicas == 0) return std::unique_ptr<Replicas>();
  return Replicas::open(control, executor);
}

Result<std::unique_ptr<Checkpointing>> open_checkpoints(const JobOptions& options,
                                                        const PlanSet& set, Control& control,
                                                        Executor& executor) {
  if (!options.checkpoint) return std::unique_ptr<Checkpointing>();
  return Checkpointing::open(*options.checkpoint, set, executor, control, options.first_step,
                             options.pace.checkpoint_s);
}

// Returns what moves a rank's bytes: the fabric that its backend brings, `own`, or else the
// transport's, which reaches what is on the host. `local`: FabricSource::local, to be filled.
Result<Fabric*> choose_fabric(const PlanSet& set, Backend& backend, Transport& transport,
                              std::span<std::atomic<Fabric*>> local, std::unique_ptr<Fabric>& own) {
  Control& control = transport.control();
  const auto role = static_cast<size_t>(set.role_of_rank[static_cast<size_t>(control.rank())]);
  PIPER_ASSIGN(own, backend.make_fabric({control, set.roles[role], local}));
  if (own == nullptr) return &transport.fabric();
  if (!local.empty()) local[static_cast<size_t>(control.rank())].store(own.get());
  PIPER_TRY(control.barrier());  // from here on all know each other's
  return own.get();
}

bool asks_for_parameters(const JobOptions& options) {
  return options.parameters || options.on_parameters;
}

void take_parameters(const JobOptions& options, std::span<const NamedTensor> all,
                     JobResult& result) {
  if (options.on_parameters) options.on_parameters(all);
  if (!options.parameters) return;
  for (const NamedTensor& each : all)
    result.parameters.push_back({each.name, each.type, each.data.made()});
}

// Returns the trace of the steps that were asked for.
RankTrace trace_of(const Executor& executor, int64_t rank, const JobOptions& options) {
  RankTrace trace{rank, executor.prepared(), executor.trace()};
  std::set<int64_t> last;
  for (const TraceEvent& event : trace.events | std::views::reverse) {
    if (std::ssize(last) == options.trace_steps && !last.contains(event.step)) break;
    last.insert(event.step);
  }
  std::erase_if(trace.events, [&](const TraceEvent& event) { return !last.contains(event.step); });
  return trace;
}

// Runs a job whose ranks are threads.
class Job {
 public:
  Job(const PlanSet& set, const BatchSource* data, const PlanSet* reference,
      const BatchSource* reference_data, const JobOptions& options)
      : set_(set),
        data_(data),
        reference_(reference),
        reference_data_(reference_data),
        options_(options),
        world_(make_inproc_world(set.world(), TransportOptions{options.start_timeout_s})),
        backends_(static_cast<size_t>(set.world())),
        local_(static_cast<size_t>(set.world())),
        fabrics_(static_cast<size_t>(set.world())),
        executors_(static_cast<size_t>(set.world())) {}

  // Runs each rank on a thread of its own, and returns when all have ended.
  void run_ranks() {
    std::vector<std::thread> threads;
    try {
      for (int64_t rank = 0; rank < set_.world(); ++rank) {
        threads.emplace_back([this, rank] { run_guarded(rank); });
      }
    } catch (const std::system_error& problem) {
      const auto rank = static_cast<int64_t>(threads.size());
      end_with(rank, fail("no thread for rank {} of {}: {}", rank, set_.world(), problem.what())
                         .with_code(ExitCode::kStorage));
    }
    wait_for_all(threads.size());
    for (std::thread& thread : threads) thread.join();
  }

  Result<JobResult> run() {
    begin_backend(options_, set_);
    run_ranks();
    if (first_error_) return *std::move(first_error_);
    std::vector<const Executor*> executors;
    for (const auto& executor : executors_) executors.push_back(executor.get());
    if (result_.goes_on || result_.goes_back) return std::move(result_);
    if (asks_for_parameters(options_))
      take_parameters(options_, collect_parameters(executors), result_);
    for (int64_t rank = 0; options_.trace_steps > 0 && rank < set_.world(); ++rank) {
      result_.traces.push_back(trace_of(*executors[static_cast<size_t>(rank)], rank, options_));
    }
    if (options_.profile_steps > 0) add_profile(executors);
    return std::move(result_);
  }

 private:
  void add_profile(std::span<const Executor* const> executors) {
    const Cores cores = cores_of(options_, can_overlap(set_), 0, set_.world());
    const auto of = [&](int64_t rank) {
      return make_profile(*executors[static_cast<size_t>(rank)], rank, cores, options_);
    };
    Profile profile = of(0);
    for (int64_t rank = 1; rank < set_.world(); ++rank) profile.add(of(rank));
    result_.profile = print_profile(profile, set_, options_, result_.steps);
    result_.profile_note = busy_note(profile).value_or("");
  }
  void run_guarded(int64_t rank) {
    Status status = ok_status();
    try {
      status = run_one(rank);
    } catch (const std::exception& problem) {
      status = fail("rank {}: {}", rank, problem.what()).with_code(ExitCode::kStorage);
    }
    if (!status) end_with(rank, status.error());
    std::lock_guard lock(mutex_);
    ++ended_;
    changed_.notify_all();
  }

  // The first error is the job's; what others say after it follows from it.
  void end_with(int64_t rank, const Error& error) {
    {
      std::lock_guard lock(mutex_);
      if (!first_error_) {
        first_error_ = error;
        if (options_.on_error) options_.on_error(error);
        changed_.notify_all();
      }
    }
    world_->rank(rank).control().abort(error);
  }

  // Waits for all ranks; after an error a stuck rank is waited for no longer: nothing it has is
  // wanted any more.
  void wait_for_all(size_t threads) {
    std::unique_lock lock(mutex_);
    const auto all = [&] { return ended_ == threads; };
    changed_.wait(lock, [&] { return all() || first_error_; });
    const std::chrono::duration<double> grace(options_.grace_s);
    if (all() || changed_.wait_for(lock, grace, all)) return;
    Watchman::write_all("the job ends, and this rank does not come back");
    if (!options_.on_error) std::fputs(print_error(*first_error_).c_str(), stderr);
    std::fflush(stderr);
    _exit(static_cast<int>(first_error_->code));
  }

  Status run_one(int64_t rank) {
    Transport& transport = world_->rank(rank);
    Control& control = transport.control();
    PIPER_TRY(control.agree(
        {set_.manifest.set_id, rank, set_.world(), set_.directory, kernels_of(options_)}));
    size_t index = static_cast<size_t>(rank);
    const Cores cores = cores_of(options_, can_overlap(set_), rank, set_.world());
    PIPER_ASSIGN(
        const double peak,
        peak_of(options_, cores, set_.roles[static_cast<size_t>(set_.role_of_rank[index])]));
    PIPER_ASSIGN(backends_[index], backend_of(options_, cores));
    PIPER_ASSIGN(Fabric * fabric,
                 choose_fabric(set_, *backends_[index], transport, local_, fabrics_[index]));
    PIPER_ASSIGN(executors_[index], Executor::load(source_of(set_, rank, data_, options_, cores),
                                                   *backends_[index], control, *fabric));
    PIPER_ASSIGN(BetweenSteps between,
                 BetweenSteps::open(control, *executors_[index], set_.manifest, peak));
    PIPER_ASSIGN(auto replicas, open_replicas(options_, control, *executors_[index]));
    PIPER_ASSIGN(auto checkpoints, open_checkpoints(options_, set_, control, *executors_[index]));
    if (rank == 0) PIPER_TRY(open_comparison(cores, between.sums_otherwise()));
    if (rank == 0 && options_.on_loaded) options_.on_loaded();
    JobResult unused;
    RankRun run{*executors_[index],
                control,
                transport,
                *fabric,
                between,
                options_,
                set_.role_of_rank[index],
                data_ != nullptr ? data_->tokens_per_step() : executors_[index]->role().samples(),
                rank == 0 ? comparison_.get() : nullptr,
                false,
                replicas.get(),
                checkpoints.get(),
                rank == 0 ? result_ : unused};
    run.result.taken_bytes = between.taken_bytes();
    PIPER_TRY(run_rank(run));
    if (run.result.goes_on) PIPER_TRY(options_.on_end(*executors_[index], transport));
    if (rank == 0 && comparison_) comparison_->report(result_);
    return ok_status();
  }

  // All executors are loaded: BetweenSteps::open has seen everyone.
  Status open_comparison(const Cores& cores, bool sums_otherwise) {
    if (options_.verify.against == VerifyAgainst::kNone) return ok_status();
    PIPER_ASSIGN(comparison_,
                 Comparison::open(*reference_, reference_data_, options_, cores, sums_otherwise));
    for (size_t rank = 0; rank < executors_.size(); ++rank) {
      PIPER_TRY(comparison_->watch(static_cast<int64_t>(rank), *executors_[rank]));
    }
    return comparison_->check_complete();
  }

  const PlanSet& set_;
  const BatchSource* data_;
  const PlanSet* reference_;
  const BatchSource* reference_data_;
  const JobOptions& options_;
  std::unique_ptr<InprocWorld> world_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::atomic<Fabric*>> local_;
  std::vector<std::unique_ptr<Fabric>> fabrics_;
  std::vector<std::unique_ptr<Executor>> executors_;
  std::unique_ptr<Comparison> comparison_;
  JobResult result_;
  std::mutex mutex_;  // guards what follows until the threads have ended
  std::condition_variable changed_;
  size_t ended_ = 0;  // threads
  std::optional<Error> first_error_;
};

}  // namespace

Result<JobResult> run_job(const PlanSet& set, const BatchSource* data, const PlanSet* reference,
                          const BatchSource* reference_data, const JobOptions& options) {
  return Job(set, data, reference, reference_data, options).run();
}

namespace {

// Loads what the rank executes into `executor`, and runs it.
Result<JobResult> load_and_run(const PlanSet& set, const BatchSource* data,
                               const PlanSet* reference, const BatchSource* reference_data,
                               Transport& transport, const JobOptions& options, const Cores& cores,
                               Backend& backend, Fabric& fabric,
                               std::unique_ptr<Executor>& executor) {
  Control& control = transport.control();
  const auto role = static_cast<size_t>(set.role_of_rank[static_cast<size_t>(control.rank())]);
  PIPER_ASSIGN(const double peak, peak_of(options, cores, set.roles[role]));
  PIPER_ASSIGN(executor, Executor::load(source_of(set, control.rank(), data, options, cores),
                                        backend, control, fabric));
  PIPER_ASSIGN(BetweenSteps between, BetweenSteps::open(control, *executor, set.manifest, peak));
  PIPER_ASSIGN(auto replicas, open_replicas(options, control, *executor));
  PIPER_ASSIGN(auto checkpoints, open_checkpoints(options, set, control, *executor));
  // Every process runs the oracle for its own parameters: then nothing but the loss has to travel.
  std::unique_ptr<Comparison> comparison;
  if (options.verify.against != VerifyAgainst::kNone) {
    PIPER_ASSIGN(comparison, Comparison::open(*reference, reference_data, options, cores,
                                              between.sums_otherwise()));
    PIPER_TRY(comparison->watch(control.rank(), *executor));
  }
  if (options.on_loaded) options.on_loaded();
  JobResult result;
  RankRun run{*executor,
              control,
              transport,
              fabric,
              between,
              options,
              set.role_of_rank[static_cast<size_t>(control.rank())],
              data != nullptr ? data->tokens_per_step() : executor->role().samples(),
              comparison.get(),
              comparison != nullptr,
              replicas.get(),
              checkpoints.get(),
              result};
  result.taken_bytes = between.taken_bytes();
  PIPER_TRY(run_rank(run));
  if (result.goes_on || result.goes_back) return result;
  if (asks_for_parameters(options)) {
    const auto take = [&](std::span<const NamedTensor> all) {
      take_parameters(options, all, result);
    };
    PIPER_TRY(gather_parameters(*executor, control, end_timeout(options), take));
  }
  if (options.trace_steps > 0)
    result.traces.push_back(trace_of(*executor, control.rank(), options));
  if (options.profile_steps > 0) {
    Profile profile = make_profile(*executor, control.rank(), cores, options);
    control.set_timeout(end_timeout(options));
    PIPER_TRY(gather_profiles(control, profile));
    if (control.rank() == 0) {
      result.profile = print_profile(profile, set, options, result.steps);
      result.profile_note = busy_note(profile).value_or("");
    }
  }
  if (comparison) comparison->report(result);
  return result;
}

void tell_error(const JobOptions& options, Control& control, const Error& error) {
  if (options.on_error) options.on_error(error);
  control.abort(error);
}

}  // namespace

Result<JobResult> run_rank_here(const PlanSet& set, const BatchSource* data,
                                const PlanSet* reference, const BatchSource* reference_data,
                                Transport& transport, const JobOptions& options, Backend* device) {
  Control& control = transport.control();
  const Cores cores = cores_of_process(options, can_overlap(set), control.rank(), control.world());
  std::unique_ptr<Backend> backend;
  if (device == nullptr) {
    PIPER_ASSIGN(backend, backend_of(options, cores));
    device = backend.get();
  }
  std::unique_ptr<Fabric> own;
  PIPER_ASSIGN(Fabric * fabric, choose_fabric(set, *device, transport, {}, own));
  std::unique_ptr<Executor> executor;
  Result<JobResult> result = load_and_run(set, data, reference, reference_data, transport, options,
                                          cores, *device, *fabric, executor);
  if (result && result->goes_on)
    if (Status ended = options.on_end(*executor, transport); !ended) result = ended.error();
  // The others are told while the memory that messages go to is there: late ones may still come,
  // and an asynchronous fabric may wait at its end for what other ranks have queued. The user is
  // told before them, since their end may end this process, too.
  if (!result) tell_error(options, control, result.error());
  return result;
}

}  // namespace piper
