// MatMul{trans_a, trans_b, to}: products of the last two dims, the leading ones broadcast. `to` is
// f32 where those of 16-bit floats give their sums as they are, without rounding them.
#include "rules.h"

namespace piper {
namespace {

struct MatmulSizes {
  Shape batch;
  int64_t m = 0, n = 0, k = 0;
};

Shape leading(const Shape& shape) { return {shape.begin(), shape.end() - 2}; }

Result<MatmulSizes> matmul_sizes_of(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, 2));
  PIPER_TRY(check_float(use, 0));
  const Shape &a = use.inputs[0].shape, &b = use.inputs[1].shape;
  if (use.inputs[0].dtype != use.inputs[1].dtype)
    return fail("the operands must be of one type, but are {}", operands(use));
  if (a.size() < 2 || b.size() < 2)
    return fail("the operands must be matrices or stacks of them, but are {}", operands(use));
  const bool ta = use.attrs.integer("trans_a"), tb = use.attrs.integer("trans_b");
  const int64_t k_of_a = a[a.size() - (ta ? 2 : 1)], k_of_b = b[b.size() - (tb ? 1 : 2)];
  if (k_of_a != k_of_b) {
    return fail("the inner extents {} and {} of {} differ{}", k_of_a, k_of_b, operands(use),
                ta || tb ? fmt::format(" (trans_a={}, trans_b={})", int{ta}, int{tb}) : "");
  }
  std::optional<Shape> batch = broadcast(leading(a), leading(b));
  if (!batch) return fail("the leading dims of {} do not broadcast", operands(use));
  return MatmulSizes{*std::move(batch), a[a.size() - (ta ? 1 : 2)], b[b.size() - (tb ? 2 : 1)],
                     k_of_a};
}

TypesResult matmul_types(const OpTypes& use) {
  PIPER_ASSIGN(MatmulSizes sizes, matmul_sizes_of(use));
  Shape shape = sizes.batch;
  shape.push_back(sizes.m);
  shape.push_back(sizes.n);
  PIPER_ASSIGN(const DType dtype, product_type(use));
  return std::vector<TensorType>{{dtype, std::move(shape)}};
}

// Returns a matrix with the rows of all leading dims in one: the gradient of a shared matrix is
// then one product.
ValueId as_rows(Builder& build, ValueId id) {
  const Shape& shape = build.shape(id);
  int64_t rows = 1;
  for (size_t d = 0; d + 1 < shape.size(); ++d) rows *= shape[d];
  return build.reshape(id, {rows, shape.back()});
}

Grads matmul_gradient(Builder& build, const GradientArgs& args) {
  if (args.attrs.find("to")) return {};  // gradients of parameters alone
  const ValueId a = args.inputs[0], b = args.inputs[1], dy = args.output_grads[0];
  const bool ta = args.attrs.integer("trans_a"), tb = args.attrs.integer("trans_b");
  const Shape shape_a = build.shape(a), shape_b = build.shape(b);
  Grads grads(2);
  if (args.wanted[0]) {
    const ValueId da = ta ? build.matmul(b, dy, tb, true) : build.matmul(dy, b, false, !tb);
    grads[0] = build.sum_to(da, shape_a);
  }
  if (args.wanted[1]) {
    ValueId x = a, d = dy;
    if (shape_b.size() == 2 && shape_a.size() > 2 && !ta)
      x = as_rows(build, a), d = as_rows(build, dy);
    const ValueId db = tb ? build.matmul(d, x, true, ta) : build.matmul(x, d, !ta, false);
    grads[1] = build.sum_to(db, shape_b);
  }
  return grads;
}

LoopRule matmul_rule(const OpTypes& use) {
  const Result<MatmulSizes> sizes = matmul_sizes_of(use);
  PIPER_CHECK(sizes.ok(), "loops of an ill-typed MatMul");
  LoopBuilder build;
  const Dims batch = build.letters(sizes->batch);
  const char m = build.letter(sizes->m), n = build.letter(sizes->n), k = build.letter(sizes->k);
  auto dims = [&](size_t operand, char row, char column, bool transposed) {
    Dims result = broadcast_dims(batch, sizes->batch, leading(use.inputs[operand].shape));
    if (transposed) std::swap(row, column);
    result.push_back({row});
    result.push_back({column});
    return result;
  };
  build.rule.inputs = {dims(0, m, k, use.attrs.integer("trans_a")),
                       dims(1, k, n, use.attrs.integer("trans_b"))};
  build.rule.outputs = {batch};
  build.rule.outputs[0].push_back({m});
  build.rule.outputs[0].push_back({n});
  build.rule.linear = {{0}, {1}};
  return build.rule;
}

Cost matmul_cost(const OpTypes& use) {
  const Result<MatmulSizes> sizes = matmul_sizes_of(use);
  PIPER_CHECK(sizes.ok(), "cost of an ill-typed MatMul");
  return {.flops = 2.0 * static_cast<double>(num_elements(use.outputs[0].shape)) *
                   static_cast<double>(sizes->k),
          .is_matmul = true};
}

}  // namespace

std::vector<OpDef> matmul_ops() {
  OpDef def{
      .name = "MatMul", .types = matmul_types, .gradient = matmul_gradient, .loops = matmul_rule};
  def.cost = matmul_cost;
  def.autocast = OpDef::Autocast::kLow;
  def.takes = 2;
  def.takes_rows = true;
  const Attrs ta{{"trans_a", int64_t{1}}}, tb{{"trans_b", int64_t{1}}};
  const Attrs both{{"trans_a", int64_t{1}}, {"trans_b", int64_t{1}}};
  def.samples = {{.inputs = {f64({4, 6}), f64({6, 2})}},
                 {.inputs = {f64({6, 4}), f64({6, 2})}, .attrs = ta},
                 {.inputs = {f64({4, 6}), f64({2, 6})}, .attrs = tb},
                 {.inputs = {f64({6, 4}), f64({2, 6})}, .attrs = both},
                 {.inputs = {f64({2, 3, 4, 6}), f64({6, 2})}},
                 {.inputs = {f64({2, 4, 6}), f64({2, 6})}, .attrs = tb},
                 {.inputs = {f64({2, 6, 4}), f64({6, 2})}, .attrs = ta},
                 {.inputs = {f64({2, 1, 4, 6}), f64({3, 6, 2})}},
                 {.inputs = {f64({2, 3, 6, 4}), f64({2, 1, 2, 6})}, .attrs = both},
                 {.inputs = {f64({4, 6}), f64({3, 6, 2})}}};
  def.attributes = {{"trans_a"}, {"trans_b"}, {"accumulate"}, {"to", kText}};
  return {def};
}

}  // namespace piper
