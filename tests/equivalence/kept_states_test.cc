// Scalar parameters and random numbers beside each optimizer, and each way in which ranks keep
// parameters and states: the plans train as those for one device, and wrong ones are refused.
#include "equivalence/numbers.h"
#include "equivalence/random_model.h"
#include "piper/plan/verify.h"

namespace piper::kept_states_test {
namespace {

using namespace jobs;

// Two layers; all but the bias are of one dim or two, and the factors are scalars.
class ScalarsModel : public ModelMaker {
 public:
  explicit ScalarsModel(bool draws) : ModelMaker(11) {
    input("x", {8});
    input("y", {8});
    std::string x = "x";
    for (const char* layer : {"first", "second"}) {
      scope_ = layer;
      const std::string product = made("MatMul", {x, parameter({8, 8}, 0, 0.6f)}),
                        sum = made("Add", {product, parameter({8}, 0, 0.3f)});
      x = made("Tanh", {made("Mul", {sum, parameter({}, 1, 0.3f)})});
      if (draws) x = made("Dropout", {x, number(0.25f), scalar(onnx::TensorProto::BOOL, 1)});
    }
    squares(made("Sub", {x, "y"}));
    finish_with_loss();
  }
};

Result<Compiled> compiled(const std::string& text, bool draws, bool oracles = true) {
  const Folder folder;
  CompileOptions options;
  options.model = folder.write("model.onnx", ScalarsModel(draws).bytes());
  options.strategy = folder.write("strategy.yaml", text);
  options.oracles = oracles;
  return compile(options);
}

const std::string kVectorsByAdamW =
    "muon: {lr: 0.02}}, groups: [{of: vectors, optimizer: {adamw: {lr: 1e-2, eps: 1e-6}}}], ema: "
    "{decay: 0.9";
const char* const kOptimizers[] = {"sgd: {lr: 0.05, momentum: 0.9}",
                                   "adam: {lr: 1e-2, eps: 1e-6}",
                                   "adamw: {lr: 1e-2, eps: 1e-6, states: [bf16, f32]}",
                                   "adagrad: {lr: 1e-2}",
                                   "onnx_adam: {lr: 1e-2}",
                                   "lion: {lr: 1e-3}}, ema: {decay: 0.9",
                                   "adafactor: {lr: 1e-2}",
                                   "adafactor: {lr: 1e-2}}, clip_norm: 1.0, ema: {decay: 0.9",
                                   kVectorsByAdamW.c_str()};

struct Way {
  const char *name, *head, *directives;
  bool cuts = false;  // what is added up, so that f64 is compared, to the last digits
};
constexpr const char* kDp = "mesh: {dp: 2}\n";
const Way kWays[] = {
    {"one", "", ""},
    {"microbatches", "", "  - split: {dim: batch, into: 2}\n"},
    {"versions", "weight_versions: 2\n", ""},
    {"versions_of_bf16", "weight_versions: 3\n", "  - precision: {compute: bf16}\n"},
    {"loss_scale", "", "  - precision: {compute: f16, loss_scale: dynamic}\n"},
    {"offload", "", "  - offload: {what: optimizer}\n"},
    {"replicas", kDp, "  - replicate: {over: dp}\n"},
    {"single_samples", "mesh: {dp: 4}\n",
     "  - split: {dim: batch, into: 2}\n  - replicate: {over: dp, shard: [optimizer]}\n"},
    {"zero1", kDp, "  - replicate: {over: dp, shard: [optimizer]}\n"},
    {"zero2", kDp,
     "  - split: {dim: batch, into: 2}\n"
     "  - replicate: {over: dp, bucket: 64B, shard: [optimizer, gradients]}\n"},
    {"zero3", kDp, "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n"},
    {"zero1_versions", "weight_versions: 2\nmesh: {dp: 2}\n",
     "  - replicate: {over: dp, shard: [optimizer]}\n"},
    {"zero3_versions", "weight_versions: 2\nmesh: {dp: 2}\n",
     "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n"},
    {"zero3_bf16", kDp,
     "  - precision: {compute: bf16}\n"
     "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n"},
    {"persist", kDp, "  - replicate: {over: dp, persist: 64B, shard: [optimizer]}\n"},
    {"int8", kDp,
     "  - replicate: {over: dp, shard: [optimizer], gather: {dtype: int8, lossy: true}}\n"},
    {"int8_zero3", kDp,
     "  - replicate: {over: dp, shard: [optimizer, gradients, parameters], gather: {dtype: int8, "
     "lossy: true}}\n"},
    {"offload_zero1", kDp,
     "  - offload: {what: optimizer}\n  - replicate: {over: dp, shard: [optimizer]}\n"},
    {"offload_parameters", kDp,
     "  - offload: {what: parameters}\n  - replicate: {over: dp, shard: [optimizer]}\n"},
    {"zero1_beside_columns", "mesh: {dp: 2, tp: 2}\n",
     "  - precision: {compute: f64}\n  - shard: {match: first/p1, dim: 1, over: tp}\n"
     "  - replicate: {over: dp, shard: [optimizer]}\n",
     true},
    {"zero3_beside_samples", "mesh: {dp: 2, ep: 2}\n",
     "  - precision: {compute: f64}\n  - split: {dim: batch, into: 2}\n"
     "  - shard: {input: \"*\", dim: 0, over: ep}\n"
     "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n",
     true},
};

std::string text_of(const Way& way, const std::string& optimizer) {
  std::string text = fmt::format("piper: 1\n{}train: {{global_batch: 8, optimizer: {{{}}}}}\n",
                                 way.head, optimizer);
  if (*way.directives) text += std::string("directives:\n") + way.directives;
  return text;
}

class KeptStates : public ::testing::TestWithParam<Way> {};

TEST_P(KeptStates, TrainAsOnOneDeviceWithEachOptimizer) {
  const Way& way = GetParam();
  size_t trained = 0;
  for (const char* optimizer : kOptimizers) {
    if (way.cuts && std::string_view(optimizer).find("states:") != std::string_view::npos)
      continue;  // f64 has no states of 16 bits
    for (const bool draws : {false, true}) {
      const std::string text = text_of(way, optimizer), what = draws ? text + "draws\n" : text;
      const auto made = compiled(text, draws);
      if (!made) {
        EXPECT_NE(made.error().message.find("not supported"), std::string::npos)
            << what << print_error(made.error());
        continue;
      }
      ++trained;
      const Trained got = train_on_numbers(made->set, what),
                    want = train_on_numbers(*made->single, what);
      if (way.cuts) {
        EXPECT_LT(largest_difference(got, want), 1e-9) << what;
      } else {
        expect_equal_bits(got, want, what);
      }
    }
  }
  EXPECT_GE(trained, 10u);
}

// Changes what all roles say of a state; returns whether some say it.
template <class Change>
bool change_state(PlanSet& set, const std::string& name, const Change& change) {
  bool changed = false;
  for (RoleProgram& role : set.roles)
    for (Tensor& tensor : role.tensors)
      if (tensor.name == name && tensor.kind == BufferKind::kState) change(tensor), changed = true;
  return changed;
}
bool is_proved(const PlanSet& set) {
  const auto report = verify_plan_set(set);
  return report && report->findings.empty();
}

// A part of a longer dim, or of a shorter one, is as long: only a checkpoint would show it.
TEST_P(KeptStates, AreOfTheWholeThatTheirParameterIs) {
  int tried = 0;
  for (const char* optimizer : kOptimizers) {
    const auto made = compiled(text_of(GetParam(), optimizer), false, false);
    if (!made) continue;
    const std::string what = text_of(GetParam(), optimizer);
    ASSERT_TRUE(is_proved(made->set)) << what;
    for (const Tensor& state : made->set.roles[0].tensors) {
      if (state.kind != BufferKind::kState || !state.init.empty() || state.whole.empty()) continue;
      for (size_t d = 0; d < state.whole.size(); ++d) {
        for (const int64_t more : {-1, 1}) {
          PlanSet wrong = made->set;
          change_state(wrong, state.name, [&](Tensor& tensor) {
            tensor.whole[d] += more;
            for (TensorCut& cut : tensor.cuts)
              if (cut.dim == static_cast<int32_t>(d) && cut.block == 0)
                cut.block = tensor.type.shape[d] / cut.outer;
          });
          if (!check_role(wrong.roles[0])) continue;
          EXPECT_FALSE(is_proved(wrong)) << what << state.name << " " << d << " " << more;
          ++tried;
        }
      }
    }
  }
  const std::string way = GetParam().name;
  EXPECT_TRUE(tried > 10 || !(way.starts_with("zero") || way == "int8")) << tried;
}

INSTANTIATE_TEST_SUITE_P(Ways, KeptStates, ::testing::ValuesIn(kWays),
                         [](const auto& info) { return info.param.name; });

// ---- Wrong plans --------------------------------------------------------------------------------

const Way& way_of(std::string_view name) {
  return *std::find_if(std::begin(kWays), std::end(kWays),
                       [&](const Way& way) { return way.name == name; });
}
void expect_refused(const Compiled& right, const PlanSet& wrong, const std::string& what) {
  const auto before = verify_plan_set(right.set, &*right.single),
             after = verify_plan_set(wrong, &*right.single);
  ASSERT_TRUE(before && before->findings.empty()) << what;
  EXPECT_FALSE(after && after->findings.empty()) << what;
}
// Calls change(role, instruction) for each of the set's bodies; returns how many it changed.
template <class Change>
int change_all(PlanSet& set, const Change& change) {
  int changed = 0;
  for (RoleProgram& role : set.roles)
    for (Instruction& one : role.body) changed += change(role, one);
  return changed;
}
int32_t buffer_named(const RoleProgram& role, std::string_view end, int32_t but = -1) {
  for (int32_t b = 0; b < std::ssize(role.buffers); ++b)
    if (b != but && role.tensor(b).kind == BufferKind::kState &&
        role.tensor(b).type.shape.empty() && role.name(b).ends_with(end))
      return b;
  return -1;
}

// Two scalars of one type change places.
bool exchanged(Instruction& one, int32_t a, int32_t b) {
  bool some = false;
  for (int32_t& arg : one.args)
    if (arg == a || arg == b) arg = arg == a ? b : a, some = true;
  return some;
}

TEST(KeptStatesControl, ScalarsOfOtherParametersAreRefused) {
  const std::pair<const char*, const char*> cases[] = {{"one", ".variance"},
                                                       {"versions", ".previous"},
                                                       {"loss_scale", ".variance"},
                                                       {"offload_parameters", "p2"}};
  for (const auto& [way, end] : cases) {
    const auto made = compiled(text_of(way_of(way), "adafactor: {lr: 1e-2}"), false);
    ASSERT_TRUE(made) << print_error(made.error());
    PlanSet wrong = made->set;
    const int changed = change_all(wrong, [&, end = end](RoleProgram& role, Instruction& one) {
      const int32_t first = buffer_named(role, end), second = buffer_named(role, end, first);
      return first >= 0 && second >= 0 && exchanged(one, first, second);
    });
    if (changed > 0) expect_refused(*made, wrong, fmt::format("{} {}", way, end));
  }
}
// The scale of the loss is no second moment, and what is copied is the parameter itself.
TEST(KeptStatesControl, ScalarsOfTheStepAndOfParametersAreNotTakenForEachOther) {
  const auto scaled = compiled(text_of(way_of("loss_scale"), "adafactor: {lr: 1e-2}"), false);
  ASSERT_TRUE(scaled) << print_error(scaled.error());
  PlanSet wrong = scaled->set;
  EXPECT_GT(change_all(wrong,
                       [](RoleProgram& role, Instruction& one) {
                         return exchanged(one, buffer_named(role, ".variance"),
                                          buffer_named(role, "loss_scale"));
                       }),
            0);
  expect_refused(*scaled, wrong, "loss scale");
  const auto versions = compiled(text_of(way_of("versions"), "sgd: {lr: 0.05}"), false);
  ASSERT_TRUE(versions) << print_error(versions.error());
  wrong = versions->set;
  EXPECT_GT(change_all(wrong,
                       [](RoleProgram& role, Instruction& one) {
                         if (one.kind != InstructionKind::kCopy ||
                             !role.tensor(one.args[1]).type.shape.empty())
                           return false;
                         for (int32_t b = 0; b < std::ssize(role.buffers); ++b)
                           if (b != one.args[0] && !role.tensor(b).param.empty() &&
                               role.tensor(b).type.shape.empty())
                             return one.args[0] = b, true;
                         return false;
                       }),
            0);
  expect_refused(*versions, wrong, "another parameter's version");
}

void exchange_names(PlanSet& set, const std::string& a, const std::string& b) {
  for (RoleProgram& role : set.roles)
    for (Tensor& tensor : role.tensors)
      if (tensor.name == a || tensor.name == b) tensor.name = tensor.name == a ? b : a;
}

// Checkpoints know states by their names: two that are called as each other are mixed up by a job
// that resumes, also where the plan for one device calls them so.
TEST(KeptStatesControl, StatesThatAreCalledAsOthersAreRefused) {
  const auto made =
      compiled(text_of(way_of("one"), "adamw: {lr: 1e-2, eps: 1e-6}}, ema: {decay: 0.9"), false);
  ASSERT_TRUE(made) << print_error(made.error());
  const auto is_refused = [&](const std::string& a, const std::string& b) {
    PlanSet set = made->set, single = *made->single;
    exchange_names(set, a, b);
    exchange_names(single, a, b);
    const auto found = verify_plan_set(set, &single);
    return !found || !found->findings.empty();
  };
  EXPECT_FALSE(is_refused("", ""));
  int tried = 0;
  const std::vector<Tensor>& tensors = made->single->roles[0].tensors;
  for (const Tensor& a : tensors)
    for (const Tensor& b : tensors) {
      const auto is_state = [](const Tensor& one) {
        return one.kind == BufferKind::kState && one.init.empty() &&
               (one.name.ends_with(".exp_avg") || one.name.ends_with(".exp_avg_sq") ||
                one.name.ends_with(".ema"));
      };
      if (a.name >= b.name || a.type != b.type || !is_state(a) || !is_state(b)) continue;
      EXPECT_TRUE(is_refused(a.name, b.name)) << a.name << " " << b.name;
      ++tried;
    }
  EXPECT_GT(tried, 20);
}

TEST(KeptStatesControl, NumbersOfOtherSamplesAreRefused) {
  for (const char* way : {"zero1", "single_samples", "offload_parameters"}) {
    const std::string what = way;
    const auto made = compiled(text_of(way_of(way), "adafactor: {lr: 1e-2}"), true);
    ASSERT_TRUE(made) << what << print_error(made.error());
    PlanSet same = made->set, others = made->set, rows = made->set, shards = made->set;
    EXPECT_GT(change_all(same,
                         [](RoleProgram&, Instruction& one) {
                           const bool numbers =
                               one.kind == InstructionKind::kInput && one.input.empty();
                           if (numbers)
                             std::fill(one.samples.stride.begin(), one.samples.stride.end(), 0);
                           return numbers;
                         }),
              0);
    expect_refused(*made, same, what + ": the samples of the first rank");
    EXPECT_NE(train_on_numbers(same, what).losses, train_on_numbers(made->set, what).losses);
    change_all(others, [](RoleProgram&, Instruction& one) {
      const bool numbers = one.kind == InstructionKind::kInput && one.input.empty();
      one.samples.first += numbers;
      return numbers;
    });
    expect_refused(*made, others, what + ": the samples after these");
    for (PlanSet* set : {&rows, &shards})
      for (RoleProgram& role : set->roles)
        for (Program& program : role.programs)
          for (ProgramOp& op : program.ops)
            if (op.op == "Dropout")
              op.attrs.set(set == &rows ? "rows" : "shards",
                           set == &rows ? int64_t{8} : int64_t{16});
    expect_refused(*made, rows, what + ": stretches");
    expect_refused(*made, shards, what + ": shards");
    const auto alone = verify_plan_set(rows);  // by rule layout
    EXPECT_FALSE(alone && alone->findings.empty()) << what;
  }
}

// What an optimizer looks at whole is not rounded to travel.
TEST(KeptStatesControl, RoundedDirectionsAreRefused) {
  for (const char* way : {"int8", "int8_zero3"}) {
    const auto made = compiled(text_of(way_of(way), "adafactor: {lr: 1e-2}"), false);
    ASSERT_TRUE(made) << print_error(made.error());
    const Instruction* rounded = nullptr;
    for (const Instruction& one : made->set.roles[0].body)
      if (one.scaled != Scaled::kNone) rounded = &one;
    ASSERT_NE(rounded, nullptr);
    PlanSet wrong = made->set;
    EXPECT_GT(
        change_all(wrong,
                   [&](RoleProgram&, Instruction& one) {
                     if (one.kind != InstructionKind::kAllGather || one.scaled != Scaled::kNone)
                       return false;
                     one.scaled = rounded->scaled, one.block = rounded->block;
                     return true;
                   }),
        0);
    expect_refused(*made, wrong, way);
  }
}

}  // namespace
}  // namespace piper::kept_states_test
