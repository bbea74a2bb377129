// The language in tables. An Object has a row for each key: how its value is written, what it is
// for, and which member of a struct keeps it. Reading, printing, errors about keys and the JSON
// Schema walk these rows; what no row can say is an Object's `check`.
//
// To add a key: a member of a struct, and a row. To add a directive: its struct and a list of them
// in directive_lists.h, and a file like keys/fuse.cc.
#pragma once

#include "scope.h"

namespace piper::fields {

enum class Type {
  kInteger,
  kReal,
  kBool,
  kText,
  kName,  // an identifier
  kAxis,  // of the mesh
  kAxes,  // an axis, or a list of them
  kBytes,
  kIntegers,
  kReals,
  kProgram,
  kOne,            // a map with the keys of `object`
  kMany,           // a list of such maps
  kNamed,          // a map from free names to such maps
  kCounts,         // a map from free names to integers
  kParams,         // a map from free names to integers or texts
  kTexts,          // a list of texts
  kPaths,          // a text, or a list of texts
  kTextOrOne,      // a text, one of the words if there are any, or a map with the keys of `object`
  kTextOrMany,     // a text, or a list of maps with the keys of `object`
  kTextOneOrMany,  // a text, a map with the keys of `object`, or a list of such maps
  kManyOrOne,      // a list of `object` maps, or a map with the keys of `other`
  kWhere,          // a map from tag names to conditions, which choose ops
  kWhereTask,      // the same, of tasks
  kWord,           // one of the words, or a text param
  kWords,          // a list of them, or one
  kIntegerOrWord,  // an integer, or one of the words
  kIntegerOneOrMany,  // an integer, a map with the keys of `object`, or a list of such maps
};
// kStated: may be left out, and is printed with its default. kBeside: is also beside the one
// key of a `single` object.
enum class Presence { kOptional, kStated, kRequired, kBeside, kUnsupported };
using enum Presence;

struct Word {
  std::string_view name;
  int64_t value = 0;  // of the enum, bool or integer that the word stands for
};
template <class Value>
constexpr Word word(std::string_view name, Value value) {
  return {name, static_cast<int64_t>(value)};
}
inline constexpr Word kGradientTypes[] = {word("f32", DType::kF32), word("bf16", DType::kBF16),
                                          word("f16", DType::kF16)};

struct RealRange {
  double least = -1e300, most = 1e300;
  bool open_least = false, open_most = false;  // the bound itself is not allowed
};
inline constexpr RealRange kNotNegative{0, 1e30}, kPositive{0, 1e30, true}, kUnit{0, 1};

// A Form says how a value is written.
struct Form {
  Type type = Type::kText;
  std::string_view object = {}, other = {};
  std::span<const Word> words = {};
  IntegerRange integers = {};
  RealRange reals = {};
};
inline constexpr Form kInteger{Type::kInteger}, kReal{Type::kReal}, kBool{Type::kBool},
    kText{Type::kText}, kName{Type::kName}, kAxis{Type::kAxis}, kAxes{Type::kAxes},
    kBytes{Type::kBytes}, kIntegers{Type::kIntegers}, kReals{Type::kReals},
    kProgram{Type::kProgram}, kCounts{Type::kCounts}, kParams{Type::kParams}, kTexts{Type::kTexts},
    kPaths{Type::kPaths}, kWhere{Type::kWhere}, kWhereTask{Type::kWhereTask};
constexpr Form integer(int64_t least, int64_t most = IntegerRange{}.most) {
  return {.type = Type::kInteger, .integers = {least, most}};
}
inline constexpr Form kCount = integer(1, int64_t{1} << 20);
constexpr Form real(RealRange range) { return {.type = Type::kReal, .reals = range}; }
constexpr Form one(std::string_view object) { return {Type::kOne, object}; }
constexpr Form many(std::string_view object) { return {Type::kMany, object}; }
constexpr Form text_or(std::string_view object, std::span<const Word> words = {}) {
  return {.type = Type::kTextOrOne, .object = object, .words = words};
}
constexpr Form one_of(std::span<const Word> words) { return {.type = Type::kWord, .words = words}; }
constexpr Form some_of(std::span<const Word> words) {
  return {.type = Type::kWords, .words = words};
}
constexpr Form integer_or(std::span<const Word> words, IntegerRange range) {
  return {.type = Type::kIntegerOrWord, .words = words, .integers = range};
}

// Readers of values are given what names mean, what directives may name, what is read already.
inline const Names kNoNames;
inline const Strategy kNothingYet;
struct Reading {
  const Scope& scope;
  const Names& names = kNoNames;
  const Strategy& strategy = kNothingYet;
};

struct Field;
// A Member gets a value into a struct, and out of it again. members.h makes them.
struct Member {
  Status (*read)(const Field&, const yaml::Entry&, const Reading&, void* object) = nullptr;
  std::string (*print)(const Field&, const void* object) = nullptr;  // "": it need not be said
};
struct Field {
  std::string_view name;
  Form form;
  Presence presence = kOptional;
  std::string_view doc = {};
  Member member = {};
};
class Fields;
struct Object {
  std::string_view name;
  std::span<const Field> fields;
  // Checks what rows do not say, when all of them have been read.
  Status (*check)(const Fields&, const Reading&, void* object) = nullptr;
  bool single = false;  // exactly one of its keys is given, but for those beside
  bool block = false;   // printed with a line for each key
};
constexpr Object single(std::string_view name, std::span<const Field> fields) {
  return {.name = name, .fields = fields, .single = true};
}
constexpr Object block(std::string_view name, std::span<const Field> fields,
                       Status (*check)(const Fields&, const Reading&, void*) = nullptr) {
  return {.name = name, .fields = fields, .check = check, .block = true};
}
// The entries of lists have it.
inline constexpr Field kWhen = {"when", kBool, kBeside,
                                "An expression; if it is 0, the entry is left out. Default 1."};
const Object& object(std::string_view name);
std::span<const Object> objects();        // all of them
std::span<const Object> model_objects();  // of the sections that are about the model
std::span<const Object> train_objects();
std::span<const Object> annotate_objects();
std::span<const Object> versions_objects();
const Field* find_field(const Object& object, std::string_view name);  // or null

// Views a map whose keys have been checked against an Object.
class Fields {
 public:
  Fields(const yaml::Node& node, SourceSpan at) : node_(&node), at_(std::move(at)) {}
  const yaml::Node* operator[](std::string_view name) const;
  const SourceSpan& key_at(std::string_view name) const;  // of a key that is there
  // Returns the entry of an Object that has only one.
  const yaml::Entry& only() const { return node_->entries[0]; }
  const SourceSpan& at() const { return at_; }  // the key above the map

 private:
  const yaml::Node* node_;
  SourceSpan at_;
};
// `at` is what names the map in errors: the key above it, which is `key` unless that is the name of
// the object.
Result<Fields> read(const yaml::Node& node, const SourceSpan& at, std::string_view object,
                    std::string_view key = {});
// Checks the same of a map that nothing reads, and of the maps in it.
Status check(const yaml::Node& node, const SourceSpan& at, std::string_view object);

// ---- Whole maps, row by row ---------------------------------------------------------------------

Status read_map(const Object& object, const yaml::Node& node, const SourceSpan& at,
                const Reading& reading, void* out, std::string_view key = {});
std::string print_map(const Object& object, const void* from);      // "{a: 1, b: 2}"
std::string print_entries(const Object& object, const void* from);  // "a: 1, b: 2"
// Returns a line for each key, each past the end of the one before; lists have lines of their
// own.
std::string print_block(const Object& object, const void* from, int indent);

// ---- Directives ---------------------------------------------------------------------------------

struct Directive {
  Object keys;
  std::string_view doc;
  Status (*read)(const Object& keys, const yaml::Entry&, const Reading&, Strategy&);
  std::vector<std::string> (*print)(const Object& keys, const Strategy&);  // one text for each
  const void* (*list_in)(const Strategy&);                                 // of what it says
  std::span<const Object> parts = {};                                      // the maps in it
};

}  // namespace piper::fields
