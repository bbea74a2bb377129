// Bags of embeddings: PyTorch's embedding_bag, for which ONNX has no operator. Its exporter looks
// the rows up, weighted, and writes a loop over the bags that cuts each one's rows out and reduces
// them; only the loop's body ends it. Here the loop is one node of the rows and the bounds of the
// bags.
#include <algorithm>
#include <cmath>
#include <set>

#include "piper/frontend/onnx.h"
#include "rule.h"

namespace piper::onnx_import {
namespace {

constexpr std::string_view kBagDomain = "piper", kBagOp = "EmbeddingBag";
enum BagMode : int64_t { kBagSum, kBagMean, kBagMax };

bool is_bag_call(const Call& call) {
  constexpr std::string_view kCalls[] = {"aten.embedding_bag", "aten._embedding_bag",
                                         "aten._embedding_bag_forward_only"};
  return std::find(std::begin(kCalls), std::end(kCalls), call.function) != std::end(kCalls);
}

// Returns what of the call is not supported, or "".
std::string_view refused_of_bag(const Call& call) {
  constexpr size_t kByFrequency = 3, kPadding = 8;
  const auto given = [&](size_t i) { return i < call.words.size() ? call.words[i] : "None"; };
  if (given(kByFrequency) == "True") return "scale_grad_by_freq";
  return given(kPadding) == "None" || given(kPadding) == "-1" ? "" : "padding_idx";
}

std::string bag_mode(const Call& call) {
  constexpr size_t kMode = 4;
  return call.words.size() > kMode ? call.words[kMode] : "0";
}

// Returns what the first Slice of some nodes cuts, or of the branches in them.
std::string first_sliced(const std::vector<OnnxNode>& nodes, bool in_branches) {
  for (const OnnxNode& node : nodes) {
    if (!in_branches && node.op == "Slice" && !node.inputs.empty()) return node.inputs[0];
    for (const OnnxSubgraph& branch : node.branches) {
      if (!in_branches) continue;
      std::string found = first_sliced(branch.nodes, false);
      if (found.empty()) found = first_sliced(branch.nodes, true);
      if (!found.empty()) return found;
    }
  }
  return "";
}

// Returns the mean, the sum or the largest of dim 1 of x [bags, rows of each, width].
Result<Val> reduced_bags(RuleContext& c, const Val& x, int64_t mode) {
  if (mode == kBagMax)
    return c.op(
        "ReduceMax", {x},
        {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}, {"first", int64_t{1}}});
  PIPER_ASSIGN(const Val sum, c.reduce_sum(x, {1}, false));
  if (mode == kBagSum) return sum;
  return c.mul(sum, c.number(1.0 / static_cast<double>(x.shape[1]), sum));
}

Result<Val> greatest_of_bags(RuleContext& c, const Val& rows, const Val& inside, const Val& sizes) {
  const int64_t bags = inside.shape[0], count = inside.shape[1], width = rows.shape[1];
  PIPER_ASSIGN(const Val mask, c.reshape(inside, {bags, count, 1}));
  PIPER_ASSIGN(Val x, c.reshape(rows, {1, count, width}));
  PIPER_ASSIGN(x, c.pointwise("Where", {mask, x, c.number(-INFINITY, x)}));
  PIPER_ASSIGN(x, reduced_bags(c, x, kBagMax));
  PIPER_ASSIGN(const Val any, c.pointwise("Greater", {sizes, c.number(0, sizes)}));
  return c.pointwise("Where", {any, x, c.number(0, x)});
}

// Reduces bags of any sizes: a matrix says which rows are in which bag. Of no rows they are 0.
Result<Val> uneven_bags(RuleContext& c, const Val& rows, const Val& bounds, int64_t mode) {
  const int64_t bags = bounds.shape[0] - 1, count = rows.shape[0];
  PIPER_ASSIGN(Val place, c.emit.count_to(count));
  PIPER_ASSIGN(place, c.reshape(place, {1, count}));
  Val ends[2];
  for (int64_t k = 0; k < 2; ++k) {
    PIPER_ASSIGN(ends[k], c.part(bounds, 0, k, bags));
    PIPER_ASSIGN(ends[k], c.reshape(ends[k], {bags, 1}));
  }
  PIPER_ASSIGN(const Val from, c.pointwise("GreaterOrEqual", {place, ends[0]}));
  PIPER_ASSIGN(const Val before, c.pointwise("Less", {place, ends[1]}));
  PIPER_ASSIGN(const Val inside, c.pointwise("And", {from, before}));
  PIPER_ASSIGN(const Val ones, c.cast(inside, rows.dtype));
  PIPER_ASSIGN(Val sizes, c.reduce_sum(ones, {1}, true));
  if (mode == kBagMax) return greatest_of_bags(c, rows, inside, sizes);
  PIPER_ASSIGN(const Val sum, c.matmul(ones, rows));
  if (mode == kBagSum) return sum;
  PIPER_ASSIGN(sizes, c.pointwise("Max", {sizes, c.number(1, sizes)}));
  return c.pointwise("Div", {sum, sizes});
}

// Returns whether each bag is known to have that size.
Result<bool> is_even(RuleContext& c, const Val& bounds, int64_t bags, int64_t size) {
  bool even = bounds.is_constant() && size > 0;
  if (even) {
    PIPER_ASSIGN(const std::vector<int64_t> at, c.constant_integers(1, "bounds"));
    for (int64_t k = 0; k <= bags; ++k) even = even && at[static_cast<size_t>(k)] == k * size;
  }
  return even;
}

// Reads the rows [count, width] and the bounds of the bags: where each begins, and where the last
// ends.
Result<Vals> embedding_bag(RuleContext& c) {
  if (c.has_attr("refused"))
    return c.error("embedding_bag with {} is not supported", c.text("refused", ""));
  PIPER_TRY(c.need(2, 2));
  const Val& rows = c.in(0);
  const int64_t mode = c.integer("mode", kBagSum);
  if (rows.rank() != 2 || c.in(1).rank() != 1 || c.in(1).shape[0] < 1 || mode < kBagSum ||
      mode > kBagMax || !info(rows.dtype).is_float || info(c.in(1).dtype).is_float)
    return c.error("cannot reduce {} between {} bounds", to_string(rows.shape),
                   to_string(c.in(1).shape));
  PIPER_ASSIGN(const Val bounds, c.cast(c.in(1), DType::kI64));
  const int64_t bags = bounds.shape[0] - 1, size = bags > 0 ? rows.shape[0] / bags : 0;
  PIPER_ASSIGN(const bool even, is_even(c, bounds, bags, size));
  if (!even) return single(uneven_bags(c, rows, bounds, mode));
  PIPER_ASSIGN(const Val x, c.reshape(rows, {bags, size, rows.shape[1]}));
  return single(reduced_bags(c, x, mode));
}

constexpr ImportRule kBagRules[] = {
    {"piper::EmbeddingBag", 1, kNewest, embedding_bag,
     "what the newer exporter writes of PyTorch's embedding_bag, without padding_idx and "
     "scale_grad_by_freq"},
};

// Lists values of the graph itself, rather than of a loop's body.
std::set<std::string> values_of_graph(const OnnxModel& model) {
  std::set<std::string> out;
  for (const OnnxTensor& tensor : model.initializers) out.insert(tensor.name);
  for (const OnnxInput& input : model.inputs) out.insert(input.name);
  for (const OnnxNode& node : model.nodes) out.insert(node.outputs.begin(), node.outputs.end());
  out.erase("");
  return out;
}

// Returns the one node that reads a loop's results, which are outputs of nothing else.
OnnxNode* only_reader(OnnxModel& model, const OnnxNode& loop) {
  OnnxNode* reader = nullptr;
  for (const std::string& output : loop.outputs) {
    if (std::count(model.outputs.begin(), model.outputs.end(), output) > 0) return nullptr;
    for (OnnxNode& node : model.nodes)
      if (std::count(node.inputs.begin(), node.inputs.end(), output) > 0) {
        if (reader) return nullptr;
        reader = &node;
      }
  }
  return reader;
}

// Returns the value before a change of its type: the loop works in f32, whatever the table has.
std::string before_cast(const OnnxModel& model, const std::string& value) {
  for (const OnnxNode& node : model.nodes)
    if (node.op == "Cast" && node.outputs[0] == value) return node.inputs[0];
  return value;
}

}  // namespace

void join_bags(OnnxModel& model) {
  std::set<std::string> values;
  for (size_t n = 0; n < model.nodes.size(); ++n) {
    const OnnxNode& loop = model.nodes[n];
    if (loop.op != "Loop" || loop.branches.size() != 1 || loop.outputs.empty()) continue;
    const auto call = parse_call(find_metadata(loop.metadata, "pkg.torch.onnx.fx_node"));
    if (!call || !is_bag_call(*call)) continue;
    if (values.empty()) values = values_of_graph(model);
    const std::string bounds = first_sliced(loop.branches[0].nodes, false);
    const std::string rows = first_sliced(loop.branches[0].nodes, true);
    const std::string mode = bag_mode(*call);
    OnnxNode* joined = only_reader(model, loop);
    const std::string refused(refused_of_bag(*call));
    if (!joined || joined->op != "ConcatFromSequence") continue;
    const bool found = mode.size() == 1 && values.count(bounds) && values.count(rows);
    if (refused.empty() && !found) continue;
    joined->op = kBagOp;
    joined->domain = kBagDomain;
    joined->inputs.clear();
    joined->attrs = {{"refused", refused}};
    if (refused.empty()) {
      joined->inputs = {before_cast(model, rows), bounds};
      joined->attrs = {{"mode", int64_t{mode[0] - '0'}}};
    }
    model.nodes.erase(model.nodes.begin() + static_cast<std::ptrdiff_t>(n--));
  }
}

std::span<const ImportRule> bag_rules() { return kBagRules; }

}  // namespace piper::onnx_import
