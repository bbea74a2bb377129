// Rotary{interleaved, inverse}(x[…, D], cos, sin) -> y: the last dim is D / 2 pairs of elements,
// each turned by an angle whose cosine and sine the tables hold:
//   a' = a·cos - b·sin, b' = b·cos + a·sin
// Pair i is (x[i], x[i + D/2]), or with `interleaved` (x[2i], x[2i + 1]); `inverse` turns back,
// which is the gradient. The tables are broadcast to x's leading dims, and end with D / 2.
#include "rules.h"

namespace piper {
namespace {

TypesResult rotary_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 3));
  PIPER_TRY(check_float(use, 0));
  const TensorType &x = use.inputs[0], &cos = use.inputs[1];
  if (x.shape.empty() || x.shape.back() % 2 != 0)
    return fail("cannot pair the elements of {}", to_string(x));
  PIPER_TRY(check_type(use, 2, "sines", cos));
  Shape half = x.shape;
  half.back() /= 2;
  const bool fits = cos.dtype == x.dtype && cos.shape.size() == half.size() &&
                    cos.shape.back() == half.back() && broadcast(cos.shape, half) == half;
  if (!fits) return fail("tables {} do not fit {}", to_string(cos), to_string(x));
  return std::vector<TensorType>{x};
}

// Returns the first or second elements of all pairs.
ValueId elements(Builder& build, ValueId x, bool interleaved, int64_t which) {
  const Shape shape = build.shape(x);
  std::vector<int64_t> starts(shape.size(), 0), ends = shape, steps(shape.size(), 1);
  const int64_t half = shape.back() / 2;
  starts.back() = interleaved ? which : which * half;
  ends.back() = interleaved ? shape.back() : (which + 1) * half;
  steps.back() = interleaved ? 2 : 1;
  return build.op1("Slice", {x}, {{"starts", starts}, {"ends", ends}, {"steps", steps}});
}

ValueId turned_back(Builder& build, const GradientArgs& args) {
  const bool inverse = args.attrs.integer("inverse") != 0;
  Attrs attrs = args.attrs;
  attrs.set("inverse", int64_t{!inverse});
  return build.op1("Rotary", {args.output_grads[0], args.inputs[1], args.inputs[2]}, attrs);
}

Grads rotary_gradient(Builder& build, const GradientArgs& args) {
  const bool interleaved = args.attrs.integer("interleaved") != 0;
  const bool inverse = args.attrs.integer("inverse") != 0;
  const ValueId dy = args.output_grads[0];
  Grads grads(3);
  if (args.wanted[0]) grads[0] = turned_back(build, args);
  if (!args.wanted[1] && !args.wanted[2]) return grads;
  const ValueId a = elements(build, args.inputs[0], interleaved, 0);
  const ValueId b = elements(build, args.inputs[0], interleaved, 1);
  const ValueId da = elements(build, dy, interleaved, 0), db = elements(build, dy, interleaved, 1);
  const Shape table = build.shape(args.inputs[1]);
  if (args.wanted[1]) grads[1] = build.sum_to(build.add(build.mul(da, a), build.mul(db, b)), table);
  if (args.wanted[2]) {
    const ValueId up = build.mul(db, a), down = build.mul(da, b);
    grads[2] = build.sum_to(inverse ? build.sub(down, up) : build.sub(up, down), table);
  }
  return grads;
}

LoopRule rotary_rule(const OpTypes& use) {
  LoopBuilder build;
  const Dims x = build.letters(use.inputs[0].shape);
  build.mark_whole(x.back()[0]);
  Shape half = use.inputs[0].shape;
  half.back() /= 2;
  Dims dims = x;
  const Dims table = broadcast_dims(dims, half, use.inputs[1].shape);
  build.rule.inputs = {x, table, table};
  build.rule.outputs = {x};
  build.rule.linear = {{0}};
  return build.rule;
}

}  // namespace

std::vector<OpDef> rotary_ops() {
  OpDef def{
      .name = "Rotary", .types = rotary_types, .gradient = rotary_gradient, .loops = rotary_rule};
  def.cost = element_cost<3>;
  def.in_place = {{0, 0}};
  const TensorType x = f64({2, 3, 4, 6}), table = f64({1, 1, 4, 3}), own = f64({2, 3, 1, 3});
  def.samples = {{.inputs = {x, table, table}},
                 {.inputs = {x, table, table}, .attrs = {{"interleaved", int64_t{1}}}},
                 {.inputs = {x, own, own}, .attrs = {{"inverse", int64_t{1}}}}};
  def.attributes = {{"interleaved"}, {"inverse"}};
  return {def};
}

}  // namespace piper
