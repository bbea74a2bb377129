// Looks optimizers and their settings up in the table of families/optimizer.cc.
#include "piper/ir/optimizers.h"

#include <algorithm>

#include "piper/ir/ops.h"

namespace piper {

size_t count_states(const OpDef& op, const Attrs& attrs) {
  return static_cast<size_t>(op.states) + (attrs.find("ema") ? 1 : 0);
}

const OptimizerDef& find_optimizer(std::string_view name) {
  const auto found = std::find_if(optimizers().begin(), optimizers().end(),
                                  [&](const OptimizerDef& def) { return def.name == name; });
  PIPER_CHECK(found != optimizers().end(), "there is no optimizer '{}'", name);
  return *found;
}

const OptimizerSetting* OptimizerDef::find(std::string_view key) const {
  for (const OptimizerSetting& setting : settings)
    if (setting.key == key) return &setting;
  return nullptr;
}

Attrs with_defaults(const OptimizerDef& def, const Attrs& given) {
  Attrs all = given;
  for (const OptimizerSetting& setting : def.settings) {
    if (given.find(setting.key)) continue;
    if (setting.form == OptimizerSetting::Form::kBool ||
        setting.form == OptimizerSetting::Form::kCount)
      all.set(std::string(setting.key), static_cast<int64_t>(setting.otherwise));
    else if (setting.form == OptimizerSetting::Form::kWord)
      all.set(std::string(setting.key),
              std::string(setting.words[static_cast<size_t>(setting.otherwise)]));
    else
      all.set(std::string(setting.key), setting.otherwise);
  }
  return all;
}

}  // namespace piper
