// require: what a strategy asks of its params, and what it says where they are otherwise.
#include <algorithm>

#include "sections.h"

namespace piper {
namespace {

// "stages is 3 (-D stages=3)"
std::string given(const std::string& name, int64_t value, const Sections& sections,
                  const std::vector<Definition>& defines) {
  std::string text = fmt::format("{} is {}", name, value);
  const auto define = std::find_if(defines.rbegin(), defines.rend(),
                                   [&](const Definition& d) { return d.name == name; });
  if (define != defines.rend()) return text + fmt::format(" (-D {}={})", name, define->value);
  for (const yaml::Entry* param : sections.params)
    if (param->key.text == name) text += fmt::format(" ({})", yaml::place(param->value.at));
  return text;
}

}  // namespace

Status check_required(const Sections& sections, const Scope& scope,
                      const std::vector<Definition>& defines) {
  for (const auto& [file, item] : sections.require) {
    PIPER_ASSIGN(const fields::Fields map, fields::read(item, item.at, "requirement"));
    const yaml::Node& that = *map["that"];
    PIPER_ASSIGN(const int64_t holds, read_integer(that, scope));
    PIPER_ASSIGN(const std::string why, read_text(*map["why"], scope));
    if (holds != 0) continue;
    PIPER_ASSIGN(const Expr expr, Expr::parse(that.text, that.at));
    Error error = fail(that.at, "{}", why);
    for (const std::string& name : expr.names())
      for (const auto& [known, value] : scope.integers)
        if (known == name) error.notes.push_back(given(name, value, sections, defines));
    return error;
  }
  return ok_status();
}

}  // namespace piper
