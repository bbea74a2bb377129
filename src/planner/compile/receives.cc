// What it costs to receive messages between stages at the wrong time, for a note: the plans beside
// those in which they are received otherwise, all simulated. compile.cc calls it.
#include <array>
#include <set>
#include <utility>

#include "idle.h"
#include "piper/devices/registry.h"
#include "piper/plan/flops.h"
#include "piper/planner/cost.h"
#include "plan_set.h"
#include "targets.h"

namespace piper {
namespace {

// Says how messages between stages could be received, and what to write for that.
struct ReceiveWay {
  int32_t distance = 0;
  bool sends_beside = true;  // sends have streams of their own, where the strategy gives them one
  const char* write = "";    // a format of the stream's name
};
constexpr std::array<ReceiveWay, 3> kReceiveWays = {{
    {0, true, "prefetch: {{where: {{kind: recv}}, distance: 0}}"},
    {1, true, "prefetch: {{where: {{kind: recv}}, distance: 1}}"},
    {0, false, "stream: {{where: {{kind: recv}}, name: {}}}"},
}};

// Computations take their FLOPs; a message moves once both sides have come to it, and takes
// kFlopsPerSentByte.
class MeetingMachine : public Machine {
 public:
  MeetingMachine() { sends_wait = true; }
  Result<RankCosts> costs_of(const PlanSet& set, int64_t rank) const override {
    PIPER_ASSIGN(RankCosts costs, flops_->costs_of(set, rank));
    const RoleProgram& role =
        set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])];
    for (size_t i = 0; i < role.body.size(); ++i)
      if (role.body[i].kind == InstructionKind::kSend)
        costs.body[i].wire =
            kFlopsPerSentByte * static_cast<double>(bytes_through(role, role.body[i]));
    return costs;
  }

 private:
  const std::unique_ptr<Machine> flops_ = flops_machine();
};

bool is_message_task(const Task& task) {
  return task.kind == InstructionKind::kSend || task.kind == InstructionKind::kRecv;
}

// Returns the plans, for the target, with all messages received in this way. Leaves the Dag as it
// is.
Result<PlanSet> received_by(const ReceiveWay& way, Dag& dag, const TaskLists& deps,
                            const Schedule& schedule, int32_t beside,
                            const std::string_view target) {
  std::vector<std::pair<int32_t, int32_t>> were;
  for (Task& task : dag.tasks) {
    were.emplace_back(task.distance, task.stream);
    if (task.kind == InstructionKind::kRecv) task.distance = way.distance;
    if (way.sends_beside || !is_message_task(task)) continue;
    if (task.kind == InstructionKind::kSend)
      task.stream = 0;
    else if (task.stream == 0)
      task.stream = beside;
  }
  Result<Schedule> made = make_schedule(dag, deps, schedule.compute);
  Result<Lowered> lowered = made ? lower(dag, *made) : Result<Lowered>(made.error());
  for (size_t t = 0; t < were.size(); ++t)
    std::tie(dag.tasks[t].distance, dag.tasks[t].stream) = were[t];
  PIPER_TRY(lowered);
  PIPER_TRY(state_needs(lowered->roles, target));
  return make_plan_set(dag, *std::move(lowered));
}

// Returns the stream of its own that a message has; 0: all are on that of the computations.
int32_t stream_of_messages(const Dag& dag) {
  for (const Task& task : dag.tasks)
    if (is_message_task(task) && task.stream != 0) return task.stream;
  return 0;
}

// Returns the entry that decides when messages are received: their 'prefetch', or the 'stream'.
std::pair<SourceSpan, std::string> entry_of_receives(const Strategy& strategy,
                                                     const std::string& stream) {
  for (const Prefetch& prefetch : strategy.prefetches)
    for (const Condition& condition : prefetch.where)
      if (condition.tag == "kind" && std::ranges::count(condition.words, "recv") > 0)
        return {prefetch.at, "prefetch"};
  for (const StreamRule& rule : strategy.streams)
    if (rule.where && stream.starts_with(rule.name.substr(0, rule.name.find('{'))))
      return {rule.at, "stream"};
  return {};
}

double simulated_length(const PlanSet& set) {
  const auto picture = make_picture(set, MeetingMachine(), PictureCosts::kFlops);
  return picture ? picture->length : 0;
}

// Returns the way by which steps are shortest, if that is by more than what is worth a note, and
// how long they are then; null: none.
std::pair<const ReceiveWay*, double> shortest_way(Dag& dag, const TaskLists& deps,
                                                  const Schedule& schedule,
                                                  const Strategy& strategy, int32_t beside,
                                                  std::string_view target, double length) {
  // Shares of a step: that a note is for, and that a later way is better by.
  constexpr double kLeast = 0.02, kBetter = 0.005;
  std::pair<const ReceiveWay*, double> best{nullptr, length * (1 - kLeast)};
  for (const ReceiveWay& way : kReceiveWays) {
    const Result<PlanSet> other = received_by(way, dag, deps, schedule, beside, target);
    const double taken = other ? simulated_length(*other) : 0;
    if (taken <= 0 || taken > best.second * (best.first ? 1 - kBetter : 1)) continue;
    if (check_plans(*other, nullptr, strategy)) best = {&way, taken};
  }
  return best;
}

bool has_many_instructions(const PlanSet& set) {
  constexpr size_t kMost = 200'000;
  size_t instructions = 0;
  for (const RoleProgram& role : set.roles) instructions += role.body.size();
  return instructions > kMost;
}

}  // namespace

std::optional<Note> explain_receives(Dag& dag, const TaskLists& deps, const Schedule& schedule,
                                     const PlanSet& set, const Strategy& strategy,
                                     Explanations& explain) {
  const int32_t beside = stream_of_messages(dag);
  if (beside == 0 || !schedule.body.empty() || has_many_instructions(set)) return {};
  const Result<const BackendKind*> target = find_target(set.roles.front().target);
  const std::string& stream = dag.streams[static_cast<size_t>(beside)].name;
  const auto [at, directive] = entry_of_receives(strategy, stream);
  if (!target || !(*target)->ranks_streams || directive.empty()) return {};
  const double length = simulated_length(set);
  const auto [best, least] =
      shortest_way(dag, deps, schedule, strategy, beside, (*target)->name, length);
  if (best == nullptr) return {};
  const std::string text = fmt::format(
      "makes a step {:.0f} % longer, for computations wait for messages between stages: write "
      "'{}'{}",
      100 * (length / least - 1), fmt::format(fmt::runtime(best->write), stream),
      best->sends_beside ? "" : " in place of a stream with sends");
  explain.push_back({at, directive, {"note: " + text}});
  return Note{fmt::format("{} ({}:{})", directive, at.file, at.line), text};
}

}  // namespace piper
