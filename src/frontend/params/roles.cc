// Anonymous tensors are what the exporter computed from a parameter: the transposed weight of a
// Linear, the weights of PReLU and GroupNorm with dims of one behind the channels, and the weights
// of norms that add to them or convert them.
#include <algorithm>
#include <charconv>
#include <set>

#include "names.h"

namespace piper::onnx_import {

Readers::Readers(const OnnxModel& m, const std::vector<std::string>& s) : model(m), scopes(s) {
  for (const OnnxTensor& tensor : model.initializers)
    if (info(tensor.type.dtype).is_float && is_anonymous(m, tensor.name))
      anonymous.insert(tensor.name);
  for (size_t n = 0; n < model.nodes.size(); ++n) {
    within[scopes[n]].push_back(n);
    for (size_t i = 0; i < model.nodes[n].inputs.size(); ++i)
      of[model.nodes[n].inputs[i]].push_back({n, i});
  }
}

std::optional<Place> Readers::only(size_t node, std::string_view op) const {
  if (model.nodes[node].outputs.size() != 1) return {};
  const auto found = of.find(model.nodes[node].outputs[0]);
  if (found == of.end() || found->second.size() != 1) return {};
  const Place place = found->second[0];
  const OnnxNode& reader = model.nodes[place.node];
  // Rules check how many operands a node has only after parameters are found.
  if (reader.op != op || (op == "Add" && reader.inputs.size() != 2)) return {};
  return place;
}

bool Readers::is_leaf(const std::string& scope) const {
  const auto next = within.lower_bound(scope + "/");
  return next == within.end() || !next->first.starts_with(scope + "/");
}

bool Readers::is_leaf_of(const std::string& scope,
                         std::initializer_list<std::string_view> ops) const {
  const auto nodes = within.find(scope);
  if (scope.empty() || nodes == within.end() || !is_leaf(scope)) return false;
  std::set<std::string_view> calls;  // of a list's member, which share the scope
  for (const size_t n : nodes->second) {
    const OnnxNode& node = model.nodes[n];
    if (std::find(ops.begin(), ops.end(), node.op) == ops.end()) return false;
    const std::string_view call = std::string_view(node.name).substr(0, node.name.rfind('/'));
    if (node.op == *ops.begin() && !calls.insert(call).second) return false;
  }
  return !calls.empty();
}

// Returns in how many steps at most a value was made. The exporter numbers all values that it
// makes, also those in between: "onnx::Mul_725" came two steps after "onnx::MatMul_723" at most.
int64_t Readers::most_steps(std::string_view name) const {
  const auto number = [](std::string_view text) {
    int64_t out = 0;
    const std::string_view digits = text.substr(text.find_last_not_of("0123456789") + 1);
    std::from_chars(digits.data(), digits.data() + digits.size(), out);
    return out;
  };
  int64_t before = 0;
  for (const std::string_view other : anonymous)
    if (number(other) < number(name)) before = std::max(before, number(other));
  return number(name) - before;
}

namespace {

std::string within(std::string_view module, std::string_view name) {
  return module.empty() ? std::string(name) : fmt::format("{}.{}", module, name);
}

class RolesFinder {
 public:
  RolesFinder(const Readers& readers, const ModulePaths& modules, const OnnxTensor& tensor,
              const Place& place)
      : readers_(readers),
        modules_(modules),
        tensor_(tensor),
        place_(place),
        node_(readers.model.nodes[place.node]),
        scope_(readers.scopes[place.node]) {}

  std::optional<Role> run() const {
    const Shape& shape = tensor_.type.shape;
    if (node_.op == "MatMul" && place_.input == 1 && shape.size() == 2) return weight();
    if (scales_a_norm()) return norm_weight();
    const bool flat =
        shape.size() > 1 && num_elements(shape) == shape[0];  // dims of one behind the channels
    if (!flat || place_.input != 1) return {};
    if (node_.op == "PRelu" && readers_.is_leaf_of(scope_, {"PRelu"})) return own("weight");
    const bool norm = readers_.is_leaf_of(
        scope_, {"InstanceNormalization", "Constant", "Reshape", "Shape", "Mul", "Add", "Cast"});
    if (norm && node_.op == "Mul" && readers_.only(place_.node, "Add")) return own("weight");
    if (norm && node_.op == "Add") return own("bias");
    return {};
  }

 private:
  std::optional<Role> own(std::string_view name) const {
    return Role{within(modules_.of(scope_), name), "scope", Role::Form::kFlat};
  }
  // A Linear has a scope of its own; elsewhere the bias that is added tells, which linear() writes
  // first.
  std::optional<Role> weight() const {
    const bool leaf = readers_.is_leaf_of(scope_, {"MatMul", "Add"}) || is_router();
    const std::string module = modules_.of(scope_);
    if (const auto add = readers_.only(place_.node, "Add")) {
      const std::string& bias = readers_.model.nodes[add->node].inputs[1 - add->input];
      const bool beside =
          readers_.scopes[add->node] == scope_ && !is_anonymous(readers_.model, bias);
      const std::string own = module_of(bias);
      const std::string_view last = std::string_view(bias).substr(own.empty() ? 0 : own.size() + 1);
      // Another program may have merged equal biases: that of a module with a weight is its own.
      const bool owned = own != module && readers_.of.count(within(own, "weight")) > 0;
      const bool tells = beside && !owned &&
                         (leaf ? own == module : add->input == 1 || readers_.model.lacks_calls);
      if (tells && last == "bias") return Role{within(own, "weight"), kByBias};
      if (tells && last == "in_proj_bias") return Role{within(own, "in_proj_weight"), kByBias};
    }
    if (leaf) return Role{within(module, "weight"), "scope"};
    return {};
  }
  // Returns whether the product is alone, and chooses experts.
  bool is_router() const {
    return reads_one() && readers_.is_leaf(scope_) && count("MatMul") == 1 && count("TopK") > 0;
  }
  int64_t count(std::string_view op) const {  // of nodes in its scope
    const std::vector<size_t>& nodes = readers_.within.at(scope_);
    return std::count_if(nodes.begin(), nodes.end(),
                         [&](size_t n) { return readers_.model.nodes[n].op == op; });
  }
  bool reads_one() const {  // anonymous tensor in its scope
    std::set<std::string_view> read;
    for (const size_t n : readers_.within.at(scope_))
      for (const std::string& input : readers_.model.nodes[n].inputs)
        if (readers_.anonymous.count(input)) read.insert(input);
    return read.size() == 1;
  }
  bool scales_a_norm() const {
    if (!reads_one()) return false;
    if (node_.op == "LayerNormalization")
      return place_.input == 1 && readers_.is_leaf_of(scope_, {"LayerNormalization", "Cast"});
    return node_.op == "Mul" &&
           readers_.is_leaf_of(scope_, {"Sqrt", "Cast", "Constant", "Pow", "Mul", "ReduceMean",
                                        "Sub", "Add", "Div", "Reciprocal"});
  }
  // Returns the role of a norm's weight, if it is 1 + w or w converted. The file keeps w where the
  // types are the same. A norm that converts nothing else does not convert its weight.
  std::optional<Role> norm_weight() const {
    Role role{within(modules_.of(scope_), "weight"), "norm", Role::Form::kNorm,
              readers_.most_steps(tensor_.name)};
    const bool converts = count("Cast") > 0;
    if (!converts) role.plus = 1;
    if (converts && node_.op == "Mul" && place_.input == 0) role.plus = 0;
    return role;
  }

  const Readers& readers_;
  const ModulePaths& modules_;
  const OnnxTensor& tensor_;
  const Place& place_;
  const OnnxNode& node_;
  const std::string& scope_;
};

}  // namespace

std::optional<Role> role_of(const Readers& readers, const ModulePaths& modules,
                            const OnnxTensor& tensor, const Place& place) {
  return RolesFinder(readers, modules, tensor, place).run();
}

}  // namespace piper::onnx_import
