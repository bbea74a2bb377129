// The optimizers that strategies name: settings, states and op of each. One table, in
// src/ir/ops/optimizers.cc, is walked by what reads strategies, makes the update and reads plans.
#pragma once

#include <functional>
#include <span>

#include "piper/ir/ops.h"

namespace piper {

// A number that a strategy may set.
struct OptimizerSetting {
  enum class Form { kAtLeast0, kAbove0, kUnit, kAtMost0, kBelow1, kBool, kCount, kWord };
  std::string_view key;  // and attribute of the op, but for lr and for what fills a state
  Form form = Form::kAtLeast0;
  double otherwise = 0;  // the default; of kWord its position in `words`
  std::string_view doc;
  bool fills = false;                        // the states begin with it
  std::vector<std::string_view> words = {};  // kWord: what may be said
};

// What the direction of a step is made of: the parameter, its gradient, the scalars of the step,
// and the optimizer's settings. `clip` and `skip` may be absent.
struct DirectionUse {
  ValueId param, gradient, rate, clip, count, skip;
  const Attrs& settings;
  // The first dim of more than two counts matrices; otherwise the others are one dim together.
  bool is_stack = false;
  // Returns a state of the parameter, with this name and type.
  std::function<ValueId(std::string_view name, TensorType type)> state;
  // Says what a state is after the step.
  std::function<void(ValueId state, ValueId next)> set;
};

// A state with this after its parameter's name is the parameter's average.
inline constexpr std::string_view kAverage = ".ema";
inline std::string average_of(std::string_view param) {
  return std::string(param).append(kAverage);
}

struct OptimizerDef {
  std::string_view name, doc, op;
  std::vector<OptimizerSetting> settings;
  std::vector<std::string_view> states;  // names after the parameter's: "exp_avg"
  // The setting without which, being 0, there are no states; the op has their input all the same.
  std::string_view states_need = {};
  Attrs fixed = {};     // of the op, that no strategy sets
  bool counts = false;  // the op has `count`, the updates before step 0
  // Makes, of the gradient, what the op takes in its place, by ordinary ops on whole matrices; and
  // the states that these need. Null: the op takes the gradient.
  ValueId (*direction)(Builder& build, const DirectionUse& use) = nullptr;
  size_t least_rank = 0;  // of the parameters that it updates
  // Settings of the op that follow from the shape of a parameter; null: there are none.
  Attrs (*of_shape)(const Attrs& settings, const Shape& shape, bool is_stack) = nullptr;
  // What a setting needs of others: error where it does not hold.
  struct Need {
    std::string_view key, text;
    bool (*holds)(const Attrs& settings);
  };
  std::optional<Need> need = {};

  const OptimizerSetting* find(std::string_view key) const;  // null when there is none
};

// Returns how many states a use of an optimizer's op has, with the average of the parameter that
// the attribute `ema` asks for; the op has `states` >= 0.
size_t count_states(const OpDef& op, const Attrs& attrs);

std::span<const OptimizerDef> optimizers();
const OptimizerDef& find_optimizer(std::string_view name);  // requires one of that name
// Returns the settings of a strategy as they count, defaults included, those of `lr` and
// `weight_decay` too.
Attrs with_defaults(const OptimizerDef& def, const Attrs& given);

}  // namespace piper
