#include <algorithm>

#include "propagate.h"
#include "rewrite.h"

namespace piper {
namespace {

Shape local_shape(Shape shape, const Layout& layout, int64_t shards) {
  if (layout.kind != LayoutKind::kSharded) return shape;
  int64_t& extent = shape[static_cast<size_t>(layout.dim)];
  PIPER_CHECK(extent % (layout.outer * shards) == 0);
  extent /= shards;
  return shape;
}

// The first shard's part of a constant.
Bytes first_block(const Value& value, const Layout& layout, int64_t shards) {
  const int64_t outer = stretches_of(value.type.shape, layout.dim, layout.outer);
  size_t stride = value.data.size / static_cast<size_t>(std::max<int64_t>(outer, 1));
  size_t block = stride / static_cast<size_t>(shards);
  const Bytes data = value.data.made();
  std::string bytes;
  for (size_t o = 0; block > 0 && o < static_cast<size_t>(outer); ++o) {
    bytes += as_text(data.span().subspan(o * stride, block));
  }
  return Bytes::copy_of(bytes.data(), bytes.size());
}

class Rewrite {
 public:
  Rewrite(Graph graph, const Propagated& found, int64_t shards)
      : graph_(std::move(graph)), found_(found), shards_(shards) {}

  Graph run() {
    if (shards_ > 1) {
      localise_attrs();
      localise_values();
      cut_constants();
      place_draws();
    } else {
      for (size_t i = 0; i < graph_.values.size(); ++i) {
        graph_.values[i].layout = found_.layouts[i];
      }
    }
    insert_sums();
    graph_.shards = shards_;
    check_types(graph_, "microbatches and replicas");
    return std::move(graph_);
  }

 private:
  // While all types are still global.
  void localise_attrs() {
    for (Node& node : graph_.nodes)
      localise(graph_, node, node, [&](ValueId id) {
        return local_shape(graph_.value(id).type.shape, found_.layouts[id.index()], shards_);
      });
  }

  void localise_values() {
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      Value& value = graph_.values[i];
      value.layout = found_.layouts[i];
      value.type.shape = local_shape(std::move(value.type.shape), value.layout, shards_);
    }
  }

  // A node that reads a constant sample by sample gets a constant of one block.
  void cut_constants() {
    std::map<std::tuple<int32_t, int, int64_t>, ValueId> blocks;
    for (const auto& [where, reading] : found_.readings) {
      if (!reading.block) continue;
      ValueId& input =
          graph_.nodes[static_cast<size_t>(where.first)].inputs[static_cast<size_t>(where.second)];
      auto [block, fresh] =
          blocks.try_emplace({input.value, reading.block->dim, reading.block->outer});
      if (fresh) block->second = add_block(input, *reading.block);
      input = block->second;
    }
  }

  // A node that draws random numbers for some samples is told which (ops/random.cc).
  void place_draws() {
    for (Node& node : graph_.nodes) {
      const OpDef* def = find_op(node.op);
      if (def == nullptr || def->draws < 0) continue;
      const Value& drawn = graph_.value(node.outputs[0]);
      if (drawn.layout.kind != LayoutKind::kSharded) continue;
      node.attrs.set("rows", stretches_of(drawn.type.shape, drawn.layout.dim, drawn.layout.outer));
      node.attrs.set("shards", shards_);
      node.inputs.resize(static_cast<size_t>(def->draws) + 2);
      node.inputs.push_back(sample_numbers());
    }
  }

  ValueId sample_numbers() {
    if (graph_.sample.valid()) return graph_.sample;
    graph_.sample = graph_.add_value({.name = "sample",
                                      .type = {DType::kI64, {graph_.batch / shards_}},
                                      .kind = ValueKind::kInput,
                                      .batch_dim = 0,
                                      .layout = {LayoutKind::kSharded, 0, 1}});
    graph_.inputs.push_back(graph_.sample);
    return graph_.sample;
  }

  ValueId add_block(ValueId id, const Layout& layout) {
    const Value& whole = graph_.value(id);
    TensorType type{whole.type.dtype, local_shape(whole.type.shape, layout, shards_)};
    ValueId block =
        graph_.add_constant(whole.name + "/block", type, first_block(whole, layout, shards_));
    graph_.value(block).layout = layout;
    return block;
  }

  // One StepSum for each Partial value that some node needs whole, right behind its producer; of
  // 16-bit floats in f32.
  void insert_sums() {
    std::map<int32_t, std::vector<ValueId>> sums;  // by Partial value: what leads to its sum
    for (const auto& [where, reading] : found_.readings) {
      if (!reading.summed) continue;
      ValueId& input =
          graph_.nodes[static_cast<size_t>(where.first)].inputs[static_cast<size_t>(where.second)];
      auto [sum, fresh] = sums.try_emplace(input.value);
      if (fresh) sum->second = add_sum_values(input);
      input = sum->second.back();
    }
    if (sums.empty()) return;
    std::vector<Node> nodes;
    nodes.reserve(graph_.nodes.size() + 3 * sums.size());
    for (Node& node : graph_.nodes) {
      append(graph_, nodes, std::move(node));
      std::vector<ValueId> outputs = nodes.back().outputs;
      size_t producer = nodes.size() - 1;
      for (ValueId output : outputs) {
        auto sum = sums.find(output.value);
        if (sum == sums.end()) continue;
        ValueId from = output;
        for (ValueId to : sum->second) {
          append(graph_, nodes, sum_node(nodes[producer], from, to));
          from = to;
        }
      }
    }
    graph_.nodes = std::move(nodes);
  }

  std::vector<ValueId> add_sum_values(ValueId partial) {
    const TensorType type = graph_.value(partial).type;
    const auto add = [&](const char* suffix, DType dtype) {
      return graph_.add_value(
          {.name = graph_.value(partial).name + suffix, .type = {dtype, type.shape}});
    };
    if (!info(type.dtype).is_float || info(type.dtype).bytes >= 4)
      return {add("/step_sum", type.dtype)};
    const ValueId wide = add("/f32", DType::kF32);
    graph_.value(wide).layout = graph_.value(partial).layout;
    return {wide, add("/step_sum", DType::kF32), add("/rounded", type.dtype)};
  }

  // A cast where the types differ.
  Node sum_node(const Node& producer, ValueId from, ValueId to) const {
    const DType dtype = graph_.value(to).type.dtype;
    const bool casts = dtype != graph_.value(from).type.dtype;
    return {.op = casts ? "Cast" : "StepSum",
            .name = graph_.value(to).name,
            .scope = producer.scope,
            .attrs = casts ? Attrs{{"to", std::string(info(dtype).name)}} : Attrs(),
            .inputs = {from},
            .outputs = {to},
            .pass = producer.pass,
            .tags = producer.tags};
  }

  Graph graph_;
  const Propagated& found_;
  int64_t shards_;
};

}  // namespace

Result<Graph> shard_batch(Graph graph, const BatchCut& cut) {
  PIPER_CHECK(graph.batch % (cut.replicas * cut.microbatches) == 0, "{} samples are not cut evenly",
              graph.batch);
  PIPER_ASSIGN(Propagated found, propagate(graph, cut));
  return Rewrite(std::move(graph), found, cut.replicas * cut.microbatches).run();
}

}  // namespace piper
