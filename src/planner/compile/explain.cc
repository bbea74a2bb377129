// What --explain prints: what the directives report, and what the plans come to.
#include <algorithm>
#include <set>

#include "piper/inspect/summary.h"
#include "piper/planner/compile.h"
#include "rampup.h"
#include "rate_curve.h"
#include "traffic.h"

namespace piper {
namespace {

using Lines = std::vector<std::string>;

void add_section(const char* heading, const Lines& lines, std::string& text) {
  if (lines.empty()) return;
  text += fmt::format("{}\n", heading);
  for (const std::string& line : lines) text += fmt::format("    {}\n", quote_control(line));
}

void add_train(const Compiled& compiled, const Summary& summary, bool, std::string& text) {
  add_section("train", train_lines(summary), text);
  add_section("batch", rampup_lines(compiled), text);
  add_section("learning rate", rate_curves(compiled.set.roles), text);
}

void add_directives(const Compiled& compiled, const Summary&, bool lines, std::string& text) {
  for (const Explanation& e : compiled.explanations) {
    const std::string at = lines ? fmt::format("{}:{}: ", e.at.file, e.at.line) : "";
    add_section((at + e.directive).c_str(), e.lines, text);
  }
  for (const auto& [op, count] : compiled.patterns)
    text += fmt::format("recognised: {} {}\n", count, op);
  for (const std::string& line : compiled.left)
    text += fmt::format("no attention: {}\n", quote_control(line));
}

void add_parameters(const Compiled& compiled, const Summary& summary, bool, std::string& text) {
  int64_t elements = 0;
  for (const ParameterSummary& parameter : summary.parameters)
    elements += num_elements(parameter.type.shape);
  text += fmt::format("parameters: {} found, {} held by the plans with {} elements\n",
                      compiled.parameters.size(), summary.parameters.size(), elements);
  for (const ParamReport& p : compiled.parameters)
    text += fmt::format("  {:<40} {:<28} {}\n", quote_control(p.name), quote_control(p.initializer),
                        p.evidence);
  for (const std::string& line : compiled.separated) text += fmt::format("separated: {}\n", line);
  for (const std::string& line : compiled.constants) text += fmt::format("constant: {}\n", line);
  for (const std::string& line : lines_of(compiled.notes))
    text += fmt::format("note: {}\n", quote_control(line));
}

void add_layouts(const Compiled& compiled, const Summary&, bool, std::string& text) {
  add_section("layouts", compiled.layouts, text);
}

void add_comm(const Compiled&, const Summary& summary, bool, std::string& text) {
  add_section("messages", traffic_lines(summary), text);
}

void add_order(const Compiled&, const Summary& summary, bool, std::string& text) {
  add_section("order", order_lines(summary), text);
}

void add_memory(const Compiled&, const Summary& summary, bool, std::string& text) {
  for (const std::string& line : memory_lines(summary)) text += line + "\n";
}

void add_traffic(const Compiled& compiled, const Summary& summary, bool, std::string& text) {
  add_section("traffic", memory_traffic_lines(compiled.set, summary), text);
}

struct Topic {
  std::string_view name;
  void (*add)(const Compiled&, const Summary&, bool lines, std::string& text);
  bool usual;  // part of "summary"
};
constexpr Topic kTopics[] = {{"train", add_train, true},
                             {"directives", add_directives, true},
                             {"parameters", add_parameters, false},
                             {"layouts", add_layouts, false},
                             {"comm", add_comm, true},
                             {"order", add_order, false},
                             {"memory", add_memory, true},
                             {"traffic", add_traffic, false}};

Lines topic_names() {
  Lines names{"summary"};
  for (const Topic& topic : kTopics) names.emplace_back(topic.name);
  names.insert(names.end(), {"all", "lines"});
  return names;
}

}  // namespace

bool ExplainTopics::has(std::string_view topic) const {
  return std::find(names.begin(), names.end(), topic) != names.end();
}

std::string explain_topics() { return join(topic_names(), ", "); }

Result<ExplainTopics> parse_topics(std::string_view text) {
  ExplainTopics topics;
  std::set<std::string> chosen;
  for (const std::string& name : split_text(text.empty() ? "summary" : text, ',')) {
    const Lines known = topic_names();
    if (std::find(known.begin(), known.end(), name) == known.end())
      return fail("there is nothing to explain called '{}'{}; there are {}", quote_control(name),
                  did_you_mean(name, known), join(known, ", "))
          .with_code(ExitCode::kUsage);
    topics.lines |= name == "lines";
    if (name != "lines") chosen.insert(name);
  }
  if (chosen.empty()) chosen.insert("summary");
  for (const Topic& topic : kTopics)
    if (chosen.contains(std::string(topic.name)) || chosen.contains("all") ||
        (topic.usual && chosen.contains("summary")))
      topics.names.emplace_back(topic.name);
  return topics;
}

std::string explain(const Compiled& compiled, const ExplainTopics& topics) {
  const Summary summary = summarise(compiled.set, false);
  std::string text;
  for (const Topic& topic : kTopics)
    if (topics.has(topic.name)) topic.add(compiled, summary, topics.lines, text);
  return text;
}

}  // namespace piper
