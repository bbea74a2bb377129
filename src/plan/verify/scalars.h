// Rule update: follows the numbers that all updates of a step share (norm, clip factor, learning
// rate, loss scale), from squares of gradients and states through programs, messages and
// reductions. Private to the verify room.
#pragma once

#include <functional>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "terms.h"
#include "walk.h"

namespace piper {

// Says what a number is, by the op that computes it (see the table in scalars.cc).
enum class NumberKind : uint8_t {
  kNone,
  kState,         // a scalar state: a counter, or the loss scale
  kMoment,        // an optimizer's state for a parameter
  kGradient,      // a finished gradient
  kDirection,     // made of one gradient, and perhaps of other values
  kTerms,         // sums of squares of gradients, or the loss
  kNorm,          // norm of the gradients, times the loss scale if there is one
  kUnscaledNorm,  // norm divided by the loss scale
  kClip,          // factor that clips gradients
  kFactor,        // factor that also divides by the loss scale
  kScale,         // loss scale
  kRate,          // learning rate
  kSkip,          // whether the step is skipped
  kMean,          // a sum over the step by another one
};

struct Number {
  NumberKind kind = NumberKind::kNone;
  uint64_t symbol = 0;  // equal for equal numbers, on all devices
  uint64_t of = 0;      // kRate: the symbol of the count of updates
  int32_t target =
      -1;  // kGradient, kDirection: its sum, of which each rank along `cut` has another run
  // kDirection: the sums of its rows, of each of which it has what is made of that.
  std::vector<int32_t> rows;
  Terms terms;  // kTerms
  uint32_t cut = 0;
  DType exact = DType::kF64;  // kGradient: a type that represents it exactly
  int32_t step = -1;          // in which it was computed; -1: before all steps
  int32_t version = 0;        // kMoment: the number of updates so far
  int32_t site = -1;          // of whose gradients only a norm is, and what is made of it
  bool clips = false;         // kClip, kFactor: a norm is in it
  bool in_blocks = false;     // kGradient: as it travels
};

class StepScalars : public BufferWalk<Number> {
 public:
  // Says what rule sum knows of a buffer: which parameter it is, and over which axes it is sharded.
  struct Known {
    int32_t param = -1;
    uint32_t cut = 0;
  };
  using KnownOf = std::function<Known(Spot place, int32_t buffer)>;
  StepScalars(const Model& model, const Section& section, Findings& findings, KnownOf known_of);

  // Returns the number that a buffer holds.
  Number number_in(int32_t cell, int32_t buffer) const {
    return kinds_[cell][buffer] == NumberKind::kNone ? Number{} : held_[cell].at(buffer);
  }
  // Checks that a report is the number that its name says, and the same on all ranks.
  void check_report(int32_t cell, const std::string& name, int32_t step, const Number& number);
  void check_end();

 private:
  using Held = std::unordered_map<int32_t, Number>;  // by buffer
  class Values;

  const RoleProgram& role(Spot place) const { return *model_.cells[place.cell].role; }
  std::string name(Spot place) const { return name_of(model_, section_, place); }

  Number get(Spot place, int32_t buffer) override { return number_in(place.cell, buffer); }
  void put(Spot place, int32_t buffer, Number number) override;
  bool concerns(Spot place, const Instruction& one);
  // Follows a program of whatever pass: its results are numbers of the step only if its ops and
  // operands show that.
  void compute(Spot place) override;
  void collective(std::span<const Spot> members) override;
  Number joined(std::span<const Spot> members, size_t a) const;
  NumberKind kind_of_kept(const BufferFacts& facts, const Tensor& tensor);
  Number squares_of(const ProgramOp& op, const Number& gradient) const;
  Number norm_of(Spot place, std::span<const Number* const> inputs);
  Number made_by(Spot place, const ProgramOp& op, std::span<const Number* const> inputs,
                 size_t output);
  void check_update(Spot place, const std::string& shown, int32_t param, size_t states,
                    std::span<const Number* const> inputs);
  // Checks that an optimizer state belongs to one parameter, is always the same one of its states,
  // and is not called as another one is.
  void check_state(Spot place, const ProgramOp& op, const std::string& shown, int32_t param,
                   size_t number, const std::string& state, const Number& held);
  // Checks that a state of an optimizer's op has the shape and the cuts of the parameter: each
  // element belongs to one of the parameter.
  std::string otherwise_kept(int32_t param, const Tensor& state) const;
  // Checks a state from which a direction is made: it may have other dims than the parameter, but
  // where a dim is padded, it is padded as one of the parameter's.
  void check_kept_direction(Spot place, int32_t buffer, const Number& number);
  bool is_padded_as(const Tensor& state, const Tensor& param) const;
  bool is_called_as_another(const ProgramOp& op, int32_t param, size_t number,
                            const Tensor& state) const;
  bool is_known_as(std::string_view name, int32_t step, const Number& number) const;
  Number reduced(std::span<const Spot> members, size_t arg) const;
  int32_t axis_of_runs(const Group& group, const Terms& terms) const;
  Number direction_in(Spot place, int32_t buffer) const;
  Number direction_of(std::span<const Spot> members, size_t arg) const;
  bool holds(Spot place) const;
  // Returns how the squares differ from those of all gradients; empty: they do not.
  void count_followed(Terms& terms) const;
  std::string wrong_squares(const Terms& terms, int32_t site) const;
  int32_t site_of(const Terms& terms) const;

  const Model& model_;
  Findings& findings_;
  const KnownOf known_of_;
  std::vector<Held> held_;                      // by cell
  std::vector<std::vector<NumberKind>> kinds_;  // kinds of held_, by cell and buffer
  std::unordered_map<const Program*, bool> concerned_;
  bool scales_ = false;  // some program reads a loss scale: gradients are divided by it

  // By training step, name and site: where the first such number was found, and its symbol.
  using Firsts =
      std::map<std::tuple<int32_t, std::string_view, int32_t>, std::pair<std::string, uint64_t>>;
  Firsts factors_, reports_;
  std::unordered_map<uint64_t, const Tensor*> states_;  // by symbol; the first of each
  std::unordered_map<int32_t, const Tensor*> params_;   // by id; the first of each
  std::unordered_multimap<int32_t, const Tensor*> trained_;  // those of params_, by their gradient
  // By the symbol of an optimizer's state: its parameter, and which of the states it is.
  std::unordered_map<uint64_t, std::pair<int32_t, size_t>> state_of_;
  // Symbols of states that ops of the step read as its numbers. Other scalar states are those of
  // scalar parameters.
  std::unordered_set<uint64_t> of_step_;
  // By training step and site: the norm that ClipFactor reads. By training step: what is updated
  // without one.
  std::map<std::pair<int32_t, int32_t>, uint64_t> clipped_;
  std::map<int32_t, std::string> unclipped_;
};

}  // namespace piper
