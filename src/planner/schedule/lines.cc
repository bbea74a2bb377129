// Computations that are ready, in lines of one order each, for list scheduling.
#include "lines.h"

#include <algorithm>
#include <map>

#include "piper/base/parallel.h"

namespace piper {

Lines::Lines(const Dag& dag, const TaskLists& deps, const ListPolicy& policy)
    : of_cell(dag.cells.size()), dag_(dag) {
  const std::vector<std::vector<TaskId>> tasks = find_lines(policy);
  size_t count = 0;
  for (const std::vector<TaskId>& line : tasks) count += line.size();
  places.reserve(count);
  for (size_t l = 0; l < tasks.size(); ++l) {
    all[l].first = places.size();
    for (TaskId id : tasks[l]) {
      const Task& task = dag.tasks[id.index()];
      const size_t chunk = task.chunk.index();
      places.push_back({id, static_cast<int32_t>(l), task.micro, policy.time[chunk],
                        policy.held.empty() ? 0 : policy.held[chunk]});
    }
    all[l].end = places.size();
  }
  measure(policy);
  find_needs(deps, policy);
  are_alike = find_alike();
}

Sample::Sample(const Lines& lines, size_t count) : micros(count), work(lines.of_cell.size()) {
  for (const Line& line : lines.all)
    for (size_t place = line.first; place < std::min(line.end, line.first + micros); ++place)
      work[line.cell] += lines.places[place].time;
}

// Returns the tasks of each line.
std::vector<std::vector<TaskId>> Lines::find_lines(const ListPolicy& policy) {
  std::vector<std::vector<TaskId>> tasks;
  std::vector<int32_t> of_chunk(dag_.chunks.size(), -1);
  for (size_t t = 0; t < dag_.tasks.size(); ++t) {
    const Task& task = dag_.tasks[t];
    if (!is_ordered(task)) continue;
    const size_t chunk = task.chunk.index();
    auto& here = of_cell[static_cast<size_t>(task.cell)];
    int32_t& line = of_chunk[chunk];
    for (size_t l = 0; l < here.size() && line < 0; ++l)
      if (all[here[l]].pass == task.pass &&
          dag_.chunks[all[here[l]].chunk].tags == dag_.chunks[chunk].tags)
        line = static_cast<int32_t>(here[l]);
    if (line < 0) {
      line = static_cast<int32_t>(all.size());
      here.push_back(all.size());
      Line made;
      made.cell = static_cast<size_t>(task.cell);
      made.chunk = chunk;
      made.pass = task.pass;
      const auto rank = std::find(policy.prefer.begin(), policy.prefer.end(), task.pass);
      made.rank = static_cast<int>(rank - policy.prefer.begin());
      all.push_back(std::move(made));
      tasks.emplace_back().reserve(static_cast<size_t>(dag_.micros()));
    }
    tasks[static_cast<size_t>(line)].push_back(TaskId(t));
  }
  const auto turn = [&](TaskId id) {
    return policy.turn.empty() ? dag_.tasks[id.index()].micro : policy.turn[id.index()];
  };
  const auto earlier = [&](TaskId a, TaskId b) { return turn(a) < turn(b); };
  for (auto& line : tasks)
    if (!std::is_sorted(line.begin(), line.end(), earlier))
      std::sort(line.begin(), line.end(), earlier);
  return tasks;
}

// Finds what tasks need, through communication and sums.
void Lines::find_needs(const TaskLists& deps, const ListPolicy& policy) {
  std::vector<int32_t> place_of(dag_.tasks.size(), -1);
  for (size_t p = 0; p < places.size(); ++p)
    place_of[places[p].task.index()] = static_cast<int32_t>(p);
  using Open = std::vector<std::pair<TaskId, int64_t>>;
  const auto find = [&](TaskId of, Open& open, std::vector<Need>& found) {
    open.emplace_back(of, 0);
    while (!open.empty()) {
      const auto [at, delay] = open.back();
      open.pop_back();
      for (TaskId d : deps[at.index()]) {
        if (const int32_t p = place_of[d.index()]; p >= 0) {
          found.push_back({p, delay});
          continue;
        }
        const Task& task = dag_.tasks[d.index()];
        int64_t later = delay;
        if (task.kind == InstructionKind::kRecv) {
          const ValueId value = dag_.items[task.writes[0].index()].value;
          later += policy.time_per_message;
          if (policy.time_per_byte > 0)
            later += static_cast<int64_t>(
                policy.time_per_byte * static_cast<double>(dag_.graph.value(value).type.bytes()));
        }
        open.emplace_back(d, later);
      }
    }
  };
  constexpr size_t kBlock = 1 << 13;
  std::vector<ListsByTask<Need>> blocks((places.size() + kBlock - 1) / kBlock);
  in_parallel(blocks.size(), [&](size_t b) {
    std::vector<Need> found;
    Open open;
    for (size_t p = b * kBlock; p < std::min((b + 1) * kBlock, places.size()); ++p) {
      found.clear();
      find(places[p].task, open, found);
      blocks[b].add(found);
    }
  });
  for (const auto& block : blocks) needs.append(block);
  find_readers();
}

void Lines::find_readers() {
  for (size_t p = 0; p < places.size(); ++p) {
    const auto reader = static_cast<size_t>(places[p].line);
    for (const Need& need : needs[p]) {
      const auto place = static_cast<size_t>(need.place);
      Line& needed = all[static_cast<size_t>(places[place].line)];
      are_aligned = are_aligned && place - needed.first == p - all[reader].first;
      auto& readers = needed.readers;
      if (std::find(readers.begin(), readers.end(), reader) == readers.end())
        readers.push_back(reader);
    }
  }
}

// Compares the tasks of each line with its first one.
bool Lines::find_alike() const {
  const auto is_like = [&](const Line& line, size_t n) {
    const LinePlace &first = places[line.first], &place = places[line.first + n];
    if (place.time != first.time || place.held != first.held || place.freed != first.freed)
      return false;
    const auto these = needs[line.first + n], of_first = needs[line.first];
    const auto shift = static_cast<int32_t>(n);
    return std::equal(these.begin(), these.end(), of_first.begin(), of_first.end(),
                      [&](const Need& a, const Need& b) {
                        return a.place == b.place + shift && a.delay == b.delay;
                      });
  };
  for (const Line& line : all)
    for (size_t n = 1; line.first + n < line.end; ++n)
      if (!is_like(line, n)) return false;
  return true;
}

// What a forward keeps is freed by its backward: by the input half all but what that leaves for the
// weight half. `passes`: lines of one region.
void Lines::free_in(const std::map<TaskPass, size_t>& passes, const ListPolicy& policy) {
  const Line& forward = all[passes.at(TaskPass::kF)];
  const auto weights = passes.find(TaskPass::kBW), input = passes.find(TaskPass::kBI);
  const auto whole = passes.find(TaskPass::kB);
  const bool in_halves = weights != passes.end();
  for (size_t n = 0; forward.first + n < forward.end; ++n) {
    const int64_t held = places[forward.first + n].held;
    const auto place_in = [&](size_t line) -> LinePlace* {
      return all[line].first + n < all[line].end ? &places[all[line].first + n] : nullptr;
    };
    int64_t left = held;
    if (in_halves && input != passes.end() && !policy.left.empty())
      if (LinePlace* place = place_in(input->second)) {
        left = std::min(held, policy.left[dag_.tasks[place->task.index()].chunk.index()]);
        place->freed = held - left;
      }
    const size_t last = in_halves               ? weights->second
                        : whole != passes.end() ? whole->second
                                                : input->second;
    if (LinePlace* place = place_in(last)) place->freed = left;
  }
}

// Measures what forwards hold and what gives it back: the weight part, else the whole or the input
// part.
void Lines::measure(const ListPolicy& policy) {
  for (const std::vector<size_t>& here : of_cell) {
    std::map<std::vector<int32_t>, std::map<TaskPass, size_t>> regions;  // lines by pass
    for (size_t l : here) regions[dag_.chunks[all[l].chunk].tags][all[l].pass] = l;
    std::vector<std::pair<size_t, const std::map<TaskPass, size_t>*>> forwards;
    for (const auto& [tags, passes] : regions)
      if (passes.count(TaskPass::kF))
        forwards.emplace_back(all[passes.at(TaskPass::kF)].chunk, &passes);
    std::sort(forwards.rbegin(), forwards.rend());  // the latest first
    int64_t room = 0, bytes = 0;
    for (const auto& [chunk, passes] : forwards) {
      if (chunk == forwards.back().first)
        for (const auto& [pass, l] : *passes) all[l].first_here = true;
      Line* last = nullptr;
      for (const TaskPass pass : {TaskPass::kBI, TaskPass::kB, TaskPass::kBW})
        if (passes->count(pass)) last = &all[passes->at(pass)];
      if (!last) continue;
      Line& forward = all[passes->at(TaskPass::kF)];
      forward.slots = last->slots = 1;
      for (const auto& [pass, l] : *passes) all[l].forward = passes->at(TaskPass::kF);
      forward.room = ++room;
      int64_t most = 0;
      for (size_t p = forward.first; p < forward.end; ++p) most = std::max(most, places[p].held);
      forward.bytes = bytes += most;
      free_in(*passes, policy);
    }
  }
}

}  // namespace piper
