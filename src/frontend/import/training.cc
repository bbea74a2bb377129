// Reads the optimizer, loss and state of a file's training info.
#include "training.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

namespace piper::onnx_import {
namespace {

struct Optimizer {
  std::string_view op;
  TrainingUpdate::Kind kind;
  size_t states;  // of each parameter
};
constexpr Optimizer kOptimizers[] = {{"Adagrad", TrainingUpdate::Kind::kAdagrad, 1},
                                     {"Adam", TrainingUpdate::Kind::kAdam, 2},
                                     {"Momentum", TrainingUpdate::Kind::kMomentum, 1}};

// Attributes are floats that stand for decimals: 0.9f for 0.9, and not for 0.89999998.
double real_attr(const OnnxNode& node, std::string_view name, double otherwise) {
  const auto* value = node.get<double>(name);
  if (value == nullptr) return otherwise;
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, static_cast<float>(*value)).ptr;
  double decimal = 0;
  std::from_chars(text, end, decimal);
  return decimal;
}

class TrainingReader {
 public:
  explicit TrainingReader(OnnxModel& model) : model_(model) {
    for (const OnnxTensor& tensor : model.initializers) initializers_[tensor.name] = &tensor;
    for (size_t n = 0; n < model.nodes.size(); ++n)
      for (const std::string& output : model.nodes[n].outputs) producer_[output] = n;
    for (const auto& [key, value] : model.algorithm->updates) bound_[key] = value;
  }
  Status run();

 private:
  Status read_gradient(const OnnxNode& node);
  Status read_optimizer(const OnnxNode& node, const Optimizer& optimizer);
  Status read_parameter(const OnnxNode& node, const Optimizer& optimizer, size_t i, size_t count,
                        TrainingUpdate update);
  Status take_binding(const OnnxNode& node, const std::string& state, const std::string& next);
  Result<int64_t> read_count(const OnnxNode& node, const std::string& name);
  const OnnxTensor* initializer(const std::string& name) const {
    const auto at = initializers_.find(name);
    return at == initializers_.end() ? nullptr : at->second;
  }
  std::optional<double> scalar(const std::string& name) const;
  void keep_forward();

  OnnxModel& model_;
  std::map<std::string, const OnnxTensor*> initializers_;
  std::unordered_map<std::string, size_t> producer_;
  std::map<std::string, std::string> bound_;     // not yet explained
  std::map<std::string, std::string> gradient_;  // value -> what it is the gradient of
  std::set<std::string> counters_, updated_;
  TrainingInfo out_;
};

// Returns a scalar that the file gives in an initializer or a Constant.
std::optional<double> TrainingReader::scalar(const std::string& name) const {
  const OnnxTensor* tensor = initializer(name);
  if (tensor == nullptr) {
    const auto at = producer_.find(name);
    if (at == producer_.end() || model_.nodes[at->second].op != "Constant") return {};
    tensor = model_.nodes[at->second].get<OnnxTensor>("value");
  }
  if (tensor == nullptr || num_elements(tensor->type.shape) != 1) return {};
  return read_number(tensor->data, tensor->type.dtype, 0);
}

Status TrainingReader::read_gradient(const OnnxNode& node) {
  const std::string y = node.get_or<std::string>("y");
  const auto xs = node.get_or<std::vector<std::string>>("xs");
  const auto zs = node.get_or<std::vector<std::string>>("zs");
  if (!model_.loss.empty() && model_.loss != y)
    return fail("{}: a gradient of '{}' beside one of '{}' is not supported", node.label(),
                quote_control(y), quote_control(model_.loss));
  if (!producer_.count(y))
    return fail("{}: no node makes its y '{}'", node.label(), quote_control(y));
  model_.loss = y;
  std::vector<std::string> at = xs;
  at.insert(at.end(), zs.begin(), zs.end());
  if (node.inputs != at)
    return fail("{}: a gradient at other values than those of its xs and zs is not supported",
                node.label());
  if (node.outputs.size() > xs.size())
    return fail("{} has {} outputs for {} xs", node.label(), node.outputs.size(), xs.size());
  for (size_t i = 0; i < node.outputs.size(); ++i) gradient_[node.outputs[i]] = xs[i];
  return ok_status();
}

Status TrainingReader::take_binding(const OnnxNode& node, const std::string& state,
                                    const std::string& next) {
  const auto at = bound_.find(state);
  if (at == bound_.end() || at->second != next)
    return fail("{}: its result '{}' is not bound to '{}' by update_binding", node.label(),
                quote_control(next), quote_control(state));
  bound_.erase(at);
  return ok_status();
}

// Reads T: an initializer that is counted up by one in each step, or that already counted up.
Result<int64_t> TrainingReader::read_count(const OnnxNode& node, const std::string& name) {
  const auto counted = [&](const std::string& from, const std::string& next) {
    const auto made = producer_.find(next);
    if (made == producer_.end()) return false;
    const OnnxNode& add = model_.nodes[made->second];
    if (add.op != "Add" || add.inputs.size() != 2) return false;
    const bool first = add.inputs[0] == from;
    return (first || add.inputs[1] == from) && scalar(add.inputs[first ? 1 : 0]) == 1.0;
  };
  for (const auto& [from, next] : model_.algorithm->updates) {
    const std::optional<double> start = scalar(from);
    if ((name != from && name != next) || !start || !initializer(from) || !counted(from, next))
      continue;
    constexpr double kMostSteps = 0x1p53;
    if (!(*start >= 0 && *start <= kMostSteps) || *start != std::floor(*start))
      return fail("{}: its T '{}' begins with {}, which is no number of steps", node.label(),
                  quote_control(name), *start);
    counters_.insert(from);
    return static_cast<int64_t>(*start) + (name == next);
  }
  return fail("{}: its T '{}' is not an initializer that an update_binding counts up by one",
              node.label(), quote_control(name));
}

Status TrainingReader::read_parameter(const OnnxNode& node, const Optimizer& optimizer, size_t i,
                                      size_t count, TrainingUpdate update) {
  const auto input = [&](size_t group) { return node.inputs[2 + group * count + i]; };
  update.parameter = input(0);
  const OnnxTensor* x = initializer(update.parameter);
  const auto gradient = gradient_.find(input(1));
  if (x == nullptr)
    return fail("{}: it updates '{}', which is no initializer", node.label(),
                quote_control(update.parameter));
  if (gradient == gradient_.end() || gradient->second != update.parameter)
    return fail(
        "{}: '{}' is not the gradient of '{}' as a Gradient node makes it; to change "
        "gradients before the optimizer is not supported",
        node.label(), quote_control(input(1)), quote_control(update.parameter));
  PIPER_TRY(take_binding(node, update.parameter, node.outputs[i]));
  for (size_t s = 0; s < optimizer.states; ++s) {
    const std::string& state = input(2 + s);
    const OnnxTensor* start = initializer(state);
    if (start == nullptr || start->type != x->type)
      return fail("{}: its state '{}' is no initializer like '{}'", node.label(),
                  quote_control(state), quote_control(update.parameter));
    const bool uniform = is_uniform(start->data, start->type.dtype);
    const double value = start->data.size ? read_number(start->data, start->type.dtype, 0) : 0;
    if (!uniform || (value != 0 && update.kind != TrainingUpdate::Kind::kAdagrad))
      return fail("{}: to begin with a state '{}' that is not {} is not supported", node.label(),
                  quote_control(state), uniform ? "zero" : "one number throughout");
    update.accumulator = value;
    PIPER_TRY(take_binding(node, state, node.outputs[(1 + s) * count + i]));
  }
  if (!updated_.insert(update.parameter).second)
    return fail("{}: a second optimizer updates '{}'", node.label(),
                quote_control(update.parameter));
  out_.updates.push_back(std::move(update));
  return ok_status();
}

Status TrainingReader::read_optimizer(const OnnxNode& node, const Optimizer& optimizer) {
  const size_t groups = 2 + optimizer.states;  // X, G and states
  if (node.inputs.size() < 2 + groups || (node.inputs.size() - 2) % groups != 0)
    return fail("{} has {} inputs", node.label(), node.inputs.size());
  const size_t count = (node.inputs.size() - 2) / groups;
  if (node.outputs.size() != count * (1 + optimizer.states))
    return fail("{} has {} outputs for {} parameters", node.label(), node.outputs.size(), count);
  TrainingUpdate update;
  update.kind = optimizer.kind;
  const std::optional<double> rate = scalar(node.inputs[0]);
  if (!rate || bound_.count(node.inputs[0]))
    return fail("{}: its learning rate '{}' is not a constant", node.label(),
                quote_control(node.inputs[0]));
  update.rate = *rate;
  PIPER_ASSIGN(update.count, read_count(node, node.inputs[1]));
  update.norm_coefficient = real_attr(node, "norm_coefficient", 0);
  update.norm_coefficient_post = real_attr(node, "norm_coefficient_post", 0);
  update.epsilon = real_attr(node, "epsilon", 1e-6);
  update.decay_factor = real_attr(node, "decay_factor", 0);
  update.alpha = real_attr(node, "alpha", 0.9);
  update.beta = real_attr(node, "beta", 0.999);
  if (optimizer.kind == TrainingUpdate::Kind::kMomentum) {
    const std::string mode = node.get_or<std::string>("mode");
    if (mode != "nesterov" && mode != "standard")
      return fail("{}: the mode '{}' is not supported", node.label(), quote_control(mode));
    update.nesterov = mode == "nesterov";
  }
  for (size_t i = 0; i < count; ++i) PIPER_TRY(read_parameter(node, optimizer, i, count, update));
  return ok_status();
}

// Drops the nodes that the forward's outputs and the loss do not need, and the initializers of the
// algorithm that only those read.
void TrainingReader::keep_forward() {
  if (!std::count(model_.outputs.begin(), model_.outputs.end(), model_.loss))
    model_.outputs.push_back(model_.loss);
  std::vector<bool> needed(model_.nodes.size());
  std::vector<std::string> open = model_.outputs;
  std::set<std::string> read(open.begin(), open.end());
  while (!open.empty()) {
    const auto made = producer_.find(open.back());
    open.pop_back();
    if (made == producer_.end() || needed[made->second]) continue;
    needed[made->second] = true;
    for (const std::string& input : model_.nodes[made->second].inputs)
      if (read.insert(input).second) open.push_back(input);
  }
  std::vector<OnnxNode> nodes;
  for (size_t n = 0; n < model_.nodes.size(); ++n)
    if (needed[n]) nodes.push_back(std::move(model_.nodes[n]));
  model_.nodes = std::move(nodes);
  const size_t first = model_.algorithm->first_initializer;
  size_t k = 0;
  std::erase_if(model_.initializers,
                [&](const OnnxTensor& tensor) { return k++ >= first && !read.count(tensor.name); });
}

Error bound_to_nothing(const std::string& to, const std::string& from) {
  return fail(
      "training_info updates '{}' from '{}', which is neither a parameter, an "
      "optimizer's state nor its T",
      quote_control(to), quote_control(from));
}

Status TrainingReader::run() {
  for (const OnnxNode& node : model_.nodes)
    if (node.domain == kTrainingDomain && node.op == "Gradient") PIPER_TRY(read_gradient(node));
  if (model_.loss.empty()) return fail("training_info has no Gradient");
  for (const OnnxNode& node : model_.nodes) {
    if (node.domain != kTrainingDomain || node.op == "Gradient") continue;
    const auto* known = std::find_if(std::begin(kOptimizers), std::end(kOptimizers),
                                     [&](const Optimizer& o) { return o.op == node.op; });
    if (known == std::end(kOptimizers)) return fail("{} is not supported", node.label());
    PIPER_TRY(read_optimizer(node, *known));
  }
  if (out_.updates.empty()) return fail("training_info has no optimizer");
  for (const std::string& counter : counters_) bound_.erase(counter);
  if (!bound_.empty()) return bound_to_nothing(bound_.begin()->first, bound_.begin()->second);
  keep_forward();
  model_.algorithm.reset();
  model_.training = std::move(out_);
  return ok_status();
}

}  // namespace

Status take_training(OnnxModel& model) {
  return model.algorithm ? TrainingReader(model).run() : ok_status();
}

}  // namespace piper::onnx_import
