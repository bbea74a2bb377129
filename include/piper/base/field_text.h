// Prints and reads structures by their lists of fields (text_form.h).
#pragma once

#include <algorithm>
#include <bit>

#include "piper/base/text_form.h"

namespace piper {

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
