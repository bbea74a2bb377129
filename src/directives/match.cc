#include "match.h"

#include <algorithm>
#include <set>

namespace piper {
namespace {

bool has_pass(const Chunk& chunk, const std::vector<std::string>& passes) {
  for (const std::string& pass : passes) {
    if (pass == "BI" && chunk.pass == 'I') return true;
    if (pass == "BW" && chunk.pass == 'W') return true;
    if (pass == "B" && (chunk.pass == 'B' || chunk.pass == 'I' || chunk.pass == 'W')) return true;
    if (pass == "F" && (chunk.pass == 'F' || chunk.pass == 'P')) return true;
    if (pass == "U" && chunk.pass == 'U') return true;
  }
  return false;
}

bool compare(int64_t a, const std::string& op, int64_t b) {
  if (op == "<") return a < b;
  if (op == "<=") return a <= b;
  if (op == ">") return a > b;
  if (op == ">=") return a >= b;
  return a != b;
}

Result<bool> meets(const Condition& condition, int32_t tag, Variables& bound) {
  using Kind = Condition::Kind;
  if (condition.kind == Kind::kAbsent) return tag == kNoTag;
  if (tag == kNoTag) return false;
  switch (condition.kind) {
    case Kind::kAny:
      return true;
    case Kind::kBind:
      bound.emplace(bound.begin(), condition.bind, tag);
      return true;
    case Kind::kSet:
      for (const Expr& expr : condition.set) {
        PIPER_ASSIGN(const int64_t value, expr.evaluate(bound));
        if (value == tag) return true;
      }
      return false;
    default:
      break;
  }
  PIPER_ASSIGN(const int64_t low, condition.low.evaluate(bound));
  if (condition.kind == Kind::kEquals) return tag == low;
  if (condition.kind == Kind::kCompare) return compare(tag, condition.compare, low);
  PIPER_ASSIGN(const int64_t high, condition.high.evaluate(bound));
  return tag >= low && tag < high;
}

Error no_tag(const Condition& condition, const Graph& graph) {
  std::vector<std::string> names = graph.tag_names;
  names.push_back("pass");
  return fail(condition.at, "where: no op has a tag '{}'{}", condition.tag,
              did_you_mean(condition.tag, names));
}

}  // namespace

Result<std::optional<Variables>> match_node(const Graph& graph, const Node& node,
                                            const Where& where, const Variables& variables) {
  Variables bound = variables;
  for (const Condition& condition : where) {
    const int tag = graph.tag_index(condition.tag);
    if (tag < 0) return no_tag(condition, graph);
    PIPER_ASSIGN(const bool met, meets(condition, graph.tag(node, tag), bound));
    if (!met) return std::optional<Variables>();
  }
  return std::optional<Variables>(std::move(bound));
}

Result<std::optional<Variables>> match_chunk(const Dag& dag, const Chunk& chunk, const Where& where,
                                             const Variables& variables, const MicroTag& micro) {
  Variables bound = variables;
  for (const Condition& condition : where) {
    if (condition.tag == "pass") {
      if (!has_pass(chunk, condition.passes)) return std::optional<Variables>();
      continue;
    }
    const auto it = std::find(dag.region_tags.begin(), dag.region_tags.end(), condition.tag);
    const bool of_micro = condition.tag == micro.name;
    if (it == dag.region_tags.end() && !of_micro) return no_tag(condition, dag.graph);
    const int32_t tag =
        of_micro ? micro.number : chunk.tags[static_cast<size_t>(it - dag.region_tags.begin())];
    PIPER_ASSIGN(const bool met, meets(condition, tag, bound));
    if (!met) return std::optional<Variables>();
  }
  return std::optional<Variables>(std::move(bound));
}

Error no_match(const Dag& dag, const Where& where, const SourceSpan& at,
               std::string_view directive) {
  Error error = fail(where.empty() ? at : where.front().at, "{}: matches nothing", directive);
  for (size_t t = 0; t < dag.region_tags.size(); ++t) {
    std::set<int32_t> values;
    for (const Chunk& chunk : dag.chunks)
      if (chunk.tags[t] != kNoTag) values.insert(chunk.tags[t]);
    std::string list;
    for (int32_t value : values) list += fmt::format("{}{}", list.empty() ? "" : ", ", value);
    error.notes.push_back(fmt::format("tag '{}' has the values {}", dag.region_tags[t], list));
  }
  return error;
}

}  // namespace piper
