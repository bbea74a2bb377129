// The fuzzers' targets in ordinary tests: inputs that once did harm, and random changes of ordinary
// ones.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>

#include "at_once.h"
#include "piper/base/base.h"
#include "seed.h"
#include "targets.h"

namespace piper::fuzz {
namespace {

namespace fs = std::filesystem;
const std::string kSource = PIPER_SOURCE_DIR;

class Hostile : public testing::TestWithParam<Target> {};

// tests/data/hostile/TARGET/, by name: what fuzzing found, and what tests/data/make_hostile.py
// made, each named for what it did or would do.
std::map<std::string, Bytes> hostile_files(const char* target) {
  std::map<std::string, Bytes> files;
  for (const fs::path& file :
       fs::directory_iterator(fs::path(kSource) / "tests/data/hostile" / target)) {
    Result<Bytes> input = map_file(file.string());
    if (input)
      files.emplace(file.filename().string(), *std::move(input));
    else
      ADD_FAILURE() << print_error(input.error());
  }
  return files;
}

TEST_P(Hostile, WhatWouldDoHarm) {
  for (const auto& [name, input] : hostile_files(GetParam().name)) {
    SCOPED_TRACE(name);
    const auto start = std::chrono::steady_clock::now();
    GetParam().run(as_text(input.span()));
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    EXPECT_LE(spent.count(), kAtOnce);
  }
}

// Those of plans are each one change away from what is read: were that refused, too, they would do
// nothing.
TEST(HostilePlans, AreRefusedForWhatWouldDoHarm) {
  int refused = 0;
  for (const auto& [name, role] : hostile_files("plan")) {
    const std::string why = why_not_read(as_text(role.span()));
    EXPECT_EQ(why.empty(), name.starts_with("as_it_should_be")) << name << ": " << why;
    refused += !why.empty();
  }
  EXPECT_GT(refused, 30);
}

// What those of runs do wrong lies in the numbers that they read: they run. Two are refused by what
// their ops are.
TEST(HostilePlans, RunWithNumbersThatWouldDoHarm) {
  const std::map<std::string, std::string> refused = {
      {"reads_what_it_writes", "program 0 'F': op 0 Gather writes arg 0 while it reads it"},
      {"writes_over_a_neighbour", "program 0 'F': op 0 Expand: f32[3,2] does not expand to [4,2]"}};
  int ran = 0;
  for (const auto& [name, role] : hostile_files("run")) {
    const std::string why = why_not_run(as_text(role.span()));
    const auto known = refused.find(name);
    EXPECT_EQ(why, known == refused.end() ? "" : known->second) << name;
    ran += why.empty();
  }
  EXPECT_GE(ran, 4);
}

TEST_P(Hostile, RandomChanges) {
  static const Seeds seeds = make_seeds(
      {kSource + "/samples/gpt/pp2-dp2.yaml", kSource + "/strategies/schedules/1f1b.yaml",
       kSource + "/tests/data/hostile/pp2.yaml"},
      {kSource + "/tests/data/mlp.onnx", kSource + "/tests/data/two_tower.onnx",
       kSource + "/tests/data/dropout/dynamo.onnx"});
  const auto own = seeds.find(GetParam().name);
  ASSERT_NE(own, seeds.end());
  const auto seed = static_cast<uint32_t>(given_seed().value_or(20261121));
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(fmt::format("seed {}, round {}", seed, round));
    std::string input = own->second[random() % own->second.size()];
    for (uint32_t changes = random() % 4 + 1; changes > 0; --changes)
      input = GetParam().change(input, random);
    GetParam().run(input);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Hostile, testing::ValuesIn(targets().begin(), targets().end()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace piper::fuzz
