#include "equivalence/jobs.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "library_text.h"
#include "piper/base/float16.h"
#include "seed.h"

namespace piper::jobs {

std::string models_folder() {
  const char* folder = std::getenv("PIPER_MODELS");
  return folder ? folder : PIPER_SOURCE_DIR "/../shared/models";
}

std::string model_path(const std::string& model, const std::string& file) {
  return models_folder() + "/" + model + "/" + file;
}

std::string library_text(const std::string& file) {
  for (const char* folder : {"strategies", "tests/data/schedules"})
    if (const std::string path = fmt::format("{}/{}/{}.yaml", PIPER_SOURCE_DIR, folder, file);
        std::filesystem::exists(path))
      return StrategyText::read(path).text();
  return "";
}

std::vector<Definition> definitions_of(const std::string& text, const Shape2& shape) {
  std::vector<Definition> defines;
  const auto add = [&](const char* param, int64_t value) {
    if (text.find(fmt::format("${}", param)) != std::string::npos)
      defines.push_back({param, std::to_string(value)});
  };
  add("stages", shape.pp);
  add("dp", shape.dp);
  add("nodes", std::max<int64_t>(shape.dp / 2, 1));  // of two devices
  add("gpus", std::min<int64_t>(shape.dp, 2));
  add("microbatches", shape.mb);
  return defines;
}

std::string strategy_text(const std::string& model, const std::string& train) {
  std::string text = "piper: 1\ninclude: " PIPER_SOURCE_DIR "/strategies/ORDER.yaml\n";
  if (model == "gpt-logits")
    text += "loss: {cross_entropy: {logits: logits, labels: labels, ignore_index: -100}}\n";
  if (model == "bert-hf")  // which the file cannot tell: one name in its calls, the other in none
    text +=
        "parameters: [{tie: [model.cls.predictions.bias, model.cls.predictions.decoder.bias]}]\n";
  return text + "train: {global_batch: 8, " + train + "}\n";
}

Result<Compiled> compile_model(const std::string& model, std::string text, const Shape2& shape,
                               bool oracles, const std::vector<Definition>& more) {
  const Folder folder;
  text.replace(text.find("ORDER"), 5, shape.order);
  CompileOptions options;
  options.model = model_path(model, "model.onnx");
  options.strategy = folder.write("strategy.yaml", text);
  options.defines = definitions_of(library_text(shape.order), shape);
  for (const Definition& define : more) options.defines.push_back(define);
  options.oracles = oracles;
  return compile(options);
}

std::vector<std::string> library_files(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(PIPER_SOURCE_DIR "/strategies" + folder))
    if (entry.path().extension() == ".yaml") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string identifier(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

Result<Compiled> compile_text(const std::string& model, const std::string& text,
                              const std::string& train, CompileOptions options) {
  const Folder folder;
  options.model = model_path(model, "model.onnx");
  options.strategy =
      folder.write("strategy.yaml", text + fmt::format("train: {{global_batch: 8, {}}}\n", train));
  return compile(options);
}

Result<std::unique_ptr<BatchSource>> open_file(const PlanSet& set, const std::string& path) {
  PIPER_ASSIGN(const auto needs, data_needs(set));
  DataOptions options;
  options.sources = {path};
  return open_data(options, needs, set.roles[0].samples());
}

Result<std::unique_ptr<BatchSource>> open_batches(const PlanSet& set, const std::string& model) {
  return open_file(set, model_path(model, "reference.safetensors"));
}

std::string write_batches(const Folder& folder, const nlohmann::json& batches, int64_t samples) {
  std::vector<NamedTensor> tensors;
  for (size_t k = 0; k < batches.size(); ++k)
    for (const auto& [name, values] : batches[k].items()) {
      const bool is_index = name == "order";
      const auto reals = values.template get<std::vector<float>>();
      const std::vector<int64_t> indices(reals.begin(), reals.end());
      const auto each = static_cast<int64_t>(reals.size()) / samples;
      TensorType type{DType::kF32, {samples, each}};
      if (is_index) type = {DType::kI64, {samples}};
      if (each == 0) type.shape = {1, static_cast<int64_t>(reals.size())};  // all samples share it
      const void* data = reals.data();
      if (is_index) data = indices.data();
      tensors.push_back({fmt::format("batch/{}/{}", k, name), type,
                         Bytes::copy_of(data, static_cast<size_t>(type.bytes()))});
    }
  const std::string path = folder.path() + "/batches.safetensors";
  EXPECT_TRUE(write_safetensors(path, tensors, {}));
  return path;
}

double difference_from(const Trained& trained, const std::string& path, const std::string& prefix) {
  const auto file = read_safetensors(path);
  EXPECT_TRUE(file) << print_error(file.error());
  double worst = 0;
  const auto compare = [&](const double* got, const NamedTensor& want) {
    const auto* numbers = reinterpret_cast<const double*>(want.data.data);
    double most = 0.05, difference = 0;
    for (int64_t i = 0; i < num_elements(want.type.shape); ++i) {
      most = std::max(most, std::abs(numbers[i]));
      difference = std::max(difference, std::abs(got[i] - numbers[i]));
      if (std::isnan(got[i])) difference = INFINITY;
    }
    worst = std::max(worst, difference / most);
  };
  for (const NamedTensor& want : *file) {
    const std::string after = prefix + "after/";
    if (want.name == prefix + "losses") compare(trained.losses.data(), want);
    if (!want.name.starts_with(after)) continue;
    const auto got = trained.parameters.find(want.name.substr(after.size()));
    EXPECT_NE(got, trained.parameters.end()) << want.name;
    if (got == trained.parameters.end()) return INFINITY;
    EXPECT_EQ(got->second.type, want.type) << want.name;
    compare(reinterpret_cast<const double*>(got->second.data.data), want);
  }
  return worst;
}

Result<Trained> train_on(const PlanSet& set, const std::string& path, int64_t steps, int threads,
                         bool fuse) {
  PIPER_ASSIGN(const auto data, open_file(set, path));
  JobOptions options;
  options.steps = steps;
  options.threads = threads;
  options.fuse = fuse;
  PIPER_ASSIGN(JobResult job, run_job(set, data.get(), nullptr, nullptr, options));
  return trained_by(std::move(job));
}

Result<Trained> train(const PlanSet& set, const std::string& model, int64_t steps, int threads,
                      bool fuse) {
  return train_on(set, model_path(model, "reference.safetensors"), steps, threads, fuse);
}

Result<Trained> train_simulated(const PlanSet& set, const std::string& model, SimWorld& world,
                                int64_t steps) {
  PIPER_ASSIGN(const auto data, open_batches(set, model));
  PIPER_ASSIGN(JobResult job, run_simulated(set, data.get(), world, steps));
  return trained_by(std::move(job));
}

void expect_same_when_queued(const PlanSet& set, const BatchSource& data, const std::string& what) {
  static uint64_t seed = given_seed().value_or(1);
  constexpr int64_t kSmall = int64_t{1} << 20;
  const int64_t steps = 2 + set.roles[0].steps_ahead;  // with an update between two
  int64_t bytes = 0;
  for (const int32_t role : set.role_of_rank)
    bytes += set.roles[static_cast<size_t>(role)].arena_bytes;
  const int orders = given_seed() ? 20 : bytes < kSmall ? 3 : 2;
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  options.helper = HelperThread::kOff;
  auto job = run_job(set, &data, nullptr, nullptr, options);
  ASSERT_TRUE(job) << what << "\n" << print_error(job.error());
  const Trained want = trained_by(*std::move(job));
  if (std::ssize(want.losses) < steps) return;  // the job stopped where a drawn model diverged
  options.helper = HelperThread::kOn;
  auto helped = run_job(set, &data, nullptr, nullptr, options);
  ASSERT_TRUE(helped) << what << "\n" << print_error(helped.error());
  expect_equal_bits(trained_by(*std::move(helped)), want, what + "\nwith helpers");
  for (int k = 0; k < orders; ++k) {
    const std::string order = fmt::format("{}\nseed {}", what, seed);
    const auto world = make_sim_world(set.world(), seed++);
    auto queued = run_simulated(set, &data, *world, steps);
    ASSERT_TRUE(queued) << order << "\n" << print_error(queued.error());
    expect_equal_bits(trained_by(*std::move(queued)), want, order);
  }
}

void expect_same_when_queued(const PlanSet& set, const std::string& model,
                             const std::string& what) {
  const auto data = open_batches(set, model);
  ASSERT_TRUE(data) << print_error(data.error());
  expect_same_when_queued(set, **data, what);
}

// A number that is none is equal to itself.
bool same_bits(std::span<const double> a, std::span<const double> b) {
  return as_text(std::as_bytes(a)) == as_text(std::as_bytes(b));
}

void expect_equal_bits(const Trained& a, const Trained& b, const std::string& what) {
  ASSERT_TRUE(same_bits(a.losses, b.losses)) << what;
  ASSERT_TRUE(same_bits(a.norms, b.norms)) << what;
  ASSERT_EQ(a.parameters.size(), b.parameters.size()) << what;
  for (const auto& [name, tensor] : a.parameters) {
    const auto other = b.parameters.find(name);
    ASSERT_NE(other, b.parameters.end()) << what << " lacks " << name;
    ASSERT_TRUE(as_text(tensor.data.span()) == as_text(other->second.data.span()))
        << what << " differs in " << name;
  }
}

double largest_difference(const Trained& a, const Trained& b) {
  double worst = 0;
  for (const auto& [name, tensor] : a.parameters) {
    const NamedTensor& other = b.parameters.at(name);
    EXPECT_EQ(tensor.type, other.type) << name;
    const auto n = static_cast<size_t>(num_elements(tensor.type.shape));
    const DType dtype = tensor.type.dtype;
    if (!info(dtype).is_float) {
      if (as_text(tensor.data.span()) != as_text(other.data.span())) worst = INFINITY;
      continue;
    }
    const auto at = [&](const NamedTensor& t, size_t i) {
      return float_at(dtype, t.data.data + i * static_cast<size_t>(info(dtype).bytes));
    };
    double size = 0.05, difference = 0;
    for (size_t i = 0; i < n; ++i) {
      const double here = at(tensor, i), there = at(other, i);
      if (std::isfinite(there)) size = std::max(size, std::abs(there));
      // Constants may be infinite, or no numbers.
      if (here == there || (std::isnan(here) && std::isnan(there))) continue;
      const double apart = std::abs(here - there);
      difference = std::isnan(apart) ? INFINITY : std::max(difference, apart);
    }
    worst = std::isfinite(difference) ? std::max(worst, difference / size) : INFINITY;
  }
  return worst;
}

double tensor_error(const NamedTensor& got, const NamedTensor& want) {
  const bool is_f64 = got.type.dtype == DType::kF64;
  if ((!is_f64 && got.type.dtype != DType::kF32) || want.type.dtype != DType::kF32 ||
      got.type.shape != want.type.shape)
    return INFINITY;
  const auto n = static_cast<size_t>(num_elements(want.type.shape));
  const auto* a = reinterpret_cast<const float*>(got.data.data);
  const auto* wide = reinterpret_cast<const double*>(got.data.data);
  const auto* b = reinterpret_cast<const float*>(want.data.data);
  double difference = 0, size = 0.05;
  for (size_t i = 0; i < n; ++i) {
    const double own = is_f64 ? wide[i] : static_cast<double>(a[i]);
    difference = std::max(difference, std::abs(own - b[i]));
    if (std::isnan(own - b[i])) return INFINITY;
    size = std::max(size, std::abs(static_cast<double>(b[i])));
  }
  return difference / size;
}

std::map<std::string, NamedTensor> reference_tensors(const std::string& model) {
  std::map<std::string, NamedTensor> tensors;
  auto read = read_safetensors(model_path(model, "reference.safetensors"));
  if (read)
    for (NamedTensor& tensor : *read) tensors[tensor.name] = std::move(tensor);
  return tensors;
}

nlohmann::json reference_json(const std::string& model) {
  std::ifstream file(model_path(model, "reference.json"));
  return nlohmann::json::parse(file);
}

}  // namespace piper::jobs
