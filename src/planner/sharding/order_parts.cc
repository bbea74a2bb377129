// The order of parts within a region.
#include <algorithm>
#include <map>
#include <queue>

#include "parts.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

// Describes where a node stands: nodes of a region stand where its first one did, then by the
// collectives that they wait for, then by part.
struct Place {
  size_t anchor = 0;
  int32_t level = 0, part = 0;
  size_t index = 0;
  auto operator<=>(const Place&) const = default;
};

class PartOrder {
 public:
  PartOrder(const Graph& graph, std::span<const std::string> names) : graph_(graph) {
    for (const std::string& name : names)
      if (const int tag = graph.tag_index(name); tag >= 0) tags_.push_back(tag);
    region_ = graph.tag_index(kRegionOfParts);
  }

  bool has_parts() const { return region_ >= 0 && !tags_.empty(); }

  // Returns the nodes by their places, each after those that it reads.
  std::vector<NodeId> by_place(const std::vector<std::vector<size_t>>& readers,
                               std::vector<int32_t> missing) const {
    std::priority_queue<Place, std::vector<Place>, std::greater<>> ready;
    for (size_t n = 0; n < missing.size(); ++n)
      if (missing[n] == 0) ready.push(places_[n]);
    std::vector<NodeId> order;
    while (!ready.empty()) {
      const size_t n = ready.top().index;
      ready.pop();
      order.emplace_back(n);
      for (const size_t reader : readers[n])
        if (--missing[reader] == 0) ready.push(places_[reader]);
    }
    return order;
  }

  std::vector<NodeId> order() {
    find_places();
    std::vector<std::vector<size_t>> readers(graph_.nodes.size());
    std::vector<int32_t> missing(graph_.nodes.size());
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      for (ValueId input : graph_.nodes[n].inputs)
        if (const NodeId from = producer(input); from.valid())
          readers[from.index()].push_back(n), ++missing[n];
    return by_place(readers, std::move(missing));
  }

 private:
  NodeId producer(ValueId id) const { return id.valid() ? graph_.value(id).producer : NodeId(); }
  int32_t part_of(const Node& node) const {
    for (const int tag : tags_)
      if (const int32_t part = graph_.tag(node, tag); part != kNoTag) return part;
    return kNoTag;
  }

  void find_places() {
    std::map<std::pair<int32_t, bool>, size_t> anchors;  // by region and whether it is backward
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      Place place{n, 0, 0, n};
      const int32_t in = graph_.tag(node, region_);
      if (is_in_part(n)) {
        place.anchor = anchors.try_emplace({in, is_backward(node)}, n).first->second;
        place.part = part_of(node);
        place.level = level_of(node, in);
      }
      places_.push_back(place);
    }
    // Casts of weights and others that a region reads are made before its first op.
    for (size_t n = places_.size(); n-- > 0;)
      for (ValueId input : graph_.nodes[n].inputs)
        if (const NodeId from = producer(input); from.valid() && !is_in_part(from.index()))
          if (Place& place = places_[from.index()]; places_[n].anchor < place.anchor)
            place = {places_[n].anchor, 0, -1, place.index};
  }
  bool is_in_part(size_t n) const {
    return graph_.tag(graph_.nodes[n], region_) != kNoTag && part_of(graph_.nodes[n]) != kNoTag;
  }
  // Returns how many collectives of the region are before a node, one after the other.
  int32_t level_of(const Node& node, int32_t in) const {
    int32_t level = 0;
    for (ValueId input : node.inputs) {
      const NodeId from = producer(input);
      if (!from.valid()) continue;
      const Node& maker = graph_.node(from);
      if (graph_.tag(maker, region_) != in || is_backward(maker) != is_backward(node)) continue;
      const bool waits = find_op(maker.op)->collective && !maker.inputs.empty();
      level = std::max(level, places_[from.index()].level + waits);
    }
    return level;
  }

  const Graph& graph_;
  std::vector<int> tags_;
  int region_ = -1;
  std::vector<Place> places_;
};

}  // namespace

Graph order_parts(Graph graph, std::span<const std::string> names) {
  PartOrder parts(graph, names);
  if (!parts.has_parts()) return graph;
  graph.put_in_order(parts.order());
  return graph;
}

}  // namespace piper
