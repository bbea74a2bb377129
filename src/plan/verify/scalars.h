// Rule update: the numbers that all updates of a step share, followed from the gradients' squares
// and the states through programs, messages and reductions. Private to the verify room.
#pragma once

#include <functional>
#include <map>
#include <unordered_map>

#include "mail.h"
#include "terms.h"

namespace piper {

// Says what a number is, by the ops that make it. The names are in the table of ops (scalars.cc).
enum class NumberKind : uint8_t {
  kNone,
  kState,         // kept: a counter, or the scale of the loss
  kMoment,        // kept of a parameter by its optimizer
  kGradient,      // a finished one
  kTerms,         // squares of gradients, the loss
  kNorm,          // of the gradients as they are, perhaps scaled
  kUnscaledNorm,  // of what they stand for
  kClip,          // a factor that clips them
  kFactor,        // one that undoes the scale, too
  kScale,         // of the loss
  kRate,          // of learning
  kSkip,          // whether the step is skipped
};

struct Number {
  NumberKind kind = NumberKind::kNone;
  uint64_t symbol = 0;  // equal for equal numbers, on all devices
  uint64_t of = 0;      // kRate: the symbol of the count of updates
  int32_t target = -1;  // kGradient, of which each rank along `cut` has another run
  Terms terms;          // kTerms
  uint32_t cut = 0;
  DType exact = DType::kF64;  // kGradient: of whose numbers it is one
  int32_t step = -1;          // in which it was made; -1: before them
  int32_t version = 0;        // kMoment: how many updates have written it
};

class StepScalars {
 public:
  // Says of a buffer which parameter it is, and along which axes each rank holds another run of its
  // sum.
  struct Known {
    int32_t param = -1;
    uint32_t cut = 0;
  };
  using KnownOf = std::function<Known(Spot place, int32_t buffer)>;
  StepScalars(const Model& model, const Section& section, Findings& findings, KnownOf known_of);

  // Follows every instruction, whatever it is called: a buffer that it writes holds a number of the
  // step afterwards if that follows from what it does.
  void follow(Spot place, const Instruction& one);
  void collective(std::span<const Spot> members);

  // Returns what the cell holds of the numbers of a step.
  Number number_in(int32_t cell, int32_t buffer) const {
    return kinds_[cell][buffer] == NumberKind::kNone ? Number{} : held_[cell].at(buffer);
  }
  // A report of the step is what its name says, and the same number on all ranks.
  void check_report(int32_t cell, const std::string& name, int32_t step, const Number& number);
  void check_end();

 private:
  using Held = std::unordered_map<int32_t, Number>;  // by buffer
  class Values;

  const RoleProgram& role(Spot place) const { return *model_.cells[place.cell].role; }
  std::string name(Spot place) const { return name_of(model_, section_, place); }

  bool concerns(Spot place, const Instruction& one);
  void compute(Spot place, const Instruction& one);
  void move(Spot place, const Instruction& one);  // a send, receive or copy
  Number squares_of(const ProgramOp& op, const Number& gradient) const;
  Number norm_of(Spot place, std::span<const Number* const> inputs);
  Number made_by(Spot place, const ProgramOp& op, std::span<const Number* const> inputs,
                 size_t output);
  void check_update(Spot place, const std::string& shown, size_t states,
                    std::span<const Number* const> inputs);
  // Checks that a state is that of one parameter, always the same of its states.
  void check_state(Spot place, const std::string& shown, int32_t param, size_t number,
                   const std::string& state, const Number& held);
  bool is_known_as(std::string_view name, int32_t step, const Number& number) const;
  Number reduced(std::span<const Spot> members, size_t arg) const;
  bool holds(Spot place) const;
  void set(Spot place, int32_t buffer, const Number& number);
  void forget(Spot place, std::span<const int32_t> args, size_t first, size_t each);
  // Says in which way the squares are not those of all gradients; empty: they are.
  std::string wrong_squares(const Terms& terms) const;

  const Model& model_;
  const Section& section_;
  Findings& findings_;
  const KnownOf known_of_;
  std::vector<Held> held_;                      // by cell
  std::vector<std::vector<NumberKind>> kinds_;  // of these, by cell and buffer
  Mail<Number> sent_;                           // where there is any
  std::unordered_map<const Program*, bool> concerned_;

  // Of each training step what was met first: where, and its symbol.
  using Firsts = std::map<std::pair<int32_t, std::string_view>, std::pair<std::string, uint64_t>>;
  Firsts factors_, reports_;
  // By the symbol of an optimizer's state: its parameter, and which of the states it is.
  std::unordered_map<uint64_t, std::pair<int32_t, size_t>> state_of_;
  std::map<int32_t, uint64_t> clipped_;  // by training step: the norm that ClipFactor takes
};

}  // namespace piper
