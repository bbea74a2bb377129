// The search for strategies: as good as trying all, what stays stays, and what is found is a
// strategy that trains.
#include "piper/planner/search.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "folder.h"
#include "shell.h"

namespace piper {
namespace {

const std::string kModel = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";

class SearchTest : public ::testing::Test {
 protected:
  SearchOptions options(int64_t ranks, const std::string& fixed = "") {
    SearchOptions options;
    options.compile.model = kModel;
    options.compile.strategy = folder_.write(
        "train.yaml", "piper: 1\ntrain: {global_batch: 16, optimizer: {adamw: {lr: 1e-3}}}\n");
    options.compile.target = "cuda";
    auto cluster = read_cluster(PIPER_SOURCE_DIR "/strategies/clusters/h100x8.yaml");
    EXPECT_TRUE(cluster) << (cluster ? "" : print_error(cluster.error()));
    if (cluster) options.cluster = *std::move(cluster);
    auto space = read_space(PIPER_SOURCE_DIR "/strategies/spaces/usual.yaml");
    EXPECT_TRUE(space) << (space ? "" : print_error(space.error()));
    if (space) options.space = *std::move(space);
    options.ranks = ranks;
    options.folder = folder_.path() + "/candidates";
    std::filesystem::create_directories(options.folder);
    for (const std::string& text : split_text(fixed, ','))
      if (const size_t equals = text.find('='); equals != text.npos)
        options.fixed.emplace_back(text.substr(0, equals), text.substr(equals + 1));
    return options;
  }
  static Found found(const SearchOptions& options) {
    auto found = search(options);
    EXPECT_TRUE(found) << (found ? "" : print_error(found.error()));
    return found ? *std::move(found) : Found{};
  }
  Folder folder_;
};

constexpr char kFew[] = "sequence=no,vocabulary=no,recompute=no";

TEST_F(SearchTest, IsAsGoodAsTryingAll) {
  for (const double memory : {0.0, 120e6}) {
    SearchOptions one = options(4, kFew);
    one.memory = memory;
    one.most = 1000;
    const Found best = found(one);
    ASSERT_FALSE(best.tried.empty());
    ASSERT_TRUE(best.tried.front().fits());
    EXPECT_EQ(memory > 0, std::any_of(best.tried.begin(), best.tried.end(), [](const Tried& tried) {
                return tried.refused.empty() && !tried.fits();
              }));
    double least = best.tried.front().step;
    int64_t all = 0;
    for (const auto& [pipeline, tensor, replicas] :
         {std::tuple(4, 1, 1), {2, 2, 1}, {2, 1, 2}, {1, 4, 1}, {1, 2, 2}, {1, 1, 4}})
      for (const char* memory_of : {"ddp", "zero3"})
        for (const int micros : {1, 2, 4}) {
          SearchOptions each = options(
              4, fmt::format("{},pipeline={},tensor={},replicas={},memory={},microbatches={}", kFew,
                             pipeline, tensor, replicas, memory_of, micros));
          each.memory = memory;
          const auto tried = search(each);  // schedules alone are free
          if (!tried) continue;
          all += std::ssize(tried->tried);
          if (tried->tried.front().fits()) least = std::min(least, tried->tried.front().step);
        }
    EXPECT_GE(all, 40);
    EXPECT_LE(best.tried.front().step, 1.05 * least) << memory;
    EXPECT_GT(best.bound, 0);
    EXPECT_LT(best.bound, best.tried.front().step);
    EXPECT_TRUE(memory == 0 || best.tried.front().peak_bytes <= memory);
  }
}

TEST_F(SearchTest, WhatIsFixedStays) {
  const Found of = found(options(4, "schedule=zbv,tensor=1"));
  ASSERT_FALSE(of.tried.empty());
  for (const Tried& one : of.tried) {
    EXPECT_EQ(one.choice.schedule, "schedules/zbv");
    EXPECT_EQ(one.choice.tensor, 1);
  }
  const auto message = [&](const std::string& fixed) {
    const auto none = search(options(4, fixed));
    return none ? "found" : none.error().message;
  };
  EXPECT_EQ(
      message("colour=red"),
      "--fix: there is no choice 'colour'; there are pipeline, tensor, replicas, microbatches, "
      "schedule, memory, sequence, vocabulary, recompute");
  EXPECT_EQ(message("schedule=2f2b"),
            "--fix schedule=2f2b: expected schedules/1f1b, schedules/interleaved-1f1b, "
            "schedules/zb-h1, schedules/zbv, schedules/dualpipev");
  EXPECT_EQ(message("pipeline=2,pipeline=4"), "--fix: 'pipeline' is given twice");
  EXPECT_EQ(message("pipeline=0"), "--fix pipeline=0: expected a whole number from 1 on");
  EXPECT_EQ(message("pipeline=3"),
            "no mesh of 4 ranks has what --fix asks for, with a batch of 16 samples");
  SearchOptions many = options(64);
  const auto none = search(many);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message, "the cluster has 8 devices, but 64 ranks are asked for");
}

TEST_F(SearchTest, SpacesAreChecked) {
  const auto message = [&](const std::string& text) {
    const auto space = read_space(folder_.write("space.yaml", text));
    return space ? "ok" : space.error().message;
  };
  const std::string lists = "piper_space: 1\nschedules: [a]\nmemory: [b, c]\n";
  EXPECT_EQ(message(lists + "begin: [{pipeline: 2, tensor: node, memory: c}]\n"), "ok");
  EXPECT_EQ(message("schedules: [a]\n"),
            "the file must say 'piper_space: 1', the version of its format");
  EXPECT_EQ(message(lists), "the space needs 'begin', a list of beginnings");
  EXPECT_EQ(message("piper_space: 1\nschedules: a\n"),
            "'schedules' must be a list of names of the library, not 'a'");
  EXPECT_EQ(message(lists + "begin: [{memory: d}]\n"),
            "'memory' is 'd', which the list above has not");
  EXPECT_EQ(message(lists + "begin: [{pipeline: 0}]\n"),
            "'pipeline' must be a whole number from 1 on, not '0'");
  EXPECT_EQ(message(lists + "begin: [{depth: 2}]\n"),
            "unknown key 'depth' of a beginning; there are pipeline, tensor, schedule, memory");
}

TEST_F(SearchTest, TheSameTwiceAndAsMuchAsIsAllowed) {
  SearchOptions one = options(2);
  one.most = 9;
  const Found first = found(one), second = found(one);
  EXPECT_EQ(first.tried.size(), 9u);
  EXPECT_FALSE(first.ended);
  EXPECT_EQ(print_found(first, one), print_found(second, one));
}

TEST_F(SearchTest, TheResultIsAStrategy) {
  const std::string train = options(1).compile.strategy;
  const auto shell = [&](const std::string& command) {
    return run_shell(
        fmt::format("cd {} && {}/bin/{} 2>&1", folder_.path(), PIPER_BINARY_DIR, command));
  };
  auto [code, text] = shell(fmt::format(
      "piper-search {} train.yaml --cluster '<two-cores>' -o best.yaml --most 12", kModel));
  ASSERT_EQ(code, 0) << text;
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 3) << text;
  std::tie(code, text) = shell(fmt::format(
      "piperc {} best.yaml -o plans && {}/bin/piper-verify plans", kModel, PIPER_BINARY_DIR));
  EXPECT_EQ(code, 0) << text;
  for (const char* output : {"train.yaml", "notes.txt"}) {
    folder_.write("notes.txt", "mine");
    std::tie(code, text) = shell(fmt::format(
        "piper-search {} train.yaml --cluster '<two-cores>' -o {} --most 2", kModel, output));
    EXPECT_EQ(code, 2) << text;
    EXPECT_NE(text.find(*output == 't' ? "this file is read, and would be replaced"
                                       : "there is a file that piper-search has not written"),
              text.npos)
        << text;
  }
  std::tie(code, text) =
      shell(fmt::format("piper-search {} train.yaml --cluster '<h100x8>' -o no.yaml --memory 1MB "
                        "--most 5",
                        kModel));
  EXPECT_EQ(code, 3) << text;
  EXPECT_NE(text.find("no strategy that was tried fits: the one that needs least takes "),
            text.npos)
      << text;
}

}  // namespace
}  // namespace piper
