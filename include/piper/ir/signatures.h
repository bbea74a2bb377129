// What programs of plans may hold: uses of ops as the table of ops has them, with attributes that
// are known. Plans are checked when they are read, and kernels rely on it.
#pragma once

#include "piper/ir/ops.h"

namespace piper {

// Returns the use that a program with these values makes of one of its ops: operands by value, -1
// for an absent input.
OpTypes use_of(std::span<const TensorType> values, std::span<const int32_t> inputs,
               std::span<const int32_t> outputs, const Attrs& attrs);

// Error: what is wrong with a use: its op, the number and element types of its operands, its
// attributes and their ranges, and the types of its results. Of 16-bit floats each result is what
// the op makes in f32, rounded once. With `accumulate` a product is added to one more input, of the
// result's type.
Status check_use(std::string_view op, const OpTypes& use);

// Describes an attribute that a use of an op may have. What is absent is 0, empty, or what the op's
// file says.
struct OpAttribute {
  std::string_view name;
  enum Kind : uint8_t { kInteger, kReal, kText, kIntegers } kind = kInteger;  // as in AttrValue
  // Whether a use of right types reads it; null: each does. Where it is not read it must be absent:
  // nothing else would tell one value from another.
  bool (*is_read)(const OpDef& op, const OpTypes& use) = nullptr;
};
std::span<const OpAttribute> attributes_of(std::string_view op);

}  // namespace piper
