// An attention that was found, written as one op.
#include <algorithm>
#include <cmath>

#include "attention.h"
#include "piper/ir/ops.h"

namespace piper::patterns {
namespace {

class AttentionWriter {
 public:
  explicit AttentionWriter(Graph& graph) : graph_(graph), build_(graph) {}

  void write(const AttentionFound& found) {
    const Node last = graph_.nodes[found.node];
    build_.scope = last.scope;
    build_.tags = last.tags;
    build_.pass = last.pass;
    build_.name_prefix = last.name + "/";
    std::vector<ValueId> inputs{queries(found), keys(found, found.k), keys(found, found.v)};
    ValueId mask = mask_of(found);
    if (found.scores.sink.valid()) mask = with_sink(found, mask);
    if (mask.valid()) inputs.push_back(mask);
    const std::vector<ValueId> made = build_.op("Attention", inputs, attributes(found));
    const ValueId y = found.y_tokens_first ? made[0] : write_view(build_, made[0], found.y);
    if (y == made[0] && build_.shape(y) == build_.shape(last.outputs[0]))
      return become(graph_, found.node, made);
    Node& node = graph_.nodes[found.node];
    node.op = "Reshape";
    node.inputs = {y};
    node.attrs = Attrs{{"shape", Shape(build_.shape(last.outputs[0]))}};
  }

 private:
  ValueId queries(const AttentionFound& found) {
    ValueId q = write_view(build_, found.q.base, found.q.dims);
    for (const QueryFactor& factor : found.scores.on_q) {
      ViewDims dims = *cut(factor.run, {found.batch, found.heads, found.queries});
      dims.emplace_back();
      if (found.q.tokens_first) std::swap(dims[1], dims[2]);
      const ValueId by = write_once(factor.value, std::move(dims));
      q = factor.divides ? build_.div(q, by) : build_.mul(q, by);
    }
    return q;
  }

  // Writes keys or values; a sink is a key of zeros before them, whose value is zero, too.
  ValueId keys(const AttentionFound& found, const Side& side) {
    const ValueId all = write_view(build_, side.base, side.dims);
    if (!found.scores.sink.valid()) return all;
    const int64_t tokens = side.tokens_first ? 1 : 2;
    TensorType one = build_.type(all);
    one.shape[static_cast<size_t>(tokens)] = 1;
    const ValueId zero = build_.constant(one, Bytes::zeros(static_cast<size_t>(one.bytes())));
    return build_.op1("Concat", {zero, all}, {{"axis", tokens}});
  }

  // Returns the score of a sink before the terms of the keys, all of four dims.
  ValueId with_sink(const AttentionFound& found, ValueId mask) {
    ViewDims dims = *cut(found.scores.sink_run, {found.batch, found.heads, found.queries});
    dims.emplace_back();
    ValueId sink = write_once(found.scores.sink, std::move(dims));
    if (!mask.valid())
      mask = build_.reshape(build_.scalar(0, build_.type(sink).dtype), {1, 1, 1, 1});
    Shape rows, all;
    for (size_t d = 0; d < 3; ++d)
      rows.push_back(std::max(build_.shape(sink)[d], build_.shape(mask)[d]));
    all = rows;
    rows.push_back(1);
    all.push_back(found.keys);
    return build_.op1("Concat", {build_.expand(sink, rows), build_.expand(mask, all)},
                      {{"axis", int64_t{3}}});
  }

  // Writes a view with one element along the dims that it only repeats.
  ValueId write_once(ValueId id, ViewDims dims) {
    for (Modes& dim : dims)
      if (is_repeated(dim)) dim.clear();
    return write_view(build_, id, dims);
  }

  Attrs attributes(const AttentionFound& found) const {
    const Scores& scores = found.scores;
    Attrs attrs;
    const auto first = [](bool is) { return int64_t{is}; };
    attrs.set("tokens_first",
              std::vector<int64_t>{first(found.q.tokens_first), first(found.k.tokens_first),
                                   first(found.v.tokens_first), first(found.y_tokens_first)});
    attrs.set("scale", scores.scale * (scores.bent ? scores.outer : 1));
    if (scores.bent) attrs.set("softcap", scores.outer);
    if (scores.causal) {
      attrs.set("causal", int64_t{1});
      attrs.set("offset", scores.offset + int64_t{scores.sink.valid()});
    }
    if (is_condition(scores) && !std::isinf(scores.masks[0].number))
      attrs.set("masked_score", scores.masks[0].number);
    return attrs;
  }

  static bool is_condition(const Scores& scores) {
    const std::vector<MaskStep>& steps = scores.masks;
    return !steps.empty() && !scores.sink.valid() &&
           std::all_of(steps.begin(), steps.end(), [&](const MaskStep& step) {
             return step.kind == MaskStep::kKeep && step.number == steps[0].number;
           });
  }

  ValueId in_four_dims(const AttentionFound& found, const MaskStep& step) {
    const Shape scores{found.batch, found.heads, found.queries, found.keys};
    const ValueId made = write_once(step.value, *cut(step.run, scores));
    return step.inverted ? build_.op1("Not", {made}) : made;
  }

  // Returns one operand, or none: a condition, or terms in which what is hidden is a very low
  // number.
  ValueId mask_of(const AttentionFound& found) {
    ValueId mask;
    const bool condition = is_condition(found.scores);
    const DType dtype = build_.type(found.q.base).dtype;
    for (const MaskStep& step : found.scores.masks) {
      ValueId one = in_four_dims(found, step);
      if (condition) {
        mask = mask.valid() ? build_.op1("And", {mask, one}) : one;
      } else if (step.kind == MaskStep::kAdd) {
        if (step.number != 1) one = build_.mul(one, build_.scalar(step.number, dtype));
        mask = mask.valid() ? build_.add(mask, one) : one;
      } else {
        const ValueId seen = mask.valid() ? mask : build_.scalar(0, dtype);
        mask = build_.op1("Where", {one, seen, build_.scalar(step.number, dtype)});
      }
    }
    return mask;
  }

  Graph& graph_;
  Builder build_;
};

}  // namespace

void write_attention(Graph& graph, std::span<const AttentionFound> found) {
  AttentionWriter writer(graph);
  for (const AttentionFound& attention : found) writer.write(attention);
}

}  // namespace piper::patterns
