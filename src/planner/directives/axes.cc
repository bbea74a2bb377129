// Products of mesh axes, as `over: [pod, dp]` writes them. Axes that are named together only are
// one axis of all their ranks, and nothing after this knows of them. A tensor that is cut over axes
// which also have uses of their own is cut over one after the other.
#include <algorithm>

#include "match.h"

namespace piper {
namespace {

// Describes one directive's `over`.
struct Over {
  Axes* axes = nullptr;
  SourceSpan at, over_at;
  const char* directive = "";
};

std::vector<Over> overs_of(Strategy& strategy) {
  std::vector<Over> all;
  for (Replicate& one : strategy.replicates)
    all.push_back({&one.over, one.at, one.over_at, "replicate"});
  for (ShardRule& one : strategy.shards) all.push_back({&one.over, one.at, one.over_at, "shard"});
  for (Split& one : strategy.splits)
    if (!one.within.empty()) all.push_back({&one.within, one.at, one.within_at, "split"});
  return all;
}

int64_t size_of(const Strategy& strategy, const std::string& name) {
  const auto axis = std::find_if(strategy.mesh.begin(), strategy.mesh.end(),
                                 [&](const MeshAxis& one) { return one.name == name; });
  return axis == strategy.mesh.end() ? 1 : axis->size;
}

bool contains(const Axes& axes, const std::string& name) {
  return std::find(axes.begin(), axes.end(), name) != axes.end();
}

// Returns whether one of them is a tag that tells the places of a stage apart.
bool has_twins(const Strategy& strategy, const Axes& axes) {
  return std::ranges::any_of(strategy.mesh, [&](const MeshAxis& one) {
    return !one.twins_of.empty() && contains(axes, one.name);
  });
}

// Axes of one rank make no difference to a product.
void drop_single(const Strategy& strategy, Over& over, Explanations& out) {
  if (over.axes->size() == 1) return;
  Axes left;
  for (const std::string& name : *over.axes)
    if (size_of(strategy, name) > 1 || has_twins(strategy, {name})) left.push_back(name);
  if (left.size() == over.axes->size()) return;
  if (left.empty()) left.push_back(over.axes->front());
  out.push_back({over.at,
                 over.directive,
                 {fmt::format("over {} alone: the other axes of [{}] have one rank each",
                              join(left, ", "), join(*over.axes, ", "))}});
  *over.axes = std::move(left);
}

// Returns which directive names one of the axes without the others, in words with its place; empty:
// none does.
std::string named_alone(Strategy& strategy, const Axes& axes) {
  for (const Over& other : overs_of(strategy))
    for (const std::string& name : *other.axes) {
      if (*other.axes == axes || !contains(axes, name)) continue;
      return fmt::format("line {} names {}", other.over_at.line,
                         std::ranges::is_permutation(*other.axes, axes)
                             ? fmt::format("[{}]", join(*other.axes, ", "))
                             : fmt::format("'{}' without the others", name));
    }
  return "";
}

// Returns which entry names one of the axes by itself; empty: none does.
std::string entry_naming(const Strategy& strategy, const Axes& axes) {
  for (const Place& place : strategy.places)
    for (const auto& [name, coordinate] : place.on)
      if (contains(axes, name))
        return fmt::format("'place' at line {} names '{}'", place.at.line, name);
  for (const Order& order : strategy.orders)
    for (const std::string& each : order.each)
      if (contains(axes, each))
        return fmt::format("'order' at line {} names '{}'", order.at.line, each);
  return "";
}

// Returns what keeps the ranks of the axes from being numbered as those of one, likewise.
std::string apart(const Strategy& strategy, const Axes& axes) {
  if (std::string entry = entry_naming(strategy, axes); !entry.empty()) return entry;
  const auto first = std::find_if(strategy.mesh.begin(), strategy.mesh.end(),
                                  [&](const MeshAxis& one) { return one.name == axes.front(); });
  for (size_t a = 0; a < axes.size(); ++a) {
    const bool there = std::distance(first, strategy.mesh.end()) > static_cast<ptrdiff_t>(a);
    if (!there || (first + static_cast<ptrdiff_t>(a))->name != axes[a])
      return "the mesh does not have them side by side in this order";
  }
  return "";
}

// Makes one axis of them, with the ranks that they have together.
void make_one(Strategy& strategy, const Axes axes) {
  std::string name = join(axes, "_");
  while (std::any_of(strategy.mesh.begin(), strategy.mesh.end(),
                     [&](const MeshAxis& one) { return one.name == name; }))
    name += "_";
  for (Over& over : overs_of(strategy))
    if (*over.axes == axes) *over.axes = {name};
  std::vector<MeshAxis> mesh;
  for (const MeshAxis& one : strategy.mesh) {
    if (!contains(axes, one.name)) {
      mesh.push_back(one);
    } else if (one.name == axes.front()) {
      mesh.push_back({name, one.size, one.at});
    } else {
      mesh.back().size *= one.size;
    }
  }
  strategy.mesh = std::move(mesh);
}

// ---- Tags that tell the places of a stage apart ----

Error on_two_axes(const SourceSpan& at, const std::string& tag, const std::string& one,
                  const std::string& other) {
  return fail(at,
              "not supported: replicas over '{}', which changes places on two axes, '{}' and '{}'",
              tag, one, other);
}

// Returns the mesh axis whose coordinate `place` computes from the tag. Error: none, or several.
Result<std::vector<MeshAxis>::iterator> axis_of_tag(Strategy& strategy, const std::string& tag,
                                                    const SourceSpan& at) {
  auto found = strategy.mesh.end();
  for (const Place& place : strategy.places) {
    if (std::ranges::count(place.tags, tag, [](const auto& given) { return given.first; }) == 0)
      continue;
    for (const auto& [name, coordinate] : place.on) {
      if (std::ranges::count(coordinate.names(), tag) == 0) continue;
      const auto axis = std::ranges::find(strategy.mesh, name, &MeshAxis::name);
      if (found != strategy.mesh.end() && found != axis)
        return on_two_axes(at, tag, found->name, name);
      found = axis;
    }
  }
  if (found == strategy.mesh.end())
    return fail(at, "replicate: no 'place' computes a coordinate from the tag '{}'", tag);
  return found;
}

Status check_sums_of_twins(const Strategy& strategy) {
  for (const Replicate& one : strategy.replicates) {
    if (!has_twins(strategy, one.over)) continue;
    if (one.reduce == Replicate::When::kMicrobatch)
      return fail(one.at,
                  "not supported: gradients that the places of a stage sum in each "
                  "microbatch, of which each has its own");
    if (one.reduce_in.any())
      return fail(one.dtype_at, "not supported: sums over the places of a stage that travel in {}",
                  kScaledNames[static_cast<size_t>(one.reduce_in.type)]);
  }
  return ok_status();
}

// Adds an axis, of no ranks yet, for each such tag that an entry names: before that of the places.
Status add_twins(Strategy& strategy) {
  for (const Replicate& one : std::vector(strategy.replicates))
    for (const std::string& tag : one.over) {
      if (std::ranges::count(strategy.mesh, tag, &MeshAxis::name) > 0) continue;
      const auto other = std::ranges::find_if(
          strategy.mesh, [](const MeshAxis& axis) { return !axis.twins_of.empty(); });
      if (other != strategy.mesh.end())
        return fail(one.over_at, "not supported: replicas over the tags '{}' and '{}'", other->name,
                    tag);
      PIPER_ASSIGN(const auto axis, axis_of_tag(strategy, tag, one.over_at));
      if (!strategy.weight_versions.empty())
        return fail(strategy.weight_versions[0].at,
                    "not supported: 'weight_versions' beside replicas over '{}', the places of a "
                    "stage",
                    tag)
            .with_note(fmt::format("help: without `replicate: {{over: {}}}` each place of a stage "
                                   "holds all its states, in as many versions",
                                   tag));
      const std::string of = axis->name;
      strategy.mesh.insert(axis, {tag, 1, axis->at, of});
    }
  return check_sums_of_twins(strategy);
}

// Ranks of several axes have numbers that follow one another.
Status check_beside_twins(const Strategy& strategy, const Over& over) {
  std::vector<size_t> named;
  for (size_t a = 0; a < strategy.mesh.size(); ++a)
    if (contains(*over.axes, strategy.mesh[a].name)) named.push_back(a);
  for (size_t a = named.front() + 1; a < named.back(); ++a) {
    const MeshAxis& axis = strategy.mesh[a];
    const bool is_replicated = std::ranges::any_of(
        strategy.replicates, [&](const Replicate& one) { return one.is_over(axis.name); });
    if (contains(*over.axes, axis.name) ? !axis.twins_of.empty() : is_replicated)
      return fail(over.over_at, "not supported: replicas over [{}], which are no axis together",
                  join(*over.axes, ", "))
          .with_note(fmt::format("'{}' stands between them in the mesh", axis.name));
  }
  return ok_status();
}

// Returns a rule for each axis of one that cuts over several.
std::vector<ShardRule> one_by_one(const ShardRule& rule) {
  std::vector<ShardRule> rules;
  for (size_t a = 0; a < rule.over.size(); ++a) {
    ShardRule& one = rules.emplace_back(rule);
    one.over = {rule.over[a]};
    if (rule.attention) continue;
    one.within.assign(rule.over.begin(), rule.over.begin() + static_cast<ptrdiff_t>(a));
    one.zigzag = rule.zigzag && a == 0;
    one.within_zigzag = rule.zigzag && a > 0;
  }
  return rules;
}

}  // namespace

Result<Strategy> join_axes(Strategy strategy, Explanations& out) {
  PIPER_TRY(add_twins(strategy));
  for (Over& over : overs_of(strategy)) drop_single(strategy, over, out);
  for (const Over& over : overs_of(strategy)) {
    const Axes axes = *over.axes;
    if (axes.size() == 1) continue;
    if (has_twins(strategy, axes)) {
      PIPER_TRY(check_beside_twins(strategy, over));
      continue;
    }
    const std::string why = apart(strategy, axes);
    if (!why.empty() && std::string_view(over.directive) == "replicate")
      return fail(over.over_at, "not supported: replicas over [{}], which are no axis together",
                  join(axes, ", "))
          .with_note(why)
          .with_note(
              "help: axes of replicas are side by side in the mesh, in this order; a 'replicate' "
              "for each of them sums along one after the other");
    if (!why.empty() || !named_alone(strategy, axes).empty()) continue;
    make_one(strategy, axes);
    out.push_back({over.at,
                   over.directive,
                   {fmt::format("{} are one axis '{}' of {} ranks", join(axes, ", "),
                                over.axes->front(), size_of(strategy, over.axes->front()))}});
  }
  std::vector<ShardRule> rules;
  for (const ShardRule& rule : strategy.shards)
    std::ranges::move(one_by_one(rule), std::back_inserter(rules));
  strategy.shards = std::move(rules);
  return strategy;
}

}  // namespace piper
