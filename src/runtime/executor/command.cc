// piper-run after its flags: over which transport ranks run, from where on, and what comes out.
#include "averages.h"
#include "cores.h"
#include "data_watch.h"
#include "evaluation.h"
#include "faults.h"
#include "finish.h"
#include "loaded.h"
#include "nvtx.h"
#include "piper/base/process.h"
#include "piper/devices/registry.h"
#include "recorder.h"
#include "rollback.h"
#include "watch.h"

namespace piper {
namespace {

// Returns what a rank keeps on the host at most.
int64_t most_on_host(const PlanSet& set) {
  int64_t most = 0;
  for (const RoleProgram& role : set.roles) most = std::max(most, role.host_bytes);
  return most;
}
// Returns whether streams have properties that only some devices know.
bool asks_for_more(const PlanSet& set) {
  for (const RoleProgram& role : set.roles)
    for (const Stream& stream : role.streams)
      if (stream.priority != 0 || stream.sms != 0) return true;
  return false;
}

// "valid: 12 batches of digest …".
std::string print_sets(const JobOptions& job) {
  std::vector<std::string> sets;
  for (const EvaluationSet& set : job.evaluation)
    sets.push_back(
        fmt::format("{}: {} batches of digest {}", set.name, set.batches, set.data->digest()));
  return sets.empty() ? "not given" : join(sets, ", ");
}

// "to 4f2c… after step 10", by which all ranks switch to the same plans.
std::string print_switches(const RunOptions& options, const Loaded& loaded) {
  std::vector<std::string> switches;
  const Later* later = loaded.later.get();
  for (const RunOptions::Switch& one : options.switches) {
    switches.push_back(fmt::format("to {} after step {}",
                                   later == nullptr ? one.plans : later->loaded.set.manifest.set_id,
                                   one.step));
    if (later != nullptr) later = later->loaded.later.get();
  }
  return switches.empty() ? "not given" : join(switches, ", ");
}

// What must be the same on all ranks, or they would not train one model or wait for each other.
std::vector<std::pair<std::string, std::string>> common_flags(const RunOptions& options,
                                                              const Loaded& loaded) {
  const BatchSource* const data = loaded.data.get();
  const auto given = [](const std::string& path) { return path.empty() ? "not given" : "given"; };
  const JobOptions& job = options.job;
  const char* against[] = {"not given", "single", "uncut"};
  const char* starts[] = {"initial values", "--resume", "--resume-or-start", "--branch", "--init"};
  return {{"--steps", std::to_string(job.steps)},
          {"--seed", std::to_string(options.data.seed)},
          {"--no-shuffle", options.data.shuffle ? "not given" : "given"},
          {"--no-fuse", job.fuse ? "not given" : "given"},
          {"--backend", job.backend},
          {"--timeout", job.timeout_s ? fmt::format("{}", *job.timeout_s) : "not given"},
          {"--start-timeout", fmt::format("{}", job.start_timeout_s)},
          {"--data", data == nullptr ? "not read" : "of digest " + data->digest()},
          {"--eval-data", print_sets(job)},
          {"--eval-every", std::to_string(job.evaluate_every)},
          {"--eval-only", options.evaluate_only ? "given" : "not given"},
          {"--eval-ema", options.evaluate_averages ? "given" : "not given"},
          {"--save", given(options.save)},
          {"--metrics", given(options.metrics)},
          {"--graphs", job.graphs ? "on" : "off"},
          {"--trace", given(options.trace)},
          {"--trace-steps", std::to_string(job.trace_steps)},
          {"--profile", given(options.profile)},
          {"--log-every", std::to_string(options.log_every)},
          {"--target-loss", job.target_loss ? fmt::format("{}", *job.target_loss) : "not given"},
          {"--on-nan", std::to_string(static_cast<int>(job.on_nan))},
          {"--most-rollbacks", std::to_string(job.most_rollbacks)},
          {"--replay", std::to_string(job.replay)},
          {"--check-replicas", std::to_string(job.check_replicas)},
          {"--switch", print_switches(options, loaded)},
          {"--checkpoint", given(job.checkpoint ? job.checkpoint->folder : "")},
          {"--every", std::to_string(job.checkpoint ? job.checkpoint->every : 0)},
          {"a start from", starts[static_cast<int>(options.start.how)]},
          {"--verify-against", against[static_cast<int>(job.verify.against)]},
          {"--loss-bound", fmt::format("{}", job.verify.loss_bound)},
          {"--param-bound", fmt::format("{}", job.verify.param_bound)}};
}

// The checkpoint is of the time after the switch: the job goes on under the later plans. Those
// before them are kept where it may go back.
void switch_at_once(RunOptions& options, Loaded& loaded) {
  const std::shared_ptr<Later> later = std::move(loaded.later);
  if (options.job.on_nan == OnNan::kRollBack) {
    const auto before = std::make_shared<Later>();
    before->options = options;
    before->loaded.set = std::move(loaded.set);
    before->loaded.data = std::move(loaded.data);
    before->loaded.evaluation = std::move(loaded.evaluation);
    before->loaded.rank = loaded.rank;
    before->loaded.world = loaded.world;
    before->loaded.way = loaded.way;
    loaded.earlier.push_back(before);
  }
  loaded.set = std::move(later->loaded.set);
  loaded.data = std::move(later->loaded.data);
  loaded.evaluation = std::move(later->loaded.evaluation);
  loaded.later = std::move(later->loaded.later);
  options.job.evaluation = std::move(later->options.job.evaluation);
  options.switches.erase(options.switches.begin());
}

// Plans the switches, and checks that each goes on with the same training. `begins`: the phase
// that the job begins with.
Status prepare_switches(std::span<const JobPhase> phases, size_t begins, bool speaks) {
  for (size_t k = 1; k < phases.size(); ++k) {
    const auto& [options, before, unused] = phases[k - 1];
    Loaded& after = *phases[k].loaded;
    PIPER_ASSIGN(after.switching,
                 Switching::plan(before->set, after.set, end_timeout(options->job)));
    Start running;
    running.is_running = true;
    running.step = phases[k].first_step;
    Checkpoint about;
    describe_job(*options, before->set, before->data.get(), about);
    running.reader = std::make_unique<const CheckpointReader>(CheckpointReader::of_memory(
        before->set.directory, std::move(about), held_states(before->set), {}));
    RunOptions asked = *phases[k].options;
    asked.start.how = StartOptions::How::kResume;
    PIPER_TRY(check_start(asked, after.set, running, after.data.get(), speaks && k > begins));
  }
  return ok_status();
}

// Finds the checkpoint that the run begins with, and where in the data that is.
Status find_begin(RunOptions& options, Loaded& loaded, Control* control) {
  const bool speaks = control == nullptr || control->rank() == 0;
  if (speaks && options.job.checkpoint) {
    PIPER_ASSIGN(loaded.lock, FolderLock::take(options.job.checkpoint->folder));
  }
  PIPER_ASSIGN(loaded.start, find_start(options, control));
  while (loaded.later && loaded.start && loaded.start->step >= options.switches[0].step)
    switch_at_once(options, loaded);
  if (options.evaluate_only) {  // of what was trained so far
    loaded.later.reset();
    loaded.earlier.clear();
    options.switches.clear();
  }
  if (loaded.start) {
    Start& start = *loaded.start;
    options.job.on_loaded = [&start] { start.reader.reset(); };  // its files may be removed
    PIPER_TRY(check_start(options, loaded.set, start, loaded.data.get(), speaks));
    if (speaks) PIPER_TRY(set_newer_aside(options, start));
    options.job.first_step = start.step;
    options.job.skipped = start.skipped;
    options.job.states = start.states.get();
    if (options.evaluate_only) options.job.steps = start.step;
    if (speaks && start.step >= options.job.steps && !options.evaluate_only)
      tell_user(fmt::format("{} done: nothing is left of --steps {}",
                            start.step == 1 ? "1 step is" : fmt::format("{} steps are", start.step),
                            options.job.steps));
    if (!options.profile.empty() && start.step >= options.job.steps)
      return usage("--profile has nothing to time");
    for (BatchSource* source : {loaded.data.get(), loaded.reference_data.get()})
      if (source != nullptr) PIPER_TRY(source->begin_at(start.step, start.samples));
    if (speaks && loaded.data && !options.evaluate_only && start.samples > 0)
      tell_moved_sources(start.reader->about(), *loaded.data);
  }
  PIPER_TRY(prepare_switches(phases_of(options, loaded), loaded.earlier.size(), speaks));
  return prepare_checkpoints(options, loaded.set, loaded.data.get(), loaded.start, speaks);
}

// Returns what the job does, with the averages that it evaluates by, if it does so.
Result<JobOptions> with_averages(const RunOptions& options, const Loaded& loaded) {
  JobOptions job = options.job;
  job.around_evaluation = nullptr;  // of the plans that these follow
  if (!options.evaluate_averages || options.evaluate_only) return job;
  PIPER_ASSIGN(std::shared_ptr<Averages> averages,
               Averages::plan(loaded.set, end_timeout(options.job)));
  job.around_evaluation = [averages](Executor& executor, Transport& over, bool begins) {
    return begins ? averages->begin(executor, over)
                  : averages->end(executor, over.control().rank());
  };
  return job;
}

Result<JobResult> run_ranks(const RunOptions& options, const Loaded& loaded, Transport* transport) {
  PIPER_ASSIGN(const JobOptions job, with_averages(options, loaded));
  const PlanSet* reference = loaded.reference ? &*loaded.reference : nullptr;
  if (transport == nullptr)
    return run_job(loaded.set, loaded.data.get(), reference, loaded.reference_data.get(), job);
  return run_rank_here(loaded.set, loaded.data.get(), reference, loaded.reference_data.get(),
                       *transport, job);
}

// Has a phase go on with the options of the one before it, but for what it evaluates.
void go_on_with(JobOptions& job, const JobOptions& last, const JobResult& before, int64_t step) {
  std::vector<EvaluationSet> evaluation = std::move(job.evaluation);
  job = last;  // with those who are told of steps
  job.evaluation = std::move(evaluation);
  job.first_step = step;
  job.skipped = before.skipped;
  job.rollbacks = before.rollbacks;
  job.pace = before.pace;  // a larger batch takes as much longer
}

// Lets a phase begin where the one before it has ended, or where the job has gone back to.
// `before`: what it has done so far, of which `last` is the phase that has just run.
Status begin_phase(const JobPhase& phase, const JobPhase& last, const JobResult& before,
                   int64_t step) {
  RunOptions& options = *phase.options;
  Loaded& loaded = *phase.loaded;
  Start start;
  start.step = step;
  const std::optional<Start>& began = last.loaded->start;
  start.samples = (began ? began->samples : 0) +
                  (before.taken - (began ? began->step : 0)) * batch_of(last.loaded->set);
  if (loaded.data) PIPER_TRY(loaded.data->begin_at(start.step, start.samples));
  JobOptions& job = options.job;
  go_on_with(job, last.options->job, before, step);
  job.pace.step_s *= static_cast<double>(batch_of(loaded.set)) /
                     static_cast<double>(std::max<int64_t>(batch_of(last.loaded->set), 1));
  loaded.start = std::move(start);
  return prepare_checkpoints(options, loaded.set, loaded.data.get(), loaded.start,
                             /*speaks=*/false);
}

// Puts what a phase has done behind what those before it have.
JobResult add_result(JobResult all, JobResult next) {
  std::erase_if(all.steps, [&](const StepMetrics& one) { return one.step >= next.totals.begun; });
  next.steps.insert(next.steps.begin(), all.steps.begin(), all.steps.end());
  JobTotals& totals = next.totals;
  if (all.totals.begun < totals.begun) {
    totals.begun = all.totals.begun;
    totals.first_loss = all.totals.first_loss;
  }
  totals.ended += all.totals.ended;
  totals.ms += all.totals.ms;
  next.evaluations.insert(next.evaluations.begin(), all.evaluations.begin(), all.evaluations.end());
  return next;
}

// Runs all steps, under one set of plans after the other. A job that goes back may go on under
// plans from before a switch: then it switches again.
Result<JobResult> run_steps(RunOptions& options, Loaded& loaded, Transport* transport,
                            bool speaks) {
  const std::vector<JobPhase> phases = phases_of(options, loaded);
  size_t at = loaded.earlier.size();
  const WaysBack ways(phases, at);
  std::shared_ptr<const StateSource> went_back_to;
  for (std::optional<JobResult> all;;) {
    const JobPhase& own = phases[at];
    RunOptions now = *own.options;
    if (now.job.on_nan == OnNan::kRollBack)
      now.job.find_back = [&ways, at](Control& control, int64_t tried) {
        return ways.find(control, at, tried);
      };
    Switching* const next =
        at + 1 < phases.size() ? phases[at + 1].loaded->switching.get() : nullptr;
    if (next != nullptr) {
      now.job.steps = phases[at + 1].first_step;
      now.job.on_end = [next](Executor& executor, Transport& over) {
        return next->move(executor, over);
      };
    }
    PIPER_ASSIGN(JobResult result, run_ranks(now, *own.loaded, transport));
    all = all ? add_result(*std::move(all), std::move(result)) : std::move(result);
    if (!all->goes_on && !all->goes_back) return *std::move(all);
    const int64_t step = all->goes_back ? all->goes_back->step : now.job.steps;
    at = all->goes_back ? phase_after(phases, step) : at + 1;
    const JobPhase& later = phases[at];
    PIPER_TRY(begin_phase(later, own, *all, step));
    JobOptions& job = later.options->job;
    if (all->goes_back) {
      went_back_to = std::move(all->goes_back->states);
      job.states = went_back_to.get();
      job.on_loaded = [&went_back_to] { went_back_to.reset(); };  // its files may be removed
    } else {
      if (speaks) tell_user(next->print(step));
      job.states = next;
      job.on_loaded = [next] { next->forget(); };
    }
    all->goes_back.reset();
  }
}

// Says that the backend takes no heed of what streams ask for, if it does not.
std::string describe_streams(const std::string& backend, const PlanSet& set) {
  const auto kind = find_backend(backend);
  if (!asks_for_more(set) || !kind || (*kind)->ranks_streams) return "";
  return fmt::format(
      "the {} backend knows neither priorities nor SM limits of streams: they have no effect\n",
      backend);
}

// Returns what is said before the first step. (Whoever does not read it hinders nothing.)
std::string introduce(const RunOptions& options, const Loaded& loaded, bool is_process) {
  const PlanSet& set = loaded.set;
  std::string text = print_cores(options.job, set, is_process) + "\n";
  if (loaded.data) text += loaded.data->describe();
  text += describe_evaluation(options.job, set);
  if (options.evaluate_averages && !options.evaluate_only)
    text += fmt::format("evaluations are of the averages of {} parameters\n", count_averages(set));
  if (options.job.helper == HelperThread::kOn && !can_overlap(set))
    text += "no helper has anything to do: all that communicates is on streams that compute\n";
  if (const int64_t host = most_on_host(set); host > 0)
    text += fmt::format("what is offloaded takes at most {} of the host's memory a rank\n",
                        human_bytes(host));
  if (!loaded.replaced.empty())
    text += fmt::format("of the environment, {} {} replaced by what plans need\n",
                        list_with_and(loaded.replaced), loaded.replaced.size() == 1 ? "is" : "are");
  if (const auto tool = Nvtx::tool(); !tool)
    text += fmt::format("no tool is told of ranges: {}\n", tool.error().message);
  return text + describe_streams(options.job.backend, set);
}

// Looks from now on at all data that the job reads, under all of its plans. `lost`: set
// when they have changed.
std::unique_ptr<DataWatch> watch_data(const Loaded& loaded, Voice& voice, std::atomic<bool>& lost) {
  std::vector<const BatchSource*> sources;
  const auto add = [&](const Loaded& one) {
    sources.push_back(one.data.get());
    for (const auto& set : one.evaluation) sources.push_back(set.get());
  };
  for (const auto& one : loaded.earlier) add(one->loaded);
  for (const Loaded* one = &loaded; one != nullptr;
       one = one->later ? &one->later->loaded : nullptr)
    add(*one);
  return std::make_unique<DataWatch>(std::move(sources), loaded.rank, [&](const Error& error) {
    voice.note(error);
    lost.store(true);
  });
}

// Makes lost data a failure of this rank where steps overlap: between two steps others hear only
// rank 0.
void fail_where_not_heard(const Loaded& loaded, const std::atomic<bool>& lost, JobOptions& job) {
  if (!loaded.is_process() || loaded.rank == 0) return;
  job.before_step = [&lost, before = job.before_step](int64_t rank, int64_t step,
                                                      const Executor& executor) -> Status {
    if (before) PIPER_TRY(before(rank, step, executor));
    if (executor.role().steps_ahead == 0 || !lost.load()) return ok_status();
    return fail("rank {}: step {} does not begin: what it reads has changed", rank, step + 1)
        .with_code(ExitCode::kStorage);
  };
}

Result<RunOutcome> run_loaded(RunOptions& options, Loaded& loaded, Transport* transport,
                              Voice& voice) {
  const bool speaks = loaded.rank == 0 || !loaded.is_process();
  if (speaks && options.on_plans) PIPER_TRY(options.on_plans(loaded.set));
  if (transport != nullptr)
    PIPER_TRY(transport->control().agree({loaded.set.manifest.set_id, loaded.rank, loaded.world,
                                          loaded.set.directory, kernels_of(options.job),
                                          common_flags(options, loaded)}));
  if (speaks) say(introduce(options, loaded, transport != nullptr));
  PIPER_TRY(find_begin(options, loaded, transport == nullptr ? nullptr : &transport->control()));
  std::optional<Watchman> watchman;
  if (!options.job.recording.empty()) watchman.emplace();
  Watch watch(options, loaded.set, voice, speaks);
  std::atomic<bool> lost{false};
  options.job.lost = &lost;
  fail_where_not_heard(loaded, lost, options.job);
  SavedParameters saved(options.save, loaded.set);
  if (!options.save.empty())
    options.job.on_parameters = [&](std::span<const NamedTensor> all) { saved.take(all); };
  std::unique_ptr<DataWatch> data_watch = watch_data(loaded, voice, lost);
  PIPER_ASSIGN(const JobResult result, run_steps(options, loaded, transport, speaks));
  data_watch.reset();
  watch.close();
  if (result.ended_by && speaks) voice.note(*result.ended_by);
  if (result.lost && speaks && voice.code() == ExitCode::kOk)
    voice.note(fail("the job ends after step {}: another process has lost what it reads, and says "
                    "what",
                    result.totals.done)
                   .with_code(ExitCode::kStorage));
  if (options.job.checkpoint && speaks && !result.ended_by && !result.lost)
    forget_starts(*options.job.checkpoint);
  const auto own_rank = loaded.is_process() ? std::optional(loaded.rank) : std::nullopt;
  for (const std::string& fault : faults_left(own_rank))
    tell_user(fmt::format("warning: PIPER_FAULT: '{}' did not happen", fault));
  const auto write = [&] {
    write_results(options, result, saved, loaded.is_process() ? loaded.rank : -1, voice);
    if (loaded.data) voice.note(loaded.data->check());
  };
  if (transport == nullptr)
    write();
  else
    PIPER_TRY(finish_together(transport->control(), end_timeout(options.job), write));
  const ExitCode code = result.ended_by ? result.ended_by->code
                        : result.lost   ? ExitCode::kStorage
                                        : ExitCode::kOk;
  return RunOutcome{result.interrupted, voice.code() != ExitCode::kOk ? voice.code() : code};
}

Result<std::unique_ptr<Transport>> open_transport(const RunOptions& options, const Loaded& loaded) {
  TransportOptions limits{options.job.start_timeout_s, options.job.start_timeout_s};
  limits.stop = options.job.stop;
  if (loaded.way == Way::kTcp)
    return make_tcp_transport(limits, loaded.rank, loaded.world, loaded.rendezvous);
  return make_mpi_transport(limits, loaded.rank);
}

// Returns one rank of several processes.
Result<RunOutcome> run_process(RunOptions& options, Loaded& loaded, Voice& voice) {
  const auto transport = open_transport(options, loaded);
  if (!transport && options.job.stop != nullptr && options.job.stop->load()) {
    voice.tell(transport.error());
    return RunOutcome{.interrupted = true};
  }
  if (!transport) return transport.error();
  Result<RunOutcome> outcome = run_loaded(options, loaded, transport->get(), voice);
  if (!outcome) {
    voice.tell(outcome.error());  // the end of a broken transport may be the end of the process
    (*transport)->control().abort(outcome.error());
  }
  return outcome;
}

// The others learn at the meeting why this rank is not to train with them: they would wait for it.
void tell_others(const RunOptions& options, const Loaded& loaded, const Error& why) {
  const auto transport = open_transport(options, loaded);
  if (!transport) return;
  static_cast<void>((*transport)
                        ->control()
                        .agree({.rank = loaded.rank,
                                .world = loaded.world,
                                .source = options.plan,
                                .failure = why}));
  (*transport)->control().abort(why);
}

Result<RunOutcome> run_here(RunOptions& options, Voice& voice) {
  Loaded loaded;
  if (Status ready = prepare(options, loaded); !ready) {
    voice.tell(ready.error());
    if (loaded.is_process()) tell_others(options, loaded, ready.error());
    return std::move(ready).error();
  }
  options.job.parameters = false;
  options.job.mfu = true;
  options.job.on_error = [&](const Error& error) { voice.tell(error); };
  options.job.on_loss = [&](const Error& error) { voice.note(error); };
  return loaded.is_process() ? run_process(options, loaded, voice)
                             : run_loaded(options, loaded, nullptr, voice);
}

void say_error(const Error& error) { say(print_error(error)); }

}  // namespace

Result<RunOutcome> run_plans(RunOptions options) {
  const JobLog log;
  Voice voice(options.on_error ? options.on_error : say_error);
  Result<RunOutcome> outcome = run_here(options, voice);
  if (!outcome) voice.tell(outcome.error());
  return outcome;
}

}  // namespace piper
