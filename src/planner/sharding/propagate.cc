// Propagates the cut of the batch through a graph.
#include "propagate.h"

#include <algorithm>

#include "closing.h"
#include "letters.h"
#include "rewrite.h"

namespace piper {
namespace {

std::string place_of(const Node& node) {
  if (node.scope.empty())
    return fmt::format("op {} (node '{}')", node.op, quote_control(node.name));
  return fmt::format("op {} at {}", node.op, quote_control(node.scope));
}

std::vector<bool> find_state_ancestors(const Graph& graph) {
  std::vector<bool> result(graph.values.size());
  for (size_t i = 0; i < graph.values.size(); ++i) {
    result[i] = graph.values[i].kind == ValueKind::kState;
  }
  for (const Node& node : graph.nodes) {
    bool any = std::any_of(node.inputs.begin(), node.inputs.end(),
                           [&](ValueId id) { return id.valid() && result[id.index()]; });
    for (ValueId output : node.outputs) result[output.index()] = any;
  }
  return result;
}

class Propagation {
 public:
  Propagation(const Graph& graph, const BatchCut& cut)
      : graph_(graph),
        cut_(cut),
        shards_(cut.replicas * cut.microbatches),
        has_state_(find_state_ancestors(graph)),
        closing_(find_closing(graph)) {}

  Result<Propagated> run() {
    do {
      found_more_ = false;
      walk();
    } while (found_more_);
    if (first_problem_ && cut_.microbatches > 1) {
      first_problem_->notes.push_back(
          fmt::format("the step is cut into {} microbatches: samples of one of them are not all "
                      "samples, and none waits for the next",
                      cut_.microbatches));
      first_problem_->notes.push_back(
          "help: with one microbatch (no 'split', or `into: 1`) the model trains as it is, on any "
          "number of replicas: they exchange what samples need of each other");
    }
    if (first_problem_) return *std::move(first_problem_);
    // A value is left unknown only where there is one shard: sums of one term.
    for (size_t i = 0; i < unknown_.size(); ++i)
      if (unknown_[i]) layouts_[i] = Layout{LayoutKind::kPartial};
    return Propagated{std::move(layouts_), std::move(readings_), std::move(late_)};
  }

 private:
  // Views an op by the node that is visited.
  struct Use {
    NodeId id;
    const Node& node;
    const Loops& loops;
    std::optional<LoopCut> cut;
    size_t cut_input = 0;  // the input that brought the cut; past the end: an output did
  };

  void walk() {
    layouts_.assign(graph_.values.size(), Layout{});
    unknown_.assign(graph_.values.size(), false);
    readings_.clear();
    late_.assign(graph_.nodes.size(), false);
    first_problem_.reset();
    for (ValueId id : graph_.inputs) {
      int dim = graph_.value(id).batch_dim;
      if (dim >= 0) layouts_[id.index()] = Layout{LayoutKind::kSharded, dim, 1};
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) visit(NodeId(i));
  }

  std::string name_of(ValueId id) const {
    const Value& value = graph_.value(id);
    return fmt::format("'{}' ({})", quote_control(value.name), to_string(value.type));
  }

  // An uncut batch needs no layout that holds: what cannot be cut goes on without one.
  bool problem(const Node& node, Error error) {
    for (ValueId output : node.outputs) unknown_[output.index()] = true;
    if (shards_ > 1 && !first_problem_) first_problem_ = std::move(error);
    return false;
  }

  bool couples(const Use& use, size_t input) {
    Error error =
        fail(cut_.at, "the batch cannot be cut: {} couples its samples", place_of(use.node));
    if (input < use.node.inputs.size()) {
      ValueId id = use.node.inputs[input];
      error.notes.push_back(fmt::format("its input {} holds the samples along dim {}", name_of(id),
                                        layouts_[id.index()].dim));
      const Value& value = graph_.value(id);
      if (value.kind == ValueKind::kInput)
        error.notes.push_back(
            fmt::format("help: if all samples share it, inputs: {{{}: {{batch_dim: none}}}}",
                        quote_control(value.name)));
    }
    return problem(use.node, std::move(error));
  }

  const Loops* loops_at(NodeId id) {
    const Node& node = graph_.node(id);
    const Loops* loops = loops_.find(graph_, node, id);
    PIPER_CHECK(loops == nullptr || (loops->rule.inputs.size() == node.inputs.size() &&
                                     loops->rule.outputs.size() == node.outputs.size()),
                "the loop rule of {} is for other operands", node.op);
    return loops;
  }

  bool is_touched(const Node& node) const {
    auto lies = [&](ValueId id) { return id.valid() && layouts_[id.index()] != Layout{}; };
    auto wanted = [&](ValueId id) { return required_.count(id.value) > 0; };
    return std::any_of(node.inputs.begin(), node.inputs.end(), lies) ||
           std::any_of(node.outputs.begin(), node.outputs.end(), wanted);
  }

  void visit(NodeId id) {
    const Node& node = graph_.node(id);
    if (is_step_sum(node) && shards_ == 1) return;
    for (ValueId input : node.inputs) {
      if (!input.valid() || !unknown_[input.index()]) continue;
      for (ValueId output : node.outputs) unknown_[output.index()] = true;
      return;
    }
    if (std::any_of(node.inputs.begin(), node.inputs.end(),
                    [&](ValueId input) { return is_late(input); })) {
      if (!is_step_sum(node) && node.pass == Pass::kF) close(id, node);
      return;
    }
    if (is_step_sum(node)) return visit_step_sum(id, node);
    if (!is_touched(node)) return;
    const Loops* loops = loops_at(id);
    if (loops == nullptr) {
      problem(node, fail(cut_.at, "not supported: {} has no rule for a cut batch", place_of(node)));
      return;
    }
    Use use{id, node, *loops, {}, node.inputs.size()};
    if (find_cuts(use) && meet_inputs(use) && meet_partials(use)) set_outputs(use);
  }

  // Returns the one loop that inputs, or readers of the outputs, cut.
  bool find_cuts(Use& use) {
    const Node& node = use.node;
    const auto is_across = [&](size_t input) {  // blocks of which the op takes some
      const auto dim = static_cast<size_t>(layouts_[node.inputs[input].index()].dim);
      const LoopRule::Dim& letters = use.loops.rule.inputs[input][dim];
      return std::any_of(letters.begin(), letters.end(),
                         [&](char letter) { return is_whole(use.loops.rule, letter); });
    };
    auto join = [&](std::optional<LoopCut> cut, size_t input, ValueId id) {
      if (!cut && input < node.inputs.size() && is_across(input)) return couples(use, input);
      if (!cut) {
        return problem(node, fail(cut_.at, "the batch cannot be cut into {}: {} splits {} unevenly",
                                  shards_, place_of(node), name_of(id)));
      }
      if (use.cut && use.cut != cut) return couples(use, input);
      if (!use.cut) use.cut_input = input;
      use.cut = cut;
      return true;
    };
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].valid()) continue;
      const Layout& layout = layouts_[node.inputs[i].index()];
      if (layout.kind != LayoutKind::kSharded) continue;
      if (!join(cut_of(use.loops.input(i), layout, shards_), i, node.inputs[i])) return false;
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      auto wanted = required_.find(node.outputs[i].value);
      if (wanted == required_.end()) continue;
      std::optional<LoopCut> cut = cut_of(use.loops.output(i), wanted->second, shards_);
      if (!join(cut, use.cut_input, node.outputs[i])) return false;
    }
    if (!use.cut) return true;
    const char letter = use.cut->letter;
    const bool is_legal = !is_whole(use.loops.rule, letter) && stands_once(use.loops, letter);
    return is_legal || couples(use, use.cut_input);
  }

  // Every input that has the cut loop must be cut alike.
  bool meet_inputs(Use& use) {
    if (!use.cut) return true;
    for (size_t i = 0; i < use.node.inputs.size(); ++i) {
      ValueId id = use.node.inputs[i];
      if (!id.valid()) continue;
      std::optional<Layout> layout = layout_of(use.loops.input(i), *use.cut);
      if (!layout || layouts_[id.index()] == *layout) continue;
      if (!require(use, i, *layout)) return false;
    }
    return true;
  }

  bool require(const Use& use, size_t input, const Layout& layout) {
    ValueId id = use.node.inputs[input];
    const Value& value = graph_.value(id);
    auto refuse = [&](std::string why) {
      if (shards_ == 1) return true;  // uncut, every value is its own block
      return problem(use.node, fail(cut_.at, "not supported: {} reads {} sample by sample, but {}",
                                    place_of(use.node), name_of(id), why));
    };
    switch (value.kind) {
      case ValueKind::kConstant:
        readings_[{use.id.value, static_cast<int32_t>(input)}] = {
            .block = layout, .differs = !has_equal_blocks(id, layout)};
        return true;
      case ValueKind::kState:
        return refuse("it is a parameter or other state of the whole step");
      case ValueKind::kInput:
        return refuse("this input has no dim that counts samples");
      case ValueKind::kNode:
        break;
    }
    const Node& producer = graph_.node(value.producer);
    if (is_step_sum(producer)) return refuse("it is a sum over the whole batch");
    const Loops* loops = loops_at(value.producer);
    if (loops == nullptr) return refuse(fmt::format("{} has no rule for that", place_of(producer)));
    const Operand made = loops->output(static_cast<size_t>(value.output_index));
    std::optional<LoopCut> cut = cut_of(made, layout, shards_);
    if (!cut || is_whole(loops->rule, cut->letter)) {
      return refuse(fmt::format("{} makes it as a whole", place_of(producer)));
    }
    found_more_ = required_.emplace(id.value, layout).second || found_more_;
    return true;
  }

  // All blocks of a constant are the same, so that one stands for each shard's.
  bool has_equal_blocks(ValueId id, const Layout& layout) {
    if (shards_ == 1) return true;
    auto [known, fresh] = equal_blocks_.try_emplace({id.value, layout.dim, layout.outer}, false);
    if (!fresh) return known->second;
    const Value& value = graph_.value(id);
    if (static_cast<int64_t>(value.data.size) != value.type.bytes()) return false;
    const std::string all = blocks_of(value, layout, shards_);
    const size_t later = all.size() - all.size() / static_cast<size_t>(shards_);
    return known->second = std::string_view(all).ends_with(std::string_view(all).substr(0, later));
  }

  // Partial inputs that the op is not linear in are summed over the whole batch first.
  bool meet_partials(Use& use) {
    std::vector<int> partial;
    for (size_t i = 0; i < use.node.inputs.size(); ++i) {
      ValueId id = use.node.inputs[i];
      if (id.valid() && layouts_[id.index()].kind == LayoutKind::kPartial &&
          !required_.count(id.value)) {
        partial.push_back(static_cast<int>(i));
      }
    }
    if (partial.empty()) return true;
    const std::vector<int> kept = use.cut ? std::vector<int>{} : linear_part(use, partial);
    for (int input : partial) {
      bool stays = std::find(kept.begin(), kept.end(), input) != kept.end();
      if (!stays && !sum_input(use, static_cast<size_t>(input))) return false;
    }
    if (kept.empty()) return true;
    share_others(use, kept);
    for (ValueId output : use.node.outputs) layouts_[output.index()] = Layout{LayoutKind::kPartial};
    return false;  // the outputs are decided
  }

  // Returns whether a value is zeros, written down or moved about. They are a sum of zeros,
  // whatever the cut.
  bool is_zero(ValueId id) {
    const Value& value = graph_.value(id);
    if (value.kind == ValueKind::kConstant) {
      const auto [known, fresh] = zeros_.try_emplace(id.value, false);
      if (!fresh) return known->second;
      const Bytes data = value.data.made();
      const auto bytes = data.span();
      if (static_cast<int64_t>(bytes.size()) != value.type.bytes()) return false;
      return known->second = std::all_of(bytes.begin(), bytes.end(),
                                         [](std::byte b) { return b == std::byte{0}; });
    }
    if (value.kind != ValueKind::kNode) return false;
    const Node& producer = graph_.node(value.producer);
    if (producer.op == "Fill") return producer.attrs.real("value") == 0;
    if (producer.inputs.size() != 1) return false;
    const Loops* loops = loops_at(value.producer);
    return loops && loops->rule.linear == std::vector<std::vector<int>>{{0}} &&
           is_zero(producer.inputs[0]);
  }

  // Returns whether all shards have the number as a whole: it can be one's term of a sum over them.
  bool is_shareable(ValueId id) const {
    return layouts_[id.index()] == Layout{} && !required_.count(id.value) &&
           graph_.value(id).type.dtype != DType::kBool;
  }

  // Returns the Partial inputs that may stay so: a set the op is linear in, its other inputs being
  // zeros, while all others can be summed early. Most stay if there is a choice. Where some cannot
  // be summed early, the set may have whole values, as terms.
  //   Div(sum of losses, label count): linear in 0 only; the count, input 1, is summed before the
  //   microbatches run
  //   Where(condition, sum, 0): linear in 1 and 2
  //   Add(sum of losses, penalty on weights)
  std::vector<int> linear_part(const Use& use, const std::vector<int>& partial) {
    const auto has = [](const std::vector<int>& list, int i) {
      return std::find(list.begin(), list.end(), i) != list.end();
    };
    const bool shares = std::any_of(partial.begin(), partial.end(), [&](int i) {
      return has_state_[use.node.inputs[static_cast<size_t>(i)].index()];
    });
    const auto is_term = [&](ValueId id) { return is_zero(id) || (shares && is_shareable(id)); };
    auto needs_sum_of_state = [&](const std::vector<int>& kept) {
      return std::any_of(partial.begin(), partial.end(), [&](int i) {
        return has_state_[use.node.inputs[static_cast<size_t>(i)].index()] && !has(kept, i);
      });
    };
    std::vector<int> best;
    for (const std::vector<int>& set : use.loops.rule.linear) {
      std::vector<int> kept;
      for (int i : set)
        if (has(partial, i)) kept.push_back(i);
      const bool is_sum = std::all_of(set.begin(), set.end(), [&](int i) {
        return has(kept, i) || is_term(use.node.inputs[static_cast<size_t>(i)]);
      });
      if (is_sum && kept.size() > best.size() && !needs_sum_of_state(kept)) best = kept;
    }
    return best;
  }

  void share_others(const Use& use, const std::vector<int>& kept) {
    for (const std::vector<int>& set : use.loops.rule.linear) {
      if (!std::includes(set.begin(), set.end(), kept.begin(), kept.end())) continue;
      for (int i : set)
        if (const ValueId id = use.node.inputs[static_cast<size_t>(i)];
            layouts_[id.index()].kind != LayoutKind::kPartial && !is_zero(id))
          share(use.id, static_cast<size_t>(i));
      return;
    }
  }

  void share(NodeId reader, size_t input) {
    readings_[{reader.value, static_cast<int32_t>(input)}].shared = true;
  }

  bool sum_input(const Use& use, size_t input) {
    ValueId id = use.node.inputs[input];
    if (!has_state_[id.index()]) {
      readings_[{use.id.value, static_cast<int32_t>(input)}].summed = true;
      return true;
    }
    if (closing_[use.id.index()]) return close(use.id, use.node);
    Error error =
        fail(cut_.at, "the batch cannot be cut: {} needs the sum of {} over all its samples",
             place_of(use.node), name_of(id));
    error.notes.push_back(
        "only a value of inputs and constants can be summed before the microbatches run");
    return problem(use.node, std::move(error));
  }

  bool is_late(ValueId id) const {
    return id.valid() && graph_.value(id).kind == ValueKind::kNode &&
           late_[graph_.value(id).producer.index()];
  }

  // Runs what only a state's next value needs after the microbatches, on sums over them.
  bool close(NodeId id, const Node& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (!input.valid() || is_late(input)) continue;
      Reading& reading = readings_[{id.value, static_cast<int32_t>(i)}];
      const LayoutKind lies = layouts_[input.index()].kind;
      if (lies == LayoutKind::kPartial) {
        reading.summed = true;
      } else if (lies != LayoutKind::kReplicated) {
        return problem(
            node, fail(cut_.at, "the batch cannot be cut: {} couples its samples", place_of(node)));
      } else if (graph_.value(input).kind == ValueKind::kNode &&
                 !is_step_sum(graph_.node(graph_.value(input).producer))) {
        if (!is_shareable(input))
          return problem(node, fail(cut_.at, "not supported: {} reads {} after the microbatches",
                                    place_of(node), name_of(input)));
        reading = {.summed = true, .shared = true};
      }
    }
    late_[id.index()] = true;
    return false;  // the outputs are decided
  }

  void set_outputs(const Use& use) {
    if (!use.cut) return;  // all inputs are whole
    for (size_t i = 0; i < use.node.outputs.size(); ++i) {
      Layout& layout = layouts_[use.node.outputs[i].index()];
      std::optional<Layout> passed = layout_of(use.loops.output(i), *use.cut);
      if (!passed && use.loops.rule.reduces != LoopRule::kSum) {
        couples(use, use.cut_input);
        return;
      }
      layout = passed ? *passed : Layout{LayoutKind::kPartial};
    }
  }

  void visit_step_sum(NodeId id, const Node& node) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      const Layout& layout = layouts_[input.index()];
      if (layout.kind == LayoutKind::kPartial) continue;
      if (is_shareable(input)) {
        share(id, i);
        continue;
      }
      problem(node,
              fail(cut_.at, "not supported: {} has a part {}, {}", what_sums(node),
                   layout.kind == LayoutKind::kReplicated ? "that does not depend on the samples"
                                                          : "for each sample",
                   name_of(input)));
      return;
    }
  }

  std::string what_sums(const Node& node) const {
    for (const Param& param : graph_.params)
      if (param.gradient == node.outputs[0])
        return fmt::format("the gradient of parameter '{}'", quote_control(param.name));
    if (graph_.loss == node.outputs[0]) return "the loss";
    return fmt::format("the sum '{}'", quote_control(node.name));
  }

  const Graph& graph_;
  const BatchCut& cut_;
  int64_t shards_;
  std::vector<bool> has_state_;                // by value: state is among its ancestors
  std::vector<bool> closing_;                  // by node
  LoopTable loops_;
  std::map<int32_t, Layout> required_;         // by value: found by readers that need it cut
  std::map<std::tuple<int32_t, int, int64_t>, bool> equal_blocks_;
  std::map<int32_t, bool> zeros_;  // by constant

  // Of one walk.
  std::vector<Layout> layouts_;
  std::vector<bool> unknown_;  // by value: behind a problem
  std::vector<bool> late_;     // by node: it runs after the microbatches
  std::map<std::pair<int32_t, int32_t>, Reading> readings_;
  std::optional<Error> first_problem_;
  bool found_more_ = false;
};

}  // namespace

Result<Propagated> propagate(const Graph& graph, const BatchCut& cut) {
  return Propagation(graph, cut).run();
}

}  // namespace piper
