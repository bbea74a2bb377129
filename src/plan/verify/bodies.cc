// Rule microbatch, where training steps overlap: for all but the farthest step a body runs the
// instructions of the epilogue, and for all but the current step those of the prologue. One
// difference is allowed: the body still has the update before it, so it reads the next newer
// version of a parameter where the prologue reads the previous one.
#include <algorithm>

#include "model.h"

namespace piper {
namespace {

// Returns whether both instructions are equal, except for waits, whose indices differ between
// lists. `later`: the other's step is the one after that of the body.
bool is_same(const RoleProgram& role, const Instruction& one, const Instruction& other,
             bool later) {
  if (one.ahead != other.ahead + (later ? 1 : 0)) return false;
  const auto is_same_arg = [&](int32_t arg, int32_t in_part) {
    const int32_t newer = role.tensor(in_part).previous_of;
    return arg == (later && newer >= 0 ? newer : in_part);
  };
  Instruction in_part = one;
  in_part.args = other.args, in_part.ahead = other.ahead, in_part.waits = other.waits;
  return in_part == other && std::equal(one.args.begin(), one.args.end(), other.args.begin(),
                                        other.args.end(), is_same_arg);
}

void check_body(const RoleProgram& role, const std::string& who, bool next, Findings& findings) {
  const char* part = next ? "prologue" : "epilogue";
  const std::vector<Instruction>& list = next ? role.prologue : role.epilogue;
  size_t i = 0;
  for (const Instruction& one : role.body) {
    if (next ? one.ahead == 0 : one.ahead == role.steps_ahead) continue;
    if (i == list.size() || !is_same(role, one, list[i], next))
      return findings.add("microbatch", "{} in the body of {} {}", name_of(one), who,
                          i == list.size()
                              ? fmt::format("is missing in the {}", part)
                              : fmt::format("is not {} of the {}", name_of(list[i]), part));
    ++i;
  }
  if (i < list.size())
    findings.add("microbatch", "{} in the {} of {} is missing in the body", name_of(list[i]), part,
                 who);
}

}  // namespace

void check_bodies(const Model& model, Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    for (const bool next : {true, false})
      check_body(*model.cells[c].role, model.who(c), next, findings);
}

}  // namespace piper
