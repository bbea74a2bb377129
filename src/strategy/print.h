// The parts of print_strategy.
#pragma once

#include "program.h"

namespace piper {

std::string print_expression(const expr::Tree& tree, const Variables& bound);
// Lines, each with its end.
std::string print_program(const program::Program& program, const Variables& bound);

}  // namespace piper
