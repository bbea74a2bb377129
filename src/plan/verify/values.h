// Symbols (hashes) of values: equal symbols mean equal values. They have a normal form, in which
// slices are runs of flat elements, and casts come after ops that only move elements. A
// contribution to a sum over the step is added to the symbol of the sum. The time is linear in the
// size of a plan, however its ops are nested. Private to the verify room.
#pragma once

#include <set>
#include <unordered_map>
#include <unordered_set>

#include "model.h"

namespace piper {

// Returns whether an op gives its input unchanged.
bool renames(const Program& program, const ProgramOp& op);
// Returns the attributes except these.
Attrs without(const Attrs& attrs, std::initializer_list<std::string_view> names);
// Returns an op with all its attributes, in short: "Cast:bf16". What absence means differs by op.
std::string word_of(std::string_view op, const Attrs& attrs);
// Returns the symbol of Gelu's derivative at x, the factor of its gradient.
uint64_t slope_symbol(std::string_view form, uint64_t x);

// These return a symbol of how elements lie in blocks: those of each piece of a tensor by
// themselves. (A rank's piece is its part, which rule layout follows.)
uint64_t places_symbol(const InBlocks& in, const Shape& piece, int64_t run);
uint64_t places_symbol(const Attrs& attrs, const Shape& shape);
// Return the symbols of a value of this shape in blocks (ToBlocks), of blocks as numbers
// (FromBlocks), and of a value that is rounded by both. `run`: of so many elements; 0: of all.
uint64_t put_in_blocks(uint64_t symbol, const Attrs& attrs, const Shape& shape);
uint64_t take_from_blocks(uint64_t symbol, const Attrs& attrs, const Shape& shape);
uint64_t round_in_blocks(uint64_t symbol, const InBlocks& in, const Shape& shape, int64_t run);

// Holds shapes of the plan for one device, by symbol: of values, and of the operands that they come
// from.
struct WholeShapes {
  std::unordered_map<uint64_t, std::vector<Shape>> made;
  std::unordered_map<uint64_t, std::vector<std::vector<Shape>>> operands;
  std::unordered_map<uint64_t, int64_t>
      extents;  // of ops on parts of a loop: its attribute `whole`
};
// Returns the symbol of a rank's position along axes, and of sums of such.
// Equal bytes of two types are two numbers.
inline uint64_t literal_symbol(DType dtype, std::string_view bytes) {
  return join_symbols(symbol_of(bytes), symbol_of(info(dtype).name));
}
inline uint64_t position_symbol() { return symbol_of("position"); }

class Values {
 public:
  // `whole`: symbols are those of whole values, though ranks may hold parts; see whole.h.
  explicit Values(bool whole = false) : whole_(whole) {}
  // Returns the symbols of arguments after a program, from those before it. `sums`: arguments that
  // are sums over the step. `cuts`: the dims that ranks cut; null: unknown.
  std::vector<uint64_t> run(const Program& program, std::span<const uint64_t> args,
                            std::span<const int32_t> sums = {}, const CutDims* cuts = nullptr);

  // These return symbols in normal form: of elements of `of` that are moved in the way `how`, of a
  // flat run of elements, and of casts.
  uint64_t moved(uint64_t how, std::vector<uint64_t> of);
  uint64_t run_of(uint64_t symbol, int64_t first, int64_t count);
  uint64_t cast(uint64_t symbol, std::string_view to);
  uint64_t rounded(uint64_t symbol,
                   std::string_view to);  // a cast, unless the symbol is one already

  // Values of which programs have computed squares since this was last cleared; those whose squares
  // the largest norm adds, if it reads each of them; and the symbol of a norm. Rule update proves
  // of which gradients each is the norm.
  std::vector<uint64_t> squared, normed;
  uint64_t norm = 0;
  std::unordered_set<uint64_t>* made = nullptr;  // if set, gets the symbols of all results
  // The plan for one device fills `shapes`. Other plans compare with `whole_shapes`.
  WholeShapes* shapes = nullptr;
  const WholeShapes* whole_shapes = nullptr;
  int64_t ranks = 1;           // the number of ranks along all axes that cut values
  std::set<int64_t> parts{1};  // into how many parts subsets of these axes may cut a dim
  // Holds for each padded dim of a state the ratio of its extent on one device to that of all
  // ranks' parts, in lowest terms. Other dims are not padded.
  std::set<std::pair<int64_t, int64_t>> padded;

  std::unordered_map<uint64_t, uint64_t> squares;  // by the symbol of the sum of squares: the value

  // These return symbols of blocks that rotate through a ring of ranks, and of the values that
  // these are blocks of.
  uint64_t in_turn(uint64_t symbol);
  std::optional<uint64_t> of_turn(uint64_t symbol) const;
  // Holds the operands of a Concat, with their extents along its axis.
  struct Joined {
    size_t axis = 0;
    std::vector<std::pair<uint64_t, int64_t>> parts;
  };
  std::unordered_map<uint64_t, Joined> concats;
  // Returns the symbol of what ranks have each of its own: of rank k the k-th. By the symbol: all.
  uint64_t spread(const std::vector<uint64_t>& own);
  std::unordered_map<uint64_t, std::vector<uint64_t>> spreads;
  // Return the symbols of the values of which a value of this shape has the runs, a row for each
  // rank, as the ranks' own; and of these runs. Another symbol, if it is no such value.
  uint64_t taken_apart(uint64_t rows, const Shape& stack);
  uint64_t put_in_rows(uint64_t own);
  // Describes all runs of a value, one after the other, of which the last ones end in padding.
  struct Runs {
    uint64_t of = 0;
    int64_t ranks = 0;  // each has a run
  };
  std::unordered_map<uint64_t, Runs> runs_of_all;  // by the symbol of all
  // Describes a row of elements that are one number up to the end of a dim, and another one in its
  // padding.
  struct Row {
    double there = 0, behind = 0;
    int64_t count = 0;  // elements before the padding
    bool is_all(double number) const { return there == number && behind == number; }
  };
  std::unordered_map<uint64_t, Row> rows;
  // Describes a value with something else than zeros in its padding: the value without it, and the
  // number there (NaN: unknown).
  struct Behind {
    uint64_t of = 0;
    double number = 0;
  };
  std::unordered_map<uint64_t, Behind> behind;

 private:
  // Says what a symbol is a cast of, and to which type; or a run of, and from which element on.
  struct Cast {
    uint64_t of = 0, to = 0;
  };
  struct Begun {
    uint64_t of = 0;
    int64_t first = 0;
  };
  uint64_t all_runs(uint64_t symbol, int64_t ranks, int64_t elements);
  uint64_t cast_to(uint64_t symbol, uint64_t to);
  // Removes the casts that all symbols have in common and returns them, the outermost first.
  std::vector<uint64_t> take_casts(std::span<uint64_t> symbols) const;
  uint64_t put_casts(uint64_t symbol, const std::vector<uint64_t>& casts);

  const bool whole_;
  std::unordered_map<uint64_t, uint64_t> turns_;
  std::unordered_map<uint64_t, Cast> casts_;
  std::unordered_map<uint64_t, Begun> runs_;  // a run of a run is kept as one run
};

}  // namespace piper
