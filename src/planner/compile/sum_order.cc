// Orders the single plan's computations as the parallel plan sums them, so that bits are equal.
#include "sum_order.h"

#include <algorithm>

namespace piper {
namespace {

using Key = std::pair<TaskPass, std::vector<int32_t>>;

// Returns the key without the tags that place adds.
Key key_of(const Chunk& chunk, size_t tags) {
  return {chunk.pass, {chunk.tags.begin(), chunk.tags.begin() + static_cast<ptrdiff_t>(tags)}};
}

bool ascends(const Dag& dag, const std::vector<int32_t>& micros) {
  std::vector<int32_t> last(static_cast<size_t>(dag.num_groups()), -1);
  return std::all_of(micros.begin(), micros.end(), [&](int32_t micro) {
    int32_t& before = last[static_cast<size_t>(dag.group_of_micro(micro))];
    return std::exchange(before, micro) < micro;
  });
}

std::string list(const std::vector<int32_t>& micros) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(micros.size(), kShown); ++i)
    text += fmt::format(" {}", micros[i]);
  return micros.size() > kShown ? text + " …" : text;
}

// Returns the name of a chunk whose sums do not get all chunks of tokens of one microbatch, the
// last one first, and then those of the next; empty: there is none.
std::string alternates(const Dag& dag, const std::vector<ComputeOrder>& compute,
                       const std::string& tokens) {
  const auto at = std::ranges::find(dag.region_tags, tokens) - dag.region_tags.begin();
  using Turn = std::tuple<int32_t, int32_t>;  // microbatch, and chunks of tokens from the last on
  std::map<std::pair<TaskPass, std::vector<int32_t>>, std::map<int32_t, Turn>> last;  // by group
  for (const ComputeOrder& order : compute)
    for (TaskId id : order.tasks) {
      const Task& task = dag.tasks[id.index()];
      const Chunk& chunk = dag.chunks[task.chunk.index()];
      if (task.accumulates.empty() || !is_backward(chunk.pass)) continue;
      std::vector<int32_t> tags = chunk.tags;
      const Turn turn{task.micro, -tags[static_cast<size_t>(at)]};
      tags.erase(tags.begin() + at);
      const auto [before, is_first] =
          last[{chunk.pass, tags}].try_emplace(dag.group_of_micro(task.micro), turn);
      if (!is_first && std::exchange(before->second, turn) > turn) return chunk.name;
    }
  return "";
}

// Leaves one order for each stage, as the single-device plan has it.
void join_finer(Summing& summing, std::vector<std::string>& lines) {
  bool differ = false;
  std::map<Key, std::vector<int32_t>> joined;
  for (auto& [key, micros] : summing.orders) {
    Key stage = key;
    stage.second.resize(key.second.size() - summing.finer);
    const auto [known, is_new] = joined.try_emplace(std::move(stage), micros);
    differ = differ || known->second != micros;
  }
  summing.orders = std::move(joined);
  if (differ)
    lines.push_back(
        "parts of a stage add microbatches in different orders: the single-device plan adds all in "
        "one, and differs by rounding");
}

// Returns the turn of each microbatch.
std::map<Key, std::vector<int32_t>> turns_of(const Dag& oracle, const Summing& summing) {
  std::map<Key, std::vector<int32_t>> turns;
  for (const auto& [key, micros] : summing.orders) {
    std::vector<int32_t>& turn = turns[key];
    turn.resize(static_cast<size_t>(oracle.microbatches));
    for (size_t i = 0; i < micros.size(); ++i)
      turn[static_cast<size_t>(micros[i])] = static_cast<int32_t>(i);
  }
  return turns;
}

}  // namespace

void find_sum_orders(const Dag& dag, const std::vector<ComputeOrder>& compute, Summing& summing,
                     std::vector<std::string>& lines) {
  if (!summing.tokens.empty())
    if (const std::string name = alternates(dag, compute, summing.tokens); !name.empty())
      lines.push_back(fmt::format(
          "'{}' adds chunks of tokens of several microbatches in turn: the single-device plan adds "
          "microbatch by microbatch, and differs by rounding",
          name));
  std::map<Key, std::string> names;
  for (const ComputeOrder& order : compute)
    for (TaskId id : order.tasks) {
      const Task& task = dag.tasks[id.index()];
      if (task.accumulates.empty()) continue;
      const Chunk& chunk = dag.chunks[task.chunk.index()];
      const Key key = key_of(chunk, summing.region_tags.size());
      summing.orders[key].push_back(task.micro);
      names.try_emplace(key, chunk.name);
    }
  size_t count = 0;
  std::string first;
  for (const auto& [key, micros] : summing.orders) {
    if (ascends(dag, micros)) continue;
    if (count++ == 0) first = fmt::format("'{}' adds{}", names[key], list(micros));
  }
  if (count == 0) return summing.orders.clear();
  if (summing.finer > 0) join_finer(summing, lines);
  lines.push_back(fmt::format("sums are not formed in microbatch order: {}{}", first,
                              count > 1 ? fmt::format(", and {} more", count - 1) : ""));
  lines.push_back(
      "the single-device plan of this strategy adds in the same order, bit for bit; other plans of "
      "this cut of the batch differ by rounding");
}

ListPolicy policy_like(const Dag& oracle, const Summing& summing) {
  ListPolicy policy = default_policy(oracle);
  if (summing.orders.empty()) return policy;
  const std::map<Key, std::vector<int32_t>> turns = turns_of(oracle, summing);
  for (const Task& task : oracle.tasks) {
    policy.turn.push_back(task.micro);
    if (!task.chunk.valid() || task.micro < 0) continue;
    const Chunk& chunk = oracle.chunks[task.chunk.index()];
    const auto turn =
        turns.find(key_of(chunk, std::min(chunk.tags.size(), summing.region_tags.size())));
    if (turn == turns.end()) continue;
    const auto microbatches = static_cast<int32_t>(oracle.microbatches);
    policy.turn.back() = task.micro / microbatches * microbatches +
                         turn->second[static_cast<size_t>(task.micro % microbatches)];
  }
  return policy;
}

}  // namespace piper
