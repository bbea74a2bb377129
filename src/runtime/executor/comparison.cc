// Compares parameters and losses with an oracle's, bit by bit or within a bound.
#include "comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>

#include "piper/base/float16.h"
#include "piper/devices/registry.h"

namespace piper {
namespace {

constexpr double kFloor =
    0.05;  // values below it count as this large: some are zero but for rounding

constexpr double kSafeEps = 1e-6;  // well above the rounding of gradients

const char* oracle_name(VerifyAgainst against) {
  return against == VerifyAgainst::kSingle ? "the single-device plan" : "the uncut plan";
}

double element(DType dtype, const std::byte* data, int64_t index) {
  return float_at(dtype, data + index * info(dtype).bytes);
}

std::string print_value(DType dtype, double value) {
  return fmt::format("{:.{}g}", value, dtype == DType::kF64 ? 17 : 9);
}

std::string print_index(const Shape& shape, int64_t index) {
  Shape at(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    at[d] = index % shape[d];
    index /= shape[d];
  }
  return to_string(at);
}

// Returns the first element whose bits differ, or -1.
int64_t first_difference(DType dtype, int64_t count, const std::byte* a, const std::byte* b) {
  size_t width = static_cast<size_t>(info(dtype).bytes);
  if (std::memcmp(a, b, static_cast<size_t>(count) * width) == 0) return -1;
  for (int64_t i = 0; i < count; ++i) {
    size_t at = static_cast<size_t>(i) * width;
    if (std::memcmp(a + at, b + at, width) != 0) return i;
  }
  return -1;
}

std::optional<double> least_eps(const PlanSet& set) {
  std::optional<double> least;
  for (const RoleProgram& role : set.roles)
    for (const Program& program : role.programs)
      for (const ProgramOp& op : program.ops) {
        const bool updates = op.attrs.find("weight_decay") != nullptr;
        if (!updates || !op.attrs.find("eps")) continue;
        const double eps = op.attrs.real("eps");
        least = std::min(least.value_or(eps), eps);
      }
  return least;
}

std::string bound_help(const char* flag) {
  return fmt::format(
      "help: '{}' sets the bound, which is meant for 32 bits: plans that compute or send in 16 "
      "bits, and optimizers that take a gradient's sign (Lion), differ by more where sums are "
      "added in another order",
      flag);
}

Error numeric(std::string text) { return Error{ExitCode::kNumeric, {}, std::move(text), {}}; }

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const JobOptions& options, const Cores& cores) {
  PIPER_ASSIGN(const BackendKind* kind, find_backend(options.backend));
  return kind->make({.threads = cores.threads,
                     .cores = cores.pinned,
                     .fuse = options.fuse,
                     .place = cores.place,
                     .ranks = cores.ranks,
                     .is_process = cores.is_process});
}

Result<std::unique_ptr<Comparison>> Comparison::open(const PlanSet& reference,
                                                     const BatchSource* data,
                                                     const JobOptions& options,
                                                     const Cores& of_rank, bool sums_otherwise) {
  if (reference.world() != 1) {
    return fail("{} is for {} ranks, not for one", oracle_name(options.verify.against),
                reference.world())
        .with_code(ExitCode::kPlan);
  }
  auto comparison = std::make_unique<Comparison>();
  comparison->least_eps_ = least_eps(reference);
  comparison->options_ = options.verify;
  comparison->bitwise_ = options.verify.against == VerifyAgainst::kSingle && !sums_otherwise;
  comparison->world_ = make_inproc_world(1, TransportOptions{});
  Cores cores = cores_of(options, false, 0, 1);
  cores.pinned.clear();  // the ranks have the cores
  cores.place = of_rank.place, cores.ranks = of_rank.ranks, cores.is_process = of_rank.is_process;
  PIPER_ASSIGN(comparison->backend_, make_backend(options, cores));
  RankSource source;
  source.set = &reference;
  source.data = data;
  source.states = options.states;
  Transport& alone = comparison->world_->rank(0);
  PIPER_ASSIGN(comparison->executor_,
               Executor::load(source, *comparison->backend_, alone.control(), alone.fabric()));
  PIPER_TRY(comparison->executor_->run_prologue(options.first_step));
  for (ParameterView& view : comparison->executor_->trained_parts()) {
    comparison->entries_.push_back({std::move(view), {}});
  }
  std::sort(comparison->entries_.begin(), comparison->entries_.end(),
            [](const Entry& a, const Entry& b) { return a.reference.name < b.reference.name; });
  return comparison;
}

Status Comparison::watch(int64_t rank, const Executor& executor) {
  for (const ParameterView& view : executor.trained_parts()) {
    auto entry = std::find_if(entries_.begin(), entries_.end(),
                              [&](const Entry& e) { return e.reference.name == view.name; });
    if (entry == entries_.end()) {
      return fail("rank {} trains the parameter '{}', which {} does not have", rank, view.name,
                  oracle_name(options_.against))
          .with_code(ExitCode::kPlan);
    }
    if (entry->reference.type() != view.type()) {
      return fail("parameter '{}' is {} on rank {} and {} in {}", view.name, to_string(view.type()),
                  rank, to_string(entry->reference.type()), oracle_name(options_.against))
          .with_code(ExitCode::kPlan);
    }
    entry->holders.push_back({rank, view.data, view.held});
  }
  return ok_status();
}

Error Comparison::not_trained(const Entry& entry) const {
  return fail("no rank trains the parameter '{}', which {} has", entry.reference.name,
              oracle_name(options_.against))
      .with_code(ExitCode::kPlan);
}

Status Comparison::check_complete() const {
  for (const Entry& entry : entries_) {
    if (!entry.holders.empty()) continue;
    return not_trained(entry);
  }
  return ok_status();
}

Status Comparison::check(int64_t step, std::optional<double> loss) {
  PIPER_TRY(executor_->run_step(step));
  PIPER_TRY(executor_->settle());
  if (loss) PIPER_TRY(check_loss(step, *loss));
  for (const Entry& entry : entries_) {
    if (entry.holders.empty()) continue;
    PIPER_TRY(bitwise_ ? check_equal(step, entry) : check_close(step, entry));
  }
  return ok_status();
}

HoldersOf Comparison::holders() const {
  HoldersOf all;
  for (size_t i = 0; i < entries_.size(); ++i)
    for (const auto& [rank, data, held] : entries_[i].holders) {
      const auto bytes = static_cast<size_t>(held.count * info(held.whole.dtype).bytes);
      all[{i, number_of(to_string(held))}][number_of(as_text({data, bytes}))].add({1, {rank}});
    }
  return all;
}

Status Comparison::check_holders(int64_t step, const HoldersOf& all) const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    auto held = all.lower_bound({i, 0});
    if (held == all.end() || held->first.first != i) return not_trained(entries_[i]);
    for (; held != all.end() && held->first.first == i; ++held) {
      std::vector<int64_t> lowest;  // by value
      for (const auto& [value, holders] : held->second) lowest.push_back(holders.ranks[0]);
      if (lowest.size() == 1) continue;
      std::sort(lowest.begin(), lowest.end());
      return numeric(fmt::format("step {}: parameter '{}' differs between rank {} and rank {}",
                                 step + 1, entries_[i].reference.name, lowest[0], lowest[1]));
    }
  }
  return ok_status();
}

void Comparison::report(JobResult& result) const {
  result.compared_parameters = std::ssize(entries_);
  result.bitwise = bitwise_;
  result.worst_loss_error = worst_loss_error_;
  result.worst_param_error = worst_param_error_;
}

Status Comparison::check_loss(int64_t step, double loss) {
  double reference = executor_->report("loss").value_or(std::nan(""));
  double error = std::abs(loss - reference) / std::max(std::abs(reference), kFloor);
  const bool fits =
      bitwise_ ? std::memcmp(&loss, &reference, sizeof loss) == 0 : error <= options_.loss_bound;
  if (!fits) {
    std::string bound =
        bitwise_ ? "" : fmt::format(" (error {:.3g}, bound {:.3g})", error, options_.loss_bound);
    Error far =
        numeric(fmt::format("step {}: the loss differs from {}: {:.9g} here, {:.9g} there{}",
                            step + 1, oracle_name(options_.against), loss, reference, bound));
    if (!bitwise_) far.notes = {bound_help("--loss-bound")};
    return far;
  }
  worst_loss_error_ = std::max(worst_loss_error_, error);
  return ok_status();
}

Status Comparison::check_equal(int64_t step, const Entry& entry) const {
  const auto& [dtype, shape] = entry.reference.type();
  for (const Holder& holder : entry.holders) {
    std::optional<Held::Run> other;  // of the first element that differs
    holder.held.for_each_run([&, dtype = dtype](const Held::Run& run) {
      const int64_t size = info(dtype).bytes;
      const int64_t i = other ? -1
                              : first_difference(dtype, run.count, holder.data + run.held * size,
                                                 entry.reference.data + run.whole * size);
      if (i >= 0) other = {run.whole + i, run.held + i, 1};
    });
    if (!other) continue;
    return numeric(fmt::format(
        "step {}: parameter '{}' differs from {} at {}: {} on rank {}, {} there", step + 1,
        entry.reference.name, oracle_name(options_.against), print_index(shape, other->whole),
        print_value(dtype, element(dtype, holder.data, other->held)), holder.rank,
        print_value(dtype, element(dtype, entry.reference.data, other->whole))));
  }
  return ok_status();
}

const Comparison::Holder& Comparison::first_with(const Entry& entry, const Holder& holder) {
  return *std::find_if(entry.holders.begin(), entry.holders.end(),
                       [&](const Holder& other) { return other.held == holder.held; });
}

// Checks that what several ranks hold is the same.
Status Comparison::check_alike(int64_t step, const Entry& entry, const Holder& holder) const {
  const auto& [dtype, shape] = entry.reference.type();
  const Holder& first = first_with(entry, holder);
  const int64_t i = first_difference(dtype, holder.held.count, holder.data, first.data);
  if (i < 0) return ok_status();
  return numeric(
      fmt::format("step {}: parameter '{}' differs between ranks at {}: {} on rank {}, {} on rank "
                  "{}",
                  step + 1, entry.reference.name, print_index(shape, holder.held.run_at(i).whole),
                  print_value(dtype, element(dtype, first.data, i)), first.rank,
                  print_value(dtype, element(dtype, holder.data, i)), holder.rank));
}

Status Comparison::check_close(int64_t step, const Entry& entry) {
  const TensorType& type = entry.reference.type();
  double largest = kFloor;
  double worst = 0, here = 0;
  int64_t where = 0, rank = 0;
  for (const Holder& holder : entry.holders) {
    PIPER_TRY(check_alike(step, entry, holder));
    if (&first_with(entry, holder) != &holder) continue;
    holder.held.for_each_run([&](const Held::Run& run) {
      for (int64_t i = 0; i < run.count; ++i) {
        const double value = element(type.dtype, holder.data, run.held + i);
        const double reference = element(type.dtype, entry.reference.data, run.whole + i);
        const double difference = std::abs(value - reference);
        largest = std::max(largest, std::abs(reference));
        if (difference <= worst || std::isnan(worst)) continue;  // NaN is the worst, and stays
        worst = difference;
        where = run.whole + i;
        here = value;
        rank = holder.rank;
      }
    });
  }
  double error = worst / largest;
  if (!(error <= options_.param_bound)) {
    Error far = numeric(fmt::format(
        "step {}: parameter '{}' is further from {} than {:.3g}: error {:.3g}, most at "
        "{}: {} on rank {}, {} "
        "there",
        step + 1, entry.reference.name, oracle_name(options_.against), options_.param_bound, error,
        print_index(type.shape, where), print_value(type.dtype, here), rank,
        print_value(type.dtype, element(type.dtype, entry.reference.data, where))));
    if (!least_eps_ || *least_eps_ >= kSafeEps) {
      far.notes = {bound_help("--param-bound")};
      return far;
    }
    far.notes = {fmt::format("the optimizer divides a gradient by its size plus eps = {:g}: where "
                             "a gradient is only rounding, as that of a key's bias, its step is "
                             "no smaller, and differs from one cut of the batch to the next",
                             *least_eps_),
                 fmt::format("help: compare with 'eps: {:g}', or with sgd", kSafeEps),
                 bound_help("--param-bound")};
    return far;
  }
  worst_param_error_ = std::max(worst_param_error_, error);
  return ok_status();
}

}  // namespace piper
