// Checks the text of a YAML file before it is parsed: encoding, and words that other readers take
// for something else.
#include "text_checks.h"

#include <algorithm>
#include <array>

#include "piper/base/yaml.h"

namespace piper::yaml {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Returns bytes of the UTF-8 character at `at`, or 0 when there is none (overlong forms and
// surrogates included).
size_t character_size(std::string_view text, size_t at) {
  auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  auto follows = [&](size_t i) { return (byte(i) & 0xC0u) == 0x80u; };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const unsigned point = ((first & 0x0Fu) << 12) | ((byte(1) & 0x3Fu) << 6);
    const bool legal = point >= 0x800 && (point < 0xD800 || point > 0xDFFF);
    return follows(1) && follows(2) && legal ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const unsigned point = ((first & 0x07u) << 18) | ((byte(1) & 0x3Fu) << 12);
    const bool legal = point >= 0x10000 && point <= 0x10FFFF;
    return follows(1) && follows(2) && follows(3) && legal ? 4 : 0;
  }
  return 0;
}

// Returns what is wrong with the one-byte character, if anything.
const char* bad_character(std::string_view text, size_t at) {
  const char c = text[at];
  if (c == '\t') return "a tab";
  if (c == '\r' && (at + 1 == text.size() || text[at + 1] != '\n')) {
    return "a carriage return without a line feed";
  }
  if ((c >= 0 && c < ' ' && c != '\n' && c != '\r') || c == 0x7f) return "a control character";
  return nullptr;
}

bool starts_number(std::string_view text) { return !text.empty() && is_digit(text[0]); }

template <class Predicate>
bool all_of(std::string_view text, Predicate predicate) {
  return std::all_of(text.begin(), text.end(), predicate);
}

bool is_based(std::string_view digits) {
  if (digits.size() < 3 || digits[0] != '0') return false;
  const char base = digits[1];
  return (base == 'x' || base == 'X' || base == 'o' || base == 'O' || base == 'b' || base == 'B') &&
         all_of(digits.substr(2),
                [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) || c == '_'; });
}

bool is_date(std::string_view text) {
  const auto parts = split_text(text, '-');
  return parts.size() == 3 && parts[0].size() == 4 && !parts[1].empty() && parts[1].size() <= 2 &&
         !parts[2].empty() && parts[2].size() <= 2 &&
         all_of(text, [](char c) { return is_digit(c) || c == '-'; });
}

template <size_t N>
bool is_one_of(std::string_view text, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// Not y and n: they are names of axes, and no reader of YAML takes them for anything else.
constexpr std::array<std::string_view, 16> kTruth = {"yes",  "Yes",  "YES",   "no",   "No",  "NO",
                                                     "on",   "On",   "ON",    "off",  "Off", "OFF",
                                                     "True", "TRUE", "False", "FALSE"};
constexpr std::array<std::string_view, 4> kNothing = {"~", "null", "Null", "NULL"};
constexpr std::array<std::string_view, 6> kNoNumber = {".inf", ".Inf", ".INF",
                                                       ".nan", ".NaN", ".NAN"};

}  // namespace

Places::Places(std::string path, std::string_view text) : path_(std::move(path)), text_(text) {
  starts_.push_back(0);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') starts_.push_back(i + 1);
  }
}

size_t Places::line_of(size_t offset) const {
  return static_cast<size_t>(std::upper_bound(starts_.begin(), starts_.end(), offset) -
                             starts_.begin()) -
         1;
}

std::string_view Places::line(size_t index) const {
  if (index >= starts_.size()) return {};
  const size_t begin = starts_[index];
  const size_t end = index + 1 < starts_.size() ? starts_[index + 1] - 1 : text_.size();
  std::string_view line = text_.substr(begin, end - begin);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

SourceSpan Places::span(size_t offset, int length) const {
  offset = std::min(offset, text_.size());
  const size_t line = line_of(offset);
  const std::string_view before = text_.substr(starts_[line], offset - starts_[line]);
  return {path_, static_cast<int>(line) + 1, count_columns(before) + 1, std::max(length, 1)};
}

namespace {

Status check_character(std::string_view text, size_t at, size_t size, const Places& places) {
  if (size == 0) return fail(places.span(at), "the file is not valid UTF-8 here");
  const char* const what = size == 1 ? bad_character(text, at) : nullptr;
  if (!what) return ok_status();
  Error error = fail(places.span(at), "the file has {} here", what);
  if (text[at] != '\t') return error;
  return std::move(error).with_note("help: indent and separate with spaces");
}

}  // namespace

Status check_text(std::string_view text, const Places& places) {
  if (text.starts_with("\xEF\xBB\xBF")) {
    return fail(places.span(0), "the file starts with a byte order mark; save it as plain UTF-8");
  }
  for (size_t i = 0; i < text.size();) {
    if ((i == 0 || text[i - 1] == '\n') && text[i] == '%') {
      return fail(places.span(i), "YAML directives ('%YAML', '%TAG') are not supported");
    }
    const size_t size = character_size(text, i);
    PIPER_TRY(check_character(text, i, size, places));
    i += size;
  }
  return ok_status();
}

size_t other_space(std::string_view text) {
  constexpr std::array<std::string_view, 8> kSpaces = {"\u00A0", "\u2002", "\u2003", "\u2009",
                                                       "\u200B", "\u202F", "\u3000", "\uFEFF"};
  size_t first = std::string_view::npos;
  for (const std::string_view space : kSpaces) first = std::min(first, text.find(space));
  return first;
}

std::optional<std::string> yaml_surprise(std::string_view plain) {
  if (is_one_of(plain, kTruth)) {
    return "YAML versions disagree about what it means; write true or false for a truth value, or "
           "quote it for text";
  }
  if (is_one_of(plain, kNothing)) return "leave the key out to say nothing, or quote it for text";
  std::string_view digits = plain;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) digits.remove_prefix(1);
  if (is_one_of(digits, kNoNumber)) return "a number must be finite";
  if (!starts_number(digits)) return std::nullopt;
  const bool only_digits = all_of(digits, [](char c) { return is_digit(c) || c == '_'; });
  if (only_digits && digits.find('_') != std::string_view::npos) {
    return "write a number without '_', or quote it for text";
  }
  if (only_digits && digits.size() > 1 && digits[0] == '0') {
    return "a leading 0 means octal to some YAML versions; write the number without it, or quote "
           "it for text";
  }
  if (is_based(digits)) return "write the number in decimal, or quote it for text";
  if (digits.find(':') != std::string_view::npos &&
      all_of(digits, [](char c) { return is_digit(c) || c == '_' || c == ':'; })) {
    return "YAML 1.1 reads it as a number of base 60; quote it for text";
  }
  if (is_date(plain)) return "YAML 1.1 reads it as a date; quote it for text";
  return std::nullopt;
}

}  // namespace piper::yaml
