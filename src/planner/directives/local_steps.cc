// The directive `local_steps`: what goes with it, and where the ops of each site are placed.
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "loads.h"
#include "match.h"
#include "piper/ir/ops.h"
#include "piper/ir/optimizers.h"
#include "piper/plan/outer_updates.h"
#include "piper/plan/sites.h"
#include "piper/planner/outer_steps.h"

namespace piper {
namespace {

Error not_supported(const SourceSpan& at, std::string_view what, std::string why) {
  return fail(at, "not supported: {} beside local_steps", what).with_note(std::move(why));
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
    for (const LocalSteps& local : strategy.local_steps)
      if (one.shard_parameters && local.is_rounded())
        return fail(local.dtype_at,
                    "not supported: outer gradients that travel rounded, of parameters that "
                    "'replicate' shards")
            .with_note(fmt::format("sharded at {}", place_of(one.shard_at)))
            .with_note(
                "help: without 'reduce' they travel as they are; with 'shard: [optimizer, "
                "gradients]' the parameters stay whole");
  }
  for (const ShardRule& one : strategy.shards) {
    if (is_taken(one.over))
      return fail(one.over_at, "'{}' is the axis of local_steps, whose sites train by themselves",
                  axis);
  }
  for (const MeshAxis& one : strategy.mesh)
    if (!one.twins_of.empty())
      return not_supported(std::ranges::find_if(
                               strategy.replicates,
                               [&](const Replicate& entry) { return entry.is_over(one.name); })
                               ->over_at,
                           fmt::format("replicas that the tag '{}' tells apart", one.name),
                           "an outer update knows only replicas of an axis of the mesh")
          .with_note("help: without the entry each device of a stage has a copy");
  for (const Place& place : strategy.places)
    for (size_t i = 0; i < place.on.size(); ++i)
      if (place.on[i].first == axis)
        return fail(place.on_at[i], "'{}' is the axis of local_steps, which places its sites",
                    axis);
  for (const Split& split : strategy.splits) {
    if (split.of_samples && std::ranges::any_of(strategy.places, [&](const Place& place) {
          return std::ranges::count(place.where, split.as, &Condition::tag) > 0;
        }))
      return not_supported(split.at, "shares of samples that 'place' puts on devices",
                           "several devices would have a site's parameters, of which an outer "
                           "update takes one copy");
  }
  return ok_status();
}

Status check_tag(const Strategy& strategy, const std::string& tag) {
  const auto taken = [&](const SourceSpan& at) {
    return fail(at, "the tag '{}' has the same name as the axis of local_steps; rename it", tag);
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
  for (const Param& param : forward.params)
    if (site_of(param.name) || param.name == "step" || counts_outer_updates(param.name))
      return not_supported(local.at, fmt::format("a parameter '{}'", quote_control(param.name)),
                           "states of sites, and of the outer update, have such names")
          .with_note("help: parameters: [{rename: {from: NAME, to: ANOTHER}}]");
  return ok_status();
}

// Names what one entry joins.
struct JoinedNames {
  std::set<std::string> trained;
  std::set<std::string> statistics;  // that the model itself keeps
};

// Returns by entry what it joins.
Result<std::vector<JoinedNames>> names_joined(const Graph& forward,
                                              const std::vector<LocalSteps>& entries) {
  std::vector<JoinedNames> joined(entries.size());
  for (const Param& param : forward.params) {
    const bool is_kept = std::ranges::count(forward.updates, param.value, &StateUpdate::state) > 0;
    if (param.frozen && !is_kept) continue;
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
    (param.frozen ? joined[*by].statistics : joined[*by].trained).insert(param.name);
  }
  const auto is_idle = [](const JoinedNames& one) { return one.trained.empty(); };
  if (std::ranges::all_of(joined, is_idle)) return joined;
  for (size_t e = 0; e < entries.size(); ++e)
    if (is_idle(joined[e]))
      return fail(entries[e].match ? entries[e].match_at : entries[e].at, "local_steps: {}",
                  entries[e].match ? "no trained parameter is what 'match' says"
                                   : "others join all parameters")
          .with_note("help: `piperc MODEL --describe` lists parameters");
  return joined;
}

// Returns at which of the steps before sites get it a delayed update runs, a part beside each: a
// step has one update beside it, so those that others take are left out. Each is a section of the
// plan, which limits their number.
std::vector<int64_t> steps_beside(const LocalSteps& local, int64_t first, size_t parameters,
                                  const std::vector<OuterGraph>& others) {
  constexpr size_t kMost = 8;
  std::vector<int64_t> free;
  for (int64_t step = first + 1; step <= first + local.delay; ++step)
    if (std::ranges::none_of(others, [&](const OuterGraph& other) {
          return other.beside && share_a_step(other.update, {.every = local.every, .offset = step});
        }))
      free.push_back(step);
  if (free.empty()) return {first + 1};
  const size_t count = std::min({free.size(), std::max<size_t>(parameters, 1), kMost});
  std::vector<int64_t> steps;
  for (size_t k = 0; k < count; ++k) steps.push_back(free[k * free.size() / count]);
  return steps;
}

// Shares parameters out, the largest ones first, each to the part that has fewest bytes. Equal ones
// of neighbouring layers come one after the other, so that each stage has some in all parts.
std::vector<std::set<std::string>> in_parts(const Graph& forward,
                                            const std::set<std::string>& names, size_t count) {
  std::vector<std::pair<int64_t, std::string>> sizes;
  for (const Param& param : forward.params)
    if (names.contains(param.name))
      sizes.emplace_back(forward.value(param.value).type.bytes(), param.name);
  std::ranges::stable_sort(sizes, std::greater(), [](const auto& one) { return one.first; });
  std::vector<std::set<std::string>> parts(count);
  std::vector<int64_t> sums(count);
  for (const auto& [bytes, name] : sizes) {
    const auto least = static_cast<size_t>(std::ranges::min_element(sums) - sums.begin());
    parts[least].insert(name);
    sums[least] += bytes;
  }
  return parts;
}

Result<bool> steps_overlap(const Strategy& strategy) {
  for (const Order& order : strategy.orders) {
    PIPER_ASSIGN(const auto tags, tags_named(order));
    if (std::ranges::count(tags, "step") > 0) return true;
  }
  return false;
}

// `parts` is 0 where no part runs beside a step.
std::string explain_delay(const LocalSteps& local, size_t parts, const Graph& taken) {
  int64_t bytes = 0;
  for (const StateUpdate& update : taken.updates)
    if (const auto site = site_of(taken.value(update.state).name); site && site->site == 0)
      bytes += taken.value(update.state).type.bytes();
  if (local.delay == 0)
    return fmt::format("what sites had takes {} more on each", human_bytes(bytes));
  return fmt::format(
      "an update runs {}, and sites get it {} step{} after the one at which it is due; what they "
      "had then takes {} more on each",
      parts == 0   ? "when steps that overlap have ended"
      : parts == 1 ? "beside a step"
                   : fmt::format("in {0} parts beside {0} steps", parts),
      local.delay, local.delay == 1 ? "" : "s", human_bytes(bytes));
}

// Makes the copies of the model, and entry by entry the steps that join some parameters of them.
class SiteMaker {
 public:
  SiteMaker(const Graph& forward, const Strategy& strategy,
            const std::vector<std::string>& region_tags, const Variables& variables,
            std::map<std::string, TrainedPart>& trained, Explanations& out)
      : forward_(forward),
        strategy_(strategy),
        region_tags_(region_tags),
        variables_(variables),
        sites_(sites_of(strategy)),
        trained_(trained),
        out_(out) {
    for (const MeshAxis& axis : strategy.mesh) mesh_.emplace_back(axis.name, axis.size);
  }

  Result<Sites> run() {
    const std::vector<LocalSteps>& entries = strategy_.local_steps;
    PIPER_TRY(check_graph_of(forward_, entries[0]));
    PIPER_ASSIGN(overlaps_, steps_overlap(strategy_));
    PIPER_ASSIGN(const auto joined, names_joined(forward_, entries));
    find_parts();
    made_.forward = copy_for_sites(forward_, sites_, entries[0].over);
    PIPER_TRY(find_readers());
    for (size_t e = 0; e < entries.size(); ++e) PIPER_TRY(add_entry(entries[e], joined[e]));
    return std::move(made_);
  }

 private:
  Status add_entry(const LocalSteps& local, const JoinedNames& joined) {
    const int64_t first = local.offset == 0 ? local.every : local.offset;
    const bool beside = local.delay > 0 && !overlaps_;
    const std::vector<int64_t> steps =
        beside ? steps_beside(local, first, joined.trained.size(), made_.outer)
               : std::vector{first + local.delay};
    OuterSpec spec{local.outer, joined.trained, "", local.delay > 0 || local.mix > 0, local.mix};
    spec.optimizer.ema = strategy_.train.ema;  // of the model, which the outer parameters are
    if (local.is_rounded()) spec.sent = SentAs{local.dtype, local.in};
    PIPER_ASSIGN(std::vector<Graph> parts,
                 outer_steps(local, spec, joined.statistics, steps.size()));
    spec.names.insert(joined.statistics.begin(), joined.statistics.end());
    out_.push_back({local.at, "local_steps", {explain_entry(local, joined, parts)}});
    if (spec.is_delayed) {
      Graph taken = taking_step(readers_, sites_, spec, tags_);
      out_.back().lines.push_back(explain_delay(local, beside ? steps.size() : 0, taken));
      add(local, std::move(taken), local.offset, false);
    }
    if (spec.sent) out_.back().lines.push_back(explain_sent(joined, *spec.sent));
    if (local.mix > 0)
      out_.back().lines.push_back(
          fmt::format("sites go on with {} of their own parameters and {} of the outer ones",
                      local.mix, 1 - local.mix));
    for (size_t k = 0; k < parts.size(); ++k)
      add(local, std::move(parts[k]), spec.is_delayed ? steps[k] : local.offset, beside);
    if (spec.is_delayed)
      add(local, joining_step(readers_, sites_, spec, tags_), first + local.delay, false);
    return ok_status();
  }

  // Makes the steps of the outer optimizer, one for each part of the parameters. Statistics, which
  // are small, are in the first part.
  Result<std::vector<Graph>> outer_steps(const LocalSteps& local, const OuterSpec& spec,
                                         const std::set<std::string>& statistics, size_t count) {
    std::vector<Graph> steps;
    for (std::set<std::string>& names : in_parts(forward_, spec.names, count)) {
      OuterSpec part = spec;
      part.names = std::move(names);
      if (steps.empty()) part.names.insert(statistics.begin(), statistics.end());
      part.step = counters_ == 0 ? "outer.step" : fmt::format("outer.step.{}", counters_);
      ++counters_;
      Result<Graph> step = outer_step(readers_, sites_, part, tags_);
      if (!step) {
        if (step.error().at.file.empty()) step.error().at = local.at;
        return std::move(step).error();
      }
      steps.push_back(*std::move(step));
    }
    return steps;
  }

  std::string explain_entry(const LocalSteps& local, const JoinedNames& joined,
                            const std::vector<Graph>& parts) const {
    int64_t bytes = 0;
    for (const Graph& part : parts)
      for (const StateUpdate& update : part.updates)
        if (const Value& state = part.value(update.state); !site_of(state.name))
          bytes += state.type.bytes();
    return fmt::format(
        "{} sites take {} step{} of {} samples each between two outer updates{}; outer parameters "
        "and states take {} more on each site",
        sites_, local.every, local.every == 1 ? "" : "s", forward_.batch,
        strategy_.local_steps.size() == 1
            ? ""
            : fmt::format(" of {} parameters, {} after each multiple of {}", joined.trained.size(),
                          local.offset, local.every),
        human_bytes(bytes));
  }

  std::string explain_sent(const JoinedNames& joined, const SentAs& how) const {
    SentBytes bytes;
    for (const Param& param : forward_.params)
      if (joined.trained.contains(param.name))
        bytes.add({DType::kF32, forward_.value(param.value).type.shape}, how, 0);
    return fmt::format("note: distances, and the gradients made of them, {}, and a gradient twice",
                       bytes.explain(how, "from each site, and as much to it"));
  }

  // Finds the ops that read the parameters. Where places depend on the microbatch or the part,
  // several devices have a copy, so there are ops for each of these.
  Status find_readers() {
    readers_ = made_.forward;
    tags_ = region_tags_;
    for (const Split& split : strategy_.splits)
      if (is_placed(strategy_, split)) {
        std::vector<int32_t> parts(static_cast<size_t>(split.into));
        std::iota(parts.begin(), parts.end(), 0);
        const std::vector<bool> in_parts = ops_in_parts(readers_, split);
        const std::vector<bool> apart = readers_in_parts(in_parts);
        read_parts_apart(split.as, in_parts);
        tell_apart(split.as, parts, apart);
      }
    const auto place = std::ranges::find_if(strategy_.places, is_by_microbatch);
    if (place == strategy_.places.end()) return ok_status();
    PIPER_ASSIGN(const std::vector<int32_t> micros, micros_apart());
    tell_apart(place->micro, micros, std::vector(readers_.nodes.size(), true));
    return ok_status();
  }

  // Returns by op whether it is in parts, or casts a parameter for ops that all are.
  std::vector<bool> readers_in_parts(const std::vector<bool>& in_parts) const {
    const auto all_readers = readers(readers_);
    std::vector<bool> found = in_parts;
    for (size_t n = 0; n < found.size(); ++n) {
      const Node& node = readers_.nodes[n];
      if (!casts_state(readers_, node)) continue;
      const auto& by = all_readers[node.outputs[0].index()];
      found[n] =
          !by.empty() && std::ranges::all_of(by, [&](NodeId id) { return in_parts[id.index()]; });
    }
    return found;
  }

  // Lets each op in parts read its own part of a parameter that is trained in parts, on the device
  // of that part. The op that joins the parts reads them for all other ops, where these are.
  void read_parts_apart(const std::string& name, const std::vector<bool>& in_parts) {
    const auto all_readers = readers(readers_);
    const int tag = readers_.add_tag(name);
    for (const Param& param : readers_.params) {
      const auto part = trained_.find(param.name);
      if (part == trained_.end()) continue;
      for (const NodeId id : all_readers[param.value.index()]) {
        Node& reader = readers_.node(id);
        if (reader.outputs.empty()) continue;  // of another split
        const bool casts = casts_state(readers_, reader);
        Node own = casts ? readers_.node(all_readers[reader.outputs[0].index()][0]) : reader;
        const auto& by = all_readers[own.outputs[0].index()];
        const auto inside =
            std::ranges::count_if(by, [&](NodeId read) { return in_parts[read.index()]; });
        const bool all = inside == std::ssize(by);
        readers_.set_tag(all && casts ? reader : own, tag,
                         static_cast<int32_t>(part->second.index));
        if (inside == 0 || (all && casts)) continue;
        if (all) std::erase(reader.inputs, param.value);
        own.inputs = {param.value};
        own.outputs.clear();
        readers_.add_node(std::move(own), {});
      }
    }
  }

  // Lets each of these ops be there once for each of these values of a tag.
  void tell_apart(const std::string& name, const std::vector<int32_t>& numbers,
                  const std::vector<bool>& ops) {
    if (std::ranges::count(tags_, name) == 0) tags_.push_back(name);
    const int tag = readers_.add_tag(name);
    for (const int32_t number : numbers)
      for (size_t n = 0; n < ops.size(); ++n) {
        if (!ops[n]) continue;
        Node node = readers_.nodes[n];
        readers_.set_tag(node, tag, number);
        if (number == numbers.front()) {
          readers_.nodes[n] = std::move(node);
          continue;
        }
        std::vector<TensorType> types;
        for (const ValueId made : node.outputs) types.push_back(readers_.value(made).type);
        node.outputs.clear();
        readers_.add_node(std::move(node), types);
      }
  }

  // Returns the first of all microbatches that `place` puts alike.
  Result<std::vector<int32_t>> micros_apart() const {
    const Graph& graph = made_.forward;
    std::map<std::vector<int32_t>, const Node*> regions;
    for (const Node& node : graph.nodes) regions.try_emplace(node.tags, &node);
    const auto count =
        std::ranges::find(variables_, "M", [](const auto& one) { return one.first; });
    std::vector<int32_t> firsts;
    std::set<std::vector<int64_t>> known;
    for (int32_t micro = 0; micro < count->second; ++micro) {
      std::vector<int64_t> where;
      for (const auto& [tags, node] : regions) PIPER_TRY(place_of_micro(*node, micro, where));
      if (known.insert(std::move(where)).second) firsts.push_back(micro);
    }
    return firsts;
  }
  // Adds where a node of the microbatch is placed.
  Status place_of_micro(const Node& node, int32_t micro, std::vector<int64_t>& where) const {
    const Graph& graph = made_.forward;
    for (const Place& place : strategy_.places) {
      PIPER_ASSIGN(const auto placed, place_node(graph, node, place, variables_,
                                                 named_tags(graph, node), micro, mesh_));
      where.push_back(placed ? 1 : 0);
      if (!placed) continue;
      for (const auto& [tag, value] : placed->tags) where.push_back(value);
      for (const auto& [axis, coordinate] : placed->on) where.push_back(coordinate);
    }
    return ok_status();
  }

  // Finds which parts are trained by themselves: the outer ones, those of sites, and what these
  // had.
  void find_parts() {
    for (const Param& param : forward_.params) {
      const auto part = trained_.find(param.name);
      if (part == trained_.end()) continue;
      const TrainedPart of_whole = part->second;
      for (int64_t k = 0; k < sites_; ++k) {
        const std::string name = name_at_site(k, param.name);
        trained_.try_emplace(name, of_whole);
        trained_.try_emplace(taken_of(name), of_whole);
      }
    }
  }

  void add(const LocalSteps& local, Graph graph, int64_t offset, bool beside) {
    const OuterUpdate update{.every = local.every, .offset = offset};
    made_.outer.push_back({std::move(graph), update, beside, local.at});
  }

  const Graph& forward_;
  const Strategy& strategy_;
  const std::vector<std::string>& region_tags_;
  const Variables& variables_;
  const int64_t sites_;
  Mesh mesh_;
  std::map<std::string, TrainedPart>& trained_;
  Explanations& out_;
  Sites made_;
  Graph readers_;                  // of parameters: of all sites, and of a microbatch for each copy
  std::vector<std::string> tags_;  // that tell their regions apart
  bool overlaps_ = false;          // steps of the sites do
  size_t counters_ = 0;            // of outer steps
};

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
  PIPER_TRY(check_directives(strategy));
  PIPER_TRY(check_tag(strategy, local.over));
  if (strategy.global_batch == 0 && strategy.microbatch_size == 0)
    return fail(local.at,
                "local_steps needs the number of samples in a step, which its sites share")
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
                         const std::vector<std::string>& region_tags, const Variables& variables,
                         std::map<std::string, TrainedPart>& trained, Explanations& out) {
  return SiteMaker(forward, strategy, region_tags, variables, trained, out).run();
}

}  // namespace piper
