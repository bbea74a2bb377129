// Evaluates `where`: which tasks, nodes and values a condition selects.
#include "match.h"

#include <algorithm>
#include <set>
#include <variant>

#include "piper/ir/ops.h"
#include "piper/planner/sharding.h"

namespace piper {
namespace {

// B also names both its parts, F also what is counted before it.
bool has_pass(const Condition& condition, TaskPass own) {
  return condition.kind == Condition::Kind::kAny ||
         std::any_of(condition.words.begin(), condition.words.end(), [&](const std::string& word) {
           const std::optional<TaskPass> pass = find_task_pass(word);
           return pass == own || (pass == TaskPass::kB && is_backward(own)) ||
                  (pass == TaskPass::kF && own == TaskPass::kPrepare);
         });
}

bool compare(int64_t a, const std::string& op, int64_t b) {
  if (op == "<") return a < b;
  if (op == "<=") return a <= b;
  if (op == ">") return a > b;
  if (op == ">=") return a >= b;
  return a != b;
}

Result<bool> is_in(const std::vector<Condition::Values>& set, int32_t tag, const Variables& bound) {
  for (const Condition::Values& values : set) {
    PIPER_ASSIGN(const int64_t low, values.low.evaluate(bound));
    if (!values.high && tag == low) return true;
    if (!values.high) continue;
    PIPER_ASSIGN(const int64_t high, values.high->evaluate(bound));
    if (tag >= low && tag < high) return true;
  }
  return false;
}

// Returns whether a tag meets a condition. `bound`: what conditions before it bind, then variables.
Result<bool> meets(const Condition& condition, int32_t tag, const Variables& bound) {
  using Kind = Condition::Kind;
  if (condition.kind == Kind::kAbsent) return tag == kNoTag;
  if (tag == kNoTag) return false;
  switch (condition.kind) {
    case Kind::kAny:
    case Kind::kBind:
      return true;
    case Kind::kSet: {
      PIPER_ASSIGN(const bool in, is_in(condition.set, tag, bound));
      return in != condition.but;
    }
    case Kind::kHolds: {
      Variables with_tag = bound;
      with_tag.emplace(with_tag.begin(), condition.tag, tag);
      PIPER_ASSIGN(const int64_t value, condition.low.evaluate(with_tag));
      return value != 0;
    }
    case Kind::kCompare: {
      PIPER_ASSIGN(const int64_t bar, condition.low.evaluate(bound));
      return compare(tag, condition.compare, bar);
    }
    case Kind::kAbsent:
      break;
  }
  PIPER_CHECK(false, "no condition is of kind {}", static_cast<int>(condition.kind));
}

// What a condition sees: the value of a tag, or whether one of its words holds.
using Seen = std::variant<int32_t, bool>;
template <class See>
Result<std::optional<Variables>> match(const Where& where, const Variables& variables,
                                       const See& see) {
  std::optional<Variables> bound;  // made when a condition binds a name: most things do not match
  for (const Condition& condition : where) {
    PIPER_ASSIGN(const Seen seen, see(condition));
    bool met = std::holds_alternative<bool>(seen) && std::get<bool>(seen);
    if (const auto* tag = std::get_if<int32_t>(&seen)) {
      PIPER_ASSIGN(met, meets(condition, *tag, bound ? *bound : variables));
      if (met && condition.kind == Condition::Kind::kBind) {
        if (!bound) bound = variables;
        bound->emplace(bound->begin(), condition.bind, *tag);
      }
    }
    if (!met) return std::optional<Variables>();
  }
  return bound ? std::move(bound) : std::optional(variables);
}

Error no_tag(const Condition& condition, const Graph& graph) {
  std::vector<std::string> names = graph.tag_names;
  names.push_back("pass");
  return fail(condition.at, "where: no op has a tag '{}'{}", condition.tag,
              did_you_mean(condition.tag, names));
}

bool matches_any(const Glob& match, std::span<const std::string> scopes) {
  return std::any_of(scopes.begin(), scopes.end(),
                     [&](const std::string& scope) { return match.match(scope).has_value(); });
}

}  // namespace

std::vector<std::string> tags_to_name(const Dag& dag) {
  std::vector<std::string> names = dag.region_tags;
  std::erase(names, kSpanOfParts);
  return names;
}

bool stands_for(const Graph& graph, const Node& node, std::string_view op) {
  if (node.op == op) return true;
  const OpDef* def = find_op(node.op);
  if (!def->apart) return false;
  const OpDef::Steps apart = def->apart(use_of(graph, node));
  return std::any_of(apart.steps.begin(), apart.steps.end(),
                     [&](const OpDef::Step& step) { return step.op == op; });
}

Result<std::optional<Variables>> match_node(const Graph& graph, const Node& node,
                                            const Where& where, const Variables& variables,
                                            const MicroTag& micro) {
  return match(where, variables, [&](const Condition& condition) -> Result<Seen> {
    if (condition.tag == micro.name) return Seen(micro.number);
    const int tag = graph.tag_index(condition.tag);
    if (tag < 0) return no_tag(condition, graph);
    return Seen(graph.tag(node, tag));
  });
}

Result<std::optional<PlacedAt>> place_node(const Graph& graph, const Node& node, const Place& place,
                                           const Variables& variables, const Variables& tags,
                                           int32_t micro, const Mesh& mesh) {
  PIPER_ASSIGN(auto bound, match_node(graph, node, place.where, variables, {place.micro, micro}));
  if (!bound) return std::optional<PlacedAt>();
  PlacedAt placed;
  bound->insert(bound->end(), tags.begin(), tags.end());
  bound->emplace_back(place.micro, micro);
  for (const auto& [tag, expr] : place.tags) {
    PIPER_ASSIGN(const int64_t value, expr.evaluate(*bound));
    placed.tags.emplace_back(tag, value);
    bound->emplace_back(tag, value);
  }
  for (const auto& [name, expr] : place.on) {
    const auto axis = std::ranges::find(mesh, name, &Mesh::value_type::first);
    if (axis == mesh.end()) continue;
    bound->emplace_back("P", axis->second);
    PIPER_ASSIGN(const int64_t coordinate, expr.evaluate(*bound));
    bound->pop_back();
    placed.on.emplace_back(axis - mesh.begin(), coordinate);
  }
  return std::optional(std::move(placed));
}

Variables named_tags(const Graph& graph, const Node& node) {
  Variables tags;
  for (size_t t = 0; t < graph.tag_names.size(); ++t)
    if (const int32_t value = graph.tag(node, static_cast<int>(t)); value != kNoTag)
      tags.emplace_back(graph.tag_names[t], value);
  return tags;
}

Result<bool> is_read_where(const Graph& graph, const std::vector<NodeId>& readers,
                           const Where& where, const Variables& variables) {
  if (where.empty()) return true;
  bool read = false;
  for (const NodeId id : readers) {
    const Node& node = graph.node(id);
    if (node.pass != Pass::kF) continue;
    PIPER_ASSIGN(const auto met, match_node(graph, node, where, variables));
    if (!met) return false;
    read = true;
  }
  return read;
}

Result<std::optional<Variables>> match_chunk(const Dag& dag, const Chunk& chunk, const Where& where,
                                             const Variables& variables, const MicroTag& micro) {
  return match(where, variables, [&](const Condition& condition) -> Result<Seen> {
    if (condition.tag == "pass") return Seen(has_pass(condition, chunk.pass));
    if (condition.tag == micro.name) return Seen(micro.number);
    const auto it = std::find(dag.region_tags.begin(), dag.region_tags.end(), condition.tag);
    if (it == dag.region_tags.end()) return no_tag(condition, dag.graph);
    return Seen(chunk.tags[static_cast<size_t>(it - dag.region_tags.begin())]);
  });
}

// ---- Tasks ----
namespace {

bool carries(const Dag& dag, const Task& task, const std::vector<bool>& named) {
  for (const auto* items : {&task.reads, &task.writes})
    for (ItemId item : *items)
      if (named[dag.items[item.index()].value.index()]) return true;
  for (NodeId id : task.nodes)
    for (const auto* values : {&dag.graph.node(id).inputs, &dag.graph.node(id).outputs})
      for (ValueId value : *values)
        if (named[value.index()]) return true;
  return false;
}

// Marks the parameters that have such a name, and their gradients.
void mark_params(const Dag& dag, const std::vector<Glob>& globs, std::vector<bool>& named) {
  for (const Param& param : dag.graph.params) {
    if (std::none_of(globs.begin(), globs.end(),
                     [&](const Glob& glob) { return has_name(param, glob); }))
      continue;
    named[param.value.index()] = true;
    if (!param.gradient.valid()) continue;
    named[param.gradient.index()] = true;
    for (const Sum& sum : dag.sums)
      if (sum.value == param.gradient)
        for (ValueId use : sum.uses) named[use.index()] = true;
  }
}

}  // namespace

Result<const std::vector<bool>*> TaskMatcher::named_by(const Condition& condition) const {
  if (const auto known = named_.find(&condition); known != named_.end()) return &known->second;
  std::vector<Glob> globs;
  for (const std::string& pattern : condition.words) {
    PIPER_ASSIGN(Glob glob, Glob::parse(pattern, condition.at));
    globs.push_back(std::move(glob));
  }
  const auto is_named = [&](std::string_view name) {
    return std::any_of(globs.begin(), globs.end(),
                       [&](const Glob& g) { return g.match(name).has_value(); });
  };
  const Graph& graph = dag_.graph;
  std::vector<bool> named(graph.values.size());
  for (size_t v = 0; v < named.size(); ++v) named[v] = is_named(graph.values[v].name);
  mark_params(dag_, globs, named);
  return &(named_[&condition] = std::move(named));
}

TaskMatcher::TaskMatcher(const Dag& dag, const Strategy& strategy)
    : dag_(dag),
      micro_(strategy.micro_name()),
      tags_(dag.region_tags),
      view_of_(dag.tasks.size(), -1) {
  for (const Split& split : strategy.splits)
    if (split.of_region() && dag.graph.tag_index(split.as) >= 0 &&
        !std::ranges::count(tags_, split.as))
      tags_.push_back(split.as);
  add({TaskPass::kMove, std::vector<int32_t>(tags_.size(), kNoTag)});
  look_at_writers(writers(dag));
  look_at_readers();
}

int32_t TaskMatcher::add(const View& view) {
  const auto known = std::find(views_.begin(), views_.end(), view);
  if (known != views_.end()) return static_cast<int32_t>(known - views_.begin());
  views_.push_back(view);
  return static_cast<int32_t>(views_.size() - 1);
}

int32_t TaskMatcher::agreed(int32_t a, int32_t b) {
  if (a < 0 || a == b) return b;
  if (b < 0) return a;
  View both = views_[static_cast<size_t>(a)];
  const View& other = views_[static_cast<size_t>(b)];
  if (both.pass != other.pass) both.pass = TaskPass::kMove;
  for (size_t t = 0; t < both.tags.size(); ++t)
    if (both.tags[t] != other.tags[t]) both.tags[t] = kNoTag;
  return add(both);
}

int32_t TaskMatcher::view_within(const Task& task) {
  View view = views_[static_cast<size_t>(view_of_[task.within.index()])];
  for (size_t t = dag_.region_tags.size(); t < tags_.size(); ++t) {
    const int tag = dag_.graph.tag_index(tags_[t]);
    const auto part = [&](NodeId id) { return dag_.graph.tag(dag_.graph.node(id), tag); };
    view.tags[t] = part(task.nodes[0]);
    for (NodeId id : task.nodes)
      if (part(id) != view.tags[t]) view.tags[t] = kNoTag;
  }
  return add(view);
}

void TaskMatcher::look_at_writers(const std::vector<std::vector<TaskId>>& writers) {
  std::vector<int32_t> of_chunk;
  for (const Chunk& chunk : dag_.chunks) {
    View view{chunk.pass, chunk.tags};
    view.tags.resize(tags_.size(), kNoTag);
    of_chunk.push_back(add(view));
  }
  for (size_t t = 0; t < dag_.tasks.size(); ++t)
    if (dag_.tasks[t].chunk.valid()) view_of_[t] = of_chunk[dag_.tasks[t].chunk.index()];
  for (size_t t = 0; t < dag_.tasks.size(); ++t) {
    const Task& task = dag_.tasks[t];
    if (task.kind == InstructionKind::kRecv) view_of_[t] = view_of_[t - 1];  // its send's
    if (task.within.valid()) view_of_[t] = view_within(task);
    if (task.chunk.valid()) continue;
    for (ItemId item : task.reads)
      for (TaskId writer : writers[item.index()])
        if (writer != TaskId(t)) view_of_[t] = agreed(view_of_[t], view_of_[writer.index()]);
  }
}

void TaskMatcher::look_at_readers() {
  std::vector<int32_t> input_of(dag_.items.size(), -1);  // by item: the task that brings it
  for (size_t t = 0; t < dag_.tasks.size(); ++t)
    if (dag_.tasks[t].kind == InstructionKind::kInput || gathers_parameters(dag_, dag_.tasks[t]))
      for (ItemId item : dag_.tasks[t].writes) input_of[item.index()] = static_cast<int32_t>(t);
  for (size_t t = 0; t < dag_.tasks.size(); ++t)
    for (ItemId item : dag_.tasks[t].reads)
      if (const int32_t input = input_of[item.index()]; input >= 0) {
        int32_t& view = view_of_[static_cast<size_t>(input)];
        view = agreed(view, view_of_[t]);
      }
  for (int32_t& view : view_of_) view = std::max(view, 0);
}

Result<bool> TaskMatcher::matches(TaskId id, const Where& where, const Variables& variables) const {
  PIPER_ASSIGN(const auto met, bound(id, where, variables));
  return met.has_value();
}

Result<std::optional<Variables>> TaskMatcher::bound(TaskId id, const Where& where,
                                                    const Variables& variables) const {
  const Task& task = dag_.tasks[id.index()];
  const View& view = views_[static_cast<size_t>(view_of_[id.index()])];
  const std::vector<std::string>& tags = tags_;
  return match(where, variables, [&](const Condition& condition) -> Result<Seen> {
    if (condition.tag == "pass") return Seen(has_pass(condition, view.pass));
    if (condition.tag == "kind")
      return Seen(condition.kind == Condition::Kind::kAny ||
                  std::count(condition.words.begin(), condition.words.end(),
                             std::string(to_string(task.kind))) > 0);
    const auto tag = std::find(tags.begin(), tags.end(), condition.tag);
    if (tag != tags.end()) return Seen(view.tags[static_cast<size_t>(tag - tags.begin())]);
    if (condition.tag == "value") {
      PIPER_ASSIGN(const std::vector<bool>* named, named_by(condition));
      return Seen(carries(dag_, task, *named));
    }
    if (condition.tag == micro_)
      return Seen(task.micro < 0 ? kNoTag : static_cast<int32_t>(task.micro % dag_.microbatches));
    std::vector<std::string> known = tags;
    std::erase(known, kSpanOfParts);
    known.insert(known.end(), {micro_, "pass", "kind", "value"});
    Error error = fail(condition.at, "where: tasks have no tag '{}'{}", condition.tag,
                       did_you_mean(condition.tag, known))
                      .with_note(fmt::format("they are told apart by {}", join(known, ", ")));
    if (dag_.graph.tag_index(condition.tag) < 0) return error;
    return std::move(error)
        .with_note("ops have it, but a task is what a 'place' line tells apart of these")
        .with_note(fmt::format("help: 'mesh: {{one: 1, …}}' and '- place: {{where: {{{}: k}}, on: "
                               "{{one: 0}}}}' make tasks of it on the devices that there are",
                               condition.tag));
  });
}

Result<std::vector<TaskId>> TaskMatcher::find(const Where& where,
                                              const Variables& variables) const {
  std::vector<TaskId> found;
  for (size_t t = 0; t < dag_.tasks.size(); ++t) {
    PIPER_ASSIGN(const bool met, matches(TaskId(t), where, variables));
    if (met) found.push_back(TaskId(t));
  }
  return found;
}

std::string TaskMatcher::excuse(const Where& where, bool messages) const {
  const auto is_message = [](const std::string& kind) {
    return kind != "compute" && kind != "input";
  };
  for (const Condition& condition : where)
    if (condition.tag == "kind" && !condition.words.empty())
      messages = std::all_of(condition.words.begin(), condition.words.end(), is_message);
  return messages ? of_one_rank(dag_) : "";
}

// The error points at the value that is asked for, if no task carries it.
Error TaskMatcher::nothing(const Where& where, const SourceSpan& at,
                           std::string_view directive) const {
  Error error = no_match(dag_, where, at, directive);
  for (const Condition& condition : where) {
    if (condition.tag != "value" || condition.words.empty()) continue;
    const auto named = named_by(condition);
    if (!named || std::any_of(dag_.tasks.begin(), dag_.tasks.end(),
                              [&](const Task& task) { return carries(dag_, task, **named); }))
      continue;
    std::vector<std::string> names;
    for (const Param& param : dag_.graph.params)
      std::ranges::move(paths_of(param), std::back_inserter(names));
    for (const Value& value : dag_.graph.values) names.push_back(value.name);
    const std::string& wanted = condition.words.front();
    error.at = condition.at;
    error.message += fmt::format(": no task reads or makes '{}'{}", quote_control(wanted),
                                 did_you_mean(wanted, names));
    if (const auto glob = Glob::parse(wanted, condition.at))
      error = with_deeper(std::move(error), *glob, names);
    break;
  }
  for (size_t c = 0; where.size() > 1 && c < where.size(); ++c) {
    Where others = where;
    others.erase(others.begin() + static_cast<ptrdiff_t>(c));
    const auto found = find(others, {});
    if (!found || found->empty()) continue;
    error.notes.push_back(fmt::format(
        "{} task{} all conditions but '{}'{}", found->size(),
        found->size() == 1 ? " meets" : "s meet", where[c].tag,
        where[c].tag == "pass" ? ": what several passes read or make together has none" : ""));
  }
  std::set<InstructionKind> kinds;
  for (const Task& task : dag_.tasks) kinds.insert(task.kind);
  std::vector<std::string> names;
  for (InstructionKind kind : kinds) names.emplace_back(to_string(kind));
  error.notes.push_back(fmt::format("the kinds of tasks here are {}", join(names, ", ")));
  return error;
}

Result<int32_t> find_axis(const Dag& dag, const std::string& name, const SourceSpan& at,
                          std::string_view directive) {
  std::vector<std::string> names;
  for (const DagAxis& axis : dag.mesh) names.push_back(axis.name);
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<int32_t>(found - names.begin());
  return fail(at, "{}: the mesh has no axis '{}'{}", directive, name, did_you_mean(name, names));
}

std::string one_rank(std::string_view axis) {
  return fmt::format("nothing: axis '{}' has one rank", axis);
}

std::string of_one_rank(const Dag& dag) {
  std::vector<std::string> names;
  for (const DagAxis& axis : dag.mesh)
    if (axis.size == 1) names.push_back(fmt::format("'{}'", axis.name));
  if (names.empty()) return "";
  return fmt::format("nothing: {} {} one rank{}", names.size() == 1 ? "axis" : "axes",
                     names.size() == 1 ? names[0] + " has" : join(names, ", ") + " have",
                     names.size() == 1 ? "" : " each");
}

std::string place_of(const SourceSpan& at) {
  return fmt::format("{}:{}:{}", at.file.substr(at.file.rfind('/') + 1), at.line, at.column);
}

std::string line_of(const SourceSpan& at, const SourceSpan& from) {
  return at.file == from.file ? fmt::format("line {}", at.line) : place_of(at);
}

namespace {

using Ranges = std::vector<std::pair<int32_t, int32_t>>;  // first and last

std::string to_text(const Ranges& ranges) {
  std::string text;
  for (const auto& [first, last] : ranges)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", first,
                        last > first ? fmt::format(" to {}", last) : "");
  return text;
}

// Returns the runs of values that follow one another, and what lacks between 0 and the last.
std::pair<Ranges, Ranges> runs_of(const std::set<int32_t>& values) {
  Ranges runs, missing;
  int32_t next = 0;
  for (const int32_t value : values) {
    if (value > next) missing.emplace_back(next, value - 1);
    if (!runs.empty() && runs.back().second == value - 1)
      runs.back().second = value;
    else
      runs.emplace_back(value, value);
    next = value + 1;
  }
  return {std::move(runs), std::move(missing)};
}

std::set<int32_t> values_of_tag(const Dag& dag, size_t t) {
  std::set<int32_t> values;
  for (const Chunk& chunk : dag.chunks)
    if (chunk.tags[t] != kNoTag) values.insert(chunk.tags[t]);
  return values;
}

std::vector<std::string> scopes_of_ops(const Graph& graph) {
  std::set<std::string> all;
  for (const Node& node : graph.nodes)
    if (node.pass == Pass::kF && !node.scope.empty()) all.insert(node.scope);
  return {all.begin(), all.end()};
}

void add_values_of_tags(const Graph& graph, const Where& where, Error& error) {
  for (const Condition& condition : where) {
    const int tag = graph.tag_index(condition.tag);
    std::set<int32_t> values;
    for (const Node& node : graph.nodes)
      if (tag >= 0 && node.pass == Pass::kF && graph.tag(node, tag) != kNoTag)
        values.insert(graph.tag(node, tag));
    if (!values.empty())
      error.notes.push_back(fmt::format("tag '{}' has the values {}", condition.tag,
                                        ranges({values.begin(), values.end()})));
  }
}

}  // namespace

std::string ranges(const std::vector<int32_t>& numbers) {
  return to_text(runs_of({numbers.begin(), numbers.end()}).first);
}

Error with_regions(Error error, const Dag& dag) {
  bool has_gap = false;
  for (size_t t = 0; t < dag.region_tags.size(); ++t) {
    const std::set<int32_t> values = values_of_tag(dag, t);
    if (values.empty()) continue;
    const auto [runs, missing] = runs_of(values);
    const std::string& tag = dag.region_tags[t];
    if (tag == kSpanOfParts) continue;
    error.notes.push_back(fmt::format("'{}' is {}", tag, to_text(runs)));
    if (!missing.empty())
      error.notes.push_back(fmt::format("no op of the model has '{}' {}: 'annotate' left it empty",
                                        tag, to_text(missing)));
    has_gap = has_gap || !missing.empty();
  }
  error.notes.push_back(
      has_gap ? "help: number them without a gap"
              : "help: make the mesh axis as long as there are places, or cut the model into more "
                "regions");
  return error;
}

Error with_deeper(Error error, const Glob& match, std::span<const std::string> scopes) {
  const auto deeper = Glob::parse("**/" + match.pattern(), error.at);
  if (deeper && matches_any(*deeper, scopes))
    error.notes.push_back(fmt::format("help: '**/{}' matches some", match.pattern()));
  return error;
}

Error no_ops(const Graph& graph, std::string_view what, const SourceSpan& at,
             const std::optional<Glob>& match, const Where& where) {
  constexpr size_t kShown = 6;
  const std::vector<std::string> scopes = scopes_of_ops(graph);
  const bool is_matched = !match || matches_any(*match, scopes);
  Error error = fail(
      is_matched && !where.empty() ? where.front().at : at, "{}{}", what,
      is_matched ? std::string()
                 : did_you_mean(match->pattern().substr(0, match->pattern().find(", ")), scopes));
  if (!is_matched) {
    error.notes.push_back(
        fmt::format("no op's scope matches '{}'; there are {}", match->pattern(),
                    join(std::span(scopes).first(std::min(scopes.size(), kShown)), ", ")));
    error = with_deeper(std::move(error), *match, scopes);
  }
  add_values_of_tags(graph, where, error);
  return error;
}

Error no_match(const Dag& dag, const Where& where, const SourceSpan& at,
               std::string_view directive) {
  Error error = fail(where.empty() ? at : where.front().at, "{}: matches nothing", directive);
  for (size_t t = 0; t < dag.region_tags.size(); ++t) {
    std::set<int32_t> values;
    for (const Chunk& chunk : dag.chunks)
      if (chunk.tags[t] != kNoTag) values.insert(chunk.tags[t]);
    if (dag.region_tags[t] == kSpanOfParts) continue;
    std::string list;
    for (int32_t value : values) list += fmt::format("{}{}", list.empty() ? "" : ", ", value);
    error.notes.push_back(fmt::format("tag '{}' has the values {}", dag.region_tags[t], list));
  }
  return error;
}

}  // namespace piper
