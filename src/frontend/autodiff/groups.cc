// Matches parameters with the groups of `train.groups`, by their names and by what they are.
#include <algorithm>
#include <iterator>

#include "piper/frontend/autodiff.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

// Finds what parameters are: follows each through its casts and other shapes to the ops that use
// it.
class KindFinder {
 public:
  explicit KindFinder(const Graph& graph) : graph_(graph), uses_(graph.values.size()) {
    for (const Node& node : graph.nodes)
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i].valid()) uses_[node.inputs[i].index()].push_back({&node, i});
  }

  bool is(const Param& param, ParamKind kind) const {
    const bool is_vector = graph_.value(param.value).type.shape.size() <= 1;
    if (kind == ParamKind::kVector) return is_vector;
    return has_use(param.value, kind);
  }
  bool is_part(ValueId value) const {
    return std::ranges::any_of(uses_[value.index()], [&](const Use& use) {
      return joins_parts(*use.node) || (use.node->op == "Cast" && is_part(use.node->outputs[0]));
    });
  }
  bool is_stack(ValueId value) const {
    const size_t rank = graph_.value(value).type.shape.size();
    return rank > 2 && std::ranges::any_of(uses_[value.index()], [&](const Use& use) {
             const auto& [node, input] = use;
             if (node->op == "Cast" || node->op == "Transpose" || joins_parts(*node))
               return is_stack(node->outputs[0]);
             return node->op == "MatMul" || node->op == "GroupedMatMul";
           });
  }

 private:
  struct Use {
    const Node* node;
    size_t input;
  };

  // Returns whether the op puts a parameter together of parts that are trained by themselves.
  bool joins_parts(const Node& node) const {
    const int tag = graph_.tag_index(kJoinedParts);
    return tag >= 0 && graph_.tag(node, tag) != kNoTag;
  }
  bool moves(const Node& node) const {
    const OpDef* def = find_op(node.op);
    return node.op == "Cast" || node.op == "Expand" ||
           (def && def->elements != OpDef::Elements::kMade) || joins_parts(node);
  }
  // Returns whether a cross-entropy reads the value, perhaps with a bias, or some rows of it.
  bool are_logits(ValueId value) const {
    return std::ranges::any_of(uses_[value.index()], [&](const Use& use) {
      const auto& [node, input] = use;
      if (node->op.starts_with("CrossEntropy")) return input == 0;
      return (moves(*node) || node->op == "Add") && are_logits(node->outputs[0]);
    });
  }

  bool has_use(ValueId value, ParamKind kind) const {
    return std::any_of(uses_[value.index()].begin(), uses_[value.index()].end(),
                       [&](const Use& use) { return is_use(use, value, kind); });
  }
  bool is_use(const Use& use, ValueId value, ParamKind kind) const {
    const auto& [node, input] = use;
    const bool passes = moves(*node);
    if (passes) return (input == 0 || joins_parts(*node)) && has_use(node->outputs[0], kind);
    if (kind == ParamKind::kNorm)
      return input > 0 &&
             (node->op == "LayerNorm" || node->op == "RmsNorm" || node->op == "GroupNorm");
    if (kind == ParamKind::kEmbedding) return input == 0 && node->op == "Gather";
    if (kind == ParamKind::kHead)
      return (node->op == "MatMul" || (node->op == "Linear" && input < 2)) &&
             are_logits(node->outputs[0]);
    return (node->op == "Linear" && input == 2) || (node->op == "Add" && is_row(value));
  }
  // Returns whether it has one dim of more than one element, at most.
  bool is_row(ValueId value) const {
    const Shape& shape = graph_.value(value).type.shape;
    return std::count_if(shape.begin(), shape.end(), [](int64_t size) { return size > 1; }) <= 1;
  }

  const Graph& graph_;
  std::vector<std::vector<Use>> uses_;  // by value
};

Error unused(const ParamGroup& group, const std::vector<Param>& params, bool matched) {
  if (matched) {
    return fail(group.at, "earlier groups take all parameters that {} matches", describe(group))
        .with_note("help: the first group that matches a parameter wins; put this one before");
  }
  if (!group.kinds.empty())
    return fail(group.at, "no parameter is what the group is of: {}", describe(group))
        .with_note(
            "help: vectors are of rank 1 at most; norms, biases, embeddings and heads are what "
            "ops use so");
  std::vector<std::string> names;
  for (const Param& param : params) std::ranges::move(paths_of(param), std::back_inserter(names));
  return fail(group.at, "'{}' matches no parameter{}", group.match,
              did_you_mean(group.match, names))
      .with_note("help: piperc MODEL --describe lists the parameters");
}

}  // namespace

Result<std::vector<const ParamGroup*>> groups_of(const Graph& graph,
                                                 const std::vector<ParamGroup>& groups) {
  const std::vector<Param>& params = graph.params;
  const KindFinder finder(graph);
  std::vector<const ParamGroup*> result(params.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const std::vector<std::string>& names = groups[g].names;
    const std::vector<ParamKind>& kinds = groups[g].kinds;
    Glob glob;
    if (names.empty()) {
      PIPER_ASSIGN(glob, Glob::parse(groups[g].match, groups[g].at));
    }
    bool matched = false, won = false;
    for (size_t p = 0; p < params.size(); ++p) {
      const bool is_named = names.empty()
                                ? has_name(params[p], glob)
                                : std::count(names.begin(), names.end(), params[p].name) > 0;
      const bool is_in = is_named && (kinds.empty() || std::ranges::any_of(kinds, [&](auto kind) {
                                        return finder.is(params[p], kind);
                                      }));
      if (!is_in) continue;
      matched = true;
      if (result[p]) continue;
      result[p] = &groups[g];
      won = true;
    }
    const bool defaults = groups[g].match == "**" && g + 1 == groups.size();
    if (!won && !defaults) return unused(groups[g], params, matched);
  }
  for (size_t p = 0; p < params.size(); ++p) {
    if (!params[p].frozen && !result[p]) {
      return fail("no parameter group matches parameter '{}'", quote_control(params[p].name));
    }
  }
  return result;
}

std::vector<bool> stacks_of(const Graph& graph) {
  const KindFinder finder(graph);
  std::vector<bool> stacks;
  for (const Param& param : graph.params) stacks.push_back(finder.is_stack(param.value));
  return stacks;
}

bool is_trained_part(const Graph& graph, const Param& param) {
  return KindFinder(graph).is_part(param.value);
}

const OptimizerSpec& optimizer_of(const ParamGroup& group, const TrainSpec& train) {
  return group.optimizer ? *group.optimizer : train.optimizer;
}

std::string describe(const ParamGroup& group) {
  std::string text;
  for (const ParamKind kind : group.kinds)
    text += fmt::format("{}{}", text.empty() ? "" : ", ", kParamKinds[static_cast<size_t>(kind)]);
  if (text.empty()) return fmt::format("'{}'", group.match);
  return group.match == "**" ? text : fmt::format("{} in '{}'", text, group.match);
}

int64_t tokens_of_step(const Graph& graph) {
  for (const ValueId input : graph.inputs) {
    const TensorType& type = graph.value(input).type;
    const bool counts = type.dtype == DType::kI64 || type.dtype == DType::kI32;
    if (counts && input != graph.sample) return num_elements(type.shape);
  }
  return graph.batch;
}

}  // namespace piper
