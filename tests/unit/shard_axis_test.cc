// Graphs cut over mesh axes, run rank by rank, beside the uncut graph.
#include <gtest/gtest.h>

#include <numeric>

#include "piper/frontend/autodiff.h"
#include "piper/planner/sharding.h"
#include "seed.h"
#include "unit/sharding_oracle.h"

namespace piper {
namespace {

using Whole = std::vector<double>;

// Ranks of a mesh, row by row.
struct Mesh {
  std::vector<int64_t> sizes;
  size_t ranks() const {
    return static_cast<size_t>(
        std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()));
  }
  size_t stride(int axis) const {
    size_t stride = 1;
    for (size_t a = static_cast<size_t>(axis) + 1; a < sizes.size(); ++a)
      stride *= static_cast<size_t>(sizes[a]);
    return stride;
  }
  size_t size(int axis) const { return static_cast<size_t>(sizes[static_cast<size_t>(axis)]); }
  size_t coordinate(size_t rank, int axis) const { return rank / stride(axis) % size(axis); }
};

struct Pieces {
  size_t outer = 1, inner = 1;  // the whole is [outer, ranks, inner]
  bool mirrored = false;        // in every second one of `outer` ranks count from its end
  Pieces(const Shape& piece, int64_t dim, int64_t blocks, bool mirrors)
      : outer(static_cast<size_t>(blocks)), mirrored(mirrors) {
    for (int64_t d = 0; d < dim; ++d) outer *= static_cast<size_t>(piece[static_cast<size_t>(d)]);
    inner = static_cast<size_t>(num_elements(piece)) / outer;
  }
  Pieces(const Shape& piece, const Layout& layout)
      : Pieces(piece, layout.dim, layout.outer, layout.mirrored) {}
  Pieces(const Shape& piece, const Attrs& attrs, const std::string& to = "")
      : Pieces(piece, attrs.integer(to + "dim"), attrs.integer(to + "outer"),
               attrs.integer(to + "mirrored", 0) != 0) {}
  size_t rank_at(size_t o, size_t place, size_t ranks) const {
    return mirrored && o % 2 != 0 ? ranks - 1 - place : place;
  }
};

Whole join(const std::vector<Whole>& parts, const Pieces& pieces) {
  Whole whole;
  for (size_t o = 0; o < pieces.outer; ++o)
    for (size_t k = 0; k < parts.size(); ++k) {
      const Whole& part = parts[pieces.rank_at(o, k, parts.size())];
      whole.insert(whole.end(), part.begin() + static_cast<int64_t>(o * pieces.inner),
                   part.begin() + static_cast<int64_t>((o + 1) * pieces.inner));
    }
  return whole;
}

Whole piece_of(const Whole& whole, const Pieces& pieces, size_t rank, size_t ranks) {
  Whole piece;
  for (size_t o = 0; o < pieces.outer; ++o) {
    const size_t place = o * ranks + pieces.rank_at(o, rank, ranks);
    const auto from = whole.begin() + static_cast<int64_t>(place * pieces.inner);
    piece.insert(piece.end(), from, from + static_cast<int64_t>(pieces.inner));
  }
  return piece;
}

Whole sum(const std::vector<Whole>& terms) {
  Whole total(terms[0].size());
  for (const Whole& term : terms)
    for (size_t i = 0; i < total.size(); ++i) total[i] += term[i];
  return total;
}

Whole greatest(const std::vector<Whole>& terms) {
  Whole top = terms[0];
  for (const Whole& term : terms)
    for (size_t i = 0; i < top.size(); ++i) top[i] = std::max(top[i], term[i]);
  return top;
}

// Every value on every rank of a graph that shard_axis has cut.
class Ranks {
 public:
  Ranks(const Graph& graph, const Mesh& mesh, const oracle::Sources& sources, double behind = 0)
      : graph_(graph), mesh_(mesh), behind_(behind), values_(graph.values.size()) {
    for (size_t i = 0; i < graph.values.size(); ++i) {
      const Value& value = graph.values[i];
      if (value.kind == ValueKind::kNode) continue;
      const auto given = sources.find(value.name);
      Whole whole =
          given != sources.end() ? given->second : oracle::elements(value.type, value.data.made());
      if (!value.unpadded.empty()) whole = padded(value, whole);
      values_[i].assign(mesh.ranks(), {});
      for (size_t r = 0; r < mesh.ranks(); ++r) values_[i][r] = own(value, whole, r);
    }
    for (const Node& node : graph.nodes) evaluate(node);
  }

  // What the ranks hold together; fails where those that should hold the same do not.
  Whole whole(ValueId id) const {
    const Value& value = graph_.value(id);
    std::vector<Whole> held = values_[id.index()];
    for (const AxisLayout& lies : value.over)
      if (lies.layout.kind == LayoutKind::kRouted) return {};  // as its index says
    Shape shape = value.type.shape;
    for (auto lies = value.over.rbegin(); lies != value.over.rend(); ++lies) {
      const std::vector<Whole> before = held;
      for (size_t r = 0; r < held.size(); ++r) {
        const std::vector<Whole> group = group_of(before, r, lies->axis);
        held[r] = lies->layout.kind == LayoutKind::kGreatest ? greatest(group)
                  : lies->layout.kind == LayoutKind::kPartial
                      ? sum(group)
                      : join(group, Pieces(shape, lies->layout));
      }
      if (lies->layout.kind == LayoutKind::kSharded)
        shape[static_cast<size_t>(lies->layout.dim)] *=
            mesh_.sizes[static_cast<size_t>(lies->axis)];
    }
    for (const Whole& other : held) EXPECT_EQ(other, held[0]) << value.name;
    return held[0];
  }

 private:
  // What lies behind the stretches of a dim that goes on.
  Whole padded(const Value& value, const Whole& whole) const {
    Shape shape = value.type.shape, there = value.unpadded;
    size_t dim = 0, outer = 0;
    for (const AxisLayout& lies : value.over) {
      const auto d = static_cast<size_t>(lies.layout.dim);
      shape[d] *= mesh_.sizes[static_cast<size_t>(lies.axis)];
      if (there[d] > 0 && outer == 0) dim = d, outer = static_cast<size_t>(lies.layout.outer);
    }
    for (size_t d = 0; d < dim; ++d) outer *= static_cast<size_t>(shape[d]);
    const size_t stretch = static_cast<size_t>(num_elements(shape)) / outer,
                 short_stretch = whole.size() / outer;
    Whole made;
    for (size_t s = 0; s < outer; ++s) {
      const auto from = whole.begin() + static_cast<int64_t>(s * short_stretch);
      made.insert(made.end(), from, from + static_cast<int64_t>(short_stretch));
      while (made.size() < (s + 1) * stretch)
        made.push_back(behind_ * std::sin(static_cast<double>(made.size())));
    }
    return made;
  }

  std::vector<Whole> group_of(const std::vector<Whole>& values, size_t rank, int axis) const {
    std::vector<Whole> group;
    const size_t stride = mesh_.stride(axis);
    const size_t first = rank - mesh_.coordinate(rank, axis) * stride;
    for (size_t k = 0; k < mesh_.size(axis); ++k) group.push_back(values[first + k * stride]);
    return group;
  }

  Whole own(const Value& value, Whole part, size_t rank) const {
    Shape shape = value.type.shape;  // of the pieces, from the last axis outwards
    std::vector<Pieces> pieces;
    for (auto lies = value.over.rbegin(); lies != value.over.rend(); ++lies) {
      pieces.emplace_back(shape, lies->layout);
      shape[static_cast<size_t>(lies->layout.dim)] *= mesh_.sizes[static_cast<size_t>(lies->axis)];
    }
    for (size_t a = 0; a < value.over.size(); ++a) {
      const int axis = value.over[a].axis;
      const Pieces& cut = pieces[value.over.size() - 1 - a];
      part = piece_of(part, cut, mesh_.coordinate(rank, axis), mesh_.size(axis));
    }
    return part;
  }

  void evaluate(const Node& node) {
    const size_t ranks = mesh_.ranks();
    for (ValueId id : node.outputs) values_[id.index()].assign(ranks, {});
    for (size_t r = 0; r < ranks; ++r) {
      if (node.op == "StepSum")
        values_[node.outputs[0].index()][r] = summed(node, r);
      else if (find_op(node.op)->collective)
        values_[node.outputs[0].index()][r] = together(node, r);
      else
        alone(node, r);
    }
  }

  // Of all contributions, and of their terms on other ranks.
  Whole summed(const Node& node, size_t rank) const {
    std::vector<Whole> all;
    for (ValueId id : node.inputs) {
      std::vector<Whole> terms = values_[id.index()];
      for (const AxisLayout& lies : graph_.value(id).over) {
        if (lies.layout.kind != LayoutKind::kPartial) continue;
        const std::vector<Whole> before = terms;
        for (size_t r = 0; r < terms.size(); ++r) terms[r] = sum(group_of(before, r, lies.axis));
      }
      all.push_back(terms[rank]);
    }
    return sum(all);
  }

  Whole together(const Node& node, size_t rank) const {
    const int axis = static_cast<int>(node.attrs.integer("over"));
    const size_t at = mesh_.coordinate(rank, axis), count = mesh_.size(axis);
    const size_t before = (at + count - static_cast<size_t>(node.attrs.integer("turn", 0))) % count;
    if (node.op == "OwnFirst") {
      Whole firsts;
      const auto stretches = static_cast<size_t>(node.attrs.integer("outer", 0));
      const bool mirrored = node.attrs.integer("mirrored", 0) != 0;
      for (size_t s = 0; s < std::max<size_t>(stretches, 1); ++s) {
        const size_t place = mirrored && s % 2 != 0 ? count - 1 - before : before;
        firsts.push_back(static_cast<double>(s * count + place) *
                         static_cast<double>(node.attrs.integer("size")));
      }
      return firsts;
    }
    const auto& input = values_[node.inputs[0].index()];
    const std::vector<Whole> group = group_of(input, rank, axis);
    if (node.op == "Dispatch" || node.op == "Combine") return routed(node, rank, group);
    if (node.op == "AllReduce") return sum(group);
    if (node.op == "Rotate") return group[before];
    if (node.op == "AllReduceMax") return greatest(group);
    const Shape& from = graph_.value(node.inputs[0]).type.shape;
    const Shape& to = graph_.value(node.outputs[0]).type.shape;
    if (node.op == "AllGather") return join(group, Pieces(from, node.attrs));
    if (node.op == "OwnBlock") return piece_of(input[rank], Pieces(to, node.attrs), at, count);
    if (node.op == "ReduceScatter") return piece_of(sum(group), Pieces(to, node.attrs), at, count);
    return piece_of(join(group, Pieces(from, node.attrs)), Pieces(to, node.attrs, "to_"), at,
                    count);
  }

  // Rows of those that own what the index names; elsewhere what must not count.
  Whole routed(const Node& node, size_t rank, const std::vector<Whole>& group) const {
    const int axis = static_cast<int>(node.attrs.integer("over"));
    const size_t at = mesh_.coordinate(rank, axis), count = mesh_.size(axis);
    const auto owned = static_cast<double>(node.attrs.integer("owned"));
    const bool sends = node.op == "Dispatch";
    const Shape& part = graph_.value(sends ? node.inputs[0] : node.outputs[0]).type.shape;
    Whole all = sends ? join(group, Pieces(part, node.attrs)) : group[0];
    const Whole& index = values_[node.inputs[1].index()][rank];
    const size_t width = all.size() / index.size();
    for (size_t e = 0; e < all.size(); ++e) {
      const auto owner = static_cast<size_t>(index[e / width] / owned);
      if (!sends) all[e] = group[owner][e];
      if (sends && owner != at) all[e] = 1e30;
    }
    return sends ? all : piece_of(all, Pieces(part, node.attrs), at, count);
  }

  void alone(const Node& node, size_t rank) {
    std::vector<TensorType> input_types, output_types;
    std::vector<Bytes> inputs;
    for (ValueId id : node.inputs) {
      input_types.push_back(id.valid() ? graph_.value(id).type : TensorType{});
      inputs.push_back(id.valid() ? oracle::encode(input_types.back(), values_[id.index()][rank])
                                  : Bytes{});
    }
    for (ValueId id : node.outputs) output_types.push_back(graph_.value(id).type);
    const auto made = evaluate_op(node.op, node.attrs, input_types, inputs, output_types);
    ASSERT_TRUE(made.ok()) << node.op << ": " << print_error(made.error());
    for (size_t o = 0; o < output_types.size(); ++o)
      values_[node.outputs[o].index()][rank] = oracle::elements(output_types[o], (*made)[o]);
  }

  const Graph& graph_;
  const Mesh& mesh_;
  double behind_;
  std::vector<std::vector<Whole>> values_;  // by value and rank
};

// Every value of the uncut graph is what the ranks hold together.
void expect_same(const Graph& cut, const Mesh& mesh, const Graph& uncut,
                 const oracle::Sources& sources, double bound) {
  const Ranks ranks(cut, mesh, sources);
  const Mesh one{{1}};
  const Ranks alone(uncut, one, sources);
  for (size_t i = 0; i < uncut.values.size(); ++i) {
    const ValueId id(i);
    const Whole actual = ranks.whole(id), wanted = alone.whole(id);
    if (actual.empty()) continue;
    if (actual.size() > wanted.size()) continue;  // with zeros in between
    ASSERT_EQ(actual.size(), wanted.size()) << uncut.value(id).name;
    double scale = 1, error = 0;
    for (double element : wanted) scale = std::max(scale, std::abs(element));
    for (size_t e = 0; e < wanted.size(); ++e)
      if (actual[e] != wanted[e]) error = std::max(error, std::abs(actual[e] - wanted[e]) / scale);
    ASSERT_LE(error, bound) << uncut.value(id).name << " lies as " << print_layouts(cut.value(id));
  }
  const auto squares = [](const Whole& all) {
    return std::inner_product(all.begin(), all.end(), all.begin(), 0.0);
  };
  for (size_t u = 0; u < uncut.updates.size(); ++u) {
    const Whole actual = ranks.whole(cut.updates[u].next),
                wanted = alone.whole(uncut.updates[u].next);
    EXPECT_NEAR(squares(actual), squares(wanted), bound * std::max(1.0, squares(wanted)));
    EXPECT_LE(std::count_if(actual.begin(), actual.end(), [](double x) { return x != 0; }),
              static_cast<int64_t>(wanted.size()));
  }
}

std::map<std::string, int> collectives(const Graph& graph, Pass pass) {
  std::map<std::string, int> counts;
  for (const Node& node : graph.nodes)
    if (find_op(node.op)->collective && node.pass == pass) ++counts[node.op];
  return counts;
}

// ---- A transformer's block, trained
// --------------------------------------------------------------

Graph trained(Graph graph) {
  TrainSpec train;
  train.optimizer.name = "adamw";
  train.groups = {{"**", {}, 1e-3, 0.1}};
  train.clip_norm = 1.0;
  Result<Differentiated> result = differentiate(std::move(graph), train);
  EXPECT_TRUE(result.ok()) << print_error(result.error());
  return std::move(result->graph);
}

// A small decoder, made as exporters write it.
struct Decoder {
  int64_t layers = 1, tokens = 4, width = 8, heads = 4, kv_heads = 4, classes = 6;
  bool fused_qkv = false;  // q, k and v in one weight
  enum Mask { kCausal, kNone, kWindow, kTrained, kKeyBias } mask = kCausal;
  int64_t experts = 0;  // of which each token goes to two
  int64_t hidden = 0;   // 0: four times the width
  std::string_view between = "Gelu";
  enum Gate { kPlain, kOwn, kPacked } gate = kPlain;  // the product with another projection
};

class DecoderMaker {
 public:
  explicit DecoderMaker(const Decoder& spec) : s_(spec), build_(graph_) {}
  Graph make() {
    graph_.batch = kBatch;
    const ValueId tokens = input("tokens"), labels = input("labels");
    const ValueId embedded = build_.op1("Gather", {param("wte", {s_.classes, s_.width}), tokens},
                                        {{"axis", int64_t{0}}});
    ValueId x = build_.add(embedded, param("wpe", {s_.tokens, s_.width}));
    for (int64_t l = 0; l < s_.layers; ++l) {
      layer_ = fmt::format("h.{}.", l);
      build_.scope = fmt::format("h/{}", l);
      x = build_.add(x, attend(norm(x, "ln1")));
      x = build_.add(x, feed(norm(x, "ln2")));
    }
    layer_.clear();
    const ValueId logits = linear(norm(x, "ln"), "head", s_.classes, false);
    const std::vector<ValueId> loss = build_.op("CrossEntropySum", {logits, labels}, ignore());
    const ValueId count = build_.op1("LabelCount", {labels}, ignore());
    graph_.loss = build_.div(loss[0], build_.op1("Cast", {count}, {{"to", "f64"}}));
    return std::move(graph_);
  }
  static constexpr int64_t kBatch = 2;

 private:
  static Attrs ignore() { return {{"ignore_index", int64_t{-100}}}; }
  ValueId input(std::string name) {
    Value value;
    value.name = std::move(name);
    value.type = {DType::kI64, {kBatch, s_.tokens}};
    value.kind = ValueKind::kInput;
    value.batch_dim = 0;
    const ValueId id = graph_.add_value(std::move(value));
    graph_.inputs.push_back(id);
    return id;
  }
  ValueId param(const std::string& name, Shape shape) {
    Value value;
    value.name = layer_ + name;
    value.type = {DType::kF64, std::move(shape)};
    value.kind = ValueKind::kState;
    Param param;
    param.name = value.name;
    param.scope = param.name;
    param.value = graph_.add_value(std::move(value));
    graph_.params.push_back(param);
    return param.value;
  }
  ValueId norm(ValueId x, const std::string& name) {
    return build_.op("LayerNorm",
                     {x, param(name + ".weight", {s_.width}), param(name + ".bias", {s_.width})},
                     {{"axis", int64_t{2}}, {"epsilon", 1e-5}})[0];
  }
  ValueId linear(ValueId x, const std::string& name, int64_t out, bool bias = true) {
    const int64_t in = build_.shape(x).back();
    const ValueId y = build_.matmul(x, param(name + ".weight", {out, in}), false, true);
    return bias ? build_.add(y, param(name + ".bias", {out})) : y;
  }
  ValueId part(ValueId x, int64_t from, int64_t to) {
    Shape ends = build_.shape(x);
    ends.back() = to;
    return build_.op1("Slice", {x},
                      {{"starts", std::vector<int64_t>{0, 0, from}},
                       {"ends", ends},
                       {"steps", std::vector<int64_t>{1, 1, 1}}});
  }
  ValueId attend(ValueId x) {
    const int64_t head = s_.width / s_.heads, kv = s_.kv_heads * head;
    ValueId q, k, v;
    if (s_.fused_qkv) {
      const ValueId all = linear(x, "qkv", s_.width + 2 * kv);
      q = part(all, 0, s_.width);
      k = part(all, s_.width, s_.width + kv);
      v = part(all, s_.width + kv, s_.width + 2 * kv);
    } else {
      q = linear(x, "q", s_.width), k = linear(x, "k", kv), v = linear(x, "v", kv);
    }
    const auto split = [&](ValueId id, int64_t heads) {
      return build_.reshape(id, {kBatch, s_.tokens, heads, head});
    };
    std::vector<ValueId> inputs{split(q, s_.heads), split(k, s_.kv_heads), split(v, s_.kv_heads)};
    if (s_.mask == Decoder::kWindow) inputs.push_back(window());
    if (s_.mask == Decoder::kKeyBias) inputs.push_back(param("bias", {1, 1, 1, s_.tokens}));
    if (s_.mask == Decoder::kTrained)
      inputs.push_back(param("bias", {1, s_.heads, s_.tokens, s_.tokens}));
    const ValueId y = build_.op("Attention", inputs,
                                {{"tokens_first", std::vector<int64_t>{1, 1, 1, 1}},
                                 {"scale", 0.7},
                                 {"causal", int64_t{s_.mask == Decoder::kCausal}},
                                 {"offset", int64_t{0}}})[0];
    return linear(build_.reshape(y, {kBatch, s_.tokens, s_.width}), "proj", s_.width);
  }
  // A query sees itself and the two tokens before it.
  ValueId window() {
    std::string seen;
    for (int64_t q = 0; q < s_.tokens; ++q)
      for (int64_t k = 0; k < s_.tokens; ++k) seen += k <= q && k + 2 >= q ? '\1' : '\0';
    return build_.constant({DType::kBool, {1, 1, s_.tokens, s_.tokens}},
                           Bytes::copy_of(seen.data(), seen.size()));
  }

  ValueId mix(ValueId x) {
    const int64_t n = kBatch * s_.tokens, w = s_.width;
    const ValueId tokens = build_.reshape(x, {n, w});
    const ValueId scores = build_.op1(
        "Softmax", {build_.matmul(tokens, param("router", {s_.experts, w}), false, true)},
        {{"axis", int64_t{1}}});
    const auto top = build_.op("TopK", {scores},
                               {{"axis", int64_t{1}}, {"k", int64_t{2}}, {"largest", int64_t{1}}});
    const ValueId each = build_.expand(build_.reshape(tokens, {n, 1, w}), {n, 2, w});
    const auto multiply = [&](ValueId rows, const char* name, int64_t out) {
      const ValueId stack = param(name, {s_.experts, build_.shape(rows).back(), out});
      return build_.op1("GroupedMatMul", {rows, build_.reshape(top[1], {2 * n}), stack},
                        {{"trans_b", int64_t{0}}});
    };
    const ValueId up = multiply(build_.reshape(each, {2 * n, w}), "experts.up", 2 * w);
    const ValueId bias = build_.op1(
        "Gather", {param("experts.bias", {s_.experts, 2 * w}), build_.reshape(top[1], {2 * n})},
        {{"axis", int64_t{0}}});
    const ValueId down = multiply(build_.op1("Silu", {build_.add(up, bias)}), "experts.down", w);
    const ValueId scaled = build_.mul(down, build_.reshape(top[0], {2 * n, 1}));
    const ValueId sum = build_.reduce_sum(build_.reshape(scaled, {n, 2, w}), {1}, false);
    return build_.reshape(sum, {kBatch, s_.tokens, w});
  }
  ValueId feed(ValueId x) {
    if (s_.experts > 0) return mix(x);
    const int64_t hidden = s_.hidden > 0 ? s_.hidden : 4 * s_.width;
    const bool packed = s_.gate == Decoder::kPacked;
    const ValueId all = linear(x, "up", packed ? 2 * hidden : hidden);
    ValueId y = build_.op1(s_.between, {packed ? part(all, 0, hidden) : all});
    if (packed) y = build_.mul(y, part(all, hidden, 2 * hidden));
    if (s_.gate == Decoder::kOwn) y = build_.mul(y, linear(x, "gate_up", hidden));
    return linear(y, "down", s_.width);
  }

  Decoder s_;
  Graph graph_;
  Builder build_;
  std::string layer_;
};

Graph decoder(const Decoder& spec) { return *shard_batch(trained(DecoderMaker(spec).make()), {}); }

using Dims = std::vector<std::pair<std::string, int>>;

// `dims`: by a text in its name, which dim of a parameter is cut.
AxisCut over(const Graph& graph, int32_t axis, std::string name, int64_t ranks, const Dims& dims) {
  AxisCut cut{axis, std::move(name), ranks, {}};
  for (const Param& param : graph.params)
    for (const auto& [text, dim] : dims)
      if (param.name.find(text) != std::string::npos) cut.seeds.push_back({param.value, dim, {}});
  return cut;
}

const Dims kMegatron{{"qkv.weight", 0}, {"q.weight", 0},    {"k.weight", 0},   {"v.weight", 0},
                     {"up.weight", 0},  {"proj.weight", 1}, {"down.weight", 1}};

ShardedGraph cut(const Graph& whole, const AxisCut& axis) {
  Result<ShardedGraph> made = shard_axis(whole, axis);
  EXPECT_TRUE(made.ok()) << print_error(made.error());
  const Status checked = check_graph(made->graph);
  EXPECT_TRUE(checked.ok()) << print_error(checked.error());
  return *std::move(made);
}

TEST(ShardAxis, WeightsAloneMakeTwoAllReducesABlockEachWay) {
  for (const bool fused : {false, true}) {
    for (const int64_t layers : {1, 2}) {
      SCOPED_TRACE(fmt::format("fused {} layers {}", fused, layers));
      const Graph whole = decoder({.layers = layers, .fused_qkv = fused});
      const ShardedGraph made = cut(whole, over(whole, 0, "tp", 2, kMegatron));
      const auto n = static_cast<int>(layers);
      using Counts = std::map<std::string, int>;
      EXPECT_EQ(collectives(made.graph, Pass::kF), (Counts{{"AllReduce", 2 * n}}));
      EXPECT_EQ(collectives(made.graph, Pass::kBI), (Counts{{"AllReduce", 2 * n}}));
      EXPECT_EQ(collectives(made.graph, Pass::kBW), Counts{});
      EXPECT_EQ(collectives(made.graph, Pass::kU), (Counts{{"AllReduce", 1}}));  // of the norm
      expect_same(made.graph, Mesh{{2}}, whole, oracle::random_sources(whole, 1, 4), 1e-12);
    }
  }
}

// What enters the norms of the forward pass, cut along its tokens.
void add_sequence(AxisCut& cut, const Graph& whole) {
  for (const Node& node : whole.nodes)
    if (node.op == "LayerNorm" && node.pass == Pass::kF)
      cut.seeds.push_back({node.inputs[0], 1, {}});
}

TEST(ShardAxis, AConstraintOnTheResidualsMakesSequenceParallelism) {
  for (const bool fused : {false, true}) {
    const Graph whole = decoder({.layers = 2, .fused_qkv = fused});
    AxisCut axis = over(whole, 0, "tp", 2, kMegatron);
    add_sequence(axis, whole);
    const ShardedGraph made = cut(whole, axis);
    using Counts = std::map<std::string, int>;
    EXPECT_EQ(collectives(made.graph, Pass::kF),
              (Counts{{"AllGather", 4}, {"OwnBlock", 2}, {"ReduceScatter", 4}}));
    EXPECT_EQ(collectives(made.graph, Pass::kBI),
              (Counts{{"AllGather", 8}, {"OwnBlock", 2}, {"ReduceScatter", 4}}));
    // Gradients of norms, biases and embeddings are terms until the step's sums.
    EXPECT_EQ(collectives(made.graph, Pass::kBW), Counts());
    expect_same(made.graph, Mesh{{2}}, whole, oracle::random_sources(whole, 1, 4), 1e-12);
  }
}

TEST(ShardAxis, InputsAreCutAlongTheirTokens) {
  const Graph whole = decoder({.layers = 2});
  AxisCut axis{0, "cp", 2, {}};
  for (ValueId input : whole.inputs) axis.seeds.push_back({input, 1, {}});
  const ShardedGraph made = cut(whole, axis);
  expect_same(made.graph, Mesh{{2}}, whole, oracle::random_sources(whole, 1, 4), 1e-12);
}

AxisCut by_tokens(const Graph& whole, int32_t axis, int64_t ranks, AttentionBy by,
                  bool zigzag = false) {
  AxisCut cut{axis, fmt::format("cp{}", axis), ranks, {}};
  for (ValueId input : whole.inputs)
    cut.seeds.push_back({.value = input, .dim = 1, .zigzag = zigzag});
  for (const Param& param : whole.params) cut.seeds.push_back({param.value, -1, {}});
  cut.attention = {{{*Glob::parse("**", {})}, by, {}}};
  return cut;
}
// Liu et al., 2023: keys and values go round once each way, and their gradients once.
TEST(ShardAxis, AttentionTakesTheKeysOfEachRankInTurn) {
  using Mask = Decoder::Mask;
  for (const Mask mask : {Mask::kCausal, Mask::kNone, Mask::kWindow, Mask::kTrained})
    for (const int64_t ranks : {2, 4}) {
      SCOPED_TRACE(fmt::format("mask {} over {}", static_cast<int>(mask), ranks));
      const Graph whole =
          decoder({.layers = 2, .tokens = 8, .kv_heads = 2, .fused_qkv = ranks == 4, .mask = mask});
      const ShardedGraph made = cut(whole, by_tokens(whole, 0, ranks, AttentionBy::kRing));
      const int each = static_cast<int>(2 * 2 * (ranks - 1));
      EXPECT_EQ(collectives(made.graph, Pass::kF)["Rotate"], each);
      EXPECT_EQ(collectives(made.graph, Pass::kF)["AllGather"], 0);
      EXPECT_EQ(collectives(made.graph, Pass::kBI)["Rotate"], 2 * each);
      EXPECT_EQ(collectives(made.graph, Pass::kBI)["ReduceScatter"], 0);
      expect_same(made.graph, Mesh{{ranks}}, whole, oracle::random_sources(whole, 1, 4), 1e-12);
    }
}
TEST(ShardAxis, AttentionIsDoneAsAsked) {
  const Graph whole = decoder({.layers = 2, .tokens = 8});
  for (const AttentionBy by : {AttentionBy::kHeads, AttentionBy::kGather}) {
    const ShardedGraph made = cut(whole, by_tokens(whole, 0, 2, by));
    const bool heads = by == AttentionBy::kHeads;
    EXPECT_EQ(collectives(made.graph, Pass::kF)["AllToAll"], heads ? 8 : 0);
    EXPECT_EQ(collectives(made.graph, Pass::kF)["AllGather"], heads ? 0 : 4);
    expect_same(made.graph, Mesh{{2}}, whole, oracle::random_sources(whole, 1, 4), 1e-12);
  }
}
// Of twice as many blocks as ranks one from each end, in all ways, beside tensors on either side.
TEST(ShardAxis, TokensLieInZigzag) {
  using Mask = Decoder::Mask;
  for (const Mask mask : {Mask::kCausal, Mask::kNone, Mask::kWindow, Mask::kTrained})
    for (const AttentionBy by : {AttentionBy::kRing, AttentionBy::kGather, AttentionBy::kHeads})
      for (const int64_t ranks : {2, 4}) {
        if (by == AttentionBy::kHeads && ranks == 4) continue;
        SCOPED_TRACE(fmt::format("mask {} way {} over {}", static_cast<int>(mask),
                                 static_cast<int>(by), ranks));
        const Graph whole = decoder(
            {.layers = 1, .tokens = 8, .kv_heads = 2, .fused_qkv = ranks == 4, .mask = mask});
        const auto sources = oracle::random_sources(whole, 1, 4);
        AxisCut zigzag = by_tokens(whole, 0, ranks, by, true);
        const Graph first = cut(whole, zigzag).graph;
        const auto mirrored = [](const Value& value) {
          return !value.over.empty() && value.over[0].layout.mirrored;
        };
        EXPECT_TRUE(std::any_of(first.values.begin(), first.values.end(), mirrored));
        expect_same(first, Mesh{{ranks}}, whole, sources, 1e-12);
        if (by == AttentionBy::kHeads || ranks == 4) continue;
        const AxisCut tensor = over(whole, 1, "tp", 2, kMegatron);
        expect_same(cut(first, tensor).graph, Mesh{{ranks, 2}}, whole, sources, 1e-12);
        std::erase_if(zigzag.seeds, [](const ShardSeed& seed) { return seed.dim < 0; });
        expect_same(cut(cut(whole, tensor).graph, zigzag).graph, Mesh{{ranks, 2}}, whole, sources,
                    1e-12);
      }
}
TEST(ShardAxis, TurnsAreTakenBesideTensors) {
  for (const auto mask : {Decoder::kCausal, Decoder::kWindow}) {
    const Graph whole = decoder({.layers = 1, .tokens = 8, .mask = mask});
    const auto sources = oracle::random_sources(whole, 1, 4);
    const AxisCut ring = by_tokens(whole, 0, 2, AttentionBy::kRing);
    const Graph first = cut(whole, ring).graph;
    const AxisCut tensor = over(whole, 1, "tp", 2, kMegatron);
    expect_same(cut(first, tensor).graph, Mesh{{2, 2}}, whole, sources, 1e-12);
    AxisCut without = ring;  // weights lie as tensor parallelism left them
    std::erase_if(without.seeds, [](const ShardSeed& seed) { return seed.dim < 0; });
    expect_same(cut(cut(whole, tensor).graph, without).graph, Mesh{{2, 2}}, whole, sources, 1e-12);
  }
}
TEST(ShardAxis, AttentionThatCannotBeDoneSoIsRefused) {
  const auto refusal = [](const Graph& whole, const AxisCut& axis) {
    const Result<ShardedGraph> made = shard_axis(whole, axis);
    return made ? "" : made.error().message;
  };
  const Graph whole = decoder({.tokens = 8, .kv_heads = 2});
  EXPECT_EQ(refusal(whole, by_tokens(whole, 0, 4, AttentionBy::kHeads)),
            "shard: attention in h/0 has 2 heads of keys, which cannot be cut into 4 equal blocks "
            "over 'cp0'");
  AxisCut rows = over(whole, 0, "tp", 2, kMegatron);
  rows.attention = by_tokens(whole, 0, 2, AttentionBy::kRing).attention;
  EXPECT_EQ(refusal(whole, rows), "shard: attention in h/0 has no tokens in blocks over 'tp'");
  // Of tokens that are put together before, as where a decoder's ids are its labels shifted.
  AxisCut together = by_tokens(whole, 0, 2, AttentionBy::kRing);
  const auto reader = std::find_if(whole.nodes.begin(), whole.nodes.end(), [&](const Node& node) {
    return std::ranges::count(node.inputs, whole.inputs[0]) > 0;
  });
  together.seeds.push_back({.value = reader->outputs[0], .dim = -1});
  const Result<ShardedGraph> apart = shard_axis(whole, together);
  ASSERT_FALSE(apart);
  EXPECT_EQ(apart.error().message, "shard: attention in h/0 has no tokens in blocks over 'cp0'");
  const std::string notes = piper::join(apart.error().notes, "\n");
  EXPECT_NE(notes.find(fmt::format("they follow from '{}', whose blocks end at {} in",
                                   whole.value(whole.inputs[0]).name, reader->op)),
            std::string::npos)
      << notes;
  EXPECT_NE(notes.find("help: let such tokens be an input of the model"), std::string::npos)
      << notes;
  const Graph biased = decoder({.tokens = 8, .mask = Decoder::kKeyBias});
  EXPECT_EQ(refusal(biased, by_tokens(biased, 0, 2, AttentionBy::kRing)),
            "shard: attention in h/0 trains a mask that all queries share, which is not done by "
            "ring");
}
TEST(ShardAxis, SamplesAreCutOnceMore) {
  const Graph whole = decoder({.layers = 2});
  AxisCut axis{0, "ep", 2, {}};
  for (ValueId input : whole.inputs) axis.seeds.push_back({input, 0, {}});
  const ShardedGraph made = cut(whole, axis);
  for (const Pass pass : {Pass::kF, Pass::kBI, Pass::kBW})
    for (const auto& [op, count] : collectives(made.graph, pass)) EXPECT_EQ(op, "OwnBlock");
  expect_same(made.graph, Mesh{{2}}, whole, oracle::random_sources(whole, 1, 4), 1e-12);
}

TEST(ShardAxis, RowsOfAnEmbeddingAreCut) {
  const Graph whole = decoder({.classes = 8});
  const ShardedGraph made = cut(whole, over(whole, 0, "tp", 2, {{"wte", 0}}));
  using Counts = std::map<std::string, int>;
  EXPECT_EQ(collectives(made.graph, Pass::kF), (Counts{{"AllReduce", 1}, {"OwnFirst", 1}}));
  EXPECT_EQ(collectives(made.graph, Pass::kBW), (Counts{{"OwnFirst", 1}}));
  expect_same(made.graph, Mesh{{2}}, whole, oracle::random_sources(whole, 1, 8), 1e-12);
}

TEST(ShardAxis, ClassesAreCut) {
  const Graph whole = decoder({.classes = 8});
  const ShardedGraph made = cut(whole, over(whole, 0, "tp", 2, {{"head", 0}}));
  for (const Value& value : made.graph.values)
    if (value.name.find("logits") != std::string::npos && value.type.shape.size() == 3) {
      EXPECT_EQ(value.type.shape[2], 4) << value.name;
    }
  expect_same(made.graph, Mesh{{2}}, whole, oracle::random_sources(whole, 1, 8), 1e-12);
}

TEST(ShardAxis, AxesFollowEachOther) {
  for (const auto& sizes : {std::vector<int64_t>{2, 2}, {2, 4}, {4, 2}}) {
    SCOPED_TRACE(fmt::format("{} x {}", sizes[0], sizes[1]));
    const Graph whole = decoder({.layers = 1, .tokens = 8, .width = 16, .heads = 8, .kv_heads = 8});
    AxisCut tensor = over(whole, 1, "tp", sizes[1], kMegatron);
    AxisCut sequence{0, "cp", sizes[0], {}};
    for (ValueId input : whole.inputs) sequence.seeds.push_back({input, 1, {}});
    const ShardedGraph first = cut(whole, sequence);
    const ShardedGraph second = cut(first.graph, tensor);
    const Mesh mesh{sizes};
    expect_same(second.graph, mesh, whole, oracle::random_sources(whole, 1, 4), 1e-12);
    const ShardedGraph other = cut(cut(whole, tensor).graph, sequence);
    expect_same(other.graph, mesh, whole, oracle::random_sources(whole, 1, 4), 1e-12);
  }
}

// Cuts experts, and samples or tokens of each, over some ranks; checks that rows compute what they
// do on one device, spread over the experts or all at the first two; and calls check(graph, dim).
template <class Check>
void expect_rows_at_experts(bool has_capacity, const Check& check) {
  const Graph whole = decoder({.experts = 8});
  oracle::Sources spread = oracle::random_sources(whole, 1, 4), crowded = spread;
  std::fill(crowded.at("h.0.router").begin(), crowded.at("h.0.router").end(), 0.0);
  for (const auto& [ranks, dim] : {std::pair{2, 0}, {2, 1}, {4, 1}}) {
    SCOPED_TRACE(fmt::format("{} ranks, dim {}", ranks, dim));
    AxisCut axis = over(whole, 0, "ep", ranks, {{"experts", 0}});
    for (ValueId input : whole.inputs) axis.seeds.push_back({input, dim, {}});
    if (has_capacity) axis.capacity = ranks;
    const ShardedGraph made = cut(whole, axis);
    check(made.graph, dim);
    for (const auto* sources : {&spread, &crowded})
      expect_same(made.graph, Mesh{{ranks}}, whole, *sources, 1e-12);
  }
}

// There is one exchange each way, and none between the products.
TEST(ShardAxis, RowsGoToTheirExperts) {
  expect_rows_at_experts(false, [](const Graph& made, int dim) {
    for (const Pass pass : {Pass::kF, Pass::kBI}) {
      const auto counts = collectives(made, pass);
      EXPECT_EQ(counts.at("Dispatch"), 1);
      EXPECT_EQ(counts.at("Combine"), 1);
      EXPECT_TRUE(dim == 1 || counts.contains("AllGather") == (pass == Pass::kF));  // the index
    }
    EXPECT_FALSE(collectives(made, Pass::kBW).contains("Dispatch"));
  });
}

// With room for all rows that one may send to another, equal blocks go each way, and the index.
TEST(ShardAxis, PackedRowsGoToTheirExperts) {
  expect_rows_at_experts(true, [](const Graph& made, int) {
    const auto forward = collectives(made, Pass::kF), backward = collectives(made, Pass::kBI);
    EXPECT_EQ(forward.at("AllToAll"), 3);
    EXPECT_EQ(backward.at("AllToAll"), 2);
    EXPECT_FALSE(forward.contains("Dispatch") || backward.contains("Dispatch"));
    EXPECT_FALSE(collectives(made, Pass::kBW).contains("AllToAll"));
  });
}

// What is cut goes on into zeros.
AxisCut with_zeros(AxisCut cut, int64_t to) {
  for (ShardSeed& seed : cut.seeds) seed.pad_to = to;
  return cut;
}

// No more is sent than where the ranks divide the dims, and the norm of all gradients is as it was.
TEST(ShardAxis, HiddenDimsGoOnIntoZeros) {
  for (const char* between : {"Gelu", "Silu", "Relu", "Sigmoid", "Exp", "Cos", "Reciprocal"})
    for (const auto gate : {Decoder::kPlain, Decoder::kOwn, Decoder::kPacked}) {
      SCOPED_TRACE(fmt::format("{} gate {}", between, static_cast<int>(gate)));
      const Graph whole = decoder({.hidden = 10, .between = between, .gate = gate});
      const Dims dims{{"up.weight", 0}, {"down.weight", 1}};
      const ShardedGraph made = cut(whole, with_zeros(over(whole, 0, "tp", 4, dims), 4));
      using Counts = std::map<std::string, int>;
      EXPECT_EQ(collectives(made.graph, Pass::kF).at("AllReduce"), 1);
      EXPECT_EQ(collectives(made.graph, Pass::kBI).at("AllReduce"), 1);
      EXPECT_EQ(collectives(made.graph, Pass::kBW), Counts{});
      const oracle::Sources sources = oracle::random_sources(whole, 1, 4);
      expect_same(made.graph, Mesh{{4}}, whole, sources, 1e-11);
      // One axis after the other, in one dim.
      const ShardedGraph first = cut(whole, with_zeros(over(whole, 0, "a", 2, dims), 4));
      const ShardedGraph second =
          cut(first.graph, with_zeros(over(first.graph, 1, "b", 2, dims), 2));
      expect_same(second.graph, Mesh{{2, 2}}, whole, sources, 1e-11);
      // Anything else behind the end counts, and is put there if nothing puts zeros.
      const Mesh mesh{{4}};
      const auto norm = [&](const Graph& graph, double behind) {
        return Ranks(graph, mesh, sources, behind).whole(graph.grad_norm);
      };
      Graph without = made.graph;
      for (Node& node : without.nodes)
        if (node.op == "Where" && node.name.ends_with("tp.Where")) node.inputs[2] = node.inputs[1];
      const bool keeps = find_op(between)->nonzero.empty();
      const bool finite = between != std::string_view("Reciprocal");
      if (keeps || (gate == Decoder::kPlain && finite)) {
        EXPECT_NE(norm(keeps ? made.graph : without, keeps ? 1 : 0), norm(made.graph, 0));
      }
    }
}

TEST(ShardAxis, HeadsGoOnIntoZeros) {
  struct Heads {
    int64_t width, heads, kv_heads, ranks;
  };
  for (const Heads& h : {Heads{6, 3, 3, 2}, {12, 6, 3, 2}, {12, 6, 3, 4}, {12, 6, 2, 3}})
    for (const bool fused : {false, true}) {
      if (fused && h.heads != h.kv_heads) continue;
      SCOPED_TRACE(
          fmt::format("{} and {} heads over {}, fused {}", h.heads, h.kv_heads, h.ranks, fused));
      const Graph whole = decoder({.width = h.width,
                                   .heads = h.heads,
                                   .kv_heads = h.kv_heads,
                                   .fused_qkv = fused,
                                   .hidden = 12});
      // Where the heads come together is named first, or last.
      for (const bool turned : {false, true}) {
        AxisCut axis = with_zeros(over(whole, 0, "tp", h.ranks, kMegatron), h.ranks);
        if (turned) std::reverse(axis.seeds.begin(), axis.seeds.end());
        const ShardedGraph made = cut(whole, axis);
        using Counts = std::map<std::string, int>;
        EXPECT_EQ(collectives(made.graph, Pass::kF), (Counts{{"AllReduce", 2}, {"OwnBlock", 1}}));
        EXPECT_EQ(collectives(made.graph, Pass::kBI), (Counts{{"AllReduce", 2}}));
        expect_same(made.graph, Mesh{{h.ranks}}, whole, oracle::random_sources(whole, 1, 4), 1e-11);
      }
    }
}

// A dim over which elements are put in relation to one another, and experts.
TEST(ShardAxis, WhereZerosWouldCountTheyAreRefused) {
  const Graph whole = decoder({.width = 10, .heads = 2, .kv_heads = 2, .experts = 3});
  const auto refusal = [&](const Dims& dims) {
    const auto made = shard_axis(whole, with_zeros(over(whole, 0, "tp", 4, dims), 4));
    return made.ok() ? "" : print_error(made.error());
  };
  EXPECT_NE(refusal({{"wpe", 1}}).find("would count in LayerNorm"), std::string::npos);
  EXPECT_NE(refusal({{"router", 0}}).find("would count in TopK"), std::string::npos);
  const AxisCut axis = over(whole, 0, "tp", 4, {{"router", 0}, {"up", 2}, {"head", 0}});
  std::vector<bool> can;
  for (const ShardSeed& seed : axis.seeds) can.push_back(can_be_padded(whole, axis, seed, 4));
  EXPECT_EQ(can, (std::vector<bool>{false, true, true}));
}

TEST(ShardAxis, AnySeedsGiveTheSameNumbers) {
  const uint64_t seed = given_seed().value_or(1);
  std::mt19937_64 random(seed);
  const auto pick = [&](size_t n) { return random() % n; };
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(fmt::format("seed {} round {}", seed, round));
    const Decoder spec{.layers = 1 + static_cast<int64_t>(pick(2)),
                       .tokens = 4,
                       .width = 8,
                       .heads = 4,
                       .kv_heads = int64_t{1} << pick(3),
                       .classes = 8,
                       .fused_qkv = pick(2) == 0,
                       .experts = pick(3) == 0 ? 4 : 0};
    const Graph whole = decoder(spec);
    const Mesh mesh{pick(2) ? std::vector<int64_t>{2} : std::vector<int64_t>{2, 2}};
    Graph at = whole;
    for (size_t axis = 0; axis < mesh.sizes.size(); ++axis) {
      AxisCut axis_cut{static_cast<int32_t>(axis), fmt::format("a{}", axis), 2, {}};
      const size_t count = pick(6);
      for (size_t k = 0; k < count; ++k) {
        const ValueId id(pick(whole.values.size()));
        const TensorType& type = at.value(id).type;
        const bool is_param = std::any_of(whole.params.begin(), whole.params.end(),
                                          [&](const Param& p) { return p.value == id; });
        const Value& value = at.value(id);
        if (value.kind == ValueKind::kConstant || (value.kind == ValueKind::kState && !is_param))
          continue;
        if (type.shape.empty() || !at.value(id).name.find("step")) continue;
        const int dim = static_cast<int>(pick(type.shape.size()));
        if (type.shape[static_cast<size_t>(dim)] % 2 != 0) continue;
        if (std::any_of(axis_cut.seeds.begin(), axis_cut.seeds.end(),
                        [&](const ShardSeed& s) { return s.value == id; }))
          continue;
        const bool zigzag = value.kind == ValueKind::kInput &&
                            type.shape[static_cast<size_t>(dim)] % 4 == 0 && pick(2);
        axis_cut.seeds.push_back({.value = id, .dim = pick(5) ? dim : -1, .zigzag = zigzag});
      }
      at = cut(at, axis_cut).graph;
    }
    expect_same(at, mesh, whole, oracle::random_sources(whole, 1, 8), 1e-12);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace piper
