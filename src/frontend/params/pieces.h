// The functions that the exporter computes, by the stems of their calls.
#pragma once

#include "ways.h"

namespace piper::onnx_import {

enum class PieceKind {
  kUnknown,
  kSame,
  kPermute,
  kReshape,
  kRepeat,
  kPart,
  kLookup,
  kIndex,
  kSum,
  kNumber
};

PieceKind kind_of(std::string_view stem);
Derivation function_steps(std::string_view stem, const Shape& shape);  // empty: it is not known
bool looks_up(const Chain& chain);
// Which of the inner functions came first is not in the file: all orders, of so many at most.
inline constexpr size_t kMostOrdered = 5;
std::vector<Chain> orders(const Chain& chain);
Bytes slice_of(const OnnxTensor& whole, size_t axis, int64_t start, const Shape& part);

}  // namespace piper::onnx_import
