// Text forms, line by line: a keyword and words in fixed places, then key=value fields in any
// order; a field that has its default is left out. One reader, one writer, and a walk over the
// fields of a structure that serves both. Uses `base`.
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
// An enumeration whose values are characters: `is_letter_of(E, letter)` beside it says which.
template <class T>
concept LetteredEnum = std::is_enum_v<T> && requires(T value) {
  is_letter_of(value, 0);
};
template <class T>
concept ListOf = requires(T list) {
  list.push_back(*list.begin());
}
&&!std::is_same_v<T, std::string>;

// NoNames is for structures whose fields can be read without context. Others have print(const T&)
// and read(LineReader&, std::string_view, T&) for the types that need names from elsewhere.
struct NoNames {};

template <class Names, class T>
std::string print_value(const Names& names, const T& value) {
  if constexpr (requires { names.print(value); }) {
    return names.print(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return quote(value);
  } else if constexpr (LetteredEnum<T>) {
    return quote(std::string(1, static_cast<char>(value)));
  } else if constexpr (std::is_same_v<T, TensorType>) {
    return to_string(value);
  } else if constexpr (std::is_same_v<T, DType>) {
    return info(value).name;
  } else if constexpr (NamedEnum<T>) {
    return names_of(value)[static_cast<size_t>(value)];
  } else if constexpr (requires { value.has_value(); }) {
    return print_value(names, *value);
  } else if constexpr (ListOf<T>) {
    std::string text = "[";
    for (const auto& item : value) text += (text.size() > 1 ? "," : "") + print_value(names, item);
    return text + "]";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return fmt::format("{}", value);
  } else {
    PIPER_CHECK(false, "a field of such a type stands elsewhere");
  }
}

template <class Names, class T>
void read_value(const Names& names, LineReader& line, std::string_view text, T& to) {
  if constexpr (requires { names.read(line, text, to); }) {
    names.read(line, text, to);
  } else if constexpr (requires { line.read(text, to); }) {
    line.read(text, to);
  } else if constexpr (LetteredEnum<T>) {
    char letter = static_cast<char>(to);
    line.read(text, letter);
    if (is_letter_of(to, letter)) to = static_cast<T>(letter);
    if (!is_letter_of(to, letter)) line.wrong(fmt::format("{} is no letter of this field", text));
  } else if constexpr (NamedEnum<T>) {
    const auto& all = names_of(to);
    const auto found = std::find(std::begin(all), std::end(all), text);
    if (found != std::end(all)) to = static_cast<T>(found - std::begin(all));
    if (found == std::end(all))
      line.wrong(fmt::format("'{}' is none of {}", text,
                             join(std::vector<std::string>(std::begin(all), std::end(all)), ", ")));
  } else if constexpr (requires { to.has_value(); }) {
    read_value(names, line, text, to.emplace());
  } else if constexpr (ListOf<T>) {
    for (const std::string_view item : line.items(text)) {
      std::remove_cvref_t<decltype(*to.begin())> value{};
      read_value(names, line, item, value);
      to.push_back(std::move(value));
    }
  } else {
    PIPER_CHECK(false, "a field of such a type stands elsewhere");
  }
}

// Returns whether a field has its default: 0 and -0 differ, and lists are empty.
template <class T>
bool is_same_value(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
  else if constexpr (ListOf<T>)
    return a.empty() && b.empty();
  else if constexpr (std::equality_comparable<T>)
    return a == b;
  else
    return false;
}

// Visits a list of fields: first for words (kWord), then for what has keys (kFirstKey, kKey). A
// group of members stands for each of them.
template <class X, class Names>
struct FieldPrinter {
  std::string& out;
  const X& from;
  const Names& names;
  FieldPlace pass;
  X normal = {};

  template <class T>
  void operator()(const char* name, T X::*member, Look look = {}) {
    const T& value = from.*member;
    const char* key = look.key ? look.key : name;
    if (look.place == FieldPlace::kBare && pass == FieldPlace::kWord)
      if constexpr (std::is_same_v<T, std::string>) out += " " + value;
    if (look.place != pass) return;
    if (pass == FieldPlace::kWord) return void(out += " " + print_value(names, value));
    if (is_same_value(value, normal.*member)) return;
    if constexpr (std::is_same_v<T, bool>)
      out += fmt::format(" {}", key);
    else if constexpr (NamedEnum<T>)
      out += " " + print_value(names, value);
    else
      out += fmt::format(" {}={}", key, print_value(names, value));
  }
  template <class Member, class How>
  void operator()(const char* name, Member member, const How& how) {
    (*this)(name, member, how.look);
  }
  template <class Group>
  requires requires(Group group, FieldPrinter visit) { group.each_member(visit); }
  void operator()(const char*, Group group) { group.each_member(*this); }
};

template <class X, class Names = NoNames>
void print_words(std::string& out, const X& from, const Names& names = {}) {
  static_assert(lists_all_members<X>(), "a member is missing in the list of fields");
  each_field(Of<X>(), FieldPrinter<X, Names>{out, from, names, FieldPlace::kWord});
}
template <class X, class Names = NoNames>
void print_keys(std::string& out, const X& from, const Names& names = {}) {
  for (const FieldPlace pass : {FieldPlace::kFirstKey, FieldPlace::kKey})
    each_field(Of<X>(), FieldPrinter<X, Names>{out, from, names, pass});
}
template <class X, class Names = NoNames>
void print_fields(std::string& out, const X& from, const Names& names = {}) {
  print_words(out, from, names);
  print_keys(out, from, names);
}

template <class X, class Names>
struct FieldReader {
  LineReader& line;
  X& to;
  const Names& names;
  FieldPlace pass;

  template <class T>
  void operator()(const char* name, T X::*member, Look look = {}) {
    T& value = to.*member;
    const char* key = look.key ? look.key : name;
    if (look.place == FieldPlace::kBare && pass == FieldPlace::kWord)
      if constexpr (std::is_same_v<T, std::string>) value = line.raw();
    if (look.place == FieldPlace::kFirstKey) look.place = FieldPlace::kKey;
    if (look.place != pass) return;
    if (pass == FieldPlace::kWord) return read_value(names, line, line.raw(), value);
    if constexpr (std::is_same_v<T, bool>) {
      value = line.flag(key);
    } else if constexpr (NamedEnum<T>) {
      for (size_t i = 0; i < std::size(names_of(value)); ++i)
        if (line.flag(names_of(value)[i])) value = static_cast<T>(i);
    } else if (const auto text = line.value(key)) {
      read_value(names, line, *text, value);
    }
  }
  template <class Member, class How>
  void operator()(const char* name, Member member, const How& how) {
    (*this)(name, member, how.look);
  }
  template <class Group>
  requires requires(Group group, FieldReader visit) { group.each_member(visit); }
  void operator()(const char*, Group group) { group.each_member(*this); }
};

template <class X, class Names = NoNames>
void read_words(LineReader& line, X& to, const Names& names = {}) {
  each_field(Of<X>(), FieldReader<X, Names>{line, to, names, FieldPlace::kWord});
}
// Reads the keys that line.read_fields() has found.
template <class X, class Names = NoNames>
void read_keys(LineReader& line, X& to, const Names& names = {}) {
  each_field(Of<X>(), FieldReader<X, Names>{line, to, names, FieldPlace::kKey});
}
template <class X, class Names = NoNames>
void read_fields(LineReader& line, X& to, const Names& names = {}) {
  read_words(line, to, names);
  line.read_fields();
  read_keys(line, to, names);
}

}  // namespace piper
