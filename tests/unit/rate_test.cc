// Schedules of learning rates against their formulas in double, step by step.
#include "piper/ir/rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "unit/strategy_texts.h"

namespace piper::rate_test {
namespace {

constexpr double kPi = 3.141592653589793;

std::string with_schedule(const std::string& schedule) {
  return "piper: 1\nparams: {warm: 20, peak: 0.5}\n"
         "require: [{that: warm > 0, why: $peak}]\n"
         "train:\n  optimizer: {sgd: {lr: 0.3}}\n  schedule: " +
         schedule + "\n";
}

Rate rate_of(const std::string& schedule) {
  const Strategy strategy = parsed(with_schedule(schedule));
  const Result<Rate> rate = Rate::parse(strategy.train.groups.back().rate);
  EXPECT_TRUE(rate.ok()) << schedule;
  return rate ? *rate : *Rate::parse("0");
}

// Compares bit by bit: the formula of the plan rounds as the one in C++ does.
void expect_rates(const std::string& schedule, const std::function<double(double)>& expected,
                  int64_t steps = 200) {
  const Rate rate = rate_of(schedule);
  for (int64_t step = 0; step < steps; ++step)
    ASSERT_EQ(rate.at(0.3, step), expected(static_cast<double>(step)))
        << schedule << " at step " << step << ": " << rate.spelled();
}

TEST(Rate, PhasesFollowEachOther) {
  expect_rates("[{warmup: 10}]", [](double t) { return 0.3 * (t < 10 ? (t + 1) / 10 : 1); });
  expect_rates("[{constant: 10}]", [](double) { return 0.3; });
  expect_rates("[{warmup: $warm}, {cosine: {steps: 100, to: 0.1}}]", [](double t) {
    if (t < 20) return 0.3 * ((t + 1) / 20);
    return 0.3 * (t < 120 ? 0.1 + 0.9 * (1 + std::cos(kPi * ((t - 20) / 100))) / 2 : 0.1);
  });
}

// Warm-up, stable, decay.
TEST(Rate, WarmUpStableDecay) {
  expect_rates("[{warmup: 10}, {constant: 50}, {linear: {steps: 40, to: 0.25}}]", [](double t) {
    if (t < 10) return 0.3 * ((t + 1) / 10);
    if (t < 60) return 0.3;
    return 0.3 * (t < 100 ? 1 + -0.75 * (t - 60) / 40 : 0.25);
  });
}

TEST(Rate, InverseSquareRoot) {
  const double end = std::sqrt(16.0 / 80);
  expect_rates("[{warmup: 16}, {inverse_sqrt: 64}, {linear: {steps: 10}}]", [&](double t) {
    if (t < 16) return 0.3 * ((t + 1) / 16);
    if (t < 80) return 0.3 * (1 * std::sqrt(16 / (t + 1)));
    return 0.3 * (t < 90 ? end + (0 - end) * (t - 80) / 10 : 0.0);
  });
}

// A second warm-up rises from where the rate is.
TEST(Rate, WarmsUpAgain) {
  expect_rates("[{linear: {steps: 10, to: 0.5}}, {warmup: 5}]", [](double t) {
    if (t < 10) return 0.3 * (1 + -0.5 * t / 10);
    return 0.3 * (t < 15 ? 0.5 + 0.5 * (t - 10 + 1) / 5 : 1);
  });
}

TEST(Rate, Formulas) {
  expect_rates("\"lr * min(1, (step + 1) / warm)\"",
               [](double t) { return 0.3 * std::fmin(1, (t + 1) / 20); });
  expect_rates("\"$peak * exp(-step / 1e2) - 0\"", [](double t) { return 0.5 * std::exp(-t / 100); });
  expect_rates("\"step % 7 < 3 && !(step == 8) ? lr : pow(lr, 2) * abs(cos(pi * step))\"",
               [](double t) {
                 const double rest = t - 7 * std::floor(t / 7);
                 return rest < 3 && t != 8 ? 0.3 : std::pow(0.3, 2) * std::fabs(std::cos(kPi * t));
               });
  expect_rates("\"max(lr, sqrt(floor(step / 3)) / (log(step + 2) || 0))\"",
               [](double t) { return std::fmax(0.3, std::sqrt(std::floor(t / 3)) / 1); });
}

TEST(Rate, TokensAreThoseOfTheStepsBefore) {
  const Rate rate = rate_of("\"lr * (tokens < 4096 ? 1 : 0.5)\"");
  EXPECT_TRUE(rate.counts_tokens());
  const Rate of_plan = rate.with_tokens(1024);
  EXPECT_FALSE(of_plan.counts_tokens());
  for (int64_t step = 0; step < 8; ++step)
    EXPECT_EQ(of_plan.at(0.3, step), 0.3 * (step * 1024 < 4096 ? 1 : 0.5)) << step;
}

TEST(Rate, BordersAreStepsThatItComparesWith) {
  EXPECT_EQ(rate_of("[{warmup: 10}, {constant: 50}, {cosine: {steps: 40}}]").borders(),
            (std::vector<int64_t>{10, 60, 100}));
  EXPECT_TRUE(rate_of("\"lr / (step + 1)\"").borders().empty());
}

// What prints reads back as the same formula.
TEST(Rate, IsSpelledAsStrategiesWriteIt) {
  const std::vector<std::string> formulas = {
      "lr",
      "lr * (step < 10 ? (step + 1) / 10 : 1)",
      "lr - (step - 1) - 2",
      "lr / (step / 2)",
      "-(lr + step) * -2",
      "(step < 3 ? lr : 1) ? 2 : step > 4 ? 1e-08 : 1e+20",
      "(lr < 1) == (step < 2) || lr && !step",
      "min(lr, max(step, 2)) % 3",
      "pow(tokens, 0.5)"};
  for (const std::string& formula : formulas) {
    const Rate rate = rate_of("\"" + formula + "\"");
    EXPECT_EQ(rate.spelled(), formula);
    EXPECT_EQ(Rate::parse(rate.words())->spelled(), formula);
  }
}

TEST(Rate, WordsThatAreNoFormulaAreRefused) {
  const auto error = [](std::string_view words) {
    const Result<Rate> rate = Rate::parse(words);
    return rate ? "" : rate.error().message;
  };
  EXPECT_EQ(error(""), "a formula makes 0 numbers, not one");
  EXPECT_EQ(error("lr step"), "a formula makes 2 numbers, not one");
  EXPECT_EQ(error("lr +"), "'+' of a formula lacks operands");
  EXPECT_EQ(error("1 nan +"), "a formula has no word 'nan'");
  EXPECT_EQ(error("lr  "), "a formula has no word ''");
  std::string deep;
  for (int i = 0; i < 65; ++i) deep += "1 ";
  EXPECT_EQ(error(deep + "+"), "a formula with more than 64 open operands");
  EXPECT_EQ(error(std::string(5000, '1')), "a formula of 5000 characters, the most are 4096");
}

TEST(Rate, GroupsHaveSchedulesOfTheirOwn) {
  const Strategy strategy = parsed(
      "piper: 1\ntrain:\n  optimizer: {sgd: {lr: 0.3}}\n  schedule: [{warmup: 10}]\n"
      "  groups:\n    - {match: \"a/*\", schedule: lr}\n    - {match: \"b/*\", lr: 0.1}\n"
      "    - {of: [vectors, norms], schedule: [{constant: 5}, {linear: {steps: 5}}]}\n");
  const std::vector<ParamGroup>& groups = strategy.train.groups;
  ASSERT_EQ(groups.size(), 4u);
  EXPECT_EQ(groups[0].rate, "lr");
  EXPECT_EQ(groups[1].rate, groups[3].rate);
  EXPECT_EQ(Rate::parse(groups[2].rate)->spelled(),
            "lr * (step < 5 ? 1 : step < 10 ? 1 + -1 * (step - 5) / 5 : 0)");
  EXPECT_EQ(groups[2].kinds, (std::vector{ParamKind::kVector, ParamKind::kNorm}));
  const std::string printed = print_strategy(strategy);
  EXPECT_EQ(print_strategy(parsed(printed)), printed);
}

}  // namespace
}  // namespace piper::rate_test
