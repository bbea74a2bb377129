// The spans of a region of tasks whose parts are tasks of their own: what is before parts, these,
// and what is after them.
#include <algorithm>
#include <limits>

#include "piper/ir/ops.h"
#include "piper/planner/sharding.h"

namespace piper {
namespace {

class SpanFinder {
 public:
  SpanFinder(const Graph& graph, std::span<const std::string> names,
             std::span<const std::string> regions)
      : graph_(graph), spans_(graph.nodes.size()) {
    for (const std::string& name : names)
      if (const int tag = graph.tag_index(name); tag >= 0) parts_.push_back(tag);
    for (const std::string& region : regions)
      if (const int tag = graph.tag_index(region); tag >= 0) regions_.push_back(tag);
  }

  std::vector<int32_t> find() {
    for (size_t n = 0; n < spans_.size(); ++n) {
      const Node& node = graph_.nodes[n];
      spans_[n] = is_in_part(node) ? 1 : 0;
      for (ValueId input : node.inputs)
        if (const Node* const maker = maker_of(input); maker && is_near(*maker, node))
          spans_[n] = std::max(spans_[n], spans_[number(input)] + distance(*maker, node));
    }
    delay();
    return std::move(spans_);
  }

 private:
  bool is_in_part(const Node& node) const {
    return std::ranges::any_of(parts_, [&](int tag) { return graph_.tag(node, tag) != kNoTag; });
  }
  size_t number(ValueId id) const { return graph_.value(id).producer.index(); }
  const Node* maker_of(ValueId id) const {
    const bool made = id.valid() && graph_.value(id).kind == ValueKind::kNode;
    return made ? &graph_.nodes[number(id)] : nullptr;
  }
  // Returns whether both are in one region of tasks, and both forward or both backward.
  bool is_near(const Node& a, const Node& b) const {
    const auto is_of_step = [](const Node& node) {
      return node.pass == Pass::kU || is_step_sum(node);
    };
    return !is_of_step(a) && !is_of_step(b) && is_backward(a) == is_backward(b) &&
           std::ranges::all_of(regions_,
                               [&](int tag) { return graph_.tag(a, tag) == graph_.tag(b, tag); });
  }
  int32_t distance(const Node& a, const Node& b) const { return is_in_part(a) != is_in_part(b); }

  // Moves an op that only later spans of its region read, as a cast, to the first of these.
  void delay() {
    constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
    std::vector<int32_t> latest(spans_.size(), kNever);
    for (size_t n = spans_.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      if (latest[n] != kNever) spans_[n] = std::max(spans_[n], latest[n]);
      for (ValueId input : node.inputs) {
        const Node* const maker = maker_of(input);
        if (!maker || is_backward(*maker) != is_backward(node)) continue;
        int32_t& until = latest[number(input)];
        until = std::min(until, is_near(*maker, node) ? spans_[n] - distance(*maker, node) : 0);
      }
    }
  }

  const Graph& graph_;
  std::vector<int> parts_, regions_;
  std::vector<int32_t> spans_;  // by node
};

}  // namespace

Graph number_spans(Graph graph, std::span<const std::string> names,
                   std::span<const std::string> regions) {
  const std::vector<int32_t> spans = SpanFinder(graph, names, regions).find();
  const int tag = graph.add_tag(kSpanOfParts);
  for (size_t n = 0; n < spans.size(); ++n) graph.set_tag(graph.nodes[n], tag, spans[n]);
  return graph;
}

}  // namespace piper
