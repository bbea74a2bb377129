// Pointwise ops as text: words of an expression -> calls of functions of device/expression.cuh.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

// Says where an operand of a step comes from: an input, or an earlier step.
struct Source {
  int32_t input = -1, step = -1;
};
struct ExpressionStep {
  std::string function;  // of what is computed in
  std::vector<Source> operands;
  DType type = DType::kF32;  // of the result
};
struct Expression {
  std::vector<ExpressionStep> steps;
  std::vector<size_t> outputs;  // steps
};

// Whether the op goes element by element, its operands broadcast to the shape of its results.
bool is_expression(std::string_view op);
// Precondition: is_expression(use.op). The words of Fused are as src/devices/cpu/fused.cc says.
Result<Expression> expression_of(const Use& use);
// Returns the names of the ops that are words.
std::vector<std::string> expression_ops();

}  // namespace piper::cuda_kernels
