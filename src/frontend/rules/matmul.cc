// Matrix products, and what they make: determinants.
#include "rule.h"

namespace piper::onnx_import {
namespace {

// Returns the operand as it is before a Transpose of its last two dims, and whether there is one.
std::pair<Val, bool> untransposed(const Graph& graph, const Val& x) {
  if (x.kind != Val::Kind::kGraph) return {x, false};
  const Value& value = graph.value(x.id);
  if (value.kind != ValueKind::kNode) return {x, false};
  const Node& node = graph.node(value.producer);
  if (node.op != "Transpose") return {x, false};
  std::vector<int64_t> perm = node.attrs.integers("perm");
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  for (size_t d = 0; d < perm.size(); ++d) {
    if (perm[d] != static_cast<int64_t>(d)) return {x, false};
  }
  Val out = x;
  out.id = node.inputs[0];
  std::swap(out.shape[out.rank() - 1], out.shape[out.rank() - 2]);
  std::swap(out.stored[out.rank() - 1], out.stored[out.rank() - 2]);
  return {out, true};
}

// Multiplies matrices of integers, which MatMul does not take: they are counts and labels, and few.
Result<Val> product_of_integers(RuleContext& c, const Val& a, const Val& b) {
  Shape rows = a.shape, columns = b.shape;
  rows.push_back(1);
  columns.insert(columns.end() - 2, 1);
  PIPER_ASSIGN(const Val left, c.reshape(a, rows));
  PIPER_ASSIGN(const Val right, c.reshape(b, columns));
  PIPER_ASSIGN(const Val products, c.mul(left, right));
  return c.reduce_sum(products, {static_cast<int64_t>(products.rank()) - 2}, false);
}

}  // namespace

Result<Val> RuleContext::matmul(const Val& a, const Val& b) {
  if (a.shape.back() == b.shape[b.rank() - 2] && a.dtype == b.dtype && a.dtype != DType::kBool &&
      !info(a.dtype).is_float)
    return product_of_integers(*this, a, b);
  Val operands[2] = {a, b};
  int64_t transposed[2] = {0, 0};
  for (size_t i = 0; i < 2; ++i) {
    const size_t rank = operands[i].rank();
    const std::vector<size_t> held{rank - 2, rank - 1};
    Result<Val> exact = emit.exact_dims(operands[i], held);
    if (!exact) return located(exact.error().message);
    auto [before, is_transposed] = untransposed(emit.graph(), *exact);
    operands[i] = std::move(before);
    transposed[i] = is_transposed ? 1 : 0;
  }
  if (a.shape.back() != b.shape[b.rank() - 2]) {
    return error("cannot multiply {} by {}", to_string(a.shape), to_string(b.shape));
  }
  const std::optional<Shape> batch = broadcast_shapes(Shape(a.shape.begin(), a.shape.end() - 2),
                                                      Shape(b.shape.begin(), b.shape.end() - 2));
  if (!batch) return error("cannot multiply {} by {}", to_string(a.shape), to_string(b.shape));
  Result<Vals> made = emit.op("MatMul", {operands[0], operands[1]},
                              {{"trans_a", transposed[0]}, {"trans_b", transposed[1]}});
  if (!made) return located(made.error().message);
  Val out = (*made)[0];
  out.shape = *batch;
  out.shape.push_back(a.shape[a.rank() - 2]);
  out.shape.push_back(b.shape.back());
  return out;
}

namespace {

Result<Vals> matmul(RuleContext& c) {
  PIPER_TRY(c.need(2, 2));
  Val a = c.in(0), b = c.in(1);
  if (a.rank() == 0 || b.rank() == 0) return c.error("multiplies a scalar");
  const bool row = a.rank() == 1, column = b.rank() == 1;
  if (row) {
    PIPER_ASSIGN(a, c.reshape(a, {1, a.shape[0]}));
  }
  if (column) {
    PIPER_ASSIGN(b, c.reshape(b, {b.shape[0], 1}));
  }
  PIPER_ASSIGN(const Val out, c.matmul(a, b));
  Shape shape = out.shape;
  if (column) shape.pop_back();
  if (row) shape.erase(shape.end() - (column ? 1 : 2));
  return single(c.reshape(out, shape));
}

Result<Val> scaled(RuleContext& c, const Val& x, double factor) {
  if (factor == 1) return x;
  return c.pointwise("Mul", {x, c.number(factor, x)});
}

Result<Vals> gemm(RuleContext& c) {
  PIPER_TRY(c.need(2, 3));
  Val a = c.in(0), b = c.in(1);
  if (a.rank() != 2 || b.rank() != 2)
    return c.error("multiplies {} by {}", to_string(a.shape), to_string(b.shape));
  if (c.integer("transA", 0) != 0) {
    PIPER_ASSIGN(a, c.transpose(a, {1, 0}));
  }
  if (c.integer("transB", 0) != 0) {
    PIPER_ASSIGN(b, c.transpose(b, {1, 0}));
  }
  PIPER_ASSIGN(Val out, c.matmul(a, b));
  PIPER_ASSIGN(out, scaled(c, out, c.real("alpha", 1)));
  c.pass_over({"beta", "broadcast"});
  if (!c.has(2)) return Vals{out};
  if (broadcast_shapes(c.in(2).shape, out.shape) != out.shape)
    return c.error("adds {} to {}", to_string(c.in(2).shape), to_string(out.shape));
  PIPER_ASSIGN(const Val bias, scaled(c, c.in(2), c.real("beta", 1)));
  return single(c.pointwise("Add", {out, bias}));
}

// Returns numbers for each place of an n x n matrix.
Val matrix_val(int64_t n, double (*at)(int64_t i, int64_t j)) {
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) values.push_back(at(i, j));
  return numbers_val(values, {n, n}, DType::kF64);
}

// Returns F, whose first element is the determinant.
Result<Val> without_division(RuleContext& c, const Val& a, int64_t n) {
  const Val above = matrix_val(n, [](int64_t i, int64_t j) { return j > i ? 1.0 : 0.0; });
  const Val diagonal = matrix_val(n, [](int64_t i, int64_t j) { return j == i ? 1.0 : 0.0; });
  const Val further = matrix_val(n, [](int64_t i, int64_t j) { return j > i ? -1.0 : 0.0; });
  Val f = a;
  for (int64_t k = 1; k < n; ++k) {
    PIPER_ASSIGN(Val g, c.mul(f, diagonal));
    PIPER_ASSIGN(g, c.reduce_sum(g, {static_cast<int64_t>(a.rank()) - 1}, true));
    PIPER_ASSIGN(g, c.matmul(further, g));
    PIPER_ASSIGN(g, c.mul(g, diagonal));
    PIPER_ASSIGN(f, c.mul(f, above));
    PIPER_ASSIGN(g, c.add(g, f));
    PIPER_ASSIGN(f, c.matmul(g, a));
  }
  return f;
}

// Computes it by products only, so that there is a slope where the determinant is 0, too (Bird, A
// simple division-free algorithm for computing determinants, 2011): F begins as A and becomes, n -
// 1 times, G A, where G has of F what is above the diagonal, and on it, less its sign, the sum of
// what F has further down on its own. Then the first element of F is the determinant, less its sign
// where n is even.
Result<Vals> det(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  constexpr int64_t kMost = 24;  // of random elements 8 digits are right then
  if (x.rank() < 2 || x.shape.back() != x.shape[x.rank() - 2] || !info(x.dtype).is_float)
    return c.error("needs square matrices of floats, got {} of {}", to_string(x.shape),
                   info(x.dtype).name);
  const int64_t n = x.shape.back();
  if (n < 1 || n > kMost)
    return c.error("is supported of matrices up to {0} x {0}, not {1} x {1}", kMost, n);
  PIPER_ASSIGN(const Val a, c.cast(x, DType::kF64));
  PIPER_ASSIGN(Val f, without_division(c, a, n));
  for (const size_t d : {x.rank() - 2, x.rank() - 1}) {
    PIPER_ASSIGN(f, c.part(f, d, 0, 1));
  }
  PIPER_ASSIGN(f, c.reshape(f, Shape(x.shape.begin(), x.shape.end() - 2)));
  PIPER_ASSIGN(f, scaled(c, f, n % 2 == 0 ? -1 : 1));
  return single(c.cast(f, x.dtype));
}

constexpr ImportRule kMatmulRules[] = {
    {"Det", 11, kNewest, det, "of matrices up to 24 x 24"},
    {"Gemm", 1, kNewest, gemm},
    {"MatMul", 1, kNewest, matmul},
};

}  // namespace

std::span<const ImportRule> matmul_rules() { return kMatmulRules; }

}  // namespace piper::onnx_import
