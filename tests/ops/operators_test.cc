// formats/operators.md is what the tables say: PIPER_UPDATE_GOLDEN=1 writes it anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "piper/frontend/import.h"
#include "piper/frontend/patterns.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

constexpr int64_t kNewestOpset = 23;  // that the tests cover

std::string opsets(int64_t since, int64_t until) {
  if (until >= kNewestOpset) return fmt::format("{}–", since);
  return fmt::format("{}–{}", since, until);
}

std::string onnx_table() {
  struct Row {
    std::string opsets, note;
  };
  std::map<std::string, Row> rows;
  for (const SupportedOperator& op : supported_operators()) {
    Row& row = rows[op.op];
    row.opsets = row.opsets.empty() ? opsets(op.since, op.until)
                                    : opsets(op.since, op.until) + ", " + row.opsets;
    if (row.note.empty()) row.note = op.note;
  }
  rows["Loop"] = {"1–", "with a known number of turns, which stand one by one in its place"};
  rows["Scan"] = {"9–", "its turns one by one"};
  rows["If"] = {"1–", "with a known condition: the branch taken stands in its place"};
  std::string text = "| operator | opsets | |\n|---|---|---|\n";
  for (const auto& [op, row] : rows) {
    text += fmt::format("| `{}` | {} | {} |\n", op, row.opsets, row.note);
  }
  return text;
}

std::string own_list(bool differentiable) {
  std::vector<std::string> names;
  for (const OpDef* def : all_ops()) {
    if ((def->gradient != nullptr) == differentiable)
      names.push_back(fmt::format("`{}`", def->name));
  }
  return join(names, ", ") + ".\n";
}

std::string pattern_table() {
  std::string table = "| op | found in |\n|---|---|\n";
  for (const PatternForm& form : known_patterns())
    table += fmt::format("| `{}` | {} |\n", form.op, form.forms);
  return table;
}

std::string page() {
  return "# Operators\n\n"
         "Written by `operators_test` from the tables; `PIPER_UPDATE_GOLDEN=1 "
         "build/tests/operators_test` writes it anew.\n\n"
         "## Of ONNX\n\n"
         "Read from files of the opsets named, where 13 to 23 are tested. Functions of the model's "
         "own become their nodes. What is\n"
         "*known* is constant, or follows from shapes once the batch is bound. An operator that is "
         "not here is refused, together with\n"
         "all others that a file has, with how many nodes need it and where.\n\n" +
         onnx_table() +
         "\n## Slopes\n\n"
         "At a kink, a tie or the root of nothing an operator has the slope that PyTorch gives to "
         "the call it comes from, which the newer\n"
         "exporter notes: `clamp` passes a gradient at its bounds, `hardtanh` and `relu6` do not; "
         "`max(dim)` gives it to the first of equal\n"
         "elements, `amax` and `max` over all share it. Without calls, `Clip` to 0 and 6 is relu6 "
         "and any other is `clamp`; an extreme over\n"
         "one named dim is `max(dim)`, any other `amax`. Windows give it to their first greatest "
         "element, two equal operands of `Max` and\n"
         "`Min` half of it each. The root of a sum of squares has the slope 0 at 0, as norms and "
         "standard deviations have.\n" +
         "\n## Recognised patterns\n\n"
         "Groups of ops that become one, with its own gradient, in the order in which they are "
         "looked for. `piperc MODEL --describe` and\n"
         "`--explain` say how many a model has. A softmax of products of which no attention was "
         "made "
         "stores all its scores: both say\n"
         "`no attention:` with its name, the first thing that did not fit and the bytes of a step "
         "for "
         "each matrix of scores.\n\n" +
         pattern_table() +
         "\n## Of plans\n\n"
         "The closed set of ops, composites included. Collectives become instructions, and "
         "`StepSum` "
         "becomes additions; backends\n"
         "run all others, some of them as several ops. With a gradient:\n" +
         own_list(true) +
         "\nWithout: results are integers or booleans, or they are gradients and updates "
         "themselves:\n" +
         own_list(false);
}

TEST(Operators, ThePageIsWhatTheTablesSay) {
  const std::string path = std::string(PIPER_SOURCE_DIR) + "/formats/operators.md";
  if (std::getenv("PIPER_UPDATE_GOLDEN")) std::ofstream(path) << page();
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), page())
      << "PIPER_UPDATE_GOLDEN=1 build/tests/operators_test writes it anew";
}

// An operator that is read at all is read in all its versions. Some programs write a few before the
// opset that brought them.
TEST(Operators, AreReadInAllVersions) {
  std::map<std::string, std::vector<std::pair<int64_t, int64_t>>> read;
  for (const SupportedOperator& op : supported_operators())
    read[op.op].emplace_back(op.since, op.until);
  std::ifstream in(std::string(PIPER_SOURCE_DIR) + "/tests/data/operator_versions.txt");
  std::map<std::string, std::vector<int64_t>> versions;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (int64_t version = 0; words >> version;) versions[name].push_back(version);
  }
  ASSERT_FALSE(versions.empty());
  const std::set<std::string> deprecated{"Scatter", "Upsample"};
  const std::set<std::string> foreign{"SimplifiedLayerNormalization"};  // of onnxruntime
  for (const auto& [op, ranges] : read) {
    if (foreign.count(op) || op.find("::") != op.npos) continue;
    ASSERT_TRUE(versions.count(op)) << op;
    for (const int64_t version : versions[op]) {
      const bool taken = std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
        return range.first <= version && version <= range.second;
      });
      EXPECT_TRUE(taken || deprecated.count(op)) << op << " of opset " << version;
    }
  }
}

// What exporters of ordinary models write.
TEST(Operators, AllOrdinaryOnesAreRead) {
  constexpr std::string_view kOrdinary =
      "Abs Add And ArgMax Attention AveragePool BatchNormalization Cast CastLike Ceil Clip Concat "
      "Constant "
      "ConstantOfShape Conv ConvTranspose Cos CumSum Div Dropout Einsum Elu Equal Erf Exp Expand "
      "Flatten Floor "
      "Gather GatherElements GatherND Gelu Gemm GlobalAveragePool Greater GreaterOrEqual "
      "GroupNormalization "
      "HardSigmoid HardSwish Identity InstanceNormalization IsNaN LayerNormalization LeakyRelu "
      "Less LessOrEqual "
      "Log LogSoftmax MatMul Max MaxPool Min Mod Mul Neg NegativeLogLikelihoodLoss NonZero Not "
      "OneHot Or PRelu "
      "Pad Pow RMSNormalization RandomNormalLike Range Reciprocal ReduceL2 ReduceLogSumExp "
      "ReduceMax ReduceMean "
      "ReduceMin "
      "ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize RotaryEmbedding Round "
      "ScatterElements ScatterND "
      "SequenceAt Shape Sigmoid Sign Sin Slice Softmax SoftmaxCrossEntropyLoss Softplus Split "
      "SplitToSequence "
      "Sqrt Squeeze Sub Sum Swish Tanh Tile TopK Transpose Trilu Unsqueeze Where Xor";
  std::map<std::string, std::set<int64_t>> read;  // opsets, up to the newest one tested
  for (const SupportedOperator& op : supported_operators()) {
    for (int64_t v = std::max<int64_t>(op.since, 13); v <= std::min(op.until, kNewestOpset + 1);
         ++v) {
      read[op.op].insert(v);
    }
  }
  for (const std::string& op : split_text(kOrdinary, ' ')) {
    ASSERT_TRUE(read.count(op)) << op;
    const std::set<int64_t>& versions = read[op];  // none is left out in between
    EXPECT_EQ(*versions.rbegin(), kNewestOpset + 1) << op;
    EXPECT_EQ(static_cast<int64_t>(versions.size()), *versions.rbegin() - *versions.begin() + 1)
        << op;
  }
}

}  // namespace
}  // namespace piper
