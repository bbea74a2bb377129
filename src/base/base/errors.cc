// Prints errors as compilers do: place, message, the source line with a caret, notes.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "piper/base/base.h"

namespace piper {
namespace {

constexpr int64_t kLargestQuotedFile = 16 << 20;
constexpr size_t kLongestQuotedLine = 200;

std::optional<std::string> source_line(const SourceSpan& at) {
  if (at.line < 1) return std::nullopt;
  const Result<std::string> text = read_text_file(at.file, kLargestQuotedFile);
  if (!text) return std::nullopt;
  size_t begin = 0;
  for (int line = 1; line < at.line; ++line) {
    begin = text->find('\n', begin);
    if (begin == std::string::npos) return std::nullopt;
    ++begin;
  }
  std::string line = text->substr(begin, text->find('\n', begin) - begin);
  if (!line.empty() && line.back() == '\r') line.pop_back();
  return line;
}

bool is_utf8_tail(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Returns blanks, as wide on the terminal as `text`.
std::string blank_like(std::string_view text) {
  std::string blank;
  for (const char c : text)
    if (!is_utf8_tail(c)) blank += c == '\t' ? '\t' : ' ';
  return blank;
}

// Returns how many bytes the first `count` characters have; past the end, a character is a byte.
size_t bytes_of(std::string_view text, size_t count) {
  size_t bytes = 0;
  for (; count > 0; --count) {
    ++bytes;
    while (bytes < text.size() && is_utf8_tail(text[bytes])) ++bytes;
  }
  return bytes;
}

std::string excerpt(const SourceSpan& at) {
  const std::optional<std::string> line = source_line(at);
  if (!line || at.column < 1 || static_cast<size_t>(at.column) > kLongestQuotedLine) return {};
  const std::string_view shown = std::string_view(*line).substr(0, kLongestQuotedLine);
  const size_t begin = bytes_of(shown, static_cast<size_t>(at.column) - 1);
  if (begin > shown.size()) return {};
  // A tab is harmless here, and the caret line repeats it; other controls are not.
  std::vector<std::string> parts = split_text(shown, '\t');
  for (std::string& part : parts) part = quote_control(part);
  const std::string quoted = join(parts, "\t");
  const std::string number = std::to_string(at.line);
  const std::string margin(number.size(), ' ');
  const std::string text = fmt::format("{} |\n{} | {}\n", margin, number, quoted);
  // An escape is wider than what it stands for: then there is no place to put the caret.
  if (quoted != shown) return text;
  const std::string before = blank_like(shown.substr(0, begin));
  const std::string after = blank_like(shown.substr(begin));
  const auto length = static_cast<size_t>(std::max(at.length, 1));
  const std::string carets(std::max<size_t>(std::min(length, after.size()), 1), '^');
  return text + fmt::format("{} | {}{}\n", margin, before, carets);
}

// Text may quote names from foreign files: no control character of theirs reaches the terminal.
std::string printable(std::string_view text, std::string_view indent) {
  std::vector<std::string> lines = split_text(text, '\n');
  for (std::string& line : lines) line = quote_control(line);
  return join(lines, fmt::format("\n{}", indent));
}

std::string location(const SourceSpan& at) {
  if (at.file.empty()) return {};
  const std::string file = quote_control(at.file);
  if (at.line < 1) return file + ": ";
  if (at.column < 1) return fmt::format("{}:{}: ", file, at.line);
  return fmt::format("{}:{}:{}: ", file, at.line, at.column);
}

}  // namespace

Error&& Error::with_note(std::string note) && {
  notes.push_back(std::move(note));
  return std::move(*this);
}

Error&& Error::with_code(ExitCode c) && {
  code = c;
  return std::move(*this);
}

std::string print_error(const Error& error) {
  std::string text =
      fmt::format("{}error: {}\n", location(error.at), printable(error.message, "  "));
  text += excerpt(error.at);
  constexpr std::string_view kHelp = "help: ", kAlso = "also: ";
  for (const std::string& note : error.notes) {
    if (note.starts_with(kAlso)) {
      text += "\n" + note.substr(kAlso.size());
      continue;
    }
    const std::string lines = printable(note, "          ");
    text += note.starts_with(kHelp) ? fmt::format("  = {}\n", lines)
                                    : fmt::format("  = note: {}\n", lines);
  }
  return text;
}

void check_failed(const char* file, int line, const char* condition, const std::string& text) {
  std::fflush(stdout);
  fmt::print(stderr, "{}:{}: internal error: {} does not hold{}{}\n", file, line, condition,
             text.empty() ? "" : ": ", text);
  std::fflush(stderr);
  std::abort();
}

}  // namespace piper
