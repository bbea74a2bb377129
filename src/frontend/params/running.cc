// What a model keeps from step to step beside its parameters: the running statistics of batch norms
// in training mode, and buffers that forward changes.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "claims.h"

namespace piper::onnx_import {
namespace {

constexpr const char* kNames[] = {"running_mean", "running_var"};  // inputs 3 and 4

bool is_training(const OnnxNode& node) {
  return node.op == "BatchNormalization" && node.get_or<int64_t>("training_mode") != 0 &&
         node.inputs.size() == 5;
}

// Returns the name that it has in the file, if that is a module's; else one in the norm's scope.
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
  void add_statistic(const OnnxTensor& tensor, const std::string& name) {
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
    add_statistic(tensor, name);
  }
  // Adds the uses of the parameter that comes next.
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

// ---- Buffers that forward changes ---------------------------------------------------------------

// Holds what the file says of one of them.
struct BufferUse {
  bool read = false;    // by a call, or by what the exporter computed from it
  bool folded = false;  // into a constant
  bool is_statistic = false;
  std::optional<bool> is_float = {};  // nothing: the file lacks it
};

BufferUse use_of_buffer(const OnnxModel& model, const SignatureInput& buffer) {
  BufferUse use;
  std::set<std::string_view> constants;
  for (const OnnxTensor& tensor : model.initializers) {
    const bool own = tensor.name == buffer.target;
    if (own) use.is_float = info(tensor.type.dtype).is_float;
    if (own || std::count(tensor.folded_from.begin(), tensor.folded_from.end(), buffer.target))
      constants.insert(tensor.name);
  }
  for (const OnnxNode& node : model.nodes) {
    for (const std::string& input : node.inputs) {
      use.read = use.read || constants.count(input);
      use.folded = use.folded || (constants.count(input) && input != buffer.target);
    }
    const std::string_view text = find_metadata(node.metadata, "pkg.torch.onnx.fx_node");
    if (text.find(buffer.placeholder) == text.npos) continue;
    const auto call = parse_call(text);
    const bool named =
        call && std::any_of(call->args.begin(), call->args.end(),
                            [&](const CallArg& arg) { return arg.name == buffer.placeholder; });
    use.read = use.read || named;
    use.is_statistic =
        use.is_statistic || (named && call->function.find("batch_norm") != std::string::npos);
  }
  return use;
}

// Returns the value of that name, or of the call of that name: outputs of the graph may be called
// otherwise.
std::string value_of_call(const OnnxModel& model, const std::string& name) {
  std::string value;
  for (const OnnxNode& node : model.nodes) {
    if (std::count(node.outputs.begin(), node.outputs.end(), name)) return name;
    const auto call = parse_call(find_metadata(node.metadata, "pkg.torch.onnx.fx_node"));
    if (call && call->name == name && node.outputs.size() == 1) value = node.outputs[0];
  }
  return value;
}

// Describes a buffer that no step reads, with the value of the file: an evaluation may read it
// before the first step.
ChangedBuffer written_alone(const OnnxModel& model, const std::string& name,
                            const std::string& value) {
  ChangedBuffer out{name, value, false};
  const int at = InitializerIndex(model).find_float(name);
  if (at < 0) return out;
  const OnnxTensor& tensor = model.initializers[static_cast<size_t>(at)];
  out.type = tensor.type;
  out.data = tensor.data;
  return out;
}

Error cannot_keep(const SignatureInput& buffer, const std::string& why) {
  return fail("forward changes the buffer '{}', which {}", quote_control(buffer.target), why);
}

}  // namespace

Result<std::vector<ChangedBuffer>> find_changed_buffers(const OnnxModel& model,
                                                        std::vector<SignatureInput>& signature,
                                                        std::vector<Note>& notes) {
  std::vector<ChangedBuffer> out;
  for (const BufferMutation& mutation :
       parse_mutations(find_metadata(model.metadata, kSignatureKey))) {
    const auto buffer =
        std::find_if(signature.begin(), signature.end(), [&](const SignatureInput& input) {
          return input.kind == "BUFFER" && input.target == mutation.target;
        });
    if (buffer == signature.end()) continue;
    const BufferUse use = use_of_buffer(model, *buffer);
    const bool is_count =
        leaf_of(mutation.target) == "num_batches_tracked" && !use.is_float.value_or(false);
    if (use.is_statistic || is_count) continue;
    const std::string value = value_of_call(model, mutation.value);
    if (!use.read) {
      if (!value.empty())
        out.push_back(written_alone(model, mutation.target, value));
      else
        notes.push_back({mutation.target, "changed by forward and read by nothing: not kept"});
      continue;
    }
    if (use.folded)
      return cannot_keep(*buffer, "the exporter made constants of").with_note(export_help(model));
    if (!use.is_float.value_or(true))
      return cannot_keep(*buffer, "is not of floats: that is not supported");
    if (value.empty())
      return cannot_keep(*buffer, fmt::format("becomes '{}', which the file does not have",
                                              quote_control(mutation.value)))
          .with_note("help: let forward return it beside the loss, and the exporter keeps it");
    buffer->kind = "PARAMETER";
    out.push_back({mutation.target, value});
  }
  return out;
}

void keep_changed_buffers(const OnnxModel& model, std::vector<ChangedBuffer> changed,
                          Recovery& recovery) {
  std::set<std::string_view> values;
  for (const ChangedBuffer& buffer : changed) {
    values.insert(buffer.value);
    for (RecoveredParam& param : recovery.params)
      param.running = param.running || param.name == buffer.name;
  }
  for (size_t n = 0; n < model.nodes.size(); ++n)
    for (size_t i = 0; i < model.nodes[n].inputs.size(); ++i)
      if (values.count(model.nodes[n].inputs[i])) recovery.detached.emplace_back(n, i);
  std::sort(recovery.detached.begin(), recovery.detached.end());
  recovery.changed = std::move(changed);
}

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
