// Rule microbatch: every block of samples adds the same to each sum, on whichever devices, from
// forward to backward. Blocks may cut their work differently, and keep their values elsewhere.
#include "effects.h"

namespace piper {

void check_microbatches(const Model& model, const Section& section, Findings& findings) {
  const Effects effects = follow(model, section, 1, nullptr);
  std::vector<const Effects::Added*> first;  // by step and sum
  for (const Effects::Added& one : effects.added) {
    const size_t at =
        static_cast<size_t>(one.step) * model.targets.size() + static_cast<size_t>(one.target);
    if (at >= first.size()) first.resize(at + model.targets.size());
    if (!first[at]) first[at] = &one;
    const Effects::Added& other = *first[at];
    if (other.symbol == one.symbol && other.count == one.count) continue;
    findings.add("microbatch", "{} adds to '{}' {} than {} does", name_of(model, section, one.last),
                 quote_control(model.targets[one.target]),
                 one.count != other.count
                     ? fmt::format("for {} samples, not {}, other", one.count, other.count)
                     : "something else",
                 name_of(model, section, other.last));
  }
}

}  // namespace piper
