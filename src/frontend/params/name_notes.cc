// Notes for the user about parameters that were found by their names.
#include <set>

#include "name_recovery.h"

namespace piper::onnx_import {
namespace {

// Returns whether a row of a table is zeros, as that of a padding index is.
bool has_zero_row(const OnnxTensor& table) {
  if (table.type.shape.size() != 2 || table.data.size == 0) return false;
  const size_t row = table.data.size / static_cast<size_t>(table.type.shape[0]);
  const std::string zeros(row, '\0');
  for (size_t at = 0; at < table.data.size; at += row)
    if (as_text(table.data.span()).substr(at, row) == zeros) return true;
  return false;
}

}  // namespace

void NameBasedRecovery::report_padding() {
  std::set<std::string> padded;
  for (const Claim& claim : claims_.list)
    if (model_.nodes[claim.node].op == "Gather" && claim.input == 0 &&
        has_zero_row(tensor(claim.initializer)))
      padded.insert(claim.name);
  for (const std::string& name : padded)
    claims_.notes.push_back(
        {name,
         "has a row of zeros: if that is a padding row (padding_idx), which the file does not say, "
         "it is trained here and not in PyTorch; a file of dynamo=True says it"});
}

// Reports weights that were merged though their modules have names of their own.
void NameBasedRecovery::report_copies() {
  std::map<std::string, std::set<std::string>> by_content;
  for (const Named& named : named_) {
    const OnnxTensor& lost = tensor(named.initializer);
    const auto copy = copies_.find(lost.name);
    if (is_telling(lost))
      by_content[copy == copies_.end() ? lost.name : copy->second].insert(named.role.name);
  }
  for (const auto& [content, names] : by_content) {
    const std::vector<std::string> list(names.begin(), names.end());
    if (list.size() < 2) continue;
    claims_.notes.push_back(
        {fmt::format("[{}]", join(list, ", ")),
         "equal at first and trained apart, as copies are; where they are one tensor, 'tie: [NAME, "
         "OTHER]' under 'parameters' says so"});
  }
}

// One step is the transpose that a Linear needs; more may have been of a weight_norm.
void NameBasedRecovery::report_scopes() {
  constexpr const char* kUnsaid =
      "whether its module computes it (weight_norm, w * scale), as one of dynamo=True or without "
      "constant folding does, and --init with the values that it was exported with";
  std::map<std::string, bool> told;  // by name: by the scope alone
  for (const Named& named : named_) {
    const bool by_scope = named.role.evidence == "scope";
    const bool many = readers_.most_steps(tensor(named.initializer).name) > 1;
    if (named.role.form != Role::Form::kNorm && (by_scope || many))
      told[named.role.name] = told[named.role.name] || by_scope;
  }
  for (const bool by_scope : {false, true})
    for (const auto& [name, scope] : told)
      if (scope == by_scope)
        claims_.notes.push_back(
            {name, fmt::format("{}taken as it stands in the file, which {} {}",
                               scope ? "named by the scope of the node that reads it and " : "",
                               scope ? "says neither its name nor" : "does not say", kUnsaid)});
}

void NameBasedRecovery::report_metadata() {
  if (model_.lacks_calls)
    claims_.notes.push_back(
        {"",
         "the metadata of the exporter was removed from the file: what detach(), the smoothing of "
         "labels, the dropout of an attention and batch norms that train have only there is not "
         "seen, and a tensor is a parameter by its name"});
}

}  // namespace piper::onnx_import
