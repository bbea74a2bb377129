// piper-run after its flags: which ranks run here, over which transport, with which data; and what
// comes out.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "cores.h"
#include "evaluation.h"
#include "finish.h"
#include "nonfinite.h"
#include "nvtx.h"
#include "piper/base/process.h"
#include "piper/devices/registry.h"
#include "recorder.h"
#include "resume.h"
#include "watch.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

Error usage(std::string text) { return Error{ExitCode::kUsage, {}, std::move(text), {}}; }

enum class Way { kThreads, kMpi, kTcp };

// Holds the plans that run, and says where.
struct Loaded {
  PlanSet set;
  std::optional<PlanSet> reference;
  std::unique_ptr<BatchSource> data, reference_data;
  std::vector<std::unique_ptr<BatchSource>> evaluation;
  std::optional<Start> start;      // what the states begin with, if not with the plans' values
  std::optional<FolderLock> lock;  // of the folder of checkpoints, on rank 0
  int64_t rank = 0, world = 1;
  Way way = Way::kThreads;
  std::string rendezvous;  // of kTcp
  bool is_process() const { return way != Way::kThreads; }
};

Status check_launch(const Loaded& loaded, const std::string& plan,
                    const std::optional<Launch>& launch) {
  const int64_t world = loaded.world;
  const std::string advice =
      fmt::format("help: mpirun -n {} piper-run {}", world, loaded.set.directory);
  if (launch && launch->world != world && (loaded.is_process() || launch->world > 1)) {
    return usage(fmt::format("{} is for {} rank{}, but {} process{} started", plan, world,
                             world == 1 ? "" : "s", launch->world,
                             launch->world == 1 ? " was" : "es were"))
        .with_note(advice);
  }
  if (loaded.way == Way::kTcp && loaded.rendezvous.empty()) {
    return usage(fmt::format("the launcher says that this is rank {} of {}, but not where rank 0 "
                             "listens",
                             loaded.rank, world))
        .with_note("help: set MASTER_ADDR and MASTER_PORT, or give --rendezvous HOST:PORT");
  }
  if (loaded.is_process() && !launch && loaded.rendezvous.empty()) {
    return usage(fmt::format("{} is one of {} ranks, and no launcher started this process", plan,
                             world))
        .with_note("help: give the directory to run all ranks here, or start one process per rank:")
        .with_note(advice);
  }
  return ok_status();
}

// Returns how this rank meets the others: as its launcher has it, or where --rendezvous says.
Way way_of(const std::optional<Launch>& launch, const std::string& rendezvous) {
  return rendezvous.empty() && (!launch || launch->mpi) ? Way::kMpi : Way::kTcp;
}

// What a backend leaves that computes nothing says nothing, and one that this machine lacks leaves
// nothing.
Status check_backend(const RunOptions& options) {
  const bool reads = !options.save.empty() || options.job.target_loss || options.job.checkpoint ||
                     options.job.verify.against != VerifyAgainst::kNone;
  PIPER_ASSIGN(const BackendKind* kind, find_backend(options.job.backend));
  if (kind->available) PIPER_TRY(kind->available());
  if (kind->computes || !reads) return ok_status();
  return usage(fmt::format(
      "the {} backend computes nothing: there is nothing to save, to compare or to wait for",
      kind->name));
}

// Decides which process of a job this one is: the launcher says so, whatever the plan says.
void take_launch(const std::optional<Launch>& launch, const std::string& rendezvous,
                 Loaded& loaded) {
  loaded.rendezvous = !rendezvous.empty() ? rendezvous : launch ? launch->rendezvous : "";
  if (!launch || launch->world < 2) return;
  loaded.rank = launch->rank;
  loaded.world = launch->world;
  loaded.way = way_of(launch, rendezvous);
}

// Takes the plans that are for as many ranks as there are: a job that is started again on fewer
// hosts goes on with other plans.
Status choose_plans(RunOptions& options, const std::optional<Launch>& launch) {
  if (options.other_plans.empty()) return ok_status();
  std::vector<std::string> all{options.plan}, worlds;
  all.insert(all.end(), options.other_plans.begin(), options.other_plans.end());
  for (const std::string& directory : all) {
    PIPER_ASSIGN(const PlanOutline outline, read_plan_outline(directory));
    const int64_t world = std::ssize(outline.role_of_rank);
    worlds.push_back(fmt::format("{} ({})", world, directory));
    if (launch && launch->world > 1 && launch->world != world) continue;
    options.plan = directory;
    return ok_status();
  }
  return usage(fmt::format("{} processes were started, and the plans are for {} ranks",
                           launch->world, join(worlds, ", ")));
}

Status load_plans(const RunOptions& options, const std::optional<Launch>& launch, Loaded& loaded) {
  bool several = loaded.is_process();
  std::error_code ignored;
  if (fs::is_directory(options.plan, ignored)) {
    PIPER_ASSIGN(loaded.set, read_plan_set(options.plan));
    if (!options.rendezvous.empty() && !launch && loaded.set.world() > 1)
      return usage("--rendezvous wants to know which rank this is")
          .with_note("help: give one rankN.plan, or set RANK and WORLD_SIZE");
  } else {
    PIPER_ASSIGN(RankPlan plan, read_rank_plan(options.plan));
    // Where all roles are at hand, the inputs of all are known, too: a source for another role's
    // input is no mistake.
    auto whole = read_plan_set(plan.set.directory);
    loaded.set = whole ? *std::move(whole) : std::move(plan.set);
    loaded.rank = plan.header.rank;
    several = (launch && launch->mpi) || loaded.set.world() > 1;
  }
  loaded.world = loaded.set.world();
  if (several) loaded.way = way_of(launch, options.rendezvous);
  if (Status fits = check_launch(loaded, options.plan, launch); !fits) {
    loaded.way = Way::kThreads;  // there is no job of others to be told
    return fits;
  }
  return load_params(loaded.set);
}

// Returns the inputs that this process reads, from the given sources.
Result<std::unique_ptr<BatchSource>> open_inputs(const PlanSet& set, const DataOptions& options) {
  PIPER_ASSIGN(std::vector<InputNeed> needs, data_needs(set));
  if (needs.empty()) return std::unique_ptr<BatchSource>();
  if (options.sources.empty()) {
    std::vector<std::string> names;
    for (const InputNeed& need : needs)
      names.push_back(fmt::format("{} {}", need.name, to_string(need.type)));
    return usage(fmt::format("the plans read {}: say from where with --data", join(names, ", ")));
  }
  return open_data(options, needs, batch_of(set));
}

Status load_reference(const RunOptions& options, Loaded& loaded) {
  if (options.job.verify.against == VerifyAgainst::kNone) return ok_status();
  bool single = options.job.verify.against == VerifyAgainst::kSingle;
  fs::path directory = fs::path(loaded.set.directory) / (single ? "single" : "uncut");
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored))
    return usage(
        fmt::format("{} does not exist: the plans were written without it", directory.string()));
  const auto& predicted = loaded.set.manifest.predictions;
  if (const auto all = predicted.find("single_instructions"); single && all != predicted.end())
    return usage(
               fmt::format("{} plays only the first replica, which is no training to compare with",
                           directory.string()))
        .with_note(
            fmt::format("for all replicas it would have about {:.0f} instructions", all->second))
        .with_note(
            "help: compile with 'piperc --oracles', or compare with '--verify-against uncut'");
  PIPER_ASSIGN(loaded.reference, read_plan_set(directory.string()));
  PIPER_TRY(load_params(*loaded.reference));
  PIPER_ASSIGN(loaded.reference_data, open_inputs(*loaded.reference, options.data));
  return ok_status();
}

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

// What must be the same on all ranks, or they would not train one model or wait for each other.
std::vector<std::pair<std::string, std::string>> common_flags(const RunOptions& options,
                                                              const BatchSource* data) {
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
          {"--save", given(options.save)},
          {"--metrics", given(options.metrics)},
          {"--graphs", job.graphs ? "on" : "off"},
          {"--trace", given(options.trace)},
          {"--trace-steps", std::to_string(job.trace_steps)},
          {"--profile", given(options.profile)},
          {"--log-every", std::to_string(options.log_every)},
          {"--target-loss", job.target_loss ? fmt::format("{}", *job.target_loss) : "not given"},
          {"--on-nan", std::to_string(static_cast<int>(job.on_nan))},
          {"--replay", std::to_string(job.replay)},
          {"--check-replicas", std::to_string(job.check_replicas)},
          {"--checkpoint", given(job.checkpoint ? job.checkpoint->folder : "")},
          {"--every", std::to_string(job.checkpoint ? job.checkpoint->every : 0)},
          {"what it begins with", starts[static_cast<int>(options.start.how)]},
          {"--verify-against", against[static_cast<int>(job.verify.against)]},
          {"--loss-bound", fmt::format("{}", job.verify.loss_bound)},
          {"--param-bound", fmt::format("{}", job.verify.param_bound)}};
}

// Finds the checkpoint that the run begins with, and where in the data that is.
Status find_begin(RunOptions& options, Loaded& loaded, Control* control) {
  const bool speaks = control == nullptr || control->rank() == 0;
  if (speaks && options.job.checkpoint) {
    PIPER_ASSIGN(loaded.lock, FolderLock::take(options.job.checkpoint->folder));
  }
  PIPER_ASSIGN(loaded.start, find_start(options, control));
  if (loaded.start) {
    Start& start = *loaded.start;
    options.job.on_loaded = [&start] { start.reader.reset(); };  // its files may be removed
    PIPER_TRY(check_start(options, loaded.set, start, loaded.data.get(), speaks));
    options.job.first_step = start.step;
    options.job.states = start.states.get();
    if (options.evaluate_only) options.job.steps = start.step;
    if (speaks && start.step >= options.job.steps && !options.evaluate_only)
      std::fputs(fmt::format("{} steps are done: nothing is left of --steps {}\n", start.step,
                             options.job.steps)
                     .c_str(),
                 stderr);
    for (BatchSource* source : {loaded.data.get(), loaded.reference_data.get()})
      if (source != nullptr) PIPER_TRY(source->begin_at(start.step, start.samples));
  }
  return prepare_checkpoints(options, loaded.set, loaded.data.get(), loaded.start, speaks);
}

Result<JobResult> run_ranks(const RunOptions& options, const Loaded& loaded, Transport* transport) {
  const JobOptions& job = options.job;
  const PlanSet* reference = loaded.reference ? &*loaded.reference : nullptr;
  if (transport == nullptr)
    return run_job(loaded.set, loaded.data.get(), reference, loaded.reference_data.get(), job);
  return run_rank_here(loaded.set, loaded.data.get(), reference, loaded.reference_data.get(),
                       *transport, job);
}

// Returns what is said before the first step. (Whoever does not read it hinders nothing.)
std::string introduce(const RunOptions& options, const Loaded& loaded) {
  const PlanSet& set = loaded.set;
  std::string text = print_cores(options.job, set) + "\n";
  if (loaded.data) text += loaded.data->describe();
  if (options.job.helper == HelperThread::kOn && !can_overlap(set))
    text += "no helper has anything to do: all that communicates is on streams that compute\n";
  if (const int64_t host = most_on_host(set); host > 0)
    text += fmt::format("what is offloaded takes at most {} of the host's memory a rank\n",
                        human_bytes(host));
  if (const auto tool = Nvtx::tool(); !tool)
    text += fmt::format("no tool is told of ranges: {}\n", tool.error().message);
  const auto kind = find_backend(options.job.backend);
  if (asks_for_more(set) && kind && !(*kind)->ranks_streams)
    text += fmt::format(
        "the {} backend knows neither priorities nor SM limits of streams: they have no effect\n",
        options.job.backend);
  return text;
}

Result<RunOutcome> run_loaded(RunOptions& options, Loaded& loaded, Transport* transport,
                              Voice& voice) {
  const bool speaks = loaded.rank == 0 || !loaded.is_process();
  if (speaks && options.on_plans) PIPER_TRY(options.on_plans(loaded.set));
  if (transport != nullptr)
    PIPER_TRY(transport->control().agree({loaded.set.manifest.set_id, loaded.rank, loaded.world,
                                          loaded.set.directory, kernels_of(options.job),
                                          common_flags(options, loaded.data.get())}));
  if (speaks) std::fputs(introduce(options, loaded).c_str(), stderr);
  PIPER_TRY(find_begin(options, loaded, transport == nullptr ? nullptr : &transport->control()));
  std::optional<Watchman> watchman;
  if (!options.job.recording.empty()) watchman.emplace();
  Watch watch(options, loaded.set, loaded.data.get(), voice, speaks);
  PIPER_ASSIGN(const JobResult result, run_ranks(options, loaded, transport));
  watch.close();
  if (result.ended_by && speaks) voice.note(*result.ended_by);
  if (options.job.checkpoint && speaks && !result.ended_by) forget_starts(*options.job.checkpoint);
  const auto write = [&] {
    write_results(options, result, loaded.is_process() ? loaded.rank : -1, voice);
    if (loaded.data) voice.note(loaded.data->check());
  };
  if (transport == nullptr)
    write();
  else
    PIPER_TRY(finish_together(transport->control(), end_timeout(options.job), write));
  const ExitCode code = result.ended_by ? result.ended_by->code : ExitCode::kOk;
  return RunOutcome{result.interrupted, voice.code() != ExitCode::kOk ? voice.code() : code};
}

Result<std::unique_ptr<Transport>> open_transport(const RunOptions& options, const Loaded& loaded) {
  const TransportOptions limits{options.job.start_timeout_s, options.job.start_timeout_s};
  if (loaded.way == Way::kTcp)
    return make_tcp_transport(limits, loaded.rank, loaded.world, loaded.rendezvous);
  return make_mpi_transport(limits, loaded.rank);
}

// Returns one rank of several processes.
Result<RunOutcome> run_process(RunOptions& options, Loaded& loaded, Voice& voice) {
  PIPER_ASSIGN(const auto transport, open_transport(options, loaded));
  Result<RunOutcome> outcome = run_loaded(options, loaded, transport.get(), voice);
  if (!outcome) {
    voice.tell(outcome.error());  // the end of a broken transport may be the end of the process
    transport->control().abort(outcome.error());
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

// Of so many steps at most, the last ones, times are kept.
constexpr int64_t kMostProfiled = 100;

Status prepare_profile(RunOptions& options, const PlanSet& set) {
  if (options.profile.empty()) return ok_status();
  int64_t least = 1;  // a step that is a body
  for (const RoleProgram& role : set.roles) least = std::max<int64_t>(least, 1 + role.steps_ahead);
  if (options.job.steps < least)
    return usage(fmt::format("--profile has nothing to time in {} steps", options.job.steps))
        .with_note(fmt::format("help: --steps {} or more; the first three are not counted, if "
                               "there are others",
                               least));
  options.job.profile_steps = std::min(options.job.steps, kMostProfiled);
  return ok_status();
}

// Says when a job evaluates, and what checkpoints have of it.
Status prepare_evaluation(RunOptions& options, const PlanSet& set) {
  JobOptions& job = options.job;
  if (job.evaluation.empty()) return ok_status();
  const bool overlap = set.roles[0].steps_ahead > 0;
  if (overlap && job.backend == "cuda")
    return usage(
        fmt::format("the steps of {} overlap: evaluations of such plans are not supported "
                    "on a GPU",
                    set.directory));
  if (options.evaluate_only) {
    job.steps = 0;
    job.checkpoint.reset();
    // What is read of a checkpoint is its parameters: nothing is trained, whatever the settings.
    if (options.start.how == StartOptions::How::kResume)
      options.start.how = StartOptions::How::kBranch;
    if (options.data.sources.empty()) options.data.sources = sources_of_first_set(options, set);
    return ok_status();
  }
  if (!job.checkpoint) return ok_status();
  const int64_t every = job.checkpoint->every;
  if (job.evaluate_every == 0) job.evaluate_every = every;
  job.checkpoint->by_evaluation = true;
  if (job.checkpoint->keep.best == 0 || every == 0 || every % job.evaluate_every == 0)
    return ok_status();
  return usage(fmt::format("--keep best means the loss of evaluations, which checkpoints each {} "
                           "steps do not have: they are each {} steps",
                           every, job.evaluate_every))
      .with_note("help: let --every be a multiple of --eval-every");
}

// Checks all that a rank can find wrong without the others.
Status prepare(RunOptions& options, Loaded& loaded) {
  RunFolder::complete(options);
  PIPER_ASSIGN(const std::optional<Launch> launch, launched());
  take_launch(launch, options.rendezvous, loaded);
  PIPER_TRY(choose_plans(options, launch));
  const bool is_chosen = !options.job.backend.empty();
  if (is_chosen) PIPER_TRY(check_backend(options));
  PIPER_TRY(load_plans(options, launch, loaded));
  if (!is_chosen) options.job.backend = backend_for(loaded.set.roles[0].target);
  options.data.seed = options.seed.value_or(loaded.set.manifest.seed);
  PIPER_TRY(open_evaluation(options, loaded.set, loaded.evaluation));
  PIPER_TRY(prepare_evaluation(options, loaded.set));
  PIPER_ASSIGN(loaded.data, open_inputs(loaded.set, options.data));
  PIPER_TRY(load_reference(options, loaded));
  PIPER_TRY(check_on_nan(options, loaded.set));
  if (!options.out.empty()) {
    std::error_code problem;
    fs::create_directories(options.out, problem);
    if (problem)
      return fail("cannot create {}: {}", options.out, problem.message())
          .with_code(ExitCode::kStorage);
  }
  for (const std::string* path :
       {&options.save, &options.metrics, &options.trace, &options.profile}) {
    PIPER_TRY(check_target(*path));
  }
  if (!options.trace.empty() && options.job.trace_steps == 0) options.job.trace_steps = 1;
  return prepare_profile(options, loaded.set);
}

Result<RunOutcome> run_here(RunOptions& options, Voice& voice) {
  Loaded loaded;
  if (Status ready = prepare(options, loaded); !ready) {
    voice.tell(ready.error());
    if (loaded.is_process()) tell_others(options, loaded, ready.error());
    return std::move(ready).error();
  }
  options.job.parameters = !options.save.empty();
  options.job.mfu = true;
  options.job.on_error = [&](const Error& error) { voice.tell(error); };
  options.job.on_loss = [&](const Error& error) { voice.note(error); };
  return loaded.is_process() ? run_process(options, loaded, voice)
                             : run_loaded(options, loaded, nullptr, voice);
}

void print_to_stderr(const Error& error) {
  if (isatty(STDERR_FILENO) != 0) std::fputs("\r\x1b[K", stderr);  // where progress stands
  std::fputs(print_error(error).c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

Result<RunOutcome> run_plans(RunOptions options) {
  Voice voice(options.on_error ? options.on_error : print_to_stderr);
  Result<RunOutcome> outcome = run_here(options, voice);
  if (!outcome) voice.tell(outcome.error());
  return outcome;
}

}  // namespace piper
