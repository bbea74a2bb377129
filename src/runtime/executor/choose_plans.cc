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

Status choose_plans(RunOptions& options, const std::optional<Launch>& launch) {
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
