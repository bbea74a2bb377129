// Walks the ONNX graph: binds the inputs' shapes, lets each op's rule make its outputs, and
// collects what the graph needs. import.cc calls it once the parameters are found.
#include "walk.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "inputs.h"
#include "narrow.h"
#include "refusals.h"

namespace piper::onnx_import {
namespace {

int64_t stored_bytes(const OnnxModel& model) {
  int64_t bytes = 0;
  for (const OnnxTensor& tensor : model.initializers) bytes += tensor.type.bytes();
  return bytes;
}

class Importer {
 public:
  Importer(const OnnxModel& model, const std::vector<std::string>& scopes, const Recovery& recovery,
           uint64_t seed)
      : model_(model),
        scopes_(scopes),
        recovery_(recovery),
        emit_(graph_, stored_bytes(model), seed, model.producer.starts_with("pytorch")) {}
  Status run(const ImportOptions& options);
  Walked take() && { return {std::move(graph_), std::move(notes_), std::move(taken_)}; }

 private:
  Status add_inputs(const ImportOptions& options);
  void add_params();
  void add_constants();
  int64_t opset_of(const OnnxNode& node) const {
    return node.opset > 0 ? node.opset : model_.opset;
  }
  void try_node(size_t n);
  Status import_node(size_t n, Rule rule);
  Status decide(size_t n);
  Result<Vals> inputs_of(size_t n);
  Result<Val> value_of(const std::string& name) const;
  Result<Val> input_of(size_t n, size_t i);
  Result<Val> param_at_use(const ParamUse& use);
  void name_results(size_t n, const Vals& results, size_t first_node);
  Status add_outputs();
  void find_loss();
  ValueId add_state(const ChangedBuffer& changed, const Val& now);
  Status change_buffers();
  void rename();

  const OnnxModel& model_;
  const std::vector<std::string>& scopes_;
  const Recovery& recovery_;
  RuleTable table_;
  Refusals refusals_;
  std::set<std::string_view> unknown_;  // values behind refused nodes
  Graph graph_;
  Emitter emit_;
  std::unordered_map<std::string_view, Val> values_;
  std::vector<std::pair<ValueId, std::string>> names_;  // what values shall be called
  std::vector<Taken> taken_;
  std::vector<Note> notes_;  // on inputs
};

void Importer::add_params() {
  for (const RecoveredParam& param : recovery_.params) {
    Value value;
    value.name = param.name;
    value.type = param.type;
    value.kind = ValueKind::kState;
    value.data = param.data;
    if (param.absent) value.data_digest = "absent";  // nothing reads the zeros in `data`
    const ValueId id = graph_.add_value(std::move(value));
    names_.emplace_back(id, param.name);
    graph_.params.push_back({.name = param.name,
                             .aliases = param.aliases,
                             .scope = scope_of_name(param.name),
                             .value = id,
                             .evidence = param.evidence,
                             .frozen = param.frozen || param.running});
    if (param.running) emit_.keep(id, param.name);
  }
}

void Importer::add_constants() {
  for (const OnnxTensor& tensor : model_.initializers) {
    if (tensor.absent) continue;
    Val val = constant_val(tensor.type.dtype, tensor.type.shape, tensor.data);
    val.narrow = tensor.narrow;
    values_.emplace(tensor.name, std::move(val));
  }
}

Result<Val> Importer::param_at_use(const ParamUse& use) {
  const ValueId id = graph_.params[use.param].value;
  const TensorType& type = recovery_.params[use.param].type;
  Val val{Val::Kind::kGraph, type.dtype, type.shape, type.shape, id, {}, {}};
  return derive(emit_, use.derivation, std::move(val));
}

Result<Val> Importer::value_of(const std::string& name) const {
  if (const auto known = values_.find(name); known != values_.end()) return known->second;
  return fail("it computes with '{}', which is no parameter and whose data file is not there",
              quote_control(name))
      .with_note(
          "help: what follows from such a number cannot be known: keep it in the model file, "
          "as tools/export.py does with weights=False");
}

Result<Val> Importer::input_of(size_t n, size_t i) {
  const auto use = std::lower_bound(recovery_.uses.begin(), recovery_.uses.end(), std::pair(n, i),
                                    [](const ParamUse& u, const std::pair<size_t, size_t>& at) {
                                      return std::pair(u.node, u.input) < at;
                                    });
  if (use != recovery_.uses.end() && use->node == n && use->input == i) return param_at_use(*use);
  const std::string& name = model_.nodes[n].inputs[i];
  return name.empty() ? Val() : value_of(name);
}

Result<Vals> Importer::inputs_of(size_t n) {
  Vals out;
  for (size_t i = 0; i < model_.nodes[n].inputs.size(); ++i) {
    PIPER_ASSIGN(Val val, input_of(n, i));
    const bool detached =
        std::binary_search(recovery_.detached.begin(), recovery_.detached.end(), std::pair(n, i));
    if (detached && val.kind == Val::Kind::kGraph && info(val.dtype).is_float) {
      PIPER_ASSIGN(val, emit_.pointwise("Detach", {val}, {}));
    }
    out.push_back(std::move(val));
  }
  return out;
}

// The nodes made for an ONNX node carry its name, the results the names of its outputs.
void Importer::name_results(size_t n, const Vals& results, size_t first_node) {
  const OnnxNode& node = model_.nodes[n];
  for (size_t k = first_node; k < graph_.nodes.size(); ++k) graph_.nodes[k].name = node.name;
  for (size_t i = 0; i < results.size() && i < node.outputs.size(); ++i) {
    const Val& val = results[i];
    if (val.kind != Val::Kind::kGraph || node.outputs[i].empty()) continue;
    const Value& value = graph_.value(val.id);
    if (value.kind == ValueKind::kNode && value.producer.index() >= first_node) {
      names_.emplace_back(val.id, node.outputs[i]);
    }
  }
}

// Returns whether the value of an input says what replaces an If, Loop or Scan.
bool decides(const OnnxNode& node, size_t input) {
  if (node.op != "Scan") return input < (node.op == "If" ? 1 : 2);
  return input + static_cast<size_t>(node.get_or<int64_t>("num_scan_inputs")) >= node.inputs.size();
}

// A node that is refused leaves its results unknown, and the walk goes on: all refusals are one
// error.
void Importer::try_node(size_t n) {
  const OnnxNode& node = model_.nodes[n];
  const ImportRule* rule = table_.find(node, opset_of(node));
  bool known = rule != nullptr || is_nested(node);
  if (!known) refusals_.no_rule(node, scopes_[n]);
  for (size_t i = 0; i < node.inputs.size(); ++i)
    known = known && (!unknown_.count(node.inputs[i]) || (!rule && !decides(node, i)));
  if (known) {
    Status made = rule ? import_node(n, rule->rule) : decide(n);
    if (made && rule) return;
    if (!made) refusals_.refused(node, scopes_[n], std::move(made).error());
  }
  unknown_.insert(node.outputs.begin(), node.outputs.end());
  unknown_.erase("");
}

// Returns 1 where an If takes its first branch, otherwise 0.
Result<int64_t> branch_of_if(const RuleContext& context) {
  PIPER_TRY(context.need(1, 1));
  const Val& condition = context.in(0);
  if (!condition.is_constant() || num_elements(condition.shape) != 1)
    return context.error("is not supported where its condition depends on the data");
  return int64_t{read_number(condition.data, condition.dtype, 0) != 0};
}

// Returns how often a Loop runs, whose condition may only be true, or a Scan along its inputs.
Result<int64_t> turns_of(const RuleContext& c) {
  if (c.node.op == "Loop") {
    if (c.has(1) && (!c.in(1).is_constant() || num_elements(c.in(1).shape) != 1))
      return c.error("is not supported where its condition depends on the data");
    if (c.has(1) && read_number(c.in(1).data, c.in(1).dtype, 0) == 0) return int64_t{0};
    if (!c.has(0)) return c.error("is not supported where only its body ends it");
    PIPER_ASSIGN(const auto turns, c.constant_integers(0, "number of turns"));
    if (turns.size() != 1) return c.error("has {} numbers of turns", turns.size());
    return std::max<int64_t>(turns[0], 0);
  }
  const int64_t scanned = c.integer("num_scan_inputs", 0);
  const auto inputs = static_cast<int64_t>(c.num_inputs());
  if (c.opset < 9 || scanned < 1 || scanned > inputs)
    return c.error("is not supported of opset {} along {} of {} inputs", c.opset, scanned, inputs);
  const Val& first = c.in(static_cast<size_t>(inputs - scanned));
  const auto axes = c.integers("scan_input_axes");
  PIPER_ASSIGN(const size_t axis, c.axis(axes.empty() ? 0 : axes[0], first.rank()));
  return first.shape[axis];
}

// Records which branch an If takes, or how many turns a loop has, where that is known. Its results
// are unknown until the branch or the turns replace it.
Status Importer::decide(size_t n) {
  const OnnxNode& node = model_.nodes[n];
  Vals inputs(node.inputs.size());  // states that a loop carries may still be unknown
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!decides(node, i)) continue;
    PIPER_ASSIGN(inputs[i], input_of(n, i));
  }
  const RuleContext context(node, std::move(inputs), opset_of(node), scopes_[n], emit_);
  if (node.outputs.empty()) return context.error("has no outputs");
  PIPER_ASSIGN(const int64_t turns, node.op == "If" ? branch_of_if(context) : turns_of(context));
  taken_.push_back({node.outputs[0], turns});
  return ok_status();
}

Status Importer::import_node(size_t n, Rule rule) {
  const OnnxNode& node = model_.nodes[n];
  const size_t first_node = graph_.nodes.size();
  emit_.build().scope = scopes_[n];
  emit_.build().name_prefix = (node.outputs.empty() ? node.name : node.outputs[0]) + "/";
  PIPER_ASSIGN(Vals inputs, inputs_of(n));
  RuleContext context(node, std::move(inputs), opset_of(node), scopes_[n], emit_);
  context.by_pytorch = model_.producer.starts_with("pytorch");
  PIPER_ASSIGN(Vals results, rule(context));
  PIPER_TRY(context.all_read());
  PIPER_TRY(pass_narrow(context, results));
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i].empty()) continue;
    if (i >= results.size()) return context.error("its output {} is not supported", i);
    if (!elements_of(results[i].shape))
      return context.error("its result {} is too large", to_string(results[i].shape));
    values_[node.outputs[i]] = results[i];
  }
  name_results(n, results, first_node);
  return ok_status();
}

Status Importer::add_outputs() {
  auto first = static_cast<std::ptrdiff_t>(recovery_.params.size());
  for (const std::string& name : model_.outputs) {
    PIPER_ASSIGN(const Val val, value_of(name));
    if (val.kind == Val::Kind::kSequence)
      return fail("the output '{}' is a sequence", quote_control(name));
    PIPER_ASSIGN(const Val full, emit_.exact(val));
    const ValueId id = emit_.id_of(full);
    graph_.outputs.push_back(id);
    // Before those of nodes: a loop's last turn, and what an Identity reads, have names of their
    // own.
    const ValueKind kind = graph_.value(id).kind;
    if (kind == ValueKind::kNode || kind == ValueKind::kConstant)
      names_.emplace(names_.begin() + first++, id, name);
  }
  find_loss();
  return ok_status();
}

// The loss is the named output, or the only scalar that no buffer becomes, or the only scalar.
void Importer::find_loss() {
  std::vector<ValueId> named, scalars, others;
  for (size_t k = 0; k < graph_.outputs.size(); ++k) {
    const ValueId id = graph_.outputs[k];
    const TensorType& type = graph_.value(id).type;
    if (model_.outputs[k] == model_.loss) named.push_back(id);
    if (!type.shape.empty() || !info(type.dtype).is_float) continue;
    scalars.push_back(id);
    if (std::none_of(recovery_.changed.begin(), recovery_.changed.end(),
                     [&](const auto& buffer) { return buffer.value == model_.outputs[k]; }))
      others.push_back(id);
  }
  for (const auto* found : {&named, &others, &scalars}) {
    if (found->empty()) continue;
    if (found->size() == 1) graph_.loss = found->front();
    return;
  }
}

ValueId Importer::add_state(const ChangedBuffer& changed, const Val& now) {
  Value value;
  value.name = changed.name;
  value.type = {now.dtype, now.shape};
  value.kind = ValueKind::kState;
  if (changed.type == value.type) value.data = changed.data;
  const ValueId id = graph_.add_value(std::move(value));
  names_.emplace_back(id, changed.name);
  graph_.params.push_back({.name = changed.name,
                           .scope = scope_of_name(changed.name),
                           .value = id,
                           .evidence = "signature",
                           .frozen = true});
  emit_.keep(id, changed.name);
  return id;
}

// At the end of the step a buffer is what forward has made of it.
Status Importer::change_buffers() {
  for (const ChangedBuffer& changed : recovery_.changed) {
    PIPER_ASSIGN(const Val made, value_of(changed.value));
    PIPER_ASSIGN(const Val now, emit_.exact(made));
    const auto param = std::find_if(graph_.params.begin(), graph_.params.end(),
                                    [&](const Param& p) { return p.name == changed.name; });
    if (param == graph_.params.end() && changed.read) continue;  // excluded
    if (!info(now.dtype).is_float) continue;
    const ValueId id = changed.read ? param->value : add_state(changed, now);
    emit_.build().scope = scope_of_name(changed.name);
    emit_.build().name_prefix = changed.name + "/";
    const TensorType& type = graph_.value(id).type;
    const Val state{Val::Kind::kGraph, type.dtype, type.shape, type.shape, id, {}, {}};
    PIPER_TRY(emit_.follow(state, now, 0));
  }
  return ok_status();
}

// Gives all values that have one the exporter's name. The others get further names.
void Importer::rename() {
  std::unordered_set<std::string_view> used;  // names_ and values stay where they are
  used.reserve(graph_.values.size());
  std::vector<bool> named(graph_.values.size(), false);
  for (const ValueId id : graph_.inputs) {
    used.insert(graph_.value(id).name);
    named[id.index()] = true;
  }
  for (const auto& [id, name] : names_) {
    if (named[id.index()] || !used.insert(name).second) continue;
    graph_.value(id).name = name;
    named[id.index()] = true;
  }
  for (size_t i = 0; i < graph_.values.size(); ++i) {
    if (named[i]) continue;
    const std::string base = graph_.values[i].name;
    for (int k = 1; !used.insert(graph_.values[i].name).second; ++k) {
      graph_.values[i].name = fmt::format("{}_{}", base, k);
    }
  }
}

Status Importer::add_inputs(const ImportOptions& options) {
  PIPER_TRY(bind_inputs(model_, options, graph_, notes_));
  for (const ValueId id : graph_.inputs) {
    const Value& value = graph_.value(id);
    const auto input = std::find_if(model_.inputs.begin(), model_.inputs.end(),
                                    [&](const OnnxInput& i) { return i.name == value.name; });
    Val val = graph_val(graph_, id);
    val.narrow = input->narrow;
    values_.emplace(input->name, std::move(val));
  }
  return ok_status();
}

Status Importer::run(const ImportOptions& options) {
  PIPER_ASSIGN(const std::vector<size_t> order, node_order(model_));
  PIPER_TRY(add_inputs(options));
  add_params();
  values_.reserve(model_.initializers.size() + 2 * model_.nodes.size());
  add_constants();
  for (const size_t n : order) try_node(n);
  if (!taken_.empty()) return fail("awaits what its Ifs and loops become");
  if (refusals_.any()) return refusals_.error(model_);
  PIPER_TRY(add_outputs());
  PIPER_TRY(change_buffers());
  rename();
  return ok_status();
}

}  // namespace

Status walk_nodes(const OnnxModel& model, const std::vector<std::string>& scopes,
                  const Recovery& recovery, const ImportOptions& options, Walked& out) {
  Importer importer(model, scopes, recovery, options.seed);
  const Status done = importer.run(options);
  out = std::move(importer).take();
  return done;
}

}  // namespace piper::onnx_import
