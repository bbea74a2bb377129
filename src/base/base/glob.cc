// Globs over '/'-separated paths, with captures, sets and lists.
#include <algorithm>
#include <charconv>
#include <utility>

#include "piper/base/base.h"

namespace piper {
namespace {

enum class Kind {
  kChar,        // this character
  kAnyChar,     // '?': one character, not '/'
  kStar,        // '*': any characters, not '/'
  kCapture,     // '{name}', '{2..6}', '{name:2..6}': a whole run of digits
  kWords,       // '{a,b}': one of these
  kDeepAfter,   // '/**': nothing, or '/' and anything (only '/' or the end follows in the pattern)
  kDeepBefore,  // '**/' at the start: nothing, or anything up to and with a '/'
  kDeepAll,     // '**' alone, or behind '**/'
};

struct Token {
  Kind kind = Kind::kChar;
  char character = 0;
  std::string_view name = {};                            // of a capture that has one
  std::vector<std::pair<int64_t, int64_t>> ranges = {};  // of a capture, both ends in it; none: any
  std::vector<std::string_view> words = {};
};

constexpr std::string_view kNoModule = "(no module)";  // the empty path
constexpr size_t kMostDigits = 18;                     // what surely fits an int64_t

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(std::string_view text) {
  if (text.empty() || is_digit(text[0])) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_';
  });
}

// Returns the pieces between separators that are not in braces, without blanks around them.
std::vector<std::string_view> pieces_of(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  size_t begin = 0;
  int depth = 0;
  for (size_t p = 0; p <= text.size(); ++p) {
    if (p < text.size() && text[p] == '{') ++depth;
    if (p < text.size() && text[p] == '}') --depth;
    if (p < text.size() && (text[p] != separator || depth > 0)) continue;
    std::string_view piece = text.substr(begin, p - begin);
    while (piece.starts_with(' ')) piece.remove_prefix(1);
    while (piece.ends_with(' ')) piece.remove_suffix(1);
    pieces.push_back(piece);
    begin = p + 1;
  }
  return pieces;
}

bool takes_out(std::string_view piece) { return piece.starts_with('!'); }

std::optional<int64_t> read_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && !text.empty() && is_digit(text[0]) ? std::optional(value) : std::nullopt;
}

// Reads "3" and "2..6".
std::optional<std::pair<int64_t, int64_t>> read_range(std::string_view text) {
  const size_t dots = text.find("..");
  const auto low = read_number(text.substr(0, dots));
  const auto high = dots == text.npos ? low : read_number(text.substr(dots + 2));
  return low && high && *low <= *high ? std::optional(std::pair(*low, *high)) : std::nullopt;
}

// Reads what is in braces: a name, integers, a name with integers, or words; nothing: none of them.
std::optional<Token> read_braces(std::string_view inside) {
  Token token{Kind::kCapture};
  if (is_word(inside)) {
    token.name = inside;
    return token;
  }
  std::string_view set = inside;
  if (const size_t colon = inside.find(':'); colon != inside.npos) {
    token.name = inside.substr(0, colon);
    set = inside.substr(colon + 1);
    if (!is_word(token.name)) return std::nullopt;
  }
  const std::vector<std::string_view> items = pieces_of(set, ',');
  for (const std::string_view item : items)
    if (const auto range = read_range(item)) token.ranges.push_back(*range);
  if (token.ranges.size() == items.size()) return token;
  const bool words = std::all_of(items.begin(), items.end(), [](std::string_view item) {
    return !item.empty() && item.find_first_of("{*?!:") == item.npos &&
           item.find("..") == item.npos;
  });
  if (!words || !token.name.empty() || items.size() < 2) return std::nullopt;
  return Token{.kind = Kind::kWords, .words = items};
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

// Reads one pattern of a list, which has passed Glob::parse.
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
      tokens.push_back(*read_braces(rest.substr(1, end - 1)));
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
      if (tokens_[t].kind == Kind::kCapture && !tokens_[t].name.empty())
        match.captures.emplace_back(tokens_[t].name, *read_number(path_.substr(p, end - p)));
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

  // Returns whether path_[begin, end) is a whole number, one of those that the token takes.
  bool is_taken(const Token& token, size_t begin, size_t end) const {
    if (begin == end || digits_end(begin) != end) return false;
    const int64_t value = *read_number(path_.substr(begin, end - begin));
    return token.ranges.empty() ||
           std::any_of(token.ranges.begin(), token.ranges.end(), [&](const auto& range) {
             return value >= range.first && value <= range.second;
           });
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
        return is_taken(tokens_[t], begin, end);
      case Kind::kWords:
        return std::find(tokens_[t].words.begin(), tokens_[t].words.end(), part) !=
               tokens_[t].words.end();
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
          at(t, p) = is_taken(tokens_[t], p, end) && at(t + 1, end);
          break;
        }
        case Kind::kWords:
          for (const std::string_view word : tokens_[t].words)
            if (path_.substr(p).starts_with(word) && at(t + 1, p + word.size())) at(t, p) = 1;
          break;
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

Error no_braces(std::string_view pattern, const SourceSpan& at) {
  return fail(at, "braces in the pattern '{}' must hold a name, numbers or words", pattern)
      .with_note(
          "help: 'h/{layer}/**' captures a number, 'h/{0,2..6}/**' takes these (6, too), "
          "'h/{layer:2..6}/**' does both, '{wq,wk}' takes one of these words");
}

// Checks that no digits are beside the capture that is pattern[begin, end].
Status check_beside(std::string_view pattern, size_t begin, size_t end, const SourceSpan& at) {
  const char before = begin > 0 ? pattern[begin - 1] : '/';
  const char behind = end + 1 < pattern.size() ? pattern[end + 1] : '/';
  if (!is_digit(before) && !is_digit(behind) && before != '}') return ok_status();
  return fail(at, "the capture '{}' in the pattern '{}' is next to other digits",
              pattern.substr(begin, end + 1 - begin), pattern)
      .with_note("a capture takes a whole number, so nothing could match");
}

Status check_captures(std::string_view pattern, const SourceSpan& at) {
  std::vector<std::string_view> names;
  for (size_t p = 0; (p = pattern.find_first_of("{}", p)) != std::string_view::npos;) {
    const size_t end = pattern.find('}', p);
    const bool closed = pattern[p] == '{' && end != std::string_view::npos;
    const auto token = closed ? read_braces(pattern.substr(p + 1, end - p - 1)) : std::nullopt;
    if (!token) return no_braces(pattern, at);
    if (!token->name.empty() && std::find(names.begin(), names.end(), token->name) != names.end())
      return fail(at, "the pattern '{}' captures '{}' twice", pattern, token->name);
    names.push_back(token->name);
    if (token->kind == Kind::kCapture) PIPER_TRY(check_beside(pattern, p, end, at));
    p = end + 1;
  }
  return ok_status();
}

Status check_one(std::string_view pattern, const SourceSpan& at) {
  if (pattern.empty())
    return fail(at, "a pattern must not be empty")
        .with_note(
            "help: \"**\" matches all names, those without a module, too; \"(no module)\" matches "
            "these alone");
  if (pattern.starts_with('/') || pattern.ends_with('/'))
    return fail(at, "the pattern '{}' must not begin or end with '/'", pattern)
        .with_note("scope paths have no slash at either end, for example 'h/0/mlp/fc1'");
  if (takes_out(pattern))
    return fail(at, "the pattern '{}' begins with more than one '!'", pattern);
  PIPER_TRY(check_stars(pattern, at));
  return check_captures(pattern, at);
}

// Returns whether the path has what the pattern says between its wildcards, one piece after the
// other, and begins and ends as it does: most do not. Slashes beside wildcards may be theirs.
bool may_match(std::string_view pattern, std::string_view path) {
  size_t place = 0;  // in the path, behind the piece before
  for (size_t begin = 0;;) {
    const size_t wildcard = pattern.find_first_of("*?{", begin);
    std::string_view piece = pattern.substr(begin, wildcard - begin);
    if (begin > 0 && piece.starts_with('/')) piece.remove_prefix(1);
    if (wildcard == std::string_view::npos)
      return path.substr(place).ends_with(piece) && (begin > 0 || path.size() == piece.size());
    if (piece.ends_with('/')) piece.remove_suffix(1);
    const size_t found =
        begin == 0 && !path.starts_with(piece) ? path.npos : path.find(piece, place);
    if (found == path.npos) return false;
    place = found + piece.size();
    begin = pattern[wildcard] == '{' ? pattern.find('}', wildcard) + 1 : wildcard + 1;
  }
}

std::optional<GlobMatch> match_one(std::string_view pattern, std::string_view path) {
  if (pattern == kNoModule) return path.empty() ? std::optional(GlobMatch()) : std::nullopt;
  if (!may_match(pattern, path)) return std::nullopt;
  const std::vector<Token> tokens = tokens_of(pattern);
  const Matcher matcher(tokens, path);
  if (!matcher.matches()) return std::nullopt;
  return matcher.captures();
}

}  // namespace

Result<Glob> Glob::parse(std::string_view pattern, SourceSpan at) {
  Glob glob;
  for (const std::string_view piece : pieces_of(pattern, ',')) {
    PIPER_TRY(check_one(takes_out(piece) ? piece.substr(1) : piece, at));
    glob.pattern_ += fmt::format("{}{}", glob.pattern_.empty() ? "" : ", ", piece);
  }
  return glob;
}

// What is taken out by its path is so by its name, too: "h.0.bias" is "h/0/bias".
std::optional<GlobMatch> Glob::match(std::string_view path) const {
  if (pattern_.find_first_of(",!") == pattern_.npos) return match_one(pattern_, path);
  std::string dots_as_slashes(path);
  std::replace(dots_as_slashes.begin(), dots_as_slashes.end(), '.', '/');
  std::optional<GlobMatch> found;
  bool only_out = true;
  for (const std::string_view piece : pieces_of(pattern_, ',')) {
    if (takes_out(piece)) {
      const std::string_view out = piece.substr(1);
      if (match_one(out, path) || match_one(out, dots_as_slashes)) return std::nullopt;
      continue;
    }
    only_out = false;
    if (!found) found = match_one(piece, path);
  }
  return only_out ? GlobMatch() : found;
}

std::vector<std::string> Glob::capture_names() const {
  std::vector<std::string> names;
  for (const std::string_view piece : pieces_of(pattern_, ','))
    for (const Token& token : takes_out(piece) ? std::vector<Token>() : tokens_of(piece))
      if (!token.name.empty() && std::find(names.begin(), names.end(), token.name) == names.end())
        names.emplace_back(token.name);
  return names;
}

}  // namespace piper
