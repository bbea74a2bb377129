// `parameters:` of a strategy, from its text to what is trained and saved.
#include <filesystem>

#include "equivalence/jobs.h"
#include "golden.h"
#include "piper/base/data.h"
#include "piper/inspect/summary.h"

namespace piper::parameters_test {
namespace {

using namespace jobs;
using namespace std::string_literals;

const std::string kTwoTower = PIPER_SOURCE_DIR "/tests/data/two_tower.onnx";

Result<Compiled> compile_text(const Folder& folder, const std::string& text,
                              const std::string& model = kTwoTower) {
  CompileOptions options;
  options.model = model;
  options.strategy = folder.write("strategy.yaml", text);
  options.oracles = false;
  return compile(options);
}

const Tensor* find_parameter(const PlanSet& set, const std::string& param) {
  for (const RoleProgram& role : set.roles)
    for (const Tensor& tensor : role.tensors)
      if (tensor.param == param) return &tensor;
  return nullptr;
}

std::string held(const PlanSet& set) {
  std::string text;
  for (const RoleProgram& role : set.roles)
    for (const Tensor& tensor : role.tensors)
      if (!tensor.param.empty())
        text += fmt::format("{} {}{}\n", tensor.param, to_string(tensor.type),
                            tensor.aliases.empty() ? "" : " or " + join(tensor.aliases, ", "));
  return text;
}

TEST(Parameters, Golden) {
  golden::run("parameters/*.test", {"after", "error"}, [](const golden::Case& c) {
    const Folder folder;
    const std::string named = c.text("model"), rules = c.text("parameters");
    std::string text = "piper: 1\ntrain: {global_batch: 4}\n";
    if (rules.find('-') != rules.npos) text += "parameters:\n" + rules;
    const std::string file = PIPER_SOURCE_DIR "/tests/data/" + named.substr(0, named.find('\n'));
    const auto compiled = compile_text(folder, text, file + ".onnx");
    if (!compiled) {
      text = print_error(compiled.error());
      for (const std::string& start : {folder.path() + "/", PIPER_SOURCE_DIR "/tests/data/"s})
        if (text.starts_with(start)) text.erase(0, start.size());
      return golden::Section{"error", text};
    }
    text.clear();
    for (const Explanation& e : compiled->explanations)
      for (const std::string& line : e.lines)
        text += fmt::format("line {}: {}: {}\n", e.at.line, e.directive, line);
    for (const std::string& line : compiled->constants) text += "constant: " + line + "\n";
    for (const std::string& line : lines_of(compiled->notes)) text += "note: " + line + "\n";
    return golden::Section{"after", text + held(compiled->set)};
  });
}

// ---- What a plan has of a frozen parameter ------------------------------------------------------

std::string plan_text(const PlanSet& set) {
  std::string text;
  for (const RoleProgram& role : set.roles) text += print_plan(role);
  return text;
}

TEST(Parameters, FrozenOnesCostNothing) {
  const Folder folder;
  const std::string base = "piper: 1\ninclude: " PIPER_SOURCE_DIR
                           "/strategies/ddp.yaml\nparams: {dp: 2, microbatches: 2}\n"
                           "train: {global_batch: 8, optimizer: {adamw: {}}, clip_norm: 1}\n";
  const auto whole = compile_text(folder, base);
  const auto frozen = compile_text(folder, base + "parameters: [{freeze: \"left/**\"}]\n");
  ASSERT_TRUE(whole) << print_error(whole.error());
  ASSERT_TRUE(frozen) << print_error(frozen.error());
  const std::string all = plan_text(whole->set), part = plan_text(frozen->set);
  for (const std::string name : {"left.0.weight", "left.0.bias"}) {
    ASSERT_NE(find_parameter(frozen->set, name), nullptr) << name;
    for (const char* made : {".grad", ".exp_avg", ".exp_avg_sq"}) {
      EXPECT_NE(all.find(name + made), all.npos) << name << made;
      EXPECT_EQ(part.find(name + made), part.npos) << name << made;
    }
  }
  const Summary with = summarise(frozen->set), without = summarise(whole->set);
  EXPECT_LT(with.roles[0].optimizer_bytes, without.roles[0].optimizer_bytes);
  EXPECT_EQ(with.roles[0].weight_bytes, without.roles[0].weight_bytes);
  EXPECT_LT(with.roles[0].flops, without.roles[0].flops);
  const auto reduced = [](const PlanSet& set) {
    int64_t bytes = 0;
    for (const Instruction& i : set.roles[0].body)
      if (i.kind == InstructionKind::kAllReduce)
        for (const int32_t buffer : i.args) bytes += set.roles[0].tensor(buffer).type.bytes();
    return bytes;
  };
  EXPECT_LT(reduced(frozen->set), reduced(whole->set));
}

bool same_bits(const NamedTensor& a, const NamedTensor& b) {
  return as_text(a.data.span()) == as_text(b.data.span());
}

// Frozen parameters keep their bits, and the others train as if those were constants of the model.
TEST(Parameters, FrozenOnesKeepTheirBitsAndTheOthersTrainAsBesideConstants) {
  const std::string model = "gpt-unoptimized";
  NEED_MODEL(model);
  const std::string text = strategy_text(model, kAdamW);
  const Shape2 shape{2, 2, 2, "1f1b"};
  const std::string pattern = "\"model/h/{i}/qkv/*\"";
  const auto frozen =
      compile_model(model, text + "parameters: [{freeze: " + pattern + "}]\n", shape);
  const auto fixed =
      compile_model(model, text + "parameters: [{exclude: " + pattern + "}]\n", shape);
  ASSERT_TRUE(frozen) << print_error(frozen.error());
  ASSERT_TRUE(fixed) << print_error(fixed.error());
  const auto a = train(frozen->set, model, 5), b = train(fixed->set, model, 5);
  ASSERT_TRUE(a) << print_error(a.error());
  ASSERT_TRUE(b) << print_error(b.error());
  EXPECT_EQ(a->losses, b->losses);
  const auto init = reference_tensors(model);
  int kept = 0, trained = 0;
  for (const auto& [name, tensor] : a->parameters) {
    if (name.find("lm_head") != name.npos) continue;
    const bool is_frozen = name.find(".qkv.") != name.npos;
    EXPECT_EQ(same_bits(tensor, init.at("init/" + name)), is_frozen) << name;
    EXPECT_EQ(b->parameters.count(name), is_frozen ? 0u : 1u) << name;
    if (!is_frozen) {
      EXPECT_TRUE(same_bits(tensor, b->parameters.at(name))) << name;
    }
    (is_frozen ? kept : trained) += 1;
  }
  EXPECT_EQ(kept, 8);
  EXPECT_EQ(trained, 44);
}

// A constant of the file, included, moves; and it is saved under its name.
TEST(Parameters, IncludedConstantsAreTrained) {
  const std::string model = "llama-hf";
  NEED_MODEL(model);
  const auto compiled =
      compile_model(model, strategy_text(model, kSgd) + "parameters: [{include: unsqueeze_14}]\n",
                    {1, 1, 2, "1f1b"});
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto trained = train(compiled->set, model, 2);
  ASSERT_TRUE(trained) << print_error(trained.error());
  ASSERT_EQ(trained->parameters.count("unsqueeze_14"), 1u);
  EXPECT_EQ(trained->parameters.size(), 40u);
}

// ---- Initial values from a file -----------------------------------------------------------------

const std::string kInit = PIPER_SOURCE_DIR "/tests/data/init/";

std::map<std::string, NamedTensor> read_all(const std::string& path) {
  std::map<std::string, NamedTensor> tensors;
  auto read = read_safetensors(path);
  EXPECT_TRUE(read) << path;
  if (read)
    for (NamedTensor& tensor : *read) tensors[tensor.name] = std::move(tensor);
  return tensors;
}

Result<Compiled> compile_with(const std::string& model, const std::string& state,
                              const Shape2& shape = {}) {
  const Folder folder;
  CompileOptions options;
  options.model = kInit + model + ".onnx";
  options.initial_values = state;
  options.strategy = folder.write(
      "strategy.yaml", "piper: 1\ninclude: " PIPER_SOURCE_DIR
                       "/strategies/1f1b.yaml\nparams: {stages: 1, dp: 1, microbatches: 1}\n"
                       "train: {global_batch: 4, optimizer: {sgd: {lr: 0.05, momentum: 0.9}}}\n");
  options.defines = {{"stages", std::to_string(shape.pp)},
                     {"dp", std::to_string(shape.dp)},
                     {"microbatches", std::to_string(shape.mb)}};
  options.oracles = false;
  return compile(options);
}

class InitialValues : public ::testing::TestWithParam<const char*> {};

// A file of fresh weights with the state of another module of its kind trains as that one.
TEST_P(InitialValues, TrainAsPyTorch) {
  const std::string model = GetParam(), data = kInit + model + ".safetensors";
  const auto want = read_all(data);
  const auto* losses = reinterpret_cast<const double*>(want.at("losses").data.data);
  // Functions of parameters alone with kinks want the gradient of the whole batch.
  const Shape2 cut = model != "language" ? Shape2{2, 1, 1} : Shape2{2, 2, 2};
  for (const Shape2& shape : {Shape2{1, 1, 1}, cut}) {
    const auto compiled = compile_with(model, kInit + model + "-state.safetensors", shape);
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    const auto trained = train_on(compiled->set, data, 5);
    ASSERT_TRUE(trained) << print_error(trained.error());
    for (size_t k = 0; k < 5; ++k) EXPECT_NEAR(trained->losses[k] / losses[k], 1, 1e-6) << k;
    for (const auto& [name, tensor] : want) {
      if (!name.starts_with("after/")) continue;
      const auto got = trained->parameters.find(name.substr(6));
      ASSERT_NE(got, trained->parameters.end()) << name;
      EXPECT_LE(tensor_error(got->second, tensor), 5e-6) << name;
    }
  }
  const auto fresh = compile_with(model, "");
  if (!fresh) return;  // what cannot be had back is not trained without them
  const auto other = train_on(fresh->set, data, 1);
  ASSERT_TRUE(other) << print_error(other.error());
  EXPECT_GT(std::abs(other->losses[0] / losses[0] - 1), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Models, InitialValues,
                         ::testing::Values("language", "gates", "older", "relative"),
                         [](const auto& info) { return std::string(info.param); });

// The state with some of it changed.
std::string changed_state(const Folder& folder,
                          const std::function<void(std::map<std::string, NamedTensor>&)>& change) {
  auto state = read_all(kInit + "language-state.safetensors");
  change(state);
  std::vector<NamedTensor> tensors;
  for (auto& [name, tensor] : state) tensors.push_back({name, tensor.type, tensor.data});
  const std::string path = folder.path() + "/state.safetensors";
  EXPECT_TRUE(write_safetensors(path, tensors));
  return path;
}

TEST(InitialValues, AreNeitherMissingNorUnknownNorOfAnotherShape) {
  using State = std::map<std::string, NamedTensor>;
  const auto zeros = [](TensorType type) {
    return NamedTensor{"", type, Bytes::zeros(static_cast<size_t>(type.bytes()))};
  };
  const std::pair<std::string, std::function<void(State&)>> refusals[] = {
      {"has no value for 2 parameters of the model: norm.weight, up.bias (did you mean 'up.bais'?)",
       [](State& s) {
         s["up.bais"] = s.at("up.bias");
         s.erase("up.bias");
         s.erase("norm.weight");
       }},
      {"the model has no parameter 'last.gain'", [](State& s) { s["last.gain"] = s["last.bias"]; }},
      {"'up.weight' is f32[16,32], but f32[32,16] in the model",
       [&](State& s) {
         s["up.weight"] = zeros({DType::kF32, {16, 32}});
       }},
      {"'up.bias' is i64[32], but f32[32] in the model",
       [&](State& s) {
         s["up.bias"] = zeros({DType::kI64, {32}});
       }},
      {"'positions.weight' is f32[4,16], but f32[6,16] in the model",
       [&](State& s) {
         s["positions.weight"] = zeros({DType::kF32, {4, 16}});
       }},
      {"'words.weight' and 'head.weight' are one tensor of the model, and have two values",
       [&](State& s) {
         s["head.weight"] = zeros({DType::kF32, {24, 16}});
       }}};
  for (const auto& [message, change] : refusals) {
    const Folder folder;
    const auto compiled = compile_with("language", changed_state(folder, change));
    ASSERT_FALSE(compiled) << message;
    EXPECT_TRUE(compiled.error().message.starts_with(message)) << compiled.error().message;
    EXPECT_TRUE(compiled.error().at.file.ends_with("state.safetensors"));
  }
}

// A tied name or a buffer may be missing, and floats of another type are converted.
TEST(InitialValues, ArriveUnderOneNameAndInOtherTypes) {
  const Folder folder;
  const auto changed =
      compile_with("language", changed_state(folder, [](auto& state) {
                     state.erase("words.weight");
                     state.erase("scale");
                     NamedTensor& bias = state.at("up.bias");
                     const auto* narrow = reinterpret_cast<const float*>(bias.data.data);
                     const std::vector<double> wide(narrow, narrow + num_elements(bias.type.shape));
                     bias.type.dtype = DType::kF64;
                     bias.data = Bytes::copy_of(wide.data(), wide.size() * sizeof(double));
                   }));
  ASSERT_TRUE(changed) << print_error(changed.error());
  const auto whole = compile_with("language", kInit + "language-state.safetensors");
  ASSERT_TRUE(whole) << print_error(whole.error());
  const std::string data = kInit + "language.safetensors";
  const auto a = train_on(changed->set, data, 2), b = train_on(whole->set, data, 2);
  ASSERT_TRUE(a && b);
  expect_equal_bits(*a, *b, "state");
}

}  // namespace
}  // namespace piper::parameters_test
