// Globs over '/'-separated paths, with captures.
#include <algorithm>
#include <charconv>

#include "piper/base/base.h"

namespace piper {
namespace {

enum class Kind {
  kChar,        // this character
  kAnyChar,     // '?': one character, not '/'
  kStar,        // '*': any characters, not '/'
  kCapture,     // '{name}': a whole run of digits
  kDeepAfter,   // '/**': nothing, or '/' and anything (only '/' or the end follows in the pattern)
  kDeepBefore,  // '**/' at the start: nothing, or anything up to and with a '/'
  kDeepAll,     // '**' alone, or behind '**/'
};

struct Token {
  Kind kind = Kind::kChar;
  char character = 0;
  std::string_view name = {};
};

constexpr size_t kMostDigits = 18;  // what surely fits an int64_t

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(std::string_view text) {
  if (text.empty() || is_digit(text[0])) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
  });
}

// Reads '**' at `at`, or the '/**' there; moves `at` past it.
Token deep_token(std::string_view pattern, size_t& at) {
  if (pattern[at] == '/') {
    at += 3;
    return {Kind::kDeepAfter};
  }
  const bool alone = at + 2 == pattern.size();
  at += alone ? 2 : 3;
  return {alone ? Kind::kDeepAll : Kind::kDeepBefore};
}

// The pattern has passed Glob::parse.
std::vector<Token> tokens_of(std::string_view pattern) {
  std::vector<Token> tokens;
  for (size_t at = 0; at < pattern.size();) {
    const std::string_view rest = pattern.substr(at);
    if (rest.starts_with("/**") || rest.starts_with("**")) {
      tokens.push_back(deep_token(pattern, at));
      continue;
    }
    if (rest[0] == '{') {
      const size_t end = rest.find('}');
      tokens.push_back({Kind::kCapture, 0, rest.substr(1, end - 1)});
      at += end + 1;
      continue;
    }
    const Kind kind = rest[0] == '*' ? Kind::kStar : rest[0] == '?' ? Kind::kAnyChar : Kind::kChar;
    tokens.push_back({kind, rest[0]});
    ++at;
  }
  return tokens;
}

// Finds which suffixes of the path each suffix of the pattern matches, filled from the back: work
// and memory are pattern × path for any pattern.
class Matcher {
 public:
  Matcher(const std::vector<Token>& tokens, std::string_view path)
      : tokens_(tokens), path_(path), matches_((tokens.size() + 1) * (path.size() + 1), 0) {
    at(tokens.size(), path.size()) = 1;
    for (size_t t = tokens.size(); t-- > 0;) fill(t);
  }

  bool matches() const { return at(0, 0) != 0; }

  // Every wildcard takes as little as it can.
  GlobMatch captures() const {
    GlobMatch match;
    size_t p = 0;
    for (size_t t = 0; t < tokens_.size(); ++t) {
      size_t end = p;
      while (!(can_take(t, p, end) && at(t + 1, end))) ++end;
      if (tokens_[t].kind == Kind::kCapture) {
        int64_t value = 0;
        std::from_chars(path_.data() + p, path_.data() + end, value);
        match.captures.emplace_back(tokens_[t].name, value);
      }
      p = end;
    }
    return match;
  }

 private:
  char& at(size_t token, size_t place) { return matches_[token * (path_.size() + 1) + place]; }
  char at(size_t token, size_t place) const { return matches_[token * (path_.size() + 1) + place]; }

  // Returns the end of the digits at `place`, or `place` where no capture can begin.
  size_t digits_end(size_t place) const {
    if (place > 0 && is_digit(path_[place - 1])) return place;
    size_t end = place;
    while (end < path_.size() && is_digit(path_[end])) ++end;
    return end - place <= kMostDigits ? end : place;
  }

  // Returns whether the token may take path_[begin, end), not looking at what follows.
  bool can_take(size_t t, size_t begin, size_t end) const {
    const std::string_view part = path_.substr(begin, end - begin);
    switch (tokens_[t].kind) {
      case Kind::kChar:
        return part.size() == 1 && part[0] == tokens_[t].character;
      case Kind::kAnyChar:
        return part.size() == 1 && part[0] != '/';
      case Kind::kStar:
        return part.find('/') == std::string_view::npos;
      case Kind::kCapture:
        return !part.empty() && digits_end(begin) == end;
      case Kind::kDeepAfter:
        return part.empty() || part[0] == '/';
      case Kind::kDeepBefore:
        return part.empty() || part.back() == '/';
      case Kind::kDeepAll:
        return true;
    }
    return false;
  }

  void fill(size_t t) {
    bool later = false;  // a wildcard reaches some good end at or behind p
    for (size_t p = path_.size() + 1; p-- > 0;) {
      const char c = p < path_.size() ? path_[p] : '\0';
      const bool here = at(t + 1, p) != 0;
      switch (tokens_[t].kind) {
        case Kind::kChar:
          at(t, p) = p < path_.size() && c == tokens_[t].character && at(t + 1, p + 1);
          break;
        case Kind::kAnyChar:
          at(t, p) = p < path_.size() && c != '/' && at(t + 1, p + 1);
          break;
        case Kind::kStar:
          at(t, p) = here || (p < path_.size() && c != '/' && at(t, p + 1));
          break;
        case Kind::kCapture: {
          const size_t end = digits_end(p);
          at(t, p) = end > p && at(t + 1, end);
          break;
        }
        case Kind::kDeepAfter:
          at(t, p) = here || (c == '/' && later);
          later = later || here;
          break;
        case Kind::kDeepBefore:
          at(t, p) = here || later;
          later = later || (here && p > 0 && path_[p - 1] == '/');
          break;
        case Kind::kDeepAll:
          at(t, p) = 1;
          break;
      }
    }
  }

  const std::vector<Token>& tokens_;
  std::string_view path_;
  std::vector<char> matches_;
};

Status check_stars(std::string_view pattern, const SourceSpan& at) {
  for (size_t p = pattern.find("**"); p != std::string_view::npos; p = pattern.find("**", p)) {
    const bool starts = p == 0 || pattern[p - 1] == '/';
    const bool ends = p + 2 == pattern.size() || pattern[p + 2] == '/';
    if (!starts || !ends)
      return fail(at, "'**' must be alone between slashes in the pattern '{}'", pattern)
          .with_note("help: '*' matches within one segment, '**' any number of whole segments");
    p += 2;
  }
  return ok_status();
}

Status check_captures(std::string_view pattern, const SourceSpan& at) {
  std::vector<std::string_view> names;
  for (size_t p = 0; (p = pattern.find_first_of("{}", p)) != std::string_view::npos;) {
    const size_t end = pattern.find('}', p);
    const bool closed = pattern[p] == '{' && end != std::string_view::npos;
    const std::string_view name = closed ? pattern.substr(p + 1, end - p - 1) : std::string_view();
    if (!is_word(name))
      return fail(at, "a capture in the pattern '{}' must be a name in braces", pattern)
          .with_note("help: for example 'h/{layer}/**'");
    if (std::find(names.begin(), names.end(), name) != names.end())
      return fail(at, "the pattern '{}' captures '{}' twice", pattern, name);
    names.push_back(name);
    const char before = p > 0 ? pattern[p - 1] : '/';
    const char behind = end + 1 < pattern.size() ? pattern[end + 1] : '/';
    if (is_digit(before) || is_digit(behind) || before == '}')
      return fail(at, "the capture '{{{}}}' in the pattern '{}' is next to other digits", name,
                  pattern)
          .with_note("a capture takes a whole number, so nothing could match");
    p = end + 1;
  }
  return ok_status();
}

}  // namespace

Result<Glob> Glob::parse(std::string_view pattern, SourceSpan at) {
  if (pattern.empty()) return fail(at, "a pattern must not be empty");
  if (pattern.starts_with('/') || pattern.ends_with('/'))
    return fail(at, "the pattern '{}' must not begin or end with '/'", pattern)
        .with_note("scope paths have no slash at either end, for example 'h/0/mlp/fc1'");
  PIPER_TRY(check_stars(pattern, at));
  PIPER_TRY(check_captures(pattern, at));
  Glob glob;
  glob.pattern_ = pattern;
  return glob;
}

std::optional<GlobMatch> Glob::match(std::string_view path) const {
  const std::vector<Token> tokens = tokens_of(pattern_);
  const Matcher matcher(tokens, path);
  if (!matcher.matches()) return std::nullopt;
  return matcher.captures();
}

std::vector<std::string> Glob::capture_names() const {
  std::vector<std::string> names;
  for (const Token& token : tokens_of(pattern_))
    if (token.kind == Kind::kCapture) names.emplace_back(token.name);
  return names;
}

}  // namespace piper
