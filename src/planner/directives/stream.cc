// The directive `stream`: which stream a task runs on.
#include <algorithm>
#include <map>

#include "match.h"

namespace piper {
namespace {

std::string property_text(const TaskStream& stream) {
  std::string text;
  if (stream.priority != 0) text += fmt::format(", priority {}", stream.priority);
  if (stream.sms != 0) text += fmt::format(", at most {} SMs", stream.sms);
  return text;
}

class Assigner {
 public:
  Assigner(Dag& dag, const Strategy& strategy, const Variables& variables)
      : dag_(dag), variables_(variables), matcher_(dag, strategy), claimed_by_(dag.tasks.size()) {
    for (const Replicate& replicate : strategy.replicates) {
      if (replicate.stream_at) named_[stream_of(dag_, replicate.stream)] = *replicate.stream_at;
      if (replicate.gather_stream_at)
        named_[stream_of(dag_, replicate.gather_stream)] = *replicate.gather_stream_at;
    }
  }

  Result<Explanation> apply(const StreamRule& rule) {
    Explanation report{rule.at, "stream", {}};
    std::map<std::string, int64_t> counts;
    const int32_t stream = stream_of(dag_, rule.name);
    excuse_ = "for what others put there";
    if (rule.where) PIPER_TRY(move_tasks(rule, stream, counts));
    TaskStream& own = dag_.streams[static_cast<size_t>(stream)];
    own.priority = rule.priority.value_or(own.priority);
    own.sms = rule.sms.value_or(own.sms);
    std::string text;
    for (const auto& [kind, count] : counts)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, kind);
    report.lines.push_back(
        fmt::format("'{}'{}: {}", rule.name, property_text(own), text.empty() ? excuse_ : text));
    return report;
  }

 private:
  Status move_tasks(const StreamRule& rule, int32_t stream,
                    std::map<std::string, int64_t>& counts) {
    PIPER_ASSIGN(const std::vector<TaskId> found, matcher_.find(*rule.where, variables_));
    if (found.empty()) {
      excuse_ = matcher_.excuse(*rule.where);
      return excuse_.empty() ? Status(matcher_.nothing(*rule.where, rule.at, "stream"))
                             : ok_status();
    }
    const bool moves = std::any_of(found.begin(), found.end(), [&](TaskId id) {
      return dag_.tasks[id.index()].stream != stream;
    });
    if (!moves && !rule.priority && !rule.sms)
      return fail(rule.name_at, "stream: all of these run on '{}' without this entry", rule.name)
          .with_note("help: leave it out, or name another stream");
    for (TaskId id : found) {
      Task& task = dag_.tasks[id.index()];
      if (const StreamRule* other = claimed_by_[id.index()])
        return twice(rule, print_label(dag_, task), other->at);
      claimed_by_[id.index()] = &rule;
      const auto named = named_.find(task.stream);
      if (named != named_.end() && task.stream != stream && !task.chunk.valid())
        return twice(rule, print_label(dag_, task), named->second);
      task.stream = stream;
      ++counts[to_string(task.kind)];
    }
    return ok_status();
  }
  Error twice(const StreamRule& rule, const std::string& label, const SourceSpan& other) {
    return fail(rule.at, "stream: '{}' has a stream already", label)
        .with_note("from " + place_of(other));
  }

  Dag& dag_;
  const Variables& variables_;
  TaskMatcher matcher_;
  std::vector<const StreamRule*> claimed_by_;  // by task
  std::string excuse_;                         // why the last rule moves none
  std::map<int32_t, SourceSpan> named_;        // streams that replicate names
};

}  // namespace

Result<Dag> apply_streams(Dag dag, const Strategy& strategy, const Variables& variables,
                          Explanations& out) {
  if (strategy.streams.empty()) return dag;
  const std::vector<TaskStream> known = dag.streams;
  Assigner assigner(dag, strategy, variables);
  for (const StreamRule& rule : strategy.streams) {
    PIPER_ASSIGN(Explanation report, assigner.apply(rule));
    out.push_back(std::move(report));
  }
  for (const StreamRule& rule : strategy.streams) {
    const bool moved =
        std::any_of(strategy.streams.begin(), strategy.streams.end(), [&](const StreamRule& other) {
          return other.name == rule.name && other.where.has_value();
        });
    std::vector<std::string> names;
    for (const TaskStream& stream : known) names.push_back(stream.name);
    if (!moved && std::find(names.begin(), names.end(), rule.name) == names.end())
      return fail(rule.name_at, "stream: nothing runs on '{}'{}", rule.name,
                  did_you_mean(rule.name, names))
          .with_note(fmt::format("the streams are {}", join(names, ", ")));
  }
  return dag;
}

}  // namespace piper
