// Rule layout: the layouts of an op's results, from those of its operands. Private to the verify
// room.
#pragma once

#include "layouts.h"
#include "piper/ir/loop_letters.h"

namespace piper {

struct LaidOut {  // an operand; absent: kUnset with an empty type
  TensorType type;
  Lies lies;
  bool present = true;
};

using Dims = std::vector<LoopRule::Dim>;

// Returns the extent of a letter in an operand, and the first dim that it is in.
int64_t extent_in(const LoopRule& rule, const Dims& dims, const Shape& shape, char letter);
size_t dim_of(const Dims& dims, char letter);
// Returns the layout of an operand if the letter is cut. Nothing: the operand does not have the
// letter, or its cut is no block.
std::optional<Lies> placed(const LoopRule& rule, const Dims& dims, const Shape& shape, char letter,
                           int64_t outer, bool mirrored = false);
// Returns the index of the first present operand whose layout satisfies `is`, else their number.
template <class Is>
size_t first_of(std::span<const LaidOut> inputs, const Is& is) {
  size_t i = 0;
  while (i < inputs.size() && !(inputs[i].present && is(inputs[i].lies))) ++i;
  return i;
}

// Follows one use of an op of the table.
class OpLayouts {
 public:
  explicit OpLayouts(const AxisOfLayouts& axis) : axis_(axis.index), ranks_(axis.ranks) {}
  // Returns the layouts of its results. Nothing: `wrong` says why it cannot take its operands.
  std::optional<std::vector<Lies>> make(std::string_view op, const Attrs& attrs,
                                        std::span<const LaidOut> inputs,
                                        std::span<const TensorType> outputs);
  std::string wrong;
  std::vector<uint32_t> counted;  // by operand of that use: see LiesAfter

 private:
  using Made = std::optional<std::vector<Lies>>;
  struct Cut {
    char letter = 0;
    int64_t outer = 1;  // stretches within the loop
    bool mirrored = false;
  };
  struct Use {
    const OpDef* def = nullptr;
    OpTypes types;
    LoopRule rule;
    std::span<const LaidOut> inputs;
  };
  Made refuse(std::string reason);
  Made make_one(std::string_view op, const Attrs& attrs, std::span<const LaidOut> inputs,
                std::span<const TensorType> outputs);
  Made keep_whole(std::string_view op, const Attrs& attrs, std::span<const LaidOut> inputs,
                  std::span<const TensorType> outputs);
  std::optional<Use> use_of(std::string_view op, const Attrs& attrs,
                            std::span<const LaidOut> inputs, std::span<const TensorType> outputs);
  Made draw_blocks(const Use& use);
  Made draw_samples(const Use& use);
  static int64_t rows_left(const Use& use, int64_t rows, size_t cut);
  Made pass_number(const Use& use, std::string_view op, size_t from);
  Made pass_terms(const Use& use, bool greatest);
  Made stack_runs(const Use& use, size_t from);
  Made take_row(const Use& use);
  Made keep_own(const Use& use, size_t from);
  Made tell_apart(const Use& use, std::string_view op, size_t from);
  Made choose_once(const Use& use, std::string_view op);
  Made send_rows(const Use& use, size_t from);
  Made place_rows(const Attrs& attrs, const LaidOut& index);
  Made by_places(const Use& use);
  Made cut_runs(const Use& use, size_t from);
  Made cut_blocks(const Use& use, size_t from);
  std::vector<Cut> cuts_of(const Use& use, size_t input) const;
  Made by_cut(const Use& use, const Cut& cut);
  static std::pair<uint32_t, uint32_t> beside_all(const Use& use);
  Made by_turns(const Use& use, const Cut& cut) const;
  static Lies::Turn turn_of(const Use& use, size_t output);
  std::optional<Lies::Turn> together(Lies::Turn a, const Lies::Turn& b) const;
  Made of_parts(const Use& use, const Lies::Turn& turn);
  Made merge_parts(const Use& use);
  Made add_parts(const Use& use);
  std::optional<Lies> looked_up(const Use& use, const Cut& cut, size_t output) const;
  bool is_repeated(const Use& use, size_t input, char letter) const;
  bool sums_over(const Use& use, size_t output, char letter) const;
  bool takes(const Use& use, size_t input, const Cut& cut) const;
  bool begins(const Use& use, size_t input, const Cut& cut, int64_t before) const;

  const int32_t axis_;
  const int64_t ranks_;
};

// Returns a text such as "f32[2,4] cut at dim 1, f32[4] whole".
std::string print_operands(std::span<const LaidOut> operands);

}  // namespace piper
