// Text forms, line by line: a keyword and words in fixed places, then key=value fields in any
// order; a field that has its default is left out. Here are the reader of lines and the lists of
// fields; field_text.h prints and reads by them.
//
// A structure's fields are in one list:
//
//   PIPER_FIELDS(Stream) {
//     v("name", &Stream::name, kWord);
//     v("priority", &Stream::priority);
//   }
//
// print_fields writes `"reduce" priority=1`, and read_fields reads it back.
#pragma once

#include <algorithm>
#include <bit>
#include <concepts>
#include <type_traits>

#include "piper/base/base.h"

namespace piper {

bool is_bare(char c);                           // may stand in a word without quotes
std::string quote(std::string_view text);       // "…" with \" \\ \xNN
std::string print_word(std::string_view word);  // bare where that can be read, else quoted

// Reads one line from left to right. The first fault is kept, and nothing is left of the line: what
// reads on gets harmless values, and loops end.
class LineReader {
 public:
  LineReader(std::string_view text, std::string file, int number);
  int indent() const { return indent_; }
  bool done() const { return rest_.empty(); }

  // ---- Words ----
  bool take(std::string_view token);  // if it is next
  void expect(std::string_view token);
  bool next_is(char c) const { return rest_.starts_with(c); }
  // Returns whether there is something before the token, which is taken where it is next.
  bool until(std::string_view token) { return !take(token) && !missing(token); }
  std::string word();      // quoted, or of bare characters
  std::string_view raw();  // as it stands, up to a space outside of quotes and brackets
  std::string_view bracketed(char open, char close);  // brackets and all
  void expect_position(size_t position);

  // ---- Fields ----
  void read_fields();                                           // the rest of the line, up to a '{'
  std::optional<std::string_view> value(std::string_view key);  // takes the first one
  bool flag(std::string_view key);                              // takes a field without a value

  // ---- Values of texts ----
  template <class Integer>
  requires(std::is_integral_v<Integer> &&
           !std::is_same_v<Integer, bool>) void read(std::string_view text, Integer& to) {
    const int64_t value = integer(text);
    to = static_cast<Integer>(value);
    if (to != value) wrong(fmt::format("{} is too large", value));
  }
  void read(std::string_view text, char& to);  // quoted
  void read(std::string_view text, double& to);
  void read(std::string_view text, std::string& to);  // quoted
  void read(std::string_view text, TensorType& to);
  void read(std::string_view text, DType& to);
  std::string name(std::string_view text);  // quoted, or as it stands
  // Returns the parts of "[a,b]" or "{a,b}"; commas inside quotes and brackets do not part.
  std::vector<std::string_view> items(std::string_view text);
  std::string unquote(std::string_view text);
  // Returns what is under the key, if anything does.
  template <class T>
  bool get(std::string_view key, T& to) {
    const auto text = value(key);
    if (text) read(*text, to);
    return text.has_value();
  }
  template <class T>
  T next() {
    T to{};
    read(raw(), to);
    return to;
  }

  void wrong(std::string text);
  bool is_wrong() const { return !wrong_.empty(); }
  Status finish();  // after all is taken: the fault, if there is one

 private:
  int64_t integer(std::string_view text);
  bool missing(std::string_view token);
  void skip_spaces();

  SourceSpan at_;
  std::string_view rest_;
  int indent_ = 0;
  std::vector<std::string_view> fields_;
  std::string wrong_;
};

// Reads each line that is neither empty nor starts with '#'.
template <class Parse>
Status read_lines(std::string_view text, const std::string& file, Parse parse) {
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    LineReader line(text.substr(0, end), file, number);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.done() || line.next_is('#')) continue;
    parse(line);
    PIPER_TRY(line.finish());
  }
  return ok_status();
}

// ---- Fields of structures -----------------------------------------------------------------------

template <class X>
struct Of {};
// Opens the function each_field(Of<X>(), v), which shows the visitor `v` each field's name, member
// and, unless it has a key of its name, how it looks.
#define PIPER_FIELDS(X) \
  template <class V>    \
  constexpr void each_field(Of<X>, V&& v)

// Counts how many members an aggregate has, and how many its list names: the numbers must be equal.
struct AnyValue {
  template <class T>
  operator T() const;
};
template <class X, class... Values>
constexpr size_t count_members() {
  if constexpr (requires { X{std::declval<Values>()..., AnyValue()}; })
    return count_members<X, Values..., AnyValue>();
  else if constexpr (requires { X{std::declval<Values>()..., std::nullopt}; })
    return count_members<X, Values...,
                         std::nullopt_t>();  // an optional takes any value in two ways
  else
    return sizeof...(Values);
}
struct FieldCounter {
  size_t count = 0;
  template <class Member>
  constexpr void operator()(const char*, Member, auto...) {
    if constexpr (std::is_member_pointer_v<Member>)
      ++count;
    else
      count += Member::kMembers;
  }
};
template <class X>
constexpr bool lists_all_members() {
  FieldCounter counter;
  each_field(Of<X>(), counter);
  if constexpr (std::is_aggregate_v<X>) return counter.count == count_members<X>();
  return true;
}

// Says how a text form shows a field: under a key, which is its name unless another is given, and
// kFirstKey in front of all other keys; as a word in a fixed place, in front of those, quoted where
// it is text; as a bare word; or elsewhere.
enum class FieldPlace : uint8_t { kKey, kFirstKey, kWord, kBare, kElsewhere };
struct Look {
  const char* key = nullptr;
  FieldPlace place = FieldPlace::kKey;
};
inline constexpr Look kFirst{nullptr, FieldPlace::kFirstKey}, kWord{nullptr, FieldPlace::kWord},
    kBare{nullptr, FieldPlace::kBare}, kElsewhere{nullptr, FieldPlace::kElsewhere};

// Requires that `names_of(E)` beside the enumeration returns the names of its values.
template <class T>
concept NamedEnum = std::is_enum_v<T> && requires(T value) {
  names_of(value);
};
// Holds for an enumeration whose values are characters; `is_letter_of(E, letter)` says which.
template <class T>
concept LetteredEnum = std::is_enum_v<T> && requires(T value) {
  is_letter_of(value, 0);
};
template <class T>
concept ListOf = requires(T list) {
  list.push_back(*list.begin());
}
&&!std::is_same_v<T, std::string>;

}  // namespace piper
