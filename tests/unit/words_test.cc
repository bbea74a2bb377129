// The words that the schema offers are those that the parser takes.
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "folder.h"
#include "golden.h"
#include "piper/base/folders.h"
#include "piper/frontend/strategy.h"

namespace piper::words_test {
namespace {

using nlohmann::json;

// By definition and key: what a strategy says to give it a word, WORD. Of a key that has a word in
// the golden tests of directives, their strategy is taken.
const std::map<std::string, std::string> kUses = {
    {"input.dtype", "inputs: {x: {dtype: WORD}}"},
    {"input.batch_dim", "inputs: {x: {batch_dim: WORD}}"},
    {"cross_entropy.reduction", "loss: {cross_entropy: {logits: a, labels: b, reduction: WORD}}"},
    {"mse.reduction", "loss: {mse: {output: a, target: b, reduction: WORD}}"},
    {"l1.reduction", "loss: {l1: {output: a, target: b, reduction: WORD}}"},
    {"bce.reduction", "loss: {bce: {output: a, target: b, reduction: WORD}}"},
    {"smooth_l1.reduction", "loss: {smooth_l1: {output: a, target: b, reduction: WORD}}"},
    {"huber.reduction", "loss: {huber: {output: a, target: b, reduction: WORD}}"},
    {"bce_with_logits.reduction",
     "loss: {bce_with_logits: {logits: a, target: b, reduction: WORD}}"},
    {"kl.reduction", "loss: {kl: {output: a, target: b, reduction: WORD}}"},
    {"balance.by", "annotate: [{balance: {tag: stage, into: 2, by: WORD}}]"},
    {"split.by", "directives: [{split: {dim: tokens, into: 2, by: WORD}}]"},
    {"outer_reduce.dtype",
     "directives: [{local_steps: {over: dp, every: 2, outer: {sgd: {}}, reduce: {dtype: WORD}}}]"},
    {"send.what", "directives: [{send: {across: mb, dtype: f32, what: [WORD]}}]"},
    {"precision.accumulate", "directives: [{precision: {compute: bf16, accumulate: WORD}}]"},
    {"precision.reduce", "directives: [{precision: {compute: bf16, reduce: WORD}}]"},
    {"precision.master", "directives: [{precision: {compute: bf16, master: WORD}}]"},
    {"precision.loss_scale", "directives: [{precision: {compute: f16, loss_scale: WORD}}]"},
    {"group.of", "train: {optimizer: {sgd: {}}, groups: [{of: [WORD]}]}"},
    {"order.dialect", "directives: [{order: {each: dp, csv: order.csv, dialect: WORD}}]"},
    {"policy.prefer", "directives: [{order: {each: dp, policy: {prefer: [WORD]}}}]"},
    {"shard.order", "directives: [{shard: {input: \"*\", dim: 1, over: dp, order: WORD}}]"},
    {"adagrad.states", "train: {optimizer: {adagrad: {states: [WORD]}}}"},
    {"adam.states", "train: {optimizer: {adam: {states: [WORD]}}}"},
    {"adamw.states", "train: {optimizer: {adamw: {states: [WORD]}}}"},
    {"lion.states", "train: {optimizer: {lion: {states: [WORD]}}}"},
    {"onnx_adam.states", "train: {optimizer: {onnx_adam: {states: [WORD]}}}"},
    {"sgd.states", "train: {optimizer: {sgd: {momentum: 0.9, states: [WORD]}}}"},
    {"muon.adjust_lr", "train: {optimizer: {muon: {adjust_lr: WORD}}}"},
    {"policy.goal", "directives: [{order: {each: dp, policy: {prefer: [B, F], goal: WORD}}}]"},
    {"policy.costs", "directives: [{order: {each: dp, policy: {prefer: [B, F], costs: WORD}}}]"},
};

// Returns such a strategy of the golden tests, or one that kUses makes; "" where there is none.
std::string use_of(const std::string& object, const std::string& key) {
  if (const auto use = kUses.find(object + "." + key); use != kUses.end())
    return "piper: 1\nmesh: {dp: 2}\n" + use->second + "\n";
  const std::regex given("\\b" + object + ": .*?\\b" + key + ": \\[?([a-z]\\w*)");
  const std::string folder = std::string(PIPER_SOURCE_DIR) + "/tests/golden/directives/";
  for (const std::string& file : files_in(folder)) {
    const auto text = read_text_file(folder + file, 1 << 20);
    EXPECT_TRUE(text) << print_error(text.error());
    for (const golden::Case& c : golden::parse(file, *text)) {
      const std::string strategy = c.text("strategy");
      std::smatch found;
      if (c.sections.back().name == "after" && std::regex_search(strategy, found, given))
        return strategy.substr(0, static_cast<size_t>(found.position(1))) + "WORD" +
               std::string(found[1].second, strategy.end());
    }
  }
  return "";
}

// The first list of words in a schema.
std::vector<std::string> words_in(const json& schema) {
  if (schema.is_object() && schema.contains("enum")) return schema["enum"];
  for (const json& inner : schema)
    if (inner.is_structured())
      if (auto words = words_in(inner); !words.empty()) return words;
  return {};
}

std::string error_of(const std::string& use, const std::string& word) {
  std::string text = use;
  text.replace(text.find("WORD"), 4, word);
  const Folder folder;
  folder.write("order.csv", "0F0,0B0\n1F0,1B0\n");
  const auto strategy = parse_strategy(folder.write("words.yaml", text), {});
  return strategy ? "" : strategy.error().message;
}

TEST(Words, OfTheSchemaAreTheParsers) {
  const json schema = json::parse(strategy_schema());
  for (const auto& [object, definition] : schema["definitions"].items())
    for (const auto& [key, value] : definition["properties"].items()) {
      const std::vector<std::string> words = words_in(value);
      if (words.empty() || key == "where") continue;
      const std::string name = object + "." + key;
      const std::string use = use_of(object, key);
      ASSERT_NE(use, "") << "a golden test or kUses must say how a strategy gives '" << name << "'";
      const std::string refused = error_of(use, "bogus");
      ASSERT_NE(refused.find("bogus"), std::string::npos) << name << ": " << refused;
      for (const std::string& word : words) {
        std::string as_bogus = refused;
        as_bogus.replace(as_bogus.find("bogus"), 5, word);
        EXPECT_NE(error_of(use, word), as_bogus) << name;
      }
    }
}

}  // namespace
}  // namespace piper::words_test
