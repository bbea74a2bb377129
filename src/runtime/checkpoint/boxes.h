// What a file holds of a tensor, as text in its header. Private to the checkpoint room.
#pragma once

#include "piper/runtime/checkpoint.h"

namespace piper {

// Prints the boxes of tensors that a file does not hold whole, by name.
std::string print_boxes(std::span<const OwnPiece> pieces);
// Returns them. Nothing is believed: shapes, blocks and ranges are those of some plan, or it fails.
Result<std::map<std::string, Held>> parse_boxes(std::string_view text, const std::string& path);

// The key of this text in a file's metadata.
inline constexpr const char* kBoxesKey = "piper.boxes";

// A run of a tensor's elements and where they are.
struct ElementRun {
  int64_t whole = 0, count = 0;
  int64_t at = 0;  // elements from the begin of what holds them
};
// Returns the runs of what is held, ascending in the whole; `packed`: `at` counts without padding.
std::vector<ElementRun> runs_of(const Held& held, bool packed);

}  // namespace piper
