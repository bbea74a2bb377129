// The effects of a plan's training steps, as symbols that do not depend on the ranks that compute
// them: what each block of samples adds to each sum, and what states and reports become. Samples
// are named by their place in a block, so blocks with the same computations have the same symbols.
// Rule sum proves that a block's values come from its own samples, and that a finished sum has all
// blocks. Private to the verify room.
#pragma once

#include <unordered_set>

#include "values.h"

namespace piper {

struct Effects {
  // Holds what all uses of a parameter add to a sum for one block of samples.
  struct Added {
    int32_t step = 0, target = 0;
    int64_t count = 0;  // samples in the block
    uint64_t symbol = 0;
    Spot last;  // the last instruction that adds to it
  };
  struct Reported {
    int32_t step = 0, cell = 0;
    std::string_view name;
    uint64_t symbol = 0;
  };
  std::vector<Added> added;  // in the order of the run
  std::vector<Reported> reported;
  std::vector<std::vector<uint64_t>> held;  // by cell and buffer, at the end
  // The symbols of all results, and of the values of which squares are summed.
  std::unordered_set<uint64_t> made, squared;
  bool rounds = false;           // terms of sums, to travel
  WholeShapes shapes;            // in the plan for one device, if whole values are followed
  std::vector<uint64_t> normed;  // the values whose squares the first norm adds, in order
  // The first computation (except updates) with a result that is not in `known`, and the argument
  // that gets it; and the first that sums squares of another value.
  Spot strange, strange_square;
  size_t strange_arg = 0;
};

uint64_t sum_symbol(int32_t step, std::string_view name);
// Returns a name for a state that is the same in all plans, whether they keep it whole or in parts.
// A 16-bit copy has the name of its parameter.
std::string identity_of(const RoleProgram& role, const Tensor& tensor);

// Follows the section `steps` times; it must have an order. `whole`: parts have the symbols of
// their whole values, as on one device. `known`: the effects to compare with. `layouts`: how values
// are laid out. Null: nothing is compared, or no value is cut.
Effects follow(const Model& model, const Section& section, int32_t steps, bool whole,
               const Effects* known, const LayoutsFound* layouts = nullptr);

}  // namespace piper
