// Attributes of ops: a sorted list of names and values, its text form and the reader of that.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "piper/base/base.h"

namespace piper {
namespace {

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.';
}

std::string print_real(double value) {
  std::string text = fmt::format("{}", value);  // the shortest text that reads back the same
  const bool looks_integer = text.find_first_not_of("-0123456789") == std::string::npos;
  return looks_integer ? text + ".0" : text;
}

std::string print_text(std::string_view value) {
  std::string text = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\')
      text += {'\\', c};
    else if (c >= ' ' && c <= '~')
      text += c;
    else
      text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text + '"';
}

std::string print_value(const AttrValue& value) {
  if (const auto* integer = std::get_if<int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&value)) return print_real(*real);
  if (const auto* text = std::get_if<std::string>(&value)) return print_text(*text);
  return fmt::format("[{}]", fmt::join(std::get<std::vector<int64_t>>(value), ","));
}

// Reads the text form from left to right; every function leaves `at_` past what it read.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<Attrs> attrs() {
    Attrs result;
    if (text_.empty()) return result;
    PIPER_TRY(expect('{'));
    do {
      PIPER_ASSIGN(std::string name, this->name());
      if (result.find(name)) return wrong(fmt::format("a second '{}'", name));
      PIPER_TRY(expect('='));
      PIPER_ASSIGN(AttrValue value, this->value());
      result.set(std::move(name), std::move(value));
    } while (take(", "));
    PIPER_TRY(expect('}'));
    if (at_ != text_.size()) return wrong("text after the '}'");
    return result;
  }

 private:
  Error wrong(std::string_view what) const {
    return fail("attributes '{}': {} at character {}", quote_control(text_), what, at_ + 1);
  }
  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  Status expect(char c) {
    if (take({&c, 1})) return ok_status();
    return wrong(fmt::format("'{}' expected", c));
  }

  Result<std::string> name() {
    const size_t begin = at_;
    while (is_name_char(next())) ++at_;
    if (at_ == begin) return wrong("a name expected");
    return std::string(text_.substr(begin, at_ - begin));
  }

  Result<AttrValue> value() {
    if (next() == '"') return string();
    if (next() == '[') return integers();
    const size_t end = std::min(text_.find_first_of(",}", at_), text_.size());
    const std::string_view token = text_.substr(at_, end - at_);
    const bool integer = token.find_first_not_of("-0123456789") == std::string_view::npos;
    if (integer) {
      PIPER_ASSIGN(const int64_t number, this->number<int64_t>(token));
      return AttrValue(number);
    }
    PIPER_ASSIGN(const double number, this->number<double>(token));
    return AttrValue(number);
  }

  template <class Number>
  Result<Number> number(std::string_view token) {
    Number value = 0;
    const char* end = token.data() + token.size();
    const auto [stop, problem] = std::from_chars(token.data(), end, value);
    if (problem != std::errc() || stop != end) return wrong("a value expected");
    at_ += token.size();
    return value;
  }

  Result<AttrValue> integers() {
    std::vector<int64_t> values;
    PIPER_TRY(expect('['));
    if (take("]")) return AttrValue(values);
    do {
      const size_t end = std::min(text_.find_first_of(",]", at_), text_.size());
      PIPER_ASSIGN(const int64_t value, number<int64_t>(text_.substr(at_, end - at_)));
      values.push_back(value);
    } while (take(","));
    PIPER_TRY(expect(']'));
    return AttrValue(std::move(values));
  }

  Result<AttrValue> string() {
    std::string value;
    PIPER_TRY(expect('"'));
    while (next() != '"') {
      if (at_ >= text_.size()) return wrong("'\"' expected");
      if (take("\\x")) {
        unsigned code = 0;
        const std::string_view digits = text_.substr(at_, 2);
        const auto [stop, problem] =
            std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
        if (problem != std::errc() || stop != digits.data() + 2)
          return wrong("two hexadecimal digits expected");
        value += static_cast<char>(code);
        at_ += 2;
        continue;
      }
      if (take("\\") && next() != '"' && next() != '\\') return wrong("an unknown escape");
      value += text_[at_++];
    }
    PIPER_TRY(expect('"'));
    return AttrValue(std::move(value));
  }

  std::string_view text_;
  size_t at_ = 0;
};

template <class T>
const T* typed(const Attrs& attrs, std::string_view name) {
  const AttrValue* value = attrs.find(name);
  if (!value) return nullptr;
  const T* result = std::get_if<T>(value);
  PIPER_CHECK(result, "the attribute '{}' has the value {}", name, print_value(*value));
  return result;
}

}  // namespace

Attrs::Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items) {
  for (const auto& [name, value] : items) set(name, value);
}

void Attrs::set(std::string name, AttrValue value) {
  const auto place =
      std::lower_bound(items_.begin(), items_.end(), name,
                       [](const auto& item, const std::string& key) { return item.first < key; });
  if (place != items_.end() && place->first == name)
    place->second = std::move(value);
  else
    items_.emplace(place, std::move(name), std::move(value));
}

const AttrValue* Attrs::find(std::string_view name) const {
  for (const auto& [key, value] : items_)
    if (key == name) return &value;
  return nullptr;
}

int64_t Attrs::integer(std::string_view name, int64_t otherwise) const {
  const int64_t* value = typed<int64_t>(*this, name);
  return value ? *value : otherwise;
}

double Attrs::real(std::string_view name, double otherwise) const {
  const double* value = typed<double>(*this, name);
  return value ? *value : otherwise;
}

std::string Attrs::text(std::string_view name, std::string otherwise) const {
  const std::string* value = typed<std::string>(*this, name);
  return value ? *value : std::move(otherwise);
}

std::vector<int64_t> Attrs::integers(std::string_view name) const {
  const auto* value = typed<std::vector<int64_t>>(*this, name);
  return value ? *value : std::vector<int64_t>();
}

std::string print_attrs(const Attrs& attrs) {
  if (attrs.items().empty()) return {};
  std::vector<std::string> parts;
  for (const auto& [name, value] : attrs.items()) parts.push_back(name + "=" + print_value(value));
  return "{" + join(parts, ", ") + "}";
}

Result<Attrs> parse_attrs(std::string_view text) { return Parser(text).attrs(); }

}  // namespace piper
