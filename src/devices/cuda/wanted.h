// What plans multiply, for whoever measures it: each product once, and where its operands are.
#pragma once

#include <array>

#include "product.h"

namespace piper::cuda {

inline constexpr int64_t kOperandAlignment = 256;  // bytes, of arguments and workspaces

struct Wanted {
  DeviceProduct product;
  std::array<bool, kOperands> is_present{};
  std::array<int64_t, kOperands> offset{};  // of kOperandAlignment
};
std::string to_string(const Wanted& wanted);
double flops_of(const DeviceProduct& product);
// Returns elements of an operand from the first up to the last one, gaps between lines among
// them.
int64_t extent_of(const DeviceProduct& product, Operand operand);
DType type_of(const DeviceProduct& product, Operand operand);

// Returns each once, as the table tells them apart; those with most work first, and no tails of
// products that are made in parts. Error: there is no kernel for an op of the programs.
Result<std::vector<Wanted>> products_of(std::span<const Program> programs);

}  // namespace piper::cuda
