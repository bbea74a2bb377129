// Adafactor (N. Shazeer, M. Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost",
// arXiv 1804.04235) as PyTorch's torch.optim.Adafactor has it. Of more than one dim the second
// moment is the product of means over the last dim and of means over the one before. The direction
// contains the rate, which is relative to the root mean square of the parameter.
#include <limits>
#include <numeric>

#include "directions.h"
#include "rules.h"

namespace piper {
namespace {

class Adafactor {
 public:
  Adafactor(Builder& build, const DirectionUse& use)
      : build_(build), use_(use), gradient_(clipped_gradient(build, use)) {
    const ValueId one = build.scalar(1, DType::kF64);
    updates_ = build.add(build.cast(use.count, DType::kF64), one);
    const ValueId decay = build.scalar(setting("beta2_decay"), DType::kF64);
    fresh_ = build.cast(build.op1("Pow", {updates_, decay}), type());
  }

  ValueId run() {
    const double least = least_root();
    const ValueId moment = shape().size() > 1 ? factored_moment(least) : whole_moment();
    const ValueId floor = number(least * least),
                  step = build_.div(gradient_,
                                    build_.op1("Sqrt", {build_.op1("Max", {moment, floor})}));
    const ValueId excess = times(root_mean_square(step), 1 / setting("d")),
                  factor = build_.div(rate(), build_.op1("Max", {number(1), excess}));
    return build_.mul(step, factor);
  }

 private:
  DType type() const { return build_.type(gradient_).dtype; }
  const Shape& shape() const { return build_.shape(gradient_); }
  double setting(std::string_view key) const { return use_.settings.real(key); }
  ValueId number(double value) { return build_.scalar(value, type()); }
  ValueId times(ValueId value, double factor) { return build_.mul(value, number(factor)); }
  double least_root() const {
    const double said = setting("eps1");
    if (said > 0) return said;
    return type() == DType::kF64 ? std::numeric_limits<double>::epsilon()
                                 : std::numeric_limits<float>::epsilon();
  }

  // Returns a state of the second moment after the step, in which it moves towards `mean`.
  ValueId moved(std::string_view name, ValueId mean) {
    return moved_state(build_, use_, use_.state(name, build_.type(mean)), mean, fresh_);
  }
  ValueId mean(ValueId value, int64_t axis) {
    const auto extent = static_cast<double>(build_.shape(value)[static_cast<size_t>(axis)]);
    return times(build_.reduce_sum(value, {axis}, true), 1 / extent);
  }
  ValueId factored_moment(double least) {
    const auto last = static_cast<int64_t>(shape().size()) - 1;
    const ValueId squares = build_.mul(gradient_, gradient_),
                  rows = moved("row_var", mean(squares, last)),
                  columns = moved("col_var", mean(squares, last - 1)),
                  all = build_.op1("Max", {mean(rows, last - 1), number(least)});
    return build_.mul(build_.div(rows, all), columns);
  }
  ValueId whole_moment() { return moved("variance", build_.mul(gradient_, gradient_)); }

  ValueId root_mean_square(ValueId value) {
    const Shape of = build_.shape(value);
    std::vector<int64_t> axes(of.size());
    std::iota(axes.begin(), axes.end(), 0);
    ValueId squares = build_.mul(value, value);
    if (!axes.empty()) squares = build_.reduce_sum(squares, axes, false);
    return build_.op1("Sqrt", {times(squares, 1 / static_cast<double>(num_elements(of)))});
  }
  ValueId rate() {
    const ValueId one = build_.scalar(1, DType::kF64),
                  most = build_.div(one, build_.op1("Sqrt", {updates_})),
                  relative = build_.cast(build_.op1("Min", {use_.rate, most}), type());
    const ValueId param =
        build_.type(use_.param).dtype == type() ? use_.param : build_.cast(use_.param, type());
    return build_.mul(build_.op1("Max", {root_mean_square(param), number(setting("eps2"))}),
                      relative);
  }

  Builder& build_;
  const DirectionUse& use_;
  const ValueId gradient_;
  ValueId updates_;  // this one included
  ValueId fresh_;    // what the second moment takes of the new squares
};

}  // namespace

ValueId adafactor_direction(Builder& build, const DirectionUse& use) {
  return Adafactor(build, use).run();
}

}  // namespace piper
