// Models with training_info train as the operators' pseudo code says, in double, whatever the cut;
// what of it is not supported is refused.
#include <nlohmann/json.hpp>

#include "equivalence/jobs.h"

namespace piper::training_info_test {
namespace {

using namespace jobs;

const std::string kFolder = PIPER_SOURCE_DIR "/tests/data/training/";

nlohmann::json reference() {
  std::ifstream file(kFolder + "reference.json");
  return nlohmann::json::parse(file);
}

Result<Compiled> compile_file(const Folder& folder, const std::string& model,
                              const std::string& more, int64_t dp = 1, int64_t mb = 1) {
  CompileOptions options;
  options.model = model;
  options.strategy =
      folder.write("strategy.yaml", "piper: 1\ninclude: " PIPER_SOURCE_DIR
                                    "/strategies/ddp.yaml\nparams: {dp: 1, microbatches: 1}\n" +
                                        more);
  options.defines = {{"dp", std::to_string(dp)}, {"microbatches", std::to_string(mb)}};
  options.oracles = false;
  return compile(options);
}
const std::string kPlain = "train: {global_batch: 8}\n";

TEST(TrainingInfo, TrainsAsTheOperatorsSay) {
  const Folder folder;
  const auto json = reference();
  const std::string batches = write_batches(folder, json["batches"]);
  ASSERT_EQ(json["models"].size(), 6u);
  for (const auto& [name, want] : json["models"].items())
    for (const auto& [dp, mb] : {std::pair<int64_t, int64_t>{1, 1}, {2, 2}}) {
      const std::string what = fmt::format("{} dp={} mb={}", name, dp, mb);
      const auto compiled = compile_file(folder, kFolder + name + ".onnx", kPlain, dp, mb);
      ASSERT_TRUE(compiled) << what << print_error(compiled.error());
      const auto trained = train_on(compiled->set, batches, 4);
      ASSERT_TRUE(trained) << what << print_error(trained.error());
      for (size_t k = 0; k < 4; ++k)
        EXPECT_NEAR(trained->losses[k], want["losses"][k].get<double>(), 2e-6) << what << k;
      EXPECT_EQ(trained->parameters.size(), name == "mixed" ? 2u : 3u);
      for (const auto& [parameter, tensor] : trained->parameters) {
        const auto* got = reinterpret_cast<const float*>(tensor.data.data);
        const auto expected = want["parameters"][parameter].get<std::vector<double>>();
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_NEAR(got[i], expected[i], 2e-6) << what << " " << parameter;
      }
    }
}

TEST(TrainingInfo, TheStrategysOptimizerReplacesTheModels) {
  const Folder folder;
  const auto compiled = compile_file(folder, kFolder + "mixed.onnx",
                                     "train: {global_batch: 8, optimizer: {sgd: {lr: 0.25}}}\n");
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const std::string plan = print_plan(compiled->set.roles[0]);
  EXPECT_NE(plan.find("base=0.25"), plan.npos);
  EXPECT_EQ(plan.find("OnnxAdam"), plan.npos);
  const auto groups = compile_file(folder, kFolder + "mixed.onnx",
                                   "train: {global_batch: 8, groups: [{match: \"w\", lr: 0.1}]}\n");
  ASSERT_FALSE(groups);
  EXPECT_EQ(groups.error().message, "groups without an optimizer: the model has its own");
  EXPECT_EQ(groups.error().at.line, 4);
}

TEST(TrainingInfo, RefusesWhatItDoesNotMean) {
  const Folder folder;
  const std::pair<const char*, const char*> kRefused[] = {
      {"binding",
       "training_info updates 'one' from 'T_next', which is neither a parameter, an optimizer's "
       "state nor its T"},
      {"clipped",
       "node 'w_next' (ai.onnx.preview.training::Momentum): 'dw_small' is not the gradient of 'w' "
       "as a Gradient node makes it; to change gradients before the optimizer is not supported"},
      {"count",
       "node 'w_next' (ai.onnx.preview.training::Momentum): its T 'one' is not an initializer "
       "that an update_binding counts up by one"},
      {"point",
       "node 'dw' (ai.onnx.preview.training::Gradient): a gradient at other values than those of "
       "its xs and zs is not supported"},
      {"rate",
       "node 'w_next' (ai.onnx.preview.training::Momentum): its learning rate 'x' is not a "
       "constant"},
      {"state",
       "node 'w_next' (ai.onnx.preview.training::Momentum): to begin with a state 'w.V' that is "
       "not zero is not supported"},
      {"two", "2 entries of training_info are not supported, only one"},
      {"unbound",
       "node 'w_next' (ai.onnx.preview.training::Momentum): its result 'w_next' is not bound to "
       "'w' by update_binding"},
  };
  for (const auto& [name, message] : kRefused) {
    const auto compiled = compile_file(folder, kFolder + "refused_" + name + ".onnx", kPlain);
    ASSERT_FALSE(compiled) << name;
    EXPECT_EQ(compiled.error().message, message);
    EXPECT_TRUE(compiled.error().at.file.ends_with(name + std::string(".onnx")));
  }
}

// ---- What is written is read --------------------------------------------------------------------

std::string plan_of(const PlanSet& set) {
  std::string text;
  for (const RoleProgram& role : set.roles) text += print_plan(role);
  return text;
}

const char* const kWritten[] = {
    "sgd: {lr: 0.02}",
    "sgd: {lr: 0.02, momentum: 0.9, nesterov: true, weight_decay: 0.01}",
    "adagrad: {lr: 0.05, lr_decay: 0.01, eps: 1e-6, initial_accumulator_value: 0.5}",
    "onnx_adam: {lr: 0.01, betas: [0.8, 0.99], weight_decay_after: 0.001}",
};

std::string with_optimizer(const std::string& optimizer) {
  return "train: {global_batch: 8, optimizer: {" + optimizer + "}}\n";
}

Status emit(const Folder& folder, const std::string& model, const std::string& more) {
  CompileOptions options;
  options.model = model;
  options.strategy = folder.write("emit.yaml", "piper: 1\n" + more);
  return emit_onnx_training(options, folder.path() + "/written.onnx");
}

// The same plan, and the same initial values.
TEST(TrainingInfo, WhatIsWrittenIsReadToTheSamePlan) {
  const Folder folder;
  const std::string model = PIPER_SOURCE_DIR "/tests/data/two_tower.onnx";
  for (const char* optimizer : kWritten) {
    const std::string text = with_optimizer(optimizer);
    const Status emitted = emit(folder, model, text);
    ASSERT_TRUE(emitted) << print_error(emitted.error());
    const auto whole = compile_file(folder, model, text, 2, 2);
    const auto again = compile_file(folder, folder.path() + "/written.onnx", kPlain, 2, 2);
    ASSERT_TRUE(whole && again) << print_error((whole ? again : whole).error());
    EXPECT_EQ(plan_of(whole->set), plan_of(again->set)) << optimizer;
    ASSERT_EQ(whole->set.tensors.size(), again->set.tensors.size());
    for (size_t i = 0; i < whole->set.tensors.size(); ++i) {
      const auto& [name, a] = whole->set.tensors[i];
      const auto& [other, b] = again->set.tensors[i];
      EXPECT_EQ(name, other);
      EXPECT_TRUE(as_text(a.span()) == as_text(b.span())) << name;
    }
  }
}

TEST(TrainingInfo, AModelIsNotReplacedByWhatIsMadeOfIt) {
  const Folder folder;
  const std::string text = with_optimizer(kWritten[0]), written = folder.path() + "/written.onnx";
  ASSERT_TRUE(emit(folder, PIPER_SOURCE_DIR "/tests/data/two_tower.onnx", text));
  const Status refused = emit(folder, written, text);
  ASSERT_FALSE(refused);
  EXPECT_EQ(print_error(refused.error()),
            written +
                ": error: the model would be replaced by what is made of it; write to another "
                "file\n");
}

// Merged, folded, deleted, tied and transposed parameters; a padding row; logits without a loss.
TEST(TrainingInfo, ExportsThatAreWrittenTrainBitForBit) {
  const Folder folder;
  const std::string optimizer = with_optimizer("sgd: {lr: 0.02, momentum: 0.9}");
  for (const std::string model :
       {"bert-hf", "gpt2-hf", "gpt-logits", "gpt-parallel", "gpt-ts17", "llama-hf", "vit-hf"}) {
    NEED_MODEL(model);
    if (kSanitized && model != "bert-hf") continue;
    const std::string file = model_path(model, "model.onnx");
    std::string text = optimizer;
    if (model == "gpt-logits") text += "loss: {cross_entropy: {logits: logits, labels: labels}}\n";
    const Status emitted = emit(folder, file, text);
    ASSERT_TRUE(emitted) << model << print_error(emitted.error());
    const auto whole = compile_file(folder, file, text, 2, 2);
    const auto again = compile_file(folder, folder.path() + "/written.onnx", kPlain, 2, 2);
    ASSERT_TRUE(whole && again) << model << print_error((whole ? again : whole).error());
    const std::string batches = model_path(model, "reference.safetensors");
    const auto a = train_on(whole->set, batches, 3), b = train_on(again->set, batches, 3);
    ASSERT_TRUE(a && b) << model << print_error((a ? b : a).error());
    EXPECT_EQ(a->losses, b->losses) << model;
    ASSERT_EQ(a->parameters.size(), b->parameters.size()) << model;
    for (const auto& [name, tensor] : a->parameters)
      EXPECT_TRUE(as_text(tensor.data.span()) == as_text(b->parameters.at(name).data.span()))
          << model << " " << name;
  }
}

TEST(TrainingInfo, WritesNothingThatItCannotSay) {
  const Folder folder;
  const std::string model = PIPER_SOURCE_DIR "/tests/data/two_tower.onnx";
  const std::pair<const char*, const char*> kRefused[] = {
      {"optimizer: {adamw: {}}", "PyTorch's Adam is no optimizer of ai.onnx.preview.training"},
      {"optimizer: {sgd: {}}, clip_norm: 1", "clip_norm cannot be said in training_info"},
      {"optimizer: {sgd: {}}, schedule: [{warmup: 3}]",
       "a schedule of the learning rate cannot be said in training_info"},
      {"optimizer: {sgd: {weight_decay: 0.123456789}}",
       "weight_decay 0.123456789 has more digits than an attribute of ONNX holds: 0.12345679 "
       "would be read"},
  };
  for (const auto& [train, message] : kRefused) {
    const Status emitted =
        emit(folder, model, "train: {global_batch: 8, " + std::string(train) + "}\n");
    ASSERT_FALSE(emitted) << train;
    EXPECT_EQ(emitted.error().message, message);
    EXPECT_EQ(emitted.error().at.line, 2) << train;
  }
}

// Nor of models: an operator that their opset has not, and buffers that forward changes.
TEST(TrainingInfo, WritesNoModelThatWouldBeAnother) {
  const Folder folder;
  const std::pair<const char*, const char*> kRefused[] = {
      {"parameters/computed_swish",
       "the model reads Swish of 'w', which opset 18 of ONNX has no operator for"},
      {"batch_norm/codes", "forward changes the buffer "},
  };
  for (const auto& [model, message] : kRefused) {
    const std::string file = fmt::format("{}/tests/data/{}.onnx", PIPER_SOURCE_DIR, model);
    const Status emitted = emit(folder, file, with_optimizer(kWritten[0]));
    ASSERT_FALSE(emitted) << model;
    EXPECT_TRUE(emitted.error().message.starts_with(message)) << emitted.error().message;
    EXPECT_EQ(emitted.error().at.file, file);
  }
}

}  // namespace
}  // namespace piper::training_info_test
