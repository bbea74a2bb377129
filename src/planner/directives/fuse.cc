// The directive `fuse`: several messages as one.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "match.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

// Returns the words of kinds that `takes` says yes to, for a sentence.
template <class Takes>
std::string words_of(Takes takes) {
  std::vector<std::string> words;
  for (const InstructionDef& def : kInstructions)
    if (takes(def)) words.emplace_back(def.word);
  return list_with_and(words);
}

Status check_kinds(const FuseRule& rule) {
  for (const Condition& condition : rule.where) {
    if (condition.tag != "kind") continue;
    for (const std::string& kind : condition.words)
      if (const InstructionDef& def = *find_instruction_by_word(kind);
          def.noun != nullptr && !def.joins)
        return fail(condition.at, "fuse: messages of kind '{}' stay apart", kind);
    for (const std::string& kind : condition.words)
      if (!find_instruction_by_word(kind)->joins)
        return fail(condition.at, "fuse: '{}' is no message", kind)
            .with_note("those that join are " +
                       words_of([](const InstructionDef& def) { return def.joins; }));
  }
  return ok_status();
}

class Finder {
 public:
  Finder(const Dag& dag, const Strategy& strategy, const Variables& variables, Fused& fused)
      : dag_(dag),
        variables_(variables),
        matcher_(dag, strategy),
        writers_(writers(dag)),
        claimed_by_(dag.tasks.size()),
        fused_(fused) {}

  // Joins messages of one microbatch, or of the whole step.
  Status join(const FuseRule& rule) {
    PIPER_TRY(check_kinds(rule));
    PIPER_ASSIGN(const std::vector<TaskId> found, claim(rule));
    if (found.empty() && matcher_.excuse(rule.where, true).empty())
      return matcher_.nothing(rule.where, rule.at, "fuse");
    std::map<Key, std::vector<Message>> together;
    for (TaskId id : found)
      together[key_of(id, dag_.tasks[id.index()].micro)].push_back({made(id), id});
    for (auto& [key, messages] : together) {
      std::stable_sort(messages.begin(), messages.end());
      fill_buckets(messages, rule.bucket_bytes);
    }
    fused_.matched.push_back(std::ssize(found));
    return ok_status();
  }
  // Joins messages of one microbatch each, of the same values.
  Status join_microbatches(const FuseRule& rule) {
    PIPER_ASSIGN(const std::vector<TaskId> found, claim(rule));
    std::map<std::pair<Key, std::vector<ValueId>>, std::vector<Message>> together;
    for (TaskId id : found) {
      const Task& task = dag_.tasks[id.index()];
      if (rule.microbatches == 1 || task.micro < 0 || task.within.valid()) continue;
      const auto turn = static_cast<int32_t>(task.micro / rule.microbatches);
      together[{key_of(id, turn), values_of(task)}].push_back(
          {static_cast<size_t>(task.micro), id});
    }
    for (auto& [key, messages] : together) {
      std::stable_sort(messages.begin(), messages.end());
      add_neighbours(messages);
    }
    fused_.matched.push_back(std::ssize(found));
    return ok_status();
  }

 private:
  // Collectives of one computation may join where these are equal.
  struct Within {
    TaskId computation;
    int32_t depth = 0;  // how many collectives are one after the other up to these
    std::string_view layer;
    std::string op, attributes;
    auto operator<=>(const Within&) const = default;
  };
  // Messages may join where these are equal.
  struct Key {
    InstructionKind kind = {};
    int32_t cell = 0, peer = 0, stream = 0;
    int32_t receive_stream = 0, receive_distance = 0;  // of a collective: its own
    int32_t view = 0;                                  // the number of its pass and tags
    int32_t micro = 0;
    std::vector<int32_t> group;  // of ranks
    DType dtype = {};
    bool fast = false;  // whether a sum may be added in any order
    Scaled scaled = {};
    int64_t block = 0;
    Within within;
    auto operator<=>(const Key&) const = default;
  };
  struct Message {
    size_t at = 0;  // in this order
    TaskId task;
    auto operator<=>(const Message&) const = default;
  };

  // Sends and collectives that match. A receive stands for its send.
  Result<std::vector<TaskId>> claim(const FuseRule& rule) {
    PIPER_ASSIGN(const std::vector<TaskId> found, matcher_.find(rule.where, variables_));
    std::vector<TaskId> claimed;
    for (TaskId met : found) {
      const bool received = dag_.tasks[met.index()].kind == InstructionKind::kRecv;
      const TaskId id = received ? TaskId(met.index() - 1) : met;
      const Task& task = dag_.tasks[id.index()];
      if (!can_join(task) || task.region.valid() || claimed_by_[id.index()] == &rule) continue;
      if (const FuseRule* other = claimed_by_[id.index()])
        return fail(rule.at, "fuse: '{}' is joined already", print_label(dag_, task))
            .with_note("from " + place_of(other->at));
      claimed_by_[id.index()] = &rule;
      claimed.push_back(id);
    }
    return claimed;
  }
  // Collectives over several cells are of all devices: nobody leaves them alone.
  bool can_join(const Task& task) const {
    if (task.kind == InstructionKind::kSend) return true;
    return is_collective(task.kind) && info(task.kind).joins &&
           std::none_of(task.group.begin(), task.group.end(), [&](int32_t axis) {
             return dag_.mesh[static_cast<size_t>(axis)].tells_cells_apart();
           });
  }
  const TensorType& type(ItemId item) const {
    return dag_.graph.value(dag_.items[item.index()].value).type;
  }
  Key key_of(TaskId id, int32_t micro) {
    const Task& task = dag_.tasks[id.index()];
    const bool sends = task.kind == InstructionKind::kSend;
    const Task& other = dag_.tasks[id.index() + (sends ? 1 : 0)];
    // Messages of any element types are bytes.
    const DType dtype = sends ? DType::kF32 : moved_by(task)[0]->dtype;
    return {task.kind,      task.cell,         task.peer,  task.stream,    other.stream,
            other.distance, matcher_.view(id), micro,      task.group,     dtype,
            task.fast,      task.scaled,       task.block, within_of(task)};
  }
  Within within_of(const Task& task) {
    if (!task.within.valid()) return {};
    const Node& node = dag_.graph.node(task.nodes[0]);
    return {task.within, depth_of(task), layer_of(node.scope), node.op, print_attrs(node.attrs)};
  }
  // Of two equally deep collectives neither needs the other.
  int32_t depth_of(const Task& task) {
    const ChunkId chunk = dag_.tasks[task.within.index()].chunk;
    if (measured_.insert(chunk).second)
      for (NodeId id : dag_.chunks[chunk.index()].nodes) {
        const Node& node = dag_.graph.node(id);
        int32_t before = 0;
        for (ValueId input : node.inputs)
          if (input.valid() && dag_.graph.value(input).producer.valid())
            before = std::max(before, depth_[dag_.graph.value(input).producer.value]);
        depth_[id.value] = before + (find_op(node.op)->collective ? 1 : 0);
      }
    return depth_[task.nodes[0].value];
  }
  // Returns what travels: of collectives that put blocks together what they make, else what they
  // read.
  std::vector<const TensorType*> moved_by(const Task& task) const {
    std::vector<const TensorType*> types;
    const bool gathers = task.kind == InstructionKind::kAllGather;
    for (ItemId item : gathers ? task.writes : task.reads) types.push_back(&type(item));
    for (NodeId id : task.nodes) {
      const Node& node = dag_.graph.node(id);
      types.push_back(&dag_.graph.value(gathers ? node.outputs[0] : node.inputs[0]).type);
    }
    return types;
  }
  std::vector<ValueId> values_of(const Task& task) const {
    std::vector<ValueId> values;
    for (ItemId item : task.reads) values.push_back(dag_.items[item.index()].value);
    return values;
  }
  // Returns the last of the tasks that make what it moves.
  size_t made(TaskId id) const {
    const Task& task = dag_.tasks[id.index()];
    if (task.within.valid()) return task.nodes[0].index();
    size_t last = 0;
    for (ItemId item : dag_.tasks[id.index()].reads)
      for (TaskId writer : writers_[item.index()]) last = std::max(last, writer.index());
    return last;
  }
  // Returns the bytes of the whole tensors.
  int64_t bytes_of(const Task& task) const {
    int64_t bytes = 0;
    for (const TensorType* type : moved_by(task)) bytes += type->bytes();
    return bytes;
  }
  void fill_buckets(const std::vector<Message>& messages, int64_t bucket) {
    std::vector<TaskId> group;
    int64_t bytes = 0;
    for (const Message& message : messages) {
      group.push_back(message.task);
      bytes += bytes_of(dag_.tasks[message.task.index()]);
      const bool full = bucket > 0 && bytes >= bucket;
      if (!full && &message != &messages.back()) continue;
      add_group(group);
      group.clear();
      bytes = 0;
    }
  }
  // Adds groups of messages that follow each other without a gap.
  void add_neighbours(const std::vector<Message>& messages) {
    std::vector<TaskId> group;
    for (size_t m = 0; m < messages.size(); ++m) {
      if (m > 0 && messages[m].at != messages[m - 1].at + 1) {
        add_group(group);
        group.clear();
      }
      group.push_back(messages[m].task);
    }
    add_group(group);
  }
  void add_group(const std::vector<TaskId>& tasks) {
    if (tasks.size() < 2) return;
    fused_.groups.push_back(tasks);
    fused_.rule.push_back(fused_.matched.size());
  }

  const Dag& dag_;
  const Variables& variables_;
  const TaskMatcher matcher_;
  const std::vector<std::vector<TaskId>> writers_;
  std::vector<const FuseRule*> claimed_by_;  // by task
  std::set<ChunkId> measured_;
  std::unordered_map<int32_t, int32_t> depth_;  // by node of these
  Fused& fused_;
};

}  // namespace

Result<Fused> apply_fuse(const Dag& dag, const Strategy& strategy, const Variables& variables) {
  Fused fused;
  Finder finder(dag, strategy, variables, fused);
  for (const FuseRule& rule : strategy.fuses) PIPER_TRY(finder.join(rule));
  return fused;
}

Result<Fused> fuse_microbatches(const Dag& dag, const Strategy& strategy,
                                const Variables& variables) {
  Fused fused;
  Finder finder(dag, strategy, variables, fused);
  for (const FuseRule& rule : strategy.fuses) PIPER_TRY(finder.join_microbatches(rule));
  return fused;
}

void explain_fuse(const Dag& dag, const Strategy& strategy, const Fused& fused,
                  const std::vector<FuseCount>& counts, Explanations& out) {
  for (size_t r = 0; r < counts.size(); ++r) {
    const FuseCount& count = counts[r];
    Explanation report{strategy.fuses[r].at, "fuse", {}};
    if (fused.matched[r] == 0)
      report.lines.push_back(of_one_rank(dag));
    else if (count.left == fused.matched[r] && count.apart == 0)
      report.lines.push_back(
          fmt::format("{} messages, none with another that it could join", count.left));
    else
      report.lines.push_back(fmt::format("{} messages became {}", fused.matched[r], count.left));
    if (count.apart > 0)
      report.lines.push_back(
          fmt::format("{} of these stay apart, or tasks would wait for each other: {}, say",
                      count.apart, count.example));
    out.push_back(std::move(report));
  }
}

}  // namespace piper
