// piper-search MODEL STRATEGY: the strategy that is predicted to be fastest on a cluster.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "flag_checks.h"
#include "piper/base/outputs.h"
#include "piper/base/process.h"
#include "piper/base/yaml.h"
#include "piper/planner/search.h"
#include "version.h"

namespace piper {
namespace {

struct Flags {
  SearchOptions search;
  std::string cluster, profile, output, memory, sweep, space = "<usual>";
  std::vector<std::string> defines, fix;
  bool force = false;
};

// Makes a folder for candidates, which its end removes.
class Candidates {
 public:
  static Result<std::unique_ptr<Candidates>> make() {
    std::error_code code;
    const auto parent = std::filesystem::temp_directory_path(code);
    std::string path = (parent / "piper-search-XXXXXX").string();
    if (code || mkdtemp(path.data()) == nullptr)
      return fail("no folder for candidates can be made in '{}'", quote_control(parent.string()))
          .with_code(ExitCode::kStorage);
    return std::unique_ptr<Candidates>(new Candidates(path));
  }
  ~Candidates() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  const std::string& path() const { return path_; }

 private:
  explicit Candidates(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

void show(const Tried& tried, int64_t number) {
  if (!tried.refused.empty())
    fmt::print(stderr, "{:>4}  refused: {}: {}\n", number, describe(tried),
               quote_control(tried.refused));
  else
    fmt::print(stderr, "{:>4}  {:>9}  {:>9}{}  {}\n", number, human_seconds(tried.step),
               human_bytes(static_cast<int64_t>(tried.peak_bytes)),
               tried.fits() ? "" : " (does not fit)", describe(tried));
}

Result<double> bytes_of(const std::string& text) {
  char* unit = nullptr;
  const double value = std::strtod(text.c_str(), &unit);
  const std::string_view name = unit;
  const double size = name == "GB"    ? 1e9
                      : name == "GiB" ? 1073741824.0
                      : name == "MB"  ? 1e6
                      : name == "MiB" ? 1048576.0
                                      : 0;
  if (size == 0 || !(value > 0))
    return fail("--memory {}: expected a size, as 80GB or 79GiB", quote_control(text))
        .with_code(ExitCode::kUsage);
  return value * size;
}

// Fails, as nothing fits: says what the candidate that needs least needs, and what would fit.
Status no_fit(const SearchOptions& options, const Found& found) {
  const Tried& least = found.tried.front();
  PIPER_ASSIGN(const std::optional<Tried> more, fit_on_more(options, least));
  const std::string larger =
      fmt::format("devices on which a plan may take {}",
                  human_bytes(static_cast<int64_t>(std::ceil(least.peak_bytes))));
  Error error =
      fail(
          "no strategy that was tried fits: the one that needs least takes {} a rank, and a "
          "device has {}",
          human_bytes(static_cast<int64_t>(least.peak_bytes)),
          human_bytes(static_cast<int64_t>(least.memory)))
          .with_code(ExitCode::kRefused)
          .with_note("it is: " + describe(least.choice));
  error.notes.push_back(
      more ? fmt::format("help: {}, or {} devices like these: {}, which takes {} a rank", larger,
                         more->choice.ranks(), describe(more->choice),
                         human_bytes(static_cast<int64_t>(more->peak_bytes)))
           : fmt::format("help: {}; a few times as many devices like these were not enough",
                         larger));
  error.notes.emplace_back(
      "help: smaller microbatches, 16-bit numerics, or parameters on the host need less, too");
  return error;
}

// The result replaces an earlier one, and nothing else. That it can be written is asked before a
// search that may take minutes.
Status check_result(const Flags& flags) {
  const OutputFile output{"-o", flags.output};
  const std::string inputs[] = {flags.search.compile.model, flags.search.compile.strategy,
                                flags.cluster, flags.profile, flags.space};
  PIPER_TRY(check_outputs(std::span(&output, 1), inputs));
  std::error_code code;
  if (!std::filesystem::exists(flags.output, code)) return ok_status();
  PIPER_ASSIGN(const std::string text, read_text_file(flags.output, int64_t{1} << 20));
  if (flags.force || text.starts_with(kFoundLine)) return ok_status();
  return fail("-o {}: there is a file that piper-search has not written",
              quote_control(flags.output))
      .with_code(ExitCode::kUsage)
      .with_note("help: --force replaces it");
}

// Tries the user's file alone.
Status run_sweep(const Flags& flags, const SearchOptions& options) {
  PIPER_ASSIGN(const std::vector<SweptParam> params, read_sweep(flags.sweep));
  PIPER_ASSIGN(const std::vector<Swept> rows, sweep(options, params));
  std::fputs(print_sweep(rows).c_str(), stdout);
  return ok_status();
}

Status run(Flags& flags) {
  SearchOptions& options = flags.search;
  if (flags.output.empty() && flags.sweep.empty())
    return fail("-o is required: the strategy file to write").with_code(ExitCode::kUsage);
  if (flags.sweep.empty()) PIPER_TRY(check_result(flags));
  PIPER_ASSIGN(options.compile.defines, parse_definitions(flags.defines));
  PIPER_ASSIGN(options.cluster, read_cluster(flags.cluster, options.compile.library));
  PIPER_ASSIGN(options.space, read_space(flags.space, options.compile.library));
  options.compile.target = options.cluster.device_of(0).target;
  options.compile.absent_values = true;
  if (!flags.profile.empty()) {
    PIPER_ASSIGN(options.profile, read_profile(flags.profile));
  }
  if (!flags.memory.empty()) {
    PIPER_ASSIGN(options.memory, bytes_of(flags.memory));
  }
  for (const std::string& text : flags.fix) {
    const size_t equals = text.find('=');
    if (equals == text.npos)
      return fail("--fix {}: expected NAME=VALUE", quote_control(text)).with_code(ExitCode::kUsage);
    options.fixed.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  PIPER_ASSIGN(const auto candidates, Candidates::make());
  options.folder = candidates->path();
  options.progress = show;
  options.warn = [&options](const Error& error) {
    fmt::print(stderr, "note: what candidates came to is not kept in '{}': {}\n",
               quote_control(options.kept), error.message);
  };
  if (!flags.sweep.empty()) return run_sweep(flags, options);
  PIPER_ASSIGN(Found found, search(options));
  if (!found.tried.front().fits()) return no_fit(options, found);
  const auto base = std::filesystem::relative(
      options.compile.strategy, std::filesystem::absolute(flags.output).parent_path());
  // Candidates include the user's file by another path than the result does.
  const std::string inside =
      yaml::in_quotes(std::filesystem::relative(options.compile.strategy, options.folder).string());
  std::string& text = found.tried.front().text;
  text.replace(text.find(inside), inside.size(), yaml::in_quotes(base.string()));
  const std::string printed = print_found(found, options);
  PIPER_TRY(write_file(flags.output, printed));
  std::fputs(printed.c_str(), stdout);
  return ok_status();
}

void add_flags(CLI::App& app, Flags& flags) {
  SearchOptions& search = flags.search;
  app.add_option("MODEL", search.compile.model, "ONNX file; its data file need not be there")
      ->required();
  app.add_option("STRATEGY", search.compile.strategy,
                 "what all candidates include: a train section with optimizer and global_batch; "
                 "inputs, numerics, and names for tensor parallelism where the library's do not "
                 "match")
      ->required();
  app.add_option("--cluster", flags.cluster,
                 "the devices: a file (formats/cluster.md), or one of the library, as <h100x8>")
      ->required()
      ->type_name("FILE.yaml");
  app.add_option("-o,--output", flags.output,
                 "the strategy file to write; required unless --sweep is given")
      ->type_name("FILE.yaml");
  app.add_option("--sweep", flags.sweep,
                 "no search: print a table of the prediction for each combination of the values "
                 "that FILE.yaml lists for params of STRATEGY")
      ->type_name("FILE.yaml")
      ->excludes("--output");
  app.add_option("--cache", search.kept,
                 "a folder that keeps results of candidates, by digests of the program, model, "
                 "strategy, cluster and profile, so that they are not compiled again")
      ->type_name("DIR");
  app.add_flag("--force", flags.force, "replace a file that piper-search has not written");
  app.add_option("--profile", flags.profile, "times that piper-run --profile has measured there")
      ->type_name("FILE.json");
  app.add_option("--ranks", search.ranks, "how many devices; default: all of the cluster")
      ->type_name("N")
      ->check(a_count(1));
  app.add_option("--memory", flags.memory,
                 "limit on the memory of a rank, as 80GB; default: what a device has")
      ->type_name("SIZE");
  app.add_option(
         "--space", flags.space,
         "the choices to try: a file like strategies/spaces/usual.yaml, or one of the library")
      ->type_name("FILE.yaml")
      ->capture_default_str();
  app.add_option("--fix", flags.fix, "fix a choice, as pipeline=4 or tensor=2")
      ->type_name("NAME=VALUE,…")
      ->delimiter(',');
  app.add_option("--most", search.most, "how many candidates to try at most")
      ->type_name("N")
      ->check(a_count(1))
      ->capture_default_str();
  app.add_option("--threads", search.threads,
                 "how many candidates are tried at once, which changes no result (default: the "
                 "cores)")
      ->type_name("N")
      ->check(a_count(1));
  app.add_option("-D", flags.defines, "override a param of the strategy")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app.add_option("-I", search.compile.library, "a folder to search first for names of the library")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory)
      ->allow_extra_args(false);
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  piper::prepare_process();
  CLI::App app(
      "Searches the strategy that is predicted to be fastest on a cluster: mesh, schedule, ZeRO, "
      "tensor, context and expert parallelism, microbatches, recomputation, "
      "offloading and a loss in parts. "
      "Candidates are compiled, proven and simulated; the result is an ordinary strategy file.\n\n"
      "  piper-search model.onnx train.yaml --cluster '<h100x8>' -o best.yaml\n"
      "  piperc model.onnx best.yaml -o plans\n\n"
      "with train.yaml: {piper: 1, train: {optimizer: {adamw: {lr: 3e-4}}, global_batch: 64}}\n\n"
      "A table over params of one strategy, as FILE.yaml lists them "
      "(piper_sweep: 1, params: {stages: [1, 2, 4], microbatches: [8, 16]}):\n\n"
      "  piper-search model.onnx mine.yaml --cluster '<h100x8>' --sweep FILE.yaml",
      "piper-search");
  app.footer(
      "\nChoices of --fix: pipeline, tensor, replicas, context, experts, microbatches, keep "
      "(numbers), schedule, memory, recompute (words), sequence, vocabulary, and names of what the "
      "space lists under `beside`, as offload and loss (yes or no)."
      "\n\nexit codes: 0 found, 2 wrong usage, 3 nothing fits, 1 or 4 the model or the strategy "
      "cannot be read, 12 the system refused");
  piper::Flags flags;
  piper::add_flags(app, flags);
  piper::suggest_flags(app);
  app.set_version_flag("--version", fmt::format("piper-search {}", piper::version()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(piper::ExitCode::kUsage);
  }
  auto done = piper::run(flags);
  if (const auto printed = piper::flush_output(); done && !printed) done = printed.error();
  if (done) return 0;
  std::fputs(piper::print_error(done.error()).c_str(), stderr);
  return static_cast<int>(done.error().code);
}
