// Many integers as few bytes of text: columns of numbers of varying length, in base64. Private to
// the room.
#pragma once

#include <map>
#include <nlohmann/json.hpp>

#include "piper/base/base.h"

namespace piper {

// Numbers are zigzag-coded (0, -1, 1, -2, … are 0, 1, 2, 3, …), then cut into groups of 7 bits, the
// lowest first, of which all but the last have 128 added. Of a column of differences, each is to
// the number before it, and the first one is itself.
class Columns {
 public:
  void add(const char* name, std::span<const int64_t> numbers, bool differences = false);
  // Lists each column as [its name, its first byte, how many numbers, 1 for differences].
  const nlohmann::ordered_json& list() const { return list_; }
  std::string base64() const;

 private:
  nlohmann::ordered_json list_ = nlohmann::ordered_json::array();
  std::string bytes_;
};

// Keeps texts that differ in little but numbers: each is a pattern, the pieces between its numbers,
// and these numbers.
class Patterns {
 public:
  // Returns the pattern, and adds the text's numbers to `numbers`.
  int64_t add(std::string_view text, std::vector<int64_t>& numbers);
  const std::vector<std::vector<std::string>>& list() const { return list_; }

 private:
  std::vector<std::vector<std::string>> list_;
  std::map<std::vector<std::string>, int64_t> known_;
};

}  // namespace piper
