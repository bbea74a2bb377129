// Reads a model file: finds its parameters, walks its nodes, and puts decided branches and loops in
// their places. The functions of the door import.h begin here.
#include "piper/frontend/import.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "inputs.h"
#include "refusals.h"
#include "survey.h"
#include "training.h"
#include "walk.h"

namespace piper::onnx_import {
namespace {

// Returns the updates under the names that the parameters have now, and freezes those that nothing
// updates.
TrainingInfo training_of(TrainingInfo training, const Recovery& recovery, Graph& graph) {
  std::map<std::string, std::string> name_of;  // by initializer
  for (const RecoveredParam& param : recovery.params) name_of[param.initializer] = param.name;
  std::set<std::string> updated;
  std::erase_if(training.updates, [&](TrainingUpdate& update) {
    const auto known = name_of.find(update.parameter);
    if (known == name_of.end()) return true;  // excluded, or read by nothing
    update.parameter = known->second;
    updated.insert(known->second);
    return false;
  });
  for (Param& param : graph.params) param.frozen = param.frozen || !updated.count(param.name);
  return training;
}

// Returns one error of what is wrong with the nodes, and with the parameters.
Status combine_errors(Status refused, Status lost) {
  if (lost || refused) return lost ? refused : lost;
  Error error = std::move(refused).error();
  error.notes.push_back("and " + lost.error().message);
  error.notes.insert(error.notes.end(), lost.error().notes.begin(), lost.error().notes.end());
  return error;
}

// Fails if an operator has no rule.
Status check_operators(const OnnxModel& model, const std::vector<std::string>& scopes) {
  const RuleTable table;
  Refusals refusals;
  for (size_t n = 0; n < model.nodes.size(); ++n)
    if (!table.find(model.nodes[n], model.opset) && !is_nested(model.nodes[n]))
      refusals.no_rule(model.nodes[n], scopes[n]);
  if (refusals.any()) return refusals.error(model);
  return ok_status();
}

// Imports `model`: finds its parameters and imports all nodes. Fills `taken` with what must be
// decided first.
Result<Imported> import_flat(OnnxModel model, const ImportOptions& options,
                             std::vector<Taken>& taken) {
  PIPER_TRY(take_shapes(model, options));
  std::vector<std::string> scopes = scopes_of(model);
  const Status known = check_operators(model, scopes);
  Result<Recovery> recovered =
      recover_params(model, scopes, options.parameters, options.initial_values);
  if (!recovered) return combine_errors(known, std::move(recovered).error()).error();
  Recovery recovery = *std::move(recovered);
  Imported out;
  PIPER_ASSIGN(out.matched, apply_param_rules(model, recovery, options.parameters));
  Walked walked;
  const Status done = walk_nodes(model, scopes, recovery, options, walked);
  taken = walked.taken;
  PIPER_TRY(taken.empty() ? combine_errors(done, check_missing(model, recovery)) : done);
  fill_reports(model, recovery, out);
  out.notes.insert(out.notes.end(), walked.notes.begin(), walked.notes.end());
  for (const RecoveredParam& param : recovery.params)
    for (const std::string& alias : param.aliases)
      out.notes.push_back({alias, fmt::format("tied to {}", param.name)});
  out.untouched = std::move(recovery.untouched);
  out.graph = without_dead_nodes(std::move(walked.graph), true);
  if (model.training) out.training = training_of(*model.training, recovery, out.graph);
  PIPER_TRY(check_graph(out.graph));
  for (const OnnxTensor& tensor : model.initializers)
    if (tensor.mapped) release(tensor.data);
  return out;
}

// Replaces the chosen Ifs and loops by their branches and turns.
Status replace(OnnxModel& model, const std::vector<Taken>& taken, int64_t& room) {
  std::unordered_map<std::string_view, int64_t> chosen;  // by first output
  for (const Taken& choice : taken) chosen.emplace(choice.output, choice.value);
  std::unordered_map<size_t, std::vector<OnnxNode>> instead;  // by place in the model
  for (size_t n = 0; n < model.nodes.size(); ++n) {
    const OnnxNode& node = model.nodes[n];
    if (!is_nested(node) || node.outputs.empty()) continue;
    const auto choice = chosen.find(node.outputs[0]);
    if (choice == chosen.end()) continue;
    PIPER_ASSIGN(instead[n], node.op == "If" ? take_branch(model, node, choice->second != 0)
                                             : unroll(model, node, choice->second, room));
  }
  if (instead.size() != taken.size())
    return fail(model.at(), "'{}' is an If's or a loop's, which is not in the file",
                taken[0].output);
  std::vector<OnnxNode> nodes;
  for (size_t n = 0; n < model.nodes.size(); ++n) {
    if (const auto found = instead.find(n); found == instead.end())
      nodes.push_back(std::move(model.nodes[n]));
    else
      std::ranges::move(found->second, std::back_inserter(nodes));
  }
  model.nodes = std::move(nodes);
  return check_defined(model);
}

// Ifs whose conditions fold away are replaced by their branches, loops of known turns by these, and
// the import begins again: parameters may be used there, and what follows may decide further ones.
Result<Imported> import_model(OnnxModel model, const ImportOptions& options) {
  constexpr int kDeepest = 100;
  int64_t room = 500'000;  // nodes of turns
  join_bags(model);
  const bool branches = std::any_of(model.nodes.begin(), model.nodes.end(), is_nested);
  std::vector<Taken> taken;
  if (!branches) return import_flat(std::move(model), options, taken);
  for (int k = 0; k < kDeepest; ++k) {
    Result<Imported> out = import_flat(model, options, taken);
    if (taken.empty()) return out;
    PIPER_TRY(replace(model, taken, room));
  }
  return fail(model.at(), "has Ifs and loops that decide others, more than {} deep", kDeepest);
}

}  // namespace
}  // namespace piper::onnx_import

namespace piper {

Result<Imported> import_onnx(const std::string& path, const ImportOptions& options) {
  PIPER_ASSIGN(onnx_import::OnnxModel model,
               onnx_import::read_onnx(path, options.max_file_bytes, options.absent_values));
  const int64_t absent = model.absent_bytes;
  if (model.refused) return *std::move(model.refused);
  const Status taken = onnx_import::take_training(model);
  Result<Imported> out = taken ? onnx_import::import_model(std::move(model), options)
                               : Result<Imported>(taken.error());
  if (!out && out.error().at.file.empty()) out.error().at = SourceSpan{path, 0, 0, 1};
  if (out && absent > 0)
    out->notes.push_back({"values", fmt::format("{} are not there: zeros stand for them, and these "
                                                "plans are not for training",
                                                human_bytes(absent))});
  return out;
}

std::vector<SupportedOperator> supported_operators() {
  std::vector<SupportedOperator> out;
  const onnx_import::RuleTable table;
  for (const onnx_import::ImportRule* rule : table.rules()) {
    out.push_back({std::string(rule->op), rule->since, rule->until, std::string(rule->note)});
  }
  return out;
}

Result<Survey> survey_onnx(const std::string& path, int64_t max_file_bytes) {
  PIPER_ASSIGN(onnx_import::OnnxModel model, onnx_import::read_onnx(path, max_file_bytes, true));
  if (!model.refused)
    if (Status taken = onnx_import::take_training(model); !taken)
      model.refused = std::move(taken).error();
  return onnx_import::survey_model(std::move(model));
}

}  // namespace piper
