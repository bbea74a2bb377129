// Attention and its gradient in products, masks and exponentials.
#include <algorithm>
#include <limits>

#include "ops/expand.h"

namespace piper::patterns {
namespace {

using ExpandAttentionValues = std::vector<ValueId>;

class ExpandAttentionExpansion {
 public:
  ExpandAttentionExpansion(Builder& build, const Node& node, size_t mask)
      : b_(build), node_(node), first_(node.attrs.integers("tokens_first")) {
    q_ = heads_first(node.inputs[0], 0);
    k_ = heads_first(node.inputs[1], 1);
    v_ = heads_first(node.inputs[2], 2);
    kv_heads_ = b_.shape(k_)[1];
    k_ = repeated(k_);
    v_ = repeated(v_);
    if (node.inputs.size() > mask) mask_ = node.inputs[mask];
  }

  ExpandAttentionValues forward() {
    const ValueId s = scores();
    const ValueId zero = number(0), lowest = number(-std::numeric_limits<double>::infinity());
    const Attrs over_keys{{"axes", std::vector<int64_t>{3}}, {"keepdims", int64_t{1}}};
    ValueId top = b_.op1("ReduceMax", {s}, over_keys);
    top = b_.op1("Where", {b_.op1("Equal", {top, lowest}), zero, top});
    const ValueId e = b_.op1("Exp", {b_.sub(s, top)}), sum = b_.reduce_sum(e, {3}, true);
    const ValueId none = b_.op1("Equal", {sum, zero});
    const ValueId safe = b_.op1("Where", {none, number(1), sum});
    const ValueId y = b_.matmul(b_.div(e, safe), v_);
    const ValueId lse =
        b_.op1("Where", {none, number(greatest()), b_.add(top, b_.op1("Log", {safe}))});
    const TensorType saved = b_.type(node_.outputs[1]);
    return {back(y, 3), b_.reshape(cast(lse, saved.dtype), saved.shape)};
  }

  ExpandAttentionValues backward() {
    const ValueId s = scores();
    const ValueId y = heads_first(node_.inputs[3], 3), dy = heads_first(node_.inputs[5], 3);
    Shape column = b_.shape(node_.inputs[4]);
    column.push_back(1);
    const ValueId p =
        b_.op1("Exp", {b_.sub(s, b_.reshape(cast(node_.inputs[4], b_.type(q_).dtype), column))});
    const ValueId dot = b_.reduce_sum(b_.mul(dy, y), {3}, true);
    ValueId g = b_.mul(p, b_.sub(b_.matmul(dy, v_, false, true), dot));
    const ValueId of_mask = g;
    if (boolean()) g = b_.op1("Where", {mask_, g, number(0)});
    if (bent_.valid()) g = b_.mul(g, b_.sub(number(1), b_.mul(bent_, bent_)));
    g = b_.mul(g, number(node_.attrs.real("scale")));
    ExpandAttentionValues made{back(b_.matmul(g, k_), 0),
                               back(of_groups(b_.matmul(g, q_, true)), 1),
                               back(of_groups(b_.matmul(p, dy, true)), 2)};
    if (node_.outputs.size() > 3) made.push_back(b_.sum_to(of_mask, Shape(b_.shape(mask_))));
    return made;
  }

 private:
  ValueId number(double value) { return b_.scalar(value, b_.type(q_).dtype); }
  ValueId cast(ValueId id, DType to) {
    if (b_.type(id).dtype == to) return id;
    return b_.op1("Cast", {id}, {{"to", std::string(info(to).name)}});
  }
  double greatest() const {
    return b_.type(q_).dtype == DType::kF64 ? std::numeric_limits<double>::max()
                                            : std::numeric_limits<float>::max();
  }
  bool boolean() const { return mask_.valid() && b_.type(mask_).dtype == DType::kBool; }
  ValueId heads_first(ValueId id, size_t operand) {
    return first_[operand] ? b_.transpose(id, {0, 2, 1, 3}) : id;
  }
  ValueId back(ValueId id, size_t operand) { return heads_first(id, operand); }
  ValueId repeated(ValueId id) {
    const Shape s = b_.shape(id);
    const int64_t times = b_.shape(q_)[1] / s[1];
    const ValueId wide =
        b_.expand(b_.reshape(id, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], times, s[2], s[3]});
    return b_.reshape(wide, {s[0], s[1] * times, s[2], s[3]});
  }
  // The sum over the query heads that share a head of keys.
  ValueId of_groups(ValueId id) {
    const Shape s = b_.shape(id);
    if (s[1] == kv_heads_) return id;
    return b_.reduce_sum(b_.reshape(id, {s[0], kv_heads_, s[1] / kv_heads_, s[2], s[3]}), {2},
                         false);
  }

  ValueId scores() {
    const double scale = node_.attrs.real("scale"), cap = node_.attrs.real("softcap");
    ValueId s = b_.mul(b_.matmul(q_, k_, false, true), number(cap > 0 ? scale / cap : scale));
    if (cap > 0) {
      bent_ = b_.op1("Tanh", {s});
      s = b_.mul(bent_, number(cap));
    }
    const double lowest = -std::numeric_limits<double>::infinity();
    if (boolean()) {
      s = b_.op1("Where", {mask_, s, number(node_.attrs.real("masked_score", lowest))});
    } else if (mask_.valid()) {
      s = b_.add(s, mask_);
    }
    if (node_.attrs.integer("causal") == 0) return s;
    return b_.op1("Where", {causal_mask(b_.shape(s)[2], b_.shape(s)[3]), s, number(lowest)});
  }

  ValueId causal_mask(int64_t queries, int64_t keys) {
    std::string seen(static_cast<size_t>(queries * keys), '\0');
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t n = std::clamp<int64_t>(i + node_.attrs.integer("offset") + 1, 0, keys);
      std::fill_n(seen.begin() + i * keys, n, '\1');
    }
    return b_.constant({DType::kBool, {queries, keys}}, Bytes::copy_of(seen.data(), seen.size()));
  }

  Builder& b_;
  const Node& node_;
  std::vector<int64_t> first_;
  ValueId q_, k_, v_, mask_, bent_;
  int64_t kv_heads_ = 1;
};

}  // namespace

std::vector<ValueId> expand_attention(Builder& build, const Node& node) {
  return ExpandAttentionExpansion(build, node, 3).forward();
}
std::vector<ValueId> expand_attention_grad(Builder& build, const Node& node) {
  return ExpandAttentionExpansion(build, node, 6).backward();
}

}  // namespace piper::patterns
