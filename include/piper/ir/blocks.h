// Values of a graph that are rounded on their way from one op to another: cast to 16 bits, or put
// into blocks of 8 bits, each of which has a scale (piper/base/scaled.h).
#pragma once

#include "piper/base/scaled.h"
#include "piper/ir/ops.h"

namespace piper {

// Says how a value travels: in this type, or in these blocks.
struct SentAs {
  std::optional<DType> dtype;
  InBlocks in;
  std::string name() const;      // "bf16", "int8"
  std::string change_of() const;  // by how much a number changes at most
};
// Blocks begin anew in each run of the dims from an axis on: the last dims that have at least
// `block` elements together, but none of the first `least` dims.
int64_t axis_of_blocks(const Shape& shape, int64_t block, int64_t least);
// Return the value as it travels, and of that the numbers of this type.
ValueId put_as(Builder& build, ValueId value, const SentAs& how, int64_t least);
ValueId take_as(Builder& build, ValueId sent, const TensorType& type, const SentAs& how,
                int64_t least);
// Returns how many bytes a value takes as it travels.
int64_t bytes_as(const TensorType& type, const SentAs& how, int64_t least);

}  // namespace piper
