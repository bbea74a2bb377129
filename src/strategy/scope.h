// Values of YAML nodes: what names mean, and the checks that turn a scalar into an integer, a text,
// a glob, ….
#pragma once

#include "piper/strategy.h"
#include "yaml.h"

namespace piper {

// What the names in a file stand for.
struct Scope {
  Variables integers;  // params, then mesh sizes
  std::vector<std::pair<std::string, std::string>> texts;
  std::vector<std::string> integer_names() const;
  const std::string* text(std::string_view name) const;
};

struct IntegerRange {
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = std::numeric_limits<int64_t>::max();
};

Error wrong_type(const yaml::Node& node, std::string_view wanted);

// A scalar's text with $name and ${name} replaced by params, $$ by $.
Result<std::string> read_text(const yaml::Node& node, const Scope& scope);
Result<std::string> read_name(const yaml::Node& node, const Scope& scope);  // an identifier
Result<Glob> read_glob(const yaml::Node& node, const Scope& scope);
Result<int64_t> read_integer(const yaml::Node& node, const Scope& scope, IntegerRange range = {});
Result<double> read_real(const yaml::Node& node, const Scope& scope);
Result<bool> read_bool(const yaml::Node& node);
Result<int64_t> read_bytes(const yaml::Node& node, const Scope& scope);

// An expression bound to the scope; beyond it, it may name `free`.
Result<Expr> read_expression(const yaml::Node& node, const Scope& scope,
                             std::span<const std::string> free);
// The same for a part of a scalar: `text` begins `offset` characters into it.
Result<Expr> read_expression_part(const yaml::Node& node, size_t offset, std::string_view text,
                                  const Scope& scope, std::span<const std::string> free);
SourceSpan span_in(const yaml::Node& node, size_t offset, size_t length);

// Names are identifiers that expressions do not use otherwise.
Status check_new_name(const yaml::Node& key, std::string_view what);

}  // namespace piper
