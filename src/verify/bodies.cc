// Rule microbatch, where training steps overlap: what a body does for the step under way is what
// the epilogue does, and what it does for the next step is what the prologue does, but that it
// reads the newest version of a parameter where the prologue reads the previous one: its update is
// still to come.
#include <algorithm>

#include "model.h"

namespace piper {
namespace {

class BodyCheck {
 public:
  BodyCheck(const Model& model, int32_t cell, Findings& findings)
      : role_(*model.cells[cell].role), who_(model.who(cell)), findings_(findings) {}

  void run() {
    for (const bool next : {true, false}) {
      const char* part = next ? "prologue" : "epilogue";
      const std::vector<Instruction>& list = next ? role_.prologue : role_.epilogue;
      size_t i = 0;
      for (const Instruction& one : role_.body) {
        if ((one.ahead > 0) != next) continue;
        if (i == list.size() || !same(one, list[i]))
          return findings_.add("microbatch", "{} in the body of {} {}", name_of(one), who_,
                               i == list.size()
                                   ? fmt::format("is missing in the {}", part)
                                   : fmt::format("is not {} of the {}", name_of(list[i]), part));
        ++i;
      }
      if (i < list.size())
        return findings_.add("microbatch", "{} in the {} of {} is missing in the body",
                             name_of(list[i]), part, who_);
    }
  }

 private:
  // What it waits for stands elsewhere in each list.
  bool same(const Instruction& one, const Instruction& other) const {
    const auto is_same_arg = [&](int32_t arg, int32_t in_part) {
      const int32_t newest = role_.tensor(in_part).previous_of;
      return arg == (one.ahead > 0 && newest >= 0 ? newest : in_part);
    };
    if (!std::equal(one.args.begin(), one.args.end(), other.args.begin(), other.args.end(),
                    is_same_arg))
      return false;
    Instruction in_part = one;
    in_part.args = other.args, in_part.ahead = other.ahead, in_part.waits = other.waits;
    return in_part == other;
  }

  const RoleProgram& role_;
  const std::string who_;
  Findings& findings_;
};

}  // namespace

void check_bodies(const Model& model, Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    BodyCheck(model, c, findings).run();
}

}  // namespace piper
