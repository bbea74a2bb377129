// What is refused before the YAML reader sees the text, and plain values that mean different things
// to different YAML versions.
#pragma once

#include "piper/base/base.h"

namespace piper::yaml {

// Maps byte offsets to lines and columns.
class Places {
 public:
  Places(std::string path, std::string_view text);
  SourceSpan span(size_t offset, int length = 1) const;
  std::string_view line(size_t index) const;  // without its end; "" past the last
  size_t line_of(size_t offset) const;        // from 0

 private:
  std::string path_;
  std::string_view text_;
  std::vector<size_t> starts_;
};

// Invalid UTF-8, control characters, tabs, lone carriage returns, YAML directives.
Status check_text(std::string_view text, const Places& places);

// Returns the reason to refuse a plain scalar, or nothing: yes, off, ~, 010, 0x1F, 1_000, 12:30,
// 2001-12-14, True.
std::optional<std::string> yaml_surprise(std::string_view plain);

}  // namespace piper::yaml
