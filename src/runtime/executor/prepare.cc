// Loads plans and opens data, and checks the command line against them. Called by run_plans before
// a rank meets the others.
#include <algorithm>
#include <filesystem>
#include <iterator>

#include "averages.h"
#include "choose_plans.h"
#include "evaluation.h"
#include "job_log.h"
#include "loaded.h"
#include "nonfinite.h"
#include "outputs.h"
#include "piper/base/folders.h"
#include "piper/base/outputs.h"
#include "piper/devices/registry.h"
#include "piper/plan/worlds.h"
#include "run_folder.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

Error no_rendezvous(const Loaded& loaded) {
  return usage(fmt::format("the launcher says that this is rank {} of {}, but not where rank 0 "
                           "listens",
                           loaded.rank, loaded.world))
      .with_note("help: set MASTER_ADDR and MASTER_PORT, or give --rendezvous HOST:PORT");
}

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
  if (loaded.way == Way::kTcp && loaded.rendezvous.empty()) return no_rendezvous(loaded);
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

// Checks that the machine has the backend, and that it computes where results are read: one that
// only records leaves none.
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

Status load_rank_plan(const std::string& path, Loaded& loaded) {
  PIPER_ASSIGN(RankPlan plan, read_rank_plan(path));
  // Where all roles are at hand, the inputs of all are known, too: a source for another role's
  // input is no mistake.
  auto whole = read_plan_set(plan.set.directory);
  loaded.set = whole ? *std::move(whole) : std::move(plan.set);
  loaded.rank = plan.header.rank;
  return ok_status();
}

Status load_plans(const RunOptions& options, const std::optional<Launch>& launch, Loaded& loaded) {
  bool several = loaded.is_process();
  std::error_code ignored;
  if (fs::is_directory(options.plan, ignored)) {
    PIPER_ASSIGN(loaded.set, read_plan_set(options.plan));
    if (!options.rendezvous.empty() && !launch && loaded.set.world() > 1)
      return usage("--rendezvous does not say which rank this process is")
          .with_note("help: give one rankN.plan, or set RANK and WORLD_SIZE");
  } else {
    PIPER_TRY(load_rank_plan(options.plan, loaded));
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

Error plays_one_replica(const fs::path& directory, double instructions) {
  return usage(fmt::format("{} plays only the first replica, so the job cannot be compared with it",
                           directory.string()))
      .with_note(
          fmt::format("for all replicas it would have about {:.0f} instructions", instructions))
      .with_note("help: compile with 'piperc --oracles', or compare with '--verify-against uncut'");
}

Status load_reference(const RunOptions& options, Loaded& loaded) {
  if (options.job.verify.against == VerifyAgainst::kNone) return ok_status();
  bool single = options.job.verify.against == VerifyAgainst::kSingle;
  fs::path directory = fs::path(loaded.set.directory) / (single ? "single" : "uncut");
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored))
    return usage(fmt::format("{} does not exist: the plans were written without it",
                             directory.string()))
        .with_note("help: compile without --no-oracles");
  const auto& predicted = loaded.set.manifest.predictions;
  if (const auto all = predicted.find("single_instructions"); single && all != predicted.end())
    return plays_one_replica(directory, all->second);
  PIPER_ASSIGN(loaded.reference, read_plan_set(directory.string()));
  PIPER_TRY(load_params(*loaded.reference));
  PIPER_ASSIGN(loaded.reference_data, open_inputs(*loaded.reference, options.data));
  return ok_status();
}

// The most steps, counted from the last one, whose times are kept.
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
  if (options.evaluate_averages && !options.evaluate_only && count_averages(set) == 0)
    return usage(fmt::format("--eval-ema: the plans in {} keep no averages of parameters",
                             set.directory))
        .with_note("help: 'train: {ema: {decay: 0.999}}' in the strategy");
  if (options.evaluate_only) {
    if (options.evaluate_averages && options.start.how == StartOptions::How::kFresh)
      return usage("--eval-ema with --eval-only needs a checkpoint that holds averages")
          .with_note("help: --resume DIR, or --init DIR");
    job.steps = 0;
    job.checkpoint.reset();
    // What is read of a checkpoint is its parameters: nothing is trained, whatever the settings.
    if (options.start.how == StartOptions::How::kResume ||
        options.start.how == StartOptions::How::kResumeOrStart)
      options.start.how = StartOptions::How::kBranch;
    if (options.data.sources.empty()) {
      options.data.sources = sources_of_first_set(options, set);
      options.data.fills = counts_labels(set);
    }
    return ok_status();
  }
  if (!job.checkpoint) return ok_status();
  const int64_t every = job.checkpoint->every;
  if (job.evaluate_every == 0) job.evaluate_every = every;
  job.checkpoint->by_evaluation = true;
  if (job.checkpoint->keep.best > 0 && every == 0 && job.checkpoint->minutes > 0)
    return usage(
               "--keep best means the loss of evaluations, which checkpoints of --minutes do not "
               "have")
        .with_note("help: --every with a multiple of --eval-every");
  if (job.checkpoint->keep.best == 0 || every == 0 || every % job.evaluate_every == 0)
    return ok_status();
  return usage(fmt::format("--keep best means the loss of evaluations, which checkpoints each {} "
                           "steps do not have: they are each {} steps",
                           every, job.evaluate_every))
      .with_note("help: let --every be a multiple of --eval-every");
}

// Opens what the plans read, in their order.
Status open_sources(RunOptions& options, Loaded& loaded) {
  PIPER_TRY(open_evaluation(options, loaded.set, loaded.evaluation));
  PIPER_TRY(prepare_evaluation(options, loaded.set));
  PIPER_ASSIGN(loaded.data, open_inputs(loaded.set, options.data));
  return ok_status();
}

Status check_switch_step(const RunOptions& options, int64_t before_step) {
  const JobOptions& job = options.job;
  const RunOptions::Switch& next = options.switches[0];
  if (next.step < 1 || (next.step >= job.steps && !options.evaluate_only))
    return usage(
        fmt::format("--switch {}@{}: the step must be at least 1, and less than the {} of --steps",
                    next.plans, next.step, job.steps));
  if (next.step <= before_step)
    return usage(
        fmt::format("--switch {}@{}: the switch before it is after step {}, which is not "
                    "earlier",
                    next.plans, next.step, before_step));
  return ok_status();
}

// Checks one switch; `before_step` is the step of the switch before it, or 0.
Status check_switch(const RunOptions& options, int64_t before_step, const PlanSet& set,
                    const PlanSet& later) {
  const JobOptions& job = options.job;
  PIPER_TRY(check_switch_step(options, before_step));
  if (job.verify.against != VerifyAgainst::kNone)
    return usage(
               "--switch and --verify-against do not go together: what is compared with would "
               "have to switch, too")
        .with_note("help: end the job with a checkpoint, and compare what --resume goes on with");
  const std::string &before = set.roles[0].target, &now = later.roles[0].target;
  if (before == now) return ok_status();
  return usage(fmt::format("--switch: {} is for the target {}, and {} for {}", set.directory,
                           before, later.directory, now));
}

void begin_later(const RunOptions& options, const Loaded& loaded, Later& later) {
  later.options = options;
  later.options.plan = options.switches[0].plans;
  later.options.switches.erase(later.options.switches.begin());
  later.loaded.rank = loaded.rank;
  later.loaded.world = loaded.world;
  later.loaded.way = loaded.way;
}

// Loads the plans that the job switches to, one after the other, and what they read.
Status load_later(const RunOptions& options, Loaded& loaded, int64_t before_step = 0) {
  if (options.switches.empty()) return ok_status();
  const RunOptions::Switch next = options.switches[0];
  std::error_code ignored;
  if (!fs::is_directory(options.plan, ignored))
    return usage(
               fmt::format("--switch needs the plans of all ranks, but {} is the plan of one rank",
                           options.plan))
        .with_note("help: give the directory; the launcher says which rank this is");
  loaded.later = std::make_shared<Later>();
  Later& later = *loaded.later;
  begin_later(options, loaded, later);
  PIPER_ASSIGN(later.loaded.set, read_plan_set(next.plans));
  PIPER_TRY(check_switch(options, before_step, loaded.set, later.loaded.set));
  PIPER_TRY(load_params(later.loaded.set));
  PIPER_TRY(open_sources(later.options, later.loaded));
  return load_later(later.options, later.loaded, next.step);
}

}  // namespace

std::vector<JobPhase> phases_of(RunOptions& options, Loaded& loaded) {
  std::vector<JobPhase> all;
  int64_t first_step = 0;
  const auto add = [&](RunOptions& own, Loaded& plans) {
    all.push_back({&own, &plans, first_step});
    if (!own.switches.empty()) first_step = own.switches[0].step;
  };
  for (const auto& before : loaded.earlier) add(before->options, before->loaded);
  add(options, loaded);
  for (Later* later = loaded.later.get(); later != nullptr; later = later->loaded.later.get())
    add(later->options, later->loaded);
  return all;
}

size_t phase_after(std::span<const JobPhase> phases, int64_t steps) {
  size_t at = 0;
  while (at + 1 < phases.size() && phases[at + 1].first_step <= steps) ++at;
  return at;
}

namespace {

// Returns the plans under which the job ends.
const Loaded& last_of(const Loaded& loaded) {
  return loaded.later ? last_of(loaded.later->loaded) : loaded;
}

// Checks that the disk has room for what is trained, before it is. Roles that only other processes
// have read are not counted.
Status check_save(const std::string& path, const PlanSet& set) {
  if (path.empty()) return ok_status();
  int64_t bytes = 0;
  for (const CheckpointState& state : states_of(set))
    if (state.kind == StateKind::kParameter)
      bytes += state.type.bytes() * (1 + std::ssize(state.aliases));
  for (const NamedTensor& tensor : untouched_of(set)) bytes += tensor.type.bytes();
  return check_room(path, bytes, "--save: what is trained");
}

void add_contents(const BatchSource* data, std::vector<std::string>& files) {
  if (data == nullptr) return;
  for (const auto& [path, digest] : data->contents()) files.push_back(path);
}

// Returns the files that a run reads: its plans, its data and the checkpoints that it may begin
// with.
std::vector<std::string> files_read(const RunOptions& options, const Loaded& loaded) {
  std::vector<std::string> files = options.data.sources;  // a mixture among them
  for (const Loaded* one = &loaded; one != nullptr;
       one = one->later ? &one->later->loaded : nullptr) {
    std::ranges::move(files_of_plans(one->set.directory), std::back_inserter(files));
    add_contents(one->data.get(), files);
    for (const auto& set : one->evaluation) add_contents(set.get(), files);
  }
  if (options.start.from.empty()) return files;
  std::vector<std::string> folders{options.start.from};
  const std::string all = checkpoints_in(options.start.from);
  if (const auto steps = list_checkpoints(file_storage(), all))
    for (const int64_t step : *steps) folders.push_back(all + "/" + checkpoint_name(step));
  for (const std::string& folder : folders)
    if (std::error_code ignored; std::filesystem::exists(folder + "/checkpoint.json", ignored))
      for (const std::string& file : files_in(folder)) files.push_back(folder + "/" + file);
  return files;
}

// Checks that no output replaces what the run reads. --save alone may name the file of --init: it
// is written as a whole, after that has been read.
Status check_files(const RunOptions& options, const Loaded& loaded) {
  const std::vector<std::string> read = files_read(options, loaded);
  const OutputFile outputs[] = {{"--save", options.save},
                                {"--metrics", options.metrics},
                                {"--trace", options.trace},
                                {"--profile", options.profile}};
  PIPER_TRY(check_outputs(outputs, read));
  return check_not_read(std::span(outputs).subspan(1), std::span(&options.start.from, 1));
}

}  // namespace

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
  PIPER_TRY(load_later(options, loaded));
  for (const Loaded* one = &loaded; one != nullptr;
       one = one->later ? &one->later->loaded : nullptr)
    for (std::string& variable : begin_backend(options.job, one->set))
      if (!std::ranges::count(loaded.replaced, variable))
        loaded.replaced.push_back(std::move(variable));
  PIPER_TRY(open_sources(options, loaded));
  PIPER_TRY(load_reference(options, loaded));
  for (const Loaded* one = &loaded; one != nullptr;
       one = one->later ? &one->later->loaded : nullptr)
    PIPER_TRY(check_on_nan(options, one->set));
  PIPER_TRY(RunFolder::check(options, loaded.set));
  if (!options.out.empty()) {
    PIPER_TRY(make_folder(options.out));
    JobLog::open(options.out + "/log.txt");
  }
  PIPER_TRY(check_files(options, loaded));
  if (loaded.rank == 0 || !loaded.is_process())
    PIPER_TRY(check_save(options.save, last_of(loaded).set));
  if (!options.trace.empty() && options.job.trace_steps == 0) options.job.trace_steps = 1;
  return prepare_profile(options, loaded.set);
}

}  // namespace piper
