// What the directions of several optimizers have in common.
#include "directions.h"

#include "rules.h"

namespace piper {

ValueId clipped_gradient(Builder& build, const DirectionUse& use) {
  const DType own = build.type(use.param).dtype, type = info(own).bytes < 4 ? DType::kF32 : own;
  const auto in_type = [&](ValueId value) {
    return build.type(value).dtype == type ? value : build.cast(value, type);
  };
  const ValueId gradient = in_type(use.gradient);
  return build.mul(gradient, use.clip.valid() ? in_type(use.clip) : build.scalar(1, type));
}

// What is read later is no state: that is read before its update only.
ValueId moved_state(Builder& build, const DirectionUse& use, ValueId state, ValueId target,
                    ValueId part) {
  const ValueId change = build.mul(build.sub(target, state), part), next = build.add(state, change);
  use.set(state, use.skip.valid() ? build.op1("Where", {use.skip, state, next})
                                  : build.add(state, change));
  return next;
}

Shape as_matrices(const Shape& shape, bool is_stack) {
  if (is_stack || shape.size() == 2) return shape;
  return {shape[0], num_elements(shape) / std::max<int64_t>(shape[0], 1)};
}

}  // namespace piper
