// piper-diff A B: what differs between two plan sets, or what two strategies make of a model.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "flag_checks.h"
#include "machine_flags.h"
#include "piper/base/process.h"
#include "piper/inspect/diff.h"
#include "rampup.h"
#include "version.h"

namespace piper {
namespace {

enum Exit { kSame = 0, kDifferent = 1, kError = 2 };

struct Flags {
  MachineFlags machine;
  std::string before, after, model;
  std::vector<std::string> defines, library;
  std::vector<std::string> only;  // sections; none: all
  std::vector<DiffGate> gates;
  bool markdown = false, json = false;
};

int report(const Error& error) {
  std::fputs(print_error(error).c_str(), stderr);
  return kError;
}

// Simulates a step of the plans, where a machine is given.
Status add_time(const Flags& flags, const PlanSet& set, Summary& summary) {
  if (!flags.machine.given()) return ok_status();
  MachineFacts facts;
  PIPER_ASSIGN(const std::unique_ptr<Machine> machine,
               flags.machine.make(set, flags.library, facts));
  PIPER_ASSIGN(const StepReport report, report_step(set, *machine));
  summary.manifest.predictions["step_seconds"] = report.average;
  summary.manifest.predictions["machine_idle"] = report.idle;
  return ok_status();
}

Result<Summary> read_set(const Flags& flags, const std::string& path, const Summary* known) {
  if (!std::filesystem::is_directory(path) && std::filesystem::exists(path))
    return fail("'{}' is no directory with plans", quote_control(path))
        .with_note("help: to compare strategies, say of which model: --model MODEL.onnx");
  if (!flags.machine.given()) return summarise(path, known);
  PIPER_ASSIGN(const PlanSet set, read_plan_set(path));
  PIPER_ASSIGN(Summary summary, summarise(path, known));
  PIPER_TRY(add_time(flags, set, summary));
  return summary;
}

// Holds one of the sets that are compared: the only one, or that of a folder or of a stage.
struct Side {
  std::string name;  // "" for the only one, else "world-8", "stage-0"
  Summary summary;
  int64_t first_step = 0;  // of a stage
};

Result<std::vector<Side>> compiled(const Flags& flags, const std::string& strategy) {
  if (std::filesystem::is_directory(strategy))
    return fail("'{}' is a directory, no strategy", quote_control(strategy))
        .with_note("help: folders of plans are compared without --model");
  CompileOptions options{
      .model = flags.model, .strategy = strategy, .library = flags.library, .oracles = false};
  PIPER_ASSIGN(options.defines, parse_definitions(flags.defines));
  if (flags.machine.given()) {
    PIPER_ASSIGN(options.target, flags.machine.target(flags.library));
    PIPER_ASSIGN(options.devices, flags.machine.devices(flags.library));
  }
  PIPER_ASSIGN(const Compiled last, compile(options));
  PIPER_ASSIGN(const std::vector<Compiled> stages, compile_stages(options, last));
  std::vector<Side> sides;
  int64_t first_step = 0;
  const auto add = [&](const Compiled& one, bool alone) {
    const std::string name = alone ? "" : fmt::format("stage-{}", sides.size());
    sides.push_back({name, summarise(one.set), first_step});
    return add_time(flags, one.set, sides.back().summary);
  };
  for (size_t s = 0; s < stages.size(); ++s) {
    PIPER_TRY(add(stages[s], false));
    first_step += last.rampup[s].steps;
  }
  PIPER_TRY(add(last, stages.empty()));
  return sides;
}

Result<std::vector<Side>> read_sets(const Flags& flags, const std::string& path,
                                    const std::vector<Side>* known) {
  PIPER_ASSIGN(const PlanFolder folder, read_plan_folder(path));
  std::vector<Side> sides;
  for (const PlanFolder::Set& set : folder.sets) {
    const std::string name = folder.kind == PlanFolder::Kind::kOne ? "" : name_in_folder(set);
    const Summary* other = nullptr;
    for (size_t k = 0; known != nullptr && k < known->size(); ++k)
      if ((*known)[k].name == name) other = &(*known)[k].summary;
    PIPER_ASSIGN(Summary summary, read_set(flags, set.directory, other));
    sides.push_back({name, std::move(summary), set.first_step});
  }
  return sides;
}

// Returns which set of each side run the same steps of a job, in the order of steps. A strategy
// whose batch does not grow has one for all of them.
std::vector<std::array<size_t, 2>> same_steps(const std::vector<Side>& before,
                                              const std::vector<Side>& after) {
  std::vector<std::array<size_t, 2>> pairs{{0, 0}};
  while (pairs.back()[0] + 1 < before.size() || pairs.back()[1] + 1 < after.size()) {
    auto [b, a] = pairs.back();
    const auto next = [](const std::vector<Side>& sides, size_t at) {
      return at + 1 < sides.size() ? sides[at + 1].first_step : INT64_MAX;
    };
    const int64_t step = std::min(next(before, b), next(after, a));
    if (next(before, b) == step) ++b;
    if (next(after, a) == step) ++a;
    pairs.push_back({b, a});
  }
  return pairs;
}

// Of stages it compares those that run the same steps, of worlds those of one name.
Result<std::vector<Diff>> compare_sets(const Flags& flags) {
  const bool compiles = !flags.model.empty();
  PIPER_ASSIGN(const std::vector<Side> before,
               compiles ? compiled(flags, flags.before) : read_sets(flags, flags.before, nullptr));
  PIPER_ASSIGN(const std::vector<Side> after,
               compiles ? compiled(flags, flags.after) : read_sets(flags, flags.after, &before));
  const auto names = [](const std::vector<Side>& sides) {
    std::vector<std::string> all;
    for (const Side& one : sides) all.push_back(one.name.empty() ? "one plan set" : one.name);
    return join(all, ", ");
  };
  const auto is_of_worlds = [](const Side& one) { return one.name.starts_with("world-"); };
  const bool worlds =
      std::ranges::any_of(before, is_of_worlds) || std::ranges::any_of(after, is_of_worlds);
  if (worlds && names(before) != names(after))
    return fail("'{}' has {}, and '{}' has {}: there is not one to compare with each other",
                flags.before, names(before), flags.after, names(after))
        .with_note("help: name one of each, such as DIR/world-8");
  std::vector<std::array<size_t, 2>> pairs;
  if (!worlds) pairs = same_steps(before, after);
  for (size_t k = 0; worlds && k < before.size(); ++k) pairs.push_back({k, k});
  std::vector<Diff> diffs;
  for (const auto& [b, a] : pairs) {
    Diff& diff = diffs.emplace_back(compare(before[b].summary, after[a].summary));
    const auto path = [](const std::string& side, const Side& one) {
      return side + (one.name.empty() ? "" : "/" + one.name);
    };
    diff.before = path(flags.before, before[b]);
    diff.after = path(flags.after, after[a]);
  }
  return diffs;
}

bool wants_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return isatty(1) && (no_colour == nullptr || *no_colour == '\0');
}

// "": the text is read; as CLI11 wants it.
template <class T>
std::string take(Result<T> read, T& out) {
  if (!read) return read.error().message;
  out = *std::move(read);
  return {};
}

int run(const Flags& flags) {
  auto diffs = compare_sets(flags);
  if (!diffs) return report(diffs.error());
  bool same = true, passes = true;
  for (Diff& diff : *diffs) {
    apply_gates(flags.gates, diff);
    if (!flags.only.empty()) keep_sections(diff, flags.only);
    const std::string text = flags.json       ? print_diff_json(diff)
                             : flags.markdown ? print_diff_markdown(diff)
                                              : print_diff(diff, wants_colour());
    if (&diff != diffs->data() && !flags.json) std::fputs("\n", stdout);
    std::fputs(text.c_str(), stdout);
    same = same && diff.same();
    passes = passes && diff.failed.empty();
  }
  if (const Status printed = flush_output(); !printed) return report(printed.error());
  return (flags.gates.empty() ? same : passes) ? kSame : kDifferent;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  using namespace piper;
  prepare_process();
  Flags flags;
  CLI::App app(
      "Says what differs between two plan sets in what they train, cost and do.\n\n"
      "  piper-diff old/ new/                                    two folders of plans\n"
      "  piper-diff --model model.onnx old.yaml new.yaml -D dp=2 what two strategies make of a "
      "model\n"
      "  piper-diff old/ new/ --fail-on memory:+5%,order         a gate: fails only for these\n"
      "  piper-diff old/ new/ --cluster '<h100x8>' --fail-on time:+5%   by the predicted time of a "
      "step",
      "piper-diff");
  const std::vector<std::string> sections(diff_sections().begin(), diff_sections().end());
  app.footer("\nSections: " + join(sections, ", ") +
             "\n\nExit codes: 0 no difference in what runs, 1 different (with --fail-on: what it "
             "names fails), 2 error.\nPage: formats/diff.md");
  app.add_option("BEFORE", flags.before, "plan set, or strategy")->required();
  app.add_option("AFTER", flags.after, "plan set, or strategy")->required();
  app.add_option("--model", flags.model, "compile two strategies for this model")
      ->type_name("MODEL.onnx");
  app.add_option("-D", flags.defines, "override a param of both strategies")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  app.add_option("-I", flags.library,
                 "a folder to search for names such as '<ddp>', before the folders of the variable "
                 "PIPER_STRATEGIES (DIR:DIR:…) and the library of this program")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory)
      ->allow_extra_args(false);
  flags.machine.add(app, false);
  std::string only, gates;
  app.add_option("--only", only, "compare only these sections")
      ->check([&](const std::string& text) { return take(parse_sections(text), flags.only); })
      ->type_name("SECTION,…");
  app.add_option("--fail-on", gates,
                 "exit with 1 only where one of these sections differs, or with :+N% where its "
                 "largest value of any device grows by more")
      ->check([&](const std::string& text) { return take(parse_gates(text), flags.gates); })
      ->type_name("SECTION[:+N%],…");
  CLI::Option* markdown =
      app.add_flag("--markdown", flags.markdown, "for a comment: folded sections, at most 60 kB");
  app.add_flag(
         "--json", flags.json,
         "one object, of the form that formats/diff.md describes; of several plan sets, one each")
      ->excludes(markdown);
  suggest_flags(app);
  app.set_version_flag("--version", fmt::format("piper-diff {}", version()));
  try {
    app.parse(argc, argv);
    if (!flags.defines.empty() && flags.model.empty())
      throw CLI::RequiredError("--model MODEL.onnx (for -D)");
    if (!flags.library.empty() && flags.model.empty())
      throw CLI::RequiredError("--model MODEL.onnx (for -I)");
    for (const DiffGate& gate : flags.gates)
      if (!flags.only.empty() &&
          std::find(flags.only.begin(), flags.only.end(), gate.section) == flags.only.end())
        throw CLI::ValidationError("--fail-on", "--only leaves out " + gate.section);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kSame : kError;
  }
  return run(flags);
}
