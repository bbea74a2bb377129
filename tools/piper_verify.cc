// piper-verify DIR: proves a plan set right from its files alone.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "piper/backend_cpu.h"
#include "piper/verify.h"

namespace piper {
namespace {

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += fmt::format("\\{}", c);
    else if (code < 0x20)
      out += fmt::format("\\u{:04x}", code);
    else
      out += c;
  }
  return out;
}

int64_t largest_peak(const PlanSet& set) {
  int64_t peak = 0;
  for (const RoleProgram& role : set.roles) peak = std::max(peak, role.peak_bytes());
  return peak;
}

void print_json(const std::string& directory, const PlanSet& set, const VerifyReport& report) {
  std::string findings;
  for (const Finding& finding : report.findings)
    findings +=
        fmt::format("{}\n  {{\"rule\": \"{}\", \"text\": \"{}\"}}", findings.empty() ? "" : ",",
                    escape(finding.rule), escape(finding.text));
  std::string axes;
  for (const std::string& axis : report.axes)
    axes += fmt::format("{}\"{}\"", axes.empty() ? "" : ", ", escape(axis));
  fmt::print(
      "{{\"directory\": \"{}\", \"ranks\": {}, \"cells\": {}, \"instructions\": {}, \"transfers\": "
      "{}, \"collectives\": {}, \"sums\": {}, \"parameters\": {}, \"peak_bytes\": {}, "
      "\"axes\": [{}],\n \"findings\": [{}]}}\n",
      escape(directory), report.ranks, report.cells, report.instructions, report.transfers,
      report.collectives, report.sums, report.parameters, largest_peak(set), axes, findings);
}

void print_text(const std::string& directory, const PlanSet& set, const VerifyReport& report,
                bool compared) {
  for (const Finding& finding : report.findings)
    fmt::print("{}: {}: {}\n", directory, finding.rule, finding.text);
  if (!report.findings.empty()) return;
  fmt::print("{}: ok: {} ranks in {} cells, {} instructions\n", directory, report.ranks,
             report.cells, report.instructions);
  const auto line = [](const char* rule, const std::string& proved) {
    fmt::print("  {:<12}{}\n", rule, proved);
  };
  line("transfer", fmt::format("{} messages are received once, in order", report.transfers));
  line("collective",
       fmt::format("{} collectives are issued by all members in one order", report.collectives));
  line("deadlock", "no rank waits for itself");
  line("order", "all is written before it is read, and streams wait for what they use");
  line("memory", fmt::format("no two buffers share bytes while they are needed; at most {} a rank",
                             human_bytes(largest_peak(set))));
  if (!report.axes.empty())
    line("layout",
         fmt::format("every op does its part along {}", quote_control(join(report.axes, ", "))));
  line(compared ? "single" : "microbatch",
       compared ? "all blocks of samples and updates do what one device does"
                : "all blocks of samples do the same");
  line("sum", fmt::format("{} finished sums hold each use and sample once; {} kept parameters are "
                          "updated once",
                          report.sums, report.parameters));
}

bool has_oracle(const PlanSet& set, const char* oracle) {
  return set.manifest.files.contains(fmt::format("{}/manifest.json", oracle));
}

// What the CPU's kernels refuse, they would when the plans are run; and what they take, plans for
// the CPU state.
void load_programs(const PlanSet& set, VerifyReport& report) {
  for (const RoleProgram& role : set.roles) {
    const Result<Needs> needs = cpu_needs(role);
    if (!needs) report.findings.push_back({"program", needs.error().message});
    if (!needs || role.target != "cpu") continue;
    bool enough =
        needs->packed_bytes <= role.packed_bytes && needs->scratch_bytes <= role.scratch_bytes;
    for (size_t s = 0; s < needs->workspace_bytes.size(); ++s)
      enough = enough && needs->workspace_bytes[s] <= role.workspace_bytes[s];
    if (!enough)
      report.findings.push_back(
          {"memory", fmt::format("role {} states less than its programs take beside the arena",
                                 &role - set.roles.data())});
  }
}

// The set, and the oracle's sets below it.
Result<bool> verify(const std::string& directory, bool json) {
  PIPER_ASSIGN(PlanSet set, read_plan_set(directory));
  PIPER_TRY(load_params(set));
  std::optional<PlanSet> single;
  if (has_oracle(set, "single")) {
    PIPER_ASSIGN(single, read_plan_set(directory + "/single"));
  }
  PIPER_ASSIGN(VerifyReport report, verify_plan_set(set, single ? &*single : nullptr));
  load_programs(set, report);
  json ? print_json(directory, set, report)
       : print_text(directory, set, report, single.has_value());
  bool proved = report.findings.empty();
  for (const char* oracle : {"single", "uncut"})
    if (has_oracle(set, oracle)) {
      PIPER_ASSIGN(const bool below, verify(directory + "/" + oracle, json));
      proved = proved && below;
    }
  return proved;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  piper::prepare_process();
  CLI::App app(
      "Proves a plan set right from its files alone: communication, order, memory and sums.");
  app.footer(
      "exit codes: 0 proved, 2 wrong usage, 3 refused (findings are printed), 4 the plans cannot "
      "be read, 12 the system refused");
  std::string directory;
  bool json = false;
  app.add_option("DIR", directory, "the directory that piperc wrote")->required();
  app.add_flag("--json", json, "one JSON object per plan set");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(piper::ExitCode::kUsage);
  }
  auto proved = piper::verify(directory, json);
  if (const auto printed = piper::flush_output(); proved && !printed) proved = printed.error();
  if (!proved) {
    std::fputs(piper::print_error(proved.error()).c_str(), stderr);
    return static_cast<int>(proved.error().code);
  }
  return static_cast<int>(*proved ? piper::ExitCode::kOk : piper::ExitCode::kRefused);
}
