#include <algorithm>
#include <map>

#include "match.h"
#include "piper/directives.h"

namespace piper {
namespace {

// Row-major coordinates of all cells: one per combination on the placed axes.
std::vector<std::vector<int32_t>> make_cells(const std::vector<DagAxis>& mesh) {
  std::vector<std::vector<int32_t>> cells{std::vector<int32_t>(mesh.size(), -1)};
  for (size_t a = 0; a < mesh.size(); ++a) {
    if (!mesh[a].placed) continue;
    std::vector<std::vector<int32_t>> next;
    for (const auto& cell : cells)
      for (int32_t i = 0; i < mesh[a].size; ++i) {
        next.push_back(cell);
        next.back()[a] = i;
      }
    cells = std::move(next);
  }
  return cells;
}

std::vector<std::string> axis_names(const Dag& dag) {
  std::vector<std::string> names;
  for (const DagAxis& axis : dag.mesh) names.push_back(axis.name);
  return names;
}

Result<size_t> find_axis(const Dag& dag, const std::string& name, const SourceSpan& at) {
  for (size_t a = 0; a < dag.mesh.size(); ++a)
    if (dag.mesh[a].name == name) return a;
  const auto names = axis_names(dag);
  return fail(at, "place: the mesh has no axis '{}'{}", name, did_you_mean(name, names));
}

// Chunks in the order in which errors should name them: forward ones are what users think in.
std::vector<size_t> forward_first(const Dag& dag) {
  std::vector<size_t> order;
  for (const bool forward : {true, false})
    for (size_t c = 0; c < dag.chunks.size(); ++c)
      if ((dag.chunks[c].pass == 'F') == forward) order.push_back(c);
  return order;
}

struct Placement {
  std::vector<int32_t> coordinates;  // by axis, -1 until placed
  std::vector<const Place*> by;      // by axis: the directive that did
};

Status place_chunk(const Dag& dag, const Chunk& chunk, const Place& place, const Variables& bound,
                   Placement& placement) {
  for (size_t i = 0; i < place.on.size(); ++i) {
    const SourceSpan& at = i < place.on_at.size() ? place.on_at[i] : place.at;
    PIPER_ASSIGN(const size_t axis, find_axis(dag, place.on[i].first, at));
    PIPER_ASSIGN(const int64_t coordinate, place.on[i].second.evaluate(bound));
    if (coordinate < 0 || coordinate >= dag.mesh[axis].size)
      return fail(at, "place: '{}' goes to {}={}, but the axis has coordinates 0 to {}", chunk.name,
                  dag.mesh[axis].name, coordinate, dag.mesh[axis].size - 1);
    if (placement.by[axis])
      return fail(place.at, "place: '{}' is already placed on {}={} by the directive at line {}",
                  chunk.name, dag.mesh[axis].name, placement.coordinates[axis],
                  placement.by[axis]->at.line);
    placement.coordinates[axis] = static_cast<int32_t>(coordinate);
    placement.by[axis] = &place;
  }
  return ok_status();
}

}  // namespace

Result<Dag> apply_place(Dag dag, const std::vector<Place>& places, const Variables& variables,
                        Explanations& out) {
  dag.cells = make_cells(dag.mesh);
  if (places.empty()) return dag;
  std::vector<Placement> placements(
      dag.chunks.size(),
      {std::vector<int32_t>(dag.mesh.size(), -1), std::vector<const Place*>(dag.mesh.size())});
  for (const Place& place : places) {
    Explanation report{place.at, "place", {}};
    size_t matched = 0;
    for (size_t c : forward_first(dag)) {
      PIPER_ASSIGN(const auto bound, match_chunk(dag, dag.chunks[c], place.where, variables));
      if (!bound) continue;
      ++matched;
      PIPER_TRY(place_chunk(dag, dag.chunks[c], place, *bound, placements[c]));
      if (dag.chunks[c].pass == 'F') {
        std::string on;
        for (size_t a = 0; a < dag.mesh.size(); ++a)
          if (placements[c].by[a] == &place)
            on += fmt::format(" {}={}", dag.mesh[a].name, placements[c].coordinates[a]);
        report.lines.push_back(fmt::format("'{}' and its backward on{}: {} ops forward",
                                           dag.chunks[c].name, on, dag.chunks[c].nodes.size()));
      }
    }
    if (matched == 0) return no_match(dag, place.where, place.at, "place");
    out.push_back(std::move(report));
  }
  std::map<std::vector<int32_t>, int32_t> cell_of;
  for (size_t i = 0; i < dag.cells.size(); ++i) cell_of[dag.cells[i]] = static_cast<int32_t>(i);
  std::vector<bool> used(dag.cells.size());
  for (size_t c : forward_first(dag)) {
    for (size_t a = 0; a < dag.mesh.size(); ++a)
      if (dag.mesh[a].placed && placements[c].coordinates[a] < 0)
        return fail(places.front().at, "place: no directive places '{}' on axis '{}'",
                    dag.chunks[c].name, dag.mesh[a].name);
    dag.chunks[c].cell = cell_of.at(placements[c].coordinates);
    used[static_cast<size_t>(dag.chunks[c].cell)] = true;
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    std::string where;
    for (size_t a = 0; a < dag.mesh.size(); ++a)
      if (dag.mesh[a].placed) where += fmt::format(" {}={}", dag.mesh[a].name, dag.cells[i][a]);
    return fail(places.front().at, "place: nothing is placed on{}", where)
        .with_note(
            "help: make the mesh axis as long as there are places, or cut the model into more "
            "regions");
  }
  return dag;
}

}  // namespace piper
