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
  std::string name() const;  // "bf16", "int8"
};
// Counts the bytes of values as they are, and as they travel. Blocks span none of the first `least`
// dims.
struct SentBytes {
  int64_t exact = 0, sent = 0;
  void add(const TensorType& type, const SentAs& how, int64_t least);
  // "travel in bf16, rounded: 4 KiB in place of 8 KiB OF; each number differs by at most …".
  std::string explain(const SentAs& how, std::string_view of) const;
};
// Blocks begin anew in each run of the dims from an axis on: the last dims that have at least
// `block` elements together, but none of the first `least` dims.
int64_t axis_of_blocks(const Shape& shape, int64_t block, int64_t least);
// Return the value as it travels, and of that the numbers of this type.
ValueId put_as(Builder& build, ValueId value, const SentAs& how, int64_t least);
ValueId take_as(Builder& build, ValueId sent, const TensorType& type, const SentAs& how,
                int64_t least);

}  // namespace piper
