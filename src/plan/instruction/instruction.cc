// The row of the table of instruction kinds that an op of the graph becomes.
#include "piper/plan/instruction.h"

#include <algorithm>

namespace piper {
namespace {

constexpr bool rows_stand_at_their_kinds() {
  for (size_t i = 0; i < kInstructions.size(); ++i)
    if (static_cast<size_t>(kInstructions[i].kind) != i) return false;
  return true;
}
static_assert(rows_stand_at_their_kinds());

}  // namespace

const InstructionDef* find_instruction(std::string_view op) {
  const auto row = std::ranges::find_if(kInstructions, [&](const InstructionDef& def) {
    return (def.op != nullptr && op == def.op) ||
           (def.maximum_op != nullptr && op == def.maximum_op);
  });
  return row == kInstructions.end() ? nullptr : &*row;
}

const InstructionDef* find_instruction_by_word(std::string_view word) {
  const auto row = std::ranges::find(kInstructions, word, &InstructionDef::word);
  return row == kInstructions.end() ? nullptr : &*row;
}

}  // namespace piper
