// Rewrites a graph for one microbatch of one replica.
#include <algorithm>

#include "closing.h"
#include "propagate.h"
#include "rewrite.h"

namespace piper {
namespace {

class Rewrite {
 public:
  Rewrite(Graph graph, const Propagated& found, int64_t shards)
      : graph_(std::move(graph)), found_(found), shards_(shards) {}

  Graph run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n)
      if (found_.late[n]) graph_.nodes[n].pass = Pass::kU;
    if (shards_ > 1) {
      localise_attrs();
      localise_values();
      cut_constants();
      share_terms();
      place_draws();
    } else {
      for (size_t i = 0; i < graph_.values.size(); ++i) {
        graph_.values[i].layout = found_.layouts[i];
      }
    }
    insert_nodes();
    graph_.shards = shards_;
    check_types(graph_, "microbatches and replicas");
    return std::move(graph_);
  }

 private:
  // Localises attributes while all types are still global.
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

  ValueId& input_at(const std::pair<int32_t, int32_t>& where) {
    return graph_.nodes[static_cast<size_t>(where.first)].inputs[static_cast<size_t>(where.second)];
  }

  // Returns what a node reads in place of a value, made in front of it beside `near`.
  template <class Make>
  ValueId make_before(int32_t reader, const Node& near, const Make& make) {
    const auto count = static_cast<std::ptrdiff_t>(graph_.nodes.size());
    Builder build(graph_);
    build.scope = near.scope, build.tags = near.tags, build.pass = near.pass;
    build.name_prefix = near.name + "/";
    const ValueId made = make(build);
    auto& before = before_[reader];
    std::move(graph_.nodes.begin() + count, graph_.nodes.end(), std::back_inserter(before));
    graph_.nodes.erase(graph_.nodes.begin() + count, graph_.nodes.end());
    return made;
  }

  // A node that reads a constant sample by sample gets a constant of one block, where all blocks
  // are the same, or else the block that its samples have.
  void cut_constants() {
    using Region = std::pair<Pass, std::vector<int32_t>>;
    std::map<std::tuple<int32_t, int, int64_t, Region>, ValueId> blocks;
    for (const auto& [where, reading] : found_.readings) {
      if (!reading.block) continue;
      const Layout& layout = *reading.block;
      const Node near = graph_.nodes[static_cast<size_t>(where.first)];
      Region region;
      if (reading.differs) region = {near.pass, near.tags};
      auto [block, fresh] =
          blocks.try_emplace({input_at(where).value, layout.dim, layout.outer, std::move(region)});
      const ValueId whole = input_at(where);
      if (fresh && reading.differs) {
        block->second = make_before(
            where.first, near, [&](Builder& build) { return own_block(build, whole, layout); });
        graph_.value(block->second).layout = layout;
      } else if (fresh) {
        block->second = add_block(whole, layout);
      }
      input_at(where) = block->second;
    }
  }

  ValueId first_number(Builder& build) {
    return build.op1("Slice", {sample_numbers()},
                     {{"starts", std::vector<int64_t>{0}},
                      {"ends", std::vector<int64_t>{1}},
                      {"steps", std::vector<int64_t>{1}}});
  }

  // Returns all blocks, one after the other, and of these the one that the number of the first
  // sample says.
  ValueId own_block(Builder& build, ValueId id, const Layout& layout) {
    const Value whole = graph_.value(id);
    const Shape own = local_shape(whole.type.shape, layout, shards_);
    Shape all = own;
    all.insert(all.begin(), shards_);
    const std::string bytes = blocks_of(whole, layout, shards_);
    const ValueId blocks = graph_.add_constant(whole.name + "/blocks", {whole.type.dtype, all},
                                               Bytes::copy_of(bytes.data(), bytes.size()));
    ValueId number = first_number(build);
    const int64_t samples = graph_.batch / shards_;
    if (samples > 1) {
      const Bytes count = Bytes::copy_of(reinterpret_cast<const char*>(&samples), sizeof samples);
      number = build.div(number, build.constant({DType::kI64, {1}}, count));
    }
    return build.reshape(build.op1("Gather", {blocks, number}, {{"axis", int64_t{0}}}), own);
  }

  // Shares a value that all shards have, beside terms of a sum over them: the shard of the batch's
  // first samples has it as its term, the others have zeros.
  void share_terms() {
    std::map<std::pair<Pass, std::vector<int32_t>>, ValueId> are_first;  // by region
    for (const auto& [where, reading] : found_.readings) {
      if (!reading.shared) continue;
      const ValueId whole = input_at(where);
      const Node near = maker_near(graph_.nodes[static_cast<size_t>(where.first)], whole);
      ValueId& is_first = are_first[{near.pass, near.tags}];
      const ValueId term = make_before(where.first, near, [&](Builder& build) {
        if (!is_first.valid()) {
          const ValueId number = build.reshape(first_number(build), {});
          is_first = build.op1("Equal", {number, build.scalar(0, DType::kI64)});
        }
        const ValueId zero = build.scalar(0, build.type(whole).dtype);
        return build.op1("Where", {is_first, whole, zero});
      });
      graph_.value(term).layout = Layout{LayoutKind::kPartial};
      input_at(where) = term;
    }
  }

  // Returns a node in the place where terms for it are made: what sums over the step makes none.
  Node maker_near(const Node& reader, ValueId whole) const {
    if (!is_step_sum(reader) && reader.pass != Pass::kU) return reader;
    for (ValueId id : {whole, reader.inputs.front(), reader.inputs.back()})
      if (graph_.value(id).kind == ValueKind::kNode) return graph_.node(graph_.value(id).producer);
    Node near = reader;
    near.pass = graph_.loss == reader.outputs[0] ? Pass::kF : Pass::kBW;
    return near;
  }

  // Tells nodes that draw random numbers for some of the samples which these are (ops/random.cc).
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
    const std::string all = blocks_of(whole, layout, shards_);
    const Bytes first = Bytes::copy_of(all.data(), all.size() / static_cast<size_t>(shards_));
    const ValueId block = graph_.add_constant(whole.name + "/block", type, first);
    graph_.value(block).layout = layout;
    return block;
  }

  // What nodes read in place of values is in front of them. One StepSum for each Partial value
  // that some node needs whole, right after its producer; of 16-bit floats in f32.
  void insert_nodes() {
    std::map<int32_t, std::vector<ValueId>> sums;  // by Partial value: what leads to its sum
    for (const auto& [where, reading] : found_.readings) {
      if (!reading.summed) continue;
      ValueId& input = input_at(where);
      auto [sum, fresh] = sums.try_emplace(input.value);
      if (fresh) sum->second = add_sum_values(input);
      input = sum->second.back();
    }
    if (sums.empty() && before_.empty()) return;
    std::vector<Node> nodes;
    nodes.reserve(graph_.nodes.size() + 3 * sums.size() + 4 * before_.size());
    std::vector<bool> late;
    const auto put = [&](Node node, bool is_late) {
      append(graph_, nodes, std::move(node));
      const size_t producer = nodes.size() - 1;
      const std::vector<ValueId> outputs = nodes.back().outputs;
      for (ValueId output : outputs) {
        auto sum = sums.find(output.value);
        if (sum == sums.end()) continue;
        ValueId from = output;
        for (ValueId to : sum->second) {
          append(graph_, nodes, sum_node(nodes[producer], from, to));
          from = to;
        }
      }
      late.resize(nodes.size());
      late[producer] = is_late;
    };
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (const auto before = before_.find(static_cast<int32_t>(n)); before != before_.end())
        for (Node& node : before->second) put(std::move(node), false);
      put(std::move(graph_.nodes[n]), found_.late[n]);
    }
    graph_.nodes = std::move(nodes);
    close_step(graph_, late);
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

  // Returns a cast where the types differ.
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
  std::map<int32_t, std::vector<Node>> before_;  // by reader
};

}  // namespace

Status check_batch(const Graph& graph, const BatchCut& cut) {
  PIPER_ASSIGN(const Propagated found, propagate(graph, cut));
  return ok_status();
}

Result<Graph> shard_batch(Graph graph, const BatchCut& cut) {
  PIPER_CHECK(graph.batch % (cut.replicas * cut.microbatches) == 0, "{} samples are not cut evenly",
              graph.batch);
  PIPER_ASSIGN(Propagated found, propagate(graph, cut));
  return Rewrite(std::move(graph), found, cut.replicas * cut.microbatches).run();
}

}  // namespace piper
