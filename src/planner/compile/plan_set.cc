// Makes the plan set of lowered cells, and has it checked and named.
#include "plan_set.h"

#include <algorithm>
#include <map>

#include "piper/plan/flops.h"
#include "piper/plan/verify.h"

namespace piper {
namespace {

std::string cell_name(const Dag& dag, size_t cell) {
  std::string name;
  for (size_t a = 0; a < dag.mesh.size(); ++a)
    if (dag.cells[cell][a] >= 0)
      name += fmt::format("{}{}={}", name.empty() ? "" : " ", dag.mesh[a].name, dag.cells[cell][a]);
  return name.empty() ? "all" : name;
}

// Returns the cell of each rank, from its coordinates on the placed axes.
std::vector<int32_t> cells_of_ranks(const Dag& dag) {
  std::map<std::vector<int32_t>, int32_t> cell_of;
  for (size_t c = 0; c < dag.cells.size(); ++c) cell_of[dag.cells[c]] = static_cast<int32_t>(c);
  const Mesh mesh = mesh_of(dag.mesh);
  std::vector<int32_t> result;
  std::vector<int32_t> key(dag.mesh.size(), -1);
  for (int64_t rank = 0; rank < ranks_of(mesh); ++rank) {
    const std::vector<int64_t> at = coordinates_of(mesh, rank);
    for (size_t a = 0; a < key.size(); ++a)
      if (dag.mesh[a].placed) key[a] = static_cast<int32_t>(at[a]);
    result.push_back(cell_of.at(key));
  }
  return result;
}

// Returns the first directive that lets receives wait to be needed; without one each is posted when
// its send is issued, and streams cannot block each other.
const Prefetch* posts_late(const Strategy& strategy) {
  const auto names_receives = [](const Condition& condition) {
    return condition.tag != "kind" ||
           std::count(condition.words.begin(), condition.words.end(), "recv") > 0;
  };
  for (const Prefetch& one : strategy.prefetches)
    if (one.distance && std::all_of(one.where.begin(), one.where.end(), names_receives))
      return &one;
  return nullptr;
}

// Returns the entry by which devices of a stage, that run programs of their own, gather parameters
// as they need them; null: there is none.
const Replicate* gathers_from_twins(const Strategy& strategy) {
  for (const Replicate& one : strategy.replicates)
    for (const MeshAxis& axis : strategy.mesh)
      if (!axis.twins_of.empty() && one.is_over(axis.name) && one.shard_parameters) return &one;
  return nullptr;
}

}  // namespace

PlanSet make_plan_set(const Dag& dag, Lowered lowered) {
  PlanSet set;
  set.manifest.mesh = mesh_of(dag.mesh);
  std::vector<int32_t> role_of_cell;
  for (RoleProgram& role : lowered.roles) {
    const auto known = std::find(set.roles.begin(), set.roles.end(), role);
    role_of_cell.push_back(static_cast<int32_t>(known - set.roles.begin()));
    if (known == set.roles.end()) set.roles.push_back(std::move(role));
  }
  for (int32_t cell : cells_of_ranks(dag))
    set.role_of_rank.push_back(role_of_cell[static_cast<size_t>(cell)]);
  set.tensor_types = std::move(lowered.tensor_types);
  set.tensors = std::move(lowered.tensors);
  set.manifest.predictions["peak_bytes"] = static_cast<double>(largest_peak(set));
  return set;
}

Status check_plans(const PlanSet& set, const PlanSet* single, const Strategy& strategy) {
  PIPER_ASSIGN(const VerifyReport report, verify_plan_set(set, single));
  if (report.findings.empty()) return ok_status();
  const Finding& first = report.findings.front();
  if (first.rule == "deadlock")
    if (const Prefetch* late = posts_late(strategy))
      return fail(late->at, "prefetch: {}", first.text)
          .with_note(
              "help: 'distance: eager' posts each receive when its send is issued, in one "
              "order of all devices");
  if (first.rule == "deadlock" || first.rule == "collective")
    if (const Replicate* pairs = gathers_from_twins(strategy))
      return fail(pairs->shard_at,
                  "not supported: parameters in parts on the devices of a stage, which do not need "
                  "them in one order: {}",
                  first.text)
          .with_note(
              "help: in the order devices of a stage run the same stages in turn, each for "
              "its own microbatches; or leave 'parameters' out");
  Error error = fail("the plan was refused: {}", first.text).with_code(ExitCode::kRefused);
  for (size_t i = 1; i < report.findings.size() && i < 8; ++i)
    error.notes.push_back(report.findings[i].text);
  error.notes.push_back(
      "internal error: neither model nor strategy are wrong; piperc cannot prove the plan that it "
      "has made, and so writes none");
  error.notes.push_back(
      "help: report these lines to those who work on Piper, with the strategy as `--dump strategy` "
      "prints it and the model as `--describe` does");
  return error;
}

Status name_plan_sets(const CompileOptions& options, const Strategy& strategy, Compiled& compiled) {
  PIPER_ASSIGN(const Bytes model, map_file(options.model));
  const std::string text = print_strategy(strategy), strategy_digest = digest(text);
  const auto name = [&](PlanSet& set) {
    set.manifest.compiler = "piperc " PIPER_VERSION;
    set.manifest.model_digest = digest(as_text(model.span()));
    set.manifest.strategy_digest = strategy_digest;
    set.manifest.strategy_text = text;
  };
  name(compiled.set);
  if (compiled.single) name(*compiled.single);
  if (compiled.uncut) name(*compiled.uncut);
  // Reference plans get no paths: the set's id covers their manifests, and paths would change it.
  compiled.set.manifest.model = options.model;
  compiled.set.manifest.strategy = options.strategy;
  return ok_status();
}

std::string print_schedule(const Dag& dag, const Schedule& schedule) {
  std::string text;
  for (size_t c = 0; c < schedule.order.size(); ++c) {
    text += fmt::format("cell {} ({})\n", c, cell_name(dag, c));
    for (size_t i = 0; i < schedule.order[c].size(); ++i) {
      // A steady step, where steps overlap.
      const bool overlap = !schedule.body.empty();
      const size_t at = overlap ? static_cast<size_t>(schedule.body[c][i]) : i;
      const int32_t steps = overlap ? schedule.ahead[c][at] : 0;
      text += fmt::format("  {}{}\n", print_label(dag, dag.tasks[schedule.order[c][at].index()]),
                          steps == 0   ? ""
                          : steps == 1 ? " (next step)"
                                       : fmt::format(" ({} steps ahead)", steps));
    }
  }
  return text;
}

}  // namespace piper
