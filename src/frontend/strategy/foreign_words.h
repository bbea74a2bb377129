// Words of other systems, and what is written here instead.
#pragma once

#include <string_view>

namespace piper {

// "write 'precision: {compute: bf16}' …" for "bf16", "FP16", "mixed-precision", …; "" for others.
std::string_view foreign_word(std::string_view word);

}  // namespace piper
