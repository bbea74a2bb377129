// Finds what a job goes back to: a checkpoint of its own, or what it began with.
#include "rollback.h"

#include <filesystem>

namespace piper {
namespace {

namespace fs = std::filesystem;
using How = StartOptions::How;

// Serves nothing: states begin with the plans' values.
class Initial final : public StateSource {
 public:
  Result<bool> fill(const Tensor&, std::span<const std::string>, const Held&,
                    std::byte*) const override {
    return false;
  }
};

}  // namespace

WaysBack::WaysBack(std::span<const JobPhase> phases, size_t begins)
    : phases_(phases), asked_(*phases[begins].options) {
  const std::optional<Start>& start = phases[begins].loaded->start;
  const int64_t first_step = asked_.job.first_step;
  std::optional<CheckpointOptions> checkpoint = std::move(asked_.job.checkpoint);
  asked_.job = {};
  asked_.job.checkpoint = std::move(checkpoint);
  if (!asked_.job.checkpoint) return;  // of a job that does not go back
  if (start) began_ = start->reader->folder();
  // Checkpoints of the folder that the job goes on from are its own, also those from before.
  std::error_code ignored;
  const bool is_its_own =
      began_ && fs::equivalent(fs::path(*began_).parent_path(), folder(), ignored) &&
      (asked_.start.how == How::kResume || asked_.start.how == How::kResumeOrStart);
  if (!is_its_own) least_ = first_step + (began_ ? 1 : 0);
}

// Checks that the plans of the phase that the checkpoint belongs to can go on from it.
Status WaysBack::check(const RunOptions& asked, Start& start) const {
  const Loaded& loaded = *phases_[phase_after(phases_, start.step)].loaded;
  return check_start(asked, loaded.set, start, loaded.data.get(), /*speaks=*/false);
}

Result<GoneBack> WaysBack::find(Control& control, size_t at, int64_t tried) const {
  PIPER_ASSIGN(std::optional<Start> start, find_own(control, tried));
  const auto is_left = [&](int64_t step) { return phase_after(phases_, step) != at; };
  if (!start && !began_) return GoneBack{0, std::make_shared<Initial>(), is_left(0)};
  if (!start) {
    RunOptions asked = asked_;
    asked.start.from = *began_;
    PIPER_ASSIGN(start, find_start(asked, &control));
    PIPER_TRY(check(asked, *start));
  }
  const auto owner = std::make_shared<const Start>(*std::move(start));
  return GoneBack{owner->step, {owner, owner->states.get()}, is_left(owner->step)};
}

// Returns the newest checkpoint that the job's plans go on from, but the one that was tried, unless
// there is no other.
Result<std::optional<Start>> WaysBack::find_own(Control& control, int64_t tried) const {
  RunOptions asked = asked_;
  asked.start.how = How::kResume;
  asked.start.from = folder();
  PIPER_ASSIGN(std::optional<Start> start, find_newest(asked, &control, {least_, tried}));
  if (!start) return start;
  const Status fits = check(asked, *start);
  if (!fits && tried >= 0) return find_own(control, -1);
  PIPER_TRY(fits);
  if (control.rank() != 0) return start;
  if (start->step < tried)
    tell_user(
        fmt::format("warning: from {} the job got no further than before: an older one is "
                    "taken",
                    checkpoint_name(tried)));
  PIPER_TRY(set_newer_aside(asked, *start));
  return start;
}

}  // namespace piper
