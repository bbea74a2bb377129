// The directive `split`: microbatches, and replicas of samples.
#include <algorithm>
#include <set>

#include "piper/planner/directives.h"

namespace piper {
namespace {

// Returns the divisors of `whole` next to `wanted`, as text: "4 or 8".
std::string nearest_divisors(int64_t whole, int64_t wanted) {
  int64_t below = 0, above = 0;
  const auto see = [&](int64_t d) {
    if (d <= wanted) below = std::max(below, d);
    if (d >= wanted && (above == 0 || d < above)) above = d;
  };
  for (int64_t d = 1; d <= whole / d; ++d)
    if (whole % d == 0) see(d), see(whole / d);
  if (below && above && below != above) return fmt::format("{} or {}", below, above);
  return std::to_string(below ? below : above);
}

// Each microbatch has tasks of its own in the plan: these take a second or two.
constexpr int64_t kMaxMicrobatches = 4096;

Result<int64_t> count_microbatches(const Strategy& strategy, int64_t per_replica) {
  int64_t count = 1;
  const Split* split = strategy.batch_split();
  if (split) {
    count = split->into;
    if (count < 1 || per_replica % count != 0)
      return fail(split->at, "split: {} samples a replica cannot be cut into {} equal microbatches",
                  per_replica, count)
          .with_note(fmt::format("help: the nearest legal number is {}",
                                 nearest_divisors(per_replica, count)));
  }
  if (strategy.microbatch_size > 0) {
    const int64_t size = strategy.microbatch_size;
    if (per_replica % size != 0)
      return fail(strategy.microbatch_size_at,
                  "train: {} samples a replica are not a multiple of microbatch_size {}",
                  per_replica, size)
          .with_note(fmt::format("help: the nearest legal size is {}",
                                 nearest_divisors(per_replica, size)));
    if (split && per_replica / size != count)
      return fail(strategy.microbatch_size_at,
                  "train: microbatch_size {} means {} microbatches, but split says {}", size,
                  per_replica / size, count)
          .with_note(
              "help: leave one of them out; where 'rampup' makes the batch grow, "
              "'microbatch_size' alone keeps the size of a microbatch, 'split' how many there are");
    count = per_replica / size;
  }
  if (count > kMaxMicrobatches)
    return fail(split ? split->at : strategy.microbatch_size_at,
                "split: {} microbatches are more than {}, the most that a plan may have", count,
                kMaxMicrobatches)
        .with_note("help: microbatches of more samples, or a smaller batch");
  return count;
}

// Returns a tag that no 'place' puts anywhere; empty: there is none.
std::string tag_to_place(const Strategy& strategy) {
  if (!strategy.places.empty() || strategy.annotate.rules.empty()) return "";
  const auto& rule = strategy.annotate.rules.front();
  if (const auto* balance = std::get_if<BalanceRule>(&rule)) return balance->tag;
  return std::get<AnnotateRule>(rule).tags.front().first;
}

Error unused_axis(const Strategy& strategy, const MeshAxis& axis) {
  Error error = fail(axis.at, "mesh: no directive uses axis '{}' of size {}", axis.name, axis.size);
  if (const std::string tag = tag_to_place(strategy); !tag.empty())
    error.notes.push_back(fmt::format(
        "help: `place: {{where: {{{}: s}}, on: {{{}: s}}}}` puts a {} on each of its devices", tag,
        axis.name, tag));
  error.notes.push_back("help: `replicate: {over: " + axis.name +
                        "}` trains the same model on each of its devices");
  return error;
}

Status check_sharded(const Strategy& strategy, const DagAxis& axis) {
  if (!axis.sharded || !axis.placed) return ok_status();
  const auto shard =
      std::find_if(strategy.shards.begin(), strategy.shards.end(),
                   [&](const ShardRule& each) { return each.over.front() == axis.name; });
  return fail(shard->over_at, "not supported: shard over axis '{}', which place uses", axis.name)
      .with_note("help: add another axis to 'mesh' for shard");
}

// Returns how many values a tag has that tells the devices of a stage apart.
Result<int64_t> count_places(const Place& place, const Expr& tag, int64_t microbatches) {
  std::set<int64_t> values;
  for (int64_t micro = 0; micro < microbatches; ++micro) {
    const Result<int64_t> value = tag.evaluate({{place.micro, micro}, {"M", microbatches}});
    if (!value)
      return fail(tag.at(),
                  "not supported: replicas told apart by a tag that depends on more than "
                  "the microbatch")
          .with_note(value.error().message);
    values.insert(*value);
  }
  return std::ssize(values);
}

// The places of a stage are told apart by a tag, over the microbatches.
Status size_twins(const Strategy& strategy, Cut& cut) {
  for (size_t a = 0; a < strategy.mesh.size(); ++a) {
    if (!cut.mesh[a].twins) continue;
    for (const Place& place : strategy.places)
      for (const auto& [name, tag] : place.tags)
        if (name == cut.mesh[a].name) {
          PIPER_ASSIGN(cut.mesh[a].size, count_places(place, tag, cut.microbatches));
        }
    // The axis of the places may have fewer ranks than the tag has values.
    cut.mesh[a].size = std::min(cut.mesh[a].size, cut.mesh[a + 1].size);
    cut.mesh[a].replicated = cut.mesh[a].size > 1;
  }
  return ok_status();
}

}  // namespace

Result<Cut> apply_split(const Strategy& strategy, int64_t batch, Explanations& out) {
  Cut cut;
  for (const MeshAxis& axis : strategy.mesh) {
    DagAxis dag_axis;
    dag_axis.name = axis.name;
    dag_axis.size = axis.size;
    // Directives over an axis of one rank do nothing.
    for (const Replicate& replicate : strategy.replicates)
      dag_axis.replicated |= replicate.is_over(axis.name) && axis.size > 1;
    for (const Place& place : strategy.places)
      for (const auto& [name, expr] : place.on) dag_axis.placed |= name == axis.name;
    for (const ShardRule& shard : strategy.shards)
      dag_axis.sharded |= shard.over.front() == axis.name && axis.size > 1;
    dag_axis.twins = !axis.twins_of.empty();
    if (dag_axis.placed && dag_axis.replicated)
      return fail(std::ranges::find_if(strategy.replicates,
                                       [&](const Replicate& one) { return one.is_over(axis.name); })
                      ->over_at,
                  "replicate: axis '{}' is already used by place", axis.name)
          .with_note(
              "help: add an axis for replicas to 'mesh'; of places that differ by microbatch "
              "'over' takes the tag that 'place' gives them ('tags')");
    PIPER_TRY(check_sharded(strategy, dag_axis));
    if (!dag_axis.placed && !dag_axis.replicated && !dag_axis.sharded && axis.size > 1)
      return unused_axis(strategy, axis);
    if (dag_axis.shares_batch()) cut.replicas *= axis.size;
    cut.mesh.push_back(std::move(dag_axis));
  }
  const Split* split = strategy.batch_split();
  cut.at = split                          ? split->at
           : strategy.microbatch_size > 0 ? strategy.microbatch_size_at
           : !strategy.replicates.empty() ? strategy.replicates.front().at
                                          : SourceSpan{strategy.path};
  if (batch % cut.replicas != 0)
    return fail(strategy.replicates.front().at,
                "replicate: a batch of {} samples cannot be shared by {} replicas", batch,
                cut.replicas)
        .with_note(batch < cut.replicas
                       ? fmt::format("help: the smallest legal batch is {}", cut.replicas)
                       : fmt::format("help: the nearest legal batches are {} and {}",
                                     batch / cut.replicas * cut.replicas,
                                     (batch / cut.replicas + 1) * cut.replicas));
  PIPER_ASSIGN(cut.microbatches, count_microbatches(strategy, batch / cut.replicas));
  PIPER_TRY(size_twins(strategy, cut));
  if (split || cut.microbatches > 1)
    out.push_back(
        {cut.at,
         "split",
         {fmt::format("batch {} = {} replicas × {} microbatches × {} samples", batch, cut.replicas,
                      cut.microbatches, batch / cut.replicas / cut.microbatches)}});
  // What cannot be cut is reported where the cut is asked for.
  if (cut.microbatches == 1 && cut.replicas > 1) cut.at = strategy.replicates.front().at;
  return cut;
}

}  // namespace piper
