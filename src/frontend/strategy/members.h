// Rows of a table: members of structs as the values of keys.
#pragma once

#include "fields.h"
#include "sections.h"

namespace piper::fields {

// ---- Values of one C++ type, written in the form of a field -------------------------------------

using NamesAt = std::vector<std::pair<std::string, SourceSpan>>;
using Expressions = std::vector<std::pair<std::string, Expr>>;

Result<int64_t> read_word(const Field&, const yaml::Node&, const Reading&);
Status read_value(const Field&, const yaml::Node&, const Reading&, int64_t&);
Status read_value(const Field&, const yaml::Node&, const Reading&, double&);
Status read_value(const Field&, const yaml::Node&, const Reading&, bool&);
Status read_value(const Field&, const yaml::Node&, const Reading&, std::string&);
Status read_value(const Field&, const yaml::Node&, const Reading&, std::vector<std::string>&);
Status read_value(const Field&, const yaml::Node&, const Reading&, Glob&);
Status read_value(const Field&, const yaml::Node&, const Reading&, NamesAt&);
Status read_value(const Field&, const yaml::Node&, const Reading&, Where&);

std::string print_value(const Field&, int64_t);
std::string print_value(const Field&, double);
std::string print_value(const Field&, bool);
std::string print_value(const Field&, const std::string&);
std::string print_value(const Field&, const std::vector<std::string>&);
std::string print_value(const Field&, const std::vector<int64_t>&);
std::string print_value(const Field&, const Glob&);
std::string print_value(const Field&, const NamesAt&);
std::string print_value(const Field&, const Where&);
std::string print_value(const Field&, const Expr&);
std::string print_value(const Field&, const Expressions&);

// Enums are words; smaller and unsigned integers are read as the largest.
template <class V>
concept Numeric = std::is_enum_v<V> ||
    (std::is_integral_v<V> && !std::is_same_v<V, bool> && !std::is_same_v<V, int64_t>);

template <Numeric V>
Status read_value(const Field& field, const yaml::Node& node, const Reading& reading, V& out) {
  int64_t value = static_cast<int64_t>(out);
  PIPER_TRY(read_value(field, node, reading, value));
  out = static_cast<V>(value);
  return ok_status();
}
template <class V>
Status read_value(const Field& field, const yaml::Node& node, const Reading& reading,
                  std::optional<V>& out) {
  V value{};
  PIPER_TRY(read_value(field, node, reading, value));
  out = std::move(value);
  return ok_status();
}
// Reads the dim that a directive cuts: an integer, or the first word of a list, which means none.
template <const auto& kWords, class Cut>
Status read_dim_or(const Field& field, const yaml::Entry& entry, const Reading& reading, Cut& cut) {
  PIPER_ASSIGN(const yaml::Node dim, with_texts(entry.value, reading.scope));
  cut.dim_at = dim.at;
  return dim.text == kWords[0].name ? ok_status() : read_value(field, dim, reading, cut.dim);
}
template <Numeric V>
std::string print_value(const Field& field, V value) {
  return print_value(field, static_cast<int64_t>(value));
}
template <class V>
std::string print_value(const Field& field, const std::optional<V>& value) {
  return value ? print_value(field, *value) : "";
}

// ---- Members ------------------------------------------------------------------------------------

template <class C, class V>
C class_of(V C::*);

// Follows members of members: <&Strategy::train, &TrainSpec::clip_norm>.
template <auto First, auto... Rest>
struct Path {
  using Object = decltype(class_of(First));
  template <class O>
  static auto& in(O& object) {
    if constexpr (sizeof...(Rest) == 0)
      return object.*First;
    else
      return Path<Rest...>::in(object.*First);
  }
  static auto& of(void* object) { return in(*static_cast<Object*>(object)); }
  static const auto& of(const void* object) { return in(*static_cast<const Object*>(object)); }
};

template <auto... Steps>
Status read_member(const Field& field, const yaml::Entry& entry, const Reading& reading,
                   void* object) {
  return read_value(field, entry.value, reading, Path<Steps...>::of(object));
}
// Prints nothing where an object without the key has the same value.
template <auto... Steps>
std::string print_member(const Field& field, const void* object) {
  using Way = Path<Steps...>;
  const std::string text = print_value(field, Way::of(object));
  if (field.presence == kStated || field.presence == kRequired) return text;
  const typename Way::Object defaults{};
  return text == print_value(field, Way::in(defaults)) ? "" : text;
}
template <auto... Steps>
inline constexpr Member member = {read_member<Steps...>, print_member<Steps...>};

template <auto Value, auto At>
Status read_located(const Field& field, const yaml::Entry& entry, const Reading& reading,
                    void* object) {
  Path<At>::of(object) = entry.value.at;
  return read_member<Value>(field, entry, reading, object);
}
// Makes a member, and another one that says where its value is given.
template <auto Value, auto At>
inline constexpr Member located = {read_located<Value, At>, print_member<Value>};

// Returns a member that reads itself; what prints may be a print_member.
template <class T>
T read_of(Status (*)(const Field&, const yaml::Entry&, const Reading&, T&));
template <class T>
T printed_of(std::string (*)(const Field&, const T&));
template <auto Read>
Status read_by(const Field& field, const yaml::Entry& entry, const Reading& reading, void* object) {
  return Read(field, entry, reading, *static_cast<decltype(read_of(Read))*>(object));
}
template <auto Print>
std::string print_by(const Field& field, const void* object) {
  if constexpr (std::is_same_v<decltype(Print), decltype(Member::print)>)
    return Print(field, object);
  else if constexpr (!std::is_null_pointer_v<decltype(Print)>)
    return Print(field, *static_cast<const decltype(printed_of(Print))*>(object));
  else
    return "";
}
template <auto Read, auto Print = nullptr>
inline constexpr Member custom = {read_by<Read>, print_by<Print>};

// Reads a map whose keys are members of the same object.
Status read_inside(const Field&, const yaml::Entry&, const Reading&, void* object);
std::string print_inside(const Field&, const void* object);
inline constexpr Member inside = {read_inside, print_inside};

template <auto... Steps>
Status read_child(const Field& field, const yaml::Entry& entry, const Reading& reading,
                  void* object) {
  auto& member = Path<Steps...>::of(object);
  if constexpr (requires { member.emplace(); }) {
    member.emplace();
    if constexpr (requires { member->at; }) member->at = entry.key.at;
    return read_inside(field, entry, reading, &*member);
  } else {
    return read_inside(field, entry, reading, &member);
  }
}
template <auto... Steps>
std::string print_child(const Field& field, const void* object) {
  const auto& member = Path<Steps...>::of(object);
  if constexpr (requires { member.has_value(); })
    return member ? print_inside(field, &*member) : "";
  else
    return print_inside(field, &member);
}
// Makes a member of a map with a struct of its own.
template <auto... Steps>
inline constexpr Member child = {read_child<Steps...>, print_child<Steps...>};

// ---- Objects ------------------------------------------------------------------------------------

template <class T>
T checked_of(Status (*)(const Fields&, const Reading&, T&));
// Reads the rows into a struct, and checks it.
template <auto Check>
Status checked(const Fields& map, const Reading& reading, void* object) {
  return Check(map, reading, *static_cast<decltype(checked_of(Check))*>(object));
}

// Returns a directive that adds to a list of the Strategy.
template <auto List>
constexpr Directive directive(Object keys, std::string_view doc,
                              std::span<const Object> parts = {}) {
  return {keys,
          doc,
          [](const Object& object, const yaml::Entry& entry, const Reading& reading,
             Strategy& out) -> Status {
            typename std::remove_cvref_t<decltype(out.*List)>::value_type made;
            made.at = entry.key.at;
            PIPER_TRY(read_map(object, entry.value, entry.key.at, reading, &made));
            (out.*List).push_back(std::move(made));
            return ok_status();
          },
          [](const Object& object, const Strategy& strategy) {
            std::vector<std::string> texts;
            for (const auto& one : strategy.*List)
              texts.push_back(object.block ? print_block(object, &one, 6)
                                           : " " + print_map(object, &one));
            return texts;
          },
          [](const Strategy& strategy) -> const void* { return &(strategy.*List); },
          parts};
}

}  // namespace piper::fields
