// Words of other systems, and what is written here instead.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace piper {

// Returns "'- precision: {compute: bf16}' …" for "bf16", "FP16", "mixed-precision", …; "" for
// others. `value`: what follows the word; where it is a number, the help has it.
std::string foreign_word(std::string_view word, std::string_view value = {});
// Returns whether the word names a type of 8 bits, here or elsewhere.
bool is_in_8_bits(std::string_view word);
// " (did you mean 'bf16'?)" for "bfloat16" where that is among the values, or for what is near one.
std::string did_you_mean_value(std::string_view word, std::span<const std::string> values);

}  // namespace piper
