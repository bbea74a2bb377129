// Values of YAML nodes: what names mean, and the checks that turn a scalar into an integer, a text,
// a glob, ….
#pragma once

#include <map>
#include <set>

#include "piper/base/yaml.h"
#include "piper/frontend/strategy.h"

namespace piper {

// Says what the names in a file mean.
struct Scope {
  struct Text {
    std::string name, value;
    bool is_number = false;  // 3e-4
    SourceSpan at, inside;   // where it is given, and where its first line begins
  };
  Variables integers;  // params, then mesh sizes
  std::vector<Text> texts;
  // Params and axes whose values are wrong: what names them is a consequence of that.
  std::vector<std::string> failed;
  std::map<std::string, SourceSpan, std::less<>> included_at;  // by file
  mutable std::set<std::string, std::less<>> used;             // names that something named

  std::vector<std::string> integer_names() const;  // and those that failed
  bool has_integer(std::string_view name) const;
  const Text* text(std::string_view name) const;
};

struct IntegerRange {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
};

Error wrong_type(const yaml::Node& node, std::string_view wanted);
// Returns where a list of maps is wanted.
Error no_list(const yaml::Node& node, std::string_view wanted);
Error no_integer(const Scope::Text& param, const SourceSpan& used_at, const Scope& scope);

// A scalar's text with $name and ${name} replaced by params, $$ by $. Not of several lines.
Result<std::string> read_text(const yaml::Node& node, const Scope& scope);
// Returns the same of any text.
Result<std::string> insert_params(const yaml::Node& node, const Scope& scope);
// Returns the names that follow a '$', in their order: of "h/$layer/${part}" layer and part.
std::vector<std::string_view> inserted_names(std::string_view text);
// Returns a node that inserts a text param with its text; any other as it is.
Result<yaml::Node> with_texts(const yaml::Node& node, const Scope& scope);
Result<std::string> read_name(const yaml::Node& node, const Scope& scope);  // an identifier
// Error: what is neither an integer nor one of a few words.
Status check_word(const yaml::Node& node, const Scope& scope,
                  const std::vector<std::string>& words);
// Reads a pattern, or a list of them.
Result<Glob> read_glob(const yaml::Node& node, const Scope& scope);
Result<int64_t> read_integer(const yaml::Node& node, const Scope& scope, IntegerRange range = {});
Result<double> read_real(const yaml::Node& node, const Scope& scope);
// Reads true, false, or an integer that is not 0.
Result<bool> read_bool(const yaml::Node& node, const Scope& scope, IntegerRange range = {0, 1});
Result<int64_t> read_bytes(const yaml::Node& node, const Scope& scope);
bool is_byte_count(std::string_view text);  // 25MiB

// An expression bound to the scope; beyond it, it may name `free`.
Result<Expr> read_expression(const yaml::Node& node, const Scope& scope,
                             std::span<const std::string> free);
// Does the same for a part of a scalar: `text` begins `offset` characters into it.
Result<Expr> read_expression_part(const yaml::Node& node, size_t offset, std::string_view text,
                                  const Scope& scope, std::span<const std::string> free);
// Reads a formula of the learning rate over `free`, params and pi, and returns its words
// (piper/ir/rate.h).
Result<std::string> read_rate(const yaml::Node& node, const Scope& scope,
                              std::span<const std::string> free);
SourceSpan span_in(const yaml::Node& node, size_t offset, size_t length);

// Lists what directives may name: mesh axes and tags.
struct Names {
  std::vector<std::string> axes, tags;
  std::vector<std::string> placed;  // tags of `place`
  bool kinds = false;               // conditions may choose by kind of task
};
Status check_axis(std::string_view name, const SourceSpan& at, const Names& names);

// Names are identifiers that expressions do not use otherwise.
Status check_new_name(const yaml::Node& key, std::string_view what);

}  // namespace piper
