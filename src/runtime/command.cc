// piper-run behind its flags: which ranks run here, over which transport, with which data; and what
// comes out.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cores.h"
#include "progress.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

Error usage(std::string text) { return Error{ExitCode::kUsage, {}, std::move(text), {}}; }

// What runs, and where.
struct Loaded {
  PlanSet set;
  std::optional<PlanSet> reference;
  std::unique_ptr<BatchSource> data, reference_data;
  int64_t rank = 0;
  bool mpi = false;
};

Status check_launch(const Loaded& loaded, const std::string& plan,
                    const std::optional<Launch>& launch) {
  const int64_t world = loaded.set.world();
  const std::string advice =
      fmt::format("help: mpirun -n {} piper-run {}", world, loaded.set.directory);
  if (launch && launch->world != world && (loaded.mpi || launch->world > 1)) {
    return usage(fmt::format("{} is for {} rank{}, but {} process{} started", plan, world,
                             world == 1 ? "" : "s", launch->world,
                             launch->world == 1 ? " was" : "es were"))
        .with_note(advice);
  }
  if (const auto other = launched_without_mpi(); other && other->world > 1) {
    return usage(fmt::format("{} processes were started by a launcher without MPI (torchrun, srun "
                             "without --mpi=pmix): each would run the whole job",
                             other->world))
        .with_note(advice);
  }
  if (loaded.mpi && !launch) {
    return usage(fmt::format("{} is one of {} ranks, and no launcher started this process", plan,
                             world))
        .with_note("help: give the directory to run all ranks here, or start one process per rank:")
        .with_note(advice);
  }
  return ok_status();
}

// Nothing is computed by the null backend: what it leaves says nothing.
Status check_backend(const RunOptions& options) {
  const bool reads = !options.save.empty() || options.job.target_loss ||
                     options.job.verify.against != VerifyAgainst::kNone;
  if (options.job.backend != "null" || !reads) return ok_status();
  return usage(
      "the null backend computes nothing: there is nothing to save, to compare or to wait for");
}

Result<Loaded> load_plans(const RunOptions& options) {
  Loaded loaded;
  std::optional<Launch> launch = launched();
  std::error_code ignored;
  if (fs::is_directory(options.plan, ignored)) {
    PIPER_ASSIGN(loaded.set, read_plan_set(options.plan));
    loaded.mpi = launch && launch->world > 1;
    loaded.rank = launch ? launch->rank : 0;
  } else {
    PIPER_ASSIGN(RankPlan plan, read_rank_plan(options.plan));
    // Where all roles are at hand, the inputs of all are known, too: a source for another role's
    // input is no mistake.
    auto whole = read_plan_set(plan.set.directory);
    loaded.set = whole ? *std::move(whole) : std::move(plan.set);
    loaded.rank = plan.header.rank;
    loaded.mpi = launch || loaded.set.world() > 1;
  }
  PIPER_TRY(check_launch(loaded, options.plan, launch));
  PIPER_TRY(load_params(loaded.set));
  return loaded;
}

// The inputs that this process reads, from the given sources.
Result<std::unique_ptr<BatchSource>> open_inputs(const PlanSet& set, const DataOptions& options) {
  PIPER_ASSIGN(std::vector<InputNeed> needs, data_needs(set));
  if (needs.empty()) return std::unique_ptr<BatchSource>();
  if (options.sources.empty()) {
    std::vector<std::string> names;
    for (const InputNeed& need : needs)
      names.push_back(fmt::format("{} {}", need.name, to_string(need.type)));
    return usage(fmt::format("the plans read {}: say from where with --data", join(names, ", ")));
  }
  int64_t batch = 0;
  for (const RoleProgram& role : set.roles) batch = std::max(batch, role.batch);
  return open_data(options, needs, batch);
}

Status load_reference(const RunOptions& options, Loaded& loaded) {
  if (options.job.verify.against == VerifyAgainst::kNone) return ok_status();
  bool single = options.job.verify.against == VerifyAgainst::kSingle;
  fs::path directory = fs::path(loaded.set.directory) / (single ? "single" : "uncut");
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) {
    const auto& predicted = loaded.set.manifest.predictions;
    const auto left_out = predicted.find("single_instructions");
    Error error = usage(
        fmt::format("{} does not exist: the plans were written without it", directory.string()));
    if (!single || left_out == predicted.end()) return error;
    return std::move(error)
        .with_note(fmt::format("piperc leaves out a single-device plan of {:.0f} instructions",
                               left_out->second))
        .with_note(
            "help: compile with 'piperc --oracles', or compare with '--verify-against uncut'");
  }
  PIPER_ASSIGN(loaded.reference, read_plan_set(directory.string()));
  PIPER_TRY(load_params(*loaded.reference));
  PIPER_ASSIGN(loaded.reference_data, open_inputs(*loaded.reference, options.data));
  return ok_status();
}

// Finds out before hours of training, not after.
Status check_target(const std::string& path) {
  if (path.empty()) return ok_status();
  fs::path folder = fs::path(path).parent_path();
  if (folder.empty()) folder = ".";
  std::error_code ignored;
  const fs::file_status about = fs::status(path, ignored);
  if (fs::is_directory(about)) {
    return fail("{} is a directory", path).with_code(ExitCode::kStorage);
  }
  if (fs::exists(about) && !fs::is_regular_file(about)) {  // a device: it stays where it is
    if (access(path.c_str(), W_OK) == 0) return ok_status();
    return fail("cannot write {}: {}", path, std::strerror(errno)).with_code(ExitCode::kStorage);
  }
  if (fs::is_directory(folder, ignored) && access(folder.c_str(), W_OK) == 0) return ok_status();
  return fail("cannot write {}: {} is not a directory one can write to", path, folder.string())
      .with_code(ExitCode::kStorage);
}

// A line per step, there as soon as the step is done.
class MetricsFile {
 public:
  ~MetricsFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Status open(const std::string& path) {
    path_ = path;
    file_ = std::fopen(path.c_str(), "w");
    return file_ != nullptr ? ok_status() : broken();
  }
  Status write(const StepMetrics& metrics) {
    if (file_ == nullptr) return ok_status();
    std::string line = print_metrics(metrics);
    bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size();
    return written && std::fflush(file_) == 0 ? ok_status() : broken();
  }

 private:
  Status broken() const {
    return fail("cannot write {}: {}", path_, std::strerror(errno)).with_code(ExitCode::kStorage);
  }
  std::string path_;
  FILE* file_ = nullptr;
};

bool wants_colour(FILE* file) {
  return isatty(fileno(file)) != 0 && std::getenv("NO_COLOR") == nullptr;
}

// What a rank keeps on the host at most.
int64_t most_on_host(const PlanSet& set) {
  int64_t most = 0;
  for (const RoleProgram& role : set.roles) most = std::max(most, role.host_bytes);
  return most;
}
// Whether streams have properties that only some devices know.
bool asks_for_more(const PlanSet& set) {
  for (const RoleProgram& role : set.roles)
    for (const Stream& stream : role.streams)
      if (stream.priority != 0 || stream.sms != 0) return true;
  return false;
}

std::string summary(const RunOptions& options, const JobResult& result) {
  std::string text;
  if (result.interrupted) text += fmt::format("interrupted after step {}\n", result.steps.size());
  if (result.steps.empty()) return text;
  const StepMetrics& first = result.steps.front();
  const StepMetrics& last = result.steps.back();
  double ms = 0;
  for (const StepMetrics& one : result.steps) ms += one.step_ms;
  ms /= static_cast<double>(result.steps.size());
  text += fmt::format("{} steps", result.steps.size());
  if (first.loss && last.loss)
    text += fmt::format(", loss {:.4f} -> {:.4f}", *first.loss, *last.loss);
  text += fmt::format(", {:.1f} ms a step, at most {} a rank\n", ms, human_bytes(last.peak_bytes));
  if (result.reached_target)
    text += fmt::format("the target loss {} is reached\n", *options.job.target_loss);
  if (options.job.verify.against == VerifyAgainst::kSingle) {
    text += fmt::format(
        "equal to the single-device plan bit for bit: loss and {} parameters after each of {} "
        "steps\n",
        result.compared_parameters, result.steps.size());
  } else if (options.job.verify.against == VerifyAgainst::kUncut) {
    text += fmt::format(
        "within bounds of the uncut plan after each of {} steps: loss within {:.2g} (bound "
        "{:.2g}), {} parameters within "
        "{:.2g} (bound {:.2g})\n",
        result.steps.size(), result.worst_loss_error, options.job.verify.loss_bound,
        result.compared_parameters, result.worst_param_error, options.job.verify.param_bound);
  }
  return text;
}

// "run.json" becomes "run.rank3.json": processes write side by side.
std::string with_rank(const std::string& path, int64_t rank) {
  fs::path file(path);
  std::string extension = file.extension().string();
  return file.replace_extension(fmt::format(".rank{}{}", rank, extension)).string();
}

Status write_results(const RunOptions& options, const Loaded& loaded, const JobResult& result) {
  if (!options.trace.empty()) {
    std::string path = loaded.mpi ? with_rank(options.trace, loaded.rank) : options.trace;
    PIPER_TRY(write_file(path, print_trace(result.traces)));
  }
  if (loaded.mpi && loaded.rank != 0) return ok_status();
  if (!options.save.empty()) {
    PIPER_TRY(write_safetensors(options.save, result.parameters));
  }
  std::fputs(summary(options, result).c_str(), stdout);
  if (!options.save.empty()) {
    fmt::print("saved {} parameters to {}\n", result.parameters.size(), options.save);
  }
  if (options.job.target_loss && !result.reached_target && !result.interrupted) {
    return fail("the mean loss of the last 20 steps is above the target {}",
                *options.job.target_loss)
        .with_code(ExitCode::kNumeric);
  }
  return ok_status();
}

Result<JobResult> run_ranks(const Loaded& loaded, Transport* transport, const JobOptions& job) {
  const PlanSet* reference = loaded.reference ? &*loaded.reference : nullptr;
  if (transport == nullptr) {
    return run_job(loaded.set, loaded.data.get(), reference, loaded.reference_data.get(), job);
  }
  PIPER_TRY(transport->agree({loaded.set.manifest.set_id, loaded.rank, loaded.set.world(),
                              loaded.set.directory, kernels_of(job)}));
  return run_mpi_rank(loaded.set, loaded.data.get(), reference, loaded.reference_data.get(),
                      *transport, job);
}

Result<RunOutcome> run_loaded(RunOptions& options, const Loaded& loaded, Transport* transport) {
  bool speaks = loaded.rank == 0 || !loaded.mpi;
  MetricsFile metrics;
  if (speaks && !options.metrics.empty()) PIPER_TRY(metrics.open(options.metrics));
  if (speaks && options.picture) {
    std::fputs(draw_schedule(loaded.set, wants_colour(stdout)).c_str(), stdout);
    std::fflush(stdout);
  }
  if (speaks) fmt::print(stderr, "{}\n", print_cores(options.job, loaded.set.world()));
  if (const int64_t host = most_on_host(loaded.set); speaks && host > 0)
    fmt::print(stderr, "what is offloaded takes at most {} of the host's memory a rank\n",
               human_bytes(host));
  if (speaks && asks_for_more(loaded.set))
    fmt::print(
        stderr,
        "the {} backend runs a rank's streams in issue order: their priorities and SM limits "
        "have no effect\n",
        options.job.backend);
  Result<JobResult> result = [&] {
    std::optional<Progress> progress;
    if (speaks) progress.emplace(options.job.steps, options.log_every);
    options.job.on_step = [&](const StepMetrics& one) {
      progress->show(one);
      return metrics.write(one);
    };
    return run_ranks(loaded, transport, options.job);
  }();
  if (!result) return std::move(result).error();
  PIPER_TRY(write_results(options, loaded, *result));
  return RunOutcome{result->interrupted};
}

}  // namespace

Result<RunOutcome> run_plans(RunOptions options) {
  PIPER_TRY(check_backend(options));
  PIPER_ASSIGN(Loaded loaded, load_plans(options));
  options.data.seed = options.seed.value_or(loaded.set.manifest.seed);
  PIPER_ASSIGN(loaded.data, open_inputs(loaded.set, options.data));
  PIPER_TRY(load_reference(options, loaded));
  for (const std::string* path : {&options.save, &options.metrics, &options.trace}) {
    PIPER_TRY(check_target(*path));
  }
  if (!options.trace.empty() && options.job.trace_steps == 0) options.job.trace_steps = 1;
  options.job.parameters = !options.save.empty();
  if (!loaded.mpi) return run_loaded(options, loaded, nullptr);
  auto transport = make_mpi_transport(TransportOptions{options.job.timeout_s});
  Result<RunOutcome> outcome = run_loaded(options, loaded, transport.get());
  if (!outcome) {
    // The end of a broken transport is the end of the process: say why before.
    std::fputs(print_error(outcome.error()).c_str(), stderr);
    std::fflush(stderr);
    transport->abort(outcome.error());
  }
  return outcome;
}

}  // namespace piper
