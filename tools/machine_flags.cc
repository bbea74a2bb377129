// Machines from flags: of a cluster file and a profile, or of stated times.
#include "machine_flags.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace piper {
namespace {

// Reads a number that ends the text.
Result<double> milliseconds(const std::string& text, const std::string& number) {
  char* end = nullptr;
  const double value = std::strtod(number.c_str(), &end);
  constexpr double kMost = 1e24;  // sums of such times are finite
  if (number.empty() || *end != '\0' || !(value >= 0 && value <= kMost))
    return fail("--costs {}: '{}' is not a number of milliseconds from 0 on", quote_control(text),
                quote_control(number))
        .with_code(ExitCode::kUsage);
  return value / 1e3;
}

Result<StatedCosts> read_costs(const std::vector<std::string>& all) {
  StatedCosts costs{0, 0, 0, 0, 0, 0, {}};
  constexpr std::array<std::string_view, 4> kPasses = {"F", "B", "BI", "BW"};
  std::array<std::optional<double>, 4> usual;
  std::map<int32_t, std::array<std::optional<double>, 4>> of_stages;
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
      of_stages[std::atoi(stage.c_str())][static_cast<size_t>(pass - kPasses.begin())] = value;
    } else if (pass != kPasses.end()) {
      usual[static_cast<size_t>(pass - kPasses.begin())] = value;
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
  // Passes whose costs are not said follow from those that are, for a stage as for all: so do a
  // policy's costs.
  const auto filled = [](const std::array<std::optional<double>, 4>& said) {
    const double forward = said[0].value_or(0);
    const double input = said[2].value_or(forward), weight = said[3].value_or(forward);
    return std::array{forward, said[1].value_or(input + weight), input, weight};
  };
  std::tie(costs.forward, costs.backward, costs.input_half, costs.weight_half) =
      std::tuple_cat(filled(usual));
  for (auto& [stage, said] : of_stages) {
    const bool has_half = said[2] || said[3];
    for (size_t pass = 0; pass < said.size(); ++pass)
      if (!said[pass] && !(kPasses[pass] == "B" && has_half)) said[pass] = usual[pass];
    costs.of_stage[stage] = filled(said);
  }
  return costs;
}

// Lists the costs that may be meant by a name of none: of its pass in a stage, or of all stages.
std::string names_like(const std::string& name, const std::set<std::string>& known) {
  const size_t sign = name.find('@');
  const auto list = [&](bool of_stages) {
    std::vector<std::string> names;
    for (const std::string& one : known)
      if (of_stages ? one.starts_with(name.substr(0, sign) + "@") && !one.ends_with("@-1")
                    : one.find('@') == one.npos)
        names.push_back(one);
    return names;
  };
  std::vector<std::string> names = list(sign != name.npos);
  if (names.empty()) names = list(false);
  std::ranges::stable_sort(names, {}, &std::string::size);
  constexpr size_t kMost = 16;
  const size_t more = names.size() - std::min(names.size(), kMost);
  names.resize(names.size() - more);
  return join(names, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
}

// Costs of what the plans have not would be left out in silence.
Status check_costs(const std::vector<std::string>& all, const PlanSet& set) {
  std::set<std::string> known = {"send", "U"}, given;
  for (const RoleProgram& role : set.roles)
    for (const Instruction& one : role.body)
      if (one.kind == InstructionKind::kCompute && is_ordered(one.pass)) {
        std::vector<std::string> passes = {name_of(one.pass)};
        if (one.pass == TaskPass::kB) passes.insert(passes.end(), {"BI", "BW"});  // it takes both
        for (const std::string& pass : passes)
          known.insert({pass, fmt::format("{}@{}", pass, one.stage)});
      }
  for (const std::string& text : all) {
    const std::string name = text.substr(0, text.find('='));
    if (!known.contains(name))
      return fail("--costs {}: the plans have no '{}'{}", quote_control(text), quote_control(name),
                  name == "B" ? "; their backwards are in halves, BI and BW" : "")
          .with_note("help: they have " + names_like(name, known))
          .with_code(ExitCode::kUsage);
    if (!given.insert(name).second)
      return fail("--costs: '{}' is given twice", quote_control(name)).with_code(ExitCode::kUsage);
  }
  return ok_status();
}

// Returns the rank, and the time in seconds, of a text as "3@12.5".
Result<std::pair<int64_t, double>> read_moment(const std::string& text) {
  const size_t sign = text.find('@');
  char* unit = nullptr;
  int64_t rank = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), rank);
  const double time = sign == text.npos ? -1 : std::strtod(text.c_str() + sign + 1, &unit);
  if (sign == text.npos || read.ec != std::errc() || read.ptr != text.data() + sign ||
      !(time >= 0) || !std::isfinite(time) || unit == text.c_str() + sign + 1 ||
      (*unit != '\0' && std::string_view(unit) != "ms"))
    return fail("--why {}: expected a rank and milliseconds, as 3@12.5", quote_control(text))
        .with_code(ExitCode::kUsage);
  return std::pair(rank, time / 1e3);
}

}  // namespace

void MachineFlags::add(CLI::App& app, bool stated) {
  const std::string chooses =
      stated ? "" : "; stages, orders and recomputation are chosen by their costs";
  CLI::Option* cluster_option =
      app.add_option(
             "--cluster", cluster,
             "predict a step on these devices and links: a file (formats/cluster.md), or one of "
             "the library, as <h100x8>" +
                 chooses)
          ->type_name("FILE.yaml");
  app.add_option("--profile", profile,
                 "with times that piper-run --profile has measured there, of any plans")
      ->type_name("FILE.json")
      ->needs(cluster_option);
  if (!stated) return;
  app.add_option("--costs", costs, "stated times of passes and messages, in milliseconds")
      ->type_name("NAME=MS,…")
      ->delimiter(',')
      ->excludes(cluster_option);
}

Result<std::string> MachineFlags::target(const std::vector<std::string>& library) const {
  PIPER_ASSIGN(const Cluster read, read_cluster(cluster, library));
  return read.device_of(0).target;
}

Result<std::shared_ptr<const DeviceCosts>> MachineFlags::devices(
    const std::vector<std::string>& library) const {
  if (cluster.empty()) return std::shared_ptr<const DeviceCosts>();
  PIPER_ASSIGN(const Cluster read, read_cluster(cluster, library));
  std::optional<MeasuredTimes> measured;
  if (!profile.empty()) {
    PIPER_ASSIGN(measured, read_profile(profile));
  }
  return cluster_costs(read, measured ? &*measured : nullptr);
}

Result<std::unique_ptr<Machine>> MachineFlags::make(const PlanSet& set,
                                                    const std::vector<std::string>& library,
                                                    MachineFacts& facts) const {
  if (!costs.empty()) {
    PIPER_ASSIGN(const StatedCosts stated, read_costs(costs));
    PIPER_TRY(check_costs(costs, set));
    facts.name = "stated costs";
    return stated_machine(stated);
  }
  PIPER_ASSIGN(const Cluster read, read_cluster(cluster, library));
  std::optional<MeasuredTimes> measured;
  if (!profile.empty()) {
    PIPER_ASSIGN(measured, read_profile(profile));
  }
  const MeasuredTimes* const times = measured ? &*measured : nullptr;
  facts = facts_of(read, set, times);
  return cluster_machine(read, set, times);
}

Status print_prediction(const PlanSet& set, const Machine& machine, const MachineFacts& facts,
                        bool json, bool off) {
  PIPER_ASSIGN(const StepReport report, report_step(set, machine));
  std::vector<Sensitivity> sensitive;
  if (off) {
    PIPER_ASSIGN(sensitive, sensitivity(set, machine, report, 0.1));
  }
  const std::string text = json ? report_json(set, report, facts, sensitive)
                                : print_report(set, report, facts, sensitive);
  std::fputs(text.c_str(), stdout);
  return ok_status();
}

Status print_why(std::span<const std::string> times, const PlanSet& set, const Timeline& timeline) {
  for (const std::string& text : times) {
    PIPER_ASSIGN(const auto asked, read_moment(text));
    PIPER_ASSIGN(const std::vector<std::string> lines,
                 explain_time(timeline, asked.first, asked.second, set.manifest.strategy_text));
    for (const std::string& line : lines) fmt::print("{}\n", line);
  }
  return ok_status();
}

Status print_rampup(std::span<const PlanSet* const> stages, std::span<const int64_t> first_steps,
                    const MachineFlags& flags, const std::vector<std::string>& library, bool json) {
  double all = 0;
  std::vector<std::string> lines;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const PlanSet& set = *stages[stage];
    MachineFacts facts;
    PIPER_ASSIGN(const std::unique_ptr<Machine> machine, flags.make(set, library, facts));
    PIPER_ASSIGN(const StepReport report, report_step(set, *machine));
    const int64_t begin = first_steps[stage], steps = first_steps[stage + 1] - begin;
    const double seconds = report.first + static_cast<double>(steps - 1) * report.average;
    all += seconds;
    lines.push_back(
        json ? fmt::format("{{\"first_step\":{},\"steps\":{},\"step_seconds\":{},\"seconds\":{}}}",
                           begin, steps, report.step, seconds)
             : fmt::format("  steps {} to {}: {} samples, {:.4g} ms a step, {:.4g} s in all\n",
                           begin + 1, begin + steps, set.roles[0].samples(), report.step * 1e3,
                           seconds));
  }
  if (json)
    fmt::print("{{\"rampup_seconds\":{},\"stages\":[{}]}}\n", all, join(lines, ","));
  else
    fmt::print("\nramp-up     {:.4g} s      the first {} steps, whose batches are smaller\n{}", all,
               first_steps[stages.size()], join(lines, ""));
  return ok_status();
}

}  // namespace piper
