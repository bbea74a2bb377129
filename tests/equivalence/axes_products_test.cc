// Products of pipelines, replicas with and without ZeRO, tensor, sequence, expert and context
// parallelism on up to eight ranks, said by files of the library: three steps of each are those of
// one device, in f64 to the last digits. For each model, number of stages and level of ZeRO as many
// products run as have every pair of the others' sizes; with PIPER_COUNT, all.
#include "equivalence/covering.h"
#include "equivalence/jobs.h"
#include "seed.h"

namespace piper::axes_products_test {
namespace {

using namespace jobs;

constexpr int64_t kSteps = 3;  // with two updates before the last

struct Product {
  std::string model;
  int64_t pp = 1, dp = 1, tp = 1, ep = 1, cp = 1;
  bool sequence = false, ring = false;
  std::string memory = "ddp";

  std::string name() const {
    std::string text = identifier(model);
    for (const auto& [axis, size] : {std::pair("pp", pp),
                                     {"dp", dp},
                                     {sequence ? "sp" : "tp", tp},
                                     {"ep", ep},
                                     {ring ? "ring" : "cp", cp}})
      if (size > 1) text += fmt::format("_{}{}", axis, size);
    return memory == "ddp" ? text : text + "_" + memory;
  }
  std::string strategy() const {
    std::vector<std::string> files{"schedules/1f1b", "memory/" + memory};
    // Tokens are cut over cp first: what is cut over tp beside norms are parts of its blocks.
    if (cp > 1) files.emplace_back(ring ? "context/ring" : "context/gather");
    if (tp > 1) files.emplace_back(sequence ? "tensor/sequence" : "tensor/tensor");
    if (ep > 1) files.emplace_back("experts/experts");
    for (std::string& file : files)
      file = fmt::format("{}/strategies/{}.yaml", PIPER_SOURCE_DIR, file);
    std::string params = fmt::format("stages: {}, dp: {}, microbatches: {}", pp, dp,
                                     std::min<int64_t>(2, 8 / dp / ep));
    for (const auto& [axis, size] : {std::pair("tp", tp), {"ep", ep}, {"cp", cp}})
      if (size > 1) params += fmt::format(", {}: {}", axis, size);
    std::string directives = "  - precision: {compute: f64}\n";
    if (tp > 1 && model == "moe-gshard")  // each expert's own products
      directives +=
          "  - shard: {match: \"**/w_in\", dim: 2, over: tp}\n"
          "  - shard: {match: \"**/w_out\", dim: 1, over: tp}\n";
    return fmt::format(
        "piper: 1\ninclude: [{}]\nparams: {{{}}}\ntrain: {{global_batch: 8, {}}}\ndirectives:\n{}",
        join(files, ", "), params, kAdamW, directives);
  }
};

using Part = std::tuple<const char*, int64_t, const char*>;  // model, stages, memory
class AxesProducts : public ::testing::TestWithParam<Part> {};

std::vector<Product> products(const Part& part) {
  const auto& [model, pp, memory] = part;
  const bool is_dense = std::string(model) != "moe-gshard", is_cut = std::string(memory) != "ddp";
  std::vector<Product> all;
  for (const int64_t dp : {1, 2})
    for (const int64_t tp : {1, 2, 4})
      for (const int64_t ep : {1, 2, 4})
        for (const int64_t cp : {1, 2, 4})
          for (const bool sequence : {false, true}) {
            if (pp * dp * tp * ep * cp > 8 || (ep > 1 && is_dense)) continue;
            if ((sequence && tp == 1) || (dp == 1 && is_cut)) continue;
            for (const bool ring : {false, true})
              if (cp > 1 ? ring || pp * dp == 1 : !ring)
                all.push_back({model, pp, dp, tp, ep, cp, sequence, ring, memory});
          }
  return all;
}

// Two steps on devices that only queue, in one of the orders that are legal.
void expect_same_bits_queued(const PlanSet& set, const std::string& model, const Trained& want) {
  static uint64_t seed = given_seed().value_or(1);
  SCOPED_TRACE(fmt::format("seed {}", ++seed));
  const auto world = make_sim_world(set.world(), seed);
  const Result<Trained> queued = train_simulated(set, model, *world, 2);
  ASSERT_TRUE(queued) << print_error(queued.error());
  for (size_t k = 0; k < queued->losses.size(); ++k) {
    EXPECT_EQ(queued->losses[k], want.losses[k]) << "step " << k;
    EXPECT_EQ(queued->norms[k], want.norms[k]) << "step " << k;
  }
}

// `uncut`: what one device trains, if known already.
void expect_trains_uncut(const std::string& model, const std::string& strategy,
                         std::optional<Trained>& uncut) {
  const Folder folder;
  CompileOptions options;
  options.model = model_path(model, "model.onnx");
  options.strategy = folder.write("strategy.yaml", strategy);
  const Result<Compiled> compiled = compile(options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  if (!uncut) {
    Result<Trained> trained = train(*compiled->uncut, model, kSteps);
    ASSERT_TRUE(trained) << print_error(trained.error());
    uncut = *std::move(trained);
  }
  const Result<Trained> spread = train(compiled->set, model, kSteps);
  ASSERT_TRUE(spread) << print_error(spread.error());
  for (size_t k = 0; k < uncut->losses.size(); ++k) {
    EXPECT_NEAR(spread->losses[k], uncut->losses[k], 1e-12) << "step " << k;
    EXPECT_NEAR(spread->norms[k], uncut->norms[k], 1e-11) << "step " << k;
  }
  EXPECT_LT(largest_difference(*spread, *uncut), 1e-12);
  expect_same_bits_queued(compiled->set, model, *spread);
}

TEST_P(AxesProducts, TrainAsOneDeviceDoes) {
  std::optional<Trained> uncut;  // the same for all
  const auto values_of = [](const Product& of) {
    return Values{std::to_string(of.dp),
                  std::to_string(of.tp),
                  std::to_string(of.ep),
                  std::to_string(of.cp),
                  of.sequence ? "sequence" : "tensor",
                  of.ring ? "ring" : "gather"};
  };
  for (const Product& product : covering(products(GetParam()), values_of)) {
    NEED_MODEL(product.model);
    SCOPED_TRACE(product.name());
    expect_trains_uncut(product.model, product.strategy(), uncut);
  }
}

std::string name_of(const ::testing::TestParamInfo<Part>& info) {
  const auto& [model, pp, memory] = info.param;
  return fmt::format("{}_pp{}_{}", identifier(model), pp, memory);
}
INSTANTIATE_TEST_SUITE_P(Models, AxesProducts,
                         ::testing::Combine(::testing::Values("gpt-deep", "llama-hf", "moe-gshard"),
                                            ::testing::Values(1, 2),
                                            ::testing::Values("ddp", "zero1", "zero3")),
                         name_of);

// The complete files of several axes.
TEST(AxesProducts, CompleteFilesTrainAsOneDeviceDoes) {
  NEED_MODEL("gpt");
  struct File {
    const char *name, *model, *params;
  };
  std::set<std::string> tried;
  for (const File& file :
       {File{"megatron-3d", "gpt-deep", "stages: 2, tp: 2, dp: 2, microbatches: 4"},
        {"megatron-3d", "llama-hf", "stages: 2, tp: 2, dp: 2, microbatches: 2"},
        {"fsdp-tp", "llama-hf", "dp: 4, tp: 2"},
        {"fsdp-tp", "gpt-deep", "dp: 2, tp: 2, stages: 2, microbatches: 2"},
        {"degrees", "gpt-deep", "stages: 2, tp: 2, dp: 2, microbatches: 2"},
        {"degrees", "llama-hf", "stages: 2, tp: 2, dp: 2, wide: 2, microbatches: 2"},
        {"unequal", "llama-hf", "stages: 2, dp: 2, microbatches: 2"},
        {"unequal", "bert-hf", "dp: 2, microbatches: 2, fast: 2, slow: 2"},
        {"wide-stage", "gpt-deep", "gpus: 3, microbatches: 2"},
        {"wide-stage", "bert-hf", "gpus: 5"},
        {"wide-stage", "gpt-deep", "gpus: 1"},
        {"dualpipe-pairs", "gpt-deep", "stages: 2, dp: 2, microbatches: 4"},
        {"dualpipe-pairs", "bert-hf", "stages: 4, microbatches: 8"},
        {"gshard", "moe-gshard", "dp: 2, ep: 4"},
        {"gshard", "qwen3-moe-hf", "dp: 2, ep: 2, stages: 2, microbatches: 2"},
        {"folded-experts", "moe-gshard", "dp: 2, tp: 2"},
        {"folded-experts", "qwen3-moe-hf", "dp: 2, tp: 2, stages: 2, microbatches: 2"},
        {"dualpipev-ep", "moe-gshard", "stages: 2, ep: 2, microbatches: 4"},
        {"dualpipev-ep", "qwen3-moe-hf", "stages: 2, ep: 2, microbatches: 4"}}) {
    SCOPED_TRACE(fmt::format("{} {}", file.name, file.model));
    std::optional<Trained> uncut;
    expect_trains_uncut(file.model,
                        fmt::format("piper: 1\ninclude: {}/strategies/meshes/{}.yaml\n"
                                    "params: {{{}}}\ntrain: {{global_batch: 8, {}}}\n"
                                    "directives:\n  - precision: {{compute: f64}}\n",
                                    PIPER_SOURCE_DIR, file.name, file.params, kAdamW),
                        uncut);
    tried.insert(file.name);
  }
  const std::vector<std::string> all = library_files("/meshes");
  EXPECT_EQ(tried, std::set<std::string>(all.begin(), all.end()));
}

}  // namespace
}  // namespace piper::axes_products_test
