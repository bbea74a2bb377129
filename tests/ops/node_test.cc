// Every backend node test of the ONNX project whose operator is claimed: imported, evaluated on the
// CPU backend, compared with the expected outputs. What is not run is named below with the reason.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>

#include "evaluate.h"
#include "node_cases.h"
#include "piper/frontend/import.h"

namespace piper {
namespace {

using test::data_of;
using test::dtype_of;
using test::import_model;
using test::NodeCase;
using test::type_of;

struct Skip {
  std::string_view pattern;  // a glob over names of cases, or "op NAME"
  std::string_view reason;
};

constexpr std::string_view kNotClaimed = "an operator that is not claimed";
constexpr std::string_view kRandom = "draws random numbers, other ones than numpy";
constexpr std::string_view kDynamic = "a shape or a number of turns that depends on the data";
constexpr std::string_view kFraction =
    "expects align_corners by a fractional size; PyTorch and onnxruntime use the actual one";
constexpr std::string_view kOptimizer = "an optimizer: a part of training_info, not of a graph";

constexpr Skip kSkips[] = {
    {"op BlackmanWindow", kNotClaimed},
    {"op HammingWindow", kNotClaimed},
    {"op HannWindow", kNotClaimed},
    {"op MaxUnpool", kNotClaimed},
    {"op MelWeightMatrix", kNotClaimed},
    {"op RoiAlign", kNotClaimed},
    {"op TfIdfVectorizer", kNotClaimed},
    {"op Bernoulli", kRandom},
    {"op RandomUniformLike", kRandom},
    {"test_training_dropout", kRandom},
    {"test_training_dropout_default*", kRandom},
    {"test_training_dropout_mask", kRandom},
    {"op NonMaxSuppression", kDynamic},
    {"op Scan", kDynamic},
    {"op Unique", kDynamic},
    {"op Adagrad", kOptimizer},
    {"op Adam", kOptimizer},
    {"op Momentum", kOptimizer},
    {"test_resize_downsample_scales_cubic_align_corners", kFraction},
    {"test_resize_downsample_scales_linear_align_corners", kFraction},
};

// Of the larger of an expected element and a tenth: ONNX itself allows 1e-3. The looser ones state
// their constants with few digits.
constexpr double kRelative = 1e-4, kAbsolute = 1e-5;
constexpr std::string_view kLoose[] = {"test_gridsample_bicubic", "test_*window_*expanded",
                                       "test_averagepool_2d_ceil_last_window_starts_on_pad"};

// 16-bit floats: two steps, for numpy rounds in between where we compute in f32.
double relative_of(DType type) {
  return type == DType::kBF16 ? 0x1p-6 : type == DType::kF16 ? 0x1p-9 : kRelative;
}

bool matches(std::string_view pattern, const std::string& name) {
  return Glob::parse(pattern, {})->match(name).has_value();
}

// ---- Types and data ---------------------------------------------------------------------------

// Element types that no graph of ours has.
std::string unsupported_types(const NodeCase& c) {
  if (!c.tensors_only) return "sequences or optional values as inputs or outputs";
  for (const auto* list : {&c.inputs, &c.outputs}) {
    for (const onnx::TensorProto& tensor : *list) {
      const std::optional<DType> dtype = dtype_of(tensor.data_type());
      if (!dtype) return "element types other than f32, f64, bf16, f16, i64, i32 and bool";
      if (test::is_narrow(tensor.data_type())) return "integers of 8 and 16 bits, held in i32";
    }
  }
  return {};
}

// ---- Running ----------------------------------------------------------------------------------

enum class Bake { kNothing, kIntegers, kAllButFirst, kAll };

// Inputs that are to be known at compile time (axes, shapes, bounds) become initializers.
onnx::ModelProto baked(const NodeCase& c, Bake bake) {
  onnx::ModelProto model = c.model;
  onnx::GraphProto& graph = *model.mutable_graph();
  std::vector<onnx::ValueInfoProto> kept;
  for (int i = 0; i < graph.input_size(); ++i) {
    const onnx::TensorProto& data = c.inputs[static_cast<size_t>(i)];
    const bool is_integer = !info(*dtype_of(data.data_type())).is_float;
    const bool constant = bake == Bake::kAll || (bake == Bake::kIntegers && is_integer) ||
                          (bake == Bake::kAllButFirst && i > 0);
    if (!constant) {
      kept.push_back(graph.input(i));
      continue;
    }
    onnx::TensorProto* made = graph.add_initializer();
    *made = data;
    made->set_name(graph.input(i).name());
  }
  graph.clear_input();
  for (size_t i = 0; i < kept.size(); ++i) *graph.add_input() = kept[i];
  return model;
}

// "" when the elements made and expected, of a type, are near enough.
using Compare =
    std::function<std::string(const std::vector<double>&, const std::vector<double>&, DType)>;

std::string compare_each(const std::vector<double>& a, const std::vector<double>& b,
                         double relative) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (std::abs(a[i] - b[i]) <= kAbsolute + relative * std::abs(b[i])) continue;
    return fmt::format("element {} is {} instead of {}", i, a[i], b[i]);
  }
  return {};
}

std::string evaluate_case(const NodeCase& c, const Imported& imported, const Compare& compare) {
  const Graph& graph = imported.graph;
  std::vector<Bytes> values(graph.values.size());
  for (int i = 0; i < c.model.graph().input_size(); ++i) {
    const ValueId id = graph.find_value(c.model.graph().input(i).name());
    if (!id.valid() || graph.value(id).kind != ValueKind::kInput) continue;
    values[id.index()] = data_of(c.inputs[static_cast<size_t>(i)], graph.value(id).type.dtype);
  }
  Result<std::vector<Bytes>> made = test::evaluate_bytes(graph, std::move(values));
  if (!made) return print_error(made.error());
  std::set<ValueId> named;  // a value that is two outputs has one of their names
  for (size_t i = 0; i < c.outputs.size(); ++i) {
    const ValueId id = graph.outputs[i];
    const std::string& name = c.model.graph().output(static_cast<int>(i)).name();
    const bool has_own = graph.value(id).kind == ValueKind::kInput || !named.insert(id).second;
    if (!has_own && graph.value(id).name != name)
      return fmt::format("output {} is called {} instead of {}", i, graph.value(id).name, name);
    const TensorType type = graph.value(id).type, wanted = type_of(c.outputs[i]);
    if (type != wanted)
      return fmt::format("output {}: {} instead of {}", i, to_string(type), to_string(wanted));
    const std::string text =
        compare(test::to_tensor(type, (*made)[id.index()]).values,
                test::to_tensor(type, data_of(c.outputs[i], type.dtype)).values, type.dtype);
    if (!text.empty()) return fmt::format("output {}: {}", i, text);
  }
  return {};
}

// "" when it passes.
std::string run_case(const NodeCase& c, const Compare& compare) {
  std::string problem;
  for (const Bake bake : {Bake::kNothing, Bake::kIntegers, Bake::kAllButFirst, Bake::kAll}) {
    const Result<Imported> imported = import_model(baked(c, bake));
    if (imported) return evaluate_case(c, *imported, compare);
    problem = print_error(imported.error());
  }
  return problem;
}

std::string run_case(const NodeCase& c) {
  const bool loose = std::any_of(std::begin(kLoose), std::end(kLoose),
                                 [&](std::string_view p) { return matches(p, c.name); });
  return run_case(c, [&](const std::vector<double>& a, const std::vector<double>& b, DType type) {
    return compare_each(a, b, loose ? 1e-3 : relative_of(type));
  });
}

// ---- Counting ---------------------------------------------------------------------------------

// The operator that the case is about: of a model of one node; "" for the written-out bodies of
// functions.
std::set<std::string> ops_of(const NodeCase& c) {
  std::set<std::string> ops;
  for (const onnx::NodeProto& node : c.model.graph().node()) ops.insert(node.op_type());
  return ops;
}

const Skip* skip_of(const NodeCase& c, const std::set<std::string>& ops) {
  for (const Skip& skip : kSkips) {
    if (skip.pattern.starts_with("op ") ? ops.count(std::string(skip.pattern.substr(3))) > 0
                                        : matches(skip.pattern, c.name)) {
      return &skip;
    }
  }
  return nullptr;
}

struct Tally {
  std::set<std::string> ops;  // that at least one passing case has
  int passed = 0;
  std::map<std::string, int> skipped;  // by reason
  std::set<std::string_view> used;     // patterns
};

void run_all(const std::vector<NodeCase>& cases, Tally& tally) {
  for (const NodeCase& c : cases) {
    if (const std::string types = unsupported_types(c); !types.empty()) {
      ++tally.skipped[types];
      continue;
    }
    const std::set<std::string> ops = ops_of(c);
    const Skip* skip = skip_of(c, ops);
    const std::string problem = run_case(c);
    if (skip) {
      ++tally.skipped[std::string(skip->reason)];
      tally.used.insert(skip->pattern);
      EXPECT_NE(problem, "") << c.name << " passes, but is listed: " << skip->reason;
      continue;
    }
    if (!problem.empty()) {
      ADD_FAILURE() << c.name << ": " << problem;
      continue;
    }
    ++tally.passed;
    tally.ops.insert(ops.begin(), ops.end());
  }
}

TEST(NodeTests, OnnxsOwnCasesPass) {
  Tally tally;
  const char* folder = std::getenv("PIPER_ONNX_NODE_TESTS");
  const auto old = test::folder_cases(folder ? folder : "/usr/share/libonnx-testdata/data/node");
  run_all(old, tally);
  const auto newer =
      test::packed_cases(std::string(PIPER_SOURCE_DIR) + "/tests/data/onnx_node_cases.gz");
  EXPECT_GT(newer.size(), 400u);
  run_all(newer, tally);
  int skipped = 0;
  for (const auto& [reason, count] : tally.skipped) {
    fmt::print("{:5} skipped: {}\n", count, reason);
    skipped += count;
  }
  fmt::print("{} operators, {} cases pass, {} skipped, {} in all\n", tally.ops.size(), tally.passed,
             skipped, old.size() + newer.size());
  if (old.empty()) GTEST_SKIP() << "no folder of node tests: install libonnx-testdata";
  EXPECT_GE(tally.ops.size(), 100u);
  for (const Skip& skip : kSkips) {
    EXPECT_TRUE(tally.used.count(skip.pattern)) << skip.pattern << " skips nothing";
  }
}

// What onnxruntime makes of its own operators, and of some of ONNX's by itself
// (tests/data/make_onnxruntime_cases.py).
TEST(NodeTests, OnnxruntimesCasesPass) {
  const auto cases =
      test::packed_cases(std::string(PIPER_SOURCE_DIR) + "/tests/data/onnxruntime_cases.gz");
  EXPECT_GT(cases.size(), 100u);
  for (const NodeCase& c : cases) EXPECT_EQ(run_case(c), "") << c.name;
}

// Cases of the same form that somebody else made, all of which must pass:
// tests/fuzz/against-onnxruntime.
TEST(NodeTests, CasesOfAnotherFolderPass) {
  const char* folder = std::getenv("PIPER_ONNX_CASES");
  if (!folder) GTEST_SKIP() << "PIPER_ONNX_CASES names no folder";
  const auto cases = test::folder_cases(folder);
  ASSERT_FALSE(cases.empty());
  size_t passed = 0;
  double worst = 0;
  for (const NodeCase& c : cases) {
    const std::string problem =
        run_case(c, [&](const std::vector<double>& a, const std::vector<double>& b, DType) {
          double size = 1e-2, most = 0;
          for (size_t i = 0; i < a.size(); ++i) {
            size = std::max(size, std::abs(b[i]));
            most = std::max(most, std::isfinite(a[i]) ? std::abs(a[i] - b[i]) : 1e9);
          }
          worst = std::max(worst, most / size);
          return most / size <= 1e-4
                     ? ""
                     : fmt::format("differs by {:.3g} of the largest element", most / size);
        });
    if (problem.empty()) ++passed;
    EXPECT_EQ(problem, "") << c.name;
  }
  fmt::print("{} of {} cases pass; the largest difference is {:.2g} of the largest element\n",
             passed, cases.size(), worst);
}

}  // namespace
}  // namespace piper
