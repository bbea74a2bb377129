// Chooses the plans that are for as many ranks as were launched. Called by run_plans.
#include "choose_plans.h"

#include "piper/plan/worlds.h"

namespace piper {
namespace {

// Lists the directories of plans, with those that folders of several worlds have; and says of
// worlds for which there are none why.
Result<std::vector<std::string>> list_plans(const RunOptions& options,
                                            std::vector<std::string>& missing) {
  std::vector<std::string> all;
  std::vector<std::string> given{options.plan};
  given.insert(given.end(), options.other_plans.begin(), options.other_plans.end());
  for (const std::string& directory : given) {
    PIPER_ASSIGN(const std::optional<Worlds> worlds, read_worlds(directory));
    if (!worlds) all.push_back(directory);
    if (!worlds) continue;
    for (const Worlds::Set& set : worlds->sets) all.push_back(directory + "/" + set.folder);
    for (const Worlds::Missing& one : worlds->missing)
      missing.push_back(
          fmt::format("{} has none for {}: {}", directory, one.ranks, quote_control(one.why)));
  }
  return all;
}

}  // namespace

namespace {

// Takes the stages of a job whose batch grows: it switches from one to the next.
Status take_stages(RunOptions& options) {
  PIPER_ASSIGN(const std::vector<PlanStage> stages, read_stages(options.plan));
  if (stages.empty()) return ok_status();
  if (!options.switches.empty() || !options.other_plans.empty())
    return fail(
               "{} has a stage for each batch of a job: --switch and further plans do not go "
               "together with it",
               options.plan)
        .with_code(ExitCode::kUsage)
        .with_note(fmt::format("help: {}/{} and the others are plans by themselves", options.plan,
                               stages[0].folder));
  const std::string directory = options.plan;
  options.plan = directory + "/" + stages[0].folder;
  for (const PlanStage& stage : std::span(stages).subspan(1))
    if (stage.first_step < options.job.steps && !options.evaluate_only)
      options.switches.push_back({directory + "/" + stage.folder, stage.first_step});
  return ok_status();
}

}  // namespace

Status choose_plans(RunOptions& options, const std::optional<Launch>& launch) {
  PIPER_TRY(take_stages(options));
  std::vector<std::string> missing, worlds;
  PIPER_ASSIGN(const std::vector<std::string> all, list_plans(options, missing));
  if (all.size() == 1 && missing.empty()) {
    options.plan = all[0];
    return ok_status();
  }
  for (const std::string& directory : all) {
    PIPER_ASSIGN(const PlanOutline outline, read_plan_outline(directory));
    const int64_t world = std::ssize(outline.role_of_rank);
    worlds.push_back(fmt::format("{} ({})", world, directory));
    if (launch && launch->world != world) continue;
    options.plan = directory;
    return ok_status();
  }
  options.plan = all[0];
  if (launch->world == 1) return ok_status();
  Error error = fail("{} processes were started, and the plans are for {} ranks", launch->world,
                     join(worlds, ", "))
                    .with_code(ExitCode::kUsage);
  error.notes = std::move(missing);
  return error;
}

}  // namespace piper
