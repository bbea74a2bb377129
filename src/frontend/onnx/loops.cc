// What is put in the place of nodes with bodies: the branch of an If that is decided, and the
// bodies of a Loop or Scan whose turns are known, once for each turn.
#include <map>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

using InnerNames = std::map<std::string, std::string>;

// Copies a body's nodes under names of its own, those of one turn or one If; what the body does not
// define is of the graph around.
class BodyCopy {
 public:
  BodyCopy(InnerNames names, std::string prefix)
      : names_(std::move(names)), prefix_(std::move(prefix)) {}

  std::string name_of(const std::string& inner) const {
    const auto found = names_.find(inner);
    return found == names_.end() ? inner : found->second;
  }
  OnnxSubgraph body(const OnnxSubgraph& from) {
    OnnxSubgraph out = from;
    for (OnnxTensor& tensor : out.initializers) tensor.name = define(tensor.name);
    for (OnnxNode& node : out.nodes)
      for (std::string& name : node.outputs) name = define(name);
    for (OnnxNode& node : out.nodes) {
      for (std::string& name : node.inputs) name = name_of(name);
      for (OnnxSubgraph& inner : node.branches) {
        for (std::string& name : inner.inputs) name = define(name);
        inner = body(inner);
      }
    }
    for (std::string& name : out.outputs) name = name_of(name);
    return out;
  }

 private:
  std::string define(const std::string& name) {
    if (name.empty()) return name;
    return names_[name] = prefix_ + name;
  }
  InnerNames names_;
  const std::string prefix_;
};

// Returns element i of a list, or 0.
int64_t loop_item(const OnnxNode& node, std::string_view attr, size_t i) {
  const auto* list = node.get<std::vector<int64_t>>(attr);
  return list && i < list->size() ? (*list)[i] : 0;
}

class Unrolling {
 public:
  Unrolling(OnnxModel& model, const OnnxNode& node)
      : model_(model), node_(node), is_scan_(node_.op == "Scan") {}

  Result<std::vector<OnnxNode>> run(int64_t turns, int64_t& room) {
    PIPER_TRY(read());
    const auto count = static_cast<int64_t>(body_->nodes.size() + stacked_ + 4);
    if (turns > room / count)
      return fail(
          "{}: {} turns of {} nodes are more than the {} that can still be written one by "
          "one",
          node_.label(), turns, body_->nodes.size(), room);
    room -= turns * count;
    if (!is_scan_) PIPER_TRY(check_goes_on());
    for (int64_t t = 0; t < turns; ++t) take_turn(t, turns);
    if (turns == 0 && stacked_ > 0) PIPER_TRY(take_none());
    finish();
    return std::move(made_);
  }

 private:
  Status read() {
    if (node_.branches.size() != 1) return fail("{} has no body", node_.label());
    body_ = &node_.branches[0];
    const size_t fixed = is_scan_ ? 0 : 2;  // the number of the turn, the condition
    const auto scanned = is_scan_ ? node_.get_or<int64_t>("num_scan_inputs") : 0;
    scanned_ = static_cast<size_t>(std::max<int64_t>(scanned, 0));
    const bool fits = node_.inputs.size() >= fixed + scanned_ &&
                      body_->inputs.size() == node_.inputs.size() &&
                      body_->outputs.size() == node_.outputs.size() + (is_scan_ ? 0 : 1);
    if (fits) carried_ = node_.inputs.size() - fixed - scanned_;
    if (!fits || node_.outputs.size() < carried_)
      return fail("{} and its body do not fit each other", node_.label());
    stacked_ = node_.outputs.size() - carried_;
    states_.assign(node_.inputs.begin() + static_cast<int64_t>(fixed),
                   node_.inputs.begin() + static_cast<int64_t>(fixed + carried_));
    stacks_.resize(stacked_);
    return ok_status();
  }

  // Checks the body's condition: what it was before, or a constant that is true.
  Status check_goes_on() const {
    const std::string name = copied_by(body_->outputs[0]);
    if (name == body_->inputs[1] || is_true(body_->initializers, name) ||
        is_true(model_.initializers, name) || is_true(body_->nodes, name) ||
        is_true(model_.nodes, name))
      return ok_status();
    return fail("{} is not supported where its body decides whether it goes on", node_.label());
  }
  // Returns what a value of the body copies: an input, or what another operator makes.
  std::string copied_by(std::string name) const {
    // There are at most as many copies as nodes, or they are a circle.
    for (size_t moves = 0; moves < body_->nodes.size() && name != body_->inputs[1]; ++moves) {
      const auto copy = std::ranges::find_if(body_->nodes, [&](const OnnxNode& node) {
        return (node.op == "Identity" || node.op == "Cast") && makes(node, name) &&
               !node.inputs.empty();
      });
      if (copy == body_->nodes.end()) break;
      name = copy->inputs[0];
    }
    return name;
  }
  static bool makes(const OnnxNode& node, const std::string& name) {
    return !node.outputs.empty() && node.outputs[0] == name;
  }
  static bool is_true(const std::vector<OnnxNode>& nodes, const std::string& name) {
    return std::ranges::any_of(nodes, [&](const OnnxNode& node) {
      return node.op == "Constant" && makes(node, name) && is_true(node);
    });
  }
  static bool is_true(const OnnxTensor& tensor) {
    return tensor.type.dtype == DType::kBool && tensor.data.size == 1 &&
           tensor.data.data[0] != std::byte{0};
  }
  static bool is_true(const OnnxNode& constant) {
    const auto* tensor = constant.get<OnnxTensor>("value");
    return tensor && is_true(*tensor);
  }
  static bool is_true(const std::vector<OnnxTensor>& tensors, const std::string& name) {
    return std::any_of(tensors.begin(), tensors.end(),
                       [&](const OnnxTensor& t) { return t.name == name && is_true(t); });
  }

  void take_turn(int64_t t, int64_t turns) {
    const std::string prefix = fmt::format("{}/turn {}/", node_.outputs[0], t);
    InnerNames names;
    const size_t fixed = is_scan_ ? 0 : 2;
    if (!is_scan_) {
      names[body_->inputs[0]] = number(prefix + "number", t, DType::kI64);
      names[body_->inputs[1]] = number(prefix + "goes on", 1, DType::kBool);
    }
    for (size_t i = 0; i < carried_; ++i) names[body_->inputs[fixed + i]] = states_[i];
    for (size_t i = 0; i < scanned_; ++i) {
      const bool back = loop_item(node_, "scan_input_directions", i) != 0;
      const std::string place =
          number(fmt::format("{}place {}", prefix, i), back ? turns - 1 - t : t, DType::kI64);
      const std::string slice = fmt::format("{}slice {}", prefix, i);
      add("Gather", {node_.inputs[carried_ + i], place}, slice,
          {{"axis", loop_item(node_, "scan_input_axes", i)}});
      names[body_->inputs[carried_ + i]] = slice;
    }
    OnnxSubgraph turn = BodyCopy(std::move(names), prefix).body(*body_);
    std::move(turn.nodes.begin(), turn.nodes.end(), std::back_inserter(made_));
    std::move(turn.initializers.begin(), turn.initializers.end(),
              std::back_inserter(model_.initializers));
    const size_t first = is_scan_ ? 0 : 1;  // behind the condition
    states_.assign(turn.outputs.begin() + static_cast<int64_t>(first),
                   turn.outputs.begin() + static_cast<int64_t>(first + carried_));
    for (size_t j = 0; j < stacked_; ++j) stacks_[j].push_back(turn.outputs[first + carried_ + j]);
  }

  // What no turn stacks has the type of what a turn does, of which nothing is kept.
  Status take_none() {
    if (is_scan_) return fail("{} has no turn, which would say what it stacks", node_.label());
    const std::vector<std::string> states = states_;
    take_turn(0, 1);
    states_ = states;
    OnnxTensor none;
    none.name = none_ = node_.outputs[0] + "/none";
    none.type = {DType::kI64, {0}};
    model_.initializers.push_back(std::move(none));
    return ok_status();
  }

  void finish() {
    for (size_t i = 0; i < carried_; ++i)
      if (!node_.outputs[i].empty()) add("Identity", {states_[i]}, node_.outputs[i], {});
    for (size_t j = 0; j < stacked_; ++j) {
      const std::string& output = node_.outputs[carried_ + j];
      if (output.empty()) continue;
      if (is_scan_ && loop_item(node_, "scan_output_directions", j) != 0)
        std::reverse(stacks_[j].begin(), stacks_[j].end());
      const std::string stack = none_.empty() ? output : output + "/one";
      add("SequenceConstruct", stacks_[j], output + "/turns", {});
      add("ConcatFromSequence", {output + "/turns"}, stack,
          {{"axis", is_scan_ ? loop_item(node_, "scan_output_axes", j) : 0},
           {"new_axis", int64_t{1}}});
      if (!none_.empty()) add("Gather", {stack, none_}, output, {});
    }
  }

  std::string number(std::string name, int64_t value, DType dtype) {
    OnnxTensor made;
    made.name = name;
    made.type = {dtype, {}};
    made.data = number_bytes(static_cast<double>(value), dtype);
    model_.initializers.push_back(std::move(made));
    return name;
  }
  void add(std::string op, std::vector<std::string> inputs, std::string output,
           std::vector<OnnxAttr> attrs) {
    OnnxNode node;
    node.name = node_.name;
    node.op = std::move(op);
    node.inputs = std::move(inputs);
    node.outputs = {std::move(output)};
    node.attrs = std::move(attrs);
    node.metadata = node_.metadata;
    node.opset = node_.opset;
    made_.push_back(std::move(node));
  }

  OnnxModel& model_;
  const OnnxNode& node_;
  const bool is_scan_;
  const OnnxSubgraph* body_ = nullptr;
  size_t carried_ = 0, scanned_ = 0, stacked_ = 0;
  std::vector<std::string> states_;               // carried to the next turn
  std::vector<std::vector<std::string>> stacks_;  // by stacked output, of each turn
  std::string none_;                              // names no turn, where none is taken
  std::vector<OnnxNode> made_;
};

}  // namespace

Result<std::vector<OnnxNode>> unroll(OnnxModel& model, const OnnxNode& node, int64_t turns,
                                     int64_t& room) {
  return Unrolling(model, node).run(turns, room);
}

namespace {

Result<const OnnxSubgraph*> branch_of(const OnnxNode& node, std::string_view wanted) {
  const auto branch = std::ranges::find(node.branches, wanted, &OnnxSubgraph::attr);
  if (branch == node.branches.end()) return fail("{} has no {}", node.label(), wanted);
  if (branch->outputs.size() != node.outputs.size())
    return fail("{}: its {} has {} outputs, not {}", node.label(), wanted, branch->outputs.size(),
                node.outputs.size());
  return &*branch;
}

}  // namespace

Result<std::vector<OnnxNode>> take_branch(OnnxModel& model, const OnnxNode& node, bool condition) {
  PIPER_ASSIGN(const OnnxSubgraph* const branch,
               branch_of(node, condition ? "then_branch" : "else_branch"));
  OnnxSubgraph taken = BodyCopy({}, node.outputs[0] + "/").body(*branch);
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    taken.nodes.push_back({.name = node.name,
                           .op = "Identity",
                           .inputs = {taken.outputs[i]},
                           .outputs = {node.outputs[i]},
                           .metadata = node.metadata});
  }
  std::move(taken.initializers.begin(), taken.initializers.end(),
            std::back_inserter(model.initializers));
  return std::move(taken.nodes);
}

}  // namespace piper::onnx_import
