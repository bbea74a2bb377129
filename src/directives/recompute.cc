// recompute: forward ops that run again in the backward pass (activation checkpointing; Chen et
// al., Training Deep Nets with Sublinear Memory Cost, 2016).
#include <algorithm>
#include <map>
#include <set>

#include "keep.h"
#include "match.h"
#include "piper/ops.h"

namespace piper {
namespace {

constexpr int32_t kNone = -1;

// Ops that are recomputed together.
struct Group {
  size_t directive = 0;
  std::vector<int64_t> captures;
  std::vector<int32_t> tags;
  auto operator<=>(const Group&) const = default;
};

class Recomputer {
 public:
  Recomputer(Graph graph, const std::vector<Recompute>& recomputes, const Variables& variables)
      : graph_(std::move(graph)),
        recomputes_(recomputes),
        variables_(variables),
        group_(graph_.nodes.size(), kNone) {}

  Result<Graph> run(Explanations& out) {
    for (size_t d = 0; d < recomputes_.size(); ++d) PIPER_TRY(choose(d));
    all_readers_ = readers(graph_);
    kept_.resize(groups_.size());
    for (size_t g = 0; g < groups_.size(); ++g)
      if (recomputes_[groups_[g].directive].budget_bytes) PIPER_TRY(fit(g));
    const int64_t before = kept_bytes();
    copies_.assign(group_.size(), NodeId());
    const std::vector<bool> in_bi = needed_in_bi();
    for (size_t i = 0; i < group_.size(); ++i) {
      if (!is_backward(graph_.nodes[i])) continue;
      for (size_t k = 0; k < graph_.nodes[i].inputs.size(); ++k) {
        const ValueId input = graph_.nodes[i].inputs[k];
        if (!reads_again(graph_.nodes[i], input)) continue;
        const ValueId again = copied(input, in_bi);
        graph_.nodes[i].inputs[k] = again;
      }
    }
    for (size_t d = 0; d < recomputes_.size(); ++d) PIPER_TRY(report(d, out));
    auto& lines = out.back().lines;
    lines.insert(lines.end(), fitted_.begin(), fitted_.end());
    lines.push_back(fmt::format("kept for the backward pass: {} instead of {} a microbatch",
                                human_bytes(kept_bytes()), human_bytes(before)));
    return in_topological_order(std::move(graph_));
  }

 private:
  const Node* producer(ValueId value) const {
    const NodeId id = value.valid() ? graph_.value(value).producer : NodeId();
    return id.valid() ? &graph_.node(id) : nullptr;
  }
  int32_t group_of(ValueId value) const {
    const NodeId id = graph_.value(value).producer;
    return id.valid() && id.index() < group_.size() ? group_[id.index()] : kNone;
  }

  // ---- Which ops ----
  Status choose(size_t d) {
    const Recompute& recompute = recomputes_[d];
    for (const auto& [op, at] : recompute.ops) {
      if (find_op(op)) continue;
      std::vector<std::string> names;
      for (const OpDef* def : all_ops()) names.emplace_back(def->name);
      return fail(at, "recompute: unknown op '{}'{}", op, did_you_mean(op, names));
    }
    int64_t matched = 0;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      PIPER_ASSIGN(const std::optional<Group> group, group_for(d, graph_.nodes[i]));
      if (!group) continue;
      ++matched;
      if (group_[i] != kNone)
        return fail(recompute.at, "recompute: {} at '{}' is chosen twice", graph_.nodes[i].op,
                    graph_.nodes[i].scope)
            .with_note(
                fmt::format("first at line {}", recomputes_[groups_[group_[i]].directive].at.line));
      const auto [it, is_new] = ids_.emplace(*group, static_cast<int32_t>(groups_.size()));
      if (is_new) groups_.push_back(*group);
      group_[i] = it->second;
    }
    if (matched > 0) return ok_status();
    std::set<std::string> scopes;
    for (const Node& node : graph_.nodes)
      if (node.pass == Pass::kF) scopes.insert(node.scope);
    const std::vector<std::string> known(scopes.begin(), scopes.end());
    const std::string pattern = recompute.match ? recompute.match->pattern() : "";
    return fail(recompute.at, "recompute: matches no forward op{}",
                recompute.match ? did_you_mean(pattern, known) : "");
  }
  Result<std::optional<Group>> group_for(size_t d, const Node& node) const {
    const Recompute& recompute = recomputes_[d];
    Group group{d, {}, graph_.tags_of(node)};
    if (node.pass != Pass::kF) return std::optional<Group>();
    const bool named =
        recompute.ops.empty() || std::any_of(recompute.ops.begin(), recompute.ops.end(),
                                             [&](const auto& op) { return op.first == node.op; });
    if (!named) return std::optional<Group>();
    if (recompute.match) {
      const auto match = recompute.match->match(node.scope);
      if (!match) return std::optional<Group>();
      for (const auto& [name, value] : match->captures) group.captures.push_back(value);
    }
    PIPER_ASSIGN(const auto met, match_node(graph_, node, recompute.where, variables_));
    return met ? std::optional<Group>(std::move(group)) : std::nullopt;
  }

  // ---- What is kept ----
  // Allows more and more ops to be repeated, the cheapest first, until what is left to keep fits.
  Status fit(size_t g) {
    const Recompute& recompute = recomputes_[groups_[g].directive];
    std::vector<std::pair<double, size_t>> ops;
    for (size_t i = 0; i < group_.size(); ++i)
      if (group_[i] == static_cast<int32_t>(g))
        ops.emplace_back(intensity_of(graph_, graph_.nodes[i]), i);
    std::sort(ops.begin(), ops.end());
    const auto kept_with = [&](size_t count) {
      std::vector<bool> may_repeat(graph_.nodes.size());
      for (size_t k = 0; k < count; ++k) may_repeat[ops[k].second] = true;
      return keep_least(graph_, groups_[g].tags, may_repeat);
    };
    size_t low = 0, high = ops.size();  // the more may be repeated, the less is kept
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (kept_with(middle).bytes <= *recompute.budget_bytes)
        high = middle;
      else
        low = middle + 1;
    }
    Kept kept = kept_with(low);
    if (kept.bytes > *recompute.budget_bytes)
      return fail(recompute.at,
                  "recompute: a microbatch keeps at least {} in {}, more than the budget of {}",
                  human_bytes(kept.bytes), region_name(groups_[g].tags),
                  human_bytes(*recompute.budget_bytes));
    fitted_.push_back(fmt::format("{} keeps {} a microbatch", region_name(groups_[g].tags),
                                  human_bytes(kept.bytes)));
    kept_[g] = std::move(kept.values);
    return ok_status();
  }
  std::string region_name(const std::vector<int32_t>& tags) const {
    std::string name;
    for (size_t t = 0; t < tags.size(); ++t)
      if (tags[t] != kNoTag)
        name += fmt::format("{}{}={}", name.empty() ? "" : " ", graph_.tag_names[t], tags[t]);
    return name.empty() ? "the model" : name;
  }
  // Whether the value is there anyway when the backward pass comes: what a group hands on.
  bool is_kept(ValueId value) const {
    const int32_t group = group_of(value);
    if (!kept_[group].empty()) return kept_[group][value.index()];
    if (!recomputes_[groups_[group].directive].ops.empty()) return false;
    for (NodeId reader : all_readers_[value.index()])
      if (graph_.node(reader).pass == Pass::kF && group_[reader.index()] != group) return true;
    return false;
  }
  // Whether a node of the backward pass reads a copy instead of the value: only in its own region.
  bool reads_again(const Node& reader, ValueId value) const {
    return value.valid() && group_of(value) != kNone && !is_kept(value) &&
           graph_.tags_of(reader) == groups_[group_of(value)].tags;
  }
  int64_t kept_bytes() const {
    std::set<ValueId> kept;
    for (const Node& node : graph_.nodes)
      for (ValueId input : node.inputs) {
        const Node* from = producer(input);
        if (is_backward(node) && from && from->pass == Pass::kF) kept.insert(input);
      }
    int64_t bytes = 0;
    for (ValueId value : kept) bytes += graph_.value(value).type.bytes();
    return bytes;
  }

  // ---- Copies ----
  // Inputs of a copy that are copies themselves: what its own group makes.
  bool copies_too(const Node& node, ValueId input) const {
    return input.valid() && group_of(input) != kNone &&
           group_of(input) == group_[graph_.value(node.outputs[0]).producer.index()] &&
           !is_kept(input);
  }
  // By forward op: whether a copy of it is needed by an op of pass BI, and so belongs to it.
  std::vector<bool> needed_in_bi() const {
    std::vector<bool> needed(group_.size());
    for (const Node& node : graph_.nodes)
      for (ValueId input : node.inputs)
        if (node.pass == Pass::kBI && reads_again(node, input))
          needed[graph_.value(input).producer.index()] = true;
    for (size_t i = needed.size(); i-- > 0;)
      for (ValueId input : graph_.nodes[i].inputs)
        if (needed[i] && copies_too(graph_.nodes[i], input))
          needed[graph_.value(input).producer.index()] = true;
    return needed;
  }
  ValueId copied(ValueId value, const std::vector<bool>& in_bi) {
    const NodeId original = graph_.value(value).producer;
    const auto output = static_cast<size_t>(graph_.value(value).output_index);
    if (copies_[original.index()].valid())
      return graph_.node(copies_[original.index()]).outputs[output];
    Node copy = graph_.node(original);
    for (ValueId& input : copy.inputs)
      if (copies_too(graph_.node(original), input)) input = copied(input, in_bi);
    copy.pass = in_bi[original.index()] ? Pass::kBI : Pass::kBW;
    const NodeId made = graph_.add_copy(std::move(copy));
    copies_[original.index()] = made;
    return graph_.node(made).outputs[output];
  }

  Status report(size_t d, Explanations& out) const {
    int64_t chosen = 0, again = 0;
    std::set<int32_t> groups;
    for (size_t i = 0; i < group_.size(); ++i) {
      if (group_[i] == kNone || groups_[group_[i]].directive != d) continue;
      ++chosen;
      groups.insert(group_[i]);
      again += copies_[i].valid();
    }
    if (again == 0 && !recomputes_[d].budget_bytes)
      return fail(recomputes_[d].at,
                  "recompute: the backward pass reads nothing that these {} ops make", chosen);
    out.push_back({recomputes_[d].at,
                   "recompute",
                   {fmt::format("of {} forward ops in {} groups {} run again in the backward pass",
                                chosen, groups.size(), again)}});
    return ok_status();
  }

  Graph graph_;
  const std::vector<Recompute>& recomputes_;
  const Variables& variables_;
  std::vector<int32_t> group_;  // by node of the graph without copies
  std::vector<Group> groups_;
  std::map<Group, int32_t> ids_;
  std::vector<std::vector<NodeId>> all_readers_;  // of the graph without copies
  std::vector<NodeId> copies_;                    // by node
  std::vector<std::vector<bool>> kept_;  // by group, then value: what a budget has chosen; or empty
  std::vector<std::string> fitted_;      // what it chose, for people
};

}  // namespace

Result<Graph> apply_recompute(Graph step, const std::vector<Recompute>& recomputes,
                              const Variables& variables, Explanations& out) {
  if (recomputes.empty()) return step;
  return Recomputer(std::move(step), recomputes, variables).run(out);
}

}  // namespace piper
