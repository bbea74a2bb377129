// What is refused before the YAML reader sees the text.
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

// Returns where the text has a space that is not ASCII's, such as a non-breaking one; npos:
// nowhere.
size_t other_space(std::string_view text);
// Invalid UTF-8, control characters, tabs, lone carriage returns, YAML directives.
Status check_text(std::string_view text, const Places& places);

}  // namespace piper::yaml
