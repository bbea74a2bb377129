// Random models under random strategies: every bit as on one device with the same cut of the batch,
// and close to one device without a cut.
#include <cmath>

#include "equivalence/jobs.h"
#include "equivalence/random_model.h"
#include "mutation/plans.h"
#include "seed.h"

namespace piper {
namespace {

constexpr int64_t kSteps = 3;

uint64_t first_seed() { return given_seed().value_or(1); }

// Numbers that follow from the step, the input and the sample.
class Numbers : public BatchSource {
 public:
  explicit Numbers(std::vector<InputNeed> needs) : needs_(std::move(needs)) {}
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    const InputNeed& need = needs_[static_cast<size_t>(input)];  // in any order
    const Shape& shape = need.type.shape;
    const int64_t of_input = need.name[0];
    const int64_t width = num_elements(shape) / shape[0];
    auto* out = reinterpret_cast<float*>(to);
    for (int64_t s = first; s < first + count; ++s)
      for (int64_t i = 0; i < width; ++i)
        *out++ = static_cast<float>(
            std::sin(static_cast<double>((step * 64 + s) * 37 + of_input * 11 + i * 5)));
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }

 private:
  std::vector<InputNeed> needs_;
};

struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> parameters;
};

Result<Trained> train(const PlanSet& set) {
  PIPER_ASSIGN(auto needs, data_needs(set));
  const Numbers data(std::move(needs));
  JobOptions options;
  options.steps = kSteps;
  options.threads = 1;
  PIPER_ASSIGN(const JobResult job, run_job(set, &data, nullptr, nullptr, options));
  Trained trained;
  for (const StepMetrics& step : job.steps) trained.losses.push_back(step.loss.value_or(NAN));
  for (const NamedTensor& tensor : job.parameters) {
    const auto* from = reinterpret_cast<const float*>(tensor.data.data);
    trained.parameters[tensor.name].assign(from, from + tensor.data.size / sizeof(float));
  }
  return trained;
}

// Of numbers that have left their range, bits say nothing.
bool diverges(const Result<Trained>& run) {
  if (!run) return run.error().code == ExitCode::kNumeric;
  return std::any_of(run->losses.begin(), run->losses.end(),
                     [](double loss) { return !(loss < 1e6); });
}

// Largest difference, as a part of the largest element or 0.05.
double difference(const Trained& a, const Trained& b) {
  double worst = 0;
  for (const auto& [name, values] : a.parameters) {
    const std::vector<float>& others = b.parameters.at(name);
    double most = 0, size = 0.05;
    for (size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(values[i]) - others[i]));
      size = std::max(size, std::abs(static_cast<double>(values[i])));
    }
    worst = std::max(worst, most / size);
  }
  return worst;
}

struct Tried {
  bool refused = false;
  bool cuts = false;  // dims of tensors
  double uncut = 0;   // difference to the run without a cut
};

// Backwards out of microbatch order, in another on each device, where an order has them by
// themselves.
std::string with_other_sums(std::string text) {
  const std::string ascending = "        repeat M: B\n";
  const size_t at = text.find(ascending);
  if (at != text.npos)
    text.replace(at, ascending.size(),
                 "        for m in 0..M: B[mb = r % 2 == 0 ? M-1-m : (m + 1) % M]\n");
  return text;
}

// A schedule of the library with what replicas hold.
std::string composed_strategy(mutation::Random& random) {
  using namespace mutation;
  std::vector<std::string> schedules = jobs::library_files("/schedules");
  for (const char* other : {"pipedream", "pipedream-2bw"})  // other rules of training
    std::erase(schedules, other);
  size_t pp = 1 + pick(random, 4), mb = 1 + pick(random, 5);
  const size_t dp = 1 + pick(random, 2);
  const std::string schedule = schedules[pick(random, schedules.size())];
  if (schedule == "dualpipe" || schedule == "chimera") {
    pp = 2 * (1 + pick(random, 2));
    mb = 2 * pp;
  }
  const std::string memory =
      one_of<const char*>(random, {"ddp", "zeropp", "zero1", "zero2", "zero3", "hsdp", "hpz"});
  const bool has_nodes = memory[0] == 'h' || memory == "zeropp";
  const size_t nodes = has_nodes ? 1 + pick(random, 2) : 1;
  std::string params = fmt::format("stages: {}, microbatches: {}, recompute: {}", pp, mb,
                                   pick(random, 3) == 0 ? 1 : 0);
  params +=
      has_nodes ? fmt::format(", nodes: {}, gpus: {}", nodes, dp) : fmt::format(", dp: {}", dp);
  // The order of sums, so that bits can be compared.
  if (schedule == "looped-bfs") params += ", ascending: 1";
  std::string text = fmt::format(
      "piper: 1\ninclude: [{0}/schedules/{1}.yaml, {0}/memory/{2}.yaml, "
      "{0}/memory/recompute.yaml]\n"
      "params: {{{3}}}\n",
      PIPER_SOURCE_DIR "/strategies", schedule, memory, params);
  text += random_train(random, nodes * dp * mb * (1 + pick(random, 2)));
  const std::string more =
      random_recompute(random, pp) + random_precision(random) + random_fuse(random, pp, 1);
  return more.empty() ? text : text + "directives:\n" + more;
}

// With an axis more, which cuts some parameters, or the columns of the samples.
std::string with_axis(std::string text, mutation::Random& random, const RandomModel& model) {
  using namespace mutation;
  const auto size = static_cast<int64_t>(2 + pick(random, 2));
  const std::string axis = fmt::format("cut: {}", size), key = "mesh: {", head = "piper: 1\n";
  if (const size_t mesh = text.find(key); mesh == text.npos)
    text.insert(head.size(), key + axis + "}\n");
  else if (pick(random, 2))
    text.insert(mesh + key.size(), axis + ", ");
  else
    text.insert(text.find('}', mesh), ", " + axis);
  if (text.find("directives:") == text.npos) text += "directives:\n";
  if (pick(random, 4) == 0) return text + "  - shard: {input: x, dim: 1, over: cut}\n";
  const auto parameters = model.parameters();
  std::set<std::string> named;
  for (size_t tries = 2 + pick(random, 4); tries > 0; --tries) {
    const auto& [name, shape] = parameters[pick(random, parameters.size())];
    const size_t dim = shape.empty() ? 0 : pick(random, shape.size());
    if (shape.empty() || shape[dim] % size != 0 || !named.insert(name).second) continue;
    text += fmt::format("  - shard: {{match: {}, dim: {}, over: cut}}\n", name, dim);
  }
  return text;
}

// Computations on a stream of another name than messages.
std::string with_stream(std::string text) {
  if (text.find("directives:") == text.npos) text += "directives:\n";
  return text + "  - stream: {where: {kind: compute}, name: computing}\n";
}

// Some of the model's parameters keep their values.
std::string with_frozen(std::string text, mutation::Random& random, const RandomModel& model) {
  const auto parameters = model.parameters();
  std::set<std::string> names;
  for (size_t tries = 1 + mutation::pick(random, parameters.size()); tries > 0; --tries)
    names.insert(parameters[mutation::pick(random, parameters.size())].name);
  if (names.size() == parameters.size()) names.erase(names.begin());  // one is trained
  if (names.empty()) return text;
  return text + fmt::format("parameters: [{{freeze: [{}]}}]\n",
                            join(std::vector(names.begin(), names.end()), ", "));
}

// The strategy that counts, printed and read again, makes the same plans.
void expect_printed_alike(CompileOptions options, const PlanSet& plans, const std::string& what) {
  const Folder folder;
  const auto strategy = parse_strategy(options.strategy, options.defines);
  ASSERT_TRUE(strategy) << what;
  const std::string text = print_strategy(*strategy);
  options.strategy = folder.write("printed.yaml", text);
  options.oracles = false;
  const auto again = compile(options);
  ASSERT_TRUE(again) << what << print_error(again.error()) << text;
  EXPECT_TRUE(again->set.roles == plans.roles) << what << text;
  EXPECT_EQ(again->set.manifest.strategy_digest, plans.manifest.strategy_digest) << what << text;
}

Tried try_strategy(uint64_t seed, const RandomModel& model, const std::string& text) {
  const Folder folder;
  CompileOptions options;
  options.model = folder.write("model.onnx", model.bytes());
  options.strategy = folder.write("strategy.yaml", text);
  const std::string what = fmt::format("seed {}\n{}", seed, text);
  const auto compiled = compile(options);
  if (!compiled) {
    // A strategy may not fit its model; the verifier must not refuse what the compiler made.
    EXPECT_FALSE(compiled.error().message.starts_with("the plan was refused"))
        << what << print_error(compiled.error());
    if (given_seed()) std::printf("%s\n%s", what.c_str(), print_error(compiled.error()).c_str());
    return {true};
  }
  expect_printed_alike(options, compiled->set, what);
  const auto got = train(compiled->set), single = train(*compiled->single);
  const auto uncut = train(*compiled->uncut);
  if (diverges(uncut)) return {true};
  if (!got || !single || !uncut) {
    ADD_FAILURE() << what << print_error((!got ? got : !single ? single : uncut).error());
    return {};
  }
  if (seed % 8 == 0)
    jobs::expect_same_when_queued(compiled->set, Numbers(*data_needs(compiled->set)), what);
  // Sums over replicas in every microbatch, or over blocks of a dim, add the same numbers in
  // another order.
  const std::vector<RoleProgram>& roles = compiled->set.roles;
  const bool cuts = std::any_of(roles.begin(), roles.end(), cuts_dims);
  const bool same_order = !cuts && text.find("per_microbatch") == text.npos;
  if (same_order) {
    EXPECT_EQ(got->losses, single->losses) << what;
    EXPECT_TRUE(got->parameters == single->parameters) << what;
  }
  const double apart = difference(*got, *uncut);
  // Adam and Adagrad make whole steps of gradients that are zero but for rounding; 16 and 8 bits
  // round more.
  const auto has = [&](const char* word) { return text.find(word) != text.npos; };
  const bool magnifies = has("ada") || has("precision") || has("dtype") || has("zeropp");
  if (!magnifies) {
    EXPECT_LT(apart, 1e-3) << what;
  }
  return {false, cuts, apart};
}

Tried try_one(uint64_t seed) {
  mutation::Random random(seed);
  const RandomModel model(seed);
  std::string text =
      seed % 3 == 0 ? composed_strategy(random) : mutation::random_strategy(random, 1);
  if (seed % 2 == 0) text = with_other_sums(std::move(text));
  if (seed % 4 == 1) text = with_axis(std::move(text), random, model);
  if (seed % 7 == 3) text = with_stream(std::move(text));
  if (seed % 5 == 2) text = with_frozen(std::move(text), random, model);
  return try_strategy(seed, model, text);
}

// A norm of a weight has a guard, whose gradient is Where(mask, 0, term of a sum). The verifier
// follows blocks along dp, since this optimizer computes with whole matrices.
TEST(RandomStrategies, ZerosAreTermsOfSums) {
  constexpr uint64_t kSeed = 702052;
  const Tried tried = try_strategy(
      kSeed, RandomModel(kSeed),
      "piper: 1\nmesh: {dp: 3}\ntrain: {global_batch: 6, optimizer: {adafactor: {lr: 1e-2}}}\n"
      "directives:\n  - replicate: {over: dp, shard: [optimizer, gradients]}\n");
  EXPECT_FALSE(tried.refused);
}

// The norm reads blocks that are put together over one axis, of a gradient in parts over another,
// which an optimizer of whole matrices puts together, too.
TEST(RandomStrategies, NormsAreOfPartsBesideDirections) {
  constexpr uint64_t kSeed = 820249;
  const Tried tried = try_strategy(
      kSeed, RandomModel(kSeed),
      "piper: 1\nmesh: {cut: 2, dp: 2}\ntrain: {global_batch: 4, clip_norm: 0.1, optimizer: "
      "{adafactor: {lr: 1e-2}}}\ndirectives:\n"
      "  - replicate: {over: dp, shard: [optimizer, gradients, parameters]}\n"
      "  - precision: {compute: bf16, accumulate: f16}\n"
      "  - shard: {match: block.2.p11, dim: 0, over: cut}\n");
  EXPECT_FALSE(tried.refused);
}

TEST(RandomStrategies, EqualOneDevice) {
  const int wanted = given_count().value_or(kSanitized ? 40 : 250);
  int ran = 0, refused = 0, cuts = 0;
  double worst = 0;
  std::vector<double> differences;
  for (uint64_t seed = first_seed(); ran < wanted && refused < 2 * wanted && !HasFailure();
       ++seed) {
    const Tried tried = try_one(seed);
    refused += tried.refused;
    ran += !tried.refused;
    cuts += tried.cuts;
    if (!tried.refused) differences.push_back(tried.uncut);
    worst = std::max(worst, tried.uncut);
  }
  std::sort(differences.begin(), differences.end());
  std::printf(
      "seeds from %lu: %d strategies ran, %d of them cut dims, %d did not fit; uncut differs by "
      "%.1e, median %.1e\n",
      first_seed(), ran, cuts, refused, worst,
      differences.empty() ? 0 : differences[differences.size() / 2]);
  EXPECT_EQ(ran, wanted);
  EXPECT_GT(cuts, wanted / 20);
}

}  // namespace
}  // namespace piper
