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

class WaysBack {
 public:
  WaysBack(const RunOptions& options, const Loaded& loaded, bool has_switched)
      : asked_(options), loaded_(loaded), has_switched_(has_switched) {
    asked_.job = {};
    asked_.job.checkpoint = options.job.checkpoint;
    if (loaded.start && !has_switched) began_ = loaded.start->reader->folder();
    // Checkpoints of the folder that the job goes on from are its own, also those from before.
    std::error_code ignored;
    const bool is_its_own =
        began_ && fs::equivalent(fs::path(*began_).parent_path(), folder(), ignored) &&
        (asked_.start.how == How::kResume || asked_.start.how == How::kResumeOrStart);
    if (!is_its_own) least_ = options.job.first_step + (began_ ? 1 : 0);
  }
  Result<GoneBack> find(Control& control, int64_t tried) const {
    PIPER_ASSIGN(std::optional<Start> start, find_own(control, tried));
    if (!start && !has_switched_ && !began_) return GoneBack{0, std::make_shared<Initial>()};
    if (!start && began_) {
      RunOptions asked = asked_;
      asked.start.from = *began_;
      PIPER_ASSIGN(start, find_start(asked, &control));
      PIPER_TRY(check_start(asked, loaded_.set, *start, loaded_.data.get(), /*speaks=*/false));
    }
    if (!start)
      return fail("'{}' holds no checkpoint of these plans to go back to", folder())
          .with_code(ExitCode::kNumeric);
    const auto owner = std::make_shared<const Start>(*std::move(start));
    return GoneBack{owner->step, {owner, owner->states.get()}};
  }

 private:
  const std::string& folder() const { return asked_.job.checkpoint->folder; }
  // Returns the newest checkpoint that these plans go on from, but the one that was tried, unless
  // there is no other.
  Result<std::optional<Start>> find_own(Control& control, int64_t tried) const {
    RunOptions asked = asked_;
    asked.start.how = How::kResume;
    asked.start.from = folder();
    PIPER_ASSIGN(std::optional<Start> start, find_newest(asked, &control, {least_, tried}));
    if (!start) return start;
    const Status fits =
        check_start(asked, loaded_.set, *start, loaded_.data.get(), /*speaks=*/false);
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

  RunOptions asked_;
  const Loaded& loaded_;
  const bool has_switched_;
  std::optional<std::string> began_;  // the checkpoint or file that the job began with
  int64_t least_ = 0;                 // the first step whose checkpoint is of this job
};

}  // namespace

std::function<Result<GoneBack>(Control& control, int64_t tried)> ways_back(
    const RunOptions& options, const Loaded& loaded, bool has_switched) {
  return [ways = WaysBack(options, loaded, has_switched)](Control& control, int64_t tried) {
    return ways.find(control, tried);
  };
}

}  // namespace piper
