// Matches parameters with the groups of `train.groups`, by their names and by what they are.
#include <algorithm>
#include <iterator>

#include "piper/frontend/autodiff.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

// Finds what values are by their uses, through casts and other shapes of them: one walk from the
// last op to the first, which knows the uses of a value when it comes to the op that makes it.
class KindFinder {
 public:
  explicit KindFinder(const Graph& graph)
      : graph_(graph), joined_(graph.tag_index(kJoinedParts)), uses_(graph.values.size()) {
    for (size_t n = graph.nodes.size(); n-- > 0;) {
      const Node& node = graph.nodes[n];
      const Passes passes = passes_of(node);
      for (size_t i = 0; i < node.inputs.size(); ++i)
        if (node.inputs[i].valid()) uses_[node.inputs[i].index()] |= use_of(node, passes, i);
    }
  }

  bool is(const Param& param, ParamKind kind) const {
    const bool is_vector = graph_.value(param.value).type.shape.size() <= 1;
    if (kind == ParamKind::kVector) return is_vector;
    return has(param.value, bit(kind));
  }
  bool is_part(ValueId value) const { return has(value, kPart); }
  bool is_stack(ValueId value) const { return has(value, kStack); }

 private:
  // kLogits: a cross-entropy reads the value, perhaps with a bias, or some rows of it. kPart: it is
  // put together with others to a parameter. kStack: ops multiply with its matrices. The bits above
  // are those of ParamKind.
  using Uses = uint32_t;
  static constexpr Uses kLogits = 1, kPart = 2, kStack = 4;
  static constexpr Uses bit(ParamKind kind) { return Uses{8} << static_cast<uint32_t>(kind); }
  static constexpr Uses kKinds = ~(kLogits | kPart | kStack);

  bool has(ValueId value, Uses wanted) const { return (uses_[value.index()] & wanted) != 0; }

  struct Passes {
    bool joins = false;  // puts a parameter together of parts that are trained by themselves
    bool moves = false;  // computes nothing
  };
  Passes passes_of(const Node& node) const {
    const bool joins = joined_ >= 0 && graph_.tag(node, joined_) != kNoTag;
    const OpDef* def = find_op(node.op);
    return {joins, joins || node.op == "Cast" || node.op == "Expand" ||
                       (def && def->elements != OpDef::Elements::kMade)};
  }
  Uses use_of(const Node& node, Passes passes, size_t input) const {
    const ValueId value = node.inputs[input];
    const Uses result = node.outputs[0].valid() ? uses_[node.outputs[0].index()] : 0;
    Uses use = 0;
    if (node.op.starts_with("CrossEntropy")) {
      if (input == 0) use |= kLogits;
    } else if (passes.moves || node.op == "Add") {
      use |= result & kLogits;
    }
    if (passes.joins) use |= kPart;
    if (node.op == "Cast") use |= result & kPart;
    if (graph_.value(value).type.shape.size() > 2) {
      if (node.op == "Cast" || node.op == "Transpose" || passes.joins)
        use |= result & kStack;
      else if (node.op == "MatMul" || node.op == "GroupedMatMul")
        use |= kStack;
    }
    if (passes.moves) return input == 0 || passes.joins ? use | (result & kKinds) : use;
    if (input > 0 && (node.op == "LayerNorm" || node.op == "RmsNorm" || node.op == "GroupNorm"))
      use |= bit(ParamKind::kNorm);
    if (input == 0 && node.op == "Gather") use |= bit(ParamKind::kEmbedding);
    if ((node.op == "MatMul" || (node.op == "Linear" && input < 2)) && (result & kLogits) != 0)
      use |= bit(ParamKind::kHead);
    if ((node.op == "Linear" && input == 2) || (node.op == "Add" && is_row(value)))
      use |= bit(ParamKind::kBias);
    return use;
  }
  // Returns whether it has one dim of more than one element, at most.
  bool is_row(ValueId value) const {
    const Shape& shape = graph_.value(value).type.shape;
    return std::count_if(shape.begin(), shape.end(), [](int64_t size) { return size > 1; }) <= 1;
  }

  const Graph& graph_;
  const int joined_;        // the tag kJoinedParts
  std::vector<Uses> uses_;  // by value
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

std::vector<bool> trained_parts(const Graph& graph) {
  const KindFinder finder(graph);
  std::vector<bool> parts;
  for (const Param& param : graph.params) parts.push_back(finder.is_part(param.value));
  return parts;
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
