// What is wrong with a strategy file, as the user reads it.
#include "golden.h"
#include "unit/strategy_texts.h"

namespace piper::strategy_errors_test {
namespace {

golden::Section strategy_error(const golden::Case& c) {
  const Folder folder;
  for (const golden::Section& section : c.sections) {
    const bool is_file = section.name.ends_with(".yaml") || section.name.ends_with(".csv");
    if (is_file) folder.write(section.name, section.text);
  }
  std::vector<Definition> defines;
  for (const golden::Section& section : c.sections) {
    if (section.name != "define") continue;
    const size_t sign = section.text.find('=');
    defines.push_back({section.text.substr(0, sign),
                       section.text.substr(sign + 1, section.text.size() - sign - 2)});
  }
  const std::string path = folder.write("strategy.yaml", c.text("strategy"));
  const Result<Strategy> strategy = parse_strategy(path, defines);
  return {"error", strategy ? "none" : folder.print(strategy.error())};
}

TEST(Strategy, RefusesYamlSurprises) {
  golden::run("strategy/yaml_refused.test", {"error"}, strategy_error);
}
TEST(Strategy, ExplainsWrongKeysAndTypes) {
  golden::run("strategy/keys_and_types.test", {"error"}, strategy_error);
}
TEST(Strategy, ExplainsWrongNames) {
  golden::run("strategy/names.test", {"error"}, strategy_error);
}
TEST(Strategy, ExplainsWrongExpressions) {
  golden::run("strategy/expressions.test", {"error"}, strategy_error);
}
TEST(Strategy, ExplainsWrongParameters) {
  golden::run("strategy/parameters.test", {"error"}, strategy_error);
}
TEST(Strategy, ExplainsWrongIncludes) {
  golden::run("strategy/includes.test", {"error"}, strategy_error);
}
TEST(Strategy, ExplainsWhatDoesNotCompose) {
  golden::run("strategy/composing.test", {"error"}, strategy_error);
}

TEST(Strategy, ExplainsUnusedParams) {
  golden::run("strategy/unused_params.test", {"error"}, strategy_error);
}
TEST(Strategy, ExplainsWordsOfOtherSystems) {
  golden::run("strategy/foreign_words.test", {"error"}, strategy_error);
}

TEST(Strategy, ExplainsWrongPrecisions) {
  golden::run("strategy/precision.test", {"error"}, strategy_error);
}

TEST(Strategy, ExplainsWrongShards) {
  golden::run("strategy/shard.test", {"error"}, strategy_error);
}

TEST(Strategy, RefusesBytesThatAreNoText) {
  EXPECT_EQ(message(std::string("piper: 1\nloss: a\0b\n", 19)),
            "the file has a control character here");
  EXPECT_EQ(message("piper: 1\nloss: \xff\n"), "the file is not valid UTF-8 here");
  EXPECT_EQ(message("piper: 1\nloss: \xc0\xaf\n"), "the file is not valid UTF-8 here");
  EXPECT_EQ(message("piper: 1\nloss: \xed\xa0\x80\n"), "the file is not valid UTF-8 here");
  EXPECT_EQ(message("piper: 1\nloss: \xe2\x82"), "the file is not valid UTF-8 here");
  EXPECT_EQ(message("\xEF\xBB\xBFpiper: 1\n"),
            "the file starts with a byte order mark; save it as plain UTF-8");
  EXPECT_EQ(message("piper: 1\rloss: a\n"),
            "the file has a carriage return without a line feed here");
  EXPECT_EQ(message("piper: 1\nloss: \"a\\0b\"\n"),
            "a quoted text must not hold control characters");
  EXPECT_EQ(message("piper: 1\nmesh:\u00A0{dp: 2}\n"),
            "the file has a space that is not ASCII's here");
  EXPECT_TRUE(parse("piper: 1  # a\u00A0comment\nloss: \"a\u00A0b\"\n").ok());
  EXPECT_EQ(message(""), "the file is empty");
  EXPECT_EQ(message("# nothing\n"), "the file is empty");
  EXPECT_TRUE(parse("piper: 1\nloss: größe\n").ok());
  EXPECT_TRUE(parse("piper: 1\r\nloss: a\r\n").ok());
}

TEST(Strategy, RefusesWhatIsTooLarge) {
  const std::string head = "piper: 1\nparams: {x: ";
  EXPECT_EQ(message(head + std::string(64, '[') + std::string(64, ']') + "}\n"),
            "lists and maps are nested more than 64 deep");
  EXPECT_NE(message(head + std::string(200000, '[')), "");
  EXPECT_NE(message(std::string((8 << 20) + 1, '#')), "");
  std::string many = "piper: 1\ninputs: {x: {shape: [1";
  for (int i = 0; i < 100000; ++i) many += ", 1";
  EXPECT_EQ(message(many + "]}}\n"), "the file has more than 100000 values");
  std::string params = "piper: 1\nparams:\n";
  for (int i = 0; i < 1001; ++i) params += fmt::format("  p{}: {}\n", i, i);
  EXPECT_EQ(message(params), "a strategy has at most 1000 params");
  std::string names = "piper: 1\ndirectives:\n";
  for (int i = 0; i < 1001; ++i) names += fmt::format("  - {{name: n{}, recompute: {{}}}}\n", i);
  EXPECT_EQ(message(names), "a strategy has at most 1000 names of directives");
  std::string chain = "piper: 1\nparams:\n";
  for (int i = 0; i < 999; ++i) chain += fmt::format("  p{}: p{} + 1\n", i, i + 1);
  EXPECT_EQ(parsed(chain + "  p999: 1\nmesh: {x: p0}\n").params[0].second, 1000);
  EXPECT_EQ(message("piper: 1\nmesh: {x: " + std::string(200, '(') + "1}\n"),
            "the expression is nested more than 100 deep");
  EXPECT_EQ(message("piper: 1\nmesh: {x: 1" + std::string(5000, ' ') + "+ 1}\n"),
            "the line is longer than 4096 characters");
}

TEST(Strategy, ReportsAMissingFile) {
  const Result<Strategy> strategy = parse_strategy("/no/such/file.yaml", {});
  ASSERT_FALSE(strategy.ok());
  EXPECT_NE(strategy.error().message.find("/no/such/file.yaml"), std::string::npos);
}

}  // namespace
}  // namespace piper::strategy_errors_test
