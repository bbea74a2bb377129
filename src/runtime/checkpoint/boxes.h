// What a file holds of a tensor, as text in its header. Private to the checkpoint room.
#pragma once

#include <nlohmann/json.hpp>

#include "piper/runtime/checkpoint.h"

namespace piper {

// Parses text of which nothing is believed. What is nested deeper than anything of ours is left
// out: it would be copied level by level, and overflow the stack.
inline nlohmann::ordered_json parse_json(std::string_view text) {
  using Json = nlohmann::ordered_json;
  constexpr int kMaxDepth = 8;
  return Json::parse(
      text.begin(), text.end(),
      [](int depth, Json::parse_event_t, const Json&) { return depth <= kMaxDepth; }, false);
}

// Returns the names of pieces in their file: of several of one tensor, those after the first end
// with '#' and a number.
std::vector<std::string> keys_of(std::span<const OwnPiece> pieces);
// Prints the boxes of tensors that a file does not hold whole, by these names.
std::string print_boxes(std::span<const OwnPiece> pieces);
// Says of which tensor a piece is, and which part of it.
struct Box {
  std::string of;
  Held held;
};
// Returns them. Nothing is believed: shapes, blocks and ranges are those of some plan, or it fails.
Result<std::map<std::string, Box>> parse_boxes(std::string_view text, const std::string& path);

// The key of this text in a file's metadata.
inline constexpr const char* kBoxesKey = "piper.boxes";

// Describes a run of a tensor's elements, and where they are.
struct ElementRun {
  int64_t whole = 0, count = 0;
  int64_t at = 0;  // elements from the begin of what holds them
};
// Returns the runs of what is held, ascending in the whole; `packed`: `at` counts without padding.
std::vector<ElementRun> runs_of(const Held& held, bool packed);

// Returns how many elements are stored, or nothing if what is held has more runs than `runs`, from
// which its own are taken: a few bytes of a header can claim any number.
std::optional<int64_t> count_elements(const Held& held, int64_t& runs);

}  // namespace piper
