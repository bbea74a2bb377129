// What a model is, without a strategy.
#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "layers.h"
#include "piper/frontend/autodiff.h"
#include "piper/frontend/patterns.h"
#include "piper/ir/ops.h"
#include "piper/planner/compile.h"
#include "piper/planner/cost.h"

namespace piper {
namespace {

constexpr int64_t kAssumedBatch = 8, kAssumedDim = 32;

// Returns the size that the digits say; none: it is a name.
std::optional<int64_t> number_of(const std::string& dim) {
  int64_t size = 0;
  const char* const end = dim.data() + dim.size();
  const auto [at, problem] = std::from_chars(dim.data(), end, size);
  return problem == std::errc() && at == end ? std::optional(size) : std::nullopt;
}

std::string type_text(const Survey::Input& input) {
  if (!input.has_shape) return input.type + ", of any shape";
  return fmt::format("{}[{}]", input.type, join(input.dims, ","));
}

class Description {
 public:
  Description(const DescribeOptions& options, const Survey& survey)
      : options_(options), survey_(survey) {}

  Result<Described> run() {
    PIPER_TRY(bind_dims());
    import_.absent_values = true;
    const Result<Imported> imported = import_onnx(options_.model, import_);
    head();
    inputs(imported);
    parameters();
    layers();
    out_.supported = imported.ok();
    if (imported) {
      costs(*imported);
    } else {
      operators();
      refusal(imported.error());
    }
    return std::move(out_);
  }

 private:
  template <class... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    out_.text += fmt::format(text, std::forward<Args>(args)...) + "\n";
  }
  // "Add 12, MatMul 3", folded into lines.
  void counts(std::string_view title, const std::vector<std::pair<std::string, int64_t>>& list) {
    std::string row = fmt::format("{}:", title);
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string item = fmt::format(" {} {}{}", quote_control(list[i].first), list[i].second,
                                           i + 1 < list.size() ? "," : "");
      if (row.size() + item.size() > 100) {
        line("{}", row);
        row = "   ";
      }
      row += item;
    }
    line("{}", row);
  }

  Status bind_dims();
  int64_t size_of(const std::string& dim, bool is_batch);
  void head();
  void inputs(const Result<Imported>& imported);
  void totals();
  void parameters();
  void layers();
  void costs(const Imported& imported);
  void step_costs(Graph graph);
  void operators() { counts("operators", survey_.ops); }
  void refusal(const Error& error);

  const DescribeOptions& options_;
  const Survey& survey_;
  ImportOptions import_;
  std::vector<std::pair<std::string, int64_t>> bound_;  // dims, in order of the inputs
  std::set<std::string> assumed_;
  Described out_;
};

int64_t Description::size_of(const std::string& dim, bool is_batch) {
  if (const auto number = number_of(dim)) return *number;
  for (const auto& [name, size] : bound_)
    if (name == dim) return size;
  int64_t size = is_batch ? kAssumedBatch : kAssumedDim;
  bool given = false;
  for (const auto& [name, value] : options_.dims)
    if (name == dim) size = value, given = true;
  if (!given) assumed_.insert(dim);
  if (dim != "?") bound_.emplace_back(dim, size);
  return size;
}

Status Description::bind_dims() {
  for (const Survey::Input& input : survey_.inputs) {
    InputBinding binding;
    if (!input.has_shape) continue;
    binding.name = input.name;
    binding.shape.emplace();
    for (size_t d = 0; d < input.dims.size(); ++d) {
      const bool is_batch = static_cast<int>(d) == input.batch_dim;
      const int64_t size = size_of(input.dims[d], is_batch);
      if (is_batch && import_.batch == 0) import_.batch = size;
      binding.shape->push_back(size);
    }
    import_.inputs.push_back(std::move(binding));
  }
  std::vector<std::string> names;
  for (const auto& [name, size] : bound_) names.push_back(name);
  for (const auto& [name, size] : options_.dims) {
    if (std::count(names.begin(), names.end(), name)) continue;
    return fail("--dim {}={}: the model's inputs have no dynamic dim '{}'{}", name, size, name,
                did_you_mean(name, names))
        .with_note(names.empty() ? "all dims of its inputs are fixed"
                                 : "they have " + join(names, ", "));
  }
  return ok_status();
}

void Description::head() {
  line("model: {}", options_.model);
  line("  written by {}, opset {}, {} nodes", survey_.producer, survey_.opset,
       survey_.scopes.size());
  std::vector<std::string> dims;
  for (const auto& [name, size] : bound_)
    dims.push_back(fmt::format("{} = {}{}", quote_control(name), size,
                               assumed_.count(name) ? " (assumed)" : ""));
  if (!dims.empty()) line("  with {}; --dim NAME=N sets it", join(dims, ", "));
}

void Description::inputs(const Result<Imported>& imported) {
  line("inputs:");
  for (const Survey::Input& input : survey_.inputs)
    line("  {:<24} {}{}", quote_control(input.name), quote_control(type_text(input)),
         input.batch_dim >= 0 ? fmt::format(", samples along dim {}", input.batch_dim) : "");
  line("outputs:");
  for (size_t i = 0; i < survey_.outputs.size(); ++i) {
    std::string type;
    if (imported) {
      const Graph& graph = imported->graph;
      type = to_string(graph.value(graph.outputs[i]).type);
      if (graph.loss == graph.outputs[i]) type += ", the loss";
    }
    line("  {:<24} {}", quote_control(survey_.outputs[i]), type);
  }
}

void Description::totals() {
  int64_t elements = 0, bytes = 0, frozen = 0;
  for (const ParamReport& p : survey_.parameters) {
    elements += num_elements(p.type.shape);
    bytes += p.type.bytes();
    frozen += p.frozen;
  }
  line("parameters: {} with {} elements, {}{}", survey_.parameters.size(), elements,
       human_bytes(bytes), frozen ? fmt::format(", {} frozen", frozen) : "");
}

void Description::parameters() {
  if (!survey_.tensors.empty()) line("tensors, among them parameters: {}", survey_.tensors.size());
  for (const std::string& text : survey_.tensors) line("  {}", quote_control(text));
  if (!survey_.tensors.empty()) return;
  totals();
  for (const ParamReport& p : survey_.parameters) {
    line("  {:<44} {:<14} {}", quote_control(p.name), to_string(p.type), p.evidence);
    for (const std::string& alias : p.aliases) line("    tied: {}", quote_control(alias));
  }
  for (const std::string& text : survey_.separated)
    line("  merged by the exporter, separate again: {}", quote_control(text));
  if (!survey_.constants.empty()) line("constants that 'include' could make parameters:");
  for (const std::string& text : survey_.constants) line("  {}", quote_control(text));
  for (const std::string& text : lines_of(survey_.notes)) line("note: {}", quote_control(text));
}

void Description::layers() {
  const Layers found = find_layers(survey_.scopes);
  if (!found.patterns.empty()) line("layers, for 'annotate':");
  for (const LayerPattern& p : found.patterns) {
    std::vector<std::string> values;
    for (const int64_t v : p.values) values.push_back(std::to_string(v));
    const bool dense =
        p.values.back() - p.values.front() + 1 == static_cast<int64_t>(values.size());
    line(
        "  - {{match: \"{}\", tags: {{stage: \"layer * stages / layers\"}}}}  # layer {}, {} nodes",
        quote_control(p.match),
        dense ? fmt::format("{}..{}", values.front(), values.back()) : join(values, ", "), p.nodes);
  }
  std::vector<std::pair<std::string, int64_t>> rest;
  for (const auto& [scope, nodes] : found.rest)
    rest.emplace_back(scope.empty() ? "(no module)" : scope, nodes);
  if (!rest.empty()) counts(found.patterns.empty() ? "modules" : "beside them", rest);
}

void Description::refusal(const Error& error) {
  line("not supported: {}", error.message);
  for (const std::string& note : error.notes) line("  {}", note);
}

void Description::costs(const Imported& imported) {
  Result<Recognised> recognised = recognise(imported.graph);
  if (!recognised) {
    out_.supported = false;
    operators();
    return refusal(recognised.error());
  }
  std::map<std::string, int64_t> ops;
  double flops = 0;
  for (const Node& node : recognised->graph.nodes) {
    ++ops[node.op];
    flops += flops_of(recognised->graph, node);
  }
  counts("ops", {ops.begin(), ops.end()});
  if (recognised->counts.empty()) {
    line("recognised: nothing");
  } else {
    counts("recognised", recognised->counts);
  }
  for (const std::string& left : lines_of(recognised->left))
    line("no attention: {}", quote_control(left));
  const auto batch = static_cast<double>(std::max<int64_t>(imported.graph.batch, 1));
  line("a sample's forward: {:.6g} MFLOP", flops / batch / 1e6);
  if (!imported.graph.loss.valid()) {
    line(
        "no loss: name one in the strategy, loss: OUTPUT, loss: {{mean: OUTPUT}}, loss: {{mse: "
        "{{output: NAME, target: target}}}} or loss: {{cross_entropy: {{logits: NAME, labels: "
        "labels}}}}");
    return;
  }
  step_costs(std::move(recognised->graph));
}

// Computes what the backward of a sample costs, and what of its forward is kept for it.
void Description::step_costs(Graph graph) {
  const auto batch = static_cast<double>(std::max<int64_t>(graph.batch, 1));
  TrainSpec train;
  train.groups.push_back({.match = "**"});
  Result<Differentiated> made = differentiate(std::move(graph), train);
  if (!made) {
    out_.supported = false;
    return refusal(made.error());
  }
  const Graph& step = made->graph;
  std::vector<bool> of_inputs(step.values.size());
  for (const ValueId id : step.inputs) of_inputs[id.index()] = true;
  std::set<ValueId> kept;
  double flops = 0;
  for (const Node& node : step.nodes) {
    const bool backward = is_backward(node);
    bool depends = false;
    for (const ValueId id : node.inputs) {
      if (!id.valid()) continue;
      depends = depends || of_inputs[id.index()];
      const NodeId producer = step.value(id).producer;
      if (backward && of_inputs[id.index()] && producer.valid() &&
          step.node(producer).pass == Pass::kF)
        kept.insert(id);
    }
    for (const ValueId id : node.outputs) of_inputs[id.index()] = depends;
    if (backward) flops += flops_of(step, node);
  }
  double bytes = 0;
  for (const ValueId id : kept) bytes += static_cast<double>(step.value(id).type.bytes());
  line("a sample's backward: {:.6g} MFLOP, with {} of activations kept for it", flops / batch / 1e6,
       human_bytes(static_cast<int64_t>(bytes / batch)));
  for (const std::string& name : made->without_gradient)
    line("note: {}: gets no gradient and is not trained", quote_control(name));
}

}  // namespace

Result<Described> describe(const DescribeOptions& options) {
  PIPER_ASSIGN(const Survey survey, survey_onnx(options.model));
  return Description(options, survey).run();
}

}  // namespace piper
