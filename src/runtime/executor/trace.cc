// Prints traces and metrics as JSON.
#include <nlohmann/json.hpp>

#include "piper/runtime/job.h"

namespace piper {
namespace {

constexpr std::pair<TaskPass, const char*> kColourNames[] = {
    {TaskPass::kF, "thread_state_running"},  {TaskPass::kB, "thread_state_iowait"},
    {TaskPass::kBI, "rail_animation"},       {TaskPass::kBW, "yellow"},
    {TaskPass::kR, "thread_state_runnable"}, {TaskPass::kU, "rail_response"}};

// Returns names of chrome://tracing's palette; other viewers choose their own.
const char* colour_name(TaskPass pass) {
  const auto found =
      std::ranges::find(kColourNames, pass, &std::pair<TaskPass, const char*>::first);
  return found == std::end(kColourNames) ? "grey" : found->second;
}

nlohmann::ordered_json name_row(const char* what, int64_t rank, int64_t row,
                                const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}};
}

nlohmann::ordered_json event_of(const RankTrace& trace, const TraceEvent& event, double origin) {
  const std::vector<Instruction>& section =
      event.update < 0 ? trace.role->body
                       : trace.role->outer_updates[static_cast<size_t>(event.update)].instructions;
  const Instruction& one = section[static_cast<size_t>(event.instruction)];
  nlohmann::ordered_json args = {{"step", event.step + 1}, {"instruction", event.instruction}};
  if (event.update >= 0) args["outer_update"] = event.update;
  if (one.stage >= 0) args["stage"] = one.stage;
  if (one.micro >= 0) args["micro"] = one.micro;
  return {{"name", one.label.empty() ? to_string(one.kind) : one.label},
          {"cat", to_string(one.kind)},
          {"ph", "X"},
          {"ts", event.start_us - origin},
          {"dur", event.end_us - event.start_us},
          {"pid", trace.rank},
          {"tid", one.stream},
          {"cname", colour_name(one.pass)},
          {"args", args}};
}

// Returns when the first event of all ranks begins.
double begin_of(std::span<const RankTrace> traces) {
  double origin = 0;
  bool any = false;
  for (const RankTrace& trace : traces) {
    for (const TraceEvent& event : trace.events) {
      if (!any || event.start_us < origin) origin = event.start_us;
      any = true;
    }
  }
  return origin;
}

nlohmann::ordered_json number_or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

}  // namespace

std::string print_trace(std::span<const RankTrace> traces) {
  const double origin = begin_of(traces);
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (const RankTrace& trace : traces) {
    events.push_back(name_row("process_name", trace.rank, 0, fmt::format("rank {}", trace.rank)));
    for (size_t s = 0; s < trace.role->streams.size(); ++s) {
      events.push_back(name_row("thread_name", trace.rank, static_cast<int64_t>(s),
                                trace.role->streams[s].name));
    }
    for (const TraceEvent& event : trace.events) events.push_back(event_of(trace, event, origin));
  }
  nlohmann::ordered_json file = {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
  return file.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string print_metrics(const StepMetrics& metrics) {
  nlohmann::ordered_json line;
  line["step"] = metrics.step + 1;
  line["loss"] = number_or_null(metrics.loss);
  line["grad_norm"] = number_or_null(metrics.grad_norm);
  line["learning_rate"] = number_or_null(metrics.learning_rate);
  if (metrics.loss_scale) line["loss_scale"] = *metrics.loss_scale;
  if (metrics.skipped) line["skipped"] = *metrics.skipped != 0;
  if (metrics.steps_skipped) line["steps_skipped"] = *metrics.steps_skipped;
  line["tokens_per_s"] = metrics.tokens_per_s;
  line["step_ms"] = metrics.step_ms;
  line["peak_bytes"] = metrics.peak_bytes;
  if (metrics.mfu) line["mfu"] = *metrics.mfu;
  for (const auto& [kind, ms] : metrics.spent_ms) line["spent_ms"][kind] = ms;
  for (const SlowRank& one : metrics.slow)
    line["slow"].push_back(
        {{"rank", one.rank}, {"in", one.in}, {"factor", one.factor}, {"ms", one.ms}});
  return line.dump() + "\n";
}

std::string print_metrics(const EvaluationMetrics& metrics) {
  nlohmann::ordered_json line;
  line["evaluation"] = metrics.set;
  line["step"] = metrics.step;
  line["loss"] = metrics.loss;
  line["batches"] = metrics.batches;
  line["ms"] = metrics.ms;
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string print_metrics(const MemoryMetrics& metrics) {
  nlohmann::ordered_json memory;
  memory["stated_bytes"] = metrics.stated_bytes;
  memory["taken_bytes"] = metrics.taken_bytes;
  memory["device_free_bytes_after_load"] = metrics.free_after_load;
  if (metrics.free_after_step_2)
    memory["device_free_bytes_after_step_2"] = *metrics.free_after_step_2;
  return nlohmann::ordered_json{{"memory", std::move(memory)}}.dump() + "\n";
}

}  // namespace piper
