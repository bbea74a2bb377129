// Where `place` puts each stage on several devices that are replicas of it: which these are, and
// how they are numbered on an axis of the mesh.
#include <algorithm>
#include <map>
#include <set>

#include "piper/planner/make_dag.h"
#include "rounds.h"

namespace piper {
namespace {

class TwinFinder {
 public:
  TwinFinder(Dag& dag, TwinFold& fold) : dag_(dag), fold_(fold) {}

  Status run() {
    find_cells();
    const auto of = static_cast<size_t>(fold_.axis);
    std::map<int32_t, std::vector<int32_t>> blocks;  // coordinates, by the lowest of them
    coordinate_of_.resize(static_cast<size_t>(dag_.mesh[of].size));
    for (size_t c = 0; c < coordinate_of_.size(); ++c) coordinate_of_[c] = static_cast<int32_t>(c);
    for (const auto& cells : cells_of_)
      for (const int32_t cell : cells) PIPER_TRY(join(cells.front(), cell));
    for (size_t c = 0; c < coordinate_of_.size(); ++c)
      blocks[first_of(static_cast<int32_t>(c))].push_back(static_cast<int32_t>(c));
    fold_.at.resize(coordinate_of_.size());
    for (const auto& [first, block] : blocks) {
      if (std::ssize(block) != dag_.twins) return uneven(block);
      const auto number = static_cast<int32_t>(std::distance(blocks.begin(), blocks.find(first)));
      for (size_t t = 0; t < block.size(); ++t)
        fold_.at[static_cast<size_t>(block[t])] = {static_cast<int32_t>(t), number};
    }
    for (Sum& sum : dag_.sums) find_twin(sum);
    return ok_status();
  }

 private:
  int32_t coordinate(int32_t cell) const {
    return dag_.cells[static_cast<size_t>(cell)][static_cast<size_t>(fold_.axis)];
  }
  // Finds by node and group of microbatches the cell where it runs; -1: nowhere.
  void find_cells() {
    groups_ = static_cast<size_t>(dag_.num_groups());
    cells_of_.assign(dag_.graph.nodes.size(), {});
    for (const Chunk& chunk : dag_.chunks) {
      if (chunk.pass == TaskPass::kPrepare) continue;
      for (const NodeId node : chunk.nodes) {
        std::vector<int32_t>& cells = cells_of_[node.index()];
        cells.resize(groups_, chunk.cell);
        for (const int32_t group : chunk.groups) cells[static_cast<size_t>(group)] = chunk.cell;
      }
    }
  }
  int32_t first_of(int32_t c) const {
    while (coordinate_of_[static_cast<size_t>(c)] != c) c = coordinate_of_[static_cast<size_t>(c)];
    return c;
  }
  // Notes that two cells have the same stage.
  Status join(int32_t cell, int32_t other) {
    std::vector<int32_t> at = dag_.cells[static_cast<size_t>(cell)];
    at[static_cast<size_t>(fold_.axis)] = coordinate(other);
    if (at != dag_.cells[static_cast<size_t>(other)])
      return fail("not supported: replicas over '{}' of a stage that is on devices of several axes",
                  name());
    const int32_t a = first_of(coordinate(cell)), b = first_of(coordinate(other));
    coordinate_of_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
    return ok_status();
  }
  const std::string& name() const { return dag_.mesh[static_cast<size_t>(fold_.twins)].name; }
  Error uneven(const std::vector<int32_t>& block) const {
    std::vector<std::string> where;
    for (const int32_t c : block) where.push_back(std::to_string(c));
    return fail("not supported: replicas over '{}', where stages are not on {} devices each",
                name(), dag_.twins)
        .with_note(fmt::format("devices that have stages in common: {}={}",
                               dag_.mesh[static_cast<size_t>(fold_.axis)].name,
                               piper::join(where, ", ")))
        .with_note(
            "help: replicas are devices that all have the same stages, as r and P-1-r of an even "
            "number have; without the entry each device of a stage has a copy of its states, and "
            "their gradients are summed");
  }

  // Each place adds up what its own microbatches contribute.
  void find_twin(Sum& sum) {
    const bool is_gradient = std::ranges::any_of(
        dag_.graph.params, [&](const Param& param) { return param.gradient == sum.value; });
    std::set<int32_t> numbers, twins;
    for (const ValueId use : sum.uses) {
      const NodeId producer = dag_.graph.value(use).producer;
      if (!is_gradient || !producer.valid() || cells_of_[producer.index()].empty()) continue;
      for (const int32_t cell : cells_of_[producer.index()]) {
        const auto [twin, number] = fold_.at[static_cast<size_t>(coordinate(cell))];
        sum.twin.push_back(twin);
        twins.insert(twin), numbers.insert(number);
      }
    }
    const bool is_whole = sum.twin.size() == sum.uses.size() * groups_;
    if (is_whole && numbers.size() == 1 && std::ssize(twins) == dag_.twins) return;
    sum.twin.clear();
    leave_twins(dag_, sum);
  }

  Dag& dag_;
  TwinFold& fold_;
  size_t groups_ = 1;
  std::vector<std::vector<int32_t>> cells_of_;
  std::vector<int32_t> coordinate_of_;  // by coordinate: a lower one that has the same stages
};

}  // namespace

Result<TwinFold> find_twins(Dag& dag) {
  TwinFold fold;
  const auto twins = std::ranges::find_if(dag.mesh, &DagAxis::twins);
  if (twins == dag.mesh.end() || twins->size == 1) return fold;
  fold.twins = static_cast<int32_t>(twins - dag.mesh.begin());
  fold.axis = fold.twins + 1;  // the next one: join_axes
  PIPER_TRY(TwinFinder(dag, fold).run());
  return fold;
}

void fold_twins(Dag& dag, const TwinFold& fold) {
  if (fold.twins < 0) return;
  const auto twins = static_cast<size_t>(fold.twins), axis = static_cast<size_t>(fold.axis);
  dag.mesh[axis].size /= dag.mesh[twins].size;
  dag.mesh[twins].placed = true;
  for (std::vector<int32_t>& cell : dag.cells) {
    const auto [twin, number] = fold.at[static_cast<size_t>(cell[axis])];
    cell[twins] = twin, cell[axis] = number;
  }
}

}  // namespace piper
