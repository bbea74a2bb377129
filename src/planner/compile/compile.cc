// The compiler, as one list of steps.
#include "piper/planner/compile.h"

#include <algorithm>
#include <map>
#include <set>

#include "idle.h"
#include "known_models.h"
#include "making.h"
#include "model.h"
#include "piper/base/parallel.h"
#include "piper/frontend/autodiff.h"
#include "piper/frontend/patterns.h"
#include "piper/plan/outer_updates.h"
#include "piper/plan/sites.h"
#include "piper/plan/verify.h"
#include "piper/planner/cost.h"
#include "piper/planner/sharding.h"
#include "plan_set.h"
#include "rampup.h"
#include "targets.h"

namespace piper {
namespace {

constexpr std::string_view kSteps[] = {"strategy",  "import",   "patterns", "annotate",
                                       "precision", "autodiff", "sharding", "dag",
                                       "fuse",      "schedule", "plan"};

Result<Imported> read_model(const CompileOptions& options, const Strategy& strategy) {
  const auto read = [&] { return import_onnx(options.model, import_options(strategy, options)); };
  if (!options.known_models) return read();
  return options.known_models->imported.get(key_of_model(strategy, options), read);
}

Result<Recognised> read_patterns(Graph graph, const CompileOptions& options,
                                 const Strategy& strategy) {
  const auto find = [&] { return recognise(std::move(graph)); };
  if (!options.known_models) return find();
  return options.known_models->recognised.get(key_of_model(strategy, options), find);
}

template <class Find>
Result<Graph> find_patterns(const Find& find, Steps& steps, Compiled& compiled) {
  PIPER_ASSIGN(Recognised found, steps.run("patterns", find, [](const Recognised& r) {
    return print_graph(r.graph);
  }));
  for (const auto& [op, count] : found.counts) compiled.patterns.emplace_back(op, count);
  compiled.left = lines_of(found.left);
  return std::move(found.graph);
}

// A param that has an axis's name has its size, too: expressions cannot tell them apart.
void resize_axes(const CompileOptions& options, Strategy& strategy) {
  for (const auto& [name, size] : options.axis_sizes) {
    for (MeshAxis& axis : strategy.mesh)
      if (axis.name == name) axis.size = size;
    for (auto& [param, value] : strategy.params)
      if (param == name) value = size;
  }
}

// Returns what expressions of the strategy may name everywhere.
Variables scope_of(const Strategy& strategy, const Cut& cut) {
  Variables variables = strategy.params;
  for (const MeshAxis& axis : strategy.mesh)
    if (axis.twins_of.empty()) variables.emplace_back(axis.name, axis.size);
  variables.emplace_back("M", cut.microbatches);
  return variables;
}

Status check_devices(const CompileOptions& options, const Cut& cut) {
  return options.devices ? options.devices->check_world(ranks_of(mesh_of(cut.mesh))) : ok_status();
}

Result<Graph> annotated(Graph graph, const Strategy& strategy, const Variables& variables,
                        const JobCosts& costs, Explanations& explain) {
  PIPER_ASSIGN(graph,
               apply_annotate(std::move(graph), strategy.annotate, variables, costs, explain));
  PIPER_ASSIGN(const std::vector<std::string> tags, region_tags(strategy, graph));
  return clone_data_ops(std::move(graph), tags, strategy.annotate.at, explain);
}

// What is kept lies in an evaluation as it does in the step, where others read it.
void seed_kept(const Graph& graph, const Making& of_evaluation, AxisCut& cut) {
  for (const Param& param : graph.params) {
    const auto lies = of_evaluation.lie.find(param.name);
    const bool is_seeded =
        std::any_of(cut.seeds.begin(), cut.seeds.end(),
                    [&](const ShardSeed& seed) { return seed.value == param.value; });
    // The strategy says where what has zeros at its end is cut.
    if (lies == of_evaluation.lie.end() || is_seeded || !lies->second.padded.empty()) continue;
    ShardSeed seed{.value = param.value, .at = cut.seeds.front().at};
    for (const AxisLayout& one : lies->second.over)
      if (one.axis == cut.axis)
        seed.dim = one.layout.dim, seed.outer = one.layout.outer, seed.zigzag = one.layout.mirrored;
    cut.seeds.push_back(std::move(seed));
  }
}

// Outer parameters are cut as those of the sites are in the step, and have as many zeros.
std::vector<AxisCut> cuts_of_outer(const Graph& graph, const Making& making) {
  std::vector<AxisCut> cuts;
  std::map<ValueId, Shape> padded;  // what the axes so far have left to a rank
  for (const Param& param : graph.params) {
    const auto lies = making.lie.find(param.name);
    if (lies == making.lie.end()) continue;
    if (!lies->second.padded.empty()) padded[param.value] = lies->second.padded;
    for (const AxisLayout& one : lies->second.over) {
      auto cut = std::ranges::find(cuts, one.axis, &AxisCut::axis);
      if (cut == cuts.end()) {
        const MeshAxis& axis = making.strategy.mesh[static_cast<size_t>(one.axis)];
        cut = cuts.insert(cuts.end(), AxisCut{one.axis, axis.name, axis.size, {}});
      }
      cut->seeds.push_back({.value = param.value,
                            .dim = one.layout.dim,
                            .at = making.strategy.local_steps[0].at,
                            .outer = one.layout.outer,
                            .zigzag = one.layout.mirrored});
    }
  }
  std::ranges::stable_sort(cuts, {}, [&](const AxisCut& cut) {
    return std::ranges::find(making.cut_axes, cut.axis) - making.cut_axes.begin();
  });
  for (AxisCut& cut : cuts)
    for (ShardSeed& seed : cut.seeds)
      if (const auto left = padded.find(seed.value); left != padded.end() && seed.dim >= 0) {
        int64_t& extent = left->second[static_cast<size_t>(seed.dim)];
        seed.pad_to = extent / std::max<int64_t>(seed.outer, 1);
        extent /= cut.ranks;
      }
  return cuts;
}

// Returns the dims of a parameter on all ranks together, if some have zeros at their ends.
Shape padded_shape(const Value& value, const std::vector<MeshAxis>& mesh) {
  if (value.unpadded.empty()) return {};
  Shape shape = value.type.shape;
  for (const AxisLayout& lies : value.over)
    if (lies.layout.kind == LayoutKind::kSharded)
      shape[static_cast<size_t>(lies.layout.dim)] *= mesh[static_cast<size_t>(lies.axis)].size;
  return shape;
}

void note_kept(const Graph& graph, const std::vector<AxisCut>& cuts, Making& of_step) {
  of_step.cut_axes.clear();
  for (const AxisCut& cut : cuts) of_step.cut_axes.push_back(cut.axis);
  for (const Param& param : graph.params) {
    const Value& value = graph.value(param.value);
    const CutOfState lies{value.over, padded_shape(value, of_step.strategy.mesh)};
    of_step.lie[param.name] = lies;
    if (const auto site = site_of(param.name); site && !of_step.outer.empty())
      for (const std::string& likewise : {std::string(site->name), taken_of(param.name)})
        of_step.lie[likewise] = lies;
  }
}

Error not_in_order(const ShardRule& rule, const std::string& name, int64_t axes,
                   int64_t stretches) {
  return fail(rule.capacity_at,
              "not supported: 'capacity' for rows of '{}', which {} axes of 'shard' cut, one "
              "of them into {} stretches",
              quote_control(name), axes, stretches)
      .with_note(
          "help: without 'capacity' they are sent in any layout; samples, in place of "
          "tokens, may be cut over several axes");
}

// Rows that travel packed are in the order of those of one device. Several axes keep that only
// where each cuts all rows into one stretch a rank.
Status check_packed(const Graph& graph, const Strategy& strategy) {
  const auto rule = std::ranges::find_if(
      strategy.shards, [](const ShardRule& shard) { return shard.capacity.has_value(); });
  if (rule == strategy.shards.end()) return ok_status();
  for (const Node& node : graph.nodes)
    for (const ValueId input : node.inputs) {
      if (node.op != "RowPlaces" || !input.valid()) continue;
      int64_t axes = 0, stretches = 1;
      for (const AxisLayout& lies : graph.value(input).over)
        if (lies.layout.kind == LayoutKind::kSharded)
          ++axes, stretches = std::max(stretches, lies.layout.outer);
      if (axes > 1 && stretches > 1)
        return not_in_order(*rule, graph.value(input).name, axes, stretches);
    }
  return ok_status();
}

// Blocks of outer gradients begin anew in whole rows.
Status check_rows_whole(const Graph& graph, const std::vector<AxisCut>& cuts,
                        const Making& making) {
  const auto is_cut = [](const AxisCut& cut) {
    return std::ranges::any_of(cut.seeds, [](const ShardSeed& seed) { return seed.dim >= 0; });
  };
  const auto cut = std::ranges::find_if(cuts, is_cut);
  if (cut == cuts.end() || std::ranges::count(graph.nodes, "ToBlocks", &Node::op) == 0)
    return ok_status();
  const auto& all = making.strategy.local_steps;
  return fail(std::ranges::find_if(all, &LocalSteps::is_rounded)->dtype_at,
              "not supported: outer gradients that travel rounded, of parameters that ranks along "
              "'{}' have in blocks",
              cut->name)
      .with_note("help: without 'reduce' they travel as they are");
}

Result<std::vector<AxisCut>> cuts_of(const Graph& graph, const Cut& of_batch, Making& making) {
  if (making.is_outer) {
    std::vector<AxisCut> cuts = cuts_of_outer(graph, making);
    PIPER_TRY(check_rows_whole(graph, cuts, making));
    return cuts;
  }
  return apply_shard(graph, making.strategy, of_batch, making.variables, making.explain());
}

// Cuts over one axis after the other: what one cuts is what those before it left to a rank.
Result<Graph> shard_axes(Graph graph, const Cut& of_batch, Making& making) {
  PIPER_ASSIGN(const std::vector<AxisCut> cuts, cuts_of(graph, of_batch, making));
  for (AxisCut cut : cuts) {
    if (making.evaluates) seed_kept(graph, making, cut);
    PIPER_ASSIGN(ShardedGraph made, shard_axis(graph, cut));
    for (const std::string& note : notes_of(graph, made, cut)) {
      making.explain().push_back({cut.seeds.front().at, "shard", {"note: " + note}});
      making.compiled.notes.push_back({"shard over " + cut.name, note});
    }
    explain_axis(made, cut, making.strategy, making.explain(), making.compiled.layouts);
    graph = std::move(made.graph);
  }
  PIPER_TRY(check_packed(graph, making.strategy));
  if (!making.is_section()) note_kept(graph, cuts, making);
  const std::vector<std::string> lines = layouts_of(graph, cuts);
  making.compiled.layouts.insert(making.compiled.layouts.begin(), lines.begin(), lines.end());
  return graph;
}

// Says how parts of a parameter of `run` elements, or of its gradient, lie in blocks, which begin
// anew in each part of what a rank has whole. `at`: where the strategy says so.
Result<PartsInBlocks> parts_in_blocks(const Dag& dag, const Param& param, InBlocks in, int64_t run,
                                      const SourceSpan& at) {
  const Value& value = dag.graph.value(param.value);
  const size_t rank = value.type.shape.size();
  PartsInBlocks how{in.type, in.block, value.type.shape, Shape(rank, 1), run};
  std::vector<int> cuts(rank);
  for (const AxisLayout& lies : value.over) {
    if (lies.layout.kind != LayoutKind::kSharded) continue;
    const auto d = static_cast<size_t>(lies.layout.dim);
    how.outer[d] = lies.layout.outer;
    const bool is_padded = d < value.unpadded.size() && value.unpadded[d] > 0;
    if (++cuts[d] == 1 && !lies.layout.mirrored && (how.outer[d] == 1 || !is_padded)) continue;
    return fail(at, "not supported: '{}' in blocks, of which 'shard' cuts dim {} {}",
                quote_control(param.name), d,
                cuts[d] > 1 ? "over several axes" : "into stretches that are padded or mirrored");
  }
  return how;
}

// Notes how parts of parameters and of their gradients travel in blocks.
Status note_blocks(const Dag& dag, const Cut& cut, Making& making) {
  std::map<ValueId, ValueId> master_of;
  for (const Copy& copy : dag.copies) master_of[copy.copy] = copy.master;
  std::map<ValueId, const Part*> parts;  // by parameter
  for (const Part& part : dag.parts)
    if (part.scaled != Scaled::kNone && part.param.valid()) {
      const auto master = master_of.find(part.param);
      parts.emplace(master == master_of.end() ? part.param : master->second, &part);
    }
  std::map<ValueId, const Sum*> sums;  // by gradient
  for (const Sum& sum : dag.sums) sums.emplace(sum.value, &sum);
  const auto elements = [&](ValueId value) {
    return num_elements(dag.graph.value(value).type.shape);
  };
  const auto entry_of = [&](const Param& param) -> const Replicate& {
    return making.strategy.replicates[cut.lines_of.at(param.name).front()];
  };
  for (const Param& param : dag.graph.params) {
    if (const auto known = parts.find(param.value); known != parts.end()) {
      const Part& part = *known->second;
      PIPER_ASSIGN(making.in_blocks.read[param.name],
                   parts_in_blocks(dag, param, {part.scaled, part.block}, elements(part.value),
                                   entry_of(param).gather_dtype_at));
    }
    const auto sum = sums.find(param.gradient);
    for (size_t r = 0; sum != sums.end() && r < sum->second->cut_rounds(); ++r) {
      const SumRound& round = dag.rounds[static_cast<size_t>(sum->second->rounds[r])];
      if (round.scaled == Scaled::kNone) continue;
      PIPER_ASSIGN(making.in_blocks.reduced[param.name][round.line],
                   parts_in_blocks(
                       dag, param, {round.scaled, round.block}, elements(sum->second->run_after(r)),
                       making.strategy.replicates[static_cast<size_t>(round.line)].dtype_at));
    }
  }
  return ok_status();
}

// Parts that an order names or `place` puts on devices are tasks; in a section, which has another
// order, only the latter. The reference plan runs the same, each stage in one.
Result<Graph> with_parts_as_tasks(Graph graph, const Making& making, DagSpec& spec,
                                  Summing& summing) {
  PIPER_ASSIGN(std::vector<std::string> parts, placed_parts(making.strategy));
  if (making.has_order()) {
    PIPER_ASSIGN(const std::vector<std::string> named, parts_in_orders(making.strategy));
    for (const std::string& name : named)
      if (!std::ranges::count(parts, name)) parts.push_back(name);
  }
  if (parts.empty()) return graph;
  graph = number_spans(std::move(graph), parts, spec.region_tags);
  parts.emplace_back(kSpanOfParts);
  summing.finer = parts.size();
  std::ranges::move(parts, std::back_inserter(spec.region_tags));
  return graph;
}

// Returns the tags that tell tasks apart.
Result<std::vector<std::string>> tags_of_tasks(const DagSpec& spec, const Strategy& strategy) {
  std::vector<std::string> tags = spec.region_tags;
  PIPER_ASSIGN(const std::vector<std::string> placed, placed_parts(strategy));
  PIPER_ASSIGN(const std::vector<std::string> named, parts_in_orders(strategy));
  for (const auto* parts : {&placed, &named}) tags.insert(tags.end(), parts->begin(), parts->end());
  return tags;
}

// Finds the devices of a stage that are replicas of it.
Result<TwinFold> placed_twins(Dag& dag, const Strategy& strategy, Explanations& explain) {
  Result<TwinFold> fold = find_twins(dag);
  const auto entry = std::ranges::find_if(strategy.replicates, [&](const Replicate& one) {
    return std::ranges::any_of(
        dag.mesh, [&](const DagAxis& axis) { return axis.twins && one.is_over(axis.name); });
  });
  if (!fold) {
    Error error = std::move(fold).error();
    if (entry != strategy.replicates.end()) error.at = entry->over_at;
    return error;
  }
  if (fold->twins < 0) return fold;
  const auto is_apart = [](const Sum& sum) { return !sum.twin.empty(); };
  int64_t whole = 0;
  for (const Param& param : dag.graph.params) {
    const auto sum = std::ranges::find(dag.sums, param.gradient, &Sum::value);
    whole += sum != dag.sums.end() && !is_apart(*sum);
  }
  const DagAxis &twins = dag.mesh[static_cast<size_t>(fold->twins)],
                &axis = dag.mesh[static_cast<size_t>(fold->axis)];
  Explanation report{entry->at, "replicate", {}};
  report.lines.push_back(
      fmt::format("each stage is on {} devices of '{}', which are an axis '{}' of the plans' mesh",
                  twins.size, axis.name, twins.name));
  if (whole > 0)
    report.lines.push_back(fmt::format(
        "note: {} parameter{}, read in stages of other devices, too, {} whole on all of them",
        whole, whole == 1 ? "" : "s", whole == 1 ? "stays" : "stay"));
  explain.push_back(std::move(report));
  return fold;
}

// Makes chunks and places them.
Result<Dag> make_chunks(const Graph& step, Cut cut, Making& making) {
  if (making.target == Target::kUncut) {
    cut.microbatches = cut.replicas = 1;
    cut.rounds.clear(), cut.rounds_of.clear();
  }
  const Strategy& strategy = making.strategy;
  Explanations& explain = making.explain();
  PIPER_ASSIGN(DagSpec spec, spec_of(step, cut, making));
  if (!making.is_section()) {
    PIPER_ASSIGN(spec.weight_versions,
                 versions_of(step, strategy.weight_versions, making.variables, explain));
  }
  const auto shard = [&] { return shard_batch(step, {cut.replicas, cut.microbatches, cut.at}); };
  const auto shard_all = [&]() -> Result<Graph> {
    PIPER_ASSIGN(Graph graph, shard());
    if (making.target != Target::kUncut && !making.is_outer) {
      PIPER_ASSIGN(graph, apply_chunks(std::move(graph), strategy, explain));
      PIPER_ASSIGN(graph, apply_parts(std::move(graph), strategy, explain));
    }
    if (!making.is_oracle()) {
      PIPER_ASSIGN(graph, shard_axes(std::move(graph), cut, making));
    }
    return order_parts(round_once(std::move(graph)), part_names(strategy));
  };
  PIPER_ASSIGN(Graph graph, making.steps.run("sharding", shard_all, print_graph));
  if (making.has_order()) {
    TagsOfOps tags{.parts = part_names(strategy)};
    tags.parts.emplace_back(kRegionOfParts);
    PIPER_ASSIGN(tags.tasks, tags_of_tasks(spec, strategy));
    PIPER_ASSIGN(Recomputed recomputed,
                 apply_recompute(std::move(graph), strategy.recomputes, tags, making.variables,
                                 cut.microbatches, making.costs, explain));
    graph = std::move(recomputed.graph);
    spec.variants = std::move(recomputed.variants);
  }
  if (!making.is_section()) graph = rename_in_backward(keep_slopes(std::move(graph)));
  if (!making.is_oracle()) {
    PIPER_ASSIGN(graph, with_parts_as_tasks(std::move(graph), making, spec, making.summing));
  }
  Result<Dag> made = make_dag(std::move(graph), spec);
  if (!made) return with_rules(std::move(made).error(), strategy, spec.region_tags);
  PIPER_ASSIGN(Dag dag, std::move(made));
  for (const Copy& copy : dag.copies) making.copies.insert(dag.graph.value(copy.copy).name);
  if (making.is_oracle()) return dag;
  explain_copies(dag, explain);
  explain_versions(dag, strategy, explain);
  PIPER_ASSIGN(dag, apply_place(std::move(dag), strategy.places, making.variables, explain));
  PIPER_ASSIGN(making.fold, placed_twins(dag, strategy, explain));
  if (!making.is_outer) {
    PIPER_ASSIGN(dag, apply_replicate(std::move(dag), strategy.replicates, cut, explain));
    PIPER_TRY(note_blocks(dag, cut, making));
    PIPER_ASSIGN(dag, apply_sends(std::move(dag), strategy.shards, explain));
  }
  making.summing.group_of = dag.group_of;
  for (const Sum& sum : dag.sums)
    if (!sum.twin.empty()) making.summing.twin_of[sum.name] = sum.twin;
  for (const Sum& sum : dag.sums)
    if (rounds_in_micros(dag, sum)) making.summing.each_micro.insert(sum.name);
  making.summing.region_tags = spec.region_tags;
  if (const Split* chunks = strategy.chunk_split(); chunks && chunks->of_tokens)
    making.summing.tokens = chunks->as;
  return dag;
}

Result<Dag> make_tasks(Dag chunks, Making& making) {
  PIPER_ASSIGN(Dag dag, expand_tasks(std::move(chunks)));
  if (making.is_oracle()) return dag;
  const TransformContext context{making.strategy, making.variables, making.costs, making.explain()};
  PIPER_ASSIGN(dag, apply_transforms(TransformTime::kTasks, std::move(dag), context));
  PIPER_ASSIGN(dag, apply_transforms(TransformTime::kStreams, std::move(dag), context));
  PIPER_TRY(time_messages(dag, making.costs));
  return apply_transforms(TransformTime::kDistances, std::move(dag), context);
}

struct Scheduled {
  Dag dag;
  TaskLists deps;
  std::vector<ComputeOrder> order;
  Schedule schedule;
};
Result<std::vector<ComputeOrder>> order_tasks(const Scheduled& made, Making& making) {
  if (making.is_single())
    return list_schedule(made.dag, made.deps, policy_like(made.dag, making.summing));
  PIPER_ASSIGN(auto order,
               choose_order(made.dag, made.deps, making.has_order() ? &making.strategy : nullptr,
                            making.variables, making.costs, making.explain()));
  if (making.is_oracle()) return order;
  std::vector<std::string> lines;
  find_sum_orders(made.dag, order, making.summing, lines);
  if (making.is_section()) return order;
  for (std::string& line : lines) making.explain().back().lines.push_back(std::move(line));
  return order;
}

Result<Scheduled> schedule_tasks(Dag dag, Making& making) {
  const Strategy& strategy = making.strategy;
  Explanations& explain = making.explain();
  Scheduled made{std::move(dag), {}, {}, {}};
  const auto choose = [&] {
    made.deps = find_dependencies(made.dag);
    return order_tasks(made, making);
  };
  PIPER_ASSIGN(made.order, making.steps.run("order", choose));
  if (making.has_order()) give_streams(made.dag, made.order, explain);
  if (making.has_order() && !strategy.fuses.empty()) {
    const auto fuse = [&] {
      return fused_messages(std::move(made.dag), made.order, strategy, making.variables, explain);
    };
    PIPER_ASSIGN(made.dag, making.steps.run("fuse", fuse, print_dag));
    made.deps = find_dependencies(made.dag);
  }
  const auto schedule = [&] {
    return located(make_schedule(made.dag, made.deps, made.order), strategy);
  };
  const auto print = [&](const Schedule& s) { return print_schedule(made.dag, s); };
  PIPER_ASSIGN(made.schedule, making.steps.run("schedule", schedule, print));
  if (making.has_order() && made.schedule.nearer > 0)
    explain.push_back({strategy.prefetches.front().at,
                       "prefetch",
                       {fmt::format("{} of them are nearer to their use, after their sends",
                                    made.schedule.nearer)}});
  fold_twins(made.dag, making.fold);
  if (!making.has_order()) return made;
  if (!strategy.weight_versions.empty() && !made.dag.versions.empty() && made.schedule.body.empty())
    explain.push_back({strategy.weight_versions[0].at,
                       "weight_versions",
                       {"note: no order begins a step before the update of the one before "
                        "(F[step=1]): more than one version costs memory and delay, and "
                        "saves no time"}});
  return made;
}

std::string print_roles(const Lowered& lowered) {
  std::string text;
  for (const RoleProgram& role : lowered.roles) text += print_plan(role);
  return text;
}

// Returns by parameter the run that a step keeps of it; an outer parameter's, and that of what a
// site has taken, is that of a site's.
std::map<std::string, Part> runs_of(const Dag& step) {
  std::map<ValueId, const Part*> kept;
  for (const Part& part : step.parts)
    if (part.param.valid() && step.graph.value(part.value).kind == ValueKind::kState)
      kept.emplace(part.param, &part);
  std::map<std::string, Part> runs;
  for (const Param& param : step.graph.params) {
    const auto part = kept.find(param.value);
    if (part == kept.end()) continue;
    runs.emplace(param.name, *part->second);
    if (const auto site = site_of(param.name))
      for (const std::string& likewise : {std::string(site->name), taken_of(param.name)})
        runs.emplace(likewise, *part->second);
  }
  return runs;
}

// Returns the entries of offload for an outer update: outer parameters, their states, and what
// sites have taken are where the sites' own are. Copies of an update beside a step are on its
// stream.
std::vector<Offload> offloads_of_outer(const Dag& step, bool beside, Dag& outer) {
  const auto stream = [&](int32_t of_step) {
    return stream_of(outer, beside ? std::string(kBesideStream)
                                   : step.streams[static_cast<size_t>(of_step)].name);
  };
  std::vector<Offload> offloads;
  for (Offload one : step.offloads) {
    if (!one.parameters && !one.optimizer) continue;
    one.items.clear();
    one.out_stream = stream(one.out_stream), one.in_stream = stream(one.in_stream);
    std::set<std::string> names(one.names.begin(), one.names.end());
    for (const std::string& name : one.names)
      if (const auto site = site_of(name)) names.insert({std::string(site->name), taken_of(name)});
    one.names.assign(names.begin(), names.end());
    offloads.push_back(std::move(one));
  }
  return offloads;
}

// Lowers a section beside the step: an evaluation's forward pass, or an outer update of `step`,
// perhaps `beside` its body on a stream of its own. It has the places of the step, and an order of
// its own. It explains nothing, as the step has explained its directives.
Result<Lowered> lower_section(const Graph& graph, const Cut& cut, const Making& of_step,
                              const Dag* step, Summing& summing, bool beside = false) {
  const bool is_outer = step != nullptr;
  Compiled unsaid;
  Making making{.target = of_step.target,
                .options = of_step.options,
                .strategy = of_step.strategy,
                .steps = of_step.steps,
                .compiled = unsaid,
                .variables = of_step.variables,
                .costs = of_step.costs,
                .summing = summing,
                .evaluation = nullptr,
                .of_evaluation = of_step.of_evaluation,
                .lie = of_step.lie,
                .cut_axes = of_step.cut_axes,
                .in_blocks = of_step.in_blocks,
                .trained = of_step.trained,
                .copies = of_step.copies,
                .is_outer = is_outer,
                .evaluates = !is_outer};
  const bool was_quiet = std::exchange(of_step.steps.quiet, true);
  PIPER_ASSIGN(Dag dag, make_chunks(graph, cut, making));
  if (is_outer) keep_runs(dag, *step, runs_of(*step));
  PIPER_ASSIGN(dag, expand_tasks(is_outer ? std::move(dag) : forward_only(std::move(dag))));
  // Receives are posted first, so that any order of the sends works.
  for (Task& task : dag.tasks)
    if (task.kind == InstructionKind::kRecv) task.distance = kEarliest;
  if (beside) {
    for (Task& task : dag.tasks) task.stream = static_cast<int32_t>(dag.streams.size());
    dag.streams.push_back({std::string(kBesideStream)});
  }
  if (is_outer && !making.is_oracle()) dag.offloads = offloads_of_outer(*step, beside, dag);
  PIPER_ASSIGN(const Scheduled scheduled, schedule_tasks(std::move(dag), making));
  of_step.steps.quiet = was_quiet;
  return located(lower(scheduled.dag, scheduled.schedule), of_step.strategy);
}

// Checks that the outer update is on the devices that read the parameters. In 16 bits an op of one
// stage may have become part of a product in another.
Status check_outer(const SourceSpan& at, const std::vector<RoleProgram>& roles,
                   const std::vector<RoleProgram>& outer) {
  for (size_t r = 0; r < roles.size() && r < outer.size(); ++r)
    for (const Tensor& tensor : outer[r].tensors) {
      if (!site_of(tensor.param)) continue;
      const auto has = [&](const RoleProgram& role) {
        return std::ranges::count(role.tensors, tensor.param, &Tensor::param) > 0;
      };
      if (has(roles[r]) || std::ranges::none_of(roles, has)) continue;  // it is of outer updates
      return fail(at,
                  "not supported: local steps where 'precision' moves the op that reads '{}' to "
                  "another stage",
                  quote_control(site_of(tensor.param)->name))
          .with_note("help: let the stages begin elsewhere, not between a product and its bias");
    }
  return ok_status();
}

// Lets each site's inputs read its share of the samples, and adds the outer updates.
Status add_local_steps(const Dag& step, const Cut& cut, const Making& making, Lowered& made) {
  for (RoleProgram& role : made.roles)
    for (DataInput& input : role.inputs)
      if (const auto site = site_of(input.name))
        input.data = site->name, input.share = site->site, input.shares = sites_of(making.strategy);
  Cut whole = cut;  // of no samples
  whole.microbatches = whole.replicas = 1;
  whole.rounds.clear(), whole.rounds_of.clear(), whole.lines_of.clear();
  for (DagAxis& axis : whole.mesh) axis.replicated = false;
  for (size_t u = 0; u < making.outer.size(); ++u) {
    const auto& [graph, update, beside, at] = making.outer[u];
    PIPER_ASSIGN(Lowered outer,
                 lower_section(graph, whole, making, &step, making.of_outer[u], beside));
    PIPER_TRY(check_outer(at, made.roles, outer.roles));
    PIPER_TRY(add_outer(made, std::move(outer), update.every, update.offset));
  }
  return ok_status();
}

// Says where streams and receives ahead make devices idle.
void explain_messages(Scheduled& made, const PlanSet& set, Making& making) {
  explain_idle(made.dag, made.deps, made.schedule, set, making.strategy, making.explain());
  if (auto note = explain_receives(made.dag, made.deps, made.schedule, set, making.strategy,
                                   making.explain()))
    making.compiled.notes.push_back(*std::move(note));
}

Result<PlanSet> make_plans(const Graph& step, const Cut& cut, Making making) {
  const CompileOptions& options = making.options;
  const Strategy& strategy = making.strategy;
  Steps& steps = making.steps;
  PIPER_ASSIGN(Dag dag, make_chunks(step, cut, making));
  const auto to_tasks = [&] { return make_tasks(std::move(dag), making); };
  PIPER_ASSIGN(dag, steps.run("dag", to_tasks, print_dag));
  if (!making.is_oracle()) explain_directions(dag, strategy, making.explain());
  PIPER_ASSIGN(Scheduled scheduled, schedule_tasks(std::move(dag), making));
  if (!making.is_oracle() && options.order) {
    if (const Split* chunks = strategy.chunk_split())
      return fail(chunks->at,
                  "not supported: an order file of chunks of tokens or shares of samples");
    if (making.summing.finer > 0)
      return fail(strategy.orders[0].at, "not supported: an order file of parts of regions");
    PIPER_ASSIGN(making.compiled.order, order_rows(scheduled.dag, scheduled.schedule.compute));
  }
  const auto to_plans = [&]() -> Result<Lowered> {
    PIPER_ASSIGN(Lowered made, located(lower(scheduled.dag, scheduled.schedule), strategy));
    if (!making.outer.empty()) PIPER_TRY(add_local_steps(scheduled.dag, cut, making, made));
    if (making.evaluation != nullptr) {  // of the outer parameters, if there are such
      PIPER_ASSIGN(Lowered forward,
                   lower_section(*making.evaluation, cut, making, nullptr, making.of_evaluation));
      PIPER_TRY(add_evaluation(made, std::move(forward)));
    }
    for (RoleProgram& role : made.roles)
      for (DataInput& input : role.inputs)
        if (const auto found = making.ranges->find(input.name); found != making.ranges->end())
          input.ranges = found->second;
    PIPER_TRY(state_needs(made.roles, options.target));
    return made;
  };
  PIPER_ASSIGN(Lowered lowered, steps.run("plan", to_plans, print_roles));
  PIPER_TRY(explain_plans(lowered, making));
  PlanSet set = make_plan_set(scheduled.dag, std::move(lowered));
  set.manifest.seed = strategy.seed;
  if (making.target != Target::kFirst) set.manifest.predictions["model_flops"] = model_flops(step);
  if (making.has_order()) explain_messages(scheduled, set, making);
  // Of the first replica sums are not those of the batch.
  if (making.target != Target::kFirst && (making.is_oracle() || !options.oracles))
    PIPER_TRY(steps.run("verify", [&] { return check_plans(set, nullptr, strategy); }));
  making.compiled.remains = std::move(scheduled);
  return set;
}

// The single-device plan plays the replicas one after the other; the first only where all are too
// many.
Target single_target(const CompileOptions& options, const Cut& cut, Compiled& compiled) {
  const int64_t instructions = compiled.instructions * cut.replicas;
  if (options.largest_single == 0 || cut.replicas == 1 || instructions <= options.largest_single)
    return Target::kSingle;
  compiled.set.manifest.predictions["single_instructions"] = static_cast<double>(instructions);
  compiled.warnings.push_back(
      fmt::format("the single-device plan plays only the first of {} replicas, enough to prove "
                  "the plans by, not to train: for all it has about {} instructions, more than {}; "
                  "--oracles writes it",
                  cut.replicas, instructions, options.largest_single));
  return Target::kFirst;
}

// Moves what was imported into `compiled`, and what the file says of training into the strategy;
// returns the graph with its loss.
Result<Graph> take_model(Imported& imported, Strategy& strategy, Compiled& compiled) {
  explain_parameters(strategy, imported, compiled.explanations);
  PIPER_TRY(use_training(imported, strategy, compiled.explanations));
  compiled.parameters = std::move(imported.parameters);
  compiled.constants = std::move(imported.constants);
  compiled.separated = std::move(imported.separated);
  compiled.notes = std::move(imported.notes);
  warn_without_modules(strategy, imported.graph, compiled.warnings);
  return with_loss(std::move(imported.graph), strategy);
}

// Adds the values that no step reads or changes, so that checkpoints and exports have them.
void keep_untouched(std::vector<NamedTensor> untouched, PlanSet& set) {
  for (NamedTensor& tensor : untouched) {
    set.tensor_types.emplace_back(kUntouched + tensor.name, tensor.type);
    set.tensors.emplace_back(kUntouched + tensor.name, std::move(tensor.data));
  }
}

void explain_set(const Strategy& strategy, const std::string& target, Compiled& compiled) {
  explain_fast_sums(strategy, target, compiled.explanations);
  if (const std::optional<Picture> picture = picture_of(compiled.set)) {
    predict_time(*picture, compiled.set);
    if (auto note = explain_pairs(compiled.set, *picture, strategy, compiled.explanations))
      compiled.notes.push_back(*std::move(note));
  }
  for (const LeftOut& one : strategy.left_out)
    compiled.explanations.push_back({one.at, one.what, {"left out: " + one.why}});
}

// Compiles once, from the files to the plan sets: each method is a phase and reads what those
// before it have left.
class Compilation {
 public:
  explicit Compilation(const CompileOptions& options) : options_(options) {}

  Result<Strategy> read_strategy() const {
    PIPER_ASSIGN(Strategy read,
                 parse_strategy(options_.strategy, options_.defines, options_.library));
    resize_axes(options_, read);
    return read;
  }

  // Reads the strategy, and the model's forward graph with its loss.
  Status read() {
    const auto parse = [&] { return read_strategy(); };
    PIPER_ASSIGN(Strategy as_read, steps_.run("strategy", parse, print_strategy));
    compiled_.rampup = as_read.rampup;
    PIPER_ASSIGN(written_, join_axes(std::move(as_read), compiled_.explanations));
    PIPER_ASSIGN(strategy_, place_sites(written_));
    const auto read_graph = [&] { return read_model(options_, strategy_); };
    PIPER_ASSIGN(Imported imported, steps_.run("import", read_graph, [](const Imported& i) {
      return print_graph(i.graph);
    }));
    PIPER_ASSIGN(Graph graph, take_model(imported, strategy_, compiled_));
    untouched_ = std::move(imported.untouched);
    const auto find = [&] { return read_patterns(std::move(graph), options_, strategy_); };
    PIPER_ASSIGN(graph_, find_patterns(find, steps_, compiled_));
    return ok_status();
  }

  // Gives each site a copy of the model, and makes the outer updates.
  Status split_sites() {
    if (strategy_.local_steps.empty()) return ok_status();
    PIPER_ASSIGN(const std::vector<std::string> tags, region_tags(written_, graph_));
    PIPER_ASSIGN(Sites sites, make_sites(std::move(graph_), strategy_, tags, variables_,
                                         trained_parts_, compiled_.explanations));
    graph_ = std::move(sites.forward), outer_ = std::move(sites.outer);
    return ok_status();
  }

  // Adds regions, dtypes and what is trained; makes the graphs of evaluation and outer updates.
  Status mark_forward() {
    PIPER_ASSIGN(cut_, apply_split(strategy_, graph_.batch, compiled_.explanations));
    variables_ = scope_of(strategy_, cut_);
    PIPER_TRY(check_devices(options_, cut_));
    costs_.emplace(options_.devices.get(), strategy_, cut_, variables_);
    const auto annotate = [&] {
      return annotated(std::move(graph_), strategy_, variables_, *costs_, compiled_.explanations);
    };
    PIPER_ASSIGN(graph_, steps_.run("annotate", annotate, print_graph));
    const auto cast = [&] {
      return apply_transforms(TransformTime::kForward, std::move(graph_),
                              {strategy_, variables_, *costs_, compiled_.explanations});
    };
    PIPER_ASSIGN(graph_, steps_.run("precision", cast, print_graph));
    graph_ = train_parts(std::move(graph_), strategy_, trained_parts_, compiled_.explanations);
    explain_training(strategy_, graph_, compiled_.explanations);
    if (options_.evaluation) PIPER_TRY(make_evaluation());
    return split_sites();
  }

  // Makes the training step: gradients and updates.
  Status derive() {
    Strategy trained = strategy_;
    trained.train.sites = sites_of(strategy_);
    if (!outer_.empty()) trained.train.ema.reset();  // that is of the outer parameters
    PIPER_TRY(count_tokens(graph_, options_, trained));
    const auto differentiated = [&] {
      const bool frozen = std::ranges::all_of(graph_.params, &Param::frozen);
      Result<Differentiated> made = differentiate(std::move(graph_), trained.train);
      const auto rule =
          std::ranges::find(strategy_.parameters, ParamRule::Kind::kFreeze, &ParamRule::kind);
      if (!made && frozen && rule != strategy_.parameters.end()) made.error().at = rule->at;
      return made;
    };
    PIPER_ASSIGN(Differentiated step,
                 steps_.run("autodiff", differentiated,
                            [](const Differentiated& d) { return print_graph(d.graph); }));
    const auto find_backward = [&] { return recognise(std::move(step.graph)); };
    PIPER_ASSIGN(graph_, find_patterns(find_backward, steps_, compiled_));
    PIPER_ASSIGN(graph_, accumulate_in_halves(std::move(graph_), strategy_.precisions));
    for (const std::string& name : step.without_gradient)
      compiled_.notes.push_back({name, "gets no gradient and is not trained"});
    PIPER_ASSIGN(cut_, couple_replicas(graph_, strategy_, std::move(cut_), compiled_.explanations));
    PIPER_ASSIGN(cut_, choose_replicas(graph_, strategy_, variables_, std::move(cut_)));
    PIPER_ASSIGN(graph_,
                 round_gathered(std::move(graph_), strategy_, cut_, compiled_.explanations));
    PIPER_ASSIGN(graph_,
                 round_sent(std::move(graph_), strategy_, variables_, &compiled_.explanations));
    if (Explanations unsaid; evaluation_) {
      PIPER_ASSIGN(evaluation_, round_gathered(*std::move(evaluation_), strategy_, cut_, unsaid));
      PIPER_ASSIGN(evaluation_,
                   round_sent(*std::move(evaluation_), strategy_, variables_, nullptr));
    }
    return ok_status();
  }

  // Makes the plans, and those of the oracles that prove them.
  Result<Compiled> plan() {
    ranges_ = find_ranges(graph_);
    PIPER_ASSIGN(compiled_.set, plans_of(Target::kStrategy));
    keep_untouched(std::move(untouched_), compiled_.set);
    explain_set(strategy_, options_.target, compiled_);
    if (options_.oracles) {
      steps_.quiet = true;
      PIPER_ASSIGN(compiled_.single, plans_of(single_target(options_, cut_, compiled_)));
      PIPER_ASSIGN(compiled_.uncut, plans_of(Target::kUncut));
      steps_.quiet = false;
      const auto check = [&] { return check_plans(compiled_.set, &*compiled_.single, strategy_); };
      PIPER_TRY(steps_.run("verify", check));
    }
    PIPER_TRY(name_plan_sets(options_, written_, compiled_));
    return std::move(compiled_);
  }

 private:
  Status make_evaluation() {
    for (const OffloadRule& rule : strategy_.offloads)
      if (rule.what == OffloadRule::What::kParameters)
        return fail(rule.at, "not supported: --eval with parameters that are on the host");
    PIPER_ASSIGN(evaluation_, evaluation_step(graph_, strategy_, compiled_.explanations));
    return ok_status();
  }

  // The oracles follow what the strategy's plans find out: the order of sums, where values lie.
  Result<PlanSet> plans_of(Target target) {
    of_outer_.resize(outer_.size());
    return make_plans(graph_, cut_,
                      {target, options_, strategy_, steps_, compiled_, variables_, *costs_,
                       summing_, evaluation_ ? &*evaluation_ : nullptr, of_evaluation_, lie_,
                       cut_axes_, in_blocks_, outer_, of_outer_, &trained_parts_, &ranges_});
  }

  const CompileOptions& options_;
  Compiled compiled_;
  Steps steps_{options_, compiled_};
  Strategy written_;   // as in the file, with its axes joined
  Strategy strategy_;  // with the places of sites
  std::vector<NamedTensor> untouched_;
  Graph graph_;  // forward; after derive() the step
  Cut cut_;
  Variables variables_;
  std::optional<JobCosts> costs_;
  std::map<std::string, TrainedPart> trained_parts_;
  InputRanges ranges_;  // of the step
  std::optional<Graph> evaluation_;
  std::vector<OuterGraph> outer_;
  Summing summing_, of_evaluation_;
  std::vector<Summing> of_outer_;  // as `outer_`
  std::map<std::string, CutOfState> lie_;
  std::vector<int32_t> cut_axes_;
  InBlocksOf in_blocks_;
};

}  // namespace

std::span<const std::string_view> dump_steps() { return kSteps; }

Result<Compiled> compile(const CompileOptions& options) {
  Compilation one(options);
  PIPER_TRY(one.read());
  PIPER_TRY(one.mark_forward());
  PIPER_TRY(one.derive());
  return one.plan();
}

}  // namespace piper
