// Words, sizes and globs.
#include <gtest/gtest.h>

#include <random>

#include "piper/base/base.h"
#include "piper/base/field_text.h"

namespace piper {
namespace {

// ---- Text ---------------------------------------------------------------------------------------

TEST(Text, NearestFindsSlipsOnly) {
  const std::vector<std::string> keys = {"match", "mesh", "microbatches", "place", "params"};
  EXPECT_EQ(nearest("mehs", keys), "mesh");
  EXPECT_EQ(nearest("microbatchs", keys), "microbatches");
  EXPECT_EQ(nearest("plcae", keys), "place");
  EXPECT_EQ(nearest("optimizer", keys), std::nullopt);
  EXPECT_EQ(nearest("", keys), std::nullopt);
  EXPECT_EQ(nearest("x", std::vector<std::string>{"y"}), std::nullopt);
  EXPECT_EQ(nearest("ab", std::vector<std::string>{"bb", "aa"}), "bb");  // the first of equals
  EXPECT_EQ(did_you_mean("mesch", keys), " (did you mean 'mesh'?)");
  EXPECT_EQ(did_you_mean("optimizer", keys), "");
}

TEST(Text, JoinSplitAndSizes) {
  EXPECT_EQ(join(std::vector<std::string>{"a", "", "b"}, ", "), "a, , b");
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(split_text("a//b/", '/'), (std::vector<std::string>{"a", "", "b", ""}));
  EXPECT_EQ(split_text("", '/'), std::vector<std::string>{""});
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1536 << 10), "1.5 MiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(human_bytes(-2048), "-2.0 KiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
}

TEST(Text, QuoteControlKeepsOnlyPrintableText) {
  EXPECT_EQ(quote_control("h/0 \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "h/0 \xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80");
  EXPECT_EQ(quote_control("a\n\t\x1B\x7F"), "a\\x0A\\x09\\x1B\\x7F");
  EXPECT_EQ(quote_control("\xC2\x9B\xFF\xE2\x82"), "\\xC2\\x9B\\xFF\\xE2\\x82");
  EXPECT_EQ(quote_control("\xC0\xAF\xED\xA0\x80"), "\\xC0\\xAF\\xED\\xA0\\x80");
}

// ---- Globs --------------------------------------------------------------------------------------

Glob glob(std::string_view pattern) {
  Result<Glob> parsed = Glob::parse(pattern, {});
  PIPER_CHECK(parsed.ok(), "{}", parsed.error().message);
  return *std::move(parsed);
}

TEST(Globs, Wildcards) {
  struct Case {
    const char* pattern;
    std::vector<const char*> yes, no;
  };
  const Case cases[] = {
      {"wte", {"wte"}, {"wt", "wtee", "h/wte", ""}},
      {"h/*", {"h/0", "h/abc", "h/"}, {"h", "h/0/mlp", "g/0"}},
      {"h/?", {"h/0"}, {"h/10", "h/", "h//"}},
      {"h/**", {"h", "h/0", "h/0/mlp/fc1"}, {"hh", "hh/0", "g/h"}},
      {"**/bias", {"bias", "h/0/bias"}, {"xbias", "h/xbias", "bias/h"}},
      {"h/**/fc*", {"h/fc1", "h/0/mlp/fc2", "h/fc"}, {"h/0/mlp", "fc1", "hx/fc1", "h/0/fc1/w"}},
      {"**/mlp/**", {"mlp", "h/mlp", "mlp/x", "h/0/mlp/fc1/weight"}, {"h/mlpx", "xmlp/y"}},
      {"**", {"", "a", "a/b"}, {}},
      {"*a*b*", {"ab", "xaxbx", "aab"}, {"ba", "a/b"}},
      {"*", {"", "abc"}, {"a/b"}},
      {"a/**/**/b", {"a/b", "a/x/b", "a/x/y/b"}, {"ab", "a/xb"}},
      {"norm.weight", {"norm.weight"}, {"normXweight"}},
  };
  for (const Case& c : cases) {
    for (const char* path : c.yes)
      EXPECT_TRUE(glob(c.pattern).match(path)) << c.pattern << " " << path;
    for (const char* path : c.no)
      EXPECT_FALSE(glob(c.pattern).match(path)) << c.pattern << " " << path;
  }
}

TEST(Globs, CapturesTakeWholeNumbers) {
  using Captures = std::vector<std::pair<std::string, int64_t>>;
  const Glob layers = glob("h/{layer}/**");
  EXPECT_EQ(layers.match("h/12/mlp/fc1")->captures, (Captures{{"layer", 12}}));
  EXPECT_EQ(layers.match("h/007")->captures, (Captures{{"layer", 7}}));
  EXPECT_FALSE(layers.match("h/12a/mlp"));
  EXPECT_FALSE(layers.match("h/a/mlp"));
  EXPECT_FALSE(layers.match("h//mlp"));
  EXPECT_FALSE(layers.match("h/-1/mlp"));
  EXPECT_FALSE(layers.match("h/1234567890123456789/mlp"));  // does not surely fit
  EXPECT_EQ(glob("**/{l}/e{e}/w").match("m/3/e14/w")->captures, (Captures{{"l", 3}, {"e", 14}}));
  EXPECT_EQ(glob("*{i}*").match("layer12x")->captures, (Captures{{"i", 12}}));
  EXPECT_EQ(glob("**/{i}/**").match("a/1/2/b")->captures, (Captures{{"i", 1}}));
  EXPECT_EQ(glob("a.{x}.{y}").capture_names(), (std::vector<std::string>{"x", "y"}));
}

TEST(Globs, SetsTakeNumbersOrWords) {
  using Captures = std::vector<std::pair<std::string, int64_t>>;
  struct Case {
    const char* pattern;
    std::vector<const char*> yes, no;
  };
  const Case cases[] = {
      {"h/{2..6}/**", {"h/2", "h/6/mlp", "h/04/x"}, {"h/1", "h/7", "h/12", "h/26", "h/x"}},
      {"h/{0, 3..4,9}", {"h/0", "h/3", "h/4", "h/9"}, {"h/1", "h/39", "h/90"}},
      {"h{5}x", {"h5x", "h05x"}, {"h55x", "hx"}},
      {"**/{q,k}_proj/*", {"q_proj/w", "a/k_proj/w"}, {"v_proj/w", "qk_proj/w", "q/k_proj/w/x"}},
      {"{a,ab}c", {"ac", "abc"}, {"abbc", "bc"}},
      {"{a,ab}{bc,c}", {"abc", "abbc", "ac"}, {"abcc"}},
      {"a, b/*", {"a", "b/x"}, {"a, b/x", "b"}},
      {"**, !h/{0..2}/**, !**/bias", {"h/3/w", "wte"}, {"h/0", "h/2/w", "h/3/bias", "h.3.bias"}},
      {"!a/**", {"", "b", "b/a"}, {"a", "a/b"}},
      {"a/*, (no module)", {"", "a/b"}, {"b", "a"}},
      {"**, !(no module)", {"a", "a/b"}, {""}},
  };
  for (const Case& c : cases) {
    for (const char* path : c.yes)
      EXPECT_TRUE(glob(c.pattern).match(path)) << c.pattern << " " << path;
    for (const char* path : c.no)
      EXPECT_FALSE(glob(c.pattern).match(path)) << c.pattern << " " << path;
  }
  const Glob layers = glob("h/{layer:2..6}/**, g/{layer}, !h/4");
  EXPECT_EQ(layers.match("h/5/mlp")->captures, (Captures{{"layer", 5}}));
  EXPECT_EQ(layers.match("g/44")->captures, (Captures{{"layer", 44}}));
  EXPECT_FALSE(layers.match("h/4") || layers.match("h/7"));
  EXPECT_EQ(layers.capture_names(), std::vector<std::string>{"layer"});
  EXPECT_TRUE(glob("h/{2..6}").capture_names().empty());
}

TEST(Globs, WrongPatternsAreErrors) {
  const SourceSpan at = {"s.yaml", 4, 2, 1};
  const std::pair<const char*, const char*> cases[] = {
      {"", "a pattern must not be empty"},
      {"/h", "the pattern '/h' must not begin or end with '/'"},
      {"h/", "the pattern 'h/' must not begin or end with '/'"},
      {"fc**", "'**' must be alone between slashes in the pattern 'fc**'"},
      {"a/***", "'**' must be alone between slashes in the pattern 'a/***'"},
      {"h/{", "braces in the pattern 'h/{' must hold a name, numbers or words"},
      {"h/}", "braces in the pattern 'h/}' must hold a name, numbers or words"},
      {"h/{}", "braces in the pattern 'h/{}' must hold a name, numbers or words"},
      {"h/{6..2}", "braces in the pattern 'h/{6..2}' must hold a name, numbers or words"},
      {"h/{2..}", "braces in the pattern 'h/{2..}' must hold a name, numbers or words"},
      {"h/{a,}", "braces in the pattern 'h/{a,}' must hold a name, numbers or words"},
      {"h/{l:a,b}", "braces in the pattern 'h/{l:a,b}' must hold a name, numbers or words"},
      {"h/{a*,b}", "braces in the pattern 'h/{a*,b}' must hold a name, numbers or words"},
      {"a,", "a pattern must not be empty"},
      {"!!a", "the pattern '!a' begins with more than one '!'"},
      {"1{2..3}", "the capture '{2..3}' in the pattern '1{2..3}' is next to other digits"},
      {"{i}/{i}", "the pattern '{i}/{i}' captures 'i' twice"},
      {"{i}{j}", "the capture '{j}' in the pattern '{i}{j}' is next to other digits"},
      {"a2{i}", "the capture '{i}' in the pattern 'a2{i}' is next to other digits"},
  };
  for (const auto& [pattern, message] : cases) {
    const Result<Glob> parsed = Glob::parse(pattern, at);
    ASSERT_FALSE(parsed.ok()) << pattern;
    EXPECT_EQ(parsed.error().message, message);
    EXPECT_EQ(parsed.error().at.line, 4);
  }
}

// The plain recursive meaning of a pattern without captures, for comparison.
bool slow_match(std::string_view pattern, std::string_view path) {
  if (pattern.empty()) return path.empty();
  const auto any_suffix = [&](std::string_view rest, auto may_skip) {
    for (size_t i = 0; i <= path.size(); ++i)
      if (may_skip(i) && slow_match(rest, path.substr(i))) return true;
    return false;
  };
  if (pattern == "**") return true;
  if (pattern.starts_with("/**") && (pattern.size() == 3 || pattern[3] == '/'))
    return any_suffix(pattern.substr(3), [&](size_t i) { return i == 0 || path[0] == '/'; });
  if (pattern.starts_with("**/"))
    return any_suffix(pattern.substr(3), [&](size_t i) { return i == 0 || path[i - 1] == '/'; });
  if (pattern[0] == '*')
    return any_suffix(pattern.substr(1), [&](size_t i) {
      return path.substr(0, i).find('/') == std::string_view::npos;
    });
  if (path.empty()) return false;
  const bool fits = pattern[0] == '?' ? path[0] != '/' : pattern[0] == path[0];
  return fits && slow_match(pattern.substr(1), path.substr(1));
}

TEST(Globs, AgreeWithThePlainMeaning) {
  const unsigned seed = 20240501;
  std::mt19937 random(seed);
  const auto pick = [&](std::string_view letters, size_t most) {
    std::string text;
    for (size_t n = random() % (most + 1); n > 0; --n) text += letters[random() % letters.size()];
    return text;
  };
  int compared = 0, matched = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string pattern = pick("ab/*?*/", 8);
    const Result<Glob> parsed = Glob::parse(pattern, {});
    if (!parsed) continue;
    for (int k = 0; k < 4; ++k) {
      const std::string path = pick("ab/", 7);
      const bool expected = slow_match(pattern, path);
      ASSERT_EQ(parsed->match(path).has_value(), expected)
          << "pattern '" << pattern << "' path '" << path << "' seed " << seed;
      ++compared;
      matched += expected ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 10000);
  EXPECT_GT(matched, 500);
}

TEST(Globs, HostilePatternsTakeNoLongerThanTheirSize) {
  std::string pattern, path(2000, 'a');
  for (int i = 0; i < 100; ++i) pattern += "*a";
  EXPECT_FALSE(glob(pattern + "b").match(path));
  EXPECT_TRUE(glob(pattern).match(path));
}

struct Small {
  std::string name;
  int32_t count = 1;
  bool big = false;
  std::vector<int64_t> sizes;
  std::optional<DType> dtype;
  bool operator==(const Small&) const = default;
};
PIPER_FIELDS(Small) {
  v("name", &Small::name, kWord);
  v("count", &Small::count);
  v("big", &Small::big);
  v("sizes", &Small::sizes, Look{"of"});
  v("dtype", &Small::dtype);
}
struct Lacking {
  int first = 0, second = 0;
};
PIPER_FIELDS(Lacking) { v("first", &Lacking::first); }

std::string printed(const Small& small) {
  std::string text;
  print_fields(text, small);
  return text;
}
std::string fault_of(std::string_view text) {
  Small small;
  LineReader line(text, "f", 1);
  read_fields(line, small);
  const Status status = line.finish();
  return status ? "none" : status.error().message;
}

TEST(Lines, FieldsPrintAndReadBack) {
  const Small cases[] = {{}, {"a \"b\x01", -3, true, {1, -2}, DType::kBF16}, {"]", INT32_MIN}};
  EXPECT_EQ(printed(cases[0]), " \"\"");
  EXPECT_EQ(printed(cases[1]), " \"a \\\"b\\x01\" count=-3 big of=[1,-2] dtype=bf16");
  for (const Small& small : cases) {
    Small again;
    const std::string text = printed(small);
    LineReader line(text, "f", 1);
    read_fields(line, again);
    EXPECT_TRUE(line.finish());
    EXPECT_EQ(again, small) << text;
  }
}

TEST(Lines, KeepTheFirstFault) {
  EXPECT_EQ(fault_of("\"a\" of=[1] count=2"), "none");
  EXPECT_EQ(fault_of("a count=x"), "'a' is no quoted text");
  EXPECT_EQ(fault_of("\"a"), "'\"a' is no quoted text");
  EXPECT_EQ(fault_of("\"\\xg0\""), "'\\xg0' is no quoted text");
  EXPECT_EQ(fault_of("\"a\" count=x of=1"), "'x' is no integer");
  EXPECT_EQ(fault_of("\"a\" count=4294967296"), "4294967296 is too large");
  EXPECT_EQ(fault_of("\"a\" of=1"), "'1' is no list");
  EXPECT_EQ(fault_of("\"a\" of=[1,]"), "'' is no integer");
  EXPECT_EQ(fault_of("\"a\" dtype=f33"), "'f33' is no element type");
  EXPECT_EQ(fault_of("\"a\" count=1 count=2"), "'count=2' is not expected here");
  const Status second = read_lines("# one\n\n  3 x", "f", [](LineReader& line) {
    EXPECT_EQ(line.indent(), 2);
    line.expect_position(4);
  });
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().at.line, 3);
  EXPECT_EQ(second.error().message, "position 3 should be 4");
}

TEST(Lines, ReadWordsInTheirPlaces) {
  LineReader line("%\"a b\":f32[2] = Op(%x, _) {k=\"}\"} t={a=1,\"b,\"=2}", "f", 1);
  line.expect("%");
  EXPECT_EQ(line.word(), "a b");
  line.expect(":");
  EXPECT_EQ(line.word(), "f32");
  EXPECT_EQ(line.bracketed('[', ']'), "[2]");
  EXPECT_FALSE(line.until("="));
  EXPECT_EQ(line.word(), "Op");
  line.expect("(");
  EXPECT_TRUE(line.until(")"));
  EXPECT_EQ(line.raw(), "%x,");
  EXPECT_TRUE(line.take("_"));
  EXPECT_FALSE(line.until(")"));
  EXPECT_EQ(line.bracketed('{', '}'), "{k=\"}\"}");
  line.read_fields();
  EXPECT_EQ(line.items(*line.value("t")), (std::vector<std::string_view>{"a=1", "\"b,\"=2"}));
  EXPECT_TRUE(line.finish());
  LineReader open("a", "f", 1);
  EXPECT_EQ(open.raw(), "a");
  while (open.until(")")) EXPECT_EQ(open.word(), "");
  EXPECT_EQ(open.finish().error().message, "expected ')' at ''");
}

// A list must name each member; print_fields and what writes bytes do not compile otherwise.
TEST(Lines, AListThatLacksAMemberIsFound) {
  static_assert(count_members<Small>() == 5 && count_members<Lacking>() == 2);
  static_assert(lists_all_members<Small>() && !lists_all_members<Lacking>());
}

}  // namespace
}  // namespace piper
