// Running statistics: what a batch norm in training mode keeps from step to step beside its
// parameters.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "params.h"

namespace piper::onnx_import {
namespace {

constexpr const char* kNames[] = {"running_mean", "running_var"};  // inputs 3 and 4

bool is_training(const OnnxNode& node) {
  const OnnxAttr* mode = node.op == "BatchNormalization" ? node.find("training_mode") : nullptr;
  const auto* value = mode ? std::get_if<int64_t>(&mode->value) : nullptr;
  return value && *value != 0 && node.inputs.size() == 5;
}

// The name that it has in the file, if that is a module's; else that of the norm's scope.
std::string name_of(const OnnxTensor& tensor, std::string scope, const char* role) {
  if (tensor.name.find('.') != std::string::npos || scope.empty()) return tensor.name;
  std::replace(scope.begin(), scope.end(), '/', '.');
  return scope + "." + role;
}

class Keeper {
 public:
  Keeper(const OnnxModel& model, const std::vector<std::string>& scopes, Recovery& recovery)
      : model_(model), scopes_(scopes), index_(model), out_(recovery) {}

  void run() {
    for (size_t n = 0; n < model_.nodes.size(); ++n)
      for (size_t k = 0; is_training(model_.nodes[n]) && k < 2; ++k) keep(n, 3 + k, kNames[k]);
    std::sort(out_.uses.begin(), out_.uses.end(), [](const ParamUse& a, const ParamUse& b) {
      return std::pair(a.node, a.input) < std::pair(b.node, b.input);
    });
  }

 private:
  void keep(size_t node, size_t input, const char* role) {
    const auto known = std::find_if(out_.uses.begin(), out_.uses.end(), [&](const ParamUse& use) {
      return use.node == node && use.input == input;
    });
    if (known != out_.uses.end()) {
      out_.params[known->param].running = true;
      return;
    }
    const int at = index_.find_float(model_.nodes[node].inputs[input]);
    if (at < 0) return;
    const OnnxTensor& tensor = model_.initializers[static_cast<size_t>(at)];
    const std::string name = name_of(tensor, scopes_[node], role);
    if (std::any_of(out_.params.begin(), out_.params.end(),
                    [&](const RecoveredParam& param) { return param.name == name; }))
      return;
    add_uses(tensor);
    out_.params.push_back({.name = name,
                           .evidence = "running statistic",
                           .initializer = tensor.name,
                           .type = tensor.type,
                           .data = tensor.data,
                           .running = true});
    std::erase_if(out_.constants,
                  [&](const std::string& line) { return line.starts_with(tensor.name + " "); });
  }
  // Of the parameter that comes next.
  void add_uses(const OnnxTensor& tensor) {
    for (size_t n = 0; n < model_.nodes.size(); ++n)
      for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i)
        if (model_.nodes[n].inputs[i] == tensor.name)
          out_.uses.push_back({n, i, out_.params.size()});
  }

  const OnnxModel& model_;
  const std::vector<std::string>& scopes_;
  const InitializerIndex index_;
  Recovery& out_;
};

}  // namespace

void find_running_statistics(const OnnxModel& model, const std::vector<std::string>& scopes,
                             Recovery& recovery) {
  Keeper(model, scopes, recovery).run();
}

// The exporter writes a batch norm as it infers even where the module trains; the call says so.
// Equal statistics of several norms, as they are at first, were merged; each has its own again.
void restore_training_norms(OnnxModel& model, const std::vector<SignatureInput>& signature) {
  constexpr size_t kTraining = 5, kMomentum = 6;  // arguments
  std::map<std::string_view, std::string_view> targets;
  for (const SignatureInput& s : signature) targets.emplace(s.placeholder, s.target);
  std::set<std::string> names;
  for (const OnnxTensor& tensor : model.initializers) names.insert(tensor.name);
  for (OnnxNode& node : model.nodes) {
    if (node.op != "BatchNormalization" || node.inputs.size() != 5 || is_training(node)) continue;
    const auto call = parse_call(find_metadata(node.metadata, "pkg.torch.onnx.fx_node"));
    if (!call || call->words.size() <= kMomentum || call->words[kTraining] != "True") continue;
    double momentum = 0.1;
    const std::string& word = call->words[kMomentum];
    std::from_chars(word.data(), word.data() + word.size(), momentum);
    std::erase_if(node.attrs, [](const OnnxAttr& attr) {
      return attr.name == "training_mode" || attr.name == "momentum";
    });
    node.attrs.push_back({"training_mode", int64_t{1}});
    node.attrs.push_back({"momentum", 1 - momentum});
    for (size_t k = 3; k < 5; ++k) {
      if (call->words[k].empty()) continue;
      const auto target = targets.find(std::string_view(call->words[k]).substr(1));
      const auto held = std::find_if(model.initializers.begin(), model.initializers.end(),
                                     [&](const OnnxTensor& t) { return t.name == node.inputs[k]; });
      if (target == targets.end() || held == model.initializers.end()) continue;
      if (held->name == target->second) continue;
      const std::string name(target->second);
      if (names.insert(name).second) {
        OnnxTensor own = *held;
        own.name = name;
        model.initializers.push_back(std::move(own));
      }
      node.inputs[k] = name;
    }
  }
}

}  // namespace piper::onnx_import
