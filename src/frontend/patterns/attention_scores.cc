// From the weights of an attention up to the product of its queries and keys, and down again: what
// each op on the way means for the scores.
#include <algorithm>
#include <cmath>

#include "attention.h"

namespace piper::patterns {
namespace {

constexpr int kMostSteps = 128;  // values between a softmax and its product

bool is_elementwise_pair(const Node& node) {
  return node.op == "Add" || node.op == "Sub" || node.op == "Mul" || node.op == "Div";
}

}  // namespace

std::optional<double> ScoreReader::number(ValueId id) const {
  if (const auto constant = match_.number(id)) return constant;
  const Node* node = match_.producer(id);
  return node && is_view(graph_, *node) ? number(node->inputs[0]) : std::nullopt;
}

// ---- Upwards ------------------------------------------------------------------------------------

bool ScoreReader::is_max_of(ValueId id, ValueId scores) const {
  const Node* max = match_.sole(id, "ReduceMax");
  if (!max || max->inputs[0] != scores || max->attrs.integer("keepdims") == 0) return false;
  const auto last = static_cast<int64_t>(shape(scores).size()) - 1;
  return max->attrs.integers("axes") == std::vector<int64_t>{last};
}

// Returns the operands that the product may be under.
std::vector<size_t> ScoreReader::ways_up(const Node& node) const {
  std::vector<size_t> ways;
  if (is_view(graph_, node) || node.op == "Cast" || node.op == "Neg" || node.op == "Tanh")
    return {0};
  if (node.op == "Concat" && node.inputs.size() == 2) return {0};
  if (is_elementwise_pair(node)) ways = {0, 1};
  if (node.op == "Where") ways = {1, 2};
  const auto is_other = [&](size_t at) {
    return shape(node.inputs[at]) != shape(node.outputs[0]) || (node.op == "Div" && at == 1) ||
           number(node.inputs[at]).has_value();
  };
  ways.erase(std::remove_if(ways.begin(), ways.end(), is_other), ways.end());
  return ways;
}

void ScoreReader::climb(ValueId id, ScorePath& path, int& opened, std::vector<ScorePath>& found) {
  const Node* node = match_.producer(id);
  if (!node || ++opened > kMostSteps) return;
  const bool is_shifted = !path.steps.empty() && path.steps.back().node->op == "Sub" &&
                          match_.reader_count(id) == 2 &&
                          is_max_of(path.steps.back().node->inputs[1], id);
  if (node->op == "MatMul" || !ways_up(*node).empty()) {
    if (match_.reader_count(id) != 1 && !is_shifted) {
      if (why_.empty()) no("'{}' ({}) is read by others, too", node->name, node->op);
      return;
    }
  }
  if (node->op == "MatMul") {
    path.product = node;
    found.push_back(path);
    return;
  }
  const std::vector<size_t> ways = ways_up(*node);
  if (ways.empty() && why_.empty())
    no("between the product and the softmax is '{}' ({})", node->name, node->op);
  for (const size_t at : ways) {
    path.steps.push_back({node, at});
    climb(node->inputs[at], path, opened, found);
    path.steps.pop_back();
  }
}

std::vector<ScorePath> ScoreReader::paths(const Node& softmax) {
  ScorePath path;
  std::vector<ScorePath> found;
  int opened = 0;
  climb(softmax.inputs[0], path, opened, found);
  return found;
}

// Makes weights zero that are no numbers.
bool ScoreReader::is_guard(const Node& node) const {
  const Node* test = node.op == "Where" ? match_.sole(node.inputs[0], "IsNaN") : nullptr;
  return test && test->inputs[0] == node.inputs[2] && number(node.inputs[1]) == 0.0;
}

// Takes all but the last column, as of the weight of a sink.
bool ScoreReader::drops_last(const Node& node) const {
  if (node.op != "Slice") return false;
  const auto starts = node.attrs.integers("starts");
  Shape taken = shape(node.inputs[0]);
  --taken.back();
  return shape(node.outputs[0]) == taken &&
         std::all_of(starts.begin(), starts.end(), [](int64_t start) { return start == 0; });
}

Weights ScoreReader::weights(ValueId id) const {
  Weights weights;
  for (int opened = 0; opened < kMostSteps; ++opened) {
    const Node* node = match_.producer(id);
    const bool guarded = !weights.steps.empty() && is_guard(*weights.steps.back().node);
    if (!node || match_.reader_count(id) != (guarded ? 2 : 1)) return {};
    if (node->op == "Softmax") {
      weights.softmax = node;
      return weights;
    }
    size_t at = 0;
    if (node->op == "Where") {
      at = number(node->inputs[1]) == 0.0 ? 2 : 1;
      if (number(node->inputs[3 - at]) != 0.0 || shape(node->inputs[at]) != shape(id)) return {};
    } else if (!is_view(graph_, *node) && node->op != "Cast" && !drops_last(*node)) {
      return {};
    }
    weights.steps.push_back({node, at});
    id = node->inputs[at];
  }
  return {};
}

// ---- Downwards ----------------------------------------------------------------------------------

// A value broadcast to the scores, as a run over its elements by [lead, queries, keys].
std::optional<Modes> ScoreReader::run_of(const ViewDims& dims, const ViewDims& scores) const {
  struct Part {
    int64_t extent, place, stride;
  };
  std::vector<Part> parts;
  const ViewDims wide = broadcast_to(dims, shape_of(scores));
  for (size_t d = 0; d < scores.size(); ++d) {
    Shape extents;
    for (const Mode& mode : scores[d]) extents.push_back(mode.extent);
    const auto pieces = cut(wide[d], extents);
    if (!pieces) return std::nullopt;
    for (size_t m = 0; m < extents.size(); ++m) {
      int64_t place = scores[d][m].stride * scores[d][m].extent;
      for (const Mode& piece : (*pieces)[m]) {
        place /= piece.extent;
        parts.push_back({piece.extent, place, piece.stride});
      }
    }
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.place > b.place; });
  Modes run;
  for (const Part& part : parts) run.push_back({part.extent, part.stride});
  return joined(run);
}

bool ScoreReader::scale_by(double factor, const Node& node, Scores& scores) {
  if (factor == 0 || !std::isfinite(factor))
    return no("'{}' multiplies the scores by {}", node.name, factor);
  if (factor < 0 && !scores.masks.empty())
    return no("'{}' turns the sign of masked scores", node.name);
  (scores.bent ? scores.outer : scores.scale) *= factor;
  for (MaskStep& step : scores.masks) step.number *= factor;
  return true;
}

// Multiplies the scores by a factor that is the same for all keys.
bool ScoreReader::multiply(const Node& node, ValueId by, const ViewDims& dims, Scores& scores) {
  if (scores.bent || !scores.masks.empty())
    return no("'{}' multiplies scores that were masked or capped", node.name);
  const auto run = run_of(dims_of(shape(by)), dims);
  const auto apart = run ? cut(*run, {extent_of(*run) / keys_, keys_}) : std::nullopt;
  if (!apart || !is_repeated((*apart)[1]))
    return no("'{}' multiplies the scores by a factor that differs by key", node.name);
  if (graph_.value(by).type.dtype != dtype_)
    return no("'{}' is not of the queries' type", node.name);
  scores.on_q.push_back({by, (*apart)[0], node.op == "Div"});
  return true;
}

bool ScoreReader::replace(const Node& node, size_t at, const ViewDims& dims, Scores& scores) {
  const auto low = number(node.inputs[3 - at]);
  if (!low) return no("'{}' puts other values than one number in place of scores", node.name);
  MaskStep step{MaskStep::kKeep, node.inputs[0], {}, *low, at == 2, dims};
  scores.masks.push_back(std::move(step));
  return true;
}

bool ScoreReader::take_sink(const ScorePath::Step& step, const ViewDims& dims, Scores& scores) {
  const Node& node = *step.node;
  ViewDims rows = dims;
  rows.back().clear();
  const ValueId sink = node.inputs[1];
  const auto run = run_of(dims_of(shape(sink)), rows);
  const bool fits = node.attrs.integer("axis") == static_cast<int64_t>(dims.size()) - 1 &&
                    shape(sink).back() == 1 && joined(dims.back()) == joined(Modes{{keys_, 1}}) &&
                    graph_.value(sink).type.dtype == dtype_;
  if (!fits || !run) return no("'{}' joins scores with others", node.name);
  scores.sink = sink;
  scores.sink_run = *run;
  return true;
}

bool ScoreReader::read_step(const ScorePath::Step& step, ViewDims& dims, Scores& scores) {
  const Node& node = *step.node;
  if (node.op == "Concat" && node.inputs[0] != node.inputs[1]) return take_sink(step, dims, scores);
  const bool shifts = node.op == "Sub" && step.at == 0 && is_max_of(node.inputs[1], node.inputs[0]);
  if (shifts)
    return scores.sink.valid() || joined(dims.back()) == joined(Modes{{keys_, 1}}) ||
           no("'{}' subtracts the largest score of other dims than the keys", node.name);
  if (scores.sink.valid()) return no("'{}' comes after the score of a sink", node.name);
  if (is_view(graph_, node)) {
    auto seen = seen_through(graph_, node, dims);
    if (!seen) return no("'{}' mixes the dims of the scores", node.name);
    dims = *std::move(seen);
    return true;
  }
  if (node.op == "Cast")
    return info(graph_.value(node.outputs[0]).type.dtype).is_float ||
           no("'{}' makes the scores integers", node.name);
  if (node.op == "Neg") return scale_by(-1, node, scores);
  if (node.op == "Where") return replace(node, step.at, dims, scores);
  if (node.op == "Tanh") {
    if (scores.bent || !scores.masks.empty())
      return no("'{}' caps scores that were masked or capped", node.name);
    return scores.bent = true;
  }
  const ValueId other = node.inputs[1 - step.at];
  if (node.op == "Mul" || node.op == "Div") {
    const auto factor = number(other);
    if (factor) return scale_by(node.op == "Mul" ? *factor : 1 / *factor, node, scores);
    return multiply(node, other, dims, scores);
  }
  if (node.op == "Sub" && step.at == 1 && !scale_by(-1, node, scores)) return false;
  MaskStep add{MaskStep::kAdd, other, {}, node.op == "Sub" && step.at == 0 ? -1.0 : 1.0,
               false,          dims};
  scores.masks.push_back(std::move(add));
  return true;
}

bool ScoreReader::read(const ScorePath& path, const Weights& weights, Scores& scores) {
  const Node& product = *path.product;
  const Shape& all = shape(product.outputs[0]);
  const size_t rank = all.size();
  dtype_ = graph_.value(product.inputs[0]).type.dtype;
  queries_ = all[rank - (path.swapped ? 1 : 2)], keys_ = all[rank - (path.swapped ? 2 : 1)];
  ViewDims dims = dims_of(all);
  if (path.swapped) {
    dims[rank - 2] = keys_ == 1 ? Modes() : Modes{{keys_, 1}};
    dims[rank - 1] = queries_ == 1 ? Modes() : Modes{{queries_, keys_}};
  }
  Scores raw;
  for (size_t i = path.steps.size(); i-- > 0;)
    if (!read_step(path.steps[i], dims, raw)) return false;
  const Node& softmax = *weights.softmax;
  const auto axis = static_cast<size_t>(softmax.attrs.integer("axis"));
  if (joined(dims[axis]) != joined(Modes{{keys_, 1}}) ||
      (raw.sink.valid() && axis + 1 != dims.size()))
    return no("its softmax is not over the keys only");
  const bool drops = !weights.steps.empty() && drops_last(*weights.steps.back().node);
  if (drops != raw.sink.valid())
    return no("a column is taken away, or is one too many, of its weights");
  std::vector<MaskStep> hidden;
  const ValueId sink = raw.sink;
  raw.sink = {};
  for (size_t i = weights.steps.size() - size_t{drops}; i-- > 0;) {
    const Node& node = *weights.steps[i].node;
    if (node.op == "Where" && !is_guard(node)) {
      hidden.push_back({MaskStep::kKeep, node.inputs[0], {}, 0, weights.steps[i].at == 2, dims});
    } else if (node.op != "Where" && !read_step(weights.steps[i], dims, raw)) {
      return false;
    }
  }
  raw.weights = dims;
  raw.sink = sink;
  return settle(raw, hidden, scores);
}

}  // namespace piper::patterns
