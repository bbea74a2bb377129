// The directive `local_steps`: what goes with it, and where the ops of each site are placed.
#include <algorithm>
#include <set>

#include "match.h"
#include "piper/ir/ops.h"
#include "piper/ir/optimizers.h"
#include "piper/plan/sites.h"
#include "piper/planner/outer_steps.h"

namespace piper {
namespace {

Error not_supported(const SourceSpan& at, std::string_view what) {
  return fail(at, "not supported: {} beside local_steps", what);
}

Status check_training(const Strategy& strategy) {
  if (!strategy.weight_versions.empty())
    return not_supported(strategy.weight_versions[0].at, "weight_versions");
  return ok_status();
}

bool is_by_microbatch(const Place& place) {
  const auto names_it = [&](const auto& entry) {
    return std::ranges::count(entry.second.names(), place.micro) > 0;
  };
  return std::ranges::any_of(place.where,
                             [&](const Condition& one) { return one.tag == place.micro; }) ||
         std::ranges::any_of(place.tags, names_it) || std::ranges::any_of(place.on, names_it);
}

Status check_directives(const Strategy& strategy) {
  const std::string& axis = strategy.local_steps[0].over;
  const auto is_taken = [&](const Axes& over) { return std::ranges::count(over, axis) > 0; };
  for (const Replicate& one : strategy.replicates) {
    if (is_taken(one.over))
      return fail(one.over_at, "'{}' is the axis of local_steps, whose sites train by themselves",
                  axis);
    for (const LocalSteps& local : strategy.local_steps)
      if (const std::string& name = optimizer_of(local.outer.groups[0], local.outer).name;
          one.shard_parameters && find_optimizer(name).direction)
        return fail(one.shard_at,
                    "not supported: parameters that are sharded, with an outer optimizer that "
                    "looks at whole tensors ({})",
                    name);
    if (one.gather_dtype || one.gather_in.any())
      return not_supported(one.gather_dtype_at, "parameters that are gathered in fewer bits");
  }
  for (const ShardRule& one : strategy.shards) {
    if (one.pad) return not_supported(one.at, "shards with padding");
    if (is_taken(one.over))
      return fail(one.over_at, "'{}' is the axis of local_steps, whose sites train by themselves",
                  axis);
  }
  for (const Place& place : strategy.places)
    if (is_by_microbatch(place)) return not_supported(place.at, "places by microbatch");
  for (const Place& place : strategy.places)
    for (size_t i = 0; i < place.on.size(); ++i)
      if (place.on[i].first == axis)
        return fail(place.on_at[i], "'{}' is the axis of local_steps, which places its sites",
                    axis);
  for (const OffloadRule& one : strategy.offloads)
    if (one.what == OffloadRule::What::kParameters)
      return not_supported(one.at, "offload of parameters");
  for (const Order& order : strategy.orders) {
    PIPER_ASSIGN(const auto tags, tags_named(order));
    if (std::ranges::count(tags, "step") > 0) return not_supported(order.at, "steps that overlap");
  }
  for (const Split& split : strategy.splits) {
    if (split.of_samples) return not_supported(split.at, "a split of samples");
    if (is_placed(strategy, split))
      return not_supported(split.at, "parts that 'place' puts on devices");
  }
  return ok_status();
}

Status check_tag(const Strategy& strategy, const std::string& tag) {
  const auto taken = [&](const SourceSpan& at) {
    return fail(at, "the tag '{}' has the name of the axis of local_steps", tag);
  };
  for (const auto& rule : strategy.annotate.rules) {
    if (const auto* balance = std::get_if<BalanceRule>(&rule); balance && balance->tag == tag)
      return taken(balance->at);
    if (const auto* annotate = std::get_if<AnnotateRule>(&rule))
      for (const auto& [name, value] : annotate->tags)
        if (name == tag) return taken(annotate->at);
  }
  for (const Place& place : strategy.places)
    for (const auto& [name, value] : place.tags)
      if (name == tag) return taken(place.at);
  return ok_status();
}

Status check_graph_of(const Graph& forward, const LocalSteps& local) {
  if (!forward.updates.empty())
    return not_supported(local.at, "a model that keeps running statistics");
  for (const Param& param : forward.params)
    if (site_of(param.name) || param.name == "step" || counts_outer_updates(param.name))
      return not_supported(local.at, fmt::format("a parameter '{}'", quote_control(param.name)))
          .with_note("states of sites, and of the outer update, have such names")
          .with_note("help: parameters: [{rename: {from: NAME, to: ANOTHER}}]");
  return ok_status();
}

// Returns by entry the names of the trained parameters that it joins.
Result<std::vector<std::set<std::string>>> names_joined(const Graph& forward,
                                                        const std::vector<LocalSteps>& entries) {
  std::vector<std::set<std::string>> joined(entries.size());
  for (const Param& param : forward.params) {
    if (param.frozen) continue;
    std::optional<size_t> by, rest;
    for (size_t e = 0; e < entries.size(); ++e) {
      if (!entries[e].match) rest = e;
      if (!entries[e].match || !has_name(param, *entries[e].match)) continue;
      if (by)
        return fail(entries[e].match_at, "local_steps: '{}' is joined already",
                    quote_control(param.name))
            .with_note("from " + place_of(entries[*by].at));
      by = e;
    }
    if (!by) by = rest;
    if (!by)
      return fail(entries[0].at, "no local_steps joins '{}'", quote_control(param.name))
          .with_note("help: one without 'match' joins all that no other one does");
    joined[*by].insert(param.name);
  }
  if (std::ranges::all_of(joined, &std::set<std::string>::empty)) return joined;
  for (size_t e = 0; e < entries.size(); ++e)
    if (joined[e].empty())
      return fail(entries[e].match ? entries[e].match_at : entries[e].at, "local_steps: {}",
                  entries[e].match ? "no trained parameter is what 'match' says"
                                   : "others join all parameters")
          .with_note("help: `piperc MODEL --describe` lists parameters");
  return joined;
}

std::string explain_delay(const LocalSteps& local, const Graph& taken) {
  int64_t bytes = 0;
  for (const StateUpdate& update : taken.updates)
    if (const auto site = site_of(taken.value(update.state).name); site && site->first == 0)
      bytes += taken.value(update.state).type.bytes();
  if (local.delay == 0)
    return fmt::format("what sites had takes {} more on each", human_bytes(bytes));
  return fmt::format(
      "an update runs beside the step after the one at which it is due, and sites get it {} step{} "
      "after that one; what they had then takes {} more on each",
      local.delay, local.delay == 1 ? "" : "s", human_bytes(bytes));
}

}  // namespace

int64_t sites_of(const Strategy& strategy) {
  if (strategy.local_steps.empty()) return 1;
  for (const MeshAxis& axis : strategy.mesh)
    if (axis.name == strategy.local_steps[0].over) return axis.size;
  return 1;
}

Result<Strategy> place_sites(Strategy strategy) {
  if (strategy.local_steps.empty()) return strategy;
  const LocalSteps& local = strategy.local_steps[0];
  PIPER_TRY(check_training(strategy));
  PIPER_TRY(check_directives(strategy));
  PIPER_TRY(check_tag(strategy, local.over));
  if (strategy.global_batch == 0 && strategy.microbatch_size == 0)
    return fail(local.at,
                "local_steps shares the samples of a step among its sites: how many are "
                "they?")
        .with_note("help: train: {global_batch: 64}");
  const int64_t sites = sites_of(strategy);
  const auto check_shared = [&](int64_t samples, const SourceSpan& at) -> Status {
    if (samples % sites == 0) return ok_status();
    return fail(at, "{} samples cannot be shared by {} sites", samples, sites);
  };
  PIPER_TRY(check_shared(strategy.global_batch, strategy.global_batch_at));
  for (const RampStage& stage : strategy.rampup)
    PIPER_TRY(check_shared(stage.global_batch, stage.at));
  Place place;
  PIPER_ASSIGN(Expr own, Expr::parse(local.over, local.over_at));
  place.on.emplace_back(local.over, std::move(own));
  place.on_at.push_back(local.over_at);
  place.at = local.at;
  place.micro = strategy.micro_name();
  place.where.push_back({.tag = local.over, .kind = Condition::Kind::kAny, .at = local.over_at});
  strategy.places.push_back(std::move(place));
  return strategy;
}

Result<Sites> make_sites(Graph forward, const Strategy& strategy,
                         const std::vector<std::string>& region_tags, Explanations& out) {
  const std::vector<LocalSteps>& entries = strategy.local_steps;
  PIPER_TRY(check_graph_of(forward, entries[0]));
  PIPER_ASSIGN(const auto joined, names_joined(forward, entries));
  const int64_t sites = sites_of(strategy);
  Sites made{copy_for_sites(forward, sites, entries[0].over), {}};
  for (size_t e = 0; e < entries.size(); ++e) {
    const LocalSteps& local = entries[e];
    OuterSpec spec{local.outer, joined[e], e == 0 ? "outer.step" : fmt::format("outer.step.{}", e),
                   local.delay > 0 || local.mix > 0, local.mix};
    spec.optimizer.ema = strategy.train.ema;  // of the model, which the outer parameters are
    Result<Graph> outer = outer_step(made.forward, sites, spec, region_tags);
    if (!outer) {
      if (outer.error().at.file.empty()) outer.error().at = local.at;
      return std::move(outer).error();
    }
    int64_t bytes = 0;
    for (const StateUpdate& update : outer->updates)
      if (!site_of(outer->value(update.state).name))
        bytes += outer->value(update.state).type.bytes();
    Explanation report{
        local.at,
        "local_steps",
        {fmt::format("{} sites take {} step{} of {} samples each between two outer updates{}; "
                     "outer parameters and states take {} more on each site",
                     sites, local.every, local.every == 1 ? "" : "s", forward.batch,
                     entries.size() == 1
                         ? ""
                         : fmt::format(" of {} parameters, {} after each multiple of {}",
                                       joined[e].size(), local.offset, local.every),
                     human_bytes(bytes))}};
    OuterUpdate update{.every = local.every, .offset = local.offset};
    const int64_t first = local.offset == 0 ? local.every : local.offset;
    if (spec.is_delayed) {
      Graph taken = taking_step(made.forward, sites, spec, region_tags);
      report.lines.push_back(explain_delay(local, taken));
      made.outer.push_back({std::move(taken), update, false, local.at});
      update.offset = first + std::min<int64_t>(local.delay, 1);
    }
    if (local.mix > 0)
      report.lines.push_back(
          fmt::format("sites go on with {} of their own parameters and {} of the outer ones",
                      local.mix, 1 - local.mix));
    out.push_back(std::move(report));
    made.outer.push_back({*std::move(outer), update, local.delay > 0, local.at});
    if (!spec.is_delayed) continue;
    update.offset = first + local.delay;
    made.outer.push_back(
        {joining_step(made.forward, sites, spec, region_tags), update, false, local.at});
  }
  return made;
}

}  // namespace piper
