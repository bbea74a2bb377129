// Finds which values each element of a data input may have, where ops read them as indices into
// tables of different sizes.
#include "at.h"
#include "index_reads.h"
#include "piper/planner/lower.h"

namespace piper {
namespace {

// Finds which elements of a sample each op reads as indices.
class RangeFinder {
 public:
  RangeFinder(const Graph& graph, const std::vector<std::vector<NodeId>>& readers, ValueId input)
      : graph_(graph), found_(graph, readers, input), elements_(found_.moved.size()) {}

  // Returns DataInput::ranges.
  std::vector<int64_t> run() {
    const Value& input = graph_.value(found_.moved[0].value);
    if (found_.are_alike() || num_elements(input.type.shape) > kMost) return {};
    mark_input(input);
    for (size_t m = 1; m < found_.moved.size(); ++m)
      if (!follow(m)) return {};
    std::vector<Legal> legal(at(sample_));
    for (const IndexReads::Read& read : found_.reads) {
      const auto& elements = elements_[read.moved];
      for (const auto& [of, shift] : std::set<Element>(elements.begin(), elements.end()))
        if (of != kNoSource) legal[at(of)].add(read.indices, shift);
    }
    return runs_of(legal);
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 23;  // elements of an input: more take too long

  // Says which element of a sample a value has, and what is added to it.
  struct Element {
    int64_t of = kNoSource, shift = 0;
    auto operator<=>(const Element&) const = default;
  };

  void mark_input(const Value& input) {
    const Shape& shape = input.type.shape;
    const auto dim = input.batch_dim < 0 ? shape.begin() : shape.begin() + input.batch_dim;
    const int64_t rows = input.batch_dim < 0 ? 1 : *dim;
    const auto after = num_elements(Shape(dim + (input.batch_dim < 0 ? 0 : 1), shape.end()));
    const int64_t all = num_elements(shape);
    sample_ = all / std::max<int64_t>(rows, 1);
    for (int64_t i = 0; i < all; ++i)
      elements_[0].push_back({i / (rows * after) * after + i % after, 0});
  }
  // Finds the elements of a value. Returns false where they are not known.
  bool follow(size_t m) {
    const IndexReads::Moved& moved = found_.moved[m];
    const Node& node = graph_.node(moved.by);
    const ValueId operand = found_.moved[moved.of].value;
    const auto sources = sources_of(graph_, node, operand),
               shifts = shifts_of(graph_, node, operand);
    const Shape& made = graph_.value(moved.value).type.shape;
    if (!sources || !shifts || std::ssize(*sources) != num_elements(made)) return false;
    for (size_t i = 0; i < sources->size(); ++i) {
      const int64_t source = (*sources)[i];
      Element& element = elements_[m].emplace_back();
      if (source == kNoSource) continue;
      element = elements_[moved.of][at(source)];
      if (!shifts->empty()) element.shift += (*shifts)[i];
    }
    return true;
  }
  static std::vector<int64_t> runs_of(const std::vector<Legal>& legal) {
    std::vector<int64_t> runs;
    for (size_t e = 0; e < legal.size(); ++e) {
      if (e > 0 && legal[e] == legal[e - 1])
        ++runs[runs.size() - 4];
      else
        runs.insert(runs.end(), {1, legal[e].low(), legal[e].high(), legal[e].ignore()});
    }
    return runs;
  }

  const Graph& graph_;
  const IndexReads found_;
  std::vector<std::vector<Element>> elements_;  // by moved value
  int64_t sample_ = 0;                          // elements of one
};

}  // namespace

InputRanges find_ranges(const Graph& graph) {
  const std::vector<std::vector<NodeId>> all = readers(graph);
  InputRanges found;
  for (ValueId input : graph.inputs)
    if (std::vector<int64_t> ranges = RangeFinder(graph, all, input).run(); !ranges.empty())
      found[graph.value(input).name] = std::move(ranges);
  return found;
}

}  // namespace piper
