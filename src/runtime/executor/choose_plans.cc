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
    PIPER_ASSIGN(const PlanFolder folder, read_plan_folder(directory));
    for (const PlanFolder::Set& set : folder.sets) all.push_back(set.directory);
    for (const PlanFolder::Missing& one : folder.missing)
      missing.push_back(
          fmt::format("{} has none for {}: {}", directory, one.ranks, quote_control(one.why)));
  }
  return all;
}

Error refuse_stages(const std::string& plan, const PlanFolder& folder, const char* what) {
  return fail("{} has plans for each stage of a batch that grows: {}", plan, what)
      .with_code(ExitCode::kUsage)
      .with_note(
          fmt::format("help: {} and the others are plans by themselves", folder.sets[0].directory));
}

// Takes the stages of a job whose batch grows: it switches from one to the next. An evaluation is
// of one stage: that of its checkpoint, or the last, as no step says which.
Status take_stages(RunOptions& options) {
  PIPER_ASSIGN(const PlanFolder folder, read_plan_folder(options.plan));
  if (folder.kind != PlanFolder::Kind::kStages) return ok_status();
  if (!options.switches.empty() || !options.other_plans.empty())
    return refuse_stages(options.plan, folder,
                         "--switch and further plans do not go together with it");
  using How = StartOptions::How;
  const How how = options.start.how;
  if (options.evaluate_only && (how == How::kFresh || how == How::kInit)) {
    options.plan = folder.sets.back().directory;
    return ok_status();
  }
  for (const PlanFolder::Set& stage : std::span(folder.sets).subspan(1))
    if (stage.first_step < options.job.steps || options.evaluate_only)
      options.switches.push_back({stage.directory, stage.first_step});
  if (!options.switches.empty() && options.job.verify.against != VerifyAgainst::kNone)
    return refuse_stages(options.plan, folder,
                         "--verify-against compares the steps of one of them");
  options.plan = folder.sets[0].directory;
  return ok_status();
}

Error no_plans_for(int64_t started, const std::vector<std::string>& worlds,
                   std::vector<std::string> missing) {
  Error error =
      fail("{} processes were started, and the plans are for {} ranks", started, join(worlds, ", "))
          .with_code(ExitCode::kUsage);
  error.notes = std::move(missing);
  return error;
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
  return no_plans_for(launch->world, worlds, std::move(missing));
}

}  // namespace piper
