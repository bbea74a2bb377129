// What ops make, as symbols: equal ones for equal values. A slice counts as the run of elements
// that it is, and a cast is after what only moves elements. What is added to a sum over the
// step is added to its symbol. The time that a plan takes follows its size, however its ops are
// nested. Private to the verify room.
#pragma once

#include <set>
#include <unordered_map>
#include <unordered_set>

#include "model.h"

namespace piper {

// Returns whether an op only copies all of its input.
bool renames(const Program& program, const ProgramOp& op);
// Returns all attributes but these.
Attrs without(const Attrs& attrs, std::initializer_list<std::string_view> names);
// Returns an op and its attributes, as expressions write pointwise ones.
std::string word_of(std::string_view op, const Attrs& attrs);
// Returns what the gradient of a Gelu multiplies with.
uint64_t slope_symbol(std::string_view form, uint64_t x);

// Holds for one device, by symbol, the shapes that values have, and those of the operands that they
// are made of.
struct WholeShapes {
  std::unordered_map<uint64_t, std::vector<Shape>> made;
  std::unordered_map<uint64_t, std::vector<std::vector<Shape>>> operands;
};
// Returns the symbol of own numbers, and sums of them.
inline uint64_t position_symbol() { return symbol_of("position"); }

class Values {
 public:
  // `whole`: of whole values, of which ranks may have parts; see whole.h.
  explicit Values(bool whole = false) : whole_(whole) {}
  // Returns by argument what it holds when the program has run, given what it held before. `sums`:
  // those that are sums over the step.
  // `cuts`: which dims ranks have blocks of; null: that is not known.
  std::vector<uint64_t> run(const Program& program, std::span<const uint64_t> args,
                            std::span<const int32_t> sums = {}, const CutDims* cuts = nullptr);

  // These return the symbol of what only moves elements of others: how, and which.
  uint64_t moved(uint64_t how, std::vector<uint64_t> of);
  uint64_t run_of(uint64_t symbol, int64_t first, int64_t count);
  uint64_t cast(uint64_t symbol, std::string_view to);
  uint64_t rounded(uint64_t symbol, std::string_view to);  // a cast, unless it is one already

  // Of whose elements the programs have taken squares, since this was emptied; those that the
  // last norm adds, as far as it takes them one by one; and what stands for it: rule update
  // proves that it is of all gradients.
  std::vector<uint64_t> squared, normed;
  uint64_t norm = 0;
  std::unordered_set<uint64_t>* made = nullptr;  // takes all that ops make
  // One device fills these; where ranks have parts, they are only asked.
  WholeShapes* shapes = nullptr;
  const WholeShapes* whole_shapes = nullptr;
  int64_t ranks = 1;           // along axes that cut values
  std::set<int64_t> parts{1};  // into which some of these cut a dim

  std::unordered_map<uint64_t, uint64_t> squares;  // by the symbol of their sum: of what

  // These serve whole values of which ranks have parts in turn: what such a part is of.
  uint64_t in_turn(uint64_t symbol);
  std::optional<uint64_t> of_turn(uint64_t symbol) const;
  // Says what a Concat puts together along its axis, with their extents there.
  struct Joined {
    size_t axis = 0;
    std::vector<std::pair<uint64_t, int64_t>> parts;
  };
  std::unordered_map<uint64_t, Joined> concats;
  // Describes elements that are one number up to where zeros go on after a dim, and another one
  // there: all are the first where nothing goes on.
  struct Row {
    double there = 0, behind = 0;
    int64_t count = 0;  // of the first
    bool is_all(double number) const { return there == number && behind == number; }
  };
  std::unordered_map<uint64_t, Row> rows;
  // Describes what has something else than zeros past the end of a dim that goes on: of what, and
  // which number, NaN where that is not known.
  struct Behind {
    uint64_t of = 0;
    double number = 0;
  };
  std::unordered_map<uint64_t, Behind> behind;

 private:
  // Describes what is cast or is a run, and to which type or from which element on.
  struct Cast {
    uint64_t of = 0, to = 0;
  };
  struct Begun {
    uint64_t of = 0;
    int64_t first = 0;
  };
  uint64_t cast_to(uint64_t symbol, uint64_t to);
  // Takes off the casts that all have, and says which, the outermost first.
  std::vector<uint64_t> take_casts(std::span<uint64_t> symbols) const;
  uint64_t put_casts(uint64_t symbol, const std::vector<uint64_t>& casts);

  const bool whole_;
  std::unordered_map<uint64_t, uint64_t> turns_;
  std::unordered_map<uint64_t, Cast> casts_;
  std::unordered_map<uint64_t, Begun> runs_;  // none is of a run
};

}  // namespace piper
