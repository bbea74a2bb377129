// Finds the batch dim and all other extents of a model's inputs.
#include "inputs.h"

#include <algorithm>

#include "piper/frontend/rules.h"

namespace piper::onnx_import {
namespace {

const InputBinding* binding_of(const ImportOptions& options, const std::string& name) {
  for (const InputBinding& binding : options.inputs) {
    if (binding.name == name) return &binding;
  }
  return nullptr;
}

class InputShapes {
 public:
  InputShapes(const OnnxModel& model, const ImportOptions& options)
      : model_(model),
        options_(options),
        batch_param_(shared_param(model)),
        batch_(options.batch) {}
  Status bind(Graph& graph);
  std::vector<Note> notes() && { return std::move(notes_); }

 private:
  Status check_bindings() const;
  Result<int> batch_dim(const OnnxInput& input, const InputBinding* binding);
  Status bind_batch(const OnnxInput& input, const OnnxDim& dim);
  Result<int64_t> bind_dim(const OnnxInput& input, size_t d, bool is_batch) const;
  SourceSpan at(const InputBinding* binding) const {
    return binding ? binding->at : options_.batch_at;
  }

  const OnnxModel& model_;
  const ImportOptions& options_;
  std::string batch_param_;
  int64_t batch_ = 0;
  std::vector<Note> notes_;
};

// Counts the inputs by their first dim's extent, in the order of inputs.
std::vector<std::pair<int64_t, int>> count_extents(const OnnxModel& model) {
  std::vector<std::pair<int64_t, int>> counts;
  for (const OnnxInput& input : model.inputs) {
    if (input.dims.empty() || input.dims[0].value < 0) continue;
    const int64_t extent = input.dims[0].value;
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& each) { return each.first == extent; });
    if (known == counts.end())
      counts.emplace_back(extent, 1);
    else
      ++known->second;
  }
  return counts;
}

// Returns how many samples the inputs of a model without dynamic dims have: what the strategy says,
// if an input has as many, else what most inputs have, and of several such numbers the first.
// Returns 0 where the strategy says what no input has.
int64_t samples_of(const OnnxModel& model, int64_t wanted) {
  const std::vector<std::pair<int64_t, int>> counts = count_extents(model);
  if (wanted > 0)
    return std::any_of(counts.begin(), counts.end(),
                       [&](const auto& each) { return each.first == wanted; })
               ? wanted
               : 0;
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

std::vector<std::string> dynamic_dims(const OnnxModel& model) {
  std::vector<std::string> dynamic;
  for (const OnnxInput& input : model.inputs)
    for (const OnnxDim& dim : input.dims)
      if (!dim.param.empty() && !std::count(dynamic.begin(), dynamic.end(), dim.param))
        dynamic.push_back(quote_control(dim.param));
  return dynamic;
}

Status InputShapes::check_bindings() const {
  std::vector<std::string> names;
  for (const OnnxInput& input : model_.inputs) names.push_back(input.name);
  for (const InputBinding& binding : options_.inputs) {
    if (std::count(names.begin(), names.end(), binding.name)) continue;
    return fail(binding.at, "the model has no input '{}' (it has {}){}", binding.name,
                join(names, ", "), did_you_mean(binding.name, names));
  }
  const std::vector<std::string> dynamic = dynamic_dims(model_);
  for (const DimSize& dim : options_.dims) {
    if (std::count(dynamic.begin(), dynamic.end(), dim.name)) continue;
    return fail(dim.at.file.empty() ? model_.at() : dim.at,
                "no input of the model has a dynamic dim '{}'{}", dim.name,
                did_you_mean(dim.name, dynamic))
        .with_note(dynamic.empty() ? "none is dynamic"
                                   : fmt::format("there are {}", join(dynamic, ", ")));
  }
  return ok_status();
}

Result<int> InputShapes::batch_dim(const OnnxInput& input, const InputBinding* binding) {
  const int rank = static_cast<int>(input.dims.size());
  if (binding && binding->batch_dim) {
    if (*binding->batch_dim < -1 || *binding->batch_dim >= rank)
      return fail(binding->at, "input '{}' has {} dims, and no dim {}", input.name, rank,
                  *binding->batch_dim);
    return *binding->batch_dim;
  }
  for (int d = 0; d < rank && !batch_param_.empty(); ++d) {
    const OnnxDim& dim = input.dims[static_cast<size_t>(d)];
    if (dim.value < 0 && dim.param == batch_param_) return d;
  }
  if (rank == 0) return -1;
  if (binding && binding->shape) return 0;
  if (!is_shared(model_, input, options_.batch)) return 0;
  notes_.push_back({input.name,
                    "an input that all samples share, by its shape; 'batch_dim' under 'inputs' "
                    "says otherwise"});
  return -1;
}

Status InputShapes::bind_batch(const OnnxInput& input, const OnnxDim& dim) {
  if (dim.value < 0) {
    if (batch_ > 0) return ok_status();
    return fail(model_.at(),
                "input '{}' has a dynamic batch{}: the strategy must say how many samples a batch "
                "has",
                quote_control(input.name),
                dim.param.empty() ? "" : " '" + quote_control(dim.param) + "'")
        .with_note(
            "help: train: {global_batch: 8}; for a strategy of the library, in a file of your own "
            "that includes it");
  }
  if (batch_ == 0) batch_ = dim.value;
  if (batch_ == dim.value) return ok_status();
  return fail(options_.batch_at,
              "a batch of {} samples, but the model was exported for {} (input '{}')", batch_,
              dim.value, quote_control(input.name))
      .with_note("help: export it with a dynamic batch dim, or use a batch of " +
                 std::to_string(dim.value));
}

Error is_dynamic(const OnnxModel& model, const OnnxInput& input, size_t d) {
  const std::string& param = input.dims[d].param;
  return fail(model.at(), "dim {} of input '{}'{} is dynamic: the strategy must bind it", d,
              quote_control(input.name), param.empty() ? "" : " ('" + quote_control(param) + "')");
}

Result<int64_t> InputShapes::bind_dim(const OnnxInput& input, size_t d, bool is_batch) const {
  const OnnxDim& dim = input.dims[d];
  const InputBinding* binding = binding_of(options_, input.name);
  int64_t value = is_batch ? batch_ : dim.value;
  if (binding && binding->shape) {
    const int64_t named = (*binding->shape)[d];
    if (value >= 0 && value != named)
      return fail(binding->at, "input '{}' has {} in dim {}, not {}", input.name, value, d, named);
    value = named;
  }
  for (const DimSize& bound : options_.dims)
    if (value < 0 && bound.name == dim.param) value = bound.size;
  if (value < 0 && !batch_param_.empty() && dim.param == batch_param_) value = batch_;
  if (value < 0) return is_dynamic(model_, input, d);
  if (is_batch && value == 0)
    return fail(at(binding), "input '{}' has no samples: its dim {} is 0",
                quote_control(input.name), d);
  return value;
}

Status InputShapes::bind(Graph& graph) {
  PIPER_TRY(check_bindings());
  std::vector<int> batch_dims;
  for (const OnnxInput& input : model_.inputs) {
    const InputBinding* binding = binding_of(options_, input.name);
    PIPER_ASSIGN(const int d, batch_dim(input, binding));
    batch_dims.push_back(d);
    if (binding && binding->shape && binding->shape->size() != input.dims.size()) {
      return fail(binding->at, "input '{}' has {} dims, not {}", input.name, input.dims.size(),
                  binding->shape->size());
    }
    if (binding && binding->shape && d >= 0 && batch_ == 0)
      batch_ = (*binding->shape)[static_cast<size_t>(d)];
    if (d >= 0) PIPER_TRY(bind_batch(input, input.dims[static_cast<size_t>(d)]));
  }
  for (size_t i = 0; i < model_.inputs.size(); ++i) {
    const OnnxInput& input = model_.inputs[i];
    const InputBinding* binding = binding_of(options_, input.name);
    if (binding && binding->dtype && *binding->dtype != input.dtype) {
      return fail(binding->at, "input '{}' is {} in the model, not {}", input.name,
                  info(input.dtype).name, info(*binding->dtype).name);
    }
    Value value;
    value.name = input.name;
    value.kind = ValueKind::kInput;
    value.batch_dim = batch_dims[i];
    value.type.dtype = input.dtype;
    for (size_t d = 0; d < input.dims.size(); ++d) {
      PIPER_ASSIGN(const int64_t dim, bind_dim(input, d, batch_dims[i] == static_cast<int>(d)));
      value.type.shape.push_back(dim);
    }
    if (!elements_of(value.type.shape)) {
      return fail(model_.at(), "input '{}' is too large: {}", quote_control(input.name),
                  to_string(value.type));
    }
    graph.inputs.push_back(graph.add_value(std::move(value)));
  }
  graph.batch = batch_;
  return ok_status();
}

}  // namespace

std::string shared_param(const OnnxModel& model) {
  const auto is_dynamic = [](const OnnxDim& dim) { return dim.value < 0; };
  std::vector<const OnnxInput*> inputs;
  for (const OnnxInput& input : model.inputs)
    if (std::any_of(input.dims.begin(), input.dims.end(), is_dynamic) && input.dims[0].value != 1)
      inputs.push_back(&input);
  if (inputs.empty()) return {};
  for (const OnnxDim& dim : inputs[0]->dims) {
    const bool everywhere = std::all_of(inputs.begin(), inputs.end(), [&](const OnnxInput* input) {
      return std::any_of(input->dims.begin(), input->dims.end(),
                         [&](const OnnxDim& d) { return d.value < 0 && d.param == dim.param; });
    });
    if (dim.value < 0 && !dim.param.empty() && everywhere) return dim.param;
  }
  return {};
}

Status take_shapes(OnnxModel& model, const ImportOptions& options) {
  for (OnnxInput& input : model.inputs) {
    if (input.has_shape && !input.dims.empty()) continue;  // some programs write none as no dims
    const InputBinding* binding = binding_of(options, input.name);
    if (input.has_shape && !(binding && binding->shape)) continue;
    if (!binding || !binding->shape)
      return fail(model.at(), "input '{}' has no shape in the file: the strategy must say it",
                  quote_control(input.name))
          .with_note(fmt::format("help: inputs: {{\"{}\": {{shape: [8, 16]}}}}",
                                 quote_control(input.name)));
    input.dims.assign(binding->shape->size(), {});
    input.has_shape = true;
  }
  return ok_status();
}

bool is_shared(const OnnxModel& model, const OnnxInput& input, int64_t batch) {
  const int64_t extent = input.dims.empty() ? 0 : input.dims[0].value;
  if (extent < 0) return false;
  if (!shared_param(model).empty()) return extent != batch || extent == 1;
  const int64_t samples = samples_of(model, batch);
  return samples > 0 && extent != samples;
}

Status bind_inputs(const OnnxModel& model, const ImportOptions& options, Graph& graph,
                   std::vector<Note>& notes) {
  InputShapes shapes(model, options);
  PIPER_TRY(shapes.bind(graph));
  for (Note& note : std::move(shapes).notes()) notes.push_back(std::move(note));
  return ok_status();
}

}  // namespace piper::onnx_import
