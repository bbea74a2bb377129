// Reports what is in a file: its inputs, parameters and notes. import.cc calls it.
#include "survey.h"

#include <algorithm>
#include <map>

#include "inputs.h"

namespace piper::onnx_import {
namespace {

// Notes what files of the older exporter cannot tell, for the parameters that it concerns.
void note_possible_buffers(const OnnxModel& model, const Recovery& recovery,
                           std::vector<Note>& notes) {
  const bool names_modules = model.producer.starts_with("pytorch");
  if (!names_modules || !find_metadata(model.metadata, kSignatureKey).empty() ||
      lists_parameters(model))
    return;
  for (const RecoveredParam& param : recovery.params) {
    const std::string leaf = param.name.substr(param.name.rfind('.') + 1);
    const bool ordinary = leaf == "weight" || leaf == "bias" || leaf.starts_with("weight_ih_l") ||
                          leaf.starts_with("weight_hh_l") || leaf.starts_with("bias_ih_l") ||
                          leaf.starts_with("bias_hh_l");
    if (ordinary || param.running || param.frozen) continue;
    notes.push_back({param.name,
                     "perhaps a buffer, which files of this "
                     "exporter do not tell from parameters, "
                     "nor what forward changes it to: 'exclude' "
                     "under 'parameters' leaves it as it "
                     "is"});
  }
}

// Returns whether a parameter has the name, among its names; `include` may have given it to a
// tensor.
bool has_place(const Recovery& recovery, const std::string& name) {
  return std::any_of(recovery.params.begin(), recovery.params.end(), [&](const auto& param) {
    return param.name == name || std::count(param.aliases.begin(), param.aliases.end(), name) > 0;
  });
}

}  // namespace

template <class Report>
void fill_reports(const OnnxModel& model, const Recovery& recovery, Report& out) {
  for (const RecoveredParam& param : recovery.params) {
    out.parameters.push_back(
        {param.name, param.type, param.aliases, param.frozen, param.evidence, param.initializer});
  }
  out.constants = recovery.constants;
  out.separated = recovery.separated;
  out.notes = recovery.notes;
  note_possible_buffers(model, recovery, out.notes);
  for (const std::string& name : recovery.lost) {
    if (recovery.is_missing(name) || has_place(recovery, name)) continue;
    out.notes.push_back({name,
                         "in no call: unused, or another name of a tied tensor; 'tie: [NAME, "
                         "OTHER]' under 'parameters' says of which"});
  }
}

template void fill_reports(const OnnxModel&, const Recovery&, Imported&);
template void fill_reports(const OnnxModel&, const Recovery&, Survey&);

namespace {

Survey::Input survey_input(const OnnxModel& model, const OnnxInput& input,
                           const std::string& batch) {
  Survey::Input known;
  known.name = input.name;
  known.type = dtype_of_code(code_of_type(input.type)) ? info(input.dtype).name : input.type;
  known.has_shape = input.has_shape;
  known.batch_dim = input.dims.empty() || is_shared(model, input, 0) ? -1 : 0;
  for (size_t d = 0; d < input.dims.size(); ++d) {
    const OnnxDim& dim = input.dims[d];
    if (dim.value < 0 && !batch.empty() && dim.param == batch)
      known.batch_dim = static_cast<int>(d);
    known.dims.push_back(dim.value >= 0      ? std::to_string(dim.value)
                         : dim.param.empty() ? "?"
                                             : dim.param);
  }
  return known;
}

}  // namespace

Survey survey_model(OnnxModel model) {
  Survey out;
  out.producer = model.producer;
  out.opset = model.opset;
  out.outputs = model.outputs;
  const std::string batch = shared_param(model);
  for (const OnnxInput& input : model.inputs)
    out.inputs.push_back(survey_input(model, input, batch));
  std::map<std::string, int64_t> ops;
  for (const OnnxNode& node : model.nodes)
    ++ops[node.domain.empty() ? node.op : node.domain + "::" + node.op];
  out.ops.assign(ops.begin(), ops.end());
  out.scopes = scopes_of(model);
  std::vector<std::string> scopes = out.scopes;
  const OnnxModel whole = model;
  const Result<Recovery> recovery =
      model.refused ? Result<Recovery>(*model.refused) : recover_params(model, scopes, {}, "");
  if (recovery) {
    fill_reports(model, *recovery, out);
    out.scopes = std::move(scopes);
  } else {
    for (const OnnxTensor& tensor : whole.initializers)
      out.tensors.push_back(fmt::format("{} {}", tensor.name, to_string(tensor.type)));
  }
  return out;
}

}  // namespace piper::onnx_import
