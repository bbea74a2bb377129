// Ops on data only (masks, positions, label counts), copied to where they are read.
#include <algorithm>
#include <map>

#include "match.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

using Region = std::vector<int32_t>;  // the values of the region tags

}  // namespace

std::vector<bool> data_ops(const Graph& graph) {
  std::vector<bool> tied(graph.values.size());  // needs a parameter, or much work
  for (size_t v = 0; v < graph.values.size(); ++v)
    tied[v] = graph.values[v].kind == ValueKind::kState;
  std::vector<bool> data(graph.nodes.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const OpDef* op = find_op(node.op);
    data[i] = !(op->cost && op->cost(use_of(graph, node)).is_matmul) &&
              std::none_of(node.inputs.begin(), node.inputs.end(),
                           [&](ValueId input) { return input.valid() && tied[input.index()]; });
    for (ValueId output : node.outputs) tied[output.index()] = !data[i];
  }
  return data;
}

namespace {

class Cloner {
 public:
  Cloner(Graph& graph, std::span<const std::string> tags) : graph_(graph) {
    for (const std::string& tag : tags) tags_.push_back(graph.tag_index(tag));
  }

  // Returns how many ops were moved and how many copies were added.
  std::pair<int64_t, int64_t> run() {
    find_regions();
    const size_t count = graph_.nodes.size();
    int64_t moved = 0;
    for (size_t i = 0; i < count; ++i) {
      if (regions_[i].empty()) {
        read_in(graph_.nodes[i], region_of(graph_.nodes[i]));
        continue;
      }
      const Node original = graph_.nodes[i];
      for (size_t k = regions_[i].size(); k-- > 1;) add_copy(original, regions_[i][k]);
      moved += region_of(original) != regions_[i][0];
      put(graph_.nodes[i], regions_[i][0]);
      read_in(graph_.nodes[i], regions_[i][0]);
    }
    return {moved, static_cast<int64_t>(graph_.nodes.size() - count)};
  }

 private:
  Region region_of(const Node& node) const {
    Region region;
    for (int tag : tags_) region.push_back(graph_.tag(node, tag));
    return region;
  }
  void put(Node& node, const Region& region) {
    for (size_t t = 0; t < tags_.size(); ++t) graph_.set_tag(node, tags_[t], region[t]);
  }

  // Adds the regions that need what these ops read.
  void add_regions_of(const std::vector<NodeId>& all, std::vector<Region>& regions) const {
    for (NodeId reader : all) {
      if (const auto& theirs = regions_[reader.index()]; !theirs.empty())
        regions.insert(regions.end(), theirs.begin(), theirs.end());
      else
        regions.push_back(region_of(graph_.node(reader)));
    }
  }

  // Finds for each op on data the regions that need it, sorted; none for the other ops.
  void find_regions() {
    const std::vector<bool> data = data_ops(graph_);
    const auto all_readers = readers(graph_);
    std::vector<bool> kept(graph_.values.size());  // read from outside, where the file has put it
    for (ValueId output : graph_.outputs) kept[output.index()] = true;
    if (graph_.loss.valid()) kept[graph_.loss.index()] = true;
    regions_.resize(graph_.nodes.size());
    for (size_t i = graph_.nodes.size(); i-- > 0;) {
      if (!data[i]) continue;
      std::vector<Region>& regions = regions_[i];
      for (ValueId output : graph_.nodes[i].outputs) {
        add_regions_of(all_readers[output.index()], regions);
        if (kept[output.index()]) regions.push_back(region_of(graph_.nodes[i]));
      }
      std::sort(regions.begin(), regions.end());
      regions.erase(std::unique(regions.begin(), regions.end()), regions.end());
    }
  }

  void read_in(Node& node, const Region& region) const {
    for (ValueId& input : node.inputs) {
      if (!input.valid()) continue;
      if (const auto it = copies_.find({input, region}); it != copies_.end()) input = it->second;
    }
  }

  void add_copy(Node node, const Region& region) {
    const std::vector<ValueId> outputs = node.outputs;
    put(node, region);
    read_in(node, region);
    const NodeId copy = graph_.add_copy(std::move(node));
    for (size_t k = 0; k < outputs.size(); ++k)
      copies_[{outputs[k], region}] = graph_.node(copy).outputs[k];
  }

  Graph& graph_;
  std::vector<int> tags_;
  std::vector<std::vector<Region>> regions_;
  std::map<std::pair<ValueId, Region>, ValueId> copies_;
};

}  // namespace

Result<Graph> clone_data_ops(Graph graph, std::span<const std::string> tags, const SourceSpan& at,
                             Explanations& out) {
  if (tags.empty()) return graph;
  const auto [moved, copied] = Cloner(graph, tags).run();
  if (moved + copied == 0) return graph;
  out.push_back({at,
                 "annotate",
                 {fmt::format("of the ops on data only {} moved to the region that reads them, {} "
                              "were copied into further ones",
                              moved, copied)}});
  return in_topological_order(std::move(graph));
}

}  // namespace piper
