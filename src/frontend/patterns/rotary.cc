// Rotary positions as exporters write them.

#include <map>

#include "match.h"
#include "piper/ir/ops.h"

namespace piper::patterns {
namespace {

struct RotaryFound {
  ValueId x, cos, sin;  // the tables of x's whole width
};

class RotaryFinder {
 public:
  explicit RotaryFinder(const Graph& graph) : graph_(graph), match_(graph) {}

  // Finds x · cos + Concat(-second half of x, first half) · sin, in any order.
  std::optional<RotaryFound> find(const Node& node) const {
    if (node.op != "Add") return std::nullopt;
    for (const size_t side : {size_t{0}, size_t{1}}) {
      const Node* straight = match_.sole(node.inputs[side], "Mul");
      const Node* turned = match_.sole(node.inputs[1 - side], "Mul");
      if (!straight || !turned) continue;
      for (const size_t a : {size_t{0}, size_t{1}}) {
        for (const size_t b : {size_t{0}, size_t{1}}) {
          const RotaryFound found{straight->inputs[a], straight->inputs[1 - a],
                                  turned->inputs[1 - b]};
          if (shape(found.x) == shape(node.outputs[0]) && is_turned(turned->inputs[b], found.x) &&
              fits(found.cos, found.x) && fits(found.sin, found.x) &&
              shape(found.cos) == shape(found.sin))
            return found;
        }
      }
    }
    return std::nullopt;
  }

  // Returns the first half of a table whose halves are equal, and proved to be: a constant, or
  // elementwise from a value beside itself.
  std::optional<ValueId> half(Builder& build, ValueId table) const {
    if (!repeats(table)) return std::nullopt;
    const Shape whole = shape(table);
    Shape ends = whole;
    ends.back() /= 2;
    const auto n = static_cast<size_t>(whole.back());
    const Value& value = graph_.value(table);
    if (value.kind == ValueKind::kConstant) {
      const size_t bytes = static_cast<size_t>(info(value.type.dtype).bytes) * n / 2;
      std::string halves;
      for (size_t at = 0; at < value.data.size; at += 2 * bytes)
        halves.append(reinterpret_cast<const char*>(value.data.data) + at, bytes);
      return build.constant({value.type.dtype, ends}, Bytes::copy_of(halves.data(), halves.size()));
    }
    return build.op1("Slice", {table},
                     {{"starts", std::vector<int64_t>(whole.size(), 0)},
                      {"ends", ends},
                      {"steps", std::vector<int64_t>(whole.size(), 1)}});
  }

 private:
  const Shape& shape(ValueId id) const { return graph_.value(id).type.shape; }

  bool fits(ValueId table, ValueId x) const {
    const Shape &t = shape(table), &all = shape(x);
    if (t.empty() || t.size() > all.size() || t.back() != all.back()) return false;
    for (size_t d = 0; d < t.size(); ++d)
      if (t[d] != 1 && t[d] != all[all.size() - t.size() + d]) return false;
    return repeats(table);
  }

  bool is_turned(ValueId id, ValueId x) const {
    const Node* concat = match_.sole(id, "Concat");
    const auto rank = static_cast<int64_t>(shape(x).size());
    if (!concat || concat->inputs.size() != 2 || concat->attrs.integer("axis") != rank - 1)
      return false;
    const Node* negative = match_.sole(concat->inputs[0], "Neg");
    return negative && is_half(negative->inputs[0], x, 1) && is_half(concat->inputs[1], x, 0);
  }

  bool is_half(ValueId id, ValueId x, int64_t which) const {
    const Node* slice = match_.sole(id, "Slice");
    if (!slice || slice->inputs[0] != x || shape(x).back() % 2 != 0) return false;
    const Shape& all = shape(x);
    const auto starts = slice->attrs.integers("starts"), steps = slice->attrs.integers("steps");
    for (size_t d = 0; d + 1 < all.size(); ++d)
      if (shape(id)[d] != all[d] || starts[d] != 0 || steps[d] != 1) return false;
    return shape(id).back() == all.back() / 2 && steps.back() == 1 &&
           starts.back() == which * all.back() / 2;
  }

  // All layers read the same tables.
  bool repeats(ValueId table) const {
    const auto [known, is_new] = repeats_.try_emplace(table);
    if (is_new) known->second = is_repetition(table);
    return known->second;
  }
  static bool halves_are_equal(const std::vector<double>& elements, int64_t n) {
    for (size_t i = 0; i < elements.size(); i += static_cast<size_t>(n)) {
      for (size_t j = i; j < i + static_cast<size_t>(n / 2); ++j)
        if (elements[j] != elements[j + static_cast<size_t>(n / 2)]) return false;
    }
    return true;
  }

  bool is_repetition(ValueId table) const {
    const int64_t n = shape(table).back();
    if (n % 2 != 0) return false;
    if (const auto elements = match_.elements(table)) return halves_are_equal(*elements, n);
    const Node* node = match_.producer(table);
    if (!node) return false;
    if (node->op == "Concat" && node->inputs.size() == 2)
      return node->inputs[0] == node->inputs[1] &&
             node->attrs.integer("axis") == static_cast<int64_t>(shape(table).size()) - 1;
    if (node->op == "Mul" && match_.scalar(node->inputs[1])) return repeats(node->inputs[0]);
    const bool kept = node->op == "Cos" || node->op == "Sin" || node->op == "Cast";
    if (kept) return repeats(node->inputs[0]);
    const bool moved = node->op == "Reshape" && shape(node->inputs[0]).back() == n;
    return moved && repeats(node->inputs[0]);
  }

  const Graph& graph_;
  const Matcher match_;
  mutable std::map<ValueId, bool> repeats_;
};

// Returns a value under another shape of the same elements: of a constant, a constant.
ValueId reshaped(Builder& build, ValueId id, Shape shape) {
  const Value& value = build.graph().value(id);
  if (value.kind != ValueKind::kConstant) return build.reshape(id, std::move(shape));
  const TensorType type{value.type.dtype, std::move(shape)};
  const Bytes data = value.data;
  return build.constant(type, data);
}

// Holds a table's first half, for heads or for tokens first.
struct Half {
  ValueId table;
  bool tokens_first = false;
  ValueId made;
};

class RotaryWriter {
 public:
  explicit RotaryWriter(Graph& graph) : graph_(graph), finder_(graph), match_(graph) {}

  Count run() {
    std::vector<std::pair<size_t, RotaryFound>> found;
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      if (const auto rotary = finder_.find(graph_.nodes[i])) found.emplace_back(i, *rotary);
    for (const auto& [i, rotary] : found) write(i, rotary);
    return static_cast<Count>(found.size());
  }

 private:
  // Heads are turned before they change places with tokens, where they did so after their
  // projection: a transposition then is last, and attention takes it in.
  void write(size_t index, const RotaryFound& rotary) {
    const std::vector<int64_t> swap{0, 2, 1, 3};
    Builder build(graph_);
    const Node last = graph_.nodes[index];
    build.scope = last.scope;
    build.tags = last.tags;
    build.name_prefix = last.name + "/";
    const size_t rank = build.shape(rotary.x).size();
    const Node* transpose = match_.producer(rotary.x);
    const bool swapped =
        transpose && transpose->op == "Transpose" && transpose->attrs.integers("perm") == swap;
    const ValueId x = swapped ? transpose->inputs[0] : rotary.x;
    const ValueId cos = half(build, rotary.cos, rank, swapped);
    const ValueId sin = half(build, rotary.sin, rank, swapped);
    const ValueId turned = build.op1("Rotary", {x, cos, sin});
    become(graph_, index, {swapped ? build.transpose(turned, swap) : turned});
  }

  ValueId half(Builder& build, ValueId table, size_t rank, bool tokens_first) {
    for (const Half& known : halves_)
      if (known.table == table && known.tokens_first == tokens_first &&
          build.shape(known.made).size() == rank)
        return known.made;
    const auto own = finder_.half(build, table);
    PIPER_CHECK(own.has_value(), "a table that repeated does no more");
    Shape shape = build.shape(*own);
    while (shape.size() < rank) shape.insert(shape.begin(), 1);
    ValueId made = *own;
    if (tokens_first && shape[1] == 1) {
      made = reshaped(build, made, {shape[0], shape[2], 1, shape[3]});
    } else {
      made = reshaped(build, made, shape);
      if (tokens_first) made = build.transpose(made, {0, 2, 1, 3});
    }
    halves_.push_back({table, tokens_first, made});
    return made;
  }

  Graph& graph_;
  const RotaryFinder finder_;
  const Matcher match_;
  std::vector<Half> halves_;
};

}  // namespace

Count recognise_rotary(Graph& graph) { return RotaryWriter(graph).run(); }

}  // namespace piper::patterns
