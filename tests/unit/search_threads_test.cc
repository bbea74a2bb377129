// Searches of several threads: what is found, and what is said on the way, is that of one.
#include <gtest/gtest.h>

#include "folder.h"
#include "piper/planner/search.h"

namespace piper {
namespace {

const std::string kModel = PIPER_SOURCE_DIR "/samples/gpt/model.onnx";

class SearchThreadsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.compile.model = kModel;
    options_.compile.strategy = folder_.write(
        "train.yaml", "piper: 1\ntrain: {global_batch: 16, optimizer: {adamw: {lr: 1e-3}}}\n");
    options_.compile.target = "cuda";
    auto cluster = read_cluster(PIPER_SOURCE_DIR "/strategies/clusters/h100x8.yaml");
    ASSERT_TRUE(cluster) << print_error(cluster.error());
    options_.cluster = *std::move(cluster);
    auto space = read_space(PIPER_SOURCE_DIR "/strategies/spaces/usual.yaml");
    ASSERT_TRUE(space) << print_error(space.error());
    options_.space = *std::move(space);
    options_.ranks = 4;
    options_.folder = folder_.path() + "/candidates";
    std::filesystem::create_directories(options_.folder);
    options_.progress = [this](const Tried& tried, int64_t number) {
      lines_ += fmt::format("{} {}: {:a} s, {:a} bytes, {}\n", number, describe(tried.choice),
                            tried.step, tried.peak_bytes, tried.refused);
    };
  }
  // Returns all that a search of so many threads says.
  std::string searched(int64_t threads) {
    lines_.clear();
    options_.threads = threads;
    const auto found = search(options_);
    return lines_ + (found ? print_found(*found, options_) : print_error(found.error()));
  }
  std::string swept(int64_t threads, const std::vector<SweptParam>& params) {
    lines_.clear();
    options_.threads = threads;
    const auto rows = sweep(options_, params);
    return lines_ + (rows ? print_sweep(*rows) : print_error(rows.error()));
  }
  Folder folder_;
  SearchOptions options_;
  std::string lines_;
};

// The model has no experts: these are left after two refusals, which others may be tried beside.
TEST_F(SearchThreadsTest, ChangeNoLineAndNoByte) {
  options_.fixed = {{"pipeline", "1"}, {"tensor", "1"}, {"context", "1"}, {"memory", "ddp"}};
  options_.most = 12;
  const std::string alone = searched(1);
  EXPECT_NE(alone.find("# Found by"), alone.npos) << alone;
  EXPECT_NE(alone.find("experts"), alone.npos) << alone;
  for (const int64_t threads : {2, 4}) EXPECT_EQ(searched(threads), alone) << threads;
  options_.fixed.clear();
  options_.most = 9;
  const std::string few = searched(1);
  EXPECT_EQ(searched(4), few);
  // What one has kept the other takes.
  options_.kept = folder_.path() + "/kept";
  EXPECT_EQ(searched(4), few);
  EXPECT_EQ(searched(3), few);
}

// All candidates are refused, and the first says why.
TEST_F(SearchThreadsTest, ChangeNoError) {
  options_.ranks = 7;
  options_.fixed = {{"pipeline", "1"}};
  const std::string alone = searched(1);
  EXPECT_NE(alone.find("help: 7 replicas cannot share 16 samples evenly"), alone.npos) << alone;
  EXPECT_EQ(searched(4), alone);
}

TEST_F(SearchThreadsTest, ChangeNoTable) {
  options_.compile.strategy =
      folder_.write("mine.yaml",
                    "piper: 1\ninclude: <1f1b>\nparams: {stages: 1, microbatches: 4, dp: 1}\n"
                    "train: {global_batch: 16, optimizer: {adamw: {lr: 1e-3}}}\n");
  const std::vector<SweptParam> params = {{"stages", {"1", "2"}, {}},
                                          {"microbatches", {"4", "5", "8"}, {}}};
  const std::string alone = swept(1, params);
  EXPECT_NE(alone.find("fastest"), alone.npos) << alone;
  EXPECT_EQ(swept(4, params), alone);
  const std::string wrong = swept(4, {{"stagse", {"1", "2", "4"}, {}}});
  EXPECT_TRUE(wrong.starts_with("error: no param is called 'stagse'")) << wrong;
}

}  // namespace
}  // namespace piper
