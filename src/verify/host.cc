// Rule state, for what lives on the host: each kept value comes to the device, is advanced there by
// one computation, and its next value returns to its own place. Followed in issue order, which rule
// order shows to be the one that counts.
#include "model.h"

namespace piper {
namespace {

class HostStates {
 public:
  HostStates(const Model& model, const Section& section, int32_t cell, Findings& findings)
      : model_(model),
        section_(section),
        findings_(findings),
        cell_(cell),
        role_(*model.cells[cell].role),
        kept_(model.cells[cell].facts->kept) {}

  void run() {
    if (std::none_of(kept_.begin(), kept_.end(), [this](int32_t b) { return is_kept(b); })) return;
    held_.resize(role_.buffers.size());
    advanced_by_.resize(role_.buffers.size());
    for (int32_t b : kept_)
      if (is_kept(b)) held_[b].state = b;
    const auto& list = section_.lists[cell_];
    for (int32_t i = 0; i < static_cast<int32_t>(list.size()); ++i) visit({cell_, i}, *list[i]);
    for (int32_t b : kept_)
      if (is_kept(b) && advanced_by_[b].valid() && !held_[b].advanced)
        findings_.add("order", "'{}' on {} is not what {} has made of it when the step ends",
                      quote_control(role_.name(b)), model_.who(cell_),
                      name_of(section_.at(advanced_by_[b])));
  }

 private:
  struct Held {
    int32_t state = -1;  // the value of this buffer of the host
    bool advanced = false;
  };
  bool is_kept(int32_t b) const {
    return role_.tensor(b).host && role_.tensor(b).kind == BufferKind::kState;
  }

  void visit(Spot place, const Instruction& one) {
    if (one.kind == InstructionKind::kCompute) return compute(place, one);
    if (one.kind != InstructionKind::kCopy) {
      if (one.kind != InstructionKind::kSend)
        for (int32_t arg : one.args) held_[arg] = {};
      return;
    }
    const int32_t from = one.args[0], to = one.args[1];
    if (is_kept(to) && held_[from].state != to)
      findings_.add("order", "{} puts something else where '{}' is kept",
                    name_of(model_, section_, place), quote_control(role_.name(to)));
    held_[to] = Held(held_[from]);
  }
  void compute(Spot place, const Instruction& one) {
    const Program& program = role_.programs[one.program];
    for (size_t a = 0; a < one.args.size(); ++a) {
      if (!program.arg_written[a]) continue;
      Held& held = held_[one.args[a]];
      if (held.state < 0) continue;
      if (!program.arg_read[a]) {
        held = {};
        continue;
      }
      Spot& by = advanced_by_[held.state];
      if (by.valid())
        findings_.add("order", "{} advances '{}', which {} has already advanced",
                      name_of(model_, section_, place), quote_control(role_.name(held.state)),
                      name_of(section_.at(by)));
      by = place;
      held.advanced = true;
    }
  }

  const Model& model_;
  const Section& section_;
  Findings& findings_;
  int32_t cell_;
  const RoleProgram& role_;
  const std::vector<int32_t>& kept_;  // buffers that outlive a step
  std::vector<Held> held_;            // by buffer
  std::vector<Spot> advanced_by_;     // by buffer of the host
};

}  // namespace

void check_host_states(const Model& model, const Section& section, Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    HostStates(model, section, c, findings).run();
}

}  // namespace piper
