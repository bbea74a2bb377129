// Every strategy of the library trains a small model on the faked libraries, ranks sharing a device
// and over NCCL: what one device trains, bit for bit where only the batch is cut, else within
// rounding, in several of the orders that are legal; and what the CPU trains.
#include <dlfcn.h>

#include <cmath>

#include "equivalence/jobs.h"
#include "over_nccl.h"
#include "piper/devices/cuda.h"
#include "seed.h"
#include "tiny_models.h"

namespace piper::strategies_on_fakes_test {
namespace {

using namespace jobs;

constexpr int64_t kSteps = 3, kSamples = 8;  // the third step is one graph, if it may
constexpr const char* kTrain =
    "train: {global_batch: 8, optimizer: {adamw: {lr: 3e-3, eps: 1e-3}}, clip_norm: 1.0}\n";

// ---- Data ---------------------------------------------------------------------------------------

// Numbers of classes that follow from their places.
class Tokens final : public BatchSource {
 public:
  explicit Tokens(std::vector<InputNeed> needs) : needs_(std::move(needs)) {}
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    const InputNeed& need = needs_[static_cast<size_t>(input)];
    const Shape& shape = need.type.shape;
    const int64_t each = num_elements(shape) / shape[0];
    for (int64_t i = 0; i < count * each; ++i) {
      const int64_t place = (step * kSamples + first) * each + i;
      const int64_t token = (place * place + 3 * place + need.name[0]) % TinyGpt::kClasses;
      std::memcpy(to + i * info(DType::kI64).bytes, &token, sizeof token);
    }
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }

 private:
  std::vector<InputNeed> needs_;
};

// ---- Running ------------------------------------------------------------------------------------

JobOptions options_for(const std::string& backend, bool graphs = true) {
  JobOptions options;
  options.steps = kSteps;
  options.backend = backend;
  options.threads = 1;
  options.graphs = graphs;
  return options;
}
// Ranks as threads of one process; on cuda they share a device.
Result<Trained> train_here(const PlanSet& set, const JobOptions& options) {
  PIPER_ASSIGN(auto needs, data_needs(set));
  const Tokens data(std::move(needs));
  PIPER_ASSIGN(JobResult job, run_job(set, &data, nullptr, nullptr, options));
  return trained_by(std::move(job));
}
// Each rank as a process of its own would run it, over NCCL.
Result<Trained> train_over_nccl(const PlanSet& set, bool graphs) {
  PIPER_ASSIGN(auto needs, data_needs(set));
  const Tokens data(std::move(needs));
  std::vector<Result<JobResult>> results =
      run_over_nccl(set, data, options_for("cuda", graphs), 60);
  for (const auto& result : results)
    if (!result) return result.error();
  return trained_by(*std::move(results[0]));
}

// The next order in which the faked device does what may be done.
uint64_t draw_order() {
  static const auto seed_device = reinterpret_cast<void (*)(uint64_t)>(
      dlsym(dlopen(PIPER_FAKE_CUDA "/nccl/libcuda.so.1", RTLD_NOW), "fake_cuda_seed"));
  static uint64_t seed = given_seed().value_or(1);
  seed_device(++seed);
  return seed;
}

// Calls of the faked libraries whose names begin so.
int64_t calls_of(const char* name) {
  static const auto calls = reinterpret_cast<int64_t (*)(const char*)>(
      dlsym(dlopen(PIPER_FAKE_CUDA "/nccl/libcuda.so.1", RTLD_NOW), "fake_cuda_calls"));
  return calls(name);
}

// Compiles what ranks of these sets take for the faked device, as piper-run --compile-only does.
Result<CudaCompiled> compile_ahead(std::initializer_list<const PlanSet*> sets) {
  const std::string architecture = "sm_90";
  PIPER_ASSIGN(CudaCompiler compiler, CudaCompiler::open({&architecture, 1}, nullptr));
  for (const PlanSet* const set : sets)
    PIPER_TRY(load_ranks(
        *set, [&] { return Result<std::unique_ptr<Backend>>(compiler.make_backend()); }));
  PIPER_ASSIGN(const std::vector<CudaCompiled> all, compiler.compile());
  return all.at(0);
}

// ---- Cases --------------------------------------------------------------------------------------

struct Case {
  std::string name;
  std::vector<std::string> files;  // of strategies/
  std::string params;
  enum Equal : uint8_t { kBits, kNear } equal = kBits;  // to the plan of one device
  double bound = 1e-4;                                  // to that and to the CPU
  TinyGpt::Kind model = TinyGpt::kPlain;
  std::string more = {};
  size_t number = 0;
};
std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

bool has(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}
std::string schedule_params(const std::string& schedule) {
  const bool both_ways = schedule == "dualpipe" || schedule == "dualpipev" || schedule == "chimera";
  return fmt::format("stages: 2, microbatches: {}", both_ways ? 4 : 2);
}

// Complete files, of two stages and two replicas, or of two replicas.
void add_complete(std::vector<Case>& cases) {
  for (const std::string& file : library_files()) {
    const std::string text = library_text(file);
    std::vector<std::string> params;
    if (has(text, "$stages")) params.push_back(schedule_params(file));
    if (!has(text, "$stages") && has(text, "$microbatches")) params.push_back("microbatches: 2");
    if (has(text, "$dp")) params.push_back("dp: 2");
    if (has(text, "$nodes")) params.push_back("nodes: 2, gpus: 2");
    if (file.starts_with("zero") || file == "hsdp") params[0] = "stages: 1, microbatches: 2";
    if (has(text, "bucket_kib")) params.push_back("bucket_kib: 1");
    cases.push_back({identifier(file), {file}, join(params, ", ")});
  }
}
// Each schedule with something else that replicas hold, do again, or wait for.
void add_halves(std::vector<Case>& cases) {
  const std::vector<std::string> memories{"zero1", "zero2", "zero3", "hsdp", "ddp"};
  size_t next = 0;
  for (const std::string& schedule : library_files("/schedules")) {
    const bool two_versions = schedule.starts_with("pipedream");
    const std::string memory = two_versions ? "zero1" : memories[next++ % memories.size()];
    Case one{identifier(schedule + "_with_" + memory),
             {"schedules/" + schedule, "memory/" + memory},
             schedule_params(schedule) + (memory == "hsdp" ? ", nodes: 1, gpus: 2" : ", dp: 2")};
    // What goes to the host must have the time to.
    const bool waits = next % 2 == 1 && schedule != "1f1b" && schedule != "gpipe";
    if (!two_versions) {
      one.files.emplace_back(waits ? "memory/offload" : "memory/recompute");
      one.name += waits ? "_offloaded" : "_again";
    }
    cases.push_back(one);
  }
  cases.push_back({"layers_again",
                   {"schedules/1f1b", "memory/zero3", "memory/recompute-by-layer"},
                   "stages: 1, dp: 2, microbatches: 2"});
  cases.push_back({"within_a_budget",
                   {"schedules/1f1b", "memory/zero1", "memory/recompute-by-budget"},
                   "stages: 2, dp: 2, microbatches: 2, keep: 1"});
  cases.push_back({"optimizer_on_the_host",
                   {"schedules/gpipe", "memory/zero1", "memory/offload"},
                   "stages: 2, dp: 2, microbatches: 2, what: optimizer"});
}
// Entries of replicas that cut again what another one leaves, and that speak of some parameters.
void add_entries(std::vector<Case>& cases) {
  const std::string params = "stages: 1, microbatches: 2, bucket_kib: 1, ";
  for (const auto& [file, sizes] : {std::pair("hpz", "nodes: 2, gpus: 2"),
                                    {"zeropp", "nodes: 2, gpus: 2"},
                                    {"by-state", "racks: 2, nodes: 1, gpus: 2"},
                                    {"by-parameter", "dp: 2"}})
    cases.push_back({identifier(std::string("entries_") + file),
                     {"schedules/1f1b", std::string("memory/") + file},
                     params + sizes});
}
// Up to eight devices: of schedules that have a stage for each layer, some; given a seed, all.
void add_wide(std::vector<Case>& cases) {
  constexpr const char *kAlways[] = {"chimera", "dualpipe"},
                       *kSeeded[] = {"1f1b", "gpipe", "pipedream-2bw", "zb-h1", "zb-h2"};
  std::vector<std::string> schedules(std::begin(kAlways), std::end(kAlways));
  if (given_seed()) schedules.insert(schedules.end(), std::begin(kSeeded), std::end(kSeeded));
  for (const std::string& schedule : schedules)
    cases.push_back({identifier("four_stages_" + schedule),
                     {"schedules/" + schedule, "memory/ddp"},
                     schedule == "dualpipe" ? "stages: 4, dp: 1, microbatches: 8"
                                            : "stages: 4, dp: 2, microbatches: 4"});
  cases.push_back(
      {"eight_replicas", {"schedules/gpipe", "memory/zero2"}, "stages: 1, dp: 8, microbatches: 1"});
  cases.push_back({"sums_by_need",
                   {"items/sums-by-need"},
                   "dp: 2, layers: 2, microbatches: 2, bucket_kib: 1, credit_kib: 2"});
  cases.push_back({"dear", {"items/dear"}, "dp: 2, layers: 2, microbatches: 2, bucket_kib: 1"});
}
void add_axes(std::vector<Case>& cases) {
  const std::string two = "stages: 1, dp: 1, microbatches: 2, ";
  for (const std::string& file : library_files("/tensor"))
    cases.push_back({identifier("tensor_" + file),
                     {"schedules/1f1b", "memory/ddp", "tensor/" + file},
                     two + "tp: 2",
                     Case::kNear,
                     1e-4,
                     TinyGpt::kDense});
  for (const std::string& file : library_files("/context"))
    cases.push_back({identifier("context_" + file),
                     {"schedules/1f1b", "memory/ddp", "context/" + file},
                     two + "cp: 2",
                     Case::kNear,
                     1e-4,
                     TinyGpt::kDense});
  cases.push_back({"experts",
                   {"schedules/1f1b", "memory/ddp", "experts/experts"},
                   two + "ep: 2",
                   Case::kNear,
                   1e-4,
                   TinyGpt::kExperts});
  for (const std::string& file : library_files("/meshes")) {
    const std::string text = library_text("meshes/" + file);
    std::vector<std::string> params{schedule_params(has(file, "dualpipe") ? "dualpipe" : "1f1b")};
    if (has(text, "$tp")) params.push_back("tp: 2");
    if (has(text, "$ep")) params.push_back("ep: 2");
    const bool has_experts = has(text, "/experts/");
    if (!has(text, "$ep") || has(file, "gshard")) params.push_back("dp: 2");
    cases.push_back({identifier("mesh_" + file),
                     {"meshes/" + file},
                     join(params, ", "),
                     Case::kNear,
                     1e-4,
                     has_experts ? TinyGpt::kExperts : TinyGpt::kDense});
  }
}
// With an outer update between the second step and the third.
void add_sites(std::vector<Case>& cases) {
  const std::string sites = ", microbatches: 2, sites: 2, every: 2, bucket_kib: 1";
  cases.push_back({"sites", {"schedules/gpipe", "sites/diloco"}, "stages: 1" + sites});
  cases.push_back({"fragments",
                   {"schedules/1f1b", "sites/fragments"},
                   "stages: 2, first: \"h/0/**\"" + sites});
  cases.push_back({"delayed_fragments",
                   {"schedules/1f1b", "sites/fragments"},
                   "stages: 2, first: \"h/0/**\", delay: 1, mix: 0.5" + sites});
  cases.push_back({"sites_of_stages",
                   {"schedules/1f1b", "memory/ddp", "sites/diloco"},
                   "stages: 2, dp: 1" + sites});
  cases.push_back({"sites_in_8_bits",
                   {"schedules/1f1b", "sites/diloco"},
                   "stages: 2, wire: int8" + sites,
                   Case::kBits,
                   2e-2});
  cases.push_back({"sites_of_replicas",
                   {"schedules/1f1b", "memory/zero2", "numerics/bf16", "sites/diloco"},
                   "stages: 1, dp: 2" + sites,
                   Case::kBits,
                   2e-2});
}
void add_numerics(std::vector<Case>& cases) {
  for (const std::string& file : library_files("/numerics")) {
    if (file == "f32") continue;  // is for models that are stored in 16 bits, and refused here
    cases.push_back({identifier("numerics_" + file),
                     {"schedules/zb-h1", "memory/zero3", "numerics/" + file},
                     "stages: 2, dp: 2, microbatches: 2, bucket_kib: 1",
                     Case::kBits,
                     has(file, "16") || file == "sends" ? 2e-2
                     : has(file, "64")                  ? 1e-12
                                                        : 1e-4});
  }
  // Kernels of another type for all, which take longest to compile.
  if (!given_seed()) return;
  for (const char* const file : {"tensor/sequence", "context/ring"})
    cases.push_back({identifier("f64_" + std::string(file).substr(8)),
                     {"schedules/1f1b", "memory/zero1", file, "numerics/f64"},
                     "stages: 1, dp: 2, microbatches: 2, tp: 2, cp: 2",
                     Case::kNear,
                     1e-11,
                     TinyGpt::kDense});
}
std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_complete(cases);
  add_halves(cases);
  add_entries(cases);
  add_wide(cases);
  add_axes(cases);
  add_numerics(cases);
  add_sites(cases);
  for (size_t k = 0; k < cases.size(); ++k) cases[k].number = k;
  return cases;
}

Result<Compiled> compile_case(const Case& one, const Folder& folder) {
  std::vector<std::string> files;
  for (const std::string& file : one.files)
    files.push_back(fmt::format("{}/strategies/{}.yaml", PIPER_SOURCE_DIR, file));
  // Those that no file has are left out.
  std::vector<std::string> params;
  std::string texts;
  for (const std::string& file : one.files) texts += library_text(file);
  for (const std::string& param : split_text(one.params, ','))
    if (const size_t at = param.find_first_not_of(' ');
        has(texts, param.substr(at, param.find(':') - at) + ":"))
      params.push_back(param);
  const std::string text = fmt::format("piper: 1\ninclude: [{}]\nparams: {{{}}}\n{}{}",
                                       join(files, ", "), join(params, ","), kTrain, one.more);
  // A stage holds at least one; schedules with several stages for each device have four.
  const bool has_chunks = has(texts, "stages * chunks") || has(texts, "* stages}") ||
                          has(texts, "* waves") || has(one.params, "stages: 4");
  const int64_t layers = has_chunks ? 4 : 2;
  return compile({.model = folder.write("model.onnx", TinyGpt(one.model, layers).bytes()),
                  .strategy = folder.write("strategy.yaml", text),
                  .target = "cuda"});
}

void expect_near(const Trained& got, const Trained& want, double bound, const char* what) {
  SCOPED_TRACE(what);
  ASSERT_EQ(got.losses.size(), want.losses.size());
  for (size_t k = 0; k < want.losses.size(); ++k) {
    EXPECT_NEAR(got.losses[k], want.losses[k], bound) << "step " << k;
    EXPECT_NEAR(got.norms[k], want.norms[k], 10 * bound) << "step " << k;
  }
  EXPECT_LE(largest_difference(got, want), 10 * bound);
}

class OnFakes : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const Folder cache;
    setenv("PIPER_CUDA_PATH", PIPER_FAKE_CUDA "/nccl", 1);
    setenv("XDG_CACHE_HOME", cache.path().c_str(), 1);
    setenv("FAKE_NVRTC_PLAIN", "1", 1);
    setenv("FAKE_CUDA_DEVICES", "8", 1);
  }
};

class StrategiesOnFakes : public OnFakes, public ::testing::WithParamInterface<Case> {};

TEST_P(StrategiesOnFakes, TrainWhatOneDeviceTrains) {
  const Case& one = GetParam();
  const Folder folder;
  const auto compiled = compile_case(one, folder);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& reference = one.equal == Case::kBits ? *compiled->single : *compiled->uncut;
  const auto ahead = compile_ahead({&compiled->set, &reference});
  ASSERT_TRUE(ahead) << print_error(ahead.error());
  EXPECT_GT(ahead->programs, 0u);
  const int64_t compiled_ahead = calls_of("nvrtcCompileProgram");
  const auto single = train_here(reference, options_for("cuda"));
  ASSERT_TRUE(single) << print_error(single.error());
  const auto compare = [&](const Result<Trained>& trained, const char* what) {
    ASSERT_TRUE(trained) << what << print_error(trained.error());
    if (one.equal == Case::kBits)
      expect_equal_bits(*trained, *single, what);
    else
      expect_near(*trained, *single, one.bound, what);
  };
  // Given a seed, all of it in three orders. Else every fourth case trains on one device in another
  // order, every second one shares a device, and over NCCL complete files that are only cut train
  // with graphs and without, of the others every second one.
  const bool has_all = given_seed().has_value(), is_even = one.number % 2 == 0,
             has_both = has_all || (one.equal == Case::kBits && one.files.size() == 1);
  if (has_all || one.number % 4 == 1) {
    SCOPED_TRACE(fmt::format("order PIPER_SEED={}", draw_order()));
    const auto again = train_here(reference, options_for("cuda", /*graphs=*/false));
    ASSERT_TRUE(again) << print_error(again.error());
    expect_equal_bits(*again, *single, "one device without graphs");
  }
  for (int orders = has_all ? 3 : is_even ? 1 : 0; orders > 0; --orders) {
    SCOPED_TRACE(fmt::format("order PIPER_SEED={}", draw_order()));
    compare(train_here(compiled->set, options_for("cuda")), "ranks that share a device");
  }
  for (int orders = has_all ? 3 : 1; orders > 0; --orders)
    for (const bool graphs : {false, true}) {
      if (!has_both && graphs == is_even) continue;
      SCOPED_TRACE(fmt::format("order PIPER_SEED={}, graphs {}", draw_order(), graphs));
      compare(train_over_nccl(compiled->set, graphs), "a device for each rank");
    }
  EXPECT_EQ(calls_of("nvrtcCompileProgram"), compiled_ahead) << "a run compiles something, too";
  const auto on_cpu = train_here(reference, options_for("cpu"));
  ASSERT_TRUE(on_cpu) << print_error(on_cpu.error());
  expect_near(*single, *on_cpu, one.bound, "on the CPU");
}
INSTANTIATE_TEST_SUITE_P(Library, StrategiesOnFakes, ::testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

// The control: what is wrong is found.
class ControlOnFakes : public OnFakes {};

TEST_F(ControlOnFakes, WaitsThatAreLeftOutAreFound) {
  const Folder folder;
  auto compiled = compile_case({"control",
                                {"schedules/gpipe", "memory/zero3"},
                                "stages: 1, dp: 2, microbatches: 2, "
                                "bucket_kib: 1"},
                               folder);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto single = train_here(*compiled->single, options_for("cuda"));
  ASSERT_TRUE(single) << print_error(single.error());
  size_t left_out = 0;
  for (RoleProgram& role : compiled->set.roles)
    for (Instruction& each : role.body) {
      left_out += each.waits.size();
      each.waits.clear();
    }
  ASSERT_GT(left_out, 0u);
  bool is_found = false;
  for (int orders = 0; orders < 8 && !is_found; ++orders) {
    draw_order();
    const auto wrong = train_here(compiled->set, options_for("cuda"));
    is_found = !wrong || wrong->losses != single->losses;
  }
  EXPECT_TRUE(is_found) << left_out << " waits";
}

TEST_F(ControlOnFakes, AnotherOperandIsFound) {
  const Folder folder;
  auto compiled = compile_case(all_cases()[0], folder);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const auto single = train_here(*compiled->single, options_for("cuda"));
  ASSERT_TRUE(single) << print_error(single.error());
  const auto same_type = [](const RoleProgram& role, int32_t a, int32_t b) {
    const auto type = [&](int32_t v) {
      return role.tensors[static_cast<size_t>(role.buffers[static_cast<size_t>(v)].tensor)].type;
    };
    return a != b && type(a) == type(b);
  };
  size_t changed = 0;
  for (RoleProgram& role : compiled->set.roles) {
    for (Instruction& each : role.body) {
      if (each.kind != InstructionKind::kCompute || each.pass != TaskPass::kF || changed > 0)
        continue;
      for (size_t a = 0; a + 1 < each.args.size() && changed == 0; ++a)
        for (size_t b = a + 1; b < each.args.size() && changed == 0; ++b)
          if (same_type(role, each.args[a], each.args[b])) {
            std::swap(each.args[a], each.args[b]);
            ++changed;
          }
    }
  }
  ASSERT_EQ(changed, 1u);
  const auto wrong = train_here(compiled->set, options_for("cuda"));
  EXPECT_TRUE(!wrong || wrong->losses != single->losses);
}

// No file of the library is left out.
TEST(StrategiesOnFakesCases, AreAllFilesOfTheLibrary) {
  std::set<std::string> left;
  for (const char* const folder :
       {"", "context", "experts", "memory", "meshes", "numerics", "schedules", "tensor"})
    for (const std::string& file : library_files(std::string("/") + folder))
      left.insert((std::string(folder).empty() ? "" : std::string(folder) + "/") + file);
  for (const Case& one : all_cases())
    for (const std::string& file : one.files) left.erase(file);
  EXPECT_EQ(left, std::set<std::string>{"numerics/f32"});
}

}  // namespace
}  // namespace piper::strategies_on_fakes_test
