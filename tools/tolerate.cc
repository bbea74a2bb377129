// Compiles a strategy again for fewer replicas. Called by piperc --tolerate.
#include "tolerate.h"

#include <algorithm>
#include <cstdio>

namespace piper {
namespace {

// Returns the axis that becomes smaller: the first one of the mesh that a replicate directive
// names.
Result<MeshAxis> axis_of_replicas(const Strategy& strategy) {
  for (const MeshAxis& axis : strategy.mesh)
    if (std::ranges::any_of(strategy.replicates, [&](const Replicate& one) {
          return std::ranges::count(one.over, axis.name) > 0;
        }))
      return axis;
  return fail(SourceSpan{strategy.path},
              "--tolerate: the strategy has no replicas that could be fewer")
      .with_note("help: '- replicate: {over: dp}' under 'directives', over an axis of the mesh")
      .with_code(ExitCode::kUsage);
}

Status write_one(const Compiled& compiled, const std::string& directory, bool force,
                 Worlds& worlds) {
  const int64_t ranks = compiled.set.world();
  const std::string folder = world_folder(ranks);
  PIPER_TRY(write_plan_set(compiled.set, compiled.single ? &*compiled.single : nullptr,
                           compiled.uncut ? &*compiled.uncut : nullptr, directory + "/" + folder,
                           {force}));
  worlds.sets.push_back({ranks, folder});
  return ok_status();
}

// "--tolerate: 6 ranks (dp 3): global_batch 8 is …".
void tell(const MeshAxis& axis, int64_t size, int64_t ranks, const std::string& what) {
  fmt::print(stderr, "{} rank{} ({} {}): {}\n", ranks, ranks == 1 ? "" : "s", axis.name, size,
             quote_control(what));
}

}  // namespace

Status write_tolerant(const CompileOptions& options, const Compiled& compiled, int64_t lost,
                      const std::string& directory, bool force) {
  PIPER_ASSIGN(const Strategy strategy,
               parse_strategy(options.strategy, options.defines, options.library));
  PIPER_ASSIGN(const MeshAxis axis, axis_of_replicas(strategy));
  if (lost >= axis.size)
    return fail(axis.at, "--tolerate {}: the axis '{}' has {} replica{}, of which one stays", lost,
                axis.name, axis.size, axis.size == 1 ? "" : "s")
        .with_note(axis.size > 1 ? fmt::format("help: --tolerate {} at most", axis.size - 1)
                                 : "help: a larger axis, such as with -D")
        .with_code(ExitCode::kUsage);
  PIPER_TRY(make_room_for_worlds(directory, force));
  Worlds worlds;
  PIPER_TRY(write_one(compiled, directory, force, worlds));
  const int64_t apart = compiled.set.world() / axis.size;  // ranks of a replica
  tell(axis, axis.size, compiled.set.world(), worlds.sets.back().folder);
  for (int64_t size = axis.size - 1; size >= axis.size - lost; --size) {
    CompileOptions smaller = options;
    smaller.dump = nullptr;
    smaller.axis_sizes = {{axis.name, size}};
    const Result<Compiled> made = compile(smaller);
    if (made) {
      PIPER_TRY(write_one(*made, directory, force, worlds));
    } else {
      if (made.error().code == ExitCode::kRefused) return made.error();
      worlds.missing.push_back({size * apart, made.error().message});
    }
    tell(axis, size, size * apart,
         made ? worlds.sets.back().folder : "not made: " + worlds.missing.back().why);
  }
  if (worlds.sets.size() < 2)
    return fail(axis.at, "--tolerate {}: no plans for fewer replicas can be made", lost)
        .with_note("help: a batch and microbatches that fewer replicas divide, or a larger number");
  return write_worlds(worlds, directory);
}

}  // namespace piper
