// Muon (K. Jordan, "Muon: An optimizer for hidden layers in neural networks", 2024): the direction
// is near the semi-orthogonal matrix that is nearest to the momentum. Newton-Schulz iterations with
// the coefficients of that text find it, from the matrix divided by its Frobenius norm. With rows
// and columns changed, which makes the smaller of both products, the iteration is the same.
#include <cmath>

#include "directions.h"

namespace piper {
namespace {

constexpr double kLinear = 3.4445, kCubic = -4.7750, kQuintic = 2.0315;

// Returns `x` after one iteration: a X + (b A + c A A) X, A being X X'; `tall`: X' X stands for A.
ValueId iterated(Builder& build, ValueId x, bool tall) {
  const DType type = build.type(x).dtype;
  const auto times = [&](ValueId value, double factor) {
    return build.mul(value, build.scalar(factor, type));
  };
  const ValueId gram = build.matmul(x, x, tall, !tall),
                inner = build.add(times(gram, kCubic), times(build.matmul(gram, gram), kQuintic)),
                step = tall ? build.matmul(x, inner) : build.matmul(inner, x);
  return build.add(times(x, kLinear), step);
}

}  // namespace

ValueId muon_direction(Builder& build, const DirectionUse& use) {
  const ValueId gradient = clipped_gradient(build, use);
  const TensorType type = build.type(gradient);
  const auto times = [&](ValueId value, double factor) {
    return build.mul(value, build.scalar(factor, type.dtype));
  };
  const double momentum = use.settings.real("momentum");
  const ValueId next = moved_state(build, use, use.state("momentum", type), gradient,
                                   build.scalar(1 - momentum, type.dtype));
  ValueId x = next;
  if (use.settings.integer("nesterov") != 0)
    x = build.add(gradient, times(build.sub(next, gradient), momentum));

  const Shape matrices = as_matrices(type.shape, use.is_stack);
  x = build.reshape(x, matrices);
  const auto rank = static_cast<int64_t>(matrices.size());
  const ValueId squares = build.reduce_sum(build.mul(x, x), {rank - 2, rank - 1}, true),
                norm = build.op1("Sqrt", {squares}),
                least = build.scalar(use.settings.real("eps"), type.dtype);
  x = build.div(x, build.op1("Max", {norm, least}));
  const bool tall = matrices[matrices.size() - 2] > matrices.back();
  for (int64_t i = 0; i < use.settings.integer("ns_steps"); ++i) x = iterated(build, x, tall);
  return build.reshape(x, type.shape);
}

// The second factor gives steps the root mean square of AdamW's (J. Liu et al., "Muon is Scalable
// for LLM Training", arXiv 2502.16982).
Attrs muon_scale(const Attrs& settings, const Shape& shape, bool is_stack) {
  const Shape matrices = as_matrices(shape, is_stack);
  const auto rows = static_cast<double>(matrices[matrices.size() - 2]),
             columns = static_cast<double>(matrices.back());
  const bool matches = settings.text("adjust_lr") == "match_rms_adamw";
  return {{"scale", matches ? 0.2 * std::sqrt(std::max(rows, columns))
                            : std::sqrt(std::max(1.0, rows / columns))}};
}

}  // namespace piper
