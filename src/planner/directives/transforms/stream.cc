// The directive `stream`: which stream a task runs on.
#include <algorithm>
#include <map>

#include "match.h"
#include "transforms.h"

namespace piper {
namespace {

std::string property_text(const TaskStream& stream) {
  std::string text;
  if (stream.priority != 0) text += fmt::format(", priority {}", stream.priority);
  if (stream.sms != 0) text += fmt::format(", at most {} SMs", stream.sms);
  if (stream.credit != 0) text += fmt::format(", credit {}", human_bytes(stream.credit));
  return text;
}

class Assigner {
 public:
  Assigner(Dag& dag, const Strategy& strategy, const Variables& variables)
      : dag_(dag),
        strategy_(strategy),
        variables_(variables),
        matcher_(dag, strategy),
        claimed_by_(dag.tasks.size()) {
    for (const Replicate& replicate : strategy.replicates) {
      if (replicate.stream_at && is_there(replicate.stream))
        named_[stream_of(dag_, replicate.stream)] = *replicate.stream_at;
      if (replicate.gather_stream_at && is_there(replicate.gather_stream))
        named_[stream_of(dag_, replicate.gather_stream)] = *replicate.gather_stream_at;
    }
  }

  using Counts = std::map<std::string, int64_t>;  // by kind

  // Gives the stream what the rule says of it. Returns a line that says so, and which tasks it has.
  std::string set_properties(const StreamRule& rule, int32_t stream, const Counts& kinds) {
    TaskStream& own = dag_.streams[static_cast<size_t>(stream)];
    own.priority = rule.priority.value_or(own.priority);
    own.sms = rule.sms.value_or(own.sms);
    own.credit = rule.credit.value_or(own.credit);
    std::string text;
    for (const auto& [kind, count] : kinds)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, kind);
    return fmt::format("'{}'{}: {}", own.name, property_text(own), text.empty() ? excuse_ : text);
  }

  Result<Explanation> apply(const StreamRule& rule) {
    Explanation report{rule.at, "stream", {}};
    std::map<int32_t, Counts> counts;  // by stream
    excuse_ = "for what others put there";
    if (rule.where) PIPER_TRY(move_tasks(rule, counts));
    if (counts.empty() && is_there(rule.name)) counts[stream_of(dag_, rule.name)];
    if (rule.credit) PIPER_TRY(check_credit(rule, counts));
    for (const auto& [stream, kinds] : counts) {
      report.lines.push_back(set_properties(rule, stream, kinds));
    }
    if (counts.empty())
      report.lines.push_back(
          fmt::format("'{}': {}", rule.name, rule.where ? excuse_ : of_one_rank(dag_)));
    return report;
  }

 private:
  // A stream that nothing runs on is none.
  bool is_there(const std::string& name) const {
    return std::any_of(dag_.streams.begin(), dag_.streams.end(),
                       [&](const TaskStream& stream) { return stream.name == name; });
  }

  // Returns the stream of one task, in whose name what its conditions bind has its value.
  Result<int32_t> stream_for(const StreamRule& rule, TaskId id) {
    std::string name = rule.name;
    if (name.find('{') == name.npos) return stream_of(dag_, name);
    PIPER_ASSIGN(const auto bound, matcher_.bound(id, *rule.where, variables_));
    for (const auto& [variable, value] : *bound) {
      const std::string key = "{" + variable + "}";
      for (size_t at = name.find(key); at != name.npos; at = name.find(key))
        name.replace(at, key.size(), std::to_string(value));
    }
    return stream_of(dag_, name);
  }

  // Returns whether the task sums gradients over replicas, once a step.
  bool sums_gradients(const Task& task) const {
    return info(task.kind).adds && !task.within.valid() && task.micro < 0 &&
           std::ranges::none_of(task.group, [&](int32_t axis) {
             return dag_.mesh[static_cast<size_t>(axis)].tells_cells_apart();
           });
  }
  // Fails if a message of the stream's own sums is larger than the credit.
  Status check_messages(const StreamRule& rule) const {
    for (const Replicate& replicate : strategy_.replicates) {
      const bool sliced = replicate.slice_bytes > 0;
      const int64_t bytes = sliced ? replicate.slice_bytes : replicate.bucket_bytes;
      if (replicate.stream == rule.name && bytes > *rule.credit)
        return fail(rule.credit_at,
                    "stream: a credit of {} is less than one message, which holds at {} {}",
                    human_bytes(*rule.credit), sliced ? "most" : "least", human_bytes(bytes))
            .with_note(fmt::format("the {} is that of {}", sliced ? "slice" : "bucket",
                                   place_of(sliced ? replicate.slice_at : replicate.at)));
    }
    return ok_status();
  }

  Status check_credit(const StreamRule& rule, const std::map<int32_t, Counts>& counts) const {
    PIPER_TRY(check_messages(rule));
    if (dag_.split_sums)
      return fail(rule.credit_at, "stream: 'credit' orders the sums of gradients, and so does 'S'")
          .with_note("from " + place_of(strategy_.orders.front().at));
    const bool any = std::ranges::any_of(dag_.tasks, [&](const Task& task) {
      return counts.contains(task.stream) && sums_gradients(task);
    });
    const bool replicates = std::ranges::any_of(
        dag_.mesh, [](const DagAxis& axis) { return axis.replicated && axis.size > 1; });
    const bool has_sums = strategy_.replicates.empty() || replicates;  // or axes of one rank
    if (any || counts.empty() || !has_sums) return ok_status();
    return fail(rule.credit_at,
                "stream: 'credit' orders sums of gradients over replicas, and '{}' has none that "
                "come once a step",
                rule.name);
  }

  Status move_task(const StreamRule& rule, TaskId id, int32_t stream) {
    Task& task = dag_.tasks[id.index()];
    if (const StreamRule* other = claimed_by_[id.index()])
      return twice(rule, print_label(dag_, task), other->at);
    claimed_by_[id.index()] = &rule;
    const auto named = named_.find(task.stream);
    if (named != named_.end() && task.stream != stream && !task.chunk.valid())
      return twice(rule, print_label(dag_, task), named->second);
    task.stream = stream;
    return ok_status();
  }

  Status move_tasks(const StreamRule& rule, std::map<int32_t, Counts>& counts) {
    PIPER_ASSIGN(const std::vector<TaskId> found, matcher_.find(*rule.where, variables_));
    if (found.empty()) {
      excuse_ = matcher_.excuse(*rule.where);
      return excuse_.empty() ? Status(matcher_.nothing(*rule.where, rule.at, "stream"))
                             : ok_status();
    }
    bool moves = false;
    for (TaskId id : found) {
      PIPER_ASSIGN(const int32_t stream, stream_for(rule, id));
      moves = moves || dag_.tasks[id.index()].stream != stream;
      PIPER_TRY(move_task(rule, id, stream));
      ++counts[stream][to_string(dag_.tasks[id.index()].kind)];
    }
    if (moves || rule.priority || rule.sms || rule.credit) return ok_status();
    return fail(rule.name_at, "stream: all of these run on '{}' without this entry", rule.name)
        .with_note("help: leave it out, or name another stream");
  }
  Error twice(const StreamRule& rule, const std::string& label, const SourceSpan& other) {
    return fail(rule.at, "stream: '{}' has a stream already", label)
        .with_note("from " + place_of(other));
  }

  Dag& dag_;
  const Strategy& strategy_;
  const Variables& variables_;
  TaskMatcher matcher_;
  std::vector<const StreamRule*> claimed_by_;  // by task
  std::string excuse_;                         // why the last rule moves none
  std::map<int32_t, SourceSpan> named_;        // streams that replicate names
};

Status check_used(const StreamRule& rule, const Dag& dag, const Strategy& strategy,
                  const std::vector<TaskStream>& known) {
  const bool moved = std::any_of(
      strategy.streams.begin(), strategy.streams.end(),
      [&](const StreamRule& other) { return other.name == rule.name && other.where.has_value(); });
  std::vector<std::string> names;
  for (const TaskStream& stream : known) names.push_back(stream.name);
  const bool excused = std::any_of(
      strategy.replicates.begin(), strategy.replicates.end(), [&](const Replicate& one) {
        return !of_one_rank(dag).empty() &&
               (one.stream == rule.name || one.gather_stream == rule.name);
      });
  if (!moved && !excused && std::find(names.begin(), names.end(), rule.name) == names.end())
    return fail(rule.name_at, "stream: nothing runs on '{}'{}", rule.name,
                did_you_mean(rule.name, names))
        .with_note(fmt::format("the streams are {}", join(names, ", ")));
  return ok_status();
}

// Errors: a task that two entries claim, or whose stream replicate names; a stream that nothing
// runs on.
Result<Dag> apply_streams(Dag dag, const TransformContext& context) {
  const Strategy& strategy = context.strategy;
  if (strategy.streams.empty()) return dag;
  const std::vector<TaskStream> known = dag.streams;
  Assigner assigner(dag, strategy, context.variables);
  for (const StreamRule& rule : strategy.streams) {
    PIPER_ASSIGN(Explanation report, assigner.apply(rule));
    context.out.push_back(std::move(report));
  }
  for (const StreamRule& rule : strategy.streams) {
    PIPER_TRY(check_used(rule, dag, strategy, known));
  }
  return dag;
}

}  // namespace

Transform stream_transform() { return {TransformTime::kStreams, apply_streams}; }

}  // namespace piper
