// Collects from the strategy what make_dag needs to build the DAG of a step.
#include <algorithm>

#include "making.h"

namespace piper {

Result<std::vector<std::string>> region_tags(const Strategy& strategy, const Graph& graph) {
  std::vector<std::string> tags;
  const auto add = [&](const std::string& tag) {
    if (graph.tag_index(tag) >= 0 && std::find(tags.begin(), tags.end(), tag) == tags.end())
      tags.push_back(tag);
  };
  for (const Place& place : strategy.places) {
    for (const Condition& condition : place.where) add(condition.tag);
    for (const auto* expressions : {&place.tags, &place.on})
      for (const auto& [name, value] : *expressions)
        for (const std::string& tag : value.names()) add(tag);
  }
  for (const Order& order : strategy.orders) {
    PIPER_ASSIGN(const auto named, tags_named(order));
    for (const std::string& tag : named) add(tag);
  }
  return tags;
}

std::vector<std::string> part_names(const Strategy& strategy) {
  std::vector<std::string> names;
  for (const Split& split : strategy.splits)
    if (split.of_region()) names.push_back(split.as);
  return names;
}

namespace {

// Says which passes are tasks of their own: what an order names.
Status split_passes(const Strategy& strategy, DagSpec& spec) {
  for (const Order& order : strategy.orders) {
    PIPER_ASSIGN(spec.split_update, names_updates(order));
    PIPER_ASSIGN(const auto tags, tags_named(order));
    spec.steps_overlap = std::ranges::count(tags, "step") > 0;
    PIPER_ASSIGN(const auto passes, passes_named(order));
    for (const std::string& pass : passes) {
      spec.split_backward = spec.split_backward || pass == "BI" || pass == "BW";
      spec.split_recompute = spec.split_recompute || pass == "R";
      spec.split_sums = spec.split_sums || pass == "S";
    }
  }
  return ok_status();
}

// Returns whether the first replica by itself rounds its terms as it does beside others.
bool rounds_terms(const Cut& cut, const Summing& summing) {
  const auto rounds = [](const SumRound& round) {
    return round.dtype.has_value() || round.scaled != Scaled::kNone;
  };
  return !summing.each_micro.empty() || std::ranges::any_of(cut.rounds, rounds) ||
         std::ranges::any_of(
             cut.rounds_of, [&](const auto& of) { return std::ranges::any_of(of.second, rounds); });
}

}  // namespace

Result<DagSpec> spec_of(const Graph& step, const Cut& cut, const Making& making) {
  DagSpec spec;
  spec.microbatches = cut.microbatches;
  if (making.is_oracle() && making.target != Target::kFirst) spec.replicas_in_turn = cut.replicas;
  if (making.target != Target::kFirst || rounds_terms(cut, making.summing))
    spec.rounds = cut.rounds, spec.rounds_of = cut.rounds_of;
  // An outer update reads parameters as they are kept.
  if (making.is_oracle() && !making.is_outer) spec.in_blocks = making.in_blocks;
  if (!making.is_single()) spec.in_blocks.reduced.clear();  // it has no terms of replicas
  if (making.trained != nullptr) spec.trained = *making.trained;
  spec.keeps_copies = making.strategy.local_steps.empty();
  if (making.evaluates) spec.copies = making.copies;
  const auto leave_mesh = [&](std::vector<SumRound>& rounds) {
    for (SumRound& round : rounds)
      if (making.is_oracle()) round.axes.clear();  // it has no mesh
  };
  leave_mesh(spec.rounds);
  for (auto& [param, rounds] : spec.rounds_of) leave_mesh(rounds);
  if (making.is_single()) {
    spec.group_of = making.summing.group_of, spec.twin_of = making.summing.twin_of;
    spec.each_micro = making.summing.each_micro;
  }
  for (const DagAxis& axis : cut.mesh) {
    if (axis.twins && axis.replicated && making.target != Target::kUncut)
      spec.twins = axis.size;
    else if (spec.twins > 1 && axis.shares_batch())
      spec.twin_stride *= axis.size;
  }
  const bool like_strategy =
      making.is_single() && !making.summing.orders.empty();  // chunk by chunk
  const Split* const chunks = making.strategy.chunk_split();
  if (making.is_oracle() && !like_strategy) {  // chunks add to sums one after the other
    if (making.is_single() && chunks) spec.region_tags = {chunks->as};
    if (making.is_single() && chunks && chunks->of_tokens) spec.tokens = 0;
    return spec;
  }
  PIPER_ASSIGN(spec.region_tags, region_tags(making.strategy, step));
  if (chunks && chunks->of_tokens) spec.tokens = std::ssize(spec.region_tags);
  if (chunks) spec.region_tags.push_back(chunks->as);
  PIPER_TRY(split_passes(making.strategy, spec));
  spec.split_update = spec.split_update && making.has_order();
  spec.split_sums = spec.split_sums && making.has_order();
  spec.steps_overlap = spec.steps_overlap && making.has_order();
  if (!making.is_oracle()) spec.mesh = cut.mesh;
  return spec;
}

Error with_rules(Error error, const Strategy& strategy, const std::vector<std::string>& tags) {
  if (error.at.line != 0) return error;
  error.at = strategy.annotate.at;
  const auto note = [&](const std::string& tag, const SourceSpan& at) {
    if (std::find(tags.begin(), tags.end(), tag) != tags.end())
      error.notes.push_back(fmt::format("'{}' is set at line {}", tag, at.line));
  };
  for (const auto& rule : strategy.annotate.rules) {
    if (const auto* balance = std::get_if<BalanceRule>(&rule)) note(balance->tag, balance->at);
    if (const auto* annotate = std::get_if<AnnotateRule>(&rule))
      for (const auto& [tag, value] : annotate->tags) note(tag, annotate->at);
  }
  return error;
}

}  // namespace piper
