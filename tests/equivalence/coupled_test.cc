// Losses that couple the samples of a batch, or look as if they did. Uncut they train as central
// differences in double say, and so they do on replicas, which exchange what samples need of each
// other; of microbatches each has some samples alone, and is refused with the op that couples.
#include <nlohmann/json.hpp>

#include "equivalence/jobs.h"

namespace piper::coupled_test {
namespace {

using namespace jobs;

const std::string kFolder = PIPER_SOURCE_DIR "/tests/data/coupled/";

struct Model {
  const char* name;
  const char* refusal;  // of microbatches; "" where every cut is exact
};
const Model kModels[] = {
    {"batch_norm", "op Sub at norm needs the sum of 'mean' (f32[1,4]) over all its samples"},
    {"contrastive", "op MatMul at contrast couples its samples"},
    {"cumsum_over_batch", "op CumSum at scan couples its samples"},
    {"first_half", "op Slice at slice couples its samples"},
    {"max_over_batch", "op ReduceMax at pool couples its samples"},
    {"shuffled", "op Gather at shuffle couples its samples"},
    {"softmax_over_batch", "op Softmax at head couples its samples"},
    {"squared_mean", "op Mul at aux needs the sum of 'mean' (f32[1,4]) over all its samples"},
    {"ones_beside", "op Mul at bias needs the sum of 'chosen' (f32[4]) over all its samples"},
    {"by_place", ""},
    {"centred_inputs", ""},
    {"entropy_sum", ""},
    {"flat_places", ""},
    {"inner", ""},
    {"learned_weight", ""},
    {"losses", ""},
    {"margin", ""},
    {"masked_bias", ""},
    {"no_penalty", ""},
    {"one_minus", ""},
    {"pairs", ""},
    {"penalty", ""},
    {"plain_mean", ""},
    {"probabilities", ""},
    {"shared_offset", ""},
    {"shared_static", ""},
    {"smoothed", ""},
    {"standardised", ""},
    {"standardised_twice", ""},
    {"weight_norm", ""},
    {"z_loss", ""},
    {"zeros_beside", ""},
};

nlohmann::json reference() {
  std::ifstream file(kFolder + "reference.json");
  return nlohmann::json::parse(file);
}

Result<Compiled> compile_cut(const Folder& folder, const std::string& name, int64_t dp,
                             int64_t mb) {
  CompileOptions options;
  options.model = kFolder + name + ".onnx";
  options.strategy =
      folder.write("strategy.yaml", "piper: 1\ninclude: " PIPER_SOURCE_DIR
                                    "/strategies/ddp.yaml\n"
                                    "params: {dp: 1, microbatches: 1}\n"
                                    "train: {global_batch: 8, optimizer: {sgd: {lr: 0.1}}}\n");
  options.defines = {{"dp", std::to_string(dp)}, {"microbatches", std::to_string(mb)}};
  options.oracles = false;
  return compile(options);
}

void expect_reference(const PlanSet& set, const std::string& batches, const nlohmann::json& want,
                      const std::string& what) {
  const auto trained = train_on(set, batches, static_cast<int64_t>(want["losses"].size()));
  ASSERT_TRUE(trained) << what << print_error(trained.error());
  for (size_t k = 0; k < trained->losses.size(); ++k) {
    const double loss = want["losses"][k].get<double>();
    EXPECT_NEAR(trained->losses[k], loss, 1e-6 * std::max(1.0, loss)) << what << " step " << k;
  }
  ASSERT_EQ(trained->parameters.size(), 1u) << what;
  const auto* w = reinterpret_cast<const float*>(trained->parameters.begin()->second.data.data);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(w[i], want["w"][i].get<double>(), 1e-6) << what;
}

nlohmann::json batches_of(const nlohmann::json& json, const std::string& model) {
  nlohmann::json batches = json["batches"];
  for (size_t k = 0; model.starts_with("shared_") && k < batches.size(); ++k)
    batches[k]["offset"] = json["rows"][k];
  return batches;
}

class Coupled : public ::testing::TestWithParam<Model> {};

TEST_P(Coupled, TrainsRightOrIsRefused) {
  const Model& model = GetParam();
  const Folder folder;
  const auto json = reference();
  const std::string batches = write_batches(folder, batches_of(json, model.name));
  const std::pair<int64_t, int64_t> cuts[] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {1, 8}, {8, 1}};
  for (const auto& [dp, mb] : cuts) {
    const std::string what = fmt::format("{} dp={} mb={}", model.name, dp, mb);
    const auto compiled = compile_cut(folder, model.name, dp, mb);
    std::string refusal = mb > 1 ? model.refusal : "";
    if (std::string(model.name) == "pairs" && mb == 8)
      refusal = "op Reshape at pairs splits 'h' (f32[8,4]) unevenly";
    if (refusal.empty()) {
      ASSERT_TRUE(compiled) << what << print_error(compiled.error());
      expect_reference(compiled->set, batches, json["models"][model.name], what);
      continue;
    }
    ASSERT_FALSE(compiled) << what;
    const Error& error = compiled.error();
    EXPECT_NE(error.message.find(refusal), std::string::npos) << error.message;
    EXPECT_EQ(error.message.find("the batch cannot be cut"), 0u) << error.message;
    EXPECT_EQ(error.notes[error.notes.size() - 2],
              fmt::format("the step is cut into {} microbatches: samples of one of them are not "
                          "all samples, and none waits for the next",
                          mb));
    EXPECT_EQ(error.notes.back(),
              "help: with one microbatch (no 'split', or `into: 1`) the model trains as it is, on "
              "any number of replicas: they exchange what samples need of each other");
    EXPECT_TRUE(error.at.file.ends_with("strategies/ddp.yaml")) << error.at.file;  // its split
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Coupled, ::testing::ValuesIn(kModels),
                         [](const auto& info) { return std::string(info.param.name); });

// An input without samples is noted, unless the strategy says it.
TEST(Inputs, AreSharedByShapeOrByWord) {
  const Folder folder;
  const auto with = [&](const char* inputs) {
    CompileOptions options;
    options.model = kFolder + "shared_offset.onnx";
    options.strategy = folder.write(
        "inputs.yaml",
        fmt::format("piper: 1\n{}train: {{global_batch: 8, optimizer: {{sgd: {{lr: 0.1}}}}}}\n",
                    inputs));
    options.oracles = false;
    return compile(options);
  };
  const auto noted = [](const Compiled& compiled) {
    return std::count_if(compiled.notes.begin(), compiled.notes.end(), [](const Note& note) {
      return note.of == "offset" && note.text.starts_with("an input that all samples share");
    });
  };
  const auto plain = with(""), said = with("inputs: {offset: {batch_dim: none}}\n"),
             wrong = with("inputs: {offset: {batch_dim: 0}}\n");
  ASSERT_TRUE(plain) << print_error(plain.error());
  ASSERT_TRUE(said) << print_error(said.error());
  EXPECT_EQ(noted(*plain), 1);
  EXPECT_EQ(noted(*said), 0);
  ASSERT_FALSE(wrong);
  EXPECT_NE(wrong.error().message.find("a batch of 8 samples, but the model was exported for 1"),
            std::string::npos);
}

// ---- Every way to have replicas -----------------------------------------------------------------

struct Way {
  const char* name;
  const char* text;
};
const Way kWays[] = {
    {"ddp", "include: [numerics/f64.yaml, memory/ddp.yaml]\nparams: {dp: 4}\n"},
    {"zero1", "include: [numerics/f64.yaml, memory/zero1.yaml]\nparams: {dp: 2}\n"},
    {"zero2",
     "include: [numerics/f64.yaml, memory/zero2.yaml]\nparams: {dp: 4, reduce: per_microbatch}\n"},
    {"zero3", "include: [numerics/f64.yaml, memory/zero3.yaml]\nparams: {dp: 2}\n"},
    {"hsdp", "include: [numerics/f64.yaml, memory/hsdp.yaml]\nparams: {nodes: 2, gpus: 2}\n"},
    {"samples",
     "include: [numerics/f64.yaml]\nmesh: {a: 2}\ndirectives:\n  - shard: {input: \"*\", dim: 0, "
     "over: a}\n"
     "  - shard: {match: \"**\", dim: none, over: a}\n"},
    {"widths",  // which the order of the samples has not
     "include: [numerics/f64.yaml]\nmesh: {a: 2}\ndirectives:\n"
     "  - shard: {input: \"*\", dim: 1, over: a}\n  - shard: {match: \"**\", dim: none, over: "
     "a}\n"},
    {"uneven",  // columns of the product, which three ranks do not divide
     "include: [numerics/f64.yaml]\nmesh: {a: 3}\ndirectives:\n"
     "  - shard: {match: fc/weight, dim: 1, over: a, pad: true}\n"},
    {"both",
     "include: [numerics/f64.yaml, memory/zero1.yaml]\nparams: {dp: 2}\nmesh: {dp: $dp, a: "
     "2}\ndirectives:\n"
     "  - shard: {input: \"*\", dim: 0, over: a}\n  - shard: {match: \"**\", dim: none, over: "
     "a}\n"},
};

const char* kOne = "include: [numerics/f64.yaml]\n";

Result<Compiled> compile_way(const Folder& folder, const std::string& name, std::string text,
                             int64_t batch = 8) {
  for (const char* part : {"numerics/", "memory/"})
    if (const size_t at = text.find(part); at != std::string::npos)
      text.insert(at, PIPER_SOURCE_DIR "/strategies/");
  CompileOptions options;
  options.model = kFolder + name + ".onnx";
  options.strategy = folder.write(
      "way.yaml", fmt::format("piper: 1\n{}\ntrain: {{global_batch: {}, optimizer: {{adamw: {{lr: "
                              "1e-2, weight_decay: 0.1}}}}, clip_norm: 0.5}}\n",
                              text, batch));
  return compile(options);
}

// Whether replicas run one step together.
bool is_coupled(const Compiled& compiled) {
  return std::any_of(compiled.explanations.begin(), compiled.explanations.end(),
                     [](const Explanation& each) {
                       return each.directive == "replicate" &&
                              each.lines[0].starts_with("the ranks run one step together");
                     });
}

// Of columns that go on into zeros.
std::string refusal_of(const std::string& model) {
  if (model == "learned_weight") return "'fc.weight' (f64[4,4]) would count in Slice in weight";
  if (model == "pairs") return "'pairs' (f64[4,8]) would count in Softmax in pairs";
  return "";
}

class Replicas : public ::testing::TestWithParam<Way> {};

TEST_P(Replicas, TrainAsOneDeviceDoes) {
  const Folder folder;
  const auto json = reference();
  for (const Model& model : kModels) {
    const std::string batches = write_batches(folder, batches_of(json, model.name));
    const auto one = compile_way(folder, model.name, kOne);
    ASSERT_TRUE(one) << print_error(one.error());
    const auto cut = compile_way(folder, model.name, GetParam().text);
    if (const std::string refusal = cut ? "" : refusal_of(model.name); !refusal.empty()) {
      EXPECT_EQ(std::string(GetParam().name), "uneven");
      EXPECT_EQ(cut.error().notes[0], "elements past the end of " + refusal);
      continue;
    }
    ASSERT_TRUE(cut) << model.name << print_error(cut.error());
    const bool replicates = std::string(GetParam().text).find("dp") != std::string::npos;
    EXPECT_EQ(is_coupled(*cut), replicates && *model.refusal != 0) << model.name;
    const auto want = train_on(one->set, batches, 3), got = train_on(cut->set, batches, 3);
    ASSERT_TRUE(want) << print_error(want.error());
    ASSERT_TRUE(got) << model.name << print_error(got.error());
    for (size_t k = 0; k < 3; ++k) {
      EXPECT_NEAR(got->losses[k], want->losses[k], 1e-12 * std::max(1.0, want->losses[k]));
      EXPECT_NEAR(got->norms[k], want->norms[k], 1e-12 * std::max(1.0, want->norms[k]));
    }
    EXPECT_LE(largest_difference(*got, *want), 1e-11) << model.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Replicas, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return std::string(info.param.name); });

// Gradients of penalties and of norms repeat a number along a dim of which a rank has one element.
TEST(Columns, AreOneOfEachRank) {
  const Folder folder;
  const auto json = reference();
  for (const char* model : {"no_penalty", "penalty", "weight_norm"})
    for (const int dim : {0, 1}) {
      const std::string batches = write_batches(folder, batches_of(json, model));
      const auto one = compile_way(folder, model, kOne);
      const auto cut =
          compile_way(folder, model,
                      fmt::format("include: [numerics/f64.yaml]\nmesh: {{a: 4}}\ndirectives:\n"
                                  "  - shard: {{match: fc/weight, dim: {}, over: a}}\n",
                                  dim));
      ASSERT_TRUE(one && cut) << model << (cut ? "" : print_error(cut.error()));
      const auto want = train_on(one->set, batches, 2), got = train_on(cut->set, batches, 2);
      ASSERT_TRUE(want && got) << model;
      EXPECT_LE(largest_difference(*got, *want), 1e-11) << model << dim;
    }
}

// The least number of each type is behind the end of the classes.
TEST(UnevenClasses, TrainInNarrowTypesToo) {
  const Folder folder;
  const auto json = reference();
  const std::string batches = write_batches(folder, json["batches"]);
  const std::pair<const char*, double> kTypes[] = {
      {"", 1e-5},
      {"  - precision: {compute: bf16}\n", 3e-2},
      {"  - precision: {compute: f16, loss_scale: {static: 8}}\n", 4e-3}};
  for (const char* model : {"smoothed", "z_loss", "probabilities", "margin", "entropy_sum"})
    for (const auto& [type, apart] : kTypes) {
      const auto trained = [&](const char* cut) {
        const auto compiled =
            compile_way(folder, model, fmt::format("mesh: {{a: 3}}\ndirectives:\n{}{}", type, cut));
        EXPECT_TRUE(compiled) << model << type << print_error(compiled.error());
        return train_on(compiled->set, batches, 3);
      };
      const auto want = trained("  - shard: {match: fc/weight, dim: none, over: a}\n"),
                 got = trained("  - shard: {match: fc/weight, dim: 1, over: a, pad: true}\n");
      ASSERT_TRUE(want && got) << model << type;
      for (size_t k = 0; k < 3; ++k)
        EXPECT_NEAR(got->losses[k], want->losses[k], apart * std::max(1.0, want->losses[k]))
            << model << type;
      EXPECT_LE(largest_difference(*got, *want), apart) << model << type;
    }
}

// The mean of the losses of two halves, each by itself, is what replicas would have that do not
// exchange anything.
TEST(Replicas, DifferFromLossesOfTheirOwnSamples) {
  const Folder folder;
  const auto json = reference();
  for (const Model& model : kModels) {
    if (*model.refusal == 0 || std::string(model.name) == "shuffled") continue;
    const auto half = compile_way(folder, model.name, kOne, 4);
    if (!half) continue;  // its numbers of samples are constants
    double mean = 0;
    for (size_t h = 0; h < 2; ++h) {
      nlohmann::json part;
      for (const auto& [name, values] : json["batches"][0].items()) {
        const size_t each = values.size() / 2;
        for (size_t i = 0; i < each; ++i) {
          const double value = values[h * each + i].template get<double>();
          part[name].push_back(name == "order" ? static_cast<double>(int64_t(value) % 4) : value);
        }
      }
      const auto trained =
          train_on(half->set, write_batches(folder, nlohmann::json::array({part}), 4), 1);
      ASSERT_TRUE(trained) << print_error(trained.error());
      mean += trained->losses[0] / 2;
    }
    const double want = json["models"][model.name]["losses"][0].get<double>();
    EXPECT_GT(std::abs(mean - want), 1e-4 * want) << model.name;
  }
}

}  // namespace
}  // namespace piper::coupled_test
