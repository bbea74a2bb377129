// piper-run: executes plans. Flags here, everything else in the runtime room.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "checkpoint_flags.h"
#include "fault_flags.h"
#include "flag_checks.h"
#include "piper/base/folders.h"
#include "piper/base/process.h"
#include "piper/devices/cuda.h"
#include "piper/devices/registry.h"
#include "piper/inspect/picture.h"
#include "piper/runtime/job.h"
#include "version.h"

namespace {

using piper::a_count;
using piper::between;

// Set by SIGUSR1: a checkpoint is written after the step under way.
std::atomic<bool> save_requested{false};
extern "C" void request_save(int) { save_requested.store(true); }

// Set by the first SIGINT, SIGTERM or SIGHUP. Launchers send a signal twice at once: to all
// processes, and through their own handler. One that comes kPatience later ends the process as
// usual.
std::atomic<bool> stop_requested{false};
std::atomic<int64_t> stop_second{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);
constexpr int64_t kPatience = 2;  // seconds

extern "C" void request_stop(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  if (!stop_requested.exchange(true)) stop_second.store(now.tv_sec);
  if (now.tv_sec - stop_second.load() <= kPatience) return;
  std::signal(signal, SIG_DFL);
  raise(signal);
}

constexpr int kInterrupted = 130;

constexpr const char* kFooter = R"(
Sources (--data, repeatable; together they cover all inputs of the plans):
  FILES[:u8|:u16|:u32|…][:separator=TOKEN][:pack]
                              tokens, cut into windows; labels are the next. FILES is a file, a
                              folder or a pattern. The type is that of raw tokens (.bin: u16);
                              .bin with .idx, .npy, safetensors and headers say theirs. The
                              separator is the last token of each document; pack puts whole
                              documents into each sequence
  mix.yaml                    sources of tokens, mixed by weights (formats/data.md)
  NAME=file.npy               samples of one input, along its batch dimension
  file.safetensors            tensors batch/K/INPUT, batches in order of K

Examples:
  piper-run plans --data text.bin:u8 --steps 500 --save trained.safetensors --metrics run.jsonl
  piper-run plans --data text.bin:u8 --steps 20 --verify-against single

One process per rank, which a launcher starts (without MPI they find each other over TCP):
  mpirun -n 4 piper-run plans --data text.bin:u8 --steps 500
  torchrun --no-python --nproc-per-node 4 piper-run plans --data text.bin:u8 --steps 500
  srun -n 4 piper-run plans --data text.bin:u8 --steps 500
  piper-run plans/rank1.plan --rendezvous node0:29500 --data text.bin:u8     # by hand, each of them
  mpirun -n 1 piper-run plans/rank0.plan --data text.bin:u8 : -n 1 piper-run plans/rank1.plan --data text.bin:u8
Open MPI wants: )";

constexpr const char* kExitCodes = R"(
Rank 0 listens for the others where MASTER_ADDR and MASTER_PORT say (one port further if
torchrun's agent listens there), else, under Slurm, on the first node of the step at a port from
20000 to 31999 that is computed from the numbers of job and step; --rendezvous overrides it.

A profiler that NVTX_INJECTION64_PATH names (nsys sets it) gets NVTX ranges of steps and their tasks.

Exit codes:
   0  done
   1  the data or flags are wrong, or ask for what is not supported
   2  the command line itself is wrong
   4  plan files are corrupt, of another version or of another compilation
  10  a rank failed or did not answer in time: restart the job (mpirun itself says 137,
      139 or 1 for a process that was killed, or that ended in the middle)
  11  loss or gradients are not finite, a comparison failed or the target was missed: find
      the cause before you restart
  12  the disk or the operating system refused a file, memory or a thread; a run that lost only metrics, trace, profile or
      report went on to its end and has saved what it trained
 130  interrupted (SIGINT, SIGTERM, SIGHUP, of any process): ended after the step under way,
      results written

To test how a job fails and resumes, PIPER_FAULT=KIND@RANK:STEP:PHASE injects a fault, such as
kill@2:5:step or nan@*:3:backward:
  KIND   kill abort segv exit stop hang slow lag error throw disk memory term int hup usr1; within a
         step also nan and flip (of one bit), which corrupt a result
  PHASE  load step after evaluate copy write commit publish back end; within a step forward backward update

All processes of a job need the same flags; paths, --threads and --helper-thread may differ.
Of several processes any may be signalled. mpirun gives its processes one second before it kills
them. If steps are longer, set the seconds S that it waits before and after it passes a signal on:
  mpirun --mca odls_base_sigkill_timeout S ...
)";

constexpr int64_t kProfileSteps = 13;  // where nobody says how many

struct Flags {
  piper::RunOptions run;
  piper::CheckpointFlags checkpoint;
  piper::FaultFlags faults;
  std::vector<std::string> plans;
  std::string verify, helper = "auto", graphs = "on", products, tune;
  std::vector<std::string> switches;
  double target = 0;
  std::vector<std::string> architectures;  // of --compile-only
  bool no_shuffle = false, picture = false;
};

piper::Status draw(const piper::PlanSet& set) {
  PIPER_ASSIGN(const piper::Picture picture, piper::make_picture(set, piper::PictureCosts::kFlops));
  std::fputs(piper::draw_text(picture, piper::text_for(stdout)).c_str(), stdout);
  std::fflush(stdout);
  return piper::ok_status();
}

void print_to_stderr(const std::string& text) { fmt::print(stderr, "{}\n", text); }

// Tunes the products of all roles, none of which need to run here.
piper::Status tune(const std::string& plan, const std::string& file) {
  PIPER_TRY(piper::check_output(file));
  PIPER_ASSIGN(const piper::PlanSet set, piper::read_plan_set(plan));
  std::vector<piper::Program> programs;
  for (const piper::RoleProgram& role : set.roles) {
    if (role.target != "cuda")
      return piper::fail("{} is for {}: no product of it is cuBLASLt's", plan, role.target);
    piper::RoleProgram prepared = piper::prepared_for_cuda(role);
    std::move(prepared.programs.begin(), prepared.programs.end(), std::back_inserter(programs));
  }
  piper::CudaOptions options;
  options.note = print_to_stderr;
  return piper::tune_cuda_products(programs, file, options);
}

piper::Status note_kernels(const std::string& plan, piper::CudaCompiler& compiler) {
  PIPER_ASSIGN(piper::PlanSet set, piper::read_plan_set(plan));
  for (const piper::RoleProgram& role : set.roles)
    if (role.target != "cuda")
      return piper::fail("{} is for {}: no kernel of it is to be compiled", plan, role.target)
          .with_note("help: piperc --target cuda");
  return piper::load_ranks(std::move(set), [&] {
    return piper::Result<std::unique_ptr<piper::Backend>>(compiler.make_backend());
  });
}

// Compiles, for GPUs of these architectures, all kernels that a run of the plans would compile, and
// those of the plans that it compares with. None of these GPUs need to be here.
piper::Status compile_only(const Flags& flags) {
  PIPER_ASSIGN(piper::CudaCompiler compiler,
               piper::CudaCompiler::open(flags.architectures, print_to_stderr));
  PIPER_TRY(note_kernels(flags.run.plan, compiler));
  if (!flags.verify.empty()) PIPER_TRY(note_kernels(flags.run.plan + "/" + flags.verify, compiler));
  PIPER_ASSIGN(const std::vector<piper::CudaCompiled> all, compiler.compile());
  for (const piper::CudaCompiled& each : all) std::fputs(to_string(each).c_str(), stdout);
  return piper::ok_status();
}

// Returns what is done in place of a run, if anything is.
std::optional<piper::Status> do_instead(const Flags& flags) {
  if (!flags.tune.empty()) return tune(flags.run.plan, flags.tune);
  if (!flags.architectures.empty()) return compile_only(flags);
  return std::nullopt;
}

// Takes each "DIR@STEP" apart.
piper::Status take_switches(Flags& flags) {
  for (const std::string& text : flags.switches) {
    const size_t at = text.rfind('@');
    const std::string step = at == std::string::npos ? "" : text.substr(at + 1);
    piper::RunOptions::Switch one{text.substr(0, at)};
    const auto read = std::from_chars(step.data(), step.data() + step.size(), one.step);
    if (step.empty() || read.ec != std::errc() || read.ptr != step.data() + step.size() ||
        one.plans.empty())
      return piper::fail("--switch {}: expected DIR@STEP, such as plans2@1000", text)
          .with_code(piper::ExitCode::kUsage);
    flags.run.switches.push_back(std::move(one));
  }
  return piper::ok_status();
}

// Adds the flags that say what is trained, on which data, under which plans.
void add_source_flags(CLI::App& app, Flags& flags) {
  piper::RunOptions& run = flags.run;
  app.add_option("plan", flags.plans,
                 "a directory of plans (all ranks run here), or one rankN.plan; of several "
                 "directories, and of those in a folder that piperc --tolerate wrote, the first "
                 "one for as many ranks as the launcher has started")
      ->required()
      ->type_name("DIR|RANK.plan");
  app.add_option("--steps", run.job.steps, "training steps")
      ->type_name("N")
      ->capture_default_str()
      ->check(a_count(0));
  app.add_option("--data", run.data.sources, "where inputs come from; see below")
      ->type_name("SOURCE")
      ->expected(1)
      ->take_all();
  app.add_option("--switch", flags.switches,
                 "after STEP steps, go on under these plans, which are for as many ranks: what "
                 "ranks hold moves between them in memory, and the result is that of a job that "
                 "ends there with a checkpoint and resumes under them; --accept says which "
                 "settings may differ. Repeatable, in rising order of steps")
      ->type_name("DIR@STEP")
      ->expected(1)
      ->take_all();
}

void add_evaluation_flags(CLI::App& app, Flags& flags) {
  piper::RunOptions& run = flags.run;
  app.add_option("--eval-data", run.evaluation,
                 "evaluate on this source, too; NAME=SOURCE for several sets. The plans need "
                 "'piperc --eval'. The first set's loss says which checkpoints are best")
      ->type_name("[NAME=]SOURCE")
      ->expected(1)
      ->take_all();
  app.add_option("--eval-every", run.job.evaluate_every,
                 "evaluate each N steps, and at the end (default: with each checkpoint of --every)")
      ->type_name("N")
      ->check(a_count(1));
  app.add_option("--eval-batches", run.evaluation_batches,
                 "of each set take the first K batches (default: all)")
      ->type_name("K")
      ->check(a_count(1));
  app.add_flag(
      "--eval-only", run.evaluate_only,
      "train nothing: evaluate the plans' initial values, or what --resume or --init read");
  app.add_flag("--eval-ema", run.evaluate_averages,
               "evaluate the averages of the parameters ('ema' in the strategy); with --eval-only "
               "those that the checkpoint has")
      ->needs("--eval-data");
}

// Adds the flags of the order of samples, and of the files that a run leaves.
void add_output_flags(CLI::App& app, Flags& flags) {
  piper::RunOptions& run = flags.run;
  app.add_option("--seed", run.seed, "seed of the shuffling (default: the strategy's)")
      ->type_name("N")
      ->check(between(0, 0x1p64 - 0x1p11, "a whole number from 0 on"));
  app.add_flag("--no-shuffle", flags.no_shuffle, "samples in the order of the file");
  app.add_option("--save", run.save, "write the trained parameters here")
      ->type_name("FILE.safetensors");
  app.add_option(
         "--metrics", run.metrics,
         "add a line of JSON for the run, one per step and, on a GPU, two about its memory to "
         "this file")
      ->type_name("FILE.jsonl");
  app.add_option(
         "--out", run.out,
         "write here what a run leaves: metrics.jsonl, events for TensorBoard, metrics.prom "
         "for Prometheus, strategy.yaml and checkpoints/")
      ->type_name("DIR");
  CLI::Option* trace =
      app.add_option("--trace", run.trace,
                     "write the times of the last step(s) here, in Chrome's trace form")
          ->type_name("FILE");
  app.add_option("--trace-steps", run.job.trace_steps,
                 "how many last steps --trace holds (default 1)")
      ->type_name("N")
      ->check(a_count(1))
      ->needs(trace);
  app.add_option("--profile", run.profile,
                 "write the times of programs, messages and collectives in the last 100 steps at "
                 "most (formats/profile.md); without --steps it runs 13 steps, of which 3 warm up")
      ->type_name("FILE.json");
}

// Adds the flags that say what ends a job, and what it is compared with.
void add_check_flags(CLI::App& app, Flags& flags) {
  piper::RunOptions& run = flags.run;
  const auto seconds = between(1e-3, 1e9, "a number of seconds from 0.001 to 1e9");
  app.add_option("--timeout", run.job.timeout_s,
                 "seconds that a rank waits for another before the job ends; at least five times "
                 "the longest step so far (default: 10, in the first step --start-timeout)")
      ->type_name("SECONDS")
      ->check(seconds);
  app.add_option(
         "--start-timeout", run.job.start_timeout_s,
         "seconds for all ranks to start and to load, and for a silent rank while others save")
      ->type_name("SECONDS")
      ->capture_default_str()
      ->check(seconds);
  app.add_option("--check-replicas", run.job.check_replicas,
                 "every N steps, and before each checkpoint, compare the bits of what several "
                 "ranks hold: parameters, states of the optimizer; a difference ends the job with "
                 "exit 11")
      ->type_name("N")
      ->check(a_count(1));
  CLI::Option* verify =
      app.add_option("--verify-against", flags.verify,
                     "also run the plan DIR/single or DIR/uncut, and compare the loss and all "
                     "parameters after each step: with single bit for bit, or within bounds if "
                     "plans cut more than the batch; with uncut within bounds")
          ->check(CLI::IsMember({"single", "uncut"}));
  for (const auto& [name, bound] : {std::pair("--loss-bound", &run.job.verify.loss_bound),
                                    std::pair("--param-bound", &run.job.verify.param_bound)})
    app.add_option(name, *bound, "bound of --verify-against, if it compares within bounds")
        ->type_name("X")
        ->capture_default_str()
        ->check(between(0, 1e30, "a number from 0 on"))
        ->needs(verify);
  app.add_option("--target-loss", flags.target,
                 "stop when the mean loss of the last 20 steps is at most X; if it is not reached, "
                 "the job ends with exit 11")
      ->type_name("X")
      ->check(between(-1e30, 1e30, "a number"));
}

// Adds the flags that say how ranks find each other, and what computes.
void add_device_flags(CLI::App& app, Flags& flags) {
  piper::RunOptions& run = flags.run;
  app.add_option("--rendezvous", run.rendezvous,
                 "where rank 0 listens for the others over TCP (default: as the launcher says)")
      ->type_name("HOST:PORT");
  app.add_option("--backend", run.job.backend,
                 "what computes (default: the plans' target if this machine has it, else cpu); "
                 "null computes nothing, to time the rest")
      ->check(CLI::IsMember(piper::backend_names()));
  app.add_option("--graphs", flags.graphs,
                 "on: from the second step on, a GPU runs a step as one CUDA graph, if its rank is "
                 "a process of its own or the only one and neither --trace nor --profile is given; "
                 "off: the host issues each op by itself")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}));
  app.add_flag("!--no-fuse", run.job.fuse,
               "run every op by itself, with equal results, to find a fault");
  app.add_option("--threads", run.job.threads,
                 "threads per rank (default: the cores, divided among the ranks)")
      ->type_name("N")
      ->check(between(1, 1024, "a whole number from 1 to 1024"));
  app.add_option(
         "--helper-thread", flags.helper,
         "on: one thread of each rank communicates while the others compute, if the plan has "
         "streams for it, and one reads data a step ahead; auto: on if each rank has a core for it")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_option(
         "--log-every", run.log_every,
         "steps between lines if the output is not a terminal (default: about 20 lines in all)")
      ->type_name("N")
      ->check(a_count(1));
}

void add_tuning_flags(CLI::App& app, Flags& flags) {
  app.add_option("--products", flags.products,
                 "table of cuBLASLt algorithms for matrix products on a GPU, which --tune wrote "
                 "(default: the built-in table)")
      ->type_name("FILE")
      ->envname("PIPER_CUDA_PRODUCTS");
  CLI::Option* const tune =
      app.add_option("--tune", flags.tune,
                     "train nothing: measure on this GPU which cuBLASLt algorithms are fastest for "
                     "the matrix products of the plans, a directory, and add them to this table")
          ->type_name("FILE");
  app.add_option("--compile-only", flags.architectures,
                 "train nothing: compile the kernels of the plans, a directory, for GPUs of these "
                 "architectures into $XDG_CACHE_HOME/piper or ~/.cache/piper. No GPU is needed; "
                 "copy the folder to a machine with the same version of NVRTC")
      ->type_name("sm_90[,…]")
      ->delimiter(',')
      ->excludes(tune)
      ->expected(1)
      ->take_all();
  app.add_flag_callback(
      "--devices",
      [] {
        std::fputs(to_string(piper::find_cuda()).c_str(), stdout);
        throw CLI::Success();
      },
      "print which NVIDIA devices and libraries are found, and why others are not");
}

void add_flags(CLI::App& app, Flags& flags) {
  add_source_flags(app, flags);
  add_evaluation_flags(app, flags);
  add_output_flags(app, flags);
  add_check_flags(app, flags);
  add_device_flags(app, flags);
  add_tuning_flags(app, flags);
  app.add_flag("--picture", flags.picture,
               "draw the schedule before the run, as piperc --picture does");
  piper::suggest_flags(app);
  app.set_version_flag("--version", fmt::format("piper-run {}", piper::version()));
}

// This is not part of main: its frame wants a stack that prepare_process has seen to.
[[gnu::noinline]] int run(int argc, char** argv) {
  Flags flags;
  flags.run.job.backend.clear();  // what fits the plans
  CLI::App app{
      "Runs the plans that piperc wrote: all ranks as threads of this process, or one rank per "
      "process under mpirun, torchrun or srun."};
  app.name("piper-run");
  app.footer(kFooter + std::string(piper::mpi_environment_help()) + kExitCodes);
  add_flags(app, flags);
  flags.checkpoint.add(app, flags.run);
  flags.faults.add(app, flags.run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& problem) {
    return app.exit(problem) == 0 ? 0 : static_cast<int>(piper::ExitCode::kUsage);
  }
  flags.run.plan = flags.plans[0];
  flags.run.other_plans.assign(flags.plans.begin() + 1, flags.plans.end());
  const std::optional<piper::Status> instead = do_instead(flags);
  const piper::Status prepared = instead ? *instead
                                 : flags.products.empty()
                                     ? piper::ok_status()
                                     : piper::take_cuda_products(flags.products);
  if (!prepared) std::fputs(print_error(prepared.error()).c_str(), stderr);
  if (!prepared || instead)
    return static_cast<int>(prepared ? piper::ExitCode::kOk : prepared.error().code);
  piper::Status taken = take_switches(flags);
  if (taken) taken = flags.checkpoint.take(flags.run);
  if (!taken) {
    std::fputs(print_error(taken.error()).c_str(), stderr);
    return static_cast<int>(taken.error().code);
  }
  flags.faults.take(flags.run);
  flags.run.data.shuffle = !flags.no_shuffle;
  if (!flags.run.profile.empty() && app.count("--steps") == 0) flags.run.job.steps = kProfileSteps;
  if (flags.verify == "single") flags.run.job.verify.against = piper::VerifyAgainst::kSingle;
  if (flags.verify == "uncut") flags.run.job.verify.against = piper::VerifyAgainst::kUncut;
  flags.run.job.graphs = flags.graphs == "on";
  if (flags.helper == "on") flags.run.job.helper = piper::HelperThread::kOn;
  if (flags.helper == "off") flags.run.job.helper = piper::HelperThread::kOff;
  if (app.count("--target-loss") > 0) flags.run.job.target_loss = flags.target;
  if (flags.picture) flags.run.on_plans = draw;
  flags.run.job.stop = &stop_requested;
  flags.run.job.save = &save_requested;
  if (flags.run.job.checkpoint) std::signal(SIGUSR1, request_save);
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  if (std::signal(SIGHUP, request_stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // nohup's
  std::signal(SIGPIPE, SIG_IGN);  // that nobody reads what is printed ends no run
  piper::Result<piper::RunOutcome> outcome = piper::run_plans(std::move(flags.run));
  if (!outcome) return static_cast<int>(outcome.error().code);
  if (outcome->code != piper::ExitCode::kOk) return static_cast<int>(outcome->code);
  return outcome->interrupted ? kInterrupted : 0;
}

}  // namespace

int main(int argc, char** argv) {
  piper::prepare_process();
  return run(argc, argv);
}
