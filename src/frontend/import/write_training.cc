// Writes a model with ONNX's own training form: each parameter an initializer under its own name
// and in its own orientation, the loss, its gradients and the optimizers in training_info.
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "inputs.h"
#include "piper/frontend/import.h"
#include "piper/frontend/params.h"
#include "training.h"
#include "write_nodes.h"

namespace piper::onnx_import {
namespace {

constexpr int64_t kMostBytes = int64_t{2'000'000'000};  // of one message of protobuf

// ---- The forward graph --------------------------------------------------------------------------

class Writer {
 public:
  Writer(const OnnxModel& model, const Recovery& recovery, const Graph& graph)
      : model_(model), recovery_(recovery), graph_(graph) {}
  Result<onnx::ModelProto> run(const TrainingExport& training);

 private:
  void forward();
  void write_nodes();
  Status check_steps() const;
  std::string write_step(const Step& step, const std::string& of);
  std::string at_use(const ParamUse& use);
  void write_constants();
  Result<std::string> loss(const CrossEntropyExport& loss);
  Status algorithm(const TrainingExport& training);
  void optimize(const std::vector<TrainingUpdate>& updates, size_t group);
  void bind(const std::string& key, const std::string& value) {
    onnx::StringStringEntryProto& entry = *info_->add_update_binding();
    entry.set_key(key);
    entry.set_value(value);
  }
  void scalar(const std::string& name, DType dtype, const void* value) {
    write_tensor(*step_->add_initializer(), name, {dtype, {}},
                 Bytes::copy_of(value, static_cast<size_t>(info(dtype).bytes)));
  }

  const OnnxModel& model_;
  const Recovery& recovery_;
  const Graph& graph_;  // imported, for types
  onnx::ModelProto proto_;
  onnx::TrainingInfoProto* info_ = nullptr;
  onnx::GraphProto* step_ = nullptr;
  std::set<std::string> made_;       // what is derived from parameters
  std::set<std::string> constants_;  // initializers that nodes read as they are
};

// Writes a node under a name that says what it does, once.
std::string Writer::write_step(const Step& step, const std::string& of) {
  std::string form = of + "/" + step.node.op;
  for (const OnnxAttr& attr : step.node.attrs)
    if (const auto* numbers = std::get_if<std::vector<int64_t>>(&attr.value))
      form += to_string(*numbers);
  for (const OnnxTensor& operand : step.operands)
    for (size_t i = 0; i < static_cast<size_t>(num_elements(operand.type.shape)); ++i)
      form += fmt::format(",{}", read_number(operand.data, operand.type.dtype, i));
  if (!made_.insert(form).second) return form;
  onnx::GraphProto& graph = *proto_.mutable_graph();
  std::vector<std::string> inputs{of};
  for (const OnnxTensor& operand : step.operands) {
    inputs.push_back(fmt::format("{}/{}", form, inputs.size()));
    write_tensor(*graph.add_initializer(), inputs.back(), operand.type, operand.data);
  }
  if (step.last) std::rotate(inputs.begin(), inputs.begin() + 1, inputs.end());
  onnx::NodeProto& node = add_node(graph, step.node.op, inputs, {form});
  for (const OnnxAttr& attr : step.node.attrs) write_attr(node, attr);
  return form;
}

// Writes what is derived from the parameter, and returns its name, or the parameter's own.
std::string Writer::at_use(const ParamUse& use) {
  std::string form = recovery_.params[use.param].name;
  for (const Step& step : use.derivation) form = write_step(step, form);
  return form;
}

void Writer::write_nodes() {
  onnx::GraphProto& graph = *proto_.mutable_graph();
  std::set<std::string> parameters;
  for (const RecoveredParam& param : recovery_.params) parameters.insert(param.name);
  size_t next_use = 0;
  for (size_t n = 0; n < model_.nodes.size(); ++n) {
    const OnnxNode& node = model_.nodes[n];
    onnx::NodeProto out;
    out.set_name(node.name);
    out.set_op_type(node.op);
    out.set_domain(node.domain);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      std::string name = node.inputs[i];
      const bool is_use = next_use < recovery_.uses.size() && recovery_.uses[next_use].node == n &&
                          recovery_.uses[next_use].input == i;
      if (is_use) {
        name = at_use(recovery_.uses[next_use++]);
      } else if (!name.empty()) {
        constants_.insert(name);
        if (parameters.count(name)) name += "/constant";
      }
      out.add_input(name);
    }
    for (const std::string& output : node.outputs) out.add_output(output);
    for (const OnnxAttr& attr : node.attrs) write_attr(out, attr);
    for (const auto& [key, value] : node.metadata) write_metadata(out, kNodeMetadata, key, value);
    graph.add_node()->Swap(&out);
  }
}

void Writer::write_constants() {
  onnx::GraphProto& graph = *proto_.mutable_graph();
  std::set<std::string> parameters;
  for (const RecoveredParam& param : recovery_.params) {
    parameters.insert(param.name);
    write_tensor(*graph.add_initializer(), param.name, param.type, param.data);
  }
  for (const std::string& output : model_.outputs) constants_.insert(output);
  for (const OnnxTensor& tensor : model_.initializers) {
    if (!constants_.count(tensor.name)) continue;
    write_tensor(*graph.add_initializer(),
                 tensor.name + (parameters.count(tensor.name) ? "/constant" : ""), tensor.type,
                 tensor.data);
  }
}

void Writer::forward() {
  onnx::GraphProto& graph = *proto_.mutable_graph();
  graph.set_name("forward");
  for (const OnnxInput& input : model_.inputs) add_input(graph, input);
  for (size_t i = 0; i < model_.outputs.size(); ++i) {
    const TensorType& type = graph_.value(graph_.outputs[i]).type;
    const OnnxInput output{.name = model_.outputs[i],
                           .dtype = type.dtype,
                           .dims = std::vector<OnnxDim>(type.shape.size())};
    add_input(graph, output);
    graph.mutable_output()->AddAllocated(graph.mutable_input()->ReleaseLast());
  }
  write_nodes();
  write_constants();
  write_metadata(graph, kGraphMetadata, std::string(kParametersKey),
                 parameter_list(recovery_.params));
}

// ---- The algorithm ------------------------------------------------------------------------------

// Writes a mean over the labels that count, of logits with the classes last.
Result<std::string> Writer::loss(const CrossEntropyExport& loss) {
  const auto output = std::find(model_.outputs.begin(), model_.outputs.end(), loss.logits);
  if (output == model_.outputs.end())
    return fail("the logits '{}' are no output of the model", quote_control(loss.logits));
  const auto position = static_cast<size_t>(output - model_.outputs.begin());
  const Shape& shape = graph_.value(graph_.outputs[position]).type.shape;
  const auto known = [&](const OnnxInput& input) { return input.name == loss.labels; };
  if (std::none_of(model_.inputs.begin(), model_.inputs.end(), known)) {
    OnnxInput labels{loss.labels, DType::kI64, {}};
    for (size_t d = 0; d + 1 < shape.size(); ++d) labels.dims.push_back({shape[d], ""});
    // The dim of the batch is left open where it is so of the model's inputs.
    const auto batched = std::find_if(graph_.inputs.begin(), graph_.inputs.end(),
                                      [&](ValueId id) { return graph_.value(id).batch_dim >= 0; });
    if (batched != graph_.inputs.end()) {
      const auto dim = static_cast<size_t>(graph_.value(*batched).batch_dim);
      const auto input = std::find_if(
          model_.inputs.begin(), model_.inputs.end(),
          [&](const OnnxInput& one) { return one.name == graph_.value(*batched).name; });
      if (dim < labels.dims.size() && input != model_.inputs.end() &&
          labels.dims[dim].value == graph_.value(*batched).type.shape[dim])
        labels.dims[dim] = input->dims[dim];
    }
    add_input(*step_, labels);
  }
  const int64_t rows[] = {-1, shape.back()}, flat[] = {-1};
  write_tensor(*step_->add_initializer(), "loss/rows", {DType::kI64, {2}},
               Bytes::copy_of(rows, sizeof rows));
  write_tensor(*step_->add_initializer(), "loss/flat", {DType::kI64, {1}},
               Bytes::copy_of(flat, sizeof flat));
  add_node(*step_, "Reshape", {loss.logits, "loss/rows"}, {"loss/logits"});
  add_node(*step_, "Reshape", {loss.labels, "loss/flat"}, {"loss/labels"});
  onnx::NodeProto& node = add_node(*step_, "SoftmaxCrossEntropyLoss",
                                   {"loss/logits", "loss/labels"}, {"loss/cross_entropy"});
  write_attr(node, {"ignore_index", loss.ignore_index});
  write_attr(node, {"reduction", std::string("mean")});
  return std::string("loss/cross_entropy");
}

bool same_optimizer(TrainingUpdate a, const TrainingUpdate& b) {
  a.parameter = b.parameter;
  return a == b;
}

// Parameters with one optimizer share a node: R, T, X…, G…, states….
void Writer::optimize(const std::vector<TrainingUpdate>& updates, size_t group) {
  const TrainingUpdate& first = updates[0];
  using Kind = TrainingUpdate::Kind;
  const std::string id = fmt::format("optimizer/{}", group);
  scalar(id + "/R", DType::kF64, &first.rate);
  scalar(id + "/T", DType::kI64, &first.count);
  add_node(*step_, "Add", {id + "/T", "optimizer/one"}, {id + "/T/next"});
  bind(id + "/T", id + "/T/next");
  std::vector<std::string> states;
  if (first.kind != Kind::kAdagrad) states.push_back("V");
  if (first.kind != Kind::kMomentum) states.push_back("H");
  std::vector<std::string> inputs{id + "/R", id + "/T"}, outputs;
  for (const TrainingUpdate& u : updates) inputs.push_back(u.parameter);
  for (const TrainingUpdate& u : updates) inputs.push_back(u.parameter + "/gradient");
  for (const TrainingUpdate& u : updates) outputs.push_back(u.parameter + "/next");
  for (const std::string& state : states) {
    for (const TrainingUpdate& u : updates) {
      const TensorType& type = graph_.value(graph_.find_value(u.parameter)).type;
      std::string bytes;
      for (int64_t k = 0; k < num_elements(type.shape); ++k)
        bytes += as_text(number_bytes(u.accumulator, type.dtype).span());
      const std::string name = u.parameter + "/" + state;
      write_tensor(*step_->add_initializer(), name, type,
                   Bytes::copy_of(bytes.data(), bytes.size()));
      inputs.push_back(name);
      outputs.push_back(name + "/next");
    }
  }
  for (size_t i = 0; i < outputs.size(); ++i)
    bind(inputs[2 + i + (i < updates.size() ? 0 : updates.size())], outputs[i]);
  constexpr const char* kOps[] = {"Adagrad", "Adam", "Momentum"};
  onnx::NodeProto& node =
      add_node(*step_, kOps[static_cast<int>(first.kind)], inputs, outputs, kTrainingDomain);
  const auto attr = [&](const char* name, double value) { write_attr(node, {name, value}); };
  attr("norm_coefficient", first.norm_coefficient);
  if (first.kind != Kind::kMomentum) attr("epsilon", first.epsilon);
  if (first.kind == Kind::kAdagrad) attr("decay_factor", first.decay_factor);
  if (first.kind == Kind::kAdam) attr("norm_coefficient_post", first.norm_coefficient_post);
  if (first.kind == Kind::kAdagrad) return;
  attr("alpha", first.alpha);
  attr("beta", first.beta);
  if (first.kind == Kind::kMomentum)
    write_attr(node, {"mode", std::string(first.nesterov ? "nesterov" : "standard")});
}

Status Writer::algorithm(const TrainingExport& training) {
  info_ = proto_.add_training_info();
  step_ = info_->mutable_algorithm();
  step_->set_name("step");
  std::string y = training.output;
  if (training.cross_entropy) {
    PIPER_ASSIGN(y, loss(*training.cross_entropy));
  }
  add_input(*step_, {y, DType::kF32, {}});
  step_->mutable_output()->AddAllocated(step_->mutable_input()->ReleaseLast());
  std::vector<std::string> xs, zs, gradients;
  for (const TrainingUpdate& u : training.training.updates) {
    xs.push_back(u.parameter);
    gradients.push_back(u.parameter + "/gradient");
  }
  for (const auto& input : proto_.graph().input()) zs.push_back(input.name());
  for (const auto& input : step_->input()) zs.push_back(input.name());
  std::vector<std::string> at = xs;
  at.insert(at.end(), zs.begin(), zs.end());
  onnx::NodeProto& node = add_node(*step_, "Gradient", at, gradients, kTrainingDomain);
  write_attr(node, {"xs", xs});
  write_attr(node, {"zs", zs});
  write_attr(node, {"y", y});
  const int64_t one = 1;
  scalar("optimizer/one", DType::kI64, &one);
  std::vector<std::vector<TrainingUpdate>> groups;
  for (const TrainingUpdate& update : training.training.updates) {
    auto same = std::find_if(groups.begin(), groups.end(),
                             [&](const auto& group) { return same_optimizer(group[0], update); });
    if (same == groups.end()) same = groups.insert(groups.end(), std::vector<TrainingUpdate>());
    same->push_back(update);
  }
  for (size_t g = 0; g < groups.size(); ++g) optimize(groups[g], g);
  return ok_status();
}

// What is made of parameters is written in the model's opset, which may not have the ops.
Status Writer::check_steps() const {
  constexpr std::pair<std::string_view, int64_t> kSince[] = {
      {"Gelu", 20}, {"Mish", 18}, {"ReduceMean", 18}, {"Swish", 24}};
  for (const ParamUse& use : recovery_.uses)
    for (const Step& step : use.derivation)
      for (const auto& [op, opset] : kSince)
        if (step.node.op == op && model_.opset < opset)
          return fail("the model reads {} of '{}', which opset {} of ONNX has no operator for", op,
                      quote_control(recovery_.params[use.param].name), model_.opset)
              .with_note(export_help(model_));
  return ok_status();
}

Result<onnx::ModelProto> Writer::run(const TrainingExport& training) {
  for (const OnnxNode& node : model_.nodes)
    if (!node.branches.empty()) return fail("{} cannot be written", node.label());
  for (const ChangedBuffer& buffer : recovery_.changed)
    return fail("forward changes the buffer '{}', which cannot be said in training_info",
                quote_control(buffer.name));
  PIPER_TRY(check_steps());
  proto_.set_ir_version(static_cast<onnx::Version>(10));
  proto_.set_producer_name("piper");
  proto_.add_opset_import()->set_version(model_.opset);
  onnx::OperatorSetIdProto& preview = *proto_.add_opset_import();
  preview.set_domain(std::string(kTrainingDomain));
  preview.set_version(1);
  std::set<std::string> others;  // such as com.microsoft, whose operators have one version
  for (const OnnxNode& node : model_.nodes)
    if (!node.domain.empty() && node.domain != kTrainingDomain) others.insert(node.domain);
  for (const std::string& domain : others) {
    onnx::OperatorSetIdProto& opset = *proto_.add_opset_import();
    opset.set_domain(domain);
    opset.set_version(1);
  }
  forward();
  PIPER_TRY(algorithm(training));
  return std::move(proto_);
}

Status write(const std::string& path, const ImportOptions& options, const TrainingExport& training,
             const std::string& to) {
  std::error_code ignored;
  if (std::filesystem::equivalent(path, to, ignored))
    return fail("the model would be replaced by what is made of it; write to another file");
  PIPER_ASSIGN(OnnxModel model, read_onnx(path, options.max_file_bytes));
  if (model.refused) return *std::move(model.refused);
  PIPER_TRY(take_training(model));
  PIPER_TRY(take_shapes(model, options));
  std::vector<std::string> scopes = scopes_of(model);
  PIPER_ASSIGN(Recovery recovery,
               recover_params(model, scopes, options.parameters, options.initial_values));
  PIPER_TRY(apply_param_rules(model, recovery, options.parameters));
  PIPER_ASSIGN(const Imported imported, import_onnx(path, options));
  PIPER_ASSIGN(const onnx::ModelProto proto, Writer(model, recovery, imported.graph).run(training));
  if (static_cast<int64_t>(proto.ByteSizeLong()) > kMostBytes)
    return fail("a model of {} is too large to be written as one file",
                human_bytes(static_cast<int64_t>(proto.ByteSizeLong())));
  return write_file(to, proto.SerializeAsString());
}

}  // namespace
}  // namespace piper::onnx_import

namespace piper {

Status write_onnx_training(const std::string& path, const ImportOptions& options,
                           const TrainingExport& training, const std::string& to) {
  Status out = onnx_import::write(path, options, training, to);
  if (!out && out.error().at.file.empty()) out.error().at = SourceSpan{path, 0, 0, 1};
  return out;
}

}  // namespace piper
