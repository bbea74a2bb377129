// Parameters of files without metadata (the older exporter, other frameworks): initializers that
// kept a dotted name are the parameters of that name; an anonymous one gets the name of its
// module's scope and its role in the op; one that serves several modules is many parameters if it
// holds one repeated number, and a tie otherwise.
#include <algorithm>
#include <map>

#include "host.h"
#include "params.h"

namespace piper::onnx_import {
namespace {

bool is_anonymous(const std::string& name) {
  if (name.find("::") != std::string::npos) return true;  // "onnx::MatMul_562"
  return std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "weight" or "bias": the parameter's own name in its module, or "" when the op does not say.
std::string_view role_in(const OnnxNode& node, size_t input) {
  struct Role {
    std::string_view op;
    size_t input;
    std::string_view name;
  };
  static constexpr Role kRoles[] = {
      {"MatMul", 1, "weight"},
      {"Gemm", 1, "weight"},
      {"Gemm", 2, "bias"},
      {"Conv", 1, "weight"},
      {"Conv", 2, "bias"},
      {"ConvTranspose", 1, "weight"},
      {"ConvTranspose", 2, "bias"},
      {"LayerNormalization", 1, "weight"},
      {"LayerNormalization", 2, "bias"},
      {"GroupNormalization", 1, "weight"},
      {"GroupNormalization", 2, "bias"},
      {"BatchNormalization", 1, "weight"},
      {"BatchNormalization", 2, "bias"},
      {"InstanceNormalization", 1, "weight"},
      {"InstanceNormalization", 2, "bias"},
      {"RMSNormalization", 1, "weight"},
      {"PRelu", 1, "weight"},
      {"Gather", 0, "weight"},
      {"Add", 0, "bias"},
      {"Add", 1, "bias"},
  };
  for (const Role& role : kRoles) {
    if (node.op == role.op && input == role.input) return role.name;
  }
  return {};
}

std::string dotted(std::string scope) {
  std::replace(scope.begin(), scope.end(), '/', '.');
  return scope;
}

struct Use {
  size_t node, input;
};

// Inputs that no training changes: running statistics, bounds, scales.
bool is_setting(std::string_view op, size_t input) {
  return (op == "BatchNormalization" && input >= 3) || (op == "Resize" && input >= 1) ||
         (op == "Clip" && input >= 1) || (op == "Pad" && input == 2) ||
         (op == "OneHot" && input >= 1);
}

class Namer {
 public:
  Namer(const OnnxModel& model, const std::vector<std::string>& scopes)
      : model_(model), scopes_(scopes) {}
  Result<Claims> run();

 private:
  std::string scope_name(const Use& use) const {
    const std::string_view role = role_in(model_.nodes[use.node], use.input);
    if (role.empty() || scopes_[use.node].empty()) return {};
    return dotted(scopes_[use.node]) + "." + std::string(role);
  }
  Status claim(int initializer, const std::vector<Use>& uses);
  Status claim_kept(int initializer, const std::vector<Use>& uses);
  Status claim_anonymous(int initializer, const std::vector<Use>& uses);
  void add(int initializer, const Use& use, std::string name, bool transposed,
           std::string evidence);
  void tie_equal();

  const OnnxModel& model_;
  const std::vector<std::string>& scopes_;
  Claims claims_;
};

void Namer::add(int initializer, const Use& use, std::string name, bool transposed,
                std::string evidence) {
  TensorType type = model_.initializers[static_cast<size_t>(initializer)].type;
  if (transposed) std::swap(type.shape[0], type.shape[1]);
  Derivation derivation = transposed ? transposition(type.shape) : Derivation();
  claims_.list.push_back({use.node, use.input, initializer, std::move(name), std::move(derivation),
                          std::move(type), std::move(evidence)});
}

Status Namer::claim_kept(int initializer, const std::vector<Use>& uses) {
  const OnnxTensor& tensor = model_.initializers[static_cast<size_t>(initializer)];
  const bool uniform = is_uniform(tensor.data, tensor.type.dtype);
  for (const Use& use : uses) {
    // Equal fresh parameters were merged: each module gets its own again.
    const std::string scoped = uniform && uses.size() > 1 ? scope_name(use) : std::string();
    const bool other = !scoped.empty() && scoped != tensor.name;
    add(initializer, use, other ? scoped : tensor.name, false,
        other ? "scope and content" : "kept name");
  }
  return ok_status();
}

Status Namer::claim_anonymous(int initializer, const std::vector<Use>& uses) {
  const OnnxTensor& tensor = model_.initializers[static_cast<size_t>(initializer)];
  const bool uniform = is_uniform(tensor.data, tensor.type.dtype);
  std::string first;
  for (const Use& use : uses) {
    const OnnxNode& node = model_.nodes[use.node];
    const std::string scoped = scope_name(use);
    if (scoped.empty() || node.op == "Add") continue;  // a constant
    if (node.op == "Conv" || node.op == "ConvTranspose") {
      return fail(
                 "{}: its weight has lost its name, as when the exporter multiplies a batch norm "
                 "into it",
                 node.label())
          .with_note(
              "help: export with training=TrainingMode.TRAINING or without constant folding");
    }
    const bool transposed = node.op == "MatMul" && tensor.type.shape.size() == 2;
    if (first.empty() || uniform) first = scoped;
    add(initializer, use, first, transposed, "scope and content");
    if (scoped != first) claims_.ties.alias_of.emplace_back(scoped, first);
  }
  return ok_status();
}

Status Namer::claim(int initializer, const std::vector<Use>& uses) {
  const OnnxTensor& tensor = model_.initializers[static_cast<size_t>(initializer)];
  const bool setting = std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
    return is_setting(model_.nodes[use.node].op, use.input);
  });
  if (setting) return ok_status();
  return is_anonymous(tensor.name) ? claim_anonymous(initializer, uses)
                                   : claim_kept(initializer, uses);
}

// Two tensors of the same real values under two names are one parameter, named by its first use.
void Namer::tie_equal() {
  std::map<std::string, std::string> by_content;
  std::map<std::string, std::string> seen;
  for (const Claim& claim : claims_.list) {
    const OnnxTensor& tensor = model_.initializers[static_cast<size_t>(claim.initializer)];
    if (is_uniform(tensor.data, tensor.type.dtype) || !seen.emplace(claim.name, "").second)
      continue;
    const Bytes data = undo_layout(claim.derivation, tensor);
    const auto [entry, fresh] =
        by_content.emplace(to_string(claim.type) + digest(as_text(data.span())), claim.name);
    if (!fresh && entry->second != claim.name) {
      claims_.ties.alias_of.emplace_back(claim.name, entry->second);
    }
  }
}

Result<Claims> Namer::run() {
  const InitializerIndex index(model_);
  std::vector<std::vector<Use>> uses(model_.initializers.size());
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
      const int found = index.find_float(model_.nodes[n].inputs[i]);
      if (found >= 0) uses[static_cast<size_t>(found)].push_back({n, i});
    }
  }
  for (size_t i = 0; i < uses.size(); ++i) {
    // A scalar is a literal unless it bears the name of a module's parameter.
    const bool scalar = model_.initializers[i].type.shape.empty();
    const bool of_module = model_.initializers[i].name.find('.') != std::string::npos;
    if (uses[i].empty() || (scalar && !of_module)) continue;
    PIPER_TRY(claim(static_cast<int>(i), uses[i]));
  }
  std::sort(claims_.list.begin(), claims_.list.end(), [](const Claim& a, const Claim& b) {
    return std::pair(a.node, a.input) < std::pair(b.node, b.input);
  });
  tie_equal();
  return std::move(claims_);
}

}  // namespace

Result<Claims> claims_by_names(const OnnxModel& model, const std::vector<std::string>& scopes) {
  return Namer(model, scopes).run();
}

}  // namespace piper::onnx_import
