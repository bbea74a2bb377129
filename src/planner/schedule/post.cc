// Moves receives and inputs ahead of their first reader.
#include "post.h"

#include <algorithm>
#include <unordered_map>

#include "dependencies.h"

namespace piper {
namespace {

bool is_posted(const Task& task) {
  if (task.within.valid()) return false;
  if (task.kind == InstructionKind::kInput) return task.distance > 0;
  if (task.kind == InstructionKind::kAllGather) return task.distance > 0 && task.micro >= 0;
  return task.kind == InstructionKind::kRecv && task.distance > 0 && task.distance != kEarliest;
}

// Both sides of an overlap begin after all that they need.
int64_t before_overlap(const std::vector<Overlap>& overlaps, int64_t at) {
  for (const Overlap& overlap : overlaps)
    if (at > overlap.first && at < overlap.end) return overlap.first;
  return at;
}

int64_t post_in_cell(const Dag& dag, const std::vector<int32_t>& sent_at,
                     std::vector<TaskId>& order, std::vector<Overlap>& overlaps) {
  struct Place {
    int64_t before;  // this old position
    bool stays;
    int64_t from;
  };
  std::vector<Place> places;
  std::vector<int64_t> computes;  // positions
  std::unordered_map<int32_t, int64_t>
      received;  // by item: its receive stands before this position
  int64_t nearer = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const Task& task = dag.tasks[order[i].index()];
    const auto at = static_cast<int64_t>(i);
    places.push_back({at, true, at});
    if (task.kind == InstructionKind::kCompute && is_ordered(task)) computes.push_back(at);
    if (is_posted(task)) {
      const auto ahead = static_cast<size_t>(task.distance);
      const int64_t wanted = ahead > computes.size() ? 0 : computes[computes.size() - ahead];
      int64_t allowed = std::max<int64_t>(wanted, sent_at[order[i].index()]);
      for (ItemId item : task.reads)  // of gathers: what is put together has come
        if (const auto came = received.find(item.value); came != received.end())
          allowed = std::max(allowed, came->second);
      const int64_t before = before_overlap(overlaps, allowed);
      if (allowed > wanted) ++nearer;
      if (before < at) places.back() = {before, false, at};
    }
    if (task.kind == InstructionKind::kRecv)
      for (ItemId item : task.writes)
        received[item.value] = places.back().before + (places.back().stays ? 1 : 0);
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.before, a.stays, a.from) < std::tie(b.before, b.stays, b.from);
  });
  std::vector<TaskId> moved;
  std::vector<int32_t> now(order.size());
  for (const Place& place : places) {
    now[static_cast<size_t>(place.from)] = static_cast<int32_t>(moved.size());
    moved.push_back(order[static_cast<size_t>(place.from)]);
  }
  order = std::move(moved);
  for (Overlap& o : overlaps)
    o = {now[static_cast<size_t>(o.first)], now[static_cast<size_t>(o.second)],
         now[static_cast<size_t>(o.end - 1)] + 1};
  return nearer;
}

}  // namespace

int64_t post_ahead(const Dag& dag, const std::vector<int32_t>& sent_at,
                   std::vector<std::vector<TaskId>>& orders,
                   std::vector<std::vector<Overlap>>& overlaps) {
  int64_t nearer = 0;
  for (size_t cell = 0; cell < orders.size(); ++cell)
    nearer += post_in_cell(dag, sent_at, orders[cell], overlaps[cell]);
  return nearer;
}

}  // namespace piper
