// piper-verify DIR: proves a plan set right from its files only.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <tuple>

#include "flag_checks.h"
#include "piper/base/process.h"
#include "piper/devices/cpu.h"
#include "piper/devices/registry.h"
#include "piper/plan/flops.h"
#include "piper/plan/verify.h"
#include "piper/plan/worlds.h"
#include "piper/runtime/checkpoint.h"
#include "version.h"

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

bool has_oracle(const PlanSet& set, const char* oracle) {
  return set.manifest.files.contains(fmt::format("{}/manifest.json", oracle));
}
// The set is compared with a plan for one device that plays all replicas, or the first one.
enum class Reference { kNone, kFirst, kAll };
constexpr const char* kReferences[] = {"none", "first", "all"};
Reference reference_of(const PlanSet& set) {
  if (!has_oracle(set, "single")) return Reference::kNone;
  return set.manifest.predictions.contains("single_instructions") ? Reference::kFirst
                                                                  : Reference::kAll;
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
      "\"axes\": [{}], \"single\": \"{}\",\n \"findings\": [{}]}}\n",
      escape(directory), report.ranks, report.cells, report.instructions, report.transfers,
      report.collectives, report.sums, report.parameters, largest_peak(set), axes,
      kReferences[static_cast<size_t>(reference_of(set))], findings);
}

// `is_oracle`: it is a plan for one device itself, with which others are compared.
void print_text(const std::string& directory, const PlanSet& set, const VerifyReport& report,
                bool is_oracle) {
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
  const Reference reference = reference_of(set);
  const bool compared = reference != Reference::kNone;
  line(compared ? "single" : "microbatch",
       compared ? "all blocks of samples and updates do what one device does"
                : "all blocks of samples do the same");
  line("sum", fmt::format("{} finished sums hold each use and sample once; {} kept parameters are "
                          "updated once",
                          report.sums, report.parameters));
  constexpr const char* kWith[] = {
      "nothing: the plans were written without one for one device (--no-oracles), so start values, "
      "names, data and what the first block of samples does are trusted",
      "single/, which plays the first replica", "single/, which plays all replicas"};
  if (!is_oracle) line("beside", kWith[static_cast<size_t>(reference)]);
}

// A role states beside its arena exactly what its target takes. `exact`: it names no other table of
// algorithms than this machine's; by another one it may take less.
void check_stated(const RoleProgram& role, size_t r, const Needs& needs, bool exact,
                  VerifyReport& report) {
  const auto check = [&](const std::string& what, int64_t stated, int64_t taken) {
    if (exact ? stated != taken : stated < taken)
      report.findings.push_back(
          {"memory", fmt::format("role {} states {} bytes {}, where '{}' takes {}", r, stated, what,
                                 quote_control(role.target), taken)});
  };
  for (size_t s = 0; s < needs.workspace_bytes.size(); ++s)
    check(fmt::format("for the values of programs on stream '{}'",
                      quote_control(role.streams[s].name)),
          role.workspace_bytes[s], needs.workspace_bytes[s]);
  check("for packed weights and gaps between rows", role.packed_bytes, needs.packed_bytes);
  check("for blocks that are under way", role.transport_bytes, needs.transport_bytes);
  check("for kernels themselves", role.scratch_bytes, needs.scratch_bytes);
}

// What the CPU's kernels refuse, they would when the plans are run: it runs those for other
// targets, too. And what plans state of memory beside their arenas.
void check_programs(const PlanSet& set, VerifyReport& report) {
  for (size_t r = 0; r < set.roles.size(); ++r) {
    const RoleProgram& role = set.roles[r];
    const Result<const BackendKind*> target = find_target(role.target);
    const Result<Needs> on_cpu = cpu_needs(role);
    if (!target) report.findings.push_back({"program", target.error().message});
    if (!on_cpu) report.findings.push_back({"program", on_cpu.error().message});
    if (!target || !on_cpu) continue;
    const Result<Needs> needs = role.target == "cpu" ? on_cpu : (*target)->needs(role);
    if (!needs)
      report.findings.push_back({"program", needs.error().message});
    else
      check_stated(role, r, *needs,
                   !(*target)->table || role.table.empty() || (*target)->table() == role.table,
                   report);
  }
}

// The digest finds a text that was changed by itself: the plans do not say the settings otherwise.
Status check_oracles(const std::string& directory, const PlanSet& set, VerifyReport& report) {
  const auto& [text, stated] = std::tie(set.manifest.strategy_text, set.manifest.strategy_digest);
  if (!(text.empty() && stated.empty()) && digest(text) != stated)
    report.findings.push_back({"structure", "the text of the strategy does not have its digest"});
  for (const char* oracle : {"single", "uncut"}) {
    if (!has_oracle(set, oracle)) continue;
    PIPER_ASSIGN(const PlanOutline outline, read_plan_outline(directory + "/" + oracle));
    for (Finding& finding : verify_manifest(set.manifest, outline.manifest, oracle))
      report.findings.push_back(std::move(finding));
  }
  return ok_status();
}

// Returns the set, and the oracle's sets below it. The first replica only has not the sums of a
// batch: it proves others.
Result<bool> verify(const std::string& directory, bool json, bool is_oracle) {
  PIPER_ASSIGN(PlanSet set, read_plan_set(directory));
  PIPER_TRY(load_params(set));
  std::optional<PlanSet> single;
  const Reference reference = reference_of(set);
  if (reference != Reference::kNone) {
    PIPER_ASSIGN(single, read_plan_set(directory + "/single"));
  }
  PIPER_ASSIGN(VerifyReport report, verify_plan_set(set, single ? &*single : nullptr));
  check_programs(set, report);
  PIPER_TRY(check_oracles(directory, set, report));
  json ? print_json(directory, set, report) : print_text(directory, set, report, is_oracle);
  bool proved = report.findings.empty();
  for (const char* oracle : {"single", "uncut"}) {
    const bool is_first = std::string_view(oracle) == "single" && reference == Reference::kFirst;
    if (!has_oracle(set, oracle) || is_first) continue;
    PIPER_ASSIGN(const bool below, verify(directory + "/" + oracle, json, true));
    proved = proved && below;
  }
  return proved;
}

// Returns the settings of which piper-run --switch asks --accept.
std::vector<SettingChange> settings_to_accept(const PlanSet& from, const PlanSet& to) {
  const Manifest &before = from.manifest, &after = to.manifest;
  auto changes = changed_settings(before.strategy_text, after.strategy_text);
  if (before.model_digest != after.model_digest)
    changes.push_back({"model", before.model_digest, after.model_digest});
  return changes;
}

void print_switch_json(const std::string& directory, const std::string& to,
                       const StateTransfer& transfer, const std::vector<Finding>& findings,
                       const std::vector<SettingChange>& changes) {
  std::string accept;
  for (const SettingChange& one : changes)
    accept += fmt::format("{}\"{}\"", accept.empty() ? "" : ",", escape(one.setting));
  fmt::print(
      "{{\"from\":\"{}\",\"to\":\"{}\",\"moved_bytes\":{},\"least_bytes\":{},"
      "\"kept_bytes\":{},\"findings\":{},\"accept\":[{}]}}\n",
      escape(directory), escape(to), transfer.moved_bytes, transfer.least_bytes,
      transfer.kept_bytes, findings.size(), accept);
}

void print_switch_text(const std::string& directory, const std::string& to,
                       const StateTransfer& transfer, const std::vector<Finding>& findings,
                       const std::vector<SettingChange>& changes) {
  for (const Finding& finding : findings)
    fmt::print("{} -> {}: {}: {}\n", directory, to, finding.rule, finding.text);
  if (findings.empty())
    fmt::print(
        "{} -> {}: ok: {} states, each element comes once to whom holds it; {} bytes move "
        "between ranks (the least is {}), {} stay\n",
        directory, to, transfer.states.size(), transfer.moved_bytes, transfer.least_bytes,
        transfer.kept_bytes);
  for (const SettingChange& one : changes)
    fmt::print("  {:<12}{} (piper-run --switch asks for --accept {})\n", "accept",
               quote_control(print_change(one)), one.setting);
}

// Returns whether a job may switch from one plan set to the other: each rank gets what it is to
// hold; and, if they are stages of one job, they train the same.
Result<bool> verify_switch(const std::string& directory, const std::string& to, bool json,
                           bool are_stages) {
  PIPER_ASSIGN(const PlanSet before, read_plan_set(directory));
  PIPER_ASSIGN(const PlanSet after, read_plan_set(to));
  PIPER_ASSIGN(const StateTransfer transfer, plan_transfer(before, after));
  std::vector<Finding> findings = verify_transfer(transfer, before, after);
  if (are_stages)
    for (Finding& finding : verify_stages(before, after)) findings.push_back(std::move(finding));
  const auto changes =
      are_stages ? std::vector<SettingChange>() : settings_to_accept(before, after);
  (json ? print_switch_json : print_switch_text)(directory, to, transfer, findings, changes);
  return findings.empty();
}

// Returns whether all of a folder are proved: a plan set; one for each number of ranks; or one for
// each stage, and the ways from one to the next.
Result<bool> verify_folder(const std::string& directory, bool json) {
  PIPER_ASSIGN(const PlanFolder folder, read_plan_folder(directory));
  bool proved = true;
  for (const PlanFolder::Set& set : folder.sets) {
    PIPER_ASSIGN(const bool one, verify(set.directory, json, false));
    proved = proved && one;
  }
  if (folder.kind != PlanFolder::Kind::kStages) return proved;
  for (size_t k = 1; k < folder.sets.size(); ++k) {
    PIPER_ASSIGN(const bool one,
                 verify_switch(folder.sets[k - 1].directory, folder.sets[k].directory, json, true));
    proved = proved && one;
  }
  return proved;
}

}  // namespace
}  // namespace piper

int main(int argc, char** argv) {
  piper::prepare_process();
  CLI::App app(
      "Proves a plan set right from its files only: communication, order, memory and sums.",
      "piper-verify");
  app.footer(
      "Exit codes: 0 proved, 2 wrong usage, 3 refused (findings are printed), 4 the plans cannot "
      "be read, 12 the system refused a file or memory");
  std::string directory, to;
  bool json = false;
  app.add_option("DIR", directory, "the directory that piperc wrote")->required();
  app.add_option("--switch", to,
                 "also prove that a job may switch to these plans (piper-run --switch): each rank "
                 "gets what it is to hold")
      ->type_name("DIR");
  app.add_flag("--json", json, "one JSON object per plan set");
  piper::suggest_flags(app);
  app.set_version_flag("--version", fmt::format("piper-verify {}", piper::version()));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : static_cast<int>(piper::ExitCode::kUsage);
  }
  auto proved = piper::verify_folder(directory, json);
  if (proved && !to.empty()) {
    const auto switched = piper::verify_switch(directory, to, json, false);
    proved = switched ? piper::Result<bool>(*proved && *switched) : switched;
  }
  if (const auto printed = piper::flush_output(); proved && !printed) proved = printed.error();
  if (!proved) {
    std::fputs(piper::print_error(proved.error()).c_str(), stderr);
    return static_cast<int>(proved.error().code);
  }
  return static_cast<int>(*proved ? piper::ExitCode::kOk : piper::ExitCode::kRefused);
}
