// Attention in every form that exporters and people write: found, with the loss and the gradients
// of the graph as it was, in double precision; and left alone where one thing is another.
#include <cmath>
#include <functional>

#include "evaluate.h"
#include "piper/frontend/autodiff.h"
#include "piper/frontend/patterns.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

using test::must;
using test::Tensor;
using test::Values;

constexpr int64_t kB = 2, kH = 4, kT = 5, kS = 5, kD = 3;
constexpr double kLowest = -3.4028234663852886e38, kMost = 1.7976931348623157e308, kInf = INFINITY;

// A graph of floats under construction. Floats are parameters times an input that is one, so that
// adjoints go through values that depend on inputs.
class Form {
 public:
  explicit Form(DType dtype = DType::kF64) : b(graph), type(dtype) {
    Value one{.name = "one", .type = {type, {}}, .kind = ValueKind::kInput};
    graph.inputs.push_back(graph.add_value(one));
  }
  ValueId floats(Shape shape) {
    Value value{.name = fmt::format("p{}", graph.params.size()), .kind = ValueKind::kState};
    value.type = {type, std::move(shape)};
    value.data = test::to_bytes(test::draw(value.type, random_, -1, 1, 1));
    Param param;
    param.name = param.scope = value.name;
    param.value = graph.add_value(std::move(value));
    graph.params.push_back(param);
    return b.mul(param.value, graph.inputs[0]);
  }
  // By element, known in a step alone.
  ValueId booleans(Shape shape, std::function<bool(size_t)> element) {
    Value value{.name = fmt::format("c{}", graph.inputs.size()), .kind = ValueKind::kInput};
    value.type = {DType::kBool, std::move(shape)};
    Tensor tensor{value.type, {}};
    for (size_t i = 0; i < static_cast<size_t>(num_elements(value.type.shape)); ++i)
      tensor.values.push_back(element(i));
    given.push_back(std::move(tensor));
    graph.inputs.push_back(graph.add_value(std::move(value)));
    return graph.inputs.back();
  }
  ValueId number(double value) { return b.scalar(value, type); }
  ValueId constant(const Shape& shape, DType dtype, const std::function<double(size_t)>& element) {
    Tensor tensor{{dtype, shape}, {}};
    for (size_t i = 0; i < static_cast<size_t>(num_elements(shape)); ++i)
      tensor.values.push_back(element(i));
    return b.constant(tensor.type, test::to_bytes(tensor));
  }
  ValueId op(std::string_view name, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return b.op1(name, std::move(inputs), std::move(attrs));
  }
  ValueId softmax(ValueId x, int64_t axis = -1) {
    const auto rank = static_cast<int64_t>(b.shape(x).size());
    return op("Softmax", {x}, {{"axis", axis < 0 ? rank + axis : axis}});
  }
  ValueId where(ValueId condition, ValueId yes, ValueId no) {
    return op("Where", {condition, yes, no});
  }
  ValueId swap(ValueId x) {
    const auto rank = static_cast<int64_t>(b.shape(x).size());
    std::vector<int64_t> perm;
    for (int64_t d = 0; d < rank - 2; ++d) perm.push_back(d);
    perm.insert(perm.end(), {rank - 1, rank - 2});
    return b.transpose(x, perm);
  }
  // q, k and v of as many heads each, [batch, heads, tokens, width].
  struct Heads {
    ValueId q, k, v;
  };
  Heads heads(int64_t kv = kH, int64_t keys = kS) {
    return {floats({kB, kH, kT, kD}), floats({kB, kv, keys, kD}), floats({kB, kv, keys, kD})};
  }
  ValueId repeated(ValueId x, int64_t times) {
    const Shape s = b.shape(x);
    const ValueId wide =
        b.expand(b.reshape(x, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], times, s[2], s[3]});
    return b.reshape(wide, {s[0], s[1] * times, s[2], s[3]});
  }
  ValueId scores(ValueId q, ValueId k, double scale = 0.6) {
    return b.mul(b.matmul(q, swap(k)), number(scale));
  }
  ValueId all_but_last(ValueId x) {
    Shape ends = b.shape(x);
    --ends.back();
    const std::vector<int64_t> starts(ends.size(), 0), steps(ends.size(), 1);
    return op("Slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
  }
  ValueId padding() {  // the second sample has no keys at all, the first all but the last
    return booleans({kB, 1, 1, kS}, [](size_t i) { return i < kS - 1; });
  }
  ValueId some_padding() {
    return booleans({kB, 1, 1, kS}, [](size_t i) { return i % 4 != 2; });
  }
  ValueId other_padding() {
    return booleans({1, kH, kT, kS}, [](size_t i) { return i % 3 != 0; });
  }
  ValueId later() {  // a causal mask of terms
    return constant({kT, kS}, DType::kF64, [](size_t i) { return i % kS > i / kS ? -kInf : 0.0; });
  }

  Graph graph;
  Builder b;
  const DType type;
  std::vector<Tensor> given;  // inputs behind the first

 private:
  std::mt19937_64 random_{11};
};

struct Case {
  const char* name;
  std::function<ValueId(Form&)> build;
  bool found = true;
  Attrs attrs = {};        // that the op has
  size_t heads_of_k = kH;  // 0: not looked at
};

// As PyTorch's exporter writes scaled_dot_product_attention(enable_gqa=True) below opset 23.
ValueId grouped_keys(Form& f, ValueId k, int64_t times) {
  const Shape s = f.b.shape(k);
  ValueId wide =
      f.b.expand(f.b.reshape(k, {s[0], s[1], 1, s[2], s[3]}), {s[0], s[1], times, s[2], s[3]});
  wide = f.b.transpose(f.b.reshape(wide, {s[0] * s[1] * times, s[2], s[3]}), {0, 2, 1});
  return f.b.mul(f.b.reshape(wide, {s[0], s[1] * times, s[3], s[2]}), f.number(0.7));
}
ValueId guarded(Form& f, ValueId weights) {
  return f.where(f.op("IsNaN", {weights}), f.number(0), weights);
}

const Case kCases[] = {
    {"grouped_as_exported",
     [](Form& f) {
       auto h = f.heads(2);
       const ValueId q = f.b.mul(h.q, f.number(0.7));
       const ValueId s = f.b.add(f.b.matmul(q, grouped_keys(f, h.k, 2)), f.later());
       return f.b.matmul(guarded(f, f.softmax(s)), f.repeated(h.v, 2));
     },
     true,
     {{"causal", int64_t{1}}},
     2},
    {"one_head_of_keys",
     [](Form& f) {
       auto h = f.heads(1);
       return f.b.matmul(f.softmax(f.scores(h.q, f.repeated(h.k, kH))), f.repeated(h.v, kH));
     },
     true,
     {},
     1},
    {"one_head_of_keys_broadcast",
     [](Form& f) {
       auto h = f.heads(1);
       return f.b.matmul(f.softmax(f.scores(h.q, h.k)), h.v);
     },
     true,
     {},
     1},
    {"groups_in_five_dims",
     [](Form& f) {
       const ValueId q = f.floats({kB, 2, 2, kT, kD}), k = f.floats({kB, 2, 1, kS, kD}),
                     v = f.floats({kB, 2, 1, kS, kD});
       return f.b.matmul(f.softmax(f.scores(q, k)), v);
     },
     true,
     {},
     2},
    {"keys_grouped_and_values_not",
     [](Form& f) {
       auto h = f.heads(2);
       return f.b.matmul(f.softmax(f.scores(h.q, f.repeated(h.k, 2))), f.floats({kB, kH, kS, 4}));
     }},
    {"heads_repeated_one_after_the_other",  // not each for its neighbours: stays repeated
     [](Form& f) {
       auto h = f.heads(2);
       const ValueId k = f.op("Concat", {h.k, h.k}, {{"axis", int64_t{1}}}),
                     v = f.op("Concat", {h.v, h.v}, {{"axis", int64_t{1}}});
       return f.b.matmul(f.softmax(f.scores(h.q, k)), v);
     }},
    {"samples_and_heads_in_one_dim",
     [](Form& f) {
       const auto one = [&] {
         const ValueId x = f.b.reshape(f.floats({kB, kT, kH * kD}), {kB, kT, kH, kD});
         return f.b.reshape(f.b.transpose(x, {0, 2, 1, 3}), {kB * kH, kT, kD});
       };
       const ValueId q = one(), k = one(), v = one();
       const ValueId s = f.b.reshape(f.scores(q, k), {kB, kH, kT, kS});
       const ValueId masked = f.where(
           f.booleans({kB, 1, kT, kS}, [](size_t i) { return i % 4 != 1; }), s, f.number(kLowest));
       return f.b.matmul(f.b.reshape(f.softmax(masked), {kB * kH, kT, kS}), v);
     }},
    {"tokens_before_samples",
     [](Form& f) {
       const auto one = [&] {
         return f.b.transpose(f.b.reshape(f.floats({kT, kB, kH * kD}), {kT, kB * kH, kD}),
                              {1, 0, 2});
       };
       const ValueId q = one(), k = one(), v = one();
       const ValueId y = f.b.matmul(f.softmax(f.scores(q, k)), v);
       return f.b.reshape(f.b.transpose(y, {1, 0, 2}), {kT, kB, kH * kD});
     },
     true,
     {},
     0},
    {"windows_with_their_masks",
     [](Form& f) {  // two windows of each sample
       const auto one = [&] { return f.floats({kB * 2, kH, kT, kD}); };
       const ValueId q = one(), k = one(), v = one();
       const ValueId apart = f.b.reshape(f.scores(q, k), {kB, 2, kH, kT, kS});
       const ValueId mask = f.constant({1, 2, 1, kT, kS}, DType::kF64,
                                       [](size_t i) { return i % 7 == 3 ? -100.0 : 0.0; });
       return f.b.matmul(f.softmax(f.b.reshape(f.b.add(apart, mask), {kB * 2, kH, kT, kS})), v);
     }},
    {"scale_by_head",
     [](Form& f) {
       auto h = f.heads();
       return f.b.matmul(f.softmax(f.b.mul(f.b.matmul(h.q, f.swap(h.k)), f.floats({kH, 1, 1}))),
                         h.v);
     }},
    {"scale_that_is_learned",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.b.div(f.b.matmul(h.q, f.swap(h.k)), f.b.add(f.floats({1}), f.number(3)));
       return f.b.matmul(f.softmax(s), h.v);
     }},
    {"scale_behind_a_bias",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.b.add(f.b.matmul(h.q, f.swap(h.k)), f.floats({kH, kT, kS}));
       return f.b.matmul(f.softmax(f.b.mul(s, f.number(0.3))), h.v);
     }},
    {"negative_scale",
     [](Form& f) {
       auto h = f.heads();
       return f.b.matmul(f.softmax(f.b.neg(f.scores(h.q, h.k))), h.v);
     }},
    {"bias_subtracted",
     [](Form& f) {
       auto h = f.heads();
       return f.b.matmul(f.softmax(f.b.sub(f.scores(h.q, h.k), f.floats({1, kH, 1, kS}))), h.v);
     }},
    {"greatest_subtracted",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.scores(h.q, h.k);
       const ValueId top =
           f.op("ReduceMax", {s}, {{"axes", std::vector<int64_t>{3}}, {"keepdims", int64_t{1}}});
       return f.b.matmul(f.softmax(f.b.sub(s, top)), h.v);
     }},
    {"a_sink_beside_the_keys",
     [](Form& f) {
       auto h = f.heads(2);
       const ValueId s = f.b.add(f.scores(h.q, f.repeated(h.k, 2)), f.later());
       const ValueId sink = f.b.expand(f.b.reshape(f.floats({kH}), {1, kH, 1, 1}), {kB, kH, kT, 1});
       const ValueId both = f.op("Concat", {s, sink}, {{"axis", int64_t{3}}});
       const ValueId top =
           f.op("ReduceMax", {both}, {{"axes", std::vector<int64_t>{3}}, {"keepdims", int64_t{1}}});
       return f.b.matmul(f.all_but_last(f.softmax(f.b.sub(both, top))), f.repeated(h.v, 2));
     },
     true,
     {{"causal", int64_t{1}}, {"offset", int64_t{1}}},
     2},
    {"a_sink_beside_hidden_keys",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.where(f.padding(), f.scores(h.q, h.k), f.number(kLowest));
       const ValueId both = f.op("Concat", {s, f.floats({kB, kH, kT, 1})}, {{"axis", int64_t{3}}});
       return f.b.matmul(f.all_but_last(f.softmax(both)), h.v);
     }},
    {"two_conditions",
     [](Form& f) {
       auto h = f.heads();
       ValueId s = f.where(f.other_padding(), f.scores(h.q, h.k), f.number(-1e9));
       s = f.where(f.op("Not", {f.some_padding()}), f.number(-1e9), s);
       return f.b.matmul(f.softmax(s), h.v);
     }},
    {"condition_and_bias",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.b.add(f.scores(h.q, h.k), f.floats({1, kH, kT, kS}));
       return f.b.matmul(f.softmax(f.where(f.other_padding(), s, f.number(-kInf))), h.v);
     }},
    {"bias_behind_a_condition",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.where(f.other_padding(), f.scores(h.q, h.k), f.number(-kInf));
       return f.b.matmul(f.softmax(f.b.add(s, f.floats({1, kH, kT, kS}))), h.v);
     }},
    {"terms_that_hide_all_keys",  // the mean of all values, with gradients of q and k
     [](Form& f) {
       auto h = f.heads();
       const ValueId term = f.where(f.padding(), f.number(0), f.number(kLowest));
       return f.b.matmul(f.softmax(f.b.add(f.scores(h.q, h.k), term)), h.v);
     }},
    {"terms_of_a_product_that_hide_all_keys",
     [](Form& f) {
       auto h = f.heads(2);
       const ValueId seen = f.b.cast(f.padding(), f.type);
       const ValueId term = f.b.mul(f.b.sub(f.number(1), seen), f.number(-1e32));
       return f.b.matmul(f.softmax(f.b.add(f.scores(h.q, f.repeated(h.k, 2)), term)),
                         f.repeated(h.v, 2));
     },
     true,
     {},
     2},
    {"bias_and_terms_that_hide_all_keys",  // the bias has a gradient in rows without keys, too
     [](Form& f) {
       auto h = f.heads();
       const ValueId term = f.where(f.padding(), f.number(0), f.number(-kMost));
       const ValueId both = f.b.add(f.floats({1, kH, kT, kS}), term);
       return f.b.matmul(f.softmax(f.b.add(f.scores(h.q, h.k), both)), h.v);
     }},
    {"conditions_that_hide_all_keys",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.where(f.padding(), f.scores(h.q, h.k), f.number(kLowest));
       return f.b.matmul(f.softmax(s), h.v);
     }},
    {"terms_that_hide_all_keys_up_to_the_query",
     [](Form& f) {
       auto h = f.heads();
       const ValueId first = f.booleans({kB, 1, 1, kS}, [](size_t i) { return i % kS > 1; });
       const ValueId term = f.where(first, f.number(0), f.number(kLowest));
       return f.b.matmul(f.softmax(f.b.add(f.b.add(f.scores(h.q, h.k), term), f.later())), h.v);
     },
     true,
     {{"causal", int64_t{1}}}},
    {"terms_of_queries_that_hide_all_keys",
     [](Form& f) {
       auto h = f.heads();
       const ValueId seen = f.booleans({kB, 1, kT, 1}, [](size_t i) { return i % 3 != 1; });
       const ValueId term = f.where(seen, f.number(0), f.number(kLowest));
       return f.b.matmul(f.softmax(f.b.add(f.scores(h.q, h.k), term)), h.v);
     }},
    {"weights_of_hidden_keys_put_to_zero",
     [](Form& f) {
       auto h = f.heads();
       const ValueId seen = f.padding();
       const ValueId w = f.softmax(f.where(seen, f.scores(h.q, h.k), f.number(kLowest)));
       return f.b.matmul(f.where(seen, w, f.number(0)), h.v);
     }},
    {"rows_without_keys_as_imported",
     [](Form& f) {
       auto h = f.heads();
       const ValueId seen = f.padding();
       const ValueId s = f.b.add(f.scores(h.q, h.k), f.where(seen, f.number(0), f.number(kLowest)));
       return f.b.matmul(f.where(seen, f.softmax(s), f.number(0)), h.v);
     }},
    {"rows_without_keys_of_a_constant",  // the importer makes one of Where of a constant
     [](Form& f) {
       auto h = f.heads();
       const auto is_seen = [](size_t i) { return i % kS <= i / kS && i / kS != 2; };
       const ValueId seen = f.constant({kT, kS}, DType::kBool, is_seen),
                     term = f.constant({1, 1, kT, kS}, DType::kF64,
                                       [=](size_t i) { return is_seen(i) ? 0 : kLowest; });
       const ValueId w = f.softmax(f.b.add(f.scores(h.q, h.k), term));
       return f.b.matmul(f.where(seen, w, f.number(0)), h.v);
     }},
    {"causal_and_padding_in_one_condition",
     [](Form& f) {
       auto h = f.heads();
       const ValueId causal =
           f.constant({kT, kS}, DType::kBool, [](size_t i) { return i % kS <= i / kS; });
       const ValueId seen = f.op("And", {causal, f.padding()});
       const ValueId s = f.where(seen, f.scores(h.q, h.k), f.number(kLowest));
       return f.b.matmul(f.where(seen, f.softmax(s), f.number(0)), h.v);
     },
     true,
     {{"causal", int64_t{1}}}},
    {"causal_by_sample_alike",
     [](Form& f) {
       auto h = f.heads();
       const ValueId causal = f.constant({kB, 1, kT, kS}, DType::kF64, [](size_t i) {
         return i % kS > i / kS % kT ? -kInf : 0.0;
       });
       return f.b.matmul(f.softmax(f.b.add(f.scores(h.q, h.k), causal)), h.v);
     },
     true,
     {{"causal", int64_t{1}}}},
    {"sliding_window",
     [](Form& f) {
       auto h = f.heads();
       const ValueId window = f.constant({kT, kS}, DType::kF64, [](size_t i) {
         const size_t q = i / kS, k = i % kS;
         return k > q || k + 2 <= q ? kLowest : 0.0;
       });
       return f.b.matmul(f.softmax(f.b.add(f.scores(h.q, h.k), window)), h.v);
     }},
    {"capped_and_causal",
     [](Form& f) {
       auto h = f.heads();
       const ValueId bent =
           f.b.mul(f.op("Tanh", {f.b.div(f.scores(h.q, h.k), f.number(3))}), f.number(3));
       return f.b.matmul(f.softmax(f.b.add(bent, f.later())), h.v);
     },
     true,
     {{"causal", int64_t{1}}, {"softcap", 3.0}}},
    {"values_before_weights",
     [](Form& f) {  // of pictures: channels before places
       const ValueId q = f.floats({kB, kT, kD}), k = f.floats({kB, kS, kD}),
                     v = f.floats({kB, 4, kS});
       return f.b.matmul(v, f.swap(f.softmax(f.scores(q, k))));
     },
     true,
     {},
     0},
    {"keys_before_queries",
     [](Form& f) {
       auto h = f.heads(kH, 6);
       const ValueId s = f.softmax(f.scores(h.k, h.q), 2);
       return f.b.matmul(f.swap(s), h.v);
     }},
    {"heads_last_in_the_scores",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.b.transpose(f.scores(h.q, h.k), {0, 2, 3, 1});
       return f.b.matmul(f.b.transpose(f.softmax(s, 2), {0, 3, 1, 2}), h.v);
     }},
    {"queries_for_all_samples",
     [](Form& f) {
       const ValueId q = f.floats({1, kH, 2, kD}), k = f.floats({kB, kH, kS, kD});
       return f.b.matmul(f.softmax(f.scores(q, k)), f.floats({kB, kH, kS, 4}));
     }},
    {"one_query",
     [](Form& f) {
       const ValueId q = f.floats({kB, kH, 1, kD}), k = f.floats({kB, kH, kS, kD});
       const ValueId s = f.where(f.some_padding(), f.scores(q, k), f.number(-1e9));
       return f.b.matmul(f.softmax(s), f.floats({kB, kH, kS, 4}));
     }},
    {"values_in_another_order",  // reshaped where others transpose: other numbers, computed alike
     [](Form& f) {
       auto h = f.heads();
       const ValueId v = f.b.reshape(f.floats({kB, kS, kH, kD}), {kB, kH, kS, kD});
       return f.b.matmul(f.softmax(f.scores(h.q, h.k)), v);
     }},
    {"heads_of_values_exchanged",
     [](Form& f) {
       auto h = f.heads();
       const ValueId apart = f.b.reshape(f.floats({kB, kH, kS, kD}), {kB, 2, 2, kS, kD});
       const ValueId v = f.b.reshape(f.b.transpose(apart, {0, 2, 1, 3, 4}), {kB, kH, kS, kD});
       return f.b.matmul(f.softmax(f.scores(h.q, h.k)), v);
     }},

    // ---- None ----
    {"softmax_over_queries",
     [](Form& f) {
       auto h = f.heads();
       return f.b.matmul(f.softmax(f.scores(h.q, h.k), 2), h.v);
     },
     false},
    {"softmax_over_heads",
     [](Form& f) {
       auto h = f.heads();
       return f.b.matmul(f.softmax(f.scores(h.q, h.k), 1), h.v);
     },
     false},
    {"values_summed_over_queries",
     [](Form& f) {
       auto h = f.heads();
       return f.b.matmul(f.swap(f.softmax(f.scores(h.q, h.k))), h.v);
     },
     false},
    {"factor_by_key",
     [](Form& f) {
       auto h = f.heads();
       return f.b.matmul(f.softmax(f.b.mul(f.scores(h.q, h.k), f.floats({1, 1, 1, kS}))), h.v);
     },
     false},
    {"factor_behind_a_bias",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.b.add(f.scores(h.q, h.k), f.floats({kT, kS}));
       return f.b.matmul(f.softmax(f.b.mul(s, f.floats({kH, 1, 1}))), h.v);
     },
     false},
    {"weights_hidden_by_another_mask",
     [](Form& f) {
       auto h = f.heads();
       const ValueId w = f.softmax(f.where(f.padding(), f.scores(h.q, h.k), f.number(kLowest)));
       return f.b.matmul(f.where(f.other_padding(), w, f.number(0)), h.v);
     },
     false},
    {"weights_hidden_by_another_constant",
     [](Form& f) {
       auto h = f.heads();
       const ValueId seen =
           f.constant({kT, kS}, DType::kBool, [](size_t i) { return i % kS < i / kS; });
       return f.b.matmul(
           f.where(seen, f.softmax(f.b.add(f.scores(h.q, h.k), f.later())), f.number(0)), h.v);
     },
     false},
    {"weights_hidden_where_scores_are_not_low",
     [](Form& f) {
       auto h = f.heads();
       const ValueId seen = f.padding();
       const ValueId w = f.softmax(f.where(seen, f.scores(h.q, h.k), f.number(-2)));
       return f.b.matmul(f.where(seen, w, f.number(0)), h.v);
     },
     false},
    {"bias_behind_a_number_of_no_size",
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.where(f.padding(), f.scores(h.q, h.k), f.number(-2));
       return f.b.matmul(f.softmax(f.b.add(s, f.floats({1, kH, kT, kS}))), h.v);
     },
     false},
    {"bias_before_the_lowest_number",  // of which no gradient comes, in rows without keys
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.b.add(f.scores(h.q, h.k), f.floats({1, kH, kT, kS}));
       return f.b.matmul(f.softmax(f.where(f.padding(), s, f.number(kLowest))), h.v);
     },
     false},
    {"a_key_without_a_value",  // its weight is lost, and it is no sink
     [](Form& f) {
       auto h = f.heads(kH, kS + 1);
       const ValueId w = f.all_but_last(f.softmax(f.scores(h.q, h.k)));
       return f.b.matmul(w, f.floats({kB, kH, kS, kD}));
     },
     false},
    {"weights_read_twice",
     [](Form& f) {
       auto h = f.heads();
       const ValueId w = f.softmax(f.scores(h.q, h.k));
       return f.b.add(f.b.matmul(w, h.v), f.b.matmul(f.b.mul(w, w), h.v));
     },
     false},
    {"keys_of_all_samples",
     [](Form& f) {
       const ValueId q = f.floats({kB, kH, kT, kD}), k = f.floats({1, kH, kS, kD});
       return f.b.matmul(f.softmax(f.scores(q, k)), f.floats({kB, kH, kS, 4}));
     },
     false},
    {"two_keys_in_one_row",  // a softmax over the keys of two heads
     [](Form& f) {
       auto h = f.heads();
       const ValueId s = f.b.reshape(f.scores(h.q, h.k), {kB, 2, 2, kT, kS});
       const ValueId both = f.b.reshape(f.b.transpose(s, {0, 1, 3, 2, 4}), {kB, 2, kT, 2 * kS});
       const ValueId w = f.b.reshape(f.softmax(both), {kB, 2, kT, 2, kS});
       return f.b.matmul(f.b.reshape(f.b.transpose(w, {0, 1, 3, 2, 4}), {kB, kH, kT, kS}), h.v);
     },
     false},
};

class AttentionForms : public testing::TestWithParam<Case> {};

std::vector<Tensor> loss_and_gradients(const Graph& forward, const std::vector<Tensor>& given) {
  TrainSpec train;
  train.groups.push_back({.match = "**"});
  const Graph step = must(differentiate(forward, train)).graph;
  Values values(step.values.size());
  values[step.inputs[0].index()] = Tensor{step.value(step.inputs[0]).type, {1}};
  for (size_t i = 0; i < given.size(); ++i) values[step.inputs[i + 1].index()] = given[i];
  values = evaluate(step, std::move(values));
  std::vector<Tensor> all{*values[step.loss.index()]};
  for (const Param& param : step.params)
    if (param.gradient.valid()) all.push_back(*values[param.gradient.index()]);
  return all;
}

// The loss is the case's result times drawn numbers.
void build_loss(const Case& c, Form& form) {
  const ValueId y = c.build(form);
  const Shape shape = form.b.shape(y);
  const ValueId slope = form.constant(
      shape, form.type, [](size_t i) { return std::sin(1.0 + static_cast<double>(i)); });
  std::vector<int64_t> axes(shape.size());
  for (size_t d = 0; d < axes.size(); ++d) axes[d] = static_cast<int64_t>(d);
  form.graph.loss = form.b.reduce_sum(form.b.mul(y, slope), axes, false);
  form.graph.outputs = {form.graph.loss};
}

void expect_alike(const Form& form, const Graph& found, double bound) {
  const auto expected = loss_and_gradients(form.graph, form.given),
             made = loss_and_gradients(found, form.given);
  ASSERT_EQ(made.size(), expected.size());
  for (size_t i = 0; i < made.size(); ++i)
    for (size_t e = 0; e < made[i].values.size(); ++e)
      ASSERT_NEAR(made[i].values[e], expected[i].values[e], bound)
          << "value " << i << " element " << e;
}

TEST_P(AttentionForms, AreFoundAndTrainAlike) {
  const Case& c = GetParam();
  Form form;
  build_loss(c, form);
  const Recognised found = must(recognise(form.graph));
  int64_t count = 0;
  for (const Node& node : found.graph.nodes) {
    EXPECT_TRUE(!c.found || node.op != "Softmax") << print_graph(found.graph);
    if (node.op != "Attention") continue;
    ++count;
    for (const auto& [name, value] : c.attrs.items()) {
      ASSERT_NE(node.attrs.find(name), nullptr) << name;
      EXPECT_EQ(*node.attrs.find(name), value) << name;
    }
    const Shape& k = found.graph.value(node.inputs[1]).type.shape;
    const size_t of_heads = node.attrs.integers("tokens_first")[1] ? 2 : 1;
    EXPECT_TRUE(c.heads_of_k == 0 || k[of_heads] == static_cast<int64_t>(c.heads_of_k))
        << to_string(k);
  }
  EXPECT_EQ(count, c.found ? 1 : 0) << print_graph(found.graph);
  EXPECT_EQ(found.left.size(), c.found ? 0u : 1u);
  for (const LeftAttention& left : found.left) EXPECT_NE(left.why, "");
  expect_alike(form, found.graph, 1e-12);
}

INSTANTIATE_TEST_SUITE_P(All, AttentionForms, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

// In single precision, where kernels multiply scores by log₂e: the lowest number stays finite.
TEST(AttentionFormsOfF32, TermsThatHideAllKeysGiveThemEqualWeights) {
  for (const Case& c : kCases) {
    const std::string_view name = c.name;
    if (!name.ends_with("that_hide_all_keys") || name.starts_with("bias")) continue;  // of f64
    SCOPED_TRACE(name);
    Form form(DType::kF32);
    build_loss(c, form);
    const Recognised found = must(recognise(form.graph));
    EXPECT_EQ(found.counts.front().first, "Attention");
    expect_alike(form, found.graph, 2e-6);
  }
}

}  // namespace
}  // namespace piper
