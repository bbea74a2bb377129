// The keys of the language, in one table: the parser, its errors and the JSON Schema all read it.
#pragma once

#include "scope.h"

namespace piper::fields {

enum class Type {
  kInteger,
  kReal,
  kBool,
  kText,
  kGlob,
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
  kTextOrOne,      // a text, of those in `other` if there are, or a map with the keys of `object`
  kManyOrOne,      // a list of `object` maps, or a map with the keys of `other`
  kWhere,          // a map from tag names to conditions
  kWord,           // one of the words in `object`, or a text param
  kWords,          // a list of them, or one
  kIntegerOrWord,  // an integer, or one of the words in `object`
};
// kBeside: stands also beside the one key of a `single` object.
enum class Presence { kOptional, kRequired, kBeside, kUnsupported };

struct Field {
  std::string_view name;
  Type type;
  Presence presence;
  std::string_view doc;
  std::string_view object = {}, other = {};
};
struct Object {
  std::string_view name;
  std::span<const Field> fields;
  bool single = false;  // exactly one of its keys is given, but for those beside
};
const Object& object(std::string_view name);
std::span<const Object> objects();
const Field* find_field(const Object& object, std::string_view name);  // or null

// A map whose keys have been checked against an Object.
class Fields {
 public:
  Fields(const yaml::Node& node, SourceSpan at) : node_(&node), at_(std::move(at)) {}
  const yaml::Node* operator[](std::string_view name) const;
  const SourceSpan& key_at(std::string_view name) const;  // of a key that is there
  // Of a single Object, with nothing beside it.
  const yaml::Entry& only() const { return node_->entries[0]; }
  const SourceSpan& at() const { return at_; }  // the key above the map

 private:
  const yaml::Node* node_;
  SourceSpan at_;
};
// `at` is what names the map in errors: the key above it.
Result<Fields> read(const yaml::Node& node, const SourceSpan& at, std::string_view object);
// The same of a map that nothing reads, and of the maps in it.
Status check(const yaml::Node& node, const SourceSpan& at, std::string_view object);

}  // namespace piper::fields
