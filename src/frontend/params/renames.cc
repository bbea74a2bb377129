// Templates of new names, for the rule `rename` of user_rules.cc.
#include "renames.h"

#include <algorithm>

namespace piper::onnx_import {

Status check_template(const ParamRule& rule, const Glob& glob) {
  size_t rest = 0;
  for (const std::string& segment : split_text(rule.match, '/')) {
    rest += segment == "**";
    if (segment != "**" && segment.find_first_of("*?") != segment.npos)
      return fail(rule.at, "a rename cannot tell what '{}' stands for", segment)
          .with_note("help: it takes {name} for integers, and one ** for the rest of a path");
  }
  if (rest > 1)
    return fail(rule.at, "a rename takes one ** only, since that is what ** means in 'to'");
  const std::vector<std::string> captures = glob.capture_names();
  for (const std::string& segment : split_text(rule.to, '/')) {
    if (segment == "**" && rest == 1) continue;
    if (segment.find_first_of("*?") != segment.npos)
      return fail(rule.to_at, "'{}' has no counterpart in '{}', which is under 'match'", segment,
                  rule.match);
    for (size_t open = segment.find('{'); open != segment.npos;
         open = segment.find('{', open + 1)) {
      const size_t close = segment.find('}', open);
      const std::string name = segment.substr(open + 1, close - open - 1);
      if (close == segment.npos ||
          std::find(captures.begin(), captures.end(), name) == captures.end())
        return fail(rule.to_at, "'{}' captures no '{}'{}", rule.match, quote_control(name),
                    did_you_mean(name, captures));
    }
  }
  return ok_status();
}

namespace {

void fill_captures(std::string& segment, const GlobMatch& match) {
  for (const auto& [name, value] : match.captures) {
    const std::string key = "{" + name + "}";
    for (size_t at = segment.find(key); at != segment.npos; at = segment.find(key))
      segment.replace(at, key.size(), std::to_string(value));
  }
}

}  // namespace

std::string renamed(const ParamRule& rule, const GlobMatch& match, const std::string& path) {
  const std::vector<std::string> from = split_text(rule.match, '/'), is = split_text(path, '/');
  const size_t before =
      static_cast<size_t>(std::find(from.begin(), from.end(), "**") - from.begin());
  std::vector<std::string> out;
  for (std::string segment : split_text(rule.to, '/')) {
    if (segment == "**") {
      const size_t behind = from.size() - before - 1;
      out.insert(out.end(), is.begin() + static_cast<int64_t>(before),
                 is.end() - static_cast<int64_t>(behind));
      continue;
    }
    fill_captures(segment, match);
    out.push_back(std::move(segment));
  }
  return join(out, ".");
}

}  // namespace piper::onnx_import
