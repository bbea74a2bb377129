// Operators of images, places and order under a cut batch: loss and gradients as of the whole one.
#include <gtest/gtest.h>

#include "piper/frontend/autodiff.h"
#include "piper/frontend/import.h"
#include "unit/sharding_oracle.h"

namespace piper {
namespace {

TEST(Batched, OpsGiveTheSameNumbersWhateverTheCut) {
  Result<Imported> imported =
      import_onnx(std::string(PIPER_SOURCE_DIR) + "/tests/data/batched.onnx", {.batch = 8});
  ASSERT_TRUE(imported.ok()) << print_error(imported.error());
  ASSERT_TRUE(imported->graph.loss.valid());
  EXPECT_EQ(imported->graph.params.size(), 8u);
  TrainSpec train;
  train.groups.push_back({.match = "**"});
  Result<Differentiated> whole = differentiate(std::move(imported->graph), train);
  ASSERT_TRUE(whole.ok()) << print_error(whole.error());
  EXPECT_TRUE(whole->without_gradient.empty());
  Result<Graph> uncut = shard_batch(whole->graph, {});
  ASSERT_TRUE(uncut.ok()) << print_error(uncut.error());
  const oracle::Sources sources = oracle::random_sources(whole->graph, 1, 3);
  for (const auto& [replicas, microbatches] : {std::pair{1, 8}, {2, 1}, {2, 2}}) {
    Result<Graph> cut = shard_batch(whole->graph, {replicas, microbatches, {}});
    ASSERT_TRUE(cut.ok()) << print_error(cut.error());
    ASSERT_TRUE(check_graph(*cut).ok());
    oracle::expect_same(*cut, *uncut, sources, 1e-4);
  }
}

}  // namespace
}  // namespace piper
