// Which ops of a program touch each value, and groups of ops that run as one.
#include <numeric>

#include "steps.h"

namespace piper {

ProgramUses::ProgramUses(const FusedProgram& program)
    : program_(program),
      bases_(program.bases()),
      readers_(bases_.size()),
      writers_(bases_.size()),
      makers_(bases_.size(), kNone) {
  for (size_t o = 0; o < program.ops.size(); ++o) {
    for (const int32_t input : program.ops[o].inputs)
      if (input >= 0) readers(input).push_back(o);
    for (const int32_t output : program.ops[o].outputs) {
      writers_[at(base(output))].push_back(o);
      maker(output) = o;
    }
  }
}

bool ProgramUses::is_settled(int32_t value) const {
  const size_t writes = writers(value).size();
  if (base(value) >= program_.num_args) return writes <= 1;
  return writes == 0 || (writes == 1 && !program_.arg_read[at(base(value))]);
}

OpGroups::OpGroups(const FusedProgram& program, const ProgramUses& uses)
    : program_(program), uses_(uses), group_(program.ops.size()) {
  std::iota(group_.begin(), group_.end(), size_t{0});
  for (const size_t o : group_) members_.push_back({o});
}

bool OpGroups::may_move(size_t a, size_t b) const {
  const size_t place = members_[b].back();
  const auto is_before = [&](size_t reader) {
    const size_t group = group_[reader];
    return group != a && group != b && members_[group].back() <= place;
  };
  for (const size_t o : members_[a])
    for (const int32_t output : program_.ops[o].outputs)
      if (std::ranges::any_of(uses_.readers(output), is_before)) return false;
  return true;
}

}  // namespace piper
