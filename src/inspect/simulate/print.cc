// Reports of a simulated step: for people and as JSON; traces.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "piper/base/counted.h"
#include "piper/inspect/analysis.h"
#include "piper/plan/flops.h"
#include "piper/plan/outer_updates.h"
#include "rows.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;
using timeline::at;

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string ranks_text(const std::vector<int64_t>& ranks) {
  if (ranks.size() == 1) return fmt::format("{}", ranks[0]);
  return fmt::format("{},{}{}", ranks[0], ranks[1],
                     ranks.size() > 2 ? fmt::format(" +{}", ranks.size() - 2) : "");
}

// Lines of "name  value  remark".
class Lines {
 public:
  void add(std::string_view name, const std::string& value, const std::string& remark = {}) {
    fmt::format_to(std::back_inserter(text_), "{:<12}{:<14}{}", name, value, remark);
    while (text_.back() == ' ') text_.pop_back();
    text_ += '\n';
  }
  void heading(const std::string& line) { text_ += "\n" + line + "\n"; }
  void row(const std::string& line) { text_ += "  " + line + "\n"; }
  std::string text() { return std::move(text_); }

 private:
  std::string text_;
};

// Returns what the rank sends in an outer update that sends most.
int64_t sent_in(const PlanSet& set, size_t update) {
  int64_t bytes = 0;
  for (const RoleProgram& role : set.roles)
    bytes = std::max(bytes, outer_bytes(role, role.outer_updates[update]));
  return bytes;
}

// Nothing: the FLOPs of the model, the peaks or the time are not known.
std::optional<double> mfu_of(const PlanSet& set, const StepReport& report,
                             const MachineFacts& facts) {
  const double flops = model_flops(set.manifest);
  if (flops <= 0 || facts.peak_flops <= 0 || report.average <= 0) return std::nullopt;
  return flops / report.average / facts.peak_flops;
}

void print_outer(const PlanSet& set, const StepReport& report, Lines& lines) {
  for (size_t u = 0; u < report.outer.size(); ++u) {
    const OuterUpdate& update = set.roles[0].outer_updates[u];
    const int64_t every = update.every, first = update.offset;
    const bool beside = std::ranges::any_of(set.roles, [&](const RoleProgram& role) {
      return runs_beside(role, role.outer_updates[u]);
    });
    const int64_t bytes = sent_in(set, u);
    lines.add(
        "outer", human_seconds(report.outer[u]),
        fmt::format("an update each {} steps{}{}: {} a step on average; a rank sends at most {}, "
                    "{} a step on average",
                    every, first == 0 ? "" : fmt::format(" from step {} on", first),
                    beside ? fmt::format(", beside a step, which takes {} longer",
                                         human_seconds(report.exposed[u]))
                           : "",
                    human_seconds(report.exposed[u] / static_cast<double>(every)),
                    human_bytes(bytes), human_bytes(bytes / every)));
  }
}

void print_head(const PlanSet& set, const StepReport& report, const MachineFacts& facts,
                Lines& lines) {
  lines.add(
      "step", human_seconds(report.step),
      fmt::format("the first {}; one by itself {}, of which a device is at work for at most {}",
                  human_seconds(report.first), human_seconds(report.alone),
                  human_seconds(report.span)));
  const int64_t batch = set.roles[0].samples();
  if (report.average > 0)
    lines.add("samples/s", fmt::format("{:.4g}", static_cast<double>(batch) / report.average));
  if (report.evaluation > 0)
    lines.add("evaluation", human_seconds(report.evaluation),
              fmt::format("a batch of --eval-data: as long as {:.2f} steps",
                          report.step > 0 ? report.evaluation / report.step : 0));
  print_outer(set, report, lines);
  lines.add("bound", human_seconds(report.bound),
            fmt::format("the busiest device computes so long: no order of its work is shorter; the "
                        "step is {:.3f} x that",
                        report.bound > 0 ? report.step / report.bound : 0));
  lines.add("idle", percent(report.idle), "of all devices' time");
  if (const auto mfu = mfu_of(set, report, facts))
    lines.add("mfu", percent(*mfu),
              "of the devices' peak is the model's own work, without what runs again");
  const double peak = facts.peak_bytes;
  if (facts.memory > 0)
    lines.add(
        "memory", human_bytes(static_cast<int64_t>(peak)),
        peak <= facts.memory
            ? fmt::format("fits: a device has {}", human_bytes(static_cast<int64_t>(facts.memory)))
            : fmt::format("does not fit: a device has {}, {} less",
                          human_bytes(static_cast<int64_t>(facts.memory)),
                          human_bytes(static_cast<int64_t>(peak - facts.memory))));
  else
    lines.add("memory", human_bytes(largest_peak(set)), "of the rank that needs most");
  std::vector<std::string> origins;
  for (size_t o = 0; o < kCostOrigins.size(); ++o)
    if (report.origins[o] > 0)
      origins.push_back(fmt::format("{} {}", percent(report.origins[o]), kCostOrigins[o]));
  lines.add("costs", origins.empty() ? "none" : join(origins, ", "));
  for (const std::string& note : facts.notes) lines.add("note", note);
}

void print_rows(const StepReport& report, Lines& lines) {
  constexpr size_t kMost = 32;
  std::array<bool, kIdleReasons.size()> any{};
  for (const RowTimes& row : report.rows)
    for (size_t r = 0; r < any.size(); ++r) any[r] |= row.idle[r] > 5e-4 * report.step;
  std::string head = fmt::format("{:<12} {:>8}", "rank", "busy");
  for (size_t r = 0; r < any.size(); ++r)
    if (any[r]) head += fmt::format("  {:>13}", kIdleReasons[r]);
  lines.heading("a device computes, or waits for");
  lines.row(head);
  for (size_t i = 0; i < std::min(kMost, report.rows.size()); ++i) {
    const RowTimes& row = report.rows[i];
    const auto share = [&](double time) {
      return percent(report.step > 0 ? time / report.step : 0);
    };
    std::string line = fmt::format("{:<12} {:>8}", ranks_text(row.ranks), share(row.busy));
    for (size_t r = 0; r < any.size(); ++r)
      if (any[r]) line += fmt::format("  {:>13}", share(row.idle[r]));
    lines.row(line);
  }
  if (report.rows.size() > kMost)
    lines.row(fmt::format("and {} more kinds of ranks", report.rows.size() - kMost));
}

void print_moved(const StepReport& report, Lines& lines) {
  if (report.moved.empty()) return;
  lines.heading(
      "communication of a step, on the rank where most of it is exposed, that is, nothing is "
      "computed meanwhile");
  lines.row(fmt::format("{:<32} {:<14} {:>8} {:>10} {:>10} {:>8}", "what", "stream", "a rank",
                        "under way", "exposed", "hidden"));
  for (const MovedKind& kind : report.moved)
    lines.row(fmt::format("{:<32} {:<14} {:>8.4g} {:>10} {:>10} {:>8}", quote_control(kind.what),
                          quote_control(kind.stream), kind.count, human_seconds(kind.moving),
                          human_seconds(kind.exposed),
                          kind.moving > 0 ? percent(1 - kind.exposed / kind.moving) : "-"));
}

void print_path(const StepReport& report, Lines& lines) {
  constexpr size_t kMost = 12;
  if (report.path.empty()) return;
  lines.heading("the longest chain of a step");
  for (size_t i = 0; i < std::min(kMost, report.path.size()); ++i) {
    const PathKind& kind = report.path[i];
    lines.row(fmt::format("{:<32} {:>10} {:>8}{}", quote_control(kind.what),
                          human_seconds(kind.time), percent(kind.time / report.step),
                          kind.count > 0 ? fmt::format("  in {:.0f}", kind.count) : ""));
  }
}

void print_sensitivity(std::span<const Sensitivity> all, Lines& lines) {
  if (all.empty()) return;
  lines.heading("if these costs are 10 % less, or more, a step is");
  for (const Sensitivity& one : all)
    lines.row(fmt::format("{:<14} {:>+8.1f} % {:>+8.1f} %",
                          kCostKinds[static_cast<size_t>(one.kind)], 100 * one.less,
                          100 * one.more));
}

Json row_json(const RowTimes& row) {
  Json idle;
  for (size_t r = 0; r < kIdleReasons.size(); ++r) idle[kIdleReasons[r]] = row.idle[r];
  return {{"ranks", row.ranks}, {"busy", row.busy}, {"idle", idle}, {"span", row.span}};
}

std::string dump(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json name_json(const char* what, int64_t rank, size_t row, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}};
}

}  // namespace

std::string print_report(const PlanSet& set, const StepReport& report, const MachineFacts& facts,
                         std::span<const Sensitivity> sensitivity) {
  Lines lines;
  std::vector<std::string> axes;
  for (const auto& [name, size] : set.roles[0].mesh)
    axes.push_back(fmt::format("{} {}", name, size));
  lines.add("plans", fmt::format("{}{} for {}, on {}", counted(set.world(), "rank"),
                                 axes.empty() ? "" : fmt::format(" ({})", join(axes, ", ")),
                                 set.roles[0].target, quote_control(facts.name)));
  print_head(set, report, facts, lines);
  print_rows(report, lines);
  print_moved(report, lines);
  print_path(report, lines);
  print_sensitivity(sensitivity, lines);
  return lines.text();
}

std::string report_json(const PlanSet& set, const StepReport& report, const MachineFacts& facts,
                        std::span<const Sensitivity> sensitivity) {
  Json json;
  json["plan_set"] = set.manifest.set_id;
  json["ranks"] = set.world();
  json["machine"] = facts.name;
  json["notes"] = facts.notes;
  json["step_s"] = report.step;
  json["first_step_s"] = report.first;
  json["alone_s"] = report.alone;
  if (report.evaluation > 0) json["evaluation_s"] = report.evaluation;
  for (size_t u = 0; u < report.outer.size(); ++u) {
    const OuterUpdate& update = set.roles[0].outer_updates[u];
    json["outer"].push_back({{"time_s", report.outer[u]},
                             {"exposed_s", report.exposed[u]},
                             {"every", update.every},
                             {"offset", update.offset},
                             {"bytes", sent_in(set, u)}});
  }
  json["span_s"] = report.span;
  json["bound_s"] = report.bound;
  json["idle"] = report.idle;
  json["samples_per_s"] = report.average > 0
                              ? Json(static_cast<double>(set.roles[0].samples()) / report.average)
                              : Json();
  json["peak_bytes"] =
      facts.memory > 0 ? static_cast<int64_t>(facts.peak_bytes) : largest_peak(set);
  json["memory_bytes"] = facts.memory > 0 ? Json(facts.memory) : Json();
  const auto mfu = mfu_of(set, report, facts);
  json["mfu"] = mfu ? Json(*mfu) : Json();
  for (size_t o = 0; o < kCostOrigins.size(); ++o)
    json["origins"][kCostOrigins[o]] = report.origins[o];
  json["rows"] = Json::array();
  for (const RowTimes& row : report.rows) json["rows"].push_back(row_json(row));
  json["communication"] = Json::array();
  for (const MovedKind& kind : report.moved)
    json["communication"].push_back({{"what", kind.what},
                                     {"stream", kind.stream},
                                     {"count", kind.count},
                                     {"moving_s", kind.moving},
                                     {"exposed_s", kind.exposed}});
  json["path"] = Json::array();
  for (const PathKind& kind : report.path)
    json["path"].push_back({{"what", kind.what}, {"s", kind.time}, {"count", kind.count}});
  json["sensitivity"] = Json::array();
  for (const Sensitivity& one : sensitivity)
    json["sensitivity"].push_back({{"costs", kCostKinds[static_cast<size_t>(one.kind)]},
                                   {"less", one.less},
                                   {"more", one.more}});
  return dump(json, 2);
}

std::string timeline_trace(const Timeline& timeline) {
  Json events = Json::array();
  for (const TimedRow& row : timeline.rows) {
    const int64_t rank = row.ranks.front();
    events.push_back(name_json("process_name", rank, 0, "rank " + ranks_text(row.ranks)));
    for (size_t s = 0; s < row.role->streams.size(); ++s)
      events.push_back(name_json("thread_name", rank, s, row.role->streams[s].name));
    for (size_t s = 0; s < row.steps.size(); ++s) {
      const TimedStep& step = row.steps[s];
      const Instruction& one = *step.one;
      if (step.end <= step.start) continue;
      Json args = {{"step", step.number + one.ahead + 1},
                   {"instruction", static_cast<int64_t>(s) - row.sections[at(step.section)].first},
                   {"cost", kCostOrigins[static_cast<size_t>(step.cost.origin)]}};
      if (one.stage >= 0) args["stage"] = one.stage;
      if (one.micro >= 0) args["micro"] = one.micro;
      events.push_back({{"name", one.label.empty() ? to_string(one.kind) : one.label},
                        {"cat", to_string(one.kind)},
                        {"ph", "X"},
                        {"ts", step.start * 1e6},
                        {"dur", (step.end - step.start) * 1e6},
                        {"pid", rank},
                        {"tid", one.stream},
                        {"args", args}});
    }
  }
  return dump({{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}, -1);
}

}  // namespace piper
