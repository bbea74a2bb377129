// Compiles a strategy again for fewer replicas. Called by piperc --tolerate.
#include "tolerate.h"

#include <algorithm>
#include <cstdio>

#include "rampup.h"

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

// "6 ranks (dp 3): not made: global_batch 8 is …".
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
  std::vector<Compiled> fewer;
  std::vector<PlanFolder::Missing> missing;
  const int64_t apart = compiled.set.world() / axis.size;  // ranks of a replica
  tell(axis, axis.size, compiled.set.world(), "made");
  for (int64_t size = axis.size - 1; size >= axis.size - lost; --size) {
    CompileOptions smaller = options;
    smaller.dump = nullptr;
    smaller.axis_sizes = {{axis.name, size}};
    Result<Compiled> made = compile(smaller);
    if (!made && made.error().code == ExitCode::kRefused) return made.error();
    tell(axis, size, size * apart, made ? "made" : "not made: " + made.error().message);
    if (made)
      fewer.push_back(*std::move(made));
    else
      missing.push_back({size * apart, made.error().message});
  }
  if (fewer.empty())
    return fail(axis.at, "--tolerate {}: no plans for fewer replicas can be made", lost)
        .with_note("help: a batch and microbatches that fewer replicas divide, or a larger number");
  std::vector<SetWithOracles> sets{with_oracles(compiled)};
  for (const Compiled& one : fewer) sets.push_back(with_oracles(one));
  return write_worlds(sets, missing, directory, {force});
}

}  // namespace piper
