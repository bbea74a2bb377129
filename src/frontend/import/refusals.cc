// Collects the nodes that no rule reads, and makes one error of them for import.cc.
#include "refusals.h"

#include <algorithm>

namespace piper::onnx_import {
namespace {

// Returns the line of the user's program that a node comes from, where the exporter kept it.
std::string source_line(const OnnxNode& node) {
  const std::string_view trace = find_metadata(node.metadata, "pkg.torch.onnx.stack_trace");
  const size_t end = trace.find_last_not_of(" \n");
  if (end == trace.npos) return {};
  const size_t start = trace.rfind('\n', end) + 1;  // npos + 1 is the beginning
  const size_t text = trace.find_first_not_of(' ', start);
  constexpr size_t kMost = 80;
  return fmt::format(": {}", quote_control(trace.substr(text, std::min(end + 1 - text, kMost))));
}

// Returns why there is no rule, where the reason is not that nobody wrote one.
std::string_view reason_of(std::string_view op) {
  struct Reason {
    std::string_view op, text;
  };
  constexpr std::string_view kShape = " (its shape depends on the data)";
  constexpr std::string_view kLoop = " (repeats a graph)";
  constexpr Reason kReasons[] = {
      {"NonMaxSuppression", kShape},
      {"SequenceMap", kLoop},
      {"Unique", kShape},
  };
  for (const Reason& reason : kReasons) {
    if (reason.op == op) return reason.text;
  }
  return "";
}

}  // namespace

void Refusals::add(const std::string& what, const OnnxNode& node, const std::string& scope,
                   Error error) {
  constexpr size_t kPlaces = 3;
  Group& group = groups_[what];
  if (group.count == 0) group.error = std::move(error);
  if (group.count++ >= kPlaces) return;
  std::string place = fmt::format("'{}'", quote_control(node.name));
  if (!scope.empty()) place += fmt::format(" in '{}'", quote_control(scope));
  group.first.push_back(place + source_line(node));
}

void Refusals::no_rule(const OnnxNode& node, const std::string& scope) {
  const std::string op =
      quote_control(node.domain.empty() ? node.op : node.domain + "::" + node.op);
  missing_ += groups_.count(op + std::string(reason_of(op))) == 0;
  add(op + std::string(reason_of(op)), node, scope, {});
}

void Refusals::refused(const OnnxNode& node, const std::string& scope, Error error) {
  std::string where = node.label();
  if (!scope.empty()) where += fmt::format(" in '{}'", quote_control(scope));
  std::string why = error.message;
  if (why.starts_with(where + ": ")) why.erase(0, where.size() + 2);
  const std::string what = quote_control(node.op) + ": " + why;
  refused_ += groups_.count(what) == 0;
  add(what, node, scope, std::move(error));
}

Error Refusals::error(const OnnxModel& model) const {
  constexpr size_t kShown = 64;
  if (missing_ == 0 && refused_ == 1 && groups_.begin()->second.count == 1)
    return groups_.begin()->second.error;
  const bool one = missing_ == 1;
  std::string text = fmt::format("the model uses {} operator{} of opset {} that {} not supported",
                                 missing_, one ? "" : "s", model.opset, one ? "is" : "are");
  if (missing_ == 0)
    text = fmt::format("the model uses operators in {} way{} that {} not supported", refused_,
                       refused_ == 1 ? "" : "s", refused_ == 1 ? "is" : "are");
  Error error = fail(model.at(), "{}", text);
  for (const auto& [what, group] : groups_) {
    if (error.notes.size() == kShown) break;
    error.notes.push_back(fmt::format("{}: {} node{}: {}{}", what, group.count,
                                      group.count == 1 ? "" : "s", join(group.first, ", "),
                                      group.count > group.first.size() ? ", …" : ""));
  }
  return error;
}

}  // namespace piper::onnx_import
