// The flags of piper-run that say what a job does of faults that it finds in itself.
#include "fault_flags.h"

#include "flag_checks.h"

namespace piper {

void FaultFlags::add(CLI::App& app, RunOptions& run) {
  app.add_option(
         "--on-nan", on_nan,
         "when loss or gradients are not finite. stop: end with exit 11, and save the state "
         "before that step; skip: go on without its update; rollback: go on from the newest "
         "checkpoint, without the data since then. Updates that can be left out are those of "
         "strategies with clip_norm, loss_scale or skip_nonfinite")
      ->check(CLI::IsMember({"stop", "skip", "rollback"}))
      ->capture_default_str();
  app.add_option("--most-rollbacks", run.job.most_rollbacks,
                 "how many times a job rolls back before it stops")
      ->type_name("N")
      ->capture_default_str()
      ->check(a_count(1));
  app.add_option("--replay", run.job.replay,
                 "every N steps, run forward and backward twice before the update and compare all "
                 "that they compute, bit for bit: finds devices that compute wrong; a difference "
                 "ends the job with exit 11")
      ->type_name("N")
      ->check(a_count(1));
  app.add_option(
         "--peak", run.job.peak_flops,
         "peak FLOPs per second of a rank's device, such as 989e12, for the MFU of steps "
         "(default: measured on CPUs; known of GPUs of compute capability 8.0, 9.0 and 10.0)")
      ->type_name("FLOPS")
      ->check(between(1e6, 1e18, "a number from 1e6 to 1e18"));
}

void FaultFlags::take(RunOptions& run) const {
  if (on_nan == "skip") run.job.on_nan = OnNan::kSkip;
  if (on_nan == "rollback") run.job.on_nan = OnNan::kRollBack;
}

}  // namespace piper
