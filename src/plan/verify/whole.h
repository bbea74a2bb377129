// Symbols of whole values, for plans whose ranks hold parts of them. Private to the verify room.
#pragma once

#include "piper/ir/loop_letters.h"
#include "program_run.h"

namespace piper {

// Returns the shape with leading dims joined to one, so that it has at most `dims`, or one.
Shape with_dims(const Shape& shape, size_t dims);

// Returns whether dim `d` counts packed rows, of which there are others than on one device.
bool counts_packed(const std::vector<CutDim>* cuts, size_t d);

// Follows a program on parts as if it ran on the whole values. Rule layout proves which part of a
// value each rank has, or that it has a term of it, so an op on parts gives the part of what it
// gives on whole values. Symbols leave out extents, numbers of parts, and all else that differs
// between a part and its whole.
class WholeRun : ProgramRun {
 public:
  WholeRun(Values& values, const Program& program, std::span<const uint64_t> args,
           std::span<const int32_t> sums, const CutDims* cuts);
  std::vector<uint64_t> run();

 private:
  using Made = std::vector<uint64_t>;
  struct Operand {
    uint64_t symbol = 0;
    const TensorType* type = nullptr;           // null: absent
    double behind = 0;                          // the number in its padding; NaN: unknown
    const std::vector<CutDim>* cuts = nullptr;  // null: unknown
  };
  struct Part {  // the shape of an operand, with what tells of which whole it may be a part
    Shape shape;
    const std::vector<CutDim>* cuts = nullptr;  // null: unknown
    size_t row_dims = 0;  // leading dims that may be joined to one on one device
  };
  struct Use {
    std::string_view op;
    const Attrs& attrs;
    std::vector<Operand> inputs;
    std::vector<TensorType> outputs;
    const std::vector<CutDim>* cuts = nullptr;  // of the only output
  };

  const std::vector<CutDim>* cuts_of(int32_t value) const {
    return cuts_ ? &(*cuts_)[static_cast<size_t>(value)] : nullptr;
  }
  void note(uint64_t symbol, const Shape& shape);
  Operand operand(const ProgramOp& op, size_t i) const;
  WholeRun::Made made_of_operands(const ProgramOp& op);
  Made results(const ProgramOp& op);
  Made product(const ProgramOp& op);
  Made make(Use use);
  static bool joins_turns(const Use& use);
  Made make_one(Use use);
  OpTypes types_of(const Use& use);
  WholeRun::Made make_counted(const OpDef& def, const Use& use, const OpTypes& types);
  Made make_exact(const Use& use);
  uint64_t rounded(uint64_t symbol, DType dtype);
  std::optional<Made> apart(const OpDef& def, const OpTypes& types, const Use& use);
  Made named(const OpDef* def, const Use& use, const std::vector<bool>& counts,
             const OpTypes& types);
  Made with_ends(const OpDef& def, const LoopRule& rule, const Use& use, const std::string& letters,
                 Made made);
  bool says_whole(const OpDef& def, const OpTypes& types, uint64_t symbol) const;
  bool is_extent(const LoopRule& rule, char of, int64_t all, const OpTypes& types,
                 uint64_t symbol) const;
  uint64_t in_shape(const Use& use) const;
  uint64_t in_dims(uint64_t symbol, const Use& use);
  uint64_t of_shapes(uint64_t symbol, uint64_t key, const std::vector<Part>& own);
  bool is_part_of(const Part& own, const Shape& whole) const;
  bool are_parts(int64_t own, int64_t parts, int64_t whole, bool is_run) const;
  bool may_be_part(int64_t own, int64_t whole, bool is_run = false) const;
  std::optional<uint64_t> moved(const Use& use);
  uint64_t cast(const Use& use);
  uint64_t sliced(const Use& use);
  uint64_t concatenated(const Use& use);
  std::optional<uint64_t> without_last(const Use& use) const;
  uint64_t padded(const Use& use);
  std::optional<uint64_t> without_padding(const Use& use);
  uint64_t ends_in(uint64_t symbol, double number);
  static double moved_end(const Use& use);
  double repeated_end(const Use& use) const;
  bool may_be_part(const Shape& own, const Shape& whole,
                   const std::vector<CutDim>* cuts = nullptr) const;
  static int64_t parts_of(const std::vector<CutDim>* cuts, size_t d, const Shape& own,
                          const Shape& whole);
  void clear_repeated(LoopRule& rule, uint64_t symbol, bool swapped) const;
  void note_letters(const std::vector<LoopRule::Dim>& dims, const std::vector<CutDim>* cuts,
                    const Shape& own, const Shape& whole, bool doubtful, std::string& here,
                    std::string& equal) const;
  std::string letters_that_go_on(const LoopRule& rule, const Use& use, uint64_t symbol,
                                 bool swapped) const;
  std::string letters_that_go_on(const LoopRule& rule, const Use& use, uint64_t symbol,
                                 bool swapped, bool doubtful) const;
  bool is_equal_part(int64_t own, int64_t whole) const;
  bool makes_zeros(const OpDef& def, const LoopRule& rule, const Use& use, char letter,
                   size_t output) const;
  std::optional<std::vector<double>> ends(const OpDef& def, const LoopRule& rule, const Use& use,
                                          const std::string& letters);
  bool ends_where(int64_t count, const TensorType& row, const Operand& of) const;
  std::set<int64_t> parts_along(const std::vector<CutDim>& cuts, size_t dim) const;

  const CutDims* const cuts_;
};

}  // namespace piper
