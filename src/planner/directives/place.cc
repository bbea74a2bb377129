// The directive `place`: the cell of each chunk.
#include <algorithm>
#include <limits>
#include <map>
#include <set>

#include "match.h"
#include "piper/planner/directives.h"

namespace piper {
namespace {

// Returns row-major coordinates of all cells: one per combination on the placed axes.
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

// Returns chunks in the order in which errors should name them: forward ones are what users think
// in.
std::vector<size_t> forward_first(const Dag& dag) {
  std::vector<size_t> order;
  for (const bool forward : {true, false})
    for (size_t c = 0; c < dag.chunks.size(); ++c)
      if ((dag.chunks[c].pass == TaskPass::kF) == forward) order.push_back(c);
  return order;
}

// Says where a chunk runs, and which tags it gets there.
struct Spot {
  std::vector<int32_t> coordinates;  // by axis, -1 until placed
  std::vector<int32_t> tags;         // by the tags that the directives define
  std::vector<const Place*> by;      // by axis: the directive that did
  bool is_like(const Spot& other) const {
    return coordinates == other.coordinates && tags == other.tags;
  }
};

bool depends_on(const Place& place, const std::string& name) {
  const auto reads = [&](const Expr& expr) {
    const auto names = expr.names();
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  const auto values_read = [&](const Condition::Values& values) {
    return reads(values.low) || (values.high && reads(*values.high));
  };
  for (const Condition& condition : place.where)
    if (condition.tag == name || reads(condition.low) ||
        std::any_of(condition.set.begin(), condition.set.end(), values_read))
      return true;
  const auto value_reads = [&](const auto& entry) { return reads(entry.second); };
  return std::any_of(place.tags.begin(), place.tags.end(), value_reads) ||
         std::any_of(place.on.begin(), place.on.end(), value_reads);
}

class Placer {
 public:
  Placer(Dag dag, const std::vector<Place>& places, const Variables& variables)
      : dag_(std::move(dag)), places_(places), variables_(variables) {}

  Result<Dag> run(Explanations& out) {
    for (const Place& place : places_)
      for (const auto& [tag, value] : place.tags)
        if (std::find(tags_.begin(), tags_.end(), tag) == tags_.end()) tags_.push_back(tag);
    const bool by_microbatch = std::any_of(places_.begin(), places_.end(), [](const Place& place) {
      return depends_on(place, place.micro);
    });
    columns_ = by_microbatch ? static_cast<int32_t>(dag_.microbatches) : 1;
    const Spot nowhere{std::vector<int32_t>(dag_.mesh.size(), -1),
                       std::vector<int32_t>(tags_.size(), kNoTag),
                       std::vector<const Place*>(dag_.mesh.size())};
    spots_.assign(dag_.chunks.size(), std::vector<Spot>(static_cast<size_t>(columns_), nowhere));
    for (const Place& place : places_) PIPER_TRY(apply(place, out));
    PIPER_TRY(find_cells());
    group_microbatches();
    split_chunks();
    if (!dag_.group_of.empty()) out.back().lines.push_back(explain_copies());
    return std::move(dag_);
  }

 private:
  Status apply(const Place& place, Explanations& out) {
    Explanation report{place.at, "place", {}};
    bool matched = false;
    std::map<std::vector<int32_t>, std::vector<Values>> known;  // by tags, and by microbatch
    for (size_t c : forward_first(dag_)) {
      auto& values = known.try_emplace(dag_.chunks[c].tags, columns_).first->second;
      std::vector<std::pair<Spot, std::vector<int32_t>>> alike;  // for the report
      for (int32_t micro = 0; micro < columns_; ++micro) {
        const int32_t number = number_of(c, place.micro).value_or(micro);
        PIPER_ASSIGN(auto bound, match_chunk(dag_, dag_.chunks[c], place.where, variables_,
                                             {place.micro, number}));
        if (!bound) continue;
        matched = true;
        bound->emplace_back(place.micro, number);
        if (!knows_count_) bound->emplace_back("M", dag_.microbatches);
        const auto m = static_cast<size_t>(micro);
        Spot& spot = spots_[c][m];
        PIPER_TRY(put(c, micro, place, *std::move(bound), values[m], spot));
        const auto same = std::find_if(alike.begin(), alike.end(), [&](const auto& other) {
          return other.first.is_like(spot);
        });
        if (same == alike.end())
          alike.push_back({spot, {micro}});
        else
          same->second.push_back(micro);
      }
      const std::vector<int32_t>& variants = dag_.chunks[c].variants;
      if (dag_.chunks[c].pass == TaskPass::kF && (variants.empty() || variants.front() == 0))
        for (const auto& [spot, micros] : alike)
          report.lines.push_back(explain(dag_.chunks[c], place, spot, micros));
    }
    if (!matched && !may_be_idle()) return no_match(dag_, place.where, place.at, "place");
    out.push_back(std::move(report));
    return ok_status();
  }

  // Returns the microbatch that all of a chunk stands for, in an outer update, which has one
  // itself.
  std::optional<int32_t> number_of(size_t c, const std::string& micro) const {
    const auto tag = std::ranges::find(dag_.region_tags, micro) - dag_.region_tags.begin();
    if (tag == std::ssize(dag_.region_tags)) return std::nullopt;
    const int32_t number = dag_.chunks[c].tags[static_cast<size_t>(tag)];
    return number == kNoTag ? std::nullopt : std::optional(number);
  }

  // What a directive's expressions come to, in order: the same for chunks of the same tags.
  using Values = std::vector<int64_t>;

  Status put(size_t c, int32_t micro, const Place& place, Variables bound, Values& values,
             Spot& spot) const {
    const std::string& name = dag_.chunks[c].name;
    size_t next = 0;
    const auto value_of = [&](const Expr& expr) -> Result<int64_t> {
      if (next == values.size()) {
        PIPER_ASSIGN(const int64_t value, expr.evaluate(bound));
        values.push_back(value);
      }
      return values[next++];
    };
    for (size_t t = 0; t < dag_.region_tags.size(); ++t)
      if (dag_.chunks[c].tags[t] != kNoTag)
        bound.emplace_back(dag_.region_tags[t], dag_.chunks[c].tags[t]);
    for (const auto& [tag, expr] : place.tags) {
      PIPER_ASSIGN(const int64_t value, value_of(expr));
      const auto t =
          static_cast<size_t>(std::find(tags_.begin(), tags_.end(), tag) - tags_.begin());
      if (spot.tags[t] != kNoTag)
        return fail(expr.at(), "place: '{}' has the tag '{}' already{}", name, tag, of(micro));
      if (value < 0 || value > std::numeric_limits<int32_t>::max())
        return fail(expr.at(), "place: the tag '{}' of '{}' is {}{}", tag, name, value, of(micro))
            .with_note("a tag's value is at least 0");
      spot.tags[t] = static_cast<int32_t>(value);
      bound.emplace_back(tag, value);
    }
    for (size_t i = 0; i < place.on.size(); ++i) {
      const SourceSpan& at = i < place.on_at.size() ? place.on_at[i] : place.at;
      PIPER_ASSIGN(const int32_t found, find_axis(dag_, place.on[i].first, at, "place"));
      const auto axis = static_cast<size_t>(found);
      bound.emplace_back("P", dag_.mesh[axis].size);
      PIPER_ASSIGN(const int64_t coordinate, value_of(place.on[i].second));
      bound.pop_back();
      if (coordinate < 0 || coordinate >= dag_.mesh[axis].size)
        return fail(at, "place: '{}' goes to {}={}{}, but the axis has coordinates 0 to {}", name,
                    dag_.mesh[axis].name, coordinate, of(micro), dag_.mesh[axis].size - 1)
            .with_note(fmt::format(
                "help: make the axis larger in 'mesh', or place several stages on a device, such "
                "as 'on: {{{}: s % P}}'",
                dag_.mesh[axis].name));
      if (spot.by[axis])
        return fail(place.at, "place: '{}' is already placed on {}={}{} by the directive at {}",
                    name, dag_.mesh[axis].name, spot.coordinates[axis], of(micro),
                    line_of(spot.by[axis]->at, place.at));
      spot.coordinates[axis] = static_cast<int32_t>(coordinate);
      spot.by[axis] = &place;
    }
    return ok_status();
  }
  // A device without parameters has no part in an outer update, which has no loss.
  bool may_be_idle() const { return !dag_.graph.loss.valid(); }
  // Says of which microbatch an error speaks.
  std::string of(int32_t micro) const {
    return columns_ > 1 ? fmt::format(" for {}={}", places_.front().micro, micro) : "";
  }

  std::string explain(const Chunk& chunk, const Place& place, const Spot& spot,
                      const std::vector<int32_t>& micros) const {
    std::string on;
    for (size_t a = 0; a < dag_.mesh.size(); ++a)
      if (spot.by[a] == &place) on += fmt::format(" {}={}", dag_.mesh[a].name, spot.coordinates[a]);
    for (size_t t = 0; t < tags_.size(); ++t)
      if (spot.tags[t] != kNoTag) on += fmt::format(" as {}={}", tags_[t], spot.tags[t]);
    if (static_cast<int32_t>(micros.size()) < columns_)
      on += fmt::format(" for {} {}", place.micro, ranges(micros));
    return fmt::format("'{}' and its backward on{}: {} ops forward", chunk.name, on,
                       chunk.nodes.size());
  }

  std::string explain_copies() const {
    std::vector<std::set<int32_t>> cells(dag_.graph.values.size());
    for (const Chunk& chunk : dag_.chunks)
      for (ValueId value : chunk.reads) cells[value.index()].insert(chunk.cell);
    size_t copied = 0;
    int64_t bytes = 0;
    for (const Param& param : dag_.graph.params) {
      const auto places = static_cast<int64_t>(cells[param.value.index()].size());
      if (places < 2) continue;
      ++copied;
      bytes += (places - 1) * dag_.graph.value(param.value).type.bytes();
    }
    return fmt::format(
        "{} of {} parameters have several places, {} more of them; their gradients are summed once "
        "a step",
        copied, dag_.graph.params.size(), human_bytes(bytes));
  }

  // Fails if a cell has no work.
  Status check_all_used(const std::vector<bool>& used) const {
    for (size_t i = 0; i < used.size(); ++i) {
      if (used[i] || may_be_idle()) continue;
      std::string where;
      for (size_t a = 0; a < dag_.mesh.size(); ++a)
        if (dag_.mesh[a].placed)
          where += fmt::format(" {}={}", dag_.mesh[a].name, dag_.cells[i][a]);
      return nothing_on(where);
    }
    return ok_status();
  }

  // Every microbatch of every chunk has exactly one cell, and every cell work.
  Status find_cells() {
    std::map<std::vector<int32_t>, int32_t> cell_of;
    for (size_t i = 0; i < dag_.cells.size(); ++i) cell_of[dag_.cells[i]] = static_cast<int32_t>(i);
    std::vector<bool> used(dag_.cells.size());
    cells_.resize(dag_.chunks.size());
    for (size_t c : forward_first(dag_))
      for (int32_t micro = 0; micro < columns_; ++micro) {
        const Spot& spot = spots_[c][static_cast<size_t>(micro)];
        for (size_t a = 0; a < dag_.mesh.size(); ++a)
          if (dag_.mesh[a].placed && spot.coordinates[a] < 0)
            return not_placed(dag_.chunks[c], dag_.mesh[a], micro);
        cells_[c].push_back(cell_of.at(spot.coordinates));
        used[static_cast<size_t>(cells_[c].back())] = true;
      }
    return check_all_used(used);
  }
  Error not_placed(const Chunk& chunk, const DagAxis& axis, int32_t micro) const {
    Error error = fail(places_.front().at, "place: no directive places '{}' on axis '{}'{}",
                       chunk.name, axis.name, of(micro));
    for (size_t t = 0; t < dag_.region_tags.size(); ++t)
      if (chunk.tags[t] == kNoTag)
        error.notes.push_back(
            fmt::format("help: {} of its ops have no '{}': give them one, or place them by `where: "
                        "{{{}: absent}}`",
                        chunk.nodes.size(), dag_.region_tags[t], dag_.region_tags[t]));
    return error;
  }
  Error nothing_on(const std::string& where) const {
    return with_regions(fail(places_.front().at, "place: nothing is placed on{}", where), dag_);
  }

  // Groups microbatches of which all chunks are placed alike.
  void group_microbatches() {
    dag_.group_of.clear();
    firsts_.clear();
    for (int32_t micro = 0; micro < columns_; ++micro) {
      size_t group = 0;
      while (group < firsts_.size() && !are_alike(firsts_[group], micro)) ++group;
      if (group == firsts_.size()) firsts_.push_back(micro);
      dag_.group_of.push_back(static_cast<int32_t>(group));
    }
    if (firsts_.size() == 1) dag_.group_of.clear();
  }
  bool are_alike(int32_t a, int32_t b) const {
    return std::all_of(spots_.begin(), spots_.end(), [&](const std::vector<Spot>& spots) {
      return spots[static_cast<size_t>(a)].is_like(spots[static_cast<size_t>(b)]);
    });
  }

  // Adds what a group of microbatches has of a chunk: to a piece from `begin` on that is in the
  // same place, or as one of its own.
  void add_piece(size_t c, size_t g, size_t begin, std::vector<Chunk>& chunks) {
    const auto micro = static_cast<size_t>(firsts_[g]);
    Chunk piece = dag_.chunks[c];
    piece.cell = cells_[c][micro];
    piece.tags.insert(piece.tags.end(), spots_[c][micro].tags.begin(), spots_[c][micro].tags.end());
    const auto same = std::find_if(
        chunks.begin() + static_cast<std::ptrdiff_t>(begin), chunks.end(),
        [&](const Chunk& other) { return other.cell == piece.cell && other.tags == piece.tags; });
    if (same != chunks.end()) {
      same->groups.push_back(static_cast<int32_t>(g));
      return;
    }
    piece.groups = {static_cast<int32_t>(g)};
    chunks.push_back(std::move(piece));
  }

  // A chunk becomes several where its microbatches differ in cell or tags.
  void split_chunks() {
    dag_.region_tags.insert(dag_.region_tags.end(), tags_.begin(), tags_.end());
    std::vector<Chunk> chunks;
    for (size_t c = 0; c < dag_.chunks.size(); ++c) {
      const size_t begin = chunks.size();
      for (size_t g = 0; g < firsts_.size(); ++g) {
        add_piece(c, g, begin, chunks);
      }
      for (size_t i = begin; i < chunks.size(); ++i)
        if (chunks[i].groups.size() == firsts_.size()) chunks[i].groups.clear();
    }
    dag_.chunks = std::move(chunks);
  }

  Dag dag_;
  const std::vector<Place>& places_;
  const Variables& variables_;
  const bool knows_count_ = std::ranges::count(variables_, "M", [](const auto& one) {
                              return std::string_view(one.first);
                            }) > 0;       // of microbatches
  std::vector<std::string> tags_;         // that the directives define
  int32_t columns_ = 1;                   // microbatches that are told apart
  std::vector<std::vector<Spot>> spots_;  // by chunk and column
  std::vector<std::vector<int32_t>> cells_;
  std::vector<int32_t> firsts_;  // of each group its first microbatch
};

}  // namespace

Result<Dag> apply_place(Dag dag, const std::vector<Place>& places, const Variables& variables,
                        Explanations& out) {
  dag.cells = make_cells(dag.mesh);
  if (places.empty()) return dag;
  return Placer(std::move(dag), places, variables).run(out);
}

}  // namespace piper
