// The optimizers that strategies name: settings, states and op of each. One table, in
// src/ir/ops/optimizer.cc, is walked by what reads strategies, makes the update and reads plans.
#pragma once

#include <span>

#include "piper/ir/ops.h"

namespace piper {

// A number that a strategy may set.
struct OptimizerSetting {
  enum class Form { kAtLeast0, kAbove0, kUnit, kBelow1, kBool };
  std::string_view key;  // and attribute of the op, but for lr and for what fills a state
  Form form = Form::kAtLeast0;
  double otherwise = 0;  // the default
  std::string_view doc;
  bool fills = false;  // the states begin with it
};

struct OptimizerDef {
  std::string_view name, doc, op;
  std::vector<OptimizerSetting> settings;
  std::vector<std::string_view> states;  // names after the parameter's: "exp_avg"
  // The setting without which, being 0, there are no states; the op has their input all the same.
  std::string_view states_need = {};
  Attrs fixed = {};     // of the op, that no strategy sets
  bool counts = false;  // the op has `count`, the updates before step 0
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
