// piper-sim PLANS: what a step of a plan set takes on a machine, where devices idle and why.
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "flag_checks.h"
#include "piper/base/process.h"
#include "piper/inspect/analysis.h"
#include "piper/inspect/cluster.h"
#include "version.h"

namespace piper {
namespace {

struct Flags {
  std::string plans, cluster, profile, trace;
  std::vector<std::string> costs, why, library;
  int steps = 1;
  bool json = false, no_sensitivity = false;
};

constexpr const char* kFooter =
    "\nCosts: of a cluster file (formats/cluster.md), of a profile (piper-run --profile), or "
    "stated:\n"
    "  --costs F=18,BI=18,BW=9,send=0.6     milliseconds of a microbatch; F@3=20 is stage 3's\n"
    "\nexit codes: 0 done, 2 wrong usage, 4 the plans cannot be read or followed, 12 the system "
    "refused";

// Reads a number that ends the text.
Result<double> milliseconds(const std::string& text, const std::string& number) {
  char* end = nullptr;
  const double value = std::strtod(number.c_str(), &end);
  if (number.empty() || *end != '\0' || !(value >= 0) || !std::isfinite(value))
    return fail("--costs {}: '{}' is not a number of milliseconds from 0 on", quote_control(text),
                quote_control(number))
        .with_code(ExitCode::kUsage);
  return value / 1e3;
}

Result<StatedCosts> read_costs(const std::vector<std::string>& all) {
  StatedCosts costs{0, 0, 0, 0, 0, 0, {}};
  constexpr std::array<std::string_view, 4> kPasses = {"F", "B", "BI", "BW"};
  double* const usual[] = {&costs.forward, &costs.backward, &costs.input_half, &costs.weight_half};
  std::vector<std::tuple<int32_t, size_t, double>> of_stages;
  for (const std::string& text : all) {
    const size_t equals = text.find('='), sign = std::min(text.find('@'), equals);
    const std::string name = text.substr(0, sign);
    PIPER_ASSIGN(const double value,
                 milliseconds(text, equals == text.npos ? "" : text.substr(equals + 1)));
    const auto pass = std::find(kPasses.begin(), kPasses.end(), name);
    if (sign < equals) {
      const std::string stage = text.substr(sign + 1, equals - sign - 1);
      const bool whole =
          !stage.empty() && stage.size() < 7 && stage.find_first_not_of("0123456789") == stage.npos;
      if (!whole || pass == kPasses.end())
        return fail("--costs {}: expected a pass and its stage, as F@3=20", quote_control(text))
            .with_code(ExitCode::kUsage);
      of_stages.emplace_back(std::atoi(stage.c_str()), pass - kPasses.begin(), value);
    } else if (pass != kPasses.end()) {
      *usual[pass - kPasses.begin()] = value;
    } else if (name == "U" || name == "send") {
      (name == "U" ? costs.update : costs.send) = value;
    } else {
      return fail(
                 "--costs: there is no '{}'; passes are F, B, BI, BW and U, and 'send' is a "
                 "message",
                 quote_control(name))
          .with_code(ExitCode::kUsage);
    }
  }
  if (costs.backward == 0) costs.backward = costs.input_half + costs.weight_half;
  for (const auto& [stage, pass, value] : of_stages) {
    const auto own = costs.of_stage.try_emplace(
        stage,
        std::array<double, 4>{costs.forward, costs.backward, costs.input_half, costs.weight_half});
    own.first->second[pass] = value;
  }
  return costs;
}

Status explain(const Flags& flags, const Timeline& timeline) {
  for (const std::string& text : flags.why) {
    const size_t sign = text.find('@');
    char *end = nullptr, *unit = nullptr;
    const double rank = std::strtod(text.c_str(), &end);
    const double time = sign == text.npos ? -1 : std::strtod(text.c_str() + sign + 1, &unit);
    if (sign == text.npos || end != text.c_str() + sign || rank != std::floor(rank) ||
        !(time >= 0) || (*unit != '\0' && std::string_view(unit) != "ms"))
      return fail("--why {}: expected a rank and milliseconds, as 3@12.5", quote_control(text))
          .with_code(ExitCode::kUsage);
    PIPER_ASSIGN(const std::vector<std::string> lines,
                 explain_time(timeline, static_cast<int64_t>(rank), time / 1e3));
    for (const std::string& line : lines) fmt::print("{}\n", line);
  }
  return ok_status();
}

Result<std::unique_ptr<Machine>> make_machine(const Flags& flags, const PlanSet& set,
                                              MachineFacts& facts) {
  if (!flags.costs.empty()) {
    PIPER_ASSIGN(const StatedCosts stated, read_costs(flags.costs));
    facts.name = "stated costs";
    return stated_machine(stated);
  }
  PIPER_ASSIGN(const Cluster cluster, read_cluster(flags.cluster, flags.library));
  std::optional<MeasuredTimes> measured;
  if (!flags.profile.empty()) {
    PIPER_ASSIGN(measured, read_profile(flags.profile));
  }
  facts = facts_of(cluster, set);
  return cluster_machine(cluster, set, measured ? &*measured : nullptr);
}

Status run(const Flags& flags) {
  PIPER_ASSIGN(const PlanSet set, read_plan_set(flags.plans));
  MachineFacts facts;
  PIPER_ASSIGN(const std::unique_ptr<Machine> machine, make_machine(flags, set, facts));
  if (!flags.why.empty() || !flags.trace.empty()) {
    PIPER_ASSIGN(const Timeline timeline, simulate(set, *machine, flags.steps));
    if (!flags.trace.empty()) PIPER_TRY(write_file(flags.trace, timeline_trace(timeline)));
    PIPER_TRY(explain(flags, timeline));
    if (!flags.why.empty()) return ok_status();
  }
  PIPER_ASSIGN(const StepReport report, report_step(set, *machine));
  std::vector<Sensitivity> off;
  if (!flags.no_sensitivity) {
    PIPER_ASSIGN(off, sensitivity(set, *machine, report, 0.1));
  }
  const std::string text =
      flags.json ? report_json(set, report, facts, off) : print_report(set, report, facts, off);
  std::fputs(text.c_str(), stdout);
  return ok_status();
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
  app.add_option("PLANS", flags.plans, "the directory that piperc wrote")->required();
  CLI::Option* cluster =
      app.add_option("--cluster", flags.cluster,
                     "what devices and links there are: a file, or one of the library, as <h100x8>")
          ->type_name("FILE.yaml");
  app.add_option("-I", flags.library, "folders that the library's files are looked for in, too")
      ->type_name("DIR");
  app.add_option("--profile", flags.profile,
                 "times that piper-run --profile has measured, of any plans on such devices")
      ->type_name("FILE.json")
      ->needs(cluster);
  CLI::Option* costs =
      app.add_option("--costs", flags.costs, "stated times of passes and messages, in milliseconds")
          ->type_name("NAME=MS,…")
          ->delimiter(',')
          ->excludes(cluster);
  app.add_option("--why", flags.why,
                 "what a rank does at a time, and what it waits for; in place of the report")
      ->type_name("RANK@MS,…")
      ->delimiter(',');
  app.add_option("--steps", flags.steps, "of --why and --trace: how many steps are simulated")
      ->check(piper::between(1, 1000, "from 1 to 1000"))
      ->capture_default_str();
  app.add_option("--trace", flags.trace, "write what runs when, for Perfetto")
      ->type_name("FILE.json");
  app.add_flag("--no-sensitivity", flags.no_sensitivity,
               "leave out what happens if costs are 10 % off, which simulates ten times more");
  app.add_flag("--json", flags.json, "print one JSON object");
  app.set_version_flag("--version", fmt::format("piper-sim {}", piper::version()));
  try {
    app.parse(argc, argv);
    if (cluster->empty() && costs->empty())
      throw CLI::RequiredError("--cluster FILE or --costs NAME=MS");
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(piper::ExitCode::kUsage);
  }
  auto done = piper::run(flags);
  if (const auto printed = piper::flush_output(); done && !printed) done = printed.error();
  if (done) return 0;
  std::fputs(piper::print_error(done.error()).c_str(), stderr);
  return static_cast<int>(done.error().code);
}
