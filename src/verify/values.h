// What ops make, as symbols: equal ones for equal values. A slice counts as the run of elements
// that it is, and a cast stands behind what only moves elements. What is added to a sum over the
// step is added to its symbol. The time that a plan takes follows its size, however its ops are
// nested. Private to the verify room.
#pragma once

#include <unordered_map>
#include <unordered_set>

#include "model.h"

namespace piper {

// Whether an op only copies all of its input.
bool renames(const Program& program, const ProgramOp& op);
// All attributes but these.
Attrs without(const Attrs& attrs, std::initializer_list<std::string_view> names);

class Values {
 public:
  // By argument what it holds when the program has run, given what it held before. `sums`: those
  // that are sums over the step.
  std::vector<uint64_t> run(const Program& program, std::span<const uint64_t> args,
                            std::span<const int32_t> sums = {});

  // Of what only moves elements of others: how, and which.
  uint64_t moved(uint64_t how, std::vector<uint64_t> of);
  uint64_t run_of(uint64_t symbol, int64_t first, int64_t count);
  uint64_t cast(uint64_t symbol, std::string_view to);

  // Of whose elements the programs have taken squares, since this was emptied; those that the
  // last norm adds, as far as it takes them one by one; and what stands for it: rule update
  // proves that it is of all gradients.
  std::vector<uint64_t> squared, normed;
  uint64_t norm = 0;
  std::unordered_set<uint64_t>* made = nullptr;  // takes all that ops make

  std::unordered_map<uint64_t, uint64_t> squares;  // by the symbol of their sum: of what

 private:
  // What is cast or is a run, and to which type or from which element on.
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

  std::unordered_map<uint64_t, Cast> casts_;
  std::unordered_map<uint64_t, Begun> runs_;  // none is of a run
};

}  // namespace piper
