// Operators that the importer writes out in others train as in PyTorch, whole and with their batch
// cut (tests/data/make_operators.py).
#include "equivalence/jobs.h"

namespace piper::written_out_test {
namespace {

using namespace jobs;

const std::string kFolder = PIPER_SOURCE_DIR "/tests/data/operators/";

Result<Trained> trained(const std::string& name, int dp, int microbatches, const char* loss) {
  const Folder folder;
  CompileOptions options;
  options.model = kFolder + name + ".onnx";
  options.strategy = folder.write(
      "strategy.yaml",
      fmt::format("piper: 1\ninclude: {}/strategies/ddp.yaml\n"
                  "params: {{dp: {}, microbatches: {}}}\nloss: {}\n"
                  "train: {{global_batch: 4, optimizer: {{sgd: {{lr: 0.1, momentum: 0.9}}}}}}\n",
                  PIPER_SOURCE_DIR, dp, microbatches, loss));
  options.oracles = false;
  PIPER_ASSIGN(const Compiled compiled, compile(options));
  return train_on(compiled.set, kFolder + name + ".safetensors", 3);
}

// Bags that begin where other samples end are trained whole.
std::vector<std::pair<int, int>> cuts_of(std::string_view name) {
  if (name == "uneven_bags") return {{1, 1}};
  return {{1, 1}, {2, 1}, {1, 4}, {2, 2}};
}

class WrittenOut : public ::testing::TestWithParam<const char*> {};

TEST_P(WrittenOut, TrainsAsInTorch) {
  const std::string reference = kFolder + GetParam() + ".safetensors";
  for (const auto& [dp, microbatches] : cuts_of(GetParam())) {
    const auto made = trained(GetParam(), dp, microbatches, "{mse: {output: out, target: target}}");
    ASSERT_TRUE(made) << print_error(made.error());
    EXPECT_LT(difference_from(*made, reference, ""), 1e-12) << dp << " " << microbatches;
  }
  const auto other =
      trained(GetParam(), 1, 1, "{mse: {output: out, target: target}, weight: 1.001}");
  ASSERT_TRUE(other) << print_error(other.error());
  EXPECT_GT(difference_from(*other, reference, ""), 1e-6);
}

TEST(WrittenOutBags, SayWhatIsNotSupported) {
  for (const auto& [name, what] : {std::pair("padded_bags", "padding_idx"),
                                   std::pair("bags_by_frequency", "scale_grad_by_freq")}) {
    const auto made = trained(name, 1, 1, "{mse: {output: out, target: target}}");
    ASSERT_FALSE(made) << name;
    EXPECT_TRUE(made.error().message.ends_with(
        fmt::format("embedding_bag with {} is not supported", what)))
        << made.error().message;
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, WrittenOut,
                         ::testing::Values("bags", "col2im", "det", "dft", "fake_quantised",
                                           "fused_attention", "grid_sample", "gru", "lstm", "rnn",
                                           "uneven_bags"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace piper::written_out_test
