// Rule microbatch, where training steps overlap: what a body does for the step under way is what
// the epilogue does, and what it does for the next step is what the prologue does, but that it
// reads the newest version of a parameter where the prologue reads the previous one: its update is
// still to come.
#include <algorithm>
#include <tuple>

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
  bool same(const Instruction& one, const Instruction& other) const {
    const auto key = [](const Instruction& i) {
      return std::tie(i.kind, i.stream, i.program, i.peer, i.group, i.root, i.channel, i.input,
                      i.label, i.pass, i.stage, i.micro, i.micros);
    };
    return key(one) == key(other) && same_samples(one.samples, other.samples) &&
           same_args(one, other) && same_sums(one, other);
  }
  bool same_args(const Instruction& one, const Instruction& other) const {
    return std::equal(one.args.begin(), one.args.end(), other.args.begin(), other.args.end(),
                      [&](int32_t arg, int32_t in_part) {
                        const int32_t newest = role_.tensor(in_part).previous_of;
                        return arg == (one.ahead > 0 && newest >= 0 ? newest : in_part);
                      });
  }
  static bool same_samples(const SampleRange& one, const SampleRange& other) {
    return one.first == other.first && one.count == other.count && one.stride == other.stride;
  }
  template <class T, class Same>
  static bool same_list(const std::vector<T>& one, const std::vector<T>& other, Same same) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(), same);
  }
  static bool same_sums(const Instruction& one, const Instruction& other) {
    const auto contribution = [](const Contribution& a, const Contribution& b) {
      return a.arg == b.arg && a.target == b.target && a.use == b.use &&
             a.accumulates == b.accumulates;
    };
    const auto combine = [](const SumCombine& a, const SumCombine& b) {
      return a.arg == b.arg && a.from == b.from;
    };
    const auto read = [](const SumRead& a, const SumRead& b) {
      return a.arg == b.arg && a.target == b.target;
    };
    return same_list(one.contributions, other.contributions, contribution) &&
           same_list(one.combines, other.combines, combine) &&
           same_list(one.sum_reads, other.sum_reads, read);
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
