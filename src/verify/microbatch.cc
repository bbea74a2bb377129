// Rule microbatch: every block of samples adds the same to each sum, on whichever devices, from
// forward to backward. Blocks may cut their work differently, and keep their values elsewhere.
#include <map>

#include "effects.h"

namespace piper {

void check_microbatches(const Model& model, const Section& section, Findings& findings) {
  const Effects effects = follow(model, section, 1, nullptr);
  std::map<std::pair<int32_t, int32_t>, const Effects::Added*> first;  // by step and sum
  for (const Effects::Added& one : effects.added) {
    const auto [known, is_new] = first.try_emplace({one.step, one.target}, &one);
    const Effects::Added& other = *known->second;
    if (is_new || (other.symbol == one.symbol && other.count == one.count)) continue;
    findings.add("microbatch", "{} adds to '{}' {} than {} does", name_of(model, section, one.last),
                 quote_control(model.targets[one.target]),
                 one.count != other.count
                     ? fmt::format("for {} samples, not {}, other", one.count, other.count)
                     : "something else",
                 name_of(model, section, other.last));
  }
}

}  // namespace piper
