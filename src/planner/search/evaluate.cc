// Evaluates candidates, and keeps what they came to by digests of all that it depends on: the
// program, the model, the strategy as it counts, the cluster and the profile.
#include "evaluate.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "piper/frontend/strategy.h"
#include "piper/plan/flops.h"

namespace piper {
namespace {

constexpr std::string_view kFirstLine = "piper-search 1";

constexpr std::pair<std::string_view, double Outcome::*> kNumbers[] = {
    {"step", &Outcome::step},       {"idle", &Outcome::idle},
    {"exposed", &Outcome::exposed}, {"peak_bytes", &Outcome::peak_bytes},
    {"memory", &Outcome::memory},   {"products", &Outcome::products}};

Result<std::string> digest_of_file(const std::string& path) {
  PIPER_ASSIGN(const Bytes bytes, map_file(path));
  return digest(as_text(bytes.span()));
}

// Plans depend on the model's file, and on data beside it no more than by what is computed of
// constants: their sizes and times say whether they are the same.
Result<std::string> digest_of_model(const std::string& path) {
  PIPER_ASSIGN(std::string text, digest_of_file(path));
  const std::filesystem::path file(path);
  std::vector<std::string> beside;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(
           file.has_parent_path() ? file.parent_path() : std::filesystem::path("."), code)) {
    const std::string name = entry.path().filename().string();
    const bool is_data = name.starts_with(file.stem().string()) && name != file.filename().string();
    if (!is_data || !entry.is_regular_file(code)) continue;
    beside.push_back(fmt::format("{} {} {}", name, entry.file_size(code),
                                 entry.last_write_time(code).time_since_epoch().count()));
  }
  std::sort(beside.begin(), beside.end());
  return text + " " + join(beside, " ");
}

std::string print_outcome(const Result<Outcome>& outcome) {
  std::string text = fmt::format("{}\n", kFirstLine);
  if (!outcome)
    return text + fmt::format("refused {} {}\n", static_cast<int>(outcome.error().code),
                              outcome.error().message);
  for (const auto& [name, number] : kNumbers)
    text += fmt::format("{} {:a}\n", name, (*outcome).*number);
  return text;
}

// Returns a result that was kept; nothing where the text is not one of ours, or is not whole.
std::optional<Result<Outcome>> parse_outcome(const std::string& text) {
  const std::vector<std::string> lines = split_text(text, '\n');
  if (lines.size() < 2 || lines[0] != kFirstLine) return std::nullopt;
  if (lines[1].starts_with("refused ")) {
    char* rest = nullptr;
    const long code = std::strtol(lines[1].c_str() + 8, &rest, 10);
    if (*rest != ' ') return std::nullopt;
    return fail("{}", rest + 1).with_code(static_cast<ExitCode>(code));
  }
  Outcome outcome;
  for (size_t n = 0; n < std::size(kNumbers); ++n) {
    const auto& [name, number] = kNumbers[n];
    const std::string begin = fmt::format("{} ", name);
    if (n + 1 >= lines.size() || !lines[n + 1].starts_with(begin)) return std::nullopt;
    char* end = nullptr;
    outcome.*number = std::strtod(lines[n + 1].c_str() + begin.size(), &end);
    if (*end != '\0') return std::nullopt;
  }
  return outcome;
}

}  // namespace

void take(const Outcome& outcome, const SearchOptions& options, Tried& tried) {
  tried.step = outcome.step;
  tried.idle = outcome.idle;
  tried.exposed = outcome.exposed;
  tried.peak_bytes = outcome.peak_bytes;
  tried.memory = options.memory > 0 && outcome.memory > 0
                     ? std::min(options.memory, outcome.memory)
                     : std::max(options.memory, outcome.memory);
}

Result<Evaluator> Evaluator::make(const SearchOptions& options) {
  Evaluator made(options);
  PIPER_ASSIGN(made.devices_,
               cluster_costs(options.cluster, options.profile ? &*options.profile : nullptr));
  if (options.kept.empty()) return made;
  std::error_code code;
  std::filesystem::create_directories(options.kept, code);
  if (code)
    return fail("the folder '{}' cannot be made: {}", quote_control(options.kept), code.message())
        .with_code(ExitCode::kStorage);
  PIPER_ASSIGN(const std::string program, digest_of_file("/proc/self/exe"));
  PIPER_ASSIGN(const std::string model, digest_of_model(options.compile.model));
  PIPER_ASSIGN(const std::string cluster, digest_of_file(options.cluster.path));
  std::string profile = "none";
  if (options.profile) {
    PIPER_ASSIGN(profile, digest_of_file(options.profile->path));
  }
  made.inputs_ =
      fmt::format("{} {} {} {} {}", program, model, cluster, profile, options.compile.target);
  return made;
}

Result<Outcome> Evaluator::run(const std::string& text, size_t number, bool may_be_kept_refusal,
                               const std::vector<Definition>& more) const {
  CompileOptions options = options_.compile;
  options.defines.insert(options.defines.end(), more.begin(), more.end());
  options.strategy = fmt::format("{}/candidate-{}.yaml", options_.folder, number);
  options.oracles = false;
  options.devices = devices_;
  options.known_models = models_;
  PIPER_TRY(write_file(options.strategy, text));
  if (inputs_.empty()) return compute(options);
  // What includes and -D come to, so that names of files do not count.
  const auto strategy = parse_strategy(options.strategy, options.defines, options.library);
  if (!strategy) return strategy.error();
  const std::string file =
      fmt::format("{}/{}", options_.kept, digest(inputs_ + "\n" + print_strategy(*strategy)));
  constexpr int64_t kMostBytes = 1 << 16;
  if (const auto known = read_text_file(file, kMostBytes))
    if (auto outcome = parse_outcome(*known); outcome && (*outcome || may_be_kept_refusal))
      return *std::move(outcome);
  Result<Outcome> outcome = compute(options);
  // What the system refused may go well another time, so it is not kept.
  if (outcome || outcome.error().code != ExitCode::kStorage) keep(file, outcome);
  return outcome;
}

// Keeps a result. One that cannot be written is computed again the next time.
void Evaluator::keep(const std::string& file, const Result<Outcome>& outcome) const {
  const Status written = write_file(file, print_outcome(outcome));
  if (written || !options_.warn) return;
  std::call_once(*warned_, [&] { options_.warn(written.error()); });
}

Result<Outcome> Evaluator::compute(const CompileOptions& options) const {
  PIPER_ASSIGN(const Compiled compiled, compile(options));
  PIPER_ASSIGN(const std::unique_ptr<Machine> machine,
               cluster_machine(options_.cluster, compiled.set,
                               options_.profile ? &*options_.profile : nullptr));
  PIPER_ASSIGN(const StepReport report, report_step(compiled.set, *machine));
  const MachineFacts facts = facts_of(options_.cluster, compiled.set);
  Outcome outcome{.step = report.average,
                  .idle = report.idle,
                  .peak_bytes = facts.memory > 0 ? facts.peak_bytes
                                                 : static_cast<double>(largest_peak(compiled.set)),
                  .memory = facts.memory};
  for (const RowTimes& row : report.rows)
    outcome.exposed = std::max(
        outcome.exposed,
        report.step > 0 ? row.idle[static_cast<size_t>(IdleReason::kMoving)] / report.step : 0);
  if (facts.peak_flops > 0) {
    PIPER_ASSIGN(const double flops, flops_of_ranks(compiled.set, run_flops));
    outcome.products = flops / facts.peak_flops;
  }
  return outcome;
}

}  // namespace piper
