// Finds the module paths of nodes from the scopes of both exporters.
#include "modules.h"

#include <algorithm>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

constexpr size_t kNone = std::string_view::npos;

bool all_digits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string around(const std::string& scope) {
  const size_t slash = scope.rfind('/');
  return slash == kNone ? std::string() : scope.substr(0, slash);
}

std::string_view last_of(std::string_view scope) { return scope.substr(scope.rfind('/') + 1); }

// Returns where each part of the scope is in the module's path: one after the other, and the last
// at its end. Returns nothing where they are not.
std::vector<size_t> places(const std::vector<std::string>& scope,
                           const std::vector<std::string>& module, std::string_view last) {
  std::vector<size_t> out;
  size_t at = 0;
  for (size_t i = 0; i + 1 < scope.size(); ++i) {
    while (at < module.size() && module[at] != scope[i]) ++at;
    if (at == module.size()) return {};
    out.push_back(at++);
  }
  if (at >= module.size() || module.back() != last) return {};
  out.push_back(module.size() - 1);
  return out;
}

}  // namespace

bool is_anonymous(const OnnxModel& model, std::string_view name) {
  const bool own = name == "weight" || name == "bias" || name.find('.') != kNone;
  return name.find("::") != kNone || name.find('/') != kNone || all_digits(name) ||
         (model.lacks_calls && !own);
}

std::optional<CallNumber> call_number(const std::string& scope) {
  const size_t end = scope.rfind('_');
  if (end == kNone || end + 1 == scope.size() || end == 0 || scope[end - 1] == '/' ||
      !all_digits(std::string_view(scope).substr(end + 1)))
    return {};
  return CallNumber{scope.substr(0, end), scope.substr(end)};
}

ModulePaths::ModulePaths(const OnnxModel& model, const std::vector<std::string>& scopes) {
  for (std::string scope : scopes)
    while (!scope.empty() && scopes_.insert(scope).second) scope = around(scope);
  std::set<std::string_view> parameters;
  for (const OnnxTensor& tensor : model.initializers)
    if (!is_anonymous(model, tensor.name)) parameters.insert(tensor.name);
  for (size_t n = 0; n < model.nodes.size(); ++n)
    for (const std::string& input : model.nodes[n].inputs)
      if (!scopes[n].empty() && parameters.count(input)) learn(scopes[n], module_of(input));
}

void ModulePaths::learn(const std::string& scope, std::string_view module) {
  const std::vector<std::string> parts = split_text(scope, '/');
  const std::vector<std::string> path = split_text(std::string(module), '.');
  std::vector<size_t> at = places(parts, path, parts.back());
  const auto call = call_number(scope);
  if (at.empty() && call) {
    at = places(parts, path, last_of(call->first));
    if (!at.empty()) again_.insert(around(scope) + call->suffix);
  }
  std::string part;
  for (size_t i = 0; i < at.size(); ++i) {
    part += (i > 0 ? "/" : "") + parts[i];
    const std::span head(path.data(), at[i] + 1);
    known_.emplace(part, join(head, "."));
  }
}

std::string ModulePaths::of_first_call(const std::string& scope) const {
  const auto found = known_.find(scope);
  if (found != known_.end()) return found->second;
  if (scope.empty()) return {};
  const std::string outer = of(around(scope));
  return (outer.empty() ? "" : outer + ".") + std::string(last_of(scope));
}

std::string ModulePaths::of(const std::string& scope) const {
  const auto call = known_.count(scope) ? std::nullopt : call_number(scope);
  return of_first_call(call && scopes_.count(call->first) ? call->first : scope);
}

bool ModulePaths::called_again(const std::string& scope) const {
  const auto call = call_number(scope);
  return call && again_.count(around(scope) + call->suffix);
}

}  // namespace piper::onnx_import
