// Measures which algorithm of a product takes the least time on the device of this machine, for a
// table.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "compile.h"
#include "piper/devices/cuda.h"
#include "tune_operands.h"
#include "wanted.h"

namespace piper {
namespace {

using namespace cuda;  // NOLINT: this room's own
using cuda::to_string;

constexpr int kOffers = 16;        // of the library's heuristics
constexpr size_t kVaried = 2;      // of the fastest of them, of which variations are tried
constexpr int kTurns = 5;          // of which the median counts
constexpr double kTurnMs = 1;      // at least, of as many calls as that takes
constexpr int kMostCalls = 100;    // in a turn
constexpr double kWorthIt = 0.98;  // of the time of the first one
constexpr int64_t kMostBlocks = 256;

// ---- Measuring ----------------------------------------------------------------------------------

struct Candidate {
  AlgorithmNumbers numbers;
  int32_t bound = -1;  // of what it makes
  double ms = 0;       // of a call: the median
  std::string problem;
};

class Tuner {
 public:
  static Result<std::unique_ptr<Tuner>> open(const CudaOptions& options);
  ~Tuner() {
    if (!device_) return;
    device_->enter();
    device_->driver().cuCtxSynchronize();
    products_.reset();
    if (module_) device_->driver().cuModuleUnload(module_);
  }

  // Allocates memory for the largest product. Tells which products do not fit, and leaves them out.
  Status begin(std::vector<Wanted>& wanted);
  // Returns the product's key, and the best algorithm; nothing where the library's first one is
  // best.
  Result<std::pair<std::string, std::optional<AlgorithmNumbers>>> tune(const Wanted& wanted);

 private:
  explicit Tuner(const CudaOptions& options) : note_(options.note) {}
  Status load_kernels();
  void place(const Wanted& wanted);
  std::array<std::byte*, kOperands> operands(int made) const;
  Status fill(const Wanted& wanted);
  Status clear(const Wanted& wanted, int made);
  Result<Difference> difference(DType type, const std::byte* a, const std::byte* b, int64_t count);
  Result<Difference> difference(const Wanted& wanted, int a, int b);
  Status add(const Wanted& wanted, const AlgorithmNumbers& numbers);
  Status check(const Wanted& wanted, Candidate& one);
  Status time(std::span<Candidate> candidates);
  Result<double> time(Candidate& one, int calls);
  std::vector<AlgorithmNumbers> varied_fastest() const;
  Status try_variations(const Wanted& wanted);
  const Candidate* best() const;
  std::optional<AlgorithmNumbers> choose(const Wanted& wanted, const std::string& name) const;
  int run(int32_t bound) { return products_->run(bound, scratch_, device_->stream(0)); }
  // Returns the sentence for the status of a candidate that cannot run.
  std::string said(int status) const {
    const char* name = products_->name_of(status);
    return fmt::format("cublasLtMatmul: {} ({})", name ? name : "an unknown status", status);
  }
  Status wait() {
    PIPER_CU(device_->driver(), cuStreamSynchronize, device_->stream(0));
    return ok_status();
  }
  void note(const std::string& text) const {
    if (note_) note_(text);
  }

  const std::function<void(const std::string&)> note_;
  std::unique_ptr<Device> device_;
  const AlgorithmTable nothing_;
  std::unique_ptr<Products> products_;
  CuModule* module_ = nullptr;
  std::map<DType, CuFunction*> differences_;
  int32_t from_ = 0, to_ = 0;  // events
  std::byte *arena_ = nullptr, *scratch_ = nullptr;
  Difference* found_ = nullptr;  // of threads, on the device
  std::optional<OperandPlaces> layout_;
  std::vector<Candidate> candidates_;
  int32_t reference_ = -1;  // binding of the first that runs
};

Result<std::unique_ptr<Tuner>> Tuner::open(const CudaOptions& options) {
  std::unique_ptr<Tuner> tuner(new Tuner(options));
  PIPER_ASSIGN(tuner->device_, Device::open(options.device));
  PIPER_ASSIGN(tuner->products_, Products::open(*tuner->device_, tuner->nothing_));
  PIPER_TRY(tuner->load_kernels());
  PIPER_ASSIGN(tuner->from_, tuner->device_->add_event(true));
  PIPER_ASSIGN(tuner->to_, tuner->device_->add_event(true));
  PIPER_ASSIGN(tuner->scratch_, tuner->device_->allocate(kProductScratch, false));
  PIPER_ASSIGN(
      std::byte* const found,
      tuner->device_->allocate(kMostBlocks * kDifferenceThreads * sizeof(Difference), false));
  tuner->found_ = reinterpret_cast<Difference*>(found);
  return tuner;
}

Status Tuner::load_kernels() {
  PIPER_ASSIGN(const Opened<Nvrtc>* const nvrtc, opened<Nvrtc>());
  const CompileSource source{"differences", differences_source()};
  const Facts& facts = device_->facts();
  PIPER_ASSIGN(const std::vector<std::string> codes,
               compile(*nvrtc, {&source, 1}, fmt::format("{}{}", facts.major, facts.minor),
                       cache_folder(), {}));
  device_->enter();
  PIPER_CU(device_->driver(), cuModuleLoadDataEx, &module_, codes[0].data(), 0, nullptr, nullptr);
  for (const DType type : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16})
    PIPER_CU(device_->driver(), cuModuleGetFunction, &differences_[type], module_,
             fmt::format("differences_{}", info(type).name).c_str());
  return ok_status();
}

Status Tuner::begin(std::vector<Wanted>& wanted) {
  const auto bytes_of = [](const Wanted& one) { return OperandPlaces(one).bytes; };
  while (!wanted.empty()) {
    const auto largest = std::max_element(
        wanted.begin(), wanted.end(),
        [&](const Wanted& a, const Wanted& b) { return bytes_of(a) < bytes_of(b); });
    auto arena = device_->allocate(bytes_of(*largest), false);
    if (arena) {
      arena_ = *arena;
      return ok_status();
    }
    note(fmt::format("{}: left out: {}", to_string(*largest), arena.error().message));
    wanted.erase(largest);
  }
  return ok_status();
}

std::array<std::byte*, kOperands> Tuner::operands(int made) const {
  std::array<std::byte*, kOperands> at{};
  const auto place = [&](int64_t offset) { return offset < 0 ? nullptr : arena_ + offset; };
  for (const Operand each : {kA, kB, kC, kBias}) at[each] = place(layout_->at[each]);
  const auto& [d, pre] = layout_->made[static_cast<size_t>(made)];
  at[kD] = place(d), at[kPre] = place(pre);
  return at;
}

Status Tuner::fill(const Wanted& wanted) {
  const std::array<std::byte*, kOperands> to = operands(0);
  for (const Operand each : {kA, kB, kC, kBias}) {
    if (!wanted.is_present[each]) continue;
    const std::vector<std::byte> block = draw_block(type_of(wanted.product, each), 1u + each);
    const auto all = static_cast<size_t>(bytes_of(wanted.product, each));
    const auto at = reinterpret_cast<CuAddress>(to[each]);
    size_t filled = std::min(all, block.size());
    PIPER_CU(device_->driver(), cuMemcpyAsync, at, reinterpret_cast<CuAddress>(block.data()),
             filled, device_->stream(0));
    for (; filled < all; filled += std::min(filled, all - filled))
      PIPER_CU(device_->driver(), cuMemcpyAsync, at + filled, at, std::min(filled, all - filled),
               device_->stream(0));
    PIPER_TRY(wait());
  }
  return ok_status();
}

// Fills results with zeros, so that elements that no run writes, and those between rows, compare
// equal.
Status Tuner::clear(const Wanted& wanted, int made) {
  const std::array<std::byte*, kOperands> to = operands(made);
  for (const Operand each : {kD, kPre})
    if (to[each])
      PIPER_CU(device_->driver(), cuMemsetD8Async, reinterpret_cast<CuAddress>(to[each]), 0,
               static_cast<size_t>(bytes_of(wanted.product, each)), device_->stream(0));
  return ok_status();
}

Result<Difference> Tuner::difference(DType type, const std::byte* a, const std::byte* b,
                                     int64_t count) {
  constexpr int64_t kOfThread = 16;
  const int64_t blocks =
      std::clamp<int64_t>(count / (kDifferenceThreads * kOfThread), 1, kMostBlocks);
  const int64_t numbers[] = {reinterpret_cast<int64_t>(a), reinterpret_cast<int64_t>(b), count,
                             reinterpret_cast<int64_t>(found_)};
  void* parameter = const_cast<int64_t*>(numbers);
  PIPER_CU(device_->driver(), cuLaunchKernel, differences_[type], static_cast<unsigned>(blocks), 1,
           1, kDifferenceThreads, 1, 1, 0, device_->stream(0), &parameter, nullptr);
  std::vector<Difference> found(static_cast<size_t>(blocks * kDifferenceThreads));
  PIPER_CU(device_->driver(), cuMemcpyAsync, reinterpret_cast<CuAddress>(found.data()),
           reinterpret_cast<CuAddress>(found_), found.size() * sizeof(Difference),
           device_->stream(0));
  PIPER_TRY(wait());
  Difference all;
  for (const Difference& one : found) {
    all.most = std::max(all.most, one.most);
    all.scale = std::max(all.scale, one.scale);
    all.count += one.count;
  }
  return all;
}

// Measures the difference of D and of pre.
Result<Difference> Tuner::difference(const Wanted& wanted, int a, int b) {
  const std::array<std::byte*, kOperands> of_a = operands(a), of_b = operands(b);
  Difference all;
  for (const Operand each : {kD, kPre}) {
    if (!of_a[each]) continue;
    PIPER_ASSIGN(const Difference one, difference(wanted.product.result, of_a[each], of_b[each],
                                                  extent_of(wanted.product, each)));
    all.most = std::max(all.most, one.most);
    all.scale = std::max(all.scale, one.scale);
    all.count += one.count;
  }
  return all;
}

// Runs the candidate twice, and checks that it gives both times what the first candidate gives.
Status Tuner::check(const Wanted& wanted, Candidate& one) {
  const std::array<std::byte*, kOperands> again = operands(2);
  PIPER_ASSIGN(const int32_t second, products_->bind(wanted.product, again, &one.numbers));
  for (const auto& [made, bound] : {std::pair{1, one.bound}, {2, second}}) {
    PIPER_TRY(clear(wanted, made));
    if (const int status = run(bound); status != 0) {
      one.problem = said(status);
      return ok_status();
    }
    PIPER_TRY(wait());
  }
  if (reference_ < 0) {
    PIPER_ASSIGN(reference_, products_->bind(wanted.product, operands(0), &one.numbers));
    PIPER_TRY(clear(wanted, 0));
    if (const int status = run(reference_); status != 0) return fail("{}", said(status));
    PIPER_TRY(wait());
  }
  PIPER_ASSIGN(const Difference from_first, difference(wanted, 1, 0));
  const double most = bound_of(wanted.product.result) * from_first.scale;
  if (!(from_first.most <= most))
    one.problem = fmt::format("differs by {:.3g} from the first, of {:.3g}", from_first.most,
                              from_first.scale);
  PIPER_ASSIGN(const Difference twice, difference(wanted, 1, 2));
  if (twice.count > 0 && one.problem.empty())
    one.problem = fmt::format("differs in {} elements from its own run before", twice.count);
  return ok_status();
}

Status Tuner::add(const Wanted& wanted, const AlgorithmNumbers& numbers) {
  const auto is_same = [&](const Candidate& other) { return other.numbers == numbers; };
  if (std::any_of(candidates_.begin(), candidates_.end(), is_same)) return ok_status();
  Candidate one{.numbers = numbers};
  if (auto bound = products_->bind(wanted.product, operands(1), &numbers); bound) {
    one.bound = *bound;
    PIPER_TRY(check(wanted, one));
  } else {
    one.problem = bound.error().message;
    one.problem.erase(0, fmt::format("the product {}: ", to_string(wanted)).size());
  }
  candidates_.push_back(std::move(one));
  return ok_status();
}

Result<double> Tuner::time(Candidate& one, int calls) {
  const Driver& driver = device_->driver();
  PIPER_CU(driver, cuEventRecord, device_->event(from_), device_->stream(0));
  for (int call = 0; call < calls && one.problem.empty(); ++call)
    if (const int status = run(one.bound); status != 0) one.problem = said(status);
  PIPER_CU(driver, cuEventRecord, device_->event(to_), device_->stream(0));
  PIPER_CU(driver, cuEventSynchronize, device_->event(to_));
  float ms = 0;
  PIPER_CU(driver, cuEventElapsedTime, &ms, device_->event(from_), device_->event(to_));
  return static_cast<double>(ms) / calls;
}

// Times the candidates in turns, so that what the device does beside them affects all.
Status Tuner::time(std::span<Candidate> candidates) {
  std::vector<std::vector<double>> turns(candidates.size());
  std::vector<int> calls(candidates.size(), 1);
  for (int turn = 0; turn <= kTurns; ++turn)
    for (size_t c = 0; c < candidates.size(); ++c) {
      if (!candidates[c].problem.empty()) continue;
      PIPER_ASSIGN(const double ms, time(candidates[c], calls[c]));
      if (turn > 0)
        turns[c].push_back(ms);
      else
        calls[c] = static_cast<int>(
            std::clamp(kTurnMs / std::max(ms, 1e-6), 1.0, static_cast<double>(kMostCalls)));
    }
  for (size_t c = 0; c < candidates.size(); ++c) {
    if (turns[c].empty()) continue;
    std::sort(turns[c].begin(), turns[c].end());
    candidates[c].ms = turns[c][turns[c].size() / 2];
  }
  return ok_status();
}

const Candidate* Tuner::best() const {
  const Candidate* best = nullptr;
  for (const Candidate& one : candidates_)
    if (one.problem.empty() && (!best || one.ms < best->ms)) best = &one;
  return best;
}

// Returns what variations of an algorithm set: another way to go through the tiles, another cluster
// of blocks, or more parts of k, whose sums are stored and added in a separate step.
const std::vector<AlgorithmNumbers>& variations() {
  static const std::vector<AlgorithmNumbers> all = [] {
    std::vector<AlgorithmNumbers> made;
    for (const int64_t swizzle : {0, 1}) made.push_back({{kLtSwizzle, swizzle}});
    for (const int64_t cluster : {2, 3, 5, 6}) made.push_back({{kLtCluster, cluster}});
    for (const int64_t parts : {2, 4, 8})
      made.push_back({{kLtSplit, parts}, {kLtReduction, kLtReductionStored}});
    return made;
  }();
  return all;
}

// Measures variations of the fastest algorithms.
std::vector<AlgorithmNumbers> Tuner::varied_fastest() const {
  std::vector<const Candidate*> fastest;
  for (const Candidate& one : candidates_)
    if (one.problem.empty()) fastest.push_back(&one);
  std::stable_sort(fastest.begin(), fastest.end(),
                   [](const Candidate* a, const Candidate* b) { return a->ms < b->ms; });
  std::vector<AlgorithmNumbers> varied;
  for (size_t i = 0; i < std::min(kVaried, fastest.size()); ++i)
    for (const AlgorithmNumbers& variation : variations()) {
      AlgorithmNumbers& numbers = varied.emplace_back(fastest[i]->numbers);
      for (const auto& [attribute, value] : variation)
        for (auto& [name, number] : numbers)
          if (name == attribute) number = value;
    }
  return varied;
}

Status Tuner::try_variations(const Wanted& wanted) {
  const size_t offered = candidates_.size();
  for (const AlgorithmNumbers& numbers : varied_fastest()) {
    const size_t before = candidates_.size();
    PIPER_TRY(add(wanted, numbers));
    const bool is_none = candidates_.size() > before && candidates_.back().bound < 0;
    if (is_none) candidates_.pop_back();  // the library has no such variation
  }
  return time(std::span(candidates_).subspan(offered));
}

Result<std::pair<std::string, std::optional<AlgorithmNumbers>>> Tuner::tune(const Wanted& wanted) {
  layout_.emplace(wanted);
  candidates_.clear();
  reference_ = -1;
  const std::array<std::byte*, kOperands> at = operands(1);
  const std::string key = products_->key_of(wanted.product, at);
  const std::string name = key.substr(key.rfind('|') + 2);
  PIPER_TRY(fill(wanted));
  PIPER_ASSIGN(const std::vector<AlgorithmNumbers> offered,
               products_->offers(wanted.product, at, kOffers));
  for (const AlgorithmNumbers& numbers : offered) PIPER_TRY(add(wanted, numbers));
  const auto differ = std::count_if(candidates_.begin(), candidates_.end(), [](const auto& one) {
    return one.problem.starts_with("differs by");
  });
  PIPER_TRY(time(candidates_));
  PIPER_TRY(try_variations(wanted));
  for (const Candidate& one : candidates_)
    if (!one.problem.empty())
      note(fmt::format("{}: {}: {}", name, to_string(one.numbers), one.problem));
  if (2 * differ > std::ssize(offered))
    note(fmt::format("{}: most algorithms differ from the first: none is listed", name));
  const bool is_known = 2 * differ <= std::ssize(offered);
  return std::pair(key, is_known ? choose(wanted, name) : std::nullopt);
}

// Returns the algorithm that is worth a line.
std::optional<AlgorithmNumbers> Tuner::choose(const Wanted& wanted, const std::string& name) const {
  const Candidate* chosen = best();
  if (!chosen) {
    note(fmt::format("{}: no algorithm is right", name));
    return std::nullopt;
  }
  const Candidate& first = candidates_[0];
  const bool is_worth_it = !first.problem.empty() || chosen->ms < kWorthIt * first.ms;
  const double ms = is_worth_it ? chosen->ms : first.ms;
  note(fmt::format(
      "{}: {:.4f} ms, {:.1f} TFLOP/s, {}", name, ms, flops_of(wanted.product) / ms * 1e-9,
      is_worth_it
          ? fmt::format("with {}; the first {:.4f} ms", to_string(chosen->numbers), first.ms)
          : "with the first"));
  return is_worth_it ? std::optional(chosen->numbers) : std::nullopt;
}

}  // namespace

Status tune_cuda_products(std::span<const Program> programs, const std::string& file,
                          const CudaOptions& options) {
  std::string comments =
      "# Which of cuBLASLt's algorithms products take: measured by piper-run --tune, taken by\n"
      "# piper-run --products. What has no line takes the first one of the library's heuristics.\n";
  AlgorithmTable table;
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    PIPER_ASSIGN(const std::string text, read_text_file(file, kMostTableBytes));
    Result<AlgorithmTable> read = read_algorithms(text);
    if (!read) return fail("{}: {}", file, read.error().message);
    table = *std::move(read);
    comments.clear();
    for (size_t at = 0; at < text.size() && text[at] == '#';) {
      const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
      comments += text.substr(at, end - at);
      at = end;
    }
  }
  PIPER_ASSIGN(std::vector<Wanted> wanted, products_of(programs));
  PIPER_ASSIGN(const std::unique_ptr<Tuner> tuner, Tuner::open(options));
  PIPER_TRY(tuner->begin(wanted));
  PIPER_TRY(write_file(file, print_algorithms(table, comments)));
  Status first = ok_status();
  for (const Wanted& one : wanted) {
    auto tuned = tuner->tune(one);
    if (!tuned) {
      if (options.note) options.note(fmt::format("{}: {}", to_string(one), tuned.error().message));
      if (first) first = std::move(tuned).error();
      continue;
    }
    table.entries.erase(tuned->first);
    if (tuned->second) table.entries[tuned->first] = *tuned->second;
    PIPER_TRY(write_file(file, print_algorithms(table, comments)));
  }
  return first;
}

}  // namespace piper
