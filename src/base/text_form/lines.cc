// The reader of text forms: takes words, fields and numbers of a line, and notes the first error.
#include <algorithm>
#include <charconv>

#include "piper/base/field_text.h"

namespace piper {
namespace {

// Returns where the first of these characters is outside of quotes and brackets.
size_t find_outside(std::string_view text, char wanted) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      if (depth == 0 && c == wanted) return i;
      if (c == '[' || c == '{') ++depth;
      if ((c == ']' || c == '}') && depth > 0) --depth;
    }
  }
  return text.size();
}

template <class Number>
bool read_all(std::string_view text, Number& to) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), to);
  return !text.empty() && error == std::errc() && end == text.data() + text.size();
}

// The length of the quoted text that the line starts with, quotes and all; 0 where it has no end.
size_t quoted_length(std::string_view text) {
  for (size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') return i + 1;
    if (text[i] == '\\') ++i;
  }
  return 0;
}

}  // namespace

bool is_bare(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         c == '.' || c == '/' || c == ':' || c == '-' || c == '$' || c == '+' || c == '@';
}

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      quoted += fmt::format("\\{}", c);
    else if (byte < 0x20 || byte == 0x7f)
      quoted += fmt::format("\\x{:02x}", byte);
    else
      quoted += c;
  }
  return quoted + '"';
}

std::string print_word(std::string_view word) {
  const bool bare = !word.empty() && word != "_" && std::all_of(word.begin(), word.end(), is_bare);
  return bare ? std::string(word) : quote(word);
}

LineReader::LineReader(std::string_view text, std::string file, int number)
    : at_{std::move(file), number}, rest_(text) {
  skip_spaces();
  indent_ = static_cast<int>(text.size() - rest_.size());
}

void LineReader::skip_spaces() {
  rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size()));
}

void LineReader::wrong(std::string text) {
  if (wrong_.empty()) wrong_ = std::move(text);
  rest_ = {};
  fields_.clear();
}

Status LineReader::finish() {
  if (!fields_.empty()) wrong(fmt::format("'{}' is not expected here", fields_[0]));
  if (!rest_.empty()) wrong(fmt::format("'{}' is not expected here", rest_));
  if (wrong_.empty()) return ok_status();
  return fail(at_, "{}", quote_control(wrong_));
}

bool LineReader::take(std::string_view token) {
  if (!rest_.starts_with(token)) return false;
  rest_.remove_prefix(token.size());
  skip_spaces();
  return true;
}

void LineReader::expect(std::string_view token) {
  if (!take(token)) wrong(fmt::format("expected '{}' at '{}'", token, rest_));
}

bool LineReader::missing(std::string_view token) {
  if (rest_.empty()) wrong(fmt::format("expected '{}' at ''", token));
  return rest_.empty();
}

std::string LineReader::word() {
  const bool quoted = next_is('"');
  const size_t length =
      quoted ? quoted_length(rest_)
             : static_cast<size_t>(std::find_if_not(rest_.begin(), rest_.end(), is_bare) -
                                   rest_.begin());
  const std::string_view text = rest_.substr(0, length);
  if (length == 0) wrong(fmt::format("expected a name at '{}'", rest_));
  rest_.remove_prefix(std::min(length, rest_.size()));
  skip_spaces();
  return quoted ? unquote(text) : std::string(text);
}

std::string_view LineReader::raw() {
  const std::string_view text = rest_.substr(0, find_outside(rest_, ' '));
  rest_.remove_prefix(text.size());
  skip_spaces();
  return text;
}

std::string_view LineReader::bracketed(char open, char close) {
  const size_t end = next_is(open) ? find_outside(rest_.substr(1), close) + 2 : 0;
  if (end == 0 || end > rest_.size()) {
    wrong(fmt::format("expected '{}…{}' at '{}'", open, close, rest_));
    return {};
  }
  const std::string_view text = rest_.substr(0, end);
  rest_.remove_prefix(end);
  skip_spaces();
  return text;
}

void LineReader::expect_position(size_t position) {
  if (const auto stated = next<int64_t>(); stated != static_cast<int64_t>(position))
    wrong(fmt::format("position {} should be {}", stated, position));
}

void LineReader::read_fields() {
  while (!rest_.empty() && !next_is('{')) fields_.push_back(raw());
}

std::optional<std::string_view> LineReader::value(std::string_view key) {
  for (size_t i = 0; i < fields_.size(); ++i)
    if (fields_[i].starts_with(key) && fields_[i].substr(key.size()).starts_with('=')) {
      const std::string_view text = fields_[i].substr(key.size() + 1);
      fields_.erase(fields_.begin() + static_cast<ptrdiff_t>(i));
      return text;
    }
  return std::nullopt;
}

bool LineReader::flag(std::string_view key) {
  const auto found = std::find(fields_.begin(), fields_.end(), key);
  if (found == fields_.end()) return false;
  fields_.erase(found);
  return true;
}

int64_t LineReader::integer(std::string_view text) {
  int64_t value = 0;
  if (!read_all(text, value)) wrong(fmt::format("'{}' is no integer", text));
  return value;
}

void LineReader::read(std::string_view text, double& to) {
  if (!read_all(text, to)) wrong(fmt::format("'{}' is no number", text));
}

void LineReader::read(std::string_view text, std::string& to) { to = unquote(text); }

void LineReader::read(std::string_view text, char& to) {
  const std::string unquoted = unquote(text);
  if (unquoted.size() == 1)
    to = unquoted[0];
  else
    wrong(fmt::format("{} is not one character", text));
}

void LineReader::read(std::string_view text, DType& to) {
  const auto dtype = parse_dtype(text);
  if (!dtype) wrong(fmt::format("'{}' is no element type", text));
  to = dtype.value_or(to);
}

void LineReader::read(std::string_view text, TensorType& to) {
  const size_t open = std::min(text.find('['), text.size());
  const auto dtype = parse_dtype(text.substr(0, open));
  if (!dtype) wrong(fmt::format("'{}' is no type", text));
  to = TensorType{dtype.value_or(DType::kF32), {}};
  if (open == text.size()) return;
  for (const std::string_view item : items(text.substr(open))) to.shape.push_back(integer(item));
}

std::string LineReader::name(std::string_view text) {
  return text.starts_with('"') ? unquote(text) : std::string(text);
}

std::vector<std::string_view> LineReader::items(std::string_view text) {
  std::vector<std::string_view> parts;
  const bool is_list = (text.starts_with('[') && text.ends_with(']')) ||
                       (text.starts_with('{') && text.ends_with('}'));
  if (text.size() < 2 || !is_list) {
    wrong(fmt::format("'{}' is no list", text));
    return parts;
  }
  for (text = text.substr(1, text.size() - 2); !text.empty() || !parts.empty();) {
    const size_t end = find_outside(text, ',');
    parts.push_back(text.substr(0, end));
    if (end == text.size()) break;
    text.remove_prefix(end + 1);
  }
  return parts;
}

std::string LineReader::unquote(std::string_view text) {
  std::string out;
  if (text.size() < 2 || quoted_length(text) != text.size() || text.front() != '"') {
    wrong(fmt::format("'{}' is no quoted text", text));
    return out;
  }
  text = text.substr(1, text.size() - 2);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && text[i + 1] == 'x') {
      uint8_t byte = 0;
      const std::string_view digits = text.substr(i + 2, 2);
      const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
      if (digits.size() != 2 || read.ptr != digits.data() + 2)
        wrong(fmt::format("'{}' is no quoted text", text));
      out += static_cast<char>(byte);
      i += 3;
    } else {
      out += text[text[i] == '\\' ? ++i : i];
    }
  }
  return out;
}

}  // namespace piper
