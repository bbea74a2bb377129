// What ranks tell each other after each step: losses, times, whether replicas agree.
#include "between_steps.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>

#include "peak.h"
#include "piper/plan/flops.h"

namespace piper {
namespace {

constexpr const char* kNames[] = {"loss", "grad_norm", "learning_rate", "skipped", "loss_scale"};
constexpr const char* kWhat = "exchange after the step";

bool reports(const RoleProgram& role, std::string_view name) {
  for (const Report& report : role.reports) {
    if (report.name == name) return true;
  }
  return false;
}

int64_t lesser_room(int64_t a, int64_t b) { return a == 0 || b == 0 ? a + b : std::min(a, b); }

int64_t room_of(const RoleProgram& role) {
  int64_t room = 0;
  for (const Program& program : role.programs)
    for (const ProgramOp& op : program.ops)
      if (op.op == "RowPlaces") room = lesser_room(room, op.attrs.integer("rows"));
  return room;
}

template <class T>
std::span<std::byte> as_bytes(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// Returns whether uses of a parameter add to one buffer in another order than all of one
// microbatch, and then those of the next, as one device does.
bool alternates(const RoleProgram& role) {
  std::map<int32_t, std::pair<int32_t, int32_t>> last;  // by buffer: microbatch and use
  for (const Instruction& one : role.body)
    for (const Contribution& part : one.contributions) {
      const std::pair turn(one.micro, part.use);
      const auto [before, is_first] =
          last.try_emplace(one.args[static_cast<size_t>(part.arg)], turn);
      if (is_first) continue;
      if (before->second.second != part.use && before->second > turn) return true;
      before->second = turn;
    }
  return false;
}

// Returns whether sums are formed within ops where dims are cut; or gradients over ranks in each
// microbatch, before those of other microbatches, or of a parameter's other uses, are added.
bool adds_otherwise(const RoleProgram& role) {
  const bool reused = std::any_of(role.sum_targets.begin(), role.sum_targets.end(),
                                  [](const SumTarget& sum) { return sum.uses > 1; });
  const auto has_ranks = [&](int32_t axis) {
    return role.mesh[static_cast<size_t>(axis)].second > 1;
  };
  return cuts_dims(role) || alternates(role) ||
         std::any_of(role.body.begin(), role.body.end(), [&](const Instruction& one) {
           if (!info(one.kind).adds || one.micro < (reused ? 0 : 1)) return false;
           const auto& axes = role.groups[static_cast<size_t>(one.group)].axes;
           return std::any_of(axes.begin(), axes.end(), has_ranks);
         });
}

}  // namespace

Result<BetweenSteps> BetweenSteps::open(Control& control, const Executor& executor,
                                        const Manifest& manifest, double peak) {
  BetweenSteps opened;
  opened.control_ = &control;
  Facts& facts = opened.facts_;
  facts.peak_bytes = executor.role().peak_bytes();
  facts.taken_bytes = executor.backend().taken().device;
  facts.sums_otherwise = adds_otherwise(executor.role()) ? 1 : 0;
  facts.room = room_of(executor.role());
  facts.peak_flops = peak;
  opened.step_flops_ = model_flops(manifest);
  for (int k = 0; k < kValues; ++k)
    facts.source[k] = reports(executor.role(), kNames[k]) ? control.rank() : control.world();
  PIPER_TRY(control.merge(as_bytes(facts), "load", [&](std::span<const std::byte> bytes) {
    Facts theirs;
    std::memcpy(&theirs, bytes.data(), sizeof theirs);
    for (int k = 0; k < kValues; ++k) facts.source[k] = std::min(facts.source[k], theirs.source[k]);
    facts.peak_bytes = std::max(facts.peak_bytes, theirs.peak_bytes);
    facts.taken_bytes = std::max(facts.taken_bytes, theirs.taken_bytes);
    facts.peak_flops += theirs.peak_flops;
    facts.room = lesser_room(facts.room, theirs.room);
    facts.sums_otherwise = std::max(facts.sums_otherwise, theirs.sums_otherwise);
  }));
  for (const int64_t source : facts.source)
    if (source > 0 && source < control.world()) opened.speakers_.push_back(source);
  std::sort(opened.speakers_.begin(), opened.speakers_.end());
  opened.speakers_.erase(std::unique(opened.speakers_.begin(), opened.speakers_.end()),
                         opened.speakers_.end());
  return opened;
}

std::optional<double> BetweenSteps::mfu(double seconds) const {
  if (facts_.peak_flops <= 0 || step_flops_ <= 0 || seconds <= 0) return std::nullopt;
  return step_flops_ / facts_.peak_flops / seconds;
}

Status BetweenSteps::collect(const Executor& executor, StepMetrics& metrics) {
  double own[kValues];
  for (int k = 0; k < kValues; ++k) own[k] = executor.report(kNames[k]).value_or(NAN);
  if (std::binary_search(speakers_.begin(), speakers_.end(), control_->rank()))
    return control_->tell(0, as_bytes(own));
  if (control_->rank() != 0) return ok_status();
  std::optional<double>* targets[] = {&metrics.loss, &metrics.grad_norm, &metrics.learning_rate,
                                      &metrics.skipped, &metrics.loss_scale};
  auto take = [&](int64_t rank, const double* values) {
    for (int k = 0; k < kValues; ++k)
      if (facts_.source[k] == rank) *targets[k] = values[k];
  };
  take(0, own);
  for (const int64_t rank : speakers_) {
    double values[kValues];
    PIPER_TRY(control_->hear(rank, as_bytes(values), kWhat));
    take(rank, values);
  }
  return ok_status();
}

Status BetweenSteps::spread_late(Words& words, bool last) {
  const int64_t step = late_steps_++;
  Words word = words;
  const bool knows = step >= control_->depth();  // of what rank 0 said so many steps before
  if (const auto up = control_->parent(); up && knows)
    PIPER_TRY(control_->hear(*up, as_bytes(word), kWhat));
  for (const int64_t child : control_->children())
    if (knows && !last) PIPER_TRY(control_->tell(child, as_bytes(word)));
  if (knows) said_.push_back(word);
  words = 0;
  if (step >= control_->height()) {
    words = said_.front();
    said_.pop_front();
  }
  if (last) late_steps_ = 0, said_.clear();
  return ok_status();
}

Status BetweenSteps::agree(Words& words) { return merge_words(*control_, words, kWhat); }

Status merge_words(Control& control, Words& words, const char* what) {
  return control.merge(as_bytes(words), what, [&](std::span<const std::byte> theirs) {
    Words other = 0;
    std::memcpy(&other, theirs.data(), sizeof other);
    words |= other;
  });
}

}  // namespace piper
