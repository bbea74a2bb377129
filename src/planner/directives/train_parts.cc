// Makes parts of parameters into parameters of their own, where `place` puts the parts of a region
// on devices.
#include <algorithm>
#include <map>

#include "match.h"
#include "piper/frontend/autodiff.h"
#include "piper/ir/ops.h"
#include "piper/plan/trained_parts.h"
#include "piper/planner/directives.h"

namespace piper {
namespace {

class PartTrainer {
 public:
  PartTrainer(Graph graph, std::map<std::string, TrainedPart>& trained)
      : graph_(std::move(graph)), trained_(trained) {}

  // Cuts what a split names and can cut; the split itself says what is wrong with others.
  std::vector<std::string> cut(const Split& split) {
    std::vector<std::string> lines;
    std::vector<Param> params;
    for (Param& param : graph_.params) {
      const Value& value = graph_.value(param.value);
      const auto rank = static_cast<int64_t>(value.type.shape.size());
      const int64_t dim = *split.dim < 0 ? *split.dim + rank : *split.dim;
      const bool fits = dim >= 0 && dim < rank && !trained_.contains(param.name) &&
                        value.type.shape[static_cast<size_t>(dim)] % split.into == 0;
      if (!fits || !has_name(param, *split.tensor)) {
        params.push_back(std::move(param));
        continue;
      }
      lines.push_back(fmt::format("'{}' is {} parameters of {} each", param.name, split.into,
                                  human_bytes(value.type.bytes() / split.into)));
      add_parts(param, static_cast<int>(dim), split.into, params);
    }
    graph_.params = std::move(params);
    return lines;
  }

  // Has the node read wholes in place of what is trained in parts.
  template <class Append>
  void read_wholes(Node& node, const Append& append) {
    for (ValueId& input : node.inputs)
      if (const auto parts = parts_of_.find(input); input.valid() && parts != parts_of_.end()) {
        auto& known = wholes_[{input, node.tags}];
        if (!known.valid()) {
          known = graph_.add_value(
              {.name = graph_.value(input).name + ".whole", .type = graph_.value(input).type});
          append(joined(node, parts->second, known, append));
        }
        input = known;
      }
  }

  Graph finish() {
    if (parts_of_.empty()) return std::move(graph_);
    std::vector<Node> old = std::move(graph_.nodes), nodes;
    graph_.nodes.clear();
    const auto append = [&](Node node) {
      for (ValueId output : node.outputs) graph_.value(output).producer = NodeId(nodes.size());
      nodes.push_back(std::move(node));
    };
    for (Node& node : old) {
      const auto read = node.op == "Cast" ? parts_of_.find(node.inputs[0]) : parts_of_.end();
      if (read != parts_of_.end()) {
        append(joined(node, read->second, node.outputs[0], append));
        continue;
      }
      read_wholes(node, append);
      append(std::move(node));
    }
    graph_.nodes = std::move(nodes);
    return without_dead_nodes(std::move(graph_), true);
  }

 private:
  void add_parts(const Param& param, int dim, int64_t count, std::vector<Param>& params) {
    const Value whole = graph_.value(param.value);
    for (int64_t k = 0; k < count; ++k) {
      const std::string prefix = prefix_of_part(k);
      Value part = whole;
      part.name = prefix + whole.name;
      part.type.shape[static_cast<size_t>(dim)] /= count;
      if (whole.data.size > 0) part.data = block_of(whole, dim, k, count);
      Param own = param;
      own.name = prefix + param.name;
      trained_[own.name] = {{}, dim, k, count};
      for (std::string& alias : own.aliases) alias = prefix + alias;
      own.value = graph_.add_value(std::move(part));
      parts_of_[param.value].push_back(own.value);
      dim_of_[own.value] = dim;
      params.push_back(std::move(own));
    }
  }

  // Returns the op that puts parts together for a reader; a cast is done of each part.
  template <class Append>
  ValueId cast_part(const Node& reader, ValueId part, DType dtype, const Append& append) {
    Node cast = reader;
    const TensorType type{dtype, graph_.value(part).type.shape};
    cast.inputs = {part};
    cast.name = fmt::format("{}/{}", graph_.value(part).name, reader.name);
    cast.outputs = {graph_.add_value({.name = cast.name, .type = type})};
    const ValueId made = cast.outputs[0];
    append(std::move(cast));
    return made;
  }

  template <class Append>
  Node joined(const Node& reader, std::vector<ValueId> parts, ValueId to, const Append& append) {
    const bool casts = reader.op == "Cast";
    const int64_t dim = dim_of_.at(parts[0]);
    for (ValueId& part : parts) {
      if (!casts) break;
      part = cast_part(reader, part, graph_.value(to).type.dtype, append);
    }
    Node join{.op = "Concat",
              .name = graph_.value(to).name,
              .attrs = {{"axis", dim}},
              .inputs = std::move(parts),
              .outputs = {to},
              .tags = reader.tags};
    graph_.set_tag(join, graph_.add_tag(kJoinedParts), 1);
    graph_.value(to).output_index = 0;
    return join;
  }

  static constexpr size_t kHeld = 4096;  // bytes
  // Returns the elements of a block; many are read from their file when they are asked for.
  static Bytes block_of(const Value& whole, int dim, int64_t index, int64_t count) {
    const auto size = static_cast<size_t>(whole.type.bytes() / count);
    int64_t outer = 1;
    for (int d = 0; d < dim; ++d) outer *= whole.type.shape[static_cast<size_t>(d)];
    const auto run = size / static_cast<size_t>(std::max<int64_t>(outer, 1));
    const Bytes block = Bytes::deferred(size, [=, data = whole.data] {
      const Bytes all = data.made();
      if (outer == 1) return all.window(static_cast<size_t>(index) * run, run);
      std::string rows;
      for (int64_t o = 0; o < outer; ++o)
        rows += as_text(all.span().subspan(static_cast<size_t>(o * count + index) * run, run));
      return Bytes::copy_of(rows.data(), rows.size());
    });
    return size <= kHeld ? block.made() : block;
  }

  Graph graph_;
  std::map<std::string, TrainedPart>& trained_;
  std::map<ValueId, std::vector<ValueId>> parts_of_;                    // by parameter
  std::map<ValueId, int64_t> dim_of_;                                   // by part
  std::map<std::pair<ValueId, std::vector<int32_t>>, ValueId> wholes_;  // by parameter and tags
};

}  // namespace

Graph train_parts(Graph forward, const Strategy& strategy,
                  std::map<std::string, TrainedPart>& trained, Explanations& out) {
  PartTrainer trainer(std::move(forward), trained);
  for (const Split& split : strategy.splits) {
    if (!split.tensor || !is_placed(strategy, split)) continue;
    std::vector<std::string> lines = trainer.cut(split);
    if (!lines.empty()) out.push_back({split.at, "split", std::move(lines)});
  }
  return trainer.finish();
}

}  // namespace piper
