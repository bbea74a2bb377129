// Walks the ONNX graph: binds the inputs' shapes, lets each op's rule make its outputs, collects
// what the graph needs.
#include "piper/frontend/import.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "inputs.h"
#include "piper/frontend/params.h"
#include "refusals.h"
#include "training.h"

namespace piper::onnx_import {
namespace {

// ---- The walk -----------------------------------------------------------------------------------

int64_t stored_bytes(const OnnxModel& model) {
  int64_t bytes = 0;
  for (const OnnxTensor& tensor : model.initializers) bytes += tensor.type.bytes();
  return bytes;
}

class Importer {
 public:
  Importer(OnnxModel& model, std::vector<std::string>& scopes, const Recovery& recovery,
           uint64_t seed)
      : model_(model),
        scopes_(scopes),
        recovery_(recovery),
        emit_(graph_, stored_bytes(model), seed, model.producer.starts_with("pytorch")) {}
  Status run(const ImportOptions& options);
  Graph take() && { return std::move(graph_); }
  // Ifs, Loops and Scans that are known: run() fails until branches and turns stand in their
  // places.
  struct Taken {
    std::string output;  // the first of the node
    int64_t value;       // the condition, or how many turns
  };
  const std::vector<Taken>& taken() const { return taken_; }
  const std::vector<Note>& notes() const { return notes_; }

 private:
  void add_params();
  void add_constants();
  void try_node(size_t n);
  Status import_node(size_t n, Rule rule);
  Status decide(size_t n);
  Result<Vals> inputs_of(size_t n);
  Result<Val> input_of(size_t n, size_t i);
  Result<Val> param_at_use(const ParamUse& use);
  void name_results(size_t n, const Vals& results, size_t first_node);
  Status add_outputs();
  void find_loss();
  ValueId add_state(const ChangedBuffer& changed, const Val& now);
  Status change_buffers();
  void rename();

  OnnxModel& model_;
  std::vector<std::string>& scopes_;
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

Result<Val> Importer::input_of(size_t n, size_t i) {
  const auto use = std::lower_bound(recovery_.uses.begin(), recovery_.uses.end(), std::pair(n, i),
                                    [](const ParamUse& u, const std::pair<size_t, size_t>& at) {
                                      return std::pair(u.node, u.input) < at;
                                    });
  if (use != recovery_.uses.end() && use->node == n && use->input == i) return param_at_use(*use);
  const std::string& name = model_.nodes[n].inputs[i];
  return name.empty() ? Val() : values_.at(name);
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

// A node that is refused leaves its results unknown, and the walk goes on: all refusals are one
// error.
void Importer::try_node(size_t n) {
  const OnnxNode& node = model_.nodes[n];
  const ImportRule* rule = table_.find(node, model_.opset);
  bool known = rule != nullptr || is_nested(node);
  if (!known) refusals_.no_rule(node, scopes_[n]);
  for (const std::string& input : node.inputs) known = known && !unknown_.count(input);
  if (known) {
    Status made = rule ? import_node(n, rule->rule) : decide(n);
    if (made && rule) return;
    if (!made) refusals_.refused(node, scopes_[n], std::move(made).error());
  }
  unknown_.insert(node.outputs.begin(), node.outputs.end());
  unknown_.erase("");
}

// How often: of a Loop, whose condition may only be true, or of a Scan along its inputs.
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

// Which branch it is, or how many turns, where that is known; its results are unknown until then.
Status Importer::decide(size_t n) {
  const OnnxNode& node = model_.nodes[n];
  PIPER_ASSIGN(Vals inputs, inputs_of(n));
  const RuleContext context(node, std::move(inputs), model_.opset, scopes_[n], emit_);
  if (node.outputs.empty()) return context.error("has no outputs");
  if (node.op != "If") {
    PIPER_ASSIGN(const int64_t turns, turns_of(context));
    taken_.push_back({node.outputs[0], turns});
    return ok_status();
  }
  PIPER_TRY(context.need(1, 1));
  const Val& condition = context.in(0);
  if (!condition.is_constant() || num_elements(condition.shape) != 1)
    return context.error("is not supported where its condition depends on the data");
  taken_.push_back({node.outputs[0], read_number(condition.data, condition.dtype, 0) != 0});
  return ok_status();
}

// Integers of 2 to 16 bits are held in i32: ops that move or choose them keep that, what casts
// them says itself what it makes, and arithmetic would have to wrap around.
Status pass_narrow(const RuleContext& c, Vals& results) {
  constexpr std::string_view kKeep[] = {"Clip",
                                        "Concat",
                                        "DepthToSpace",
                                        "Expand",
                                        "Flatten",
                                        "Gather",
                                        "GatherElements",
                                        "GatherND",
                                        "Identity",
                                        "Max",
                                        "MaxPool",
                                        "Min",
                                        "Pad",
                                        "ReduceMax",
                                        "ReduceMin",
                                        "Reshape",
                                        "Resize",
                                        "ReverseSequence",
                                        "ScatterElements",
                                        "ScatterND",
                                        "Slice",
                                        "SpaceToDepth",
                                        "Split",
                                        "Squeeze",
                                        "Tile",
                                        "TopK",
                                        "Transpose",
                                        "Unsqueeze",
                                        "Where"};
  constexpr std::string_view kOwn[] = {"Cast", "CastLike", "Constant", "DequantizeLinear",
                                       "QuantizeLinear"};
  const auto has = [&](const auto& list) {
    return std::find(std::begin(list), std::end(list), c.node.op) != std::end(list);
  };
  Narrow narrow;
  for (size_t i = 0; i < c.num_inputs(); ++i)
    if (c.in(i).narrow.bits > 0) narrow = c.in(i).narrow;
  if (narrow.bits == 0 || has(kOwn)) return ok_status();
  for (Val& result : results) {
    if (result.dtype != DType::kI32 || !result.present()) continue;
    if (!has(kKeep))
      return c.error("is not supported of integers of {} bits: cast them before", narrow.bits);
    result.narrow = narrow;
  }
  return ok_status();
}

Status Importer::import_node(size_t n, Rule rule) {
  const OnnxNode& node = model_.nodes[n];
  const size_t first_node = graph_.nodes.size();
  emit_.build().scope = scopes_[n];
  emit_.build().name_prefix = (node.outputs.empty() ? node.name : node.outputs[0]) + "/";
  PIPER_ASSIGN(Vals inputs, inputs_of(n));
  RuleContext context(node, std::move(inputs), model_.opset, scopes_[n], emit_);
  PIPER_ASSIGN(Vals results, rule(context));
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
    const Val& val = values_.at(name);
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

// The one named, or the one scalar that is not what a buffer becomes, or the only scalar.
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
    PIPER_ASSIGN(const Val now, emit_.exact(values_.at(changed.value)));
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

// The exporter's names for all values that have one; the others give way.
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

Status Importer::run(const ImportOptions& options) {
  PIPER_ASSIGN(const std::vector<size_t> order, node_order(model_));
  PIPER_TRY(bind_inputs(model_, options, graph_, notes_));
  for (const ValueId id : graph_.inputs) {
    const Value& value = graph_.value(id);
    const auto input = std::find_if(model_.inputs.begin(), model_.inputs.end(),
                                    [&](const OnnxInput& i) { return i.name == value.name; });
    Val val = graph_val(graph_, id);
    val.narrow = input->narrow;
    values_.emplace(input->name, std::move(val));
  }
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

// What files of the older exporter cannot tell, and which parameters that concerns.
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
                     "perhaps a buffer, which files of this exporter do not tell from parameters, "
                     "nor what forward changes it to: 'exclude' under 'parameters' leaves it as it "
                     "is"});
  }
}

// Under one of its names; `include` may have given it to a tensor.
bool has_place(const Recovery& recovery, const std::string& name) {
  return std::any_of(recovery.params.begin(), recovery.params.end(), [&](const auto& param) {
    return param.name == name || std::count(param.aliases.begin(), param.aliases.end(), name) > 0;
  });
}

template <class Report>  // Imported or Survey
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

// Also of what is refused: all that is known.
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

// Under the names that the parameters have now; those that nothing updates are frozen.
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

// What is wrong with the nodes, and what with the parameters.
Status combine_errors(Status refused, Status lost) {
  if (lost || refused) return lost ? refused : lost;
  Error error = std::move(refused).error();
  error.notes.push_back("and " + lost.error().message);
  error.notes.insert(error.notes.end(), lost.error().notes.begin(), lost.error().notes.end());
  return error;
}

// That there is a rule for each operator.
Status check_operators(const OnnxModel& model, const std::vector<std::string>& scopes) {
  const RuleTable table;
  Refusals refusals;
  for (size_t n = 0; n < model.nodes.size(); ++n)
    if (!table.find(model.nodes[n], model.opset) && !is_nested(model.nodes[n]))
      refusals.no_rule(model.nodes[n], scopes[n]);
  if (refusals.any()) return refusals.error(model);
  return ok_status();
}

// `model` with its parameters found and all nodes imported; `taken`: what to decide first.
Result<Imported> import_flat(OnnxModel model, const ImportOptions& options,
                             std::vector<Importer::Taken>& taken) {
  PIPER_TRY(take_shapes(model, options));
  std::vector<std::string> scopes = scopes_of(model);
  const Status known = check_operators(model, scopes);
  Result<Recovery> recovered =
      recover_params(model, scopes, options.parameters, options.initial_values);
  if (!recovered) return combine_errors(known, std::move(recovered).error()).error();
  Recovery recovery = *std::move(recovered);
  Imported out;
  PIPER_ASSIGN(out.matched, apply_param_rules(model, recovery, options.parameters));
  Importer importer(model, scopes, recovery, options.seed);
  const Status done = importer.run(options);
  taken = importer.taken();
  PIPER_TRY(taken.empty() ? combine_errors(done, check_missing(model, recovery)) : done);
  fill_reports(model, recovery, out);
  out.notes.insert(out.notes.end(), importer.notes().begin(), importer.notes().end());
  for (const RecoveredParam& param : recovery.params)
    for (const std::string& alias : param.aliases)
      out.notes.push_back({alias, fmt::format("tied to {}", param.name)});
  out.graph = without_dead_nodes(std::move(importer).take(), true);
  if (model.training) out.training = training_of(*model.training, recovery, out.graph);
  PIPER_TRY(check_graph(out.graph));
  for (const OnnxTensor& tensor : model.initializers)
    if (tensor.mapped) release(tensor.data);
  return out;
}

// Ifs whose conditions fold away are replaced by their branches, loops of known turns by these, and
// the import begins again: parameters may be used there, and what follows may decide further ones.
Result<Imported> import_model(OnnxModel model, const ImportOptions& options) {
  constexpr int kMostTimes = 100;
  join_bags(model);
  const bool branches = std::any_of(model.nodes.begin(), model.nodes.end(), is_nested);
  std::vector<Importer::Taken> taken;
  if (!branches) return import_flat(std::move(model), options, taken);
  for (int k = 0; k < kMostTimes; ++k) {
    Result<Imported> out = import_flat(model, options, taken);
    if (taken.empty()) return out;
    for (const Importer::Taken& choice : taken) {
      const auto node =
          std::find_if(model.nodes.begin(), model.nodes.end(), [&](const OnnxNode& candidate) {
            return is_nested(candidate) && !candidate.outputs.empty() &&
                   candidate.outputs[0] == choice.output;
          });
      if (node == model.nodes.end())
        return fail(model.at(), "'{}' is an If's or a loop's, which is not in the file",
                    choice.output);
      const auto at = static_cast<size_t>(node - model.nodes.begin());
      PIPER_TRY(node->op == "If" ? take_branch(model, at, choice.value != 0)
                                 : unroll(model, at, choice.value));
    }
    PIPER_TRY(check_defined(model));
  }
  return fail(model.at(), "has Ifs and loops that decide others, more than {} deep", kMostTimes);
}

}  // namespace
}  // namespace piper::onnx_import

namespace piper {

Result<Imported> import_onnx(const std::string& path, const ImportOptions& options) {
  PIPER_ASSIGN(onnx_import::OnnxModel model, onnx_import::read_onnx(path, options.max_file_bytes));
  if (model.refused) return *std::move(model.refused);
  const Status taken = onnx_import::take_training(model);
  Result<Imported> out = taken ? onnx_import::import_model(std::move(model), options)
                               : Result<Imported>(taken.error());
  if (!out && out.error().at.file.empty()) out.error().at = SourceSpan{path, 0, 0, 1};
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
  PIPER_ASSIGN(onnx_import::OnnxModel model, onnx_import::read_onnx(path, max_file_bytes));
  if (!model.refused)
    if (Status taken = onnx_import::take_training(model); !taken)
      model.refused = std::move(taken).error();
  return onnx_import::survey_model(std::move(model));
}

}  // namespace piper
