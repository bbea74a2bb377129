// Derivations of params.h: their steps, their values, and their inverses. One description serves
// what the importer emits, what the file's value must be for a given parameter, and what the
// parameter must have been.
#pragma once

#include "piper/frontend/params.h"

namespace piper::onnx_import {

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

// Returns whether the elements only change their order, or are repeated.
bool is_layout(const Derivation& derivation);
bool is_transpose(const Derivation& derivation);
// Returns "transposed", "reshaped", "1 + w", "exp(w)".
std::string describe(const Derivation& derivation);

// Returns what the derivation makes of `parameter`.
Result<OnnxTensor> value_of(const Derivation& derivation, const OnnxTensor& parameter);
// Returns the parameter from which `value` was derived. Fails where that cannot be told.
Result<OnnxTensor> parameter_of(const Derivation& derivation, const OnnxTensor& value);
// Returns the bytes of that parameter. Requires: the derivation is a layout.
Bytes undo_layout(const Derivation& derivation, const OnnxTensor& value);

// Returns whether numbers of one type differ by at most `ulps` units in the last place.
bool nearly_equal(const OnnxTensor& a, const OnnxTensor& b, double ulps);

}  // namespace piper::onnx_import
