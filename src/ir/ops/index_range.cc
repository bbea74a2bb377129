// Bounds of integers, found from the ops that make them.
#include "piper/ir/index_range.h"

#include <algorithm>
#include <cstring>

#include "piper/ir/ops.h"

namespace piper {
namespace {

constexpr int kDeepest = 64;  // ops above an index; further up, nothing is known

int64_t plus(int64_t a, int64_t b) {  // the ends of what 64 bits hold stand for anything
  int64_t sum = 0;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? INT64_MIN : INT64_MAX;
}

}  // namespace

IndexRange::IndexRange(const Graph& graph) : graph_(graph) {
  for (const Node& node : graph.nodes) {
    const OpDef* def = find_op(node.op);
    if (!def || !def->indices) continue;
    const ValueId from = moved_from(node.inputs[1]);
    const int64_t extent = def->indices(use_of(graph, node)).extent;
    if (extent < 0 || graph.value(from).kind != ValueKind::kInput) continue;
    const auto [known, is_new] = checked_.emplace(from, extent);
    if (!is_new) known->second = std::min(known->second, extent);
  }
}

// Returns what a value has the elements of, as a run sees it that checks inputs.
ValueId IndexRange::moved_from(ValueId id) const {
  for (int depth = 0; depth < kDeepest && graph_.value(id).producer.valid(); ++depth) {
    const Node& node = graph_.node(graph_.value(id).producer);
    const OpDef* def = find_op(node.op);
    if (!def || def->elements == OpDef::Elements::kMade) break;
    id = node.inputs[0];
  }
  return id;
}

bool IndexRange::is_within(ValueId id, int64_t extent, std::optional<int64_t> ignored,
                           bool at_once) const {
  if (at_once && graph_.value(moved_from(id)).kind == ValueKind::kInput) return true;
  Known known;
  const Span span = span_of(id, ignored, 0, known);
  return span.low >= 0 && span.high < extent;
}

IndexRange::Span IndexRange::of_constant(const Value& value, std::optional<int64_t> ignored) const {
  const auto width = static_cast<size_t>(info(value.type.dtype).bytes);
  if (info(value.type.dtype).is_float || !value.data.data) return {};
  Span span{INT64_MAX, INT64_MIN};
  for (size_t at = 0; at + width <= value.data.size; at += width) {
    int64_t element = 0;
    std::memcpy(&element, value.data.data + at, width);
    if (width == 4) element = static_cast<int32_t>(element);
    if (element == ignored) continue;
    span = {std::min(span.low, element), std::max(span.high, element)};
  }
  return span;
}

IndexRange::Span IndexRange::span_of(ValueId id, std::optional<int64_t> ignored, int depth,
                                     Known& known) const {
  const Value& value = graph_.value(id);
  if (value.type.dtype == DType::kBool) return {0, 1};
  if (value.kind == ValueKind::kConstant) return of_constant(value, ignored);
  if (value.kind == ValueKind::kInput) {
    const auto found = checked_.find(id);
    return found == checked_.end() ? Span{} : Span{0, found->second - 1};
  }
  if (!value.producer.valid() || info(value.type.dtype).is_float || depth > kDeepest) return {};
  if (const auto found = known.find(id); found != known.end()) return found->second;
  const Span span = made_by(graph_.node(value.producer), id, ignored, depth, known);
  known.emplace(id, span);
  return span;
}

IndexRange::Span IndexRange::made_by(const Node& node, ValueId id, std::optional<int64_t> ignored,
                                     int depth, Known& known) const {
  const auto of = [&](size_t i) { return span_of(node.inputs[i], ignored, depth + 1, known); };
  // What computes with elements must not take the ignored one for another.
  const auto exact = [&](size_t i) {
    Known own;
    return span_of(node.inputs[i], std::nullopt, depth + 1, ignored ? own : known);
  };
  const auto hull = [](Span a, Span b) {
    return Span{std::min(a.low, b.low), std::max(a.high, b.high)};
  };
  const std::string& op = node.op;
  const OpDef* def = find_op(op);
  if (def && def->elements != OpDef::Elements::kMade) return of(0);
  if (op == "Cast" && !info(graph_.value(node.inputs[0]).type.dtype).is_float) return of(0);
  if (op == "Expand" || op == "GatherElements" || op == "GatherND") return of(0);
  if (op == "Gather") return hull(of(0), {0, 0});  // of an index that is outside: 0
  if (op == "Where") return hull(of(1), of(2));
  if (op == "Concat") {
    Span all = of(0);
    for (size_t i = 1; i < node.inputs.size(); ++i) all = hull(all, of(i));
    return all;
  }
  if (op == "Pad") {
    const auto filler = static_cast<int64_t>(node.attrs.real("value"));
    return filler == ignored ? of(0) : hull(of(0), {filler, filler});
  }
  if (op == "TopK" && node.outputs.size() > 1 && node.outputs[1] == id) {
    const auto axis = static_cast<size_t>(node.attrs.integer("axis"));
    return {0, graph_.value(node.inputs[0]).type.shape[axis] - 1};
  }
  if (op == "Max" || op == "Min") {
    const Span a = exact(0), b = exact(1);
    return op == "Max" ? Span{std::max(a.low, b.low), std::max(a.high, b.high)}
                       : Span{std::min(a.low, b.low), std::min(a.high, b.high)};
  }
  if (op == "Add") {
    const Span a = exact(0), b = exact(1);
    return {plus(a.low, b.low), plus(a.high, b.high)};
  }
  if (op == "Sub") {
    const Span a = exact(0), b = exact(1);
    if (b.low == INT64_MIN || b.high == INT64_MAX) return {};
    return {a.low == INT64_MIN ? a.low : plus(a.low, -b.high),
            a.high == INT64_MAX ? a.high : plus(a.high, -b.low)};
  }
  if (op == "Mod") {
    const Span by = exact(1);
    if (by.low <= 0 || by.high == INT64_MAX) return {};
    const bool keeps_sign = node.attrs.integer("fmod") != 0 && exact(0).low < 0;
    return {keeps_sign ? 1 - by.high : 0, by.high - 1};
  }
  return {};
}

}  // namespace piper
