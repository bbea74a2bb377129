// What the training steps of a plan do, as symbols that do not depend on which rank does it: what
// each block of samples adds to a sum, what states and reports become. A sample is known by its
// place in its block, so that all blocks that do the same have the same symbols; that a block's
// values come from its own samples, and that a finished sum has all of them, rule sum proves.
// Private to the verify room.
#pragma once

#include <unordered_set>

#include "values.h"

namespace piper {

struct Effects {
  // Counts what all uses of a block add to a sum.
  struct Added {
    int32_t step = 0, target = 0;
    int64_t count = 0;  // of samples
    uint64_t symbol = 0;
    Spot last;  // that adds to it
  };
  struct Reported {
    int32_t step = 0, cell = 0;
    std::string_view name;
    uint64_t symbol = 0;
  };
  std::vector<Added> added;  // in the order of the run
  std::vector<Reported> reported;
  std::vector<std::vector<uint64_t>> held;  // by cell and buffer, at the end
  // All that ops make of samples, and the values of whose elements squares are taken.
  std::unordered_set<uint64_t> made, squared;
  WholeShapes shapes;            // of one device, where whole values are followed
  std::vector<uint64_t> normed;  // the values whose squares the first norm adds, in order
  // The first computation, updates apart, that makes something else than `known`, and which of its
  // arguments; and the first that squares something else.
  Spot strange, strange_square;
  size_t strange_arg = 0;
};

uint64_t sum_symbol(int32_t step, std::string_view name);
// Returns by what name a state or constant is known to plans that keep it otherwise: whole or a
// part. A copy is known as its parameter, and has another type.
std::string identity_of(const RoleProgram& role, const Tensor& tensor);

// Follows the section, which has an order, `steps` times over. `whole`: what ranks have parts of is
// known as the whole value, as on one device. `known`: what is not strange, and how values are laid
// out; null where nothing is compared.
Effects follow(const Model& model, const Section& section, int32_t steps, bool whole,
               const Effects* known, const LayoutsFound* layouts = nullptr);

// structure: a section that is not the body leaves what is kept as it is.
void check_untouched(const Model& model, const Section& section, Findings& findings);

}  // namespace piper
