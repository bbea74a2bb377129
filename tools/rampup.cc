// Compiles a strategy for each stage of its 'rampup'. Called by piperc.
#include "rampup.h"

#include "piper/plan/worlds.h"

namespace piper {
namespace {

Status write_stage(const Compiled& compiled, const std::string& directory, bool force,
                   int64_t first_step, std::vector<PlanStage>& stages) {
  const std::string folder = stage_folder(stages.size());
  PIPER_TRY(write_plan_set(compiled.set, compiled.single ? &*compiled.single : nullptr,
                           compiled.uncut ? &*compiled.uncut : nullptr, directory + "/" + folder,
                           {force}));
  stages.push_back({first_step, folder});
  return ok_status();
}

}  // namespace

Status write_stages_of(const CompileOptions& options, const Compiled& compiled,
                       const std::string& directory, bool force) {
  PIPER_TRY(make_room_for_stages(directory, force));
  std::vector<PlanStage> stages;
  int64_t first = 0;
  for (size_t k = 0; k < compiled.rampup.size(); ++k) {
    CompileOptions one = options;
    one.dump = nullptr;
    one.stage = k;
    PIPER_ASSIGN(const Compiled made, compile(one));
    PIPER_TRY(write_stage(made, directory, force, first, stages));
    first += compiled.rampup[k].steps;
  }
  PIPER_TRY(write_stage(compiled, directory, force, first, stages));
  return write_stages(stages, directory);
}

}  // namespace piper
