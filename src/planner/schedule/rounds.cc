// Orders in which each cell runs some forwards first, and then a forward and a backward in turn:
// good where tasks take different times on cells, which leads astray what looks at the next one.
#include <algorithm>

#include "lines.h"

namespace piper {

// Follows the forwards that read the last one, as long as there is one of them.
std::vector<size_t> way_of(const Lines& lines) {
  const auto is_forward = [&](size_t l) { return lines.all[l].pass == TaskPass::kF; };
  std::vector<size_t> way;
  std::vector<bool> follows(lines.all.size());
  for (const Line& line : lines.all)
    for (const size_t reader : line.readers)
      if (line.pass == TaskPass::kF && is_forward(reader)) follows[reader] = true;
  for (size_t l = 0; l < lines.all.size(); ++l)
    if (is_forward(l) && !follows[l]) way.push_back(l);
  if (way.size() != 1) return {};
  for (bool found = true; found && way.size() < lines.all.size();) {
    found = false;
    const size_t last = way.back();
    for (const size_t reader : lines.all[last].readers) {
      if (!is_forward(reader) || reader == last) continue;
      if (found) return {};
      way.push_back(reader);
      found = true;
    }
  }
  return way;
}

std::optional<RoundShape> find_round_shape(const Dag& dag, const Lines& lines) {
  const std::vector<size_t> way = way_of(lines);
  const auto cells = static_cast<size_t>(
      std::count_if(lines.of_cell.begin(), lines.of_cell.end(),
                    [](const std::vector<size_t>& here) { return !here.empty(); }));
  if (!dag.group_of.empty() || cells < 2 || way.empty() || way.size() % cells != 0)
    return std::nullopt;
  RoundShape shape;
  for (size_t at = 0; at < cells; ++at) {
    auto& here = shape.cells.emplace_back();
    here.cell = lines.all[way[at]].cell;
    for (size_t l = at; l < way.size(); l += cells) {
      RoundShape::Region region{way[l], Line::kNone, Line::kNone};
      for (const size_t other : lines.of_cell[here.cell]) {
        const Line& line = lines.all[other];
        if (line.forward != way[l] || other == way[l]) continue;
        (line.pass == TaskPass::kBW ? region.weights : region.backward) = other;
      }
      if (lines.all[way[l]].cell != here.cell || region.backward == Line::kNone)
        return std::nullopt;
      here.regions.push_back(region);
    }
    size_t known = 0;
    for (const RoundShape::Region& region : here.regions)
      known += region.weights == Line::kNone ? 2 : 3;
    if (known != lines.of_cell[here.cell].size()) return std::nullopt;
  }
  return shape;
}

namespace {

// Makes the order of one cell.
class RoundLister {
 public:
  RoundLister(const ListPolicy& limits, const Lines& lines, const RoundShape::Cell& cell,
              Used& used)
      : lines_(lines),
        cell_(cell),
        used_(used),
        in_flight_(limits.in_flight[cell.cell]),
        memory_(limits.memory) {}

  // `turns`: of regions and microbatches. Weight halves follow `late` backwards later.
  bool run(const std::vector<std::pair<size_t, size_t>>& turns, size_t ahead, size_t late) {
    const bool in_halves = cell_.regions[0].weights != Line::kNone;
    size_t forwards = 0, backwards = 0, weights = in_halves ? 0 : turns.size();
    while (backwards < turns.size() || weights < turns.size()) {
      const bool may_go = forwards < turns.size() && forwards <= backwards + ahead;
      if (may_go && fits(turns[forwards]))
        put(turns[forwards++], &RoundShape::Region::forward);
      else if (weights < backwards && (may_go || backwards == turns.size()))
        put_backward(turns[weights++], &RoundShape::Region::weights);
      else if (backwards == forwards)
        return false;  // the limits let nothing more through
      else {
        put_backward(turns[backwards++], &RoundShape::Region::backward);
        if (in_halves && weights + late < backwards)
          put_backward(turns[weights++], &RoundShape::Region::weights);
      }
    }
    return true;
  }
  std::vector<TaskId> order;

 private:
  using Turn = std::pair<size_t, size_t>;
  bool fits(const Turn& turn) const {
    const Line& line = lines_.all[cell_.regions[turn.first].forward];
    const int64_t bytes = bytes_ + lines_.places[line.first + turn.second].held;
    const bool fits = chunks_ < in_flight_ && (memory_ <= 0 || bytes <= memory_);
    used_.note(chunks_ + 1, bytes);
    return fits;
  }
  void put(const Turn& turn, size_t RoundShape::Region::*pass) {
    const Line& line = lines_.all[cell_.regions[turn.first].*pass];
    const LinePlace& place = lines_.places[line.first + turn.second];
    const bool is_forward = line.pass == TaskPass::kF;
    chunks_ += is_forward ? line.slots : -line.slots;
    bytes_ += is_forward ? place.held : -place.freed;
    order.push_back(place.task);
  }
  // A backward comes to the regions the other way.
  void put_backward(const Turn& turn, size_t RoundShape::Region::*pass) {
    put({cell_.regions.size() - 1 - turn.first, turn.second}, pass);
  }

  const Lines& lines_;
  const RoundShape::Cell& cell_;
  Used& used_;
  const int64_t in_flight_, memory_;
  int64_t chunks_ = 0, bytes_ = 0;
};

}  // namespace

std::vector<ComputeOrder> order_in_rounds(const ListPolicy& limits, const Lines& lines,
                                          const RoundShape& shape, const Sample& sample,
                                          size_t ahead, Used& used) {
  used = {};
  const size_t cells = shape.cells.size(), regions = shape.cells[0].regions.size();
  const size_t rounds = std::max<size_t>(sample.micros / cells, 1);
  std::vector<std::pair<size_t, size_t>> turns;
  size_t longest = 0;  // round, in microbatches
  for (size_t round = 0; round < rounds; ++round) {
    const size_t first = round * sample.micros / rounds, end = (round + 1) * sample.micros / rounds;
    longest = std::max(longest, end - first);
    for (size_t region = 0; region < regions; ++region)
      for (size_t micro = first; micro < end; ++micro) turns.emplace_back(region, micro);
  }
  std::vector<ComputeOrder> orders(lines.of_cell.size());
  for (size_t at = 0; at < cells; ++at) {
    RoundLister lister(limits, lines, shape.cells[at], used);
    if (!lister.run(turns, (regions - 1) * longest + ahead * (cells - 1 - at), ahead * at))
      return {};
    orders[shape.cells[at].cell].tasks = std::move(lister.order);
  }
  return orders;
}

}  // namespace piper
