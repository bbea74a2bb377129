// How a value of the file comes from a parameter: ops of ONNX, one after another. One description
// for what the importer emits, for what the file's value must be of a given parameter, and for what
// the parameter must have been.
#pragma once

#include "onnx_model.h"

namespace piper::onnx_import {

class Emitter;
struct Val;

struct Step {
  OnnxNode node;                     // its op, as of opset 24, and its attributes
  std::vector<OnnxTensor> operands;  // constants
  bool last = false;                 // of the node's inputs is what it is done to; else the first
  Shape from;                        // of that
};
using Derivation = std::vector<Step>;  // empty: the parameter itself

Step permute_step(const Shape& from, std::vector<int64_t> perm);
Step reshape_step(const Shape& from, const Shape& to);
Step expand_step(const Shape& from, const Shape& to);
Step slice_step(const Shape& from, int64_t axis, int64_t start, int64_t end);
Step tile_step(const Shape& from, const std::vector<int64_t>& times);
Step gather_step(const Shape& from, OnnxTensor rows);  // along its first dim
Step sum_step(const Shape& from, const std::vector<int64_t>& axes, bool keepdims);
Step function_step(std::string op, const Shape& from);
// "Add" and 1: value + 1; `last`: 1 + value, which matters to "Sub" and "Div".
Step literal_step(std::string op, const Shape& from, OnnxTensor literal, bool last = false);
OnnxTensor scalar_literal(double value, DType dtype);

Derivation transposition(const Shape& from);  // of a matrix

// The same elements in another order or repeated; and their order alone is changed.
bool is_layout(const Derivation& derivation);
bool is_transpose(const Derivation& derivation);
// "transposed", "reshaped", "1 + w", "exp(w)".
std::string describe(const Derivation& derivation);

Result<Val> derive(Emitter& emit, const Derivation& derivation, Val parameter);
Result<OnnxTensor> value_of(const Derivation& derivation, const OnnxTensor& parameter);
// The parameter of which `value` was derived. Errors: why it cannot be told.
Result<OnnxTensor> parameter_of(const Derivation& derivation, const OnnxTensor& value);
// That of a layout: the bytes alone.
Bytes undo_layout(const Derivation& derivation, const OnnxTensor& value);

// Whether numbers of one type are equal but for `ulps` units in the last place.
bool nearly_equal(const OnnxTensor& a, const OnnxTensor& b, double ulps);

}  // namespace piper::onnx_import
