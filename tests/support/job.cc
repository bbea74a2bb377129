// A job whose devices are simulated: the hosts take turns on one thread.
#include "support/sim.h"

namespace piper {
namespace {

// From the lowest rank that reports it.
std::optional<double> reported(std::span<const std::unique_ptr<Executor>> executors,
                               std::string_view name) {
  for (const auto& executor : executors)
    if (const auto value = executor->report(name)) return value;
  return std::nullopt;
}

}  // namespace

Result<JobResult> run_simulated(const PlanSet& set, const BatchSource* data, SimWorld& world,
                                int64_t steps, const BatchSource* evaluation) {
  std::vector<std::unique_ptr<Executor>> executors;
  for (int64_t rank = 0; rank < set.world(); ++rank) {
    const RankSource source{&set, rank, data};
    PIPER_ASSIGN(executors.emplace_back(),
                 Executor::load(source, world.device(rank), world.transport(rank).control(),
                                world.transport(rank).fabric()));
  }
  const auto each = [&](auto act) -> Status {
    for (const auto& executor : executors) PIPER_TRY(act(*executor));
    return ok_status();
  };
  JobResult result;
  for (int32_t part = 0; part < executors[0]->prologue_parts(); ++part)
    PIPER_TRY(each([&](Executor& one) { return one.start_prologue(part, 0, steps); }));
  // A step is queued before the one that runs is asked for its results.
  for (int64_t step = 0; step <= steps; ++step) {
    if (step < steps) PIPER_TRY(each([&](Executor& one) { return one.start_step(step, steps); }));
    if (step == 0) continue;
    PIPER_TRY(each([&](Executor& one) { return one.finish_step(step - 1); }));
    StepMetrics& metrics = result.steps.emplace_back();
    metrics.step = step - 1;
    metrics.loss = reported(executors, "loss");
    metrics.grad_norm = reported(executors, "grad_norm");
  }
  for (int64_t batch = 0; evaluation != nullptr && batch < evaluation->steps(); ++batch) {
    PIPER_TRY(each([&](Executor& one) { return one.start_evaluation(*evaluation, batch); }));
    for (const auto& one : executors) {
      PIPER_ASSIGN(const Evaluated made, one->finish_evaluation(batch));
      if (one == executors.front())
        result.evaluations.push_back({steps, "", made.loss.value_or(0), 1});
    }
  }
  const bool overlap = executors[0]->role().steps_ahead > 0;
  if (!overlap) PIPER_TRY(each([&](Executor& one) { return one.run_epilogue(steps); }));
  PIPER_TRY(world.drain());
  std::vector<const Executor*> all;
  for (const auto& executor : executors) all.push_back(executor.get());
  for (const NamedTensor& each : collect_parameters(all))  // while there are executors
    result.parameters.push_back({each.name, each.type, each.data.made()});
  return result;
}

}  // namespace piper
