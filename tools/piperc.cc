// piperc: an ONNX model and a strategy to one plan per device.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "flag_checks.h"
#include "machine_flags.h"
#include "piper/base/outputs.h"
#include "piper/base/process.h"
#include "piper/devices/registry.h"
#include "piper/inspect/picture.h"
#include "piper/plan/worlds.h"
#include "piper/planner/compile.h"
#include "rampup.h"
#include "still_at_work.h"
#include "tolerate.h"
#include "version.h"

namespace {

using namespace piper;

constexpr const char* kDescription =
    "Compiles an ONNX training graph and a YAML strategy into one plan per device.\n\n"
    "  piperc model.onnx --describe                         what is in it, is it supported?\n"
    "  piperc model.onnx strategy.yaml -o plans/            write plans\n"
    "  piperc model.onnx strategy.yaml --dry-run --explain  what would be done, and does it fit?\n"
    "  piperc model.onnx strategy.yaml --dry-run --cluster '<h100x8>'  how long does a step take "
    "there?\n"
    "  piperc model.onnx strategy.yaml -o plans/ -D dp=4    override a value of the strategy's "
    "params";
constexpr const char* kFooter =
    "\n\nExit codes: 0 ok; 1 model, strategy or flags are wrong or ask for what is not supported; "
    "2 "
    "wrong command line;\n"
    "3 the plan was refused (an internal error: unproved); 4 plan files unreadable; "
    "12 the disk or the "
    "system refused.\n"
    "Pages: formats/model.md (how to bring a model), strategies/README.md (strategies to begin "
    "with), "
    "formats/strategy.md (the language), formats/plan.md (what is written), tools/README.md "
    "(running).";

std::string footer() {
  size_t width = 0;
  for (const auto& [name, what] : known_directives()) width = std::max(width, name.size());
  std::vector<std::string> lines;
  for (const auto& [name, what] : known_directives())
    lines.push_back(fmt::format("  {:<{}}  {}", name, width, what));
  return "\nDirectives of a strategy:\n" + join(lines, "\n") + kFooter;
}

struct Flags {
  CompileOptions compile;
  MachineFlags machine;
  std::string output, dump;
  std::string topics_text;  // as --explain got them
  ExplainTopics topics;
  std::vector<std::string> defines;
  std::vector<std::string> dims, why;
  std::string emit, emit_order, order_form = "compute";
  std::string svg, costs = "flops";
  std::optional<size_t> width;
  int64_t tolerate = 0;
  bool picture = false;
  bool describe = false;
  bool force = false, dry_run = false, timings = false, no_oracles = false, oracles = false;
};

int report(const Error& error) {
  std::fputs(print_error(error).c_str(), stderr);
  return static_cast<int>(error.code);
}

// Everyone who trains the parameters is told how they were made, even without --explain.
void print_notes(const Compiled& compiled) {
  constexpr size_t kMostNames = 4, kMostLines = 12;
  const std::vector<std::string> lines = lines_of(compiled.notes, kMostNames);
  for (size_t i = 0; i < std::min(lines.size(), kMostLines); ++i)
    fmt::print(stderr, "note: {}\n", quote_control(lines[i]));
  if (lines.size() > kMostLines)
    fmt::print(stderr, "note: {} more with --explain=parameters\n", lines.size() - kMostLines);
}

// Returns the last part of a path, but whole names of the library.
std::string file_name(const std::string& path) {
  return path.starts_with('<') ? path : path.substr(path.rfind('/') + 1);
}

// Draws the schedule as text and as an image, where they are asked for.
Status draw(const Flags& flags, const PlanSet& set, const Machine* machine) {
  if (!flags.picture && flags.svg.empty()) return ok_status();
  const bool units = flags.costs == "unit";
  PIPER_ASSIGN(const Picture picture,
               machine ? make_picture(set, *machine, PictureCosts::kSeconds)
                       : make_picture(set, units ? PictureCosts::kUnits : PictureCosts::kFlops));
  if (flags.picture) {
    PictureText form = text_for(stdout);
    form.width = flags.width.value_or(form.width);
    std::fputs(draw_text(picture, form).c_str(), stdout);
  }
  if (flags.svg.empty()) return ok_status();
  const std::string title =
      fmt::format("{} with {}", file_name(flags.compile.model), file_name(flags.compile.strategy));
  return write_file(flags.svg, draw_svg(picture, title));
}

// Draws the schedule, and predicts a step where a machine is given.
Status predict(const Flags& flags, const PlanSet& set) {
  if (!flags.machine.given()) return draw(flags, set, nullptr);
  MachineFacts facts;
  PIPER_ASSIGN(const std::unique_ptr<Machine> machine,
               flags.machine.make(set, flags.compile.library, facts));
  PIPER_TRY(draw(flags, set, machine.get()));
  if (!flags.why.empty()) {
    PIPER_ASSIGN(const Timeline timeline, simulate(set, *machine, 1));
    return print_why(flags.why, set, timeline);
  }
  return flags.dump.empty() ? print_prediction(set, *machine, facts, false, true) : ok_status();
}

int describe_model(const Flags& flags) {
  DescribeOptions options{flags.compile.model, {}};
  for (const std::string& text : flags.dims) {
    const size_t equals = text.find('=');
    int64_t size = 0;
    const char* end = text.data() + text.size();
    const char* from = text.data() + std::min(equals, text.size() - 1) + 1;
    const auto read = std::from_chars(from, end, size);
    if (equals == text.npos || read.ec != std::errc() || read.ptr != end || size < 1)
      return report(
          fail("--dim {}: expected name=size", quote_control(text)).with_code(ExitCode::kUsage));
    options.dims.emplace_back(text.substr(0, equals), size);
  }
  const auto described = describe(options);
  if (!described) return report(described.error());
  std::fputs(described->text.c_str(), stdout);
  return static_cast<int>(described->supported ? ExitCode::kOk : ExitCode::kInput);
}

// "": the topics are known; as CLI11 wants it.
std::string read_topics(const std::string& text, ExplainTopics& topics) {
  Result<ExplainTopics> read = parse_topics(text);
  if (!read) return read.error().message;
  topics = *std::move(read);
  return {};
}

// Prints the order in the form of PyTorch's pipeline files.
Status emit_order(const Flags& flags, OrderRows rows) {
  const bool comms = flags.order_form.starts_with("comms");
  if (comms) {
    PIPER_ASSIGN(rows, add_communication(std::move(rows)));
  }
  const CsvDialect dialect =
      flags.order_form.ends_with("-old") ? CsvDialect::kOld : CsvDialect::kNew;
  return write_file(flags.emit_order, print_order_csv(rows, dialect));
}

// Draws, predicts and writes: the plans, or those of all stages, or for several numbers of ranks.
Status make_all(const Flags& flags, const Compiled& compiled) {
  if (!compiled.rampup.empty() && flags.tolerate > 0)
    return fail(compiled.rampup[0].at, "--tolerate and a strategy with 'rampup' do not go together")
        .with_code(ExitCode::kUsage);
  std::vector<Compiled> stages;
  if (flags.dry_run || !flags.output.empty()) {
    PIPER_ASSIGN(stages, compile_stages(flags.compile, compiled));
  }
  PIPER_TRY(predict(flags, compiled.set));
  if (flags.machine.given() && flags.dump.empty() && flags.why.empty() && !stages.empty()) {
    std::vector<const PlanSet*> sets;
    for (const Compiled& stage : stages) sets.push_back(&stage.set);
    PIPER_TRY(print_rampup(sets, first_steps_of(compiled), flags.machine, flags.compile.library,
                           /*json=*/false));
  }
  if (flags.output.empty()) return ok_status();
  const WriteOptions options{flags.force};
  if (flags.tolerate > 0)
    return write_tolerant(flags.compile, compiled, flags.tolerate, flags.output, flags.force);
  const SetWithOracles last = with_oracles(compiled);
  if (stages.empty())
    return write_plan_set(*last.set, last.single, last.uncut, flags.output, options);
  std::vector<SetWithOracles> sets;
  for (const Compiled& stage : stages) sets.push_back(with_oracles(stage));
  sets.push_back(last);
  return write_stages(sets, first_steps_of(compiled), flags.output, options);
}

// Asks whether what is to be written can be, before a compilation that may take minutes.
Status check_outputs(const Flags& flags) {
  const OutputFile outputs[] = {{"--svg", flags.svg},
                                {"--emit-onnx-training", flags.emit},
                                {"--emit-order", flags.emit_order}};
  const std::string inputs[] = {flags.compile.model, flags.compile.strategy, flags.machine.cluster,
                                flags.machine.profile};
  PIPER_TRY(check_outputs(outputs, inputs));
  if (flags.output.empty()) return ok_status();
  return check_plan_folder(flags.output, {flags.force});
}

int run(Flags& flags, std::optional<Result<Compiled>>& compiled_or_error) {
  if (flags.describe) return describe_model(flags);
  if (flags.dry_run) flags.output.clear();
  if (const Status possible = check_outputs(flags); !possible) return report(possible.error());
  auto defines = parse_definitions(flags.defines);
  if (!defines) return report(defines.error());
  flags.compile.defines = *defines;
  if (!flags.emit.empty()) {
    const Status emitted = emit_onnx_training(flags.compile, flags.emit);
    return emitted ? 0 : report(emitted.error());
  }
  flags.compile.oracles = !flags.no_oracles && !flags.output.empty();
  flags.compile.largest_single = flags.oracles ? 0 : kLargestSingle;
  bool dumped = flags.dump.empty();
  StillAtWork at_work("reads the model");
  flags.compile.dump = [&](std::string_view step, const std::function<std::string()>& text) {
    at_work.now(fmt::format("compiles, '{}' is done", step));
    if (step != flags.dump) return;
    std::fputs(text().c_str(), stdout);
    dumped = true;
  };
  flags.compile.order = !flags.emit_order.empty();
  flags.compile.absent_values = flags.dry_run;
  auto devices = flags.machine.devices(flags.compile.library);
  if (!devices) return report(devices.error());
  flags.compile.devices = *std::move(devices);
  Result<Compiled>& compiled = compiled_or_error.emplace(compile(flags.compile));
  if (!compiled) return report(compiled.error());
  if (!dumped)
    fmt::print(stderr, "note: nothing to dump: the strategy has no '{}' directive\n", flags.dump);
  for (const std::string& warning : compiled->warnings) fmt::print(stderr, "note: {}\n", warning);
  if (!flags.topics.has("parameters")) print_notes(*compiled);
  // stdout belongs to what is dumped.
  if (!flags.topics.names.empty())
    std::fputs(explain(*compiled, flags.topics).c_str(), flags.dump.empty() ? stdout : stderr);
  for (const auto& [step, seconds] : compiled->seconds)
    if (flags.timings) fmt::print(stderr, "{:>10.1f} ms  {}\n", seconds * 1e3, step);
  if (flags.compile.order) {
    const Status emitted = emit_order(flags, std::move(compiled->order));
    if (!emitted) return report(emitted.error());
  }
  at_work.now("writes, draws or simulates the plans");
  const Status made = make_all(flags, *compiled);
  if (!made) return report(made.error());
  if (flags.output.empty()) return 0;
  if (isatty(2))
    fmt::print(stderr, "{}: {} plans, {} role programs, at most {} a rank\n", flags.output,
               compiled->set.world(), compiled->set.roles.size(),
               human_bytes(static_cast<int64_t>(compiled->set.manifest.predictions["peak_bytes"])));
  return 0;
}

// Adds the flags of what is compiled, and of the files that are written.
void add_output_flags(CLI::App& app, Flags& flags) {
  app.add_option("model", flags.compile.model, "ONNX file")->required()->type_name("MODEL.onnx");
  app.add_option("strategy", flags.compile.strategy,
                 "strategy file, or a name of the library: '<ddp>'")
      ->type_name("STRATEGY.yaml");
  CLI::Option* output =
      app.add_option("-o,--output", flags.output,
                     "directory to write; it must be new, or hold plans that --force replaces")
          ->type_name("DIR");
  app.add_option("--tolerate", flags.tolerate,
                 "also write plans for 1 to K replicas fewer: DIR gets a folder world-N for "
                 "each number of ranks, and piper-run DIR takes the one for the number of "
                 "ranks that the launcher started")
      ->type_name("K")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->needs(output);
  app.add_option("--emit-onnx-training", flags.emit,
                 "write the model with the strategy's loss and optimizer as ONNX's training_info")
      ->type_name("FILE.onnx");
  CLI::Option* emit_order =
      app.add_option(
             "--emit-order", flags.emit_order,
             "write each device's order as a PyTorch pipeline file, which 'order: {csv: …}' reads")
          ->type_name("FILE.csv");
  app.add_option("--order-form", flags.order_form,
                 "form of --emit-order: compute has computations only, comms also sends and "
                 "receives; -old uses the letters of PyTorch 2.5")
      ->check(CLI::IsMember({"compute", "comms", "compute-old", "comms-old"}))
      ->needs(emit_order);
}

// Adds the flags of how the model and the strategy are read.
void add_input_flags(CLI::App& app, Flags& flags) {
  CLI::Option* describe = app.add_flag("--describe", flags.describe,
                                       "print the model's inputs, parameters, layers and costs, "
                                       "and what is not supported; needs no strategy");
  app.add_option("--dim", flags.dims, "with --describe: the size of a dynamic dim")
      ->type_name("NAME=N")
      ->allow_extra_args(false)
      ->needs(describe);
  app.add_option("--init", flags.compile.initial_values,
                 "initial values of the parameters, instead of the model's: a module's state_dict, "
                 "with its names and in its orientation")
      ->type_name("FILE.safetensors")
      ->excludes(describe);
  app.add_option("-D", flags.defines, "override one of the strategy's params")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app.add_option("-I", flags.compile.library,
                 "a folder to search for names such as '<ddp>', before the folders of the variable "
                 "PIPER_STRATEGIES (DIR:DIR:…) and the library of this program")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory)
      ->allow_extra_args(false);
}

void add_report_flags(CLI::App& app, Flags& flags) {
  app.add_flag("--explain{summary}", flags.topics_text,
               "print what was found and done; =TOPIC,… of " + explain_topics() +
                   "; on stderr if --dump is given, too")
      ->check([&](const std::string& text) { return read_topics(text, flags.topics); });
  std::vector<std::string> steps(dump_steps().begin(), dump_steps().end());
  CLI::Option* dump =
      app.add_option("--dump", flags.dump, "print the text form after a step: " + join(steps, ", "))
          ->check(CLI::IsMember(steps))
          ->type_name("STEP");
  CLI::Option* picture = app.add_flag("--picture", flags.picture,
                                      "draw what each device does when, and how long it is idle; "
                                      "lines wrap at the terminal's width")
                             ->excludes(dump);
  app.add_option("--width", flags.width,
                 "columns of a line of --picture; 0: no limit (default: the terminal's width)")
      ->type_name("N")
      ->check(CLI::Range(size_t{0}, size_t{1000000}))
      ->needs(picture);
  app.add_option("--svg", flags.svg, "write the picture as an image")->type_name("FILE.svg");
  app.add_option(
         "--costs", flags.costs,
         "times in --picture and --svg. flops: the FLOPs of each task, with recomputation; unit: a "
         "forward 1, a backward 2, its input and weight parts 1 each. With --cluster: seconds")
      ->check(CLI::IsMember({"flops", "unit"}))
      ->capture_default_str();
}

// Adds the flags of the devices, and of which plans are made for them.
void add_target_flags(CLI::App& app, Flags& flags) {
  flags.machine.add(app, false);
  app.add_option("--why", flags.why,
                 "say what a rank does at this time of a step, and what it waits for, instead of "
                 "predicting the step")
      ->type_name("RANK@MS,…")
      ->delimiter(',')
      ->needs(app.get_option("--cluster"))
      ->excludes(app.get_option("--dump"));
  app.add_option("--target", flags.compile.target,
                 "the kind of device that the plans are for; they state the memory that it needs")
      ->check(CLI::IsMember(piper::target_names()))
      ->capture_default_str();
  app.add_flag("--force", flags.force, "replace a directory that holds plans");
  app.add_flag("--dry-run", flags.dry_run,
               "write nothing, and compare the plans with no single-device plan; print the "
               "explanation unless --dump or --explain select other "
               "output. The file of the model's external data may be missing")
      ->excludes(app.get_option("--tolerate"));
  app.add_flag("--eval", flags.compile.evaluation,
               "write plans that can also run the forward pass alone, without dropout and with "
               "running statistics, for piper-run --eval-data");
  CLI::Option* no_oracles =
      app.add_flag("--no-oracles", flags.no_oracles,
                   "do not write the single-device plans for piper-run --verify-against");
  app.add_flag("--oracles", flags.oracles,
               fmt::format("the single-device plan runs all replicas; without this, only the first "
                           "if all together have more than {} instructions",
                           kLargestSingle))
      ->excludes(no_oracles);
  app.add_flag("--timings", flags.timings, "print how long each step took");
}

// Throws what CLI11 throws for flags that do not go together.
void check_flags(const CLI::App& app, Flags& flags) {
  if (flags.dry_run && flags.dump.empty() && flags.topics_text.empty() && flags.why.empty())
    read_topics("summary", flags.topics);
  if (!flags.describe && flags.compile.strategy.empty()) throw CLI::RequiredError("strategy");
  if (!flags.describe && flags.emit.empty() && flags.output.empty() && !flags.dry_run &&
      flags.dump.empty() && flags.emit_order.empty() && !flags.picture && flags.svg.empty())
    throw CLI::RequiredError("-o DIR (or --dry-run)");
  if (app.count("--costs") > 0 && !flags.picture && flags.svg.empty())
    throw CLI::RequiredError("--costs: --picture or --svg");
}

}  // namespace

int main(int argc, char** argv) {
  prepare_process();
  Flags flags;
  CLI::App app{kDescription, "piperc"};
  app.footer(footer());
  add_output_flags(app, flags);
  add_input_flags(app, flags);
  add_report_flags(app, flags);
  add_target_flags(app, flags);
  suggest_flags(app);
  app.set_version_flag("--version", fmt::format("piperc {}", version()));
  try {
    app.parse(argc, argv);
    check_flags(app, flags);
    if (flags.machine.given() && app.count("--target") == 0) {
      const Result<std::string> target = flags.machine.target(flags.compile.library);
      if (!target) return report(target.error());
      flags.compile.target = *target;
    }
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : static_cast<int>(ExitCode::kUsage);
  }
  std::optional<Result<Compiled>> compiled;
  int code = run(flags, compiled);
  if (const Status printed = flush_output(); !printed && code == 0) code = report(printed.error());
#ifdef PIPER_SANITIZED
  return code;  // what is still reachable by nobody is found
#else
  // To take large plans apart would cost as much as some steps of making them.
  std::fflush(nullptr);
  std::_Exit(code);
#endif
}
