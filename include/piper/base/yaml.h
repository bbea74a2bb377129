// YAML text -> a tree in which every node knows its place. Accepts a small, unsurprising part of
// YAML 1.2.
#pragma once

#include "piper/base/base.h"

namespace piper::yaml {

struct Entry;
struct Node {
  enum class Kind { kNull, kScalar, kList, kMap };
  enum class Style { kPlain, kQuoted, kBlock };
  Kind kind = Kind::kNull;
  Style style = Style::kPlain;
  std::string text;   // kScalar
  SourceSpan at;      // what to underline
  SourceSpan inside;  // kScalar: where text begins; its length is text.size() iff columns match
  std::vector<Node> items;     // kList
  std::vector<Entry> entries;  // kMap, in the order of the file; keys are scalars, all different
  bool is(Kind k) const { return kind == k; }
  const Entry* find(std::string_view key) const;
};
struct Entry {
  Node key, value;
};

// An order's lists of about a million computations, as a pipeline file may bring them.
inline constexpr int64_t kMaxBytes = int64_t{8} << 20;
inline constexpr int kMaxDepth = 64;
inline constexpr int kMaxNodes = 100000;

// An empty file is a kNull node.
Result<Node> parse_yaml(const std::string& path, const std::string& text);
// Returns the reason to refuse a plain scalar, or nothing: yes, off, ~, 010, 0x1F, 1_000, 12:30,
// 2001-12-14, True. It means different things to different YAML versions.
std::optional<std::string> yaml_surprise(std::string_view plain);

std::string place(const SourceSpan& at);       // "file:line:column"
std::string in_quotes(std::string_view text);  // as YAML reads it, whatever characters it has
std::string shown(std::string_view text);      // quoted, without control characters, not too long
std::string found(const Node& node);           // "the text 'x'", "a list", "a map", "nothing"
// Columns are bytes, as print_error counts them.
inline int count_columns(std::string_view text) { return static_cast<int>(text.size()); }

}  // namespace piper::yaml
