// Mixtures of token sources: who gives which sample, and what their file may say.
#include "unit/data_files.h"

namespace piper::mix_test {
namespace {

using Counts = std::vector<std::pair<std::string, int64_t>>;

class MixTest : public DataTest {
 protected:
  // A file of windows of two tokens: the first is 1000 × source + window.
  void write_source(int64_t source, int64_t windows) const {
    std::vector<uint16_t> tokens;
    for (int64_t i = 0; i < windows; ++i) {
      tokens.push_back(static_cast<uint16_t>(1000 * source + i));
      tokens.push_back(0);
    }
    tokens.push_back(0);
    write(fmt::format("{}.bin", source), bytes_of(tokens));
  }
  void write_sources() const {
    for (const int64_t source : {1, 2, 3}) write_source(source, 10 * source + 7);
  }
  std::string mix(const std::string& text) const { return write("mix.yaml", text); }
  std::string three(const std::string& phases = "") const {
    return mix(
        "sources:\n"
        "  - {name: web, files: 1.bin, weight: 0.7}\n"
        "  - {name: code, files: [2.bin], weight: 0.25}\n"
        "  - {name: books, files: 3.*, weight: 0.05}\n" +
        phases);
  }
  // The first tokens of samples [0, count).
  std::vector<int64_t> samples(const std::string& file, int64_t count, uint64_t seed = 4) const {
    const auto source = open({file}, {ids(1, 2)}, 1, true, seed);
    std::vector<int64_t> all;
    for (int64_t i = 0; source && i < count; ++i)
      all.push_back(batch<int64_t>(*source, i, 0, 0, 1, 2)[0]);
    return all;
  }
  std::string refused(const std::string& text) const {
    const std::vector<InputNeed> needs = {ids(1, 2)};
    const auto source = open_data({{mix(text)}, 0, true}, needs, 1);
    if (source) return "accepted";
    const SourceSpan& at = source.error().at;
    return fmt::format("{}:{}: {}", at.line, at.column, source.error().message);
  }
};

// At every sample, each source has given its share to one sample, and samples are what counts say.
TEST_F(MixTest, SharesAreExactToOneSampleAtEverySample) {
  write_sources();
  const std::string file = three();
  const auto source = open({file}, {ids(1, 2)}, 1, true, 4);
  const double weights[] = {0.7, 0.25, 0.05};
  Counts before = source->consumed(0);
  EXPECT_EQ(before, (Counts{{"web", 0}, {"code", 0}, {"books", 0}}));
  for (int64_t n = 1; n <= 2000; ++n) {
    const Counts counts = source->consumed(n);
    const int64_t from = batch<int64_t>(*source, n - 1, 0, 0, 1, 2)[0] / 1000 - 1;
    for (int64_t s = 0; s < 3; ++s) {
      const auto at = static_cast<size_t>(s);
      EXPECT_LT(
          std::abs(static_cast<double>(counts[at].second) - static_cast<double>(n) * weights[at]),
          1)
          << n;
      EXPECT_EQ(counts[at].second, before[at].second + (from == s ? 1 : 0)) << n;
    }
    before = counts;
  }
  // Far samples cost no more than near ones.
  EXPECT_EQ(source->consumed(4'000'000'000'000), (Counts{{"web", 2'800'000'000'000},
                                                         {"code", 1'000'000'000'000},
                                                         {"books", 200'000'000'000}}));
}

TEST_F(MixTest, EachSourceWalksItsOwnPermutationOfEachEpoch) {
  write_sources();
  std::map<int64_t, std::vector<int64_t>> rows;
  for (const int64_t token : samples(three(), 3000)) rows[token / 1000].push_back(token % 1000);
  for (const int64_t source : {1, 2, 3}) {
    const auto windows = static_cast<size_t>(10 * source + 7);
    const std::vector<int64_t>& all = rows[source];
    ASSERT_GT(all.size(), 2 * windows);
    const std::vector<int64_t> first(all.begin(), all.begin() + static_cast<int64_t>(windows));
    const std::vector<int64_t> second(all.begin() + static_cast<int64_t>(windows),
                                      all.begin() + static_cast<int64_t>(2 * windows));
    EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), windows);
    EXPECT_EQ(std::set<int64_t>(second.begin(), second.end()).size(), windows);
    EXPECT_NE(first, second);
    EXPECT_FALSE(std::is_sorted(first.begin(), first.end()));
  }
}

// The order of a source's windows follows from its name: another source does not change it.
TEST_F(MixTest, AnotherSourceChangesNoOrderOfTheOthers) {
  write_sources();
  const auto rows_of = [&](const std::string& file) {
    std::vector<int64_t> rows;
    for (const int64_t token : samples(file, 200))
      if (token / 1000 == 2 && rows.size() < 20) rows.push_back(token);
    return rows;
  };
  const auto with = rows_of(three());
  EXPECT_EQ(with, rows_of(mix("sources:\n  - {name: code, files: 2.bin, weight: 1}\n"
                              "  - {name: web, files: 1.bin, weight: 1}\n")));
  EXPECT_NE(with, rows_of(mix("sources:\n  - {name: c, files: 2.bin, weight: 1}\n"
                              "  - {name: web, files: 1.bin, weight: 1}\n")));
}

TEST_F(MixTest, AJobGoesOnInEachSourceWhereItStopped) {
  write_sources();
  const std::string file = three();
  const auto order = samples(file, 60);
  const std::vector<InputNeed> needs = {ids(5, 2)};
  const auto source = open_data({{file}, 4, true, 6, 17}, needs, 5);
  ASSERT_TRUE(source) << message(source);
  for (int64_t step = 6; step < 12; ++step)
    for (int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(batch<int64_t>(**source, step, 0, i, 1, 2)[0],
                order[static_cast<size_t>(17 + 5 * (step - 6) + i)]);
  EXPECT_EQ((*source)->consumed(6), open({file}, {ids(1, 2)}, 1)->consumed(17));
}

// A phase that begins later leaves what was before as it was.
TEST_F(MixTest, PhasesChangeWeightsAtASample) {
  write_sources();
  const auto before = samples(three(), 400);
  const std::string phases =
      "phases:\n"
      "  - {from: 150, weights: {web: 0, code: 1, books: 3}}\n"
      "  - {from: 250, weights: {web: 1, code: 0, books: 0}}\n";
  const auto after = samples(three(phases), 400);
  EXPECT_TRUE(std::equal(before.begin(), before.begin() + 150, after.begin()));
  const auto source = open({three(phases)}, {ids(1, 2)}, 1);
  EXPECT_EQ(source->consumed(150), (Counts{{"web", 105}, {"code", 38}, {"books", 7}}));
  EXPECT_EQ(source->consumed(250), (Counts{{"web", 105}, {"code", 63}, {"books", 82}}));
  EXPECT_EQ(source->consumed(400), (Counts{{"web", 255}, {"code", 63}, {"books", 82}}));
  // Each goes on in its own permutation, whatever the phases.
  std::vector<int64_t> of_web[2];
  for (const int64_t token : before)
    if (token / 1000 == 1) of_web[0].push_back(token);
  for (const int64_t token : after)
    if (token / 1000 == 1) of_web[1].push_back(token);
  const auto same = std::min(of_web[0].size(), of_web[1].size());
  EXPECT_TRUE(std::equal(of_web[0].begin(), of_web[0].begin() + static_cast<int64_t>(same),
                         of_web[1].begin()));
  EXPECT_NE(open({three()}, {ids(1, 2)}, 1)->digest(), source->digest());
}

TEST_F(MixTest, StepsEndWhereAnySourceRepeats) {
  write_sources();
  const auto source = open({three()}, {ids(4, 2)}, 4);
  const int64_t steps = source->steps();
  EXPECT_LE(source->consumed(steps)[0].second, 17);
  EXPECT_GT(source->consumed(steps + 1)[0].second, 17);
  EXPECT_EQ(source->describe(),
            fmt::format("web: 1 file (raw of u16), 35 tokens, 17 windows of 2 + 1\n"
                        "code: 1 file (raw of u16), 55 tokens, 27 windows of 2 + 1\n"
                        "books: 1 file (raw of u16), 75 tokens, 37 windows of 2 + 1\n"));
}

// An evaluation takes each sample of each source once, whatever the weights and phases.
TEST_F(MixTest, EachSampleComesOnceWhereThatIsAsked) {
  write_sources();
  const int64_t total = 17 + 27 + 37;
  const std::string tail[] = {
      "", "phases:\n  - {from: 9, weights: {web: 0, code: 1, books: 3}}\n",
      "phases:\n  - {from: 30, weights: {web: 1, code: 0, books: 0}}\n  - {from: 31, weights: "
      "{web: 0, code: 0, books: 1}}\n  - {from: 4000, weights: {web: 1, code: 2, books: 1}}\n"};
  for (const std::string& phases : tail)
    for (const bool fills : {false, true}) {
      const std::vector<InputNeed> needs = {ids(10, 2)};
      std::vector<InputNeed> own = needs;
      own.push_back(own[0]);
      own[1].name = "labels";
      own[1].ignore = -100;
      const auto source = open_data(
          {.sources = {three(phases)}, .shuffle = false, .each_once = true, .fills = fills}, own,
          10);
      ASSERT_TRUE(source) << print_error(source.error());
      EXPECT_EQ((*source)->samples(), total);
      EXPECT_EQ((*source)->steps(), fills ? 9 : 8);
      EXPECT_EQ((*source)->consumed(0), (Counts{{"web", 0}, {"code", 0}, {"books", 0}}));
      std::map<int64_t, int> seen;
      std::vector<int64_t> order;
      for (int64_t step = 0; step < 9; ++step) {
        const std::vector<int64_t> ids = batch<int64_t>(**source, step, 0, 0, 10, 20),
                                   labels = batch<int64_t>(**source, step, 1, 0, 10, 20);
        for (size_t i = 0; i < 10 && step * 10 + static_cast<int64_t>(i) < total; ++i) {
          ++seen[ids[2 * i]];
          order.push_back(ids[2 * i]);
          EXPECT_NE(labels[2 * i], -100);
        }
        for (size_t i = 0; fills && step == 8 && i < 10; ++i)
          EXPECT_EQ(labels[2 * i] == -100, i >= 1) << i;
      }
      EXPECT_EQ(std::ssize(seen), total) << phases;
      // Each source gives its samples in order, and the weights hold as long as they last.
      for (const int64_t source_number : {1, 2, 3}) {
        std::vector<int64_t> of_source;
        for (const int64_t each : order)
          if (each / 1000 == source_number) of_source.push_back(each);
        EXPECT_TRUE(std::ranges::is_sorted(of_source)) << phases;
      }
      if (phases.empty()) {
        EXPECT_EQ(std::count_if(order.begin(), order.begin() + 20,
                                [](int64_t each) { return each < 2000; }),
                  14);
      }
    }
  // A source that no phase gives a weight is left out.
  const std::vector<InputNeed> needs = {ids(1, 2)};
  const std::string file =
      mix("sources:\n  - {name: web, files: 1.bin, weight: 1}\n"
          "  - {name: code, files: 2.bin, weight: 0}\n");
  const auto source = open_data({.sources = {file}, .shuffle = false, .each_once = true}, needs, 1);
  ASSERT_TRUE(source) << print_error(source.error());
  EXPECT_EQ((*source)->samples(), 17);
}

TEST_F(MixTest, OneSourceIsAsOnTheCommandLine) {
  write_sources();
  EXPECT_EQ(samples(mix("sources: [{name: web, files: 3.bin}]\n"), 80), samples(path("3.bin"), 80));
}

TEST_F(MixTest, WhatTheFileMayNotSay) {
  write_sources();
  const std::string web = "sources:\n  - {name: web, files: 1.bin, weight: 1}\n";
  EXPECT_EQ(refused(""), "0:0: the file of a mixture must be a map with 'sources', not nothing");
  EXPECT_EQ(refused("phases: []"), "1:1: the file of a mixture needs 'sources'");
  EXPECT_EQ(refused("sources: []"), "1:10: there are 0 sources; from 1 to 64 can be mixed");
  EXPECT_EQ(refused(web + "phase: []"),
            "3:1: unknown key 'phase' (did you mean 'phases'?); there are sources and phases");
  EXPECT_EQ(refused("sources:\n  - {name: web, files: 1.bin, wieght: 1}\n"),
            "2:31: unknown key 'wieght' (did you mean 'weight'?); there are name, files, weight, "
            "type, separator, mask and pack");
  EXPECT_EQ(refused(web + "  - {name: code, files: 2.bin}\n"), "3:5: a source needs 'weight'");
  EXPECT_EQ(refused(web + "  - {name: web, files: 2.bin, weight: 2}\n"),
            "3:12: two sources are named 'web'");
  EXPECT_EQ(refused(web + "  - {name: code, files: 2.bin, weight: -2}\n"),
            "3:40: a weight must be a decimal number from 0 on of at most 12 digits, not '-2'");
  EXPECT_EQ(refused(web + "  - {name: code, files: 2.bin, weight: 1e3}\n"),
            "3:40: a weight must be a decimal number from 0 on of at most 12 digits, not '1e3'");
  EXPECT_EQ(refused(web + "  - {name: code, files: 2.bin, weight: 0.1234567}\n"),
            "2:3: the weights are parts of more than 1000000 in all");
  EXPECT_EQ(refused("sources: [{name: web, files: 1.bin, weight: 0}]"), "1:10: all weights are 0");
  EXPECT_EQ(refused(web + "  - {name: code, files: [], weight: 2}\n"),
            "3:25: 'files' must name a file");
  EXPECT_EQ(refused(web + "  - {name: code, files: 4.bin, weight: 2}\n"),
            fmt::format("3:12: no file is named '{}' (did you mean '1.bin'?)", path("4.bin")));
  EXPECT_EQ(refused(web + "  - {name: code, files: 2.bin, weight: 2, type: u64}\n"),
            "3:49: 'u64' is no type of tokens: u8, i8, u16, i16, u32, i32 and i64 are");
  EXPECT_EQ(refused(web + "  - {name: code, files: 2.bin, weight: 2, separator: x}\n"),
            "3:54: 'separator' must be a whole number from 0 on, not 'x'");
  EXPECT_EQ(refused(web + "phases:\n  - {from: 0, weights: {web: 1}}\n"),
            "4:12: a phase must begin after sample 0, where the phase before it begins");
  EXPECT_EQ(refused(web + "phases:\n  - {from: 9, weights: {wab: 1}}\n"),
            "4:25: unknown key 'wab' (did you mean 'web'?); there are web");
  EXPECT_EQ(refused(web + "phases:\n  - {from: 9, weights: {}}\n"),
            "4:24: the phase gives no weight for source 'web'");
  EXPECT_EQ(refused(web + "phases:\n  - {from: 9}\n"), "4:5: a phase needs 'weights'");
}

TEST_F(MixTest, AMixtureStandsAlone) {
  write_sources();
  const auto refusal = [&](std::vector<std::string> sources, std::vector<InputNeed> needs) {
    return message(open_data({std::move(sources), 0, true}, needs, 1));
  };
  EXPECT_EQ(refusal({three(), path("1.bin")}, {ids(1, 2)}),
            fmt::format("tokens come from one mixture or from files, not from {} and {}",
                        path("mix.yaml"), path("1.bin")));
  const std::string rows =
      "x=" + npy("x.npy", "{'descr': '<f4', 'fortran_order': False, 'shape': (24,), }",
                 std::string(96, '\0'));
  EXPECT_EQ(refusal({three(), rows}, {ids(1, 2), {"x", {DType::kF32, {1}}}}),
            "of the samples of 'ids' and 'x' one is of a mixture; they do not belong together");
}

}  // namespace
}  // namespace piper::mix_test
