// Every form of a pattern that is looked for: found, as what it is meant to be, with the same
// numbers; and not found where one thing is another.
#include "piper/frontend/patterns.h"

#include <cmath>
#include <functional>

#include "evaluate.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

using test::Tensor;
using Counts = std::vector<std::pair<std::string, int64_t>>;

// A graph of doubles under construction.
class Form {
 public:
  Form() : b(graph) {}
  ValueId input(Shape shape, DType dtype = DType::kF64) {
    Value value;
    value.name = fmt::format("in{}", graph.inputs.size());
    value.type = {dtype, std::move(shape)};
    value.kind = ValueKind::kInput;
    graph.inputs.push_back(graph.add_value(std::move(value)));
    return graph.inputs.back();
  }
  ValueId number(double value) { return b.scalar(value, DType::kF64); }
  ValueId integer(int64_t value) { return b.scalar(static_cast<double>(value), DType::kI64); }
  ValueId constant(const Shape& shape, const std::function<double(size_t)>& element) {
    Tensor tensor{{DType::kF64, shape}, {}};
    for (size_t i = 0; i < static_cast<size_t>(num_elements(shape)); ++i)
      tensor.values.push_back(element(i));
    return b.constant(tensor.type, test::to_bytes(tensor));
  }
  ValueId op(std::string_view name, std::vector<ValueId> inputs, Attrs attrs = {}) {
    return b.op1(name, std::move(inputs), std::move(attrs));
  }
  ValueId constant_labels(const Shape& shape, int64_t value) {
    const Tensor tensor{
        {DType::kI64, shape},
        std::vector<double>(static_cast<size_t>(num_elements(shape)), static_cast<double>(value))};
    return b.constant(tensor.type, test::to_bytes(tensor));
  }
  ValueId mean_of_last(ValueId x) {
    const auto last = static_cast<int64_t>(b.shape(x).size()) - 1;
    return b.div(b.reduce_sum(x, {last}, true), number(static_cast<double>(b.shape(x).back())));
  }
  ValueId softmax(ValueId x) {
    return op("Softmax", {x}, {{"axis", static_cast<int64_t>(b.shape(x).size()) - 1}});
  }
  ValueId slice(ValueId x, int64_t from, int64_t to) {  // of the last dim
    const size_t rank = b.shape(x).size();
    std::vector<int64_t> starts(rank, 0), ends = b.shape(x), steps(rank, 1);
    starts.back() = from;
    ends.back() = to;
    return op("Slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
  }
  Graph graph;
  Builder b;
};

struct Case {
  const char* name;
  std::function<ValueId(Form&)> build;
  Counts found;
};

// ---- Norms --------------------------------------------------------------------------------------

enum class Root { kDiv, kReciprocal, kPow };
ValueId over_root(Form& f, ValueId x, ValueId of, Root how) {
  const ValueId shifted = f.b.add(of, f.number(1e-5));
  if (how == Root::kPow) return f.b.mul(x, f.op("Pow", {shifted, f.number(-0.5)}));
  const ValueId root = f.op("Sqrt", {shifted});
  return how == Root::kDiv ? f.b.div(x, root) : f.b.mul(x, f.op("Reciprocal", {root}));
}
ValueId layer_norm(Form& f, ValueId x, Root how) {
  const ValueId d = f.b.sub(x, f.mean_of_last(x));
  return over_root(f, d, f.mean_of_last(f.b.mul(d, d)), how);
}
ValueId rms_norm(Form& f, ValueId x, Root how) {
  return over_root(f, x, f.mean_of_last(f.b.mul(x, x)), how);
}
ValueId group_norm(Form& f, int64_t channels_of_scale) {
  const ValueId x = f.input({2, 6, 4}), folded = f.b.reshape(x, {2, 3, 8});
  const auto ones = [](size_t) { return 1.0; };
  const auto zeros = [](size_t) { return 0.0; };
  const ValueId norm = f.op("GroupNorm", {folded, f.constant({3}, ones), f.constant({3}, zeros)},
                            {{"groups", int64_t{3}}, {"epsilon", 1e-5}});
  const ValueId y = f.b.reshape(norm, {2, 6, 4});
  return f.b.add(f.b.mul(y, f.input({1, channels_of_scale, 1})),
                 f.input({1, channels_of_scale, 1}));
}

// ---- Attention ----------------------------------------------------------------------------------

struct Heads {
  ValueId q, k, v;
};
Heads heads(Form& f, int64_t kv_heads = 2) {
  return {f.input({2, 2, 5, 4}), f.input({2, kv_heads, 5, 4}), f.input({2, kv_heads, 5, 4})};
}
ValueId scores(Form& f, const Heads& h, double scale = 0.5) {
  return f.b.mul(f.b.matmul(h.q, f.b.transpose(h.k, {0, 1, 3, 2})), f.number(scale));
}
ValueId later_keys(Form& f, double hidden) {  // 0 up to the query's own place
  return f.constant({5, 5}, [=](size_t i) { return i % 5 > i / 5 ? hidden : 0.0; });
}
ValueId repeated(Form& f, ValueId x) {  // one head, twice
  return f.b.reshape(f.b.expand(f.b.reshape(x, {2, 1, 1, 5, 4}), {2, 1, 2, 5, 4}), {2, 2, 5, 4});
}

// ---- Rotary -------------------------------------------------------------------------------------

ValueId rotary(Form& f, bool equal_halves) {
  const ValueId x = f.input({2, 3, 5, 4});
  const auto table = [&](double (*of)(double)) {
    return f.constant({5, 4}, [=](size_t i) {
      const size_t column = equal_halves ? i % 2 : i % 4;
      return of(static_cast<double>((i / 4) * (column + 1)));
    });
  };
  const ValueId turned =
      f.op("Concat", {f.b.neg(f.slice(x, 2, 4)), f.slice(x, 0, 2)}, {{"axis", int64_t{3}}});
  return f.b.add(f.b.mul(x, table([](double t) { return std::cos(t); })),
                 f.b.mul(turned, table([](double t) { return std::sin(t); })));
}

// ---- Cross-entropy ------------------------------------------------------------------------------

struct Picked {
  ValueId logits, labels;
};
Picked picked(Form& f) { return {f.input({3, 4, 7}), f.input({3, 4}, DType::kI64)}; }
ValueId pick(Form& f, const Picked& p, ValueId labels, int64_t axis = 2) {
  const ValueId log = f.op("LogSoftmax", {p.logits}, {{"axis", axis}});
  const ValueId places = f.b.reshape(labels, {3, 4, 1});
  return f.b.reshape(f.op("GatherElements", {log, places}, {{"axis", int64_t{2}}}), {3, 4});
}
ValueId kept(Form& f, const Picked& p) {
  return f.op("Not", {f.op("Equal", {p.labels, f.integer(-100)})});
}
// Log-probabilities [4,1], and which of the labels [4] count: together they make [4,4].
struct ColumnAndMask {
  ValueId rows, keep;
};
ColumnAndMask column_and_mask(Form& f) {
  const ValueId x = f.input({4, 7}), labels = f.input({4}, DType::kI64);
  const ValueId log = f.op("LogSoftmax", {x}, {{"axis", int64_t{1}}});
  const ValueId keep = f.op("Not", {f.op("Equal", {labels, f.integer(-100)})});
  const ValueId safe = f.op("Where", {keep, labels, f.integer(0)});
  return {f.op("GatherElements", {log, f.b.reshape(safe, {4, 1})}, {{"axis", int64_t{1}}}), keep};
}
ValueId all(Form& f, ValueId x) { return f.b.reduce_sum(x, {0, 1}, false); }
ValueId as_float(Form& f, ValueId x) { return f.op("Cast", {x}, {{"to", std::string("f64")}}); }

const Case kCases[] = {
    {"layer_norm_div",
     [](Form& f) {
       return layer_norm(f, f.input({3, 8}), Root::kDiv);
     },
     {{"LayerNorm", 1}}},
    {"layer_norm_reciprocal_scaled",
     [](Form& f) {
       return f.b.mul(layer_norm(f, f.input({3, 8}), Root::kReciprocal), f.input({8}));
     },
     {{"LayerNorm", 1}}},
    {"layer_norm_pow_scaled_biased",
     [](Form& f) {
       const ValueId y = layer_norm(f, f.input({3, 8}), Root::kPow);
       return f.b.add(f.b.mul(f.input({8}), y), f.input({8}));
     },
     {{"LayerNorm", 1}}},
    {"layer_norm_of_a_bias_that_repeats_it",
     [](Form& f) {
       const ValueId y = layer_norm(f, f.input({2, 2}), Root::kDiv);
       return f.b.add(f.b.mul(y, f.input({2})), f.input({1, 2, 2}));
     },
     {{"LayerNorm", 1}}},
    {"layer_norm_of_a_bias_that_adds_dims",
     [](Form& f) {
       const ValueId y = layer_norm(f, f.input({1, 2}), Root::kDiv);
       return f.b.add(f.b.mul(y, f.input({2})), f.input({1, 1, 2}));
     },
     {{"LayerNorm", 1}}},
    {"rms_norm_div",
     [](Form& f) {
       return rms_norm(f, f.input({3, 8}), Root::kDiv);
     },
     {{"RmsNorm", 1}}},
    {"rms_norm_reciprocal_scaled",
     [](Form& f) {
       return f.b.mul(f.input({8}), rms_norm(f, f.input({3, 8}), Root::kReciprocal));
     },
     {{"RmsNorm", 1}}},
    {"rms_norm_pow",
     [](Form& f) {
       return rms_norm(f, f.input({3, 8}), Root::kPow);
     },
     {{"RmsNorm", 1}}},
    {"norm_by_another_sum",  // of all, not a mean
     [](Form& f) {
       const ValueId x = f.input({3, 8});
       return over_root(f, x, f.b.reduce_sum(f.b.mul(x, x), {1}, true), Root::kDiv);
     },
     {}},
    {"group_norm", [](Form& f) { return group_norm(f, 6); }, {{"GroupNorm", 1}}},
    {"group_norm_without_channels", [](Form& f) { return group_norm(f, 1); }, {}},
    {"rotary", [](Form& f) { return rotary(f, true); }, {{"Rotary", 1}}},
    {"rotary_of_unequal_halves", [](Form& f) { return rotary(f, false); }, {}},
    {"silu",
     [](Form& f) {
       const ValueId x = f.input({3, 4});
       return f.b.mul(f.op("Sigmoid", {x}), x);
     },
     {{"Silu", 1}}},
    {"swiglu",
     [](Form& f) {
       const ValueId x = f.input({3, 4});
       return f.b.mul(f.input({3, 4}), f.b.mul(x, f.op("Sigmoid", {x})));
     },
     {{"SwiGlu", 1}}},
    {"sigmoid_of_another",
     [](Form& f) {
       return f.b.mul(f.input({3, 4}), f.op("Sigmoid", {f.input({3, 4})}));
     },
     {}},
    {"attention",
     [](Form& f) {
       const Heads h = heads(f);
       return f.b.matmul(f.softmax(scores(f, h)), h.v);
     },
     {{"Attention", 1}}},
    {"attention_scaled_on_q",
     [](Form& f) {
       Heads h = heads(f);
       h.q = f.b.mul(h.q, f.number(0.5));
       return f.b.matmul(f.softmax(scores(f, h, 1)), h.v);
     },
     {{"Attention", 1}}},
    {"attention_causal",
     [](Form& f) {
       const Heads h = heads(f);
       return f.b.matmul(f.softmax(f.b.add(scores(f, h), later_keys(f, -1e9))), h.v);
     },
     {{"Attention", 1}}},
    {"attention_with_bias",
     [](Form& f) {
       const Heads h = heads(f);
       return f.b.matmul(f.softmax(f.b.add(scores(f, h), f.input({1, 2, 5, 5}))), h.v);
     },
     {{"Attention", 1}}},
    {"attention_of_chosen_keys",
     [](Form& f) {
       const Heads h = heads(f);
       const ValueId seen = f.input({2, 1, 1, 5}, DType::kBool);
       return f.b.matmul(f.softmax(f.op("Where", {seen, scores(f, h), f.number(-1e9)})), h.v);
     },
     {{"Attention", 1}}},
    {"attention_of_conditions_that_are_one",  // as they stand it would be 2⁴⁰
     [](Form& f) {
       const Heads h = heads(f);
       ValueId seen = f.input({2, 1, 1, 5}, DType::kBool);
       for (int i = 0; i < 40; ++i)
         seen = f.op("And", {seen, i % 2 ? seen : f.op("Not", {f.op("Not", {seen})})});
       return f.b.matmul(f.softmax(f.op("Where", {seen, scores(f, h), f.number(-INFINITY)})), h.v);
     },
     {{"Attention", 1}}},
    {"attention_guarded",
     [](Form& f) {
       const Heads h = heads(f);
       const ValueId seen = f.input({2, 1, 1, 5}, DType::kBool);
       const ValueId p = f.softmax(f.op("Where", {seen, scores(f, h), f.number(-INFINITY)}));
       return f.b.matmul(f.op("Where", {f.op("IsNaN", {p}), f.number(0), p}), h.v);
     },
     {{"Attention", 1}}},
    {"attention_capped",
     [](Form& f) {
       const Heads h = heads(f);
       const ValueId bent = f.op("Tanh", {f.b.div(scores(f, h), f.number(3))});
       return f.b.matmul(f.softmax(f.b.mul(bent, f.number(3))), h.v);
     },
     {{"Attention", 1}}},
    {"attention_grouped",
     [](Form& f) {
       Heads h = heads(f, 1);
       h.k = repeated(f, h.k);
       h.v = repeated(f, h.v);
       return f.b.matmul(f.softmax(scores(f, h)), h.v);
     },
     {{"Attention", 1}}},
    {"attention_over_queries",  // a softmax of the other dim is none
     [](Form& f) {
       const Heads h = heads(f);
       return f.b.matmul(f.op("Softmax", {scores(f, h)}, {{"axis", int64_t{2}}}), h.v);
     },
     {{"MatMul", 1}}},
    {"experts_of_rows",
     [](Form& f) {
       const ValueId x = f.input({6, 4}), index = f.input({6}, DType::kI64);
       const ValueId w = f.op("GatherND", {f.input({7, 5, 4}), f.b.reshape(index, {6, 1})},
                              {{"batch_dims", int64_t{0}}});
       return f.b.reshape(f.b.matmul(w, f.b.reshape(x, {6, 4, 1})), {6, 5});
     },
     {{"GroupedMatMul", 1}}},
    {"experts_of_columns",
     [](Form& f) {
       const ValueId x = f.input({2, 3, 1, 4}), index = f.input({2, 3}, DType::kI64);
       const ValueId w = f.op("Gather", {f.input({7, 4, 5}), index}, {{"axis", int64_t{0}}});
       return f.b.matmul(x, w);
     },
     {{"GroupedMatMul", 1}}},
    {"experts_of_several_rows",  // of one matrix: no copy for each
     [](Form& f) {
       const ValueId x = f.input({3, 2, 4}), index = f.input({3}, DType::kI64);
       const ValueId w = f.op("Gather", {f.input({7, 4, 5}), index}, {{"axis", int64_t{0}}});
       return f.b.matmul(x, w);
     },
     {}},
    {"cross_entropy_of_log_softmax",
     [](Form& f) {
       const ValueId log = f.op("LogSoftmax", {f.input({3, 4, 7})}, {{"axis", int64_t{2}}});
       return f.op("CrossEntropySum", {log, f.input({3, 4}, DType::kI64)},
                   {{"ignore_index", int64_t{-100}}});
     },
     {{"CrossEntropySum", 1}}},
    {"picked",
     [](Form& f) {
       const Picked p = picked(f);
       return f.b.neg(f.b.mul(all(f, pick(f, p, p.labels)), f.number(1.0 / 12)));
     },
     {{"CrossEntropySum", 1}}},
    {"picked_mean_inside",
     [](Form& f) {
       const Picked p = picked(f);
       return all(f, f.b.div(f.b.neg(pick(f, p, p.labels)), f.number(12)));
     },
     {{"CrossEntropySum", 1}}},
    {"picked_times_a_mask",
     [](Form& f) {
       const Picked p = picked(f);
       const ValueId keep = kept(f, p), safe = f.op("Where", {keep, p.labels, f.integer(0)});
       return f.b.neg(all(f, f.b.mul(pick(f, p, safe), as_float(f, keep))));
     },
     {{"CrossEntropySum", 1}}},
    {"picked_where",
     [](Form& f) {
       const Picked p = picked(f);
       const ValueId drop = f.op("Equal", {p.labels, f.integer(-100)});
       const ValueId safe = f.op("Where", {drop, f.integer(3), p.labels});
       return all(f, f.op("Where", {drop, f.number(0), f.b.neg(pick(f, p, safe))}));
     },
     {{"CrossEntropySum", 1}}},
    {"picked_of_clamped_labels",
     [](Form& f) {
       const Picked p = picked(f);
       const ValueId below = f.op("Less", {p.labels, f.integer(0)});
       const ValueId safe = f.op("Where", {below, f.integer(0), p.labels});
       return all(f, f.b.mul(as_float(f, kept(f, p)), pick(f, p, safe)));
     },
     {{"CrossEntropySum", 1}}},
    {"picked_by_another_mask",  // that hides what the labels do not say
     [](Form& f) {
       const Picked p = picked(f);
       const ValueId other = f.op("Equal", {f.input({3, 4}, DType::kI64), f.integer(-100)});
       return all(f, f.op("Where", {other, f.number(0), pick(f, p, p.labels)}));
     },
     {}},
    {"picked_times_a_mask_that_repeats_them",  // [4,1] of every row times [4]
     [](Form& f) {
       const auto [rows, keep] = column_and_mask(f);
       return all(f, f.b.mul(rows, as_float(f, keep)));
     },
     {}},
    {"picked_where_a_mask_repeats_them",
     [](Form& f) {
       const auto [rows, keep] = column_and_mask(f);
       return all(f, f.op("Where", {keep, rows, f.number(0)}));
     },
     {}},
    {"picked_of_labels_that_may_be_negative",  // which GatherElements counts from the end
     [](Form& f) {
       const Picked p = picked(f);
       return all(f, pick(f, p, f.op("Sub", {p.labels, f.integer(1)})));
     },
     {}},
    {"picked_of_computed_labels",
     [](Form& f) {
       const Picked p = picked(f);
       const ValueId below = f.op("Max", {f.op("Sub", {p.labels, f.integer(1)}), f.integer(0)});
       return all(f, pick(f, p, f.op("Min", {below, f.integer(6)})));
     },
     {{"CrossEntropySum", 1}}},
    {"picked_of_shifted_labels",  // the last of each row is none
     [](Form& f) {
       const ValueId x = f.input({3, 4, 7}), labels = f.input({3, 4}, DType::kI64);
       const ValueId next = f.op("Concat", {f.slice(labels, 1, 4), f.constant_labels({3, 1}, -100)},
                                 {{"axis", int64_t{1}}});
       const ValueId x_of = f.op("Gather", {f.input({7, 2}), labels}, {{"axis", int64_t{0}}});
       const Picked p{x, next};
       const ValueId keep = kept(f, p), safe = f.op("Where", {keep, next, f.integer(0)});
       const ValueId sum = all(f, f.b.mul(pick(f, p, safe), as_float(f, keep)));
       return f.b.add(sum, f.b.reduce_sum(x_of, {0, 1, 2}, false));
     },
     {{"CrossEntropySum", 1}}},
    {"picked_from_other_rows",  // log-probabilities over another dim
     [](Form& f) {
       const Picked p = picked(f);
       return all(f, pick(f, p, p.labels, 1));
     },
     {}},
    {"picked_and_summed_in_part",
     [](Form& f) {
       const Picked p = picked(f);
       return f.b.reduce_sum(pick(f, p, p.labels), {0}, false);
     },
     {}},
};

class Forms : public testing::TestWithParam<Case> {};

test::Values draw_inputs(const Graph& graph, bool ignores) {
  std::mt19937_64 random(11);
  test::Values values(graph.values.size());
  for (ValueId id : graph.inputs) {
    Tensor& drawn = *(values[id.index()] = test::draw(graph.value(id).type, random, -1, 1, 7));
    // Ignored labels, and keys that are seen by every query.
    if (drawn.type.dtype == DType::kI64 && ignores) drawn.values[2] = -100;
    if (drawn.type.dtype == DType::kBool) drawn.values[0] = drawn.values[5] = 1;
  }
  return values;
}

TEST_P(Forms, AreFoundAndComputeTheSame) {
  Form form;
  form.graph.outputs = {GetParam().build(form)};
  const std::string name = GetParam().name;
  const bool ignores = name.find("mask") != name.npos || name.find("where") != name.npos ||
                       name.find("clamped") != name.npos;
  const auto found = recognise(form.graph);
  ASSERT_TRUE(found) << print_error(found.error());
  EXPECT_EQ(found->counts, GetParam().found) << print_graph(found->graph);
  const auto run = [&](const Graph& graph) {
    return test::evaluate(graph, draw_inputs(graph, ignores))[graph.outputs[0].index()]->values;
  };
  const std::vector<double> expected = run(form.graph), made = run(found->graph);
  ASSERT_EQ(made.size(), expected.size());
  for (size_t i = 0; i < made.size(); ++i)
    ASSERT_NEAR(made[i], expected[i], 1e-12 * std::max(1.0, std::abs(expected[i]))) << i;
}

INSTANTIATE_TEST_SUITE_P(All, Forms, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace piper
