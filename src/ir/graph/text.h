// The words of the graph's text form that printing and parsing share.
#pragma once

#include <string>
#include <string_view>

#include "piper/base/text_form.h"
#include "piper/ir/graph.h"

namespace piper {

// Data of at most this many bytes is printed element by element.
inline constexpr int64_t kMaxPrintedBytes = 64;

// "[1,0.5]"; halves as their bits, "0x3f80".
std::string print_elements(const Value& value);
Result<Bytes> parse_elements(std::string_view text, const TensorType& type);

}  // namespace piper
