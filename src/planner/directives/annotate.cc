// The directive `annotate`: tags of nodes, by module path or dataflow.
#include <algorithm>
#include <map>
#include <set>

#include "match.h"

namespace piper {
namespace {

struct Match {
  NodeId node;
  GlobMatch captures;
};

// "layers" for {layer}: how many different values the capture took.
Variables capture_counts(const std::vector<Match>& matches) {
  std::map<std::string, std::set<int64_t>> seen;
  for (const Match& match : matches)
    for (const auto& [name, value] : match.captures.captures) seen[name].insert(value);
  Variables counts;
  for (const auto& [name, values] : seen)
    counts.emplace_back(name + "s", static_cast<int64_t>(values.size()));
  return counts;
}

// Numbers the calls of what is matched. Ops with equal captures are of one thing; where their
// scopes and kinds are one sequence again and again, it is called so many times.
struct Calls {
  std::vector<int64_t> number;  // by match
  std::vector<int64_t> count;
};
// Returns after how many ops they come again, alike and in the same order.
size_t period_of(const Graph& graph, const std::vector<Match>& matches,
                 const std::vector<size_t>& ops) {
  const auto alike = [&](size_t a, size_t b) {
    const Node &one = graph.node(matches[a].node), &other = graph.node(matches[b].node);
    return one.scope == other.scope && one.op == other.op;
  };
  size_t period = 1;
  const auto repeats = [&] {
    for (size_t i = period; i < ops.size(); ++i)
      if (!alike(ops[i], ops[i - period])) return false;
    return ops.size() % period == 0;
  };
  while (!repeats()) ++period;
  return period;
}

Calls calls_of(const Graph& graph, const std::vector<Match>& matches) {
  Calls calls{std::vector<int64_t>(matches.size()), std::vector<int64_t>(matches.size(), 1)};
  std::map<std::vector<std::pair<std::string, int64_t>>, std::vector<size_t>> things;
  for (size_t m = 0; m < matches.size(); ++m) things[matches[m].captures.captures].push_back(m);
  for (const auto& [captures, ops] : things) {
    const size_t period = period_of(graph, matches, ops);
    for (size_t i = 0; i < ops.size(); ++i) {
      calls.number[ops[i]] = static_cast<int64_t>(i / period);
      calls.count[ops[i]] = static_cast<int64_t>(ops.size() / period);
    }
  }
  return calls;
}

// Error: an op that the forward pass does not have.
Status check_ops(const Graph& graph, const AnnotateRule& rule) {
  for (const auto& [op, at] : rule.ops) {
    std::set<std::string> names;
    bool found = false;
    for (const Node& node : graph.nodes) {
      names.insert(node.op);
      found = found || stands_for(graph, node, op);
    }
    const std::vector<std::string> all(names.begin(), names.end());
    if (!found)
      return fail(at, "annotate: the model has no op '{}'{}", quote_control(op),
                  did_you_mean(op, all))
          .with_note("it has " + join(all, ", "));
  }
  return ok_status();
}

std::vector<Match> find_matches(const Graph& graph, const AnnotateRule& rule) {
  std::vector<Match> matches;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const bool named =
        rule.ops.empty() || std::any_of(rule.ops.begin(), rule.ops.end(), [&](const auto& op) {
          return stands_for(graph, node, op.first);
        });
    if (!named) continue;
    if (auto match = rule.match.match(node.scope)) matches.push_back({NodeId(i), *match});
  }
  return matches;
}

bool names_call(const Expr& expr) {
  const std::vector<std::string> names = expr.names();
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return name == "call" || name == "calls"; });
}

Result<Graph> apply_rule(Graph graph, const AnnotateRule& rule, const Variables& variables,
                         Explanation& report) {
  PIPER_TRY(check_ops(graph, rule));
  const std::vector<Match> matches = find_matches(graph, rule);
  if (matches.empty())
    return no_ops(graph, "annotate: matches no forward op", rule.at, rule.match, {});
  const Variables counts = capture_counts(matches);
  for (const auto& [tag, expr] : rule.tags) {
    const Calls calls = names_call(expr) ? calls_of(graph, matches) : Calls();
    const int index = graph.add_tag(tag);
    std::set<int64_t> values;
    for (size_t m = 0; m < matches.size(); ++m) {
      const Match& match = matches[m];
      Variables scope = match.captures.captures;
      scope.insert(scope.end(), counts.begin(), counts.end());
      if (!calls.number.empty()) {
        scope.emplace_back("call", calls.number[m]);
        scope.emplace_back("calls", calls.count[m]);
      }
      scope.insert(scope.end(), variables.begin(), variables.end());
      PIPER_ASSIGN(const int64_t value, expr.evaluate(scope));
      if (value < 0 || value > INT32_MAX)
        return fail(expr.at(), "annotate: tag '{}' becomes {} for '{}'; tags are integers from 0",
                    tag, value, graph.node(match.node).scope);
      graph.set_tag(graph.node(match.node), index, static_cast<int32_t>(value));
      values.insert(value);
    }
    const int64_t most =
        calls.count.empty() ? 0 : *std::max_element(calls.count.begin(), calls.count.end());
    report.lines.push_back(fmt::format("'{}' matched {} ops{}: {} = {}..{} ({} values)",
                                       rule.match.pattern(), matches.size(),
                                       most > 0 ? fmt::format(" of {} calls", most) : "", tag,
                                       *values.begin(), *values.rbegin(), values.size()));
  }
  return graph;
}

}  // namespace

int32_t latest_producer(const Graph& graph, const Node& node, int tag) {
  int32_t best = kNoTag;
  for (ValueId input : node.inputs)
    if (input.valid() && graph.value(input).producer.valid())
      best = std::max(best, graph.tag(graph.node(graph.value(input).producer), tag));
  return best;
}

namespace {

using Joined = std::map<int32_t, std::vector<NodeId>>;  // by tag value

// Returns the least value of the tag among the ops that read what the op makes.
int32_t earliest_reader(const Graph& graph, const Node& node,
                        const std::vector<std::vector<NodeId>>& all_readers, int tag) {
  int32_t best = kNoTag;
  for (ValueId output : node.outputs)
    for (NodeId reader : all_readers[output.index()]) {
      const int32_t value = graph.tag(graph.node(reader), tag);
      if (value != kNoTag && (best == kNoTag || value < best)) best = value;
    }
  return best;
}

// Joins only nodes that no rule reaches: a tag that a rule leaves out is absent.
Joined join_by_dataflow(Graph& graph, int tag, const std::vector<bool>& reached) {
  Joined joined;
  const auto join = [&](size_t i, int32_t value) {
    graph.set_tag(graph.nodes[i], tag, value);
    joined[value].push_back(NodeId(i));
  };
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (reached[i]) continue;
    const int32_t value = latest_producer(graph, graph.nodes[i], tag);
    if (value != kNoTag) join(i, value);
  }
  const auto all_readers = readers(graph);
  for (size_t i = graph.nodes.size(); i-- > 0;) {
    if (reached[i] || graph.tag(graph.nodes[i], tag) != kNoTag) continue;
    const int32_t best = earliest_reader(graph, graph.nodes[i], all_readers, tag);
    if (best != kNoTag) join(i, best);
  }
  return joined;
}

// "Concat 'cat' (scope 'towers'), Gemm 'head' (scope 'head'), …"
std::string name_some(const Graph& graph, std::span<const NodeId> nodes) {
  constexpr size_t kShown = 3;
  std::vector<std::string> names;
  for (const NodeId id : nodes.subspan(0, std::min(nodes.size(), kShown))) {
    const Node& node = graph.node(id);
    const std::string scope = node.scope.empty() ? "" : fmt::format(" (scope '{}')", node.scope);
    names.push_back(fmt::format("{} '{}'{}", node.op, node.name, scope));
  }
  return join(names, ", ") + (nodes.size() > kShown ? ", …" : "");
}

Error not_reached(const Graph& graph, const Annotate& annotate, size_t tag, const Joined& joined) {
  std::vector<NodeId> all;
  for (const auto& [value, nodes] : joined) all.insert(all.end(), nodes.begin(), nodes.end());
  const std::span<const NodeId> nodes = all;
  Error error = fail(annotate.at, "annotate: strict, but no rule gives '{}' to {}",
                     graph.tag_names[tag], name_some(graph, nodes.subspan(0, 1)));
  if (nodes.size() == 1) return error;
  return std::move(error).with_note(
      fmt::format("nor to {} others: {}", nodes.size() - 1, name_some(graph, nodes.subspan(1))));
}

// Joins the ops that no rule reaches, tag by tag.
Status join_all(Graph& graph, const Annotate& annotate, const std::vector<bool>& reached,
                Explanations& out) {
  for (size_t tag = 0; tag < graph.tag_names.size(); ++tag) {
    const Joined joined = join_by_dataflow(graph, static_cast<int>(tag), reached);
    if (joined.empty()) continue;
    Explanation report{annotate.at, "annotate", {}};
    for (const auto& [value, nodes] : joined)
      report.lines.push_back(fmt::format("{0} ops without '{1}' joined {1}={2} by dataflow: {3}",
                                         nodes.size(), graph.tag_names[tag], value,
                                         name_some(graph, nodes)));
    if (annotate.strict) return not_reached(graph, annotate, tag, joined);
    out.push_back(std::move(report));
  }
  return ok_status();
}

}  // namespace

Result<Graph> apply_annotate(Graph graph, const Annotate& annotate, const Variables& variables,
                             const JobCosts& costs, Explanations& out) {
  for (const auto& rule : annotate.rules) {
    if (const auto* balance = std::get_if<BalanceRule>(&rule)) {
      PIPER_ASSIGN(graph, apply_balance(std::move(graph), *balance, costs, out));
      continue;
    }
    const auto& annotate_rule = std::get<AnnotateRule>(rule);
    Explanation report{annotate_rule.at, "annotate", {}};
    PIPER_ASSIGN(graph, apply_rule(std::move(graph), annotate_rule, variables, report));
    out.push_back(std::move(report));
  }
  std::vector<bool> reached;
  for (const Node& node : graph.nodes)
    reached.push_back(std::any_of(node.tags.begin(), node.tags.end(),
                                  [](int32_t value) { return value != kNoTag; }));
  PIPER_TRY(join_all(graph, annotate, reached, out));
  return graph;
}

}  // namespace piper
