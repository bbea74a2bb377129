// Attention whose masks hide all keys of some samples by a finite number: under every way to cut
// its tokens, heads and samples, ranks train as one device does that cuts nothing.
#include "equivalence/numbers.h"
#include "equivalence/random_model.h"

namespace piper::hidden_rows_test {
namespace {

constexpr float kLowest = -3.402823466e38f;
enum class Mask {
  kTerm,     // added to the scores
  kTrained,  // with a number for each key that is trained
  kScores,   // with scores of its own
  kReplaces  // a score
};
constexpr int64_t kTokens = 8, kHeads = 4, kWidth = 4, kAll = kHeads * kWidth;

// Two layers of attention, as those that write masks as terms are exported; half of the samples
// have no key.
class Padded : public ModelMaker {
 public:
  Padded(float lowest, Mask kind) : ModelMaker(5), kind_(kind), lowest_(lowest) {
    scope_ = "model";
    input("x", {kTokens, kAll});
    input("keys", {kTokens});
    input("sample", {1});
    const std::string zero = number(0);
    const std::string seen =
        made("And", {made("Greater", {"keys", number(-0.5f)}), made("Greater", {"sample", zero})});
    mask_ = made("Unsqueeze", {seen, integers({1, 2})});
    if (kind != Mask::kReplaces) term_ = made("Where", {mask_, zero, number(lowest)});
    std::string h = "x";
    for (const char* layer : {"a", "b"}) {
      scope_ = layer;
      h = made("Add", {h, attention(h)});
    }
    squares(h);
    finish_with_loss();
  }

 private:
  std::string heads(const std::string& x, const std::vector<int64_t>& order) {
    const std::string made_of = made("MatMul", {x, parameter({kAll, kAll}, 0, 0.4f)});
    onnx::NodeProto& turned =
        node("Transpose", {made("Reshape", {made_of, integers({0, kTokens, kHeads, kWidth})})});
    attribute(turned, "perm", order, true);
    return turned.output(0);
  }
  std::string attention(const std::string& x) {
    const std::string q = heads(x, {0, 2, 1, 3}), k = heads(x, {0, 2, 3, 1}),
                      v = heads(x, {0, 2, 1, 3});
    const std::string scores = made("Mul", {made("MatMul", {q, k}), number(0.5f)});
    onnx::NodeProto& weights = node("Softmax", {masked(x, scores)});
    attribute(weights, "axis", {-1}, false);
    onnx::NodeProto& turned = node("Transpose", {made("MatMul", {weights.output(0), v})});
    attribute(turned, "perm", {0, 2, 1, 3}, true);
    return made("MatMul", {made("Reshape", {turned.output(0), integers({0, kTokens, kAll})}),
                           parameter({kAll, kAll}, 0, 0.3f)});
  }
  std::string masked(const std::string& x, const std::string& scores) {
    if (kind_ == Mask::kReplaces) return made("Where", {mask_, scores, number(lowest_)});
    std::string term = term_;
    if (kind_ == Mask::kTrained)
      term = made("Add", {parameter({1, kHeads, 1, kTokens}, 0, 0.5f), term});
    if (kind_ == Mask::kScores)
      term = made("Where", {mask_, made("MatMul", {heads(x, {0, 2, 1, 3}), heads(x, {0, 2, 3, 1})}),
                            number(lowest_)});
    return made("Add", {scores, term});
  }
  const Mask kind_;
  const float lowest_;
  std::string mask_, term_;
};

struct Case {
  const char* name;
  const char* mesh;
  std::string directives;
  bool wide = true;
  float lowest = kLowest;
  Mask mask = Mask::kTerm;
};

class HiddenRows : public ::testing::TestWithParam<Case> {};

TEST_P(HiddenRows, TrainAsOnOneDevice) {
  const Case& of = GetParam();
  const Folder folder;
  CompileOptions options;
  options.model = folder.write("model.onnx", Padded(of.lowest, of.mask).bytes());
  options.strategy = folder.write(
      "strategy.yaml",
      fmt::format("piper: 1\nmesh: {}\ntrain: {{global_batch: 8, optimizer: "
                  "{{sgd: {{lr: 0.1, momentum: 0.9}}}}}}\ndirectives:\n{}{}",
                  of.mesh, of.directives, of.wide ? "  - precision: {compute: f64}\n" : ""));
  const auto compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const jobs::Trained got = train_on_numbers(compiled->set, of.name),
                      want = train_on_numbers(*compiled->uncut, of.name);
  ASSERT_EQ(want.losses.size(), 3U);
  EXPECT_LT(jobs::largest_difference(got, want), of.wide ? 1e-12 : 1e-5);
  EXPECT_GT(std::abs(want.losses[2] - want.losses[0]), 1e-3);
}

// Trains such a model on one device, with further lines of a strategy.
jobs::Trained train_padded(float lowest, Mask mask, const std::string& more) {
  const Folder folder;
  CompileOptions options;
  options.model = folder.write("model.onnx", Padded(lowest, mask).bytes());
  options.strategy = folder.write("strategy.yaml",
                                  "piper: 1\ntrain: {global_batch: 8, optimizer: {sgd: {lr: 0.1, "
                                  "momentum: 0.9}}}\n" +
                                      more);
  const auto compiled = compile(options);
  EXPECT_TRUE(compiled) << print_error(compiled.error());
  return compiled ? train_on_numbers(compiled->set, more) : jobs::Trained{};
}

// What 16 bits make of rows without keys is what f32 makes of them, whatever the mask's form.
TEST(RowsWithoutKeys, TrainInNarrowTypesToo) {
  for (const Mask mask : {Mask::kTerm, Mask::kTrained, Mask::kScores, Mask::kReplaces})
    for (const auto& [narrow, most, lowest] :
         {std::tuple("f16", 5e-3, kLowest), {"f16", 5e-3, -1e6f}, {"bf16", 4e-2, kLowest}}) {
      const auto trained = [&](const std::string& more) {
        return train_padded(lowest, mask, more);
      };
      SCOPED_TRACE(fmt::format("{} {} {}", narrow, static_cast<int>(mask), lowest));
      const jobs::Trained want = trained(""),
                          got = trained(
                              fmt::format("directives: [precision: {{compute: {}}}]\n", narrow));
      ASSERT_EQ(want.losses.size(), 3U);
      ASSERT_EQ(got.losses.size(), 3U);
      EXPECT_LT(jobs::largest_difference(got, want), most);
      EXPECT_GT(jobs::largest_difference(got, want), 1e-6);
    }
}

// Beside smaller numbers something is left of the scores, and has to be left of their sum.
TEST(RowsWithoutKeys, TrainBesideSmallerNumbers) {
  for (const Mask mask : {Mask::kTerm, Mask::kScores, Mask::kReplaces})
    for (const float lowest : {-1e4f, -1e5f, -1e6f, -1e7f}) {
      const auto trained = [&](const std::string& more) {
        return train_padded(lowest, mask, more);
      };
      SCOPED_TRACE(fmt::format("{} {}", static_cast<int>(mask), lowest));
      const jobs::Trained want = trained("directives: [precision: {compute: f64}]\n"),
                          got = trained("");
      ASSERT_EQ(want.losses.size(), 3U);
      ASSERT_EQ(got.losses.size(), 3U);
      for (size_t step = 0; step < 3; ++step)
        EXPECT_NEAR(got.losses[step] / want.losses[step], 1, 5e-6) << step;
    }
}

const std::string kBlocks =
                      "  - shard: {input: \"x\", dim: 1, over: cp}\n"
                      "  - shard: {match: \"**\", dim: none, over: cp}\n",
                  kRing = kBlocks + "  - shard: {attention: \"**\", by: ring, over: cp}\n",
                  kByHeads = kBlocks + "  - shard: {attention: \"**\", by: heads, over: cp}\n",
                  kGather = kBlocks + "  - shard: {attention: \"**\", by: gather, over: cp}\n",
                  kReplicas = "  - replicate: {over: dp}\n  - split: {dim: batch, into: 2}\n";

INSTANTIATE_TEST_SUITE_P(
    All, HiddenRows,
    ::testing::Values(Case{"ring2", "{cp: 2}", kRing}, Case{"ring4", "{cp: 4}", kRing},
                      Case{"ring4-f32", "{cp: 4}", kRing, false},
                      Case{"ring-of-one-token-a-rank", "{cp: 8}", kRing},
                      Case{"ring4-1e9", "{cp: 4}", kRing, false, -1e9f},
                      Case{"ring4-1e6", "{cp: 4}", kRing, false, -1e6f},
                      Case{"gather2-1e6", "{cp: 2}", kGather, true, -1e6f, Mask::kTrained},
                      Case{"heads2", "{cp: 2}", kByHeads}, Case{"gather2", "{cp: 2}", kGather},
                      Case{"replicas2", "{dp: 2}", kReplicas},
                      Case{"replicas2-f32", "{dp: 2}", kReplicas, false},
                      Case{"replicas2-ring4", "{dp: 2, cp: 4}", kReplicas + kRing},
                      Case{"bias", "{dp: 2}", kReplicas, true, kLowest, Mask::kTrained},
                      Case{"bias-gather2", "{cp: 2}", kGather, true, kLowest, Mask::kTrained},
                      Case{"bias-gather-of-one-token-a-rank", "{cp: 8}", kGather, true, kLowest,
                           Mask::kTrained},
                      Case{"bias-heads2", "{cp: 2}", kByHeads, true, kLowest, Mask::kTrained}),
    [](const auto& info) { return jobs::identifier(info.param.name); });

}  // namespace
}  // namespace piper::hidden_rows_test
