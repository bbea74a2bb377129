// Linear{trans_b, activation: none | gelu | gelu_tanh}(x[…, k], w, b[n]) -> y[…, n], and pre[…, n]
// where it has an activation: pre = x · w + b with w[k, n], or w[n, k] with trans_b, and y the
// activation of pre. Of 16-bit floats each result is rounded once: y is not made of a rounded
// product, nor of the rounded pre.
#include "rules.h"

namespace piper {
namespace {

constexpr size_t kRowsIn = 0, kMatrixIn = 1, kBiasIn = 2;

bool is_activated(const OpTypes& use) { return use.attrs.text("activation", "none") != "none"; }
Attrs gelu_of(const Attrs& attrs) {
  return {{"approximate", attrs.text("activation") == "gelu_tanh" ? "tanh" : "none"}};
}
Attrs product_of(const Attrs& attrs) { return {{"trans_b", attrs.integer("trans_b")}}; }

TypesResult linear_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 3));
  PIPER_TRY(check_float(use, kRowsIn));
  const std::string activation = use.attrs.text("activation", "none");
  if (activation != "none" && activation != "gelu" && activation != "gelu_tanh")
    return fail("activation '{}' is neither 'none', 'gelu' nor 'gelu_tanh'",
                quote_control(activation));
  const Shape &x = use.inputs[kRowsIn].shape, &w = use.inputs[kMatrixIn].shape;
  const bool trans = use.attrs.integer("trans_b");
  if (use.inputs[kMatrixIn].dtype != use.inputs[kRowsIn].dtype || x.size() < 2 || w.size() != 2 ||
      w[trans ? 1 : 0] != x.back())
    return fail("rows of {} have no product with {}{}", to_string(use.inputs[kRowsIn]),
                to_string(use.inputs[kMatrixIn]), trans ? " (trans_b=1)" : "");
  const DType dtype = use.inputs[kRowsIn].dtype;
  const int64_t n = w[trans ? 0 : 1];
  PIPER_TRY(check_type(use, kBiasIn, "the bias", {dtype, {n}}));
  Shape y = x;
  y.back() = n;
  return std::vector<TensorType>(is_activated(use) ? 2 : 1, {dtype, std::move(y)});
}

Grads linear_gradient(Builder& build, const GradientArgs& args) {
  const ValueId b = args.inputs[kBiasIn];
  ValueId slope = args.output_grads[0];  // of what the activation is taken of
  if (args.outputs.size() > 1) {
    if (slope.valid()) slope = build.op1("GeluGrad", {args.outputs[1], slope}, gelu_of(args.attrs));
    if (const ValueId other = args.output_grads[1]; other.valid())
      slope = slope.valid() ? build.add(slope, other) : other;
  }
  const Attrs attrs = product_of(args.attrs);
  Grads grads = find_op("MatMul")->gradient(
      build, {args.inputs.first(kBiasIn), {}, {&slope, 1}, attrs, args.wanted.first(kBiasIn)});
  grads.push_back(args.wanted[kBiasIn] ? build.sum_to(slope, Shape(build.shape(b))) : ValueId());
  return grads;
}

// A part of what is summed over would have the bias in each of its terms.
LoopRule linear_rule(const OpTypes& use) {
  LoopBuilder build;
  const Shape &x = use.inputs[kRowsIn].shape, &w = use.inputs[kMatrixIn].shape;
  const bool trans = use.attrs.integer("trans_b");
  Dims of_x = build.letters(Shape(x.begin(), x.end() - 1)), of_y = of_x;
  const char k = build.whole(x.back()), n = build.letter(w[trans ? 0 : 1]);
  of_x.push_back({k});
  of_y.push_back({n});
  build.rule.inputs = {of_x, trans ? Dims{{n}, {k}} : Dims{{k}, {n}}, {{n}}};
  build.rule.outputs.assign(use.outputs.size(), of_y);
  if (!is_activated(use)) build.rule.linear = {{kRowsIn, kBiasIn}, {kMatrixIn, kBiasIn}};
  return build.rule;
}

Cost linear_cost(const OpTypes& use) {
  const auto results = static_cast<double>(num_elements(use.outputs[0].shape));
  const double terms = 2.0 * static_cast<double>(use.inputs[kRowsIn].shape.back());
  constexpr double kOfBias = 1, kOfGelu = 15;
  return {.flops = results * (terms + kOfBias + (use.outputs.size() > 1 ? kOfGelu : 0)),
          .is_matmul = true};
}

OpDef::Steps linear_apart(const OpTypes& use) {
  OpDef::Steps apart{{{"MatMul", {{-1, kRowsIn}, {-1, kMatrixIn}}, product_of(use.attrs)},
                      {"Add", {{0, 0}, {-1, kBiasIn}}, {}}},
                     {{1, 0}}};
  if (!is_activated(use)) return apart;
  apart.steps.push_back({"Gelu", {{1, 0}}, gelu_of(use.attrs)});
  apart.outputs = {{2, 0}, {1, 0}};
  return apart;
}

}  // namespace

std::vector<OpDef> linear_ops() {
  OpDef def{
      .name = "Linear", .types = linear_types, .gradient = linear_gradient, .loops = linear_rule};
  def.cost = linear_cost;
  def.apart = linear_apart;
  def.autocast = OpDef::Autocast::kLow;
  const Attrs tb{{"trans_b", int64_t{1}}};
  const Attrs gelu{{"activation", "gelu"}};
  const Attrs both{{"trans_b", int64_t{1}}, {"activation", "gelu_tanh"}};
  def.samples = {{.inputs = {f64({4, 6}), f64({6, 3}), f64({3})}},
                 {.inputs = {f64({2, 3, 6}), f64({4, 6}), f64({4})}, .attrs = tb},
                 {.inputs = {f64({2, 3, 5}), f64({5, 4}), f64({4})}, .attrs = gelu},
                 {.inputs = {f64({4, 6}), f64({3, 6}), f64({3})}, .attrs = both}};
  def.attributes = {{"trans_b"}, {"activation", kText}};
  return {def};
}

}  // namespace piper
