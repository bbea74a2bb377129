// piper-sim PLANS: what a step of a plan set takes on a machine, where devices idle and why.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iterator>

#include "flag_checks.h"
#include "machine_flags.h"
#include "piper/base/outputs.h"
#include "piper/base/process.h"
#include "piper/inspect/html.h"
#include "piper/plan/worlds.h"
#include "still_at_work.h"
#include "version.h"

namespace piper {
namespace {

struct Flags {
  std::string plans, trace, html;
  std::vector<std::string> why, library, measured;
  MachineFlags machine;
  int steps = 1;
  bool json = false, no_sensitivity = false;
  bool shows() const { return !why.empty() || !trace.empty() || !html.empty(); }
};

constexpr const char* kFooter =
    "\nCosts: of a cluster file (formats/cluster.md), of a profile (piper-run --profile), or "
    "stated:\n"
    "  --costs F=18,BI=18,BW=9,send=0.6     milliseconds of a microbatch; F@3=20 is stage 3's; BI "
    "and BW default to F, B to both together\n"
    "\nExit codes: 0 done, 1 the cluster, the profile or the costs do not fit the plans, 2 wrong "
    "usage, 4 the plans cannot be read or followed, 12 the system "
    "refused a file or memory";

Status write_page(const Flags& flags, const MachineFacts& facts, const Timeline& timeline) {
  const std::string title =
      fmt::format("{}: {} ranks on {}", flags.plans, timeline.row_of_rank.size(), facts.name);
  if (flags.measured.empty()) return write_file(flags.html, draw_html(timeline, title));
  PIPER_ASSIGN(const Measured measured, read_measured(timeline, flags.measured));
  return write_file(flags.html, draw_html(timeline, title, &measured));
}

// Prints, writes and explains what is asked for of one set.
Status run_one(const Flags& flags, const PlanSet& set) {
  const StillAtWork at_work("simulates the plans");
  MachineFacts facts;
  PIPER_ASSIGN(const std::unique_ptr<Machine> machine,
               flags.machine.make(set, flags.library, facts));
  if (flags.shows()) {
    PIPER_ASSIGN(const Timeline timeline, simulate(set, *machine, flags.steps));
    if (!flags.trace.empty()) PIPER_TRY(write_file(flags.trace, timeline_trace(timeline)));
    if (!flags.html.empty()) PIPER_TRY(write_page(flags, facts, timeline));
    PIPER_TRY(print_why(flags.why, set, timeline));
    if (!flags.why.empty()) return ok_status();
  }
  return print_prediction(set, *machine, facts, flags.json, !flags.no_sensitivity);
}

Status check_files(const Flags& flags) {
  const OutputFile outputs[] = {{"--trace", flags.trace}, {"--html", flags.html}};
  std::vector<std::string> inputs = files_of_plans(flags.plans);
  inputs.insert(inputs.end(), {flags.machine.cluster, flags.machine.profile});
  std::ranges::copy(flags.measured, std::back_inserter(inputs));
  return check_outputs(outputs, inputs);
}

// Reports each plan set of a folder, and what the steps of a batch that grows take.
Status run(const Flags& flags) {
  PIPER_TRY(check_files(flags));
  PIPER_ASSIGN(const PlanFolder folder, read_plan_folder(flags.plans));
  if (folder.sets.size() == 1 || flags.shows()) {  // one that is not named is refused by the reader
    Result<PlanSet> set = read_plan_set(flags.plans);
    if (!set && folder.sets.size() > 1) set.error().code = ExitCode::kUsage;
    PIPER_ASSIGN(const PlanSet one, std::move(set));
    return run_one(flags, one);
  }
  std::vector<PlanSet> sets;
  std::vector<int64_t> first_steps;
  for (const PlanFolder::Set& one : folder.sets) {
    PIPER_ASSIGN(sets.emplace_back(), read_plan_set(one.directory));
    first_steps.push_back(one.first_step);
    if (!flags.json) fmt::print("{}{}\n", sets.size() == 1 ? "" : "\n", one.directory);
    PIPER_TRY(run_one(flags, sets.back()));
  }
  if (folder.kind != PlanFolder::Kind::kStages) return ok_status();
  std::vector<const PlanSet*> before;
  for (const PlanSet& set : std::span(sets).first(sets.size() - 1)) before.push_back(&set);
  return print_rampup(before, first_steps, flags.machine, flags.library, flags.json);
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  piper::prepare_process();
  CLI::App app(
      "Predicts a step of a plan set: its time, where devices idle and why, which "
      "communication is not hidden, and whether it fits.",
      "piper-sim");
  app.footer(piper::kFooter);
  piper::Flags flags;
  app.add_option("PLANS", flags.plans,
                 "the directory that piperc wrote; of several plan sets, each is predicted; --why, "
                 "--trace and --html are of one")
      ->required();
  flags.machine.add(app, true);
  app.add_option("-I", flags.library, "a folder to search first for clusters of the library")
      ->type_name("DIR")
      ->check(CLI::ExistingDirectory)
      ->allow_extra_args(false);
  app.add_option("--why", flags.why,
                 "say what a rank does at this time of a step, and what it waits for, instead of "
                 "the report")
      ->type_name("RANK@MS,…")
      ->delimiter(',');
  app.add_option("--steps", flags.steps, "how many steps --why, --trace and --html simulate")
      ->check(piper::between(1, 1000, "from 1 to 1000"))
      ->capture_default_str();
  app.add_option("--trace", flags.trace, "write what runs when, for Perfetto")
      ->type_name("FILE.json");
  auto* html =
      app.add_option("--html", flags.html,
                     "write a page that shows what runs when and why devices idle, for a browser")
          ->type_name("FILE.html");
  app.add_option("--measured", flags.measured,
                 "for --html: traces of these plans by 'piper-run --trace', drawn beneath the "
                 "prediction; one file for each process")
      ->type_name("TRACE.json,…")
      ->delimiter(',')
      ->needs(html);
  app.add_flag("--no-sensitivity", flags.no_sensitivity,
               "leave out the effect of costs that are 10 % off, which takes ten more simulations");
  app.add_flag("--json", flags.json, "print one JSON object; of several plan sets, one each");
  piper::suggest_flags(app);
  app.set_version_flag("--version", fmt::format("piper-sim {}", piper::version()));
  try {
    app.parse(argc, argv);
    if (app.count("--steps") > 0 && !flags.shows())
      throw CLI::RequiredError("--steps: --why, --trace or --html");
    if (flags.json && !flags.why.empty())
      throw CLI::ValidationError("--json", "--why prints sentences");
    if (!flags.machine.given()) throw CLI::RequiredError("--cluster FILE or --costs NAME=MS");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(piper::ExitCode::kUsage);
  }
  auto done = piper::run(flags);
  if (const auto printed = piper::flush_output(); done && !printed) done = printed.error();
  if (done) return 0;
  std::fputs(piper::print_error(done.error()).c_str(), stderr);
  return static_cast<int>(done.error().code);
}
