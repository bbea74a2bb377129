// precision: casts between the ops of the forward pass, as torch.autocast places them; autodiff
// then gives each gradient the type of its value.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "match.h"
#include "piper/base/float16.h"
#include "piper/devices/program.h"
#include "piper/ir/ops.h"
#include "transforms.h"

namespace piper {
namespace {

constexpr int32_t kUnchosen = -1;

using Autocast = OpDef::Autocast;
Autocast autocast_of(std::string_view op) { return find_op(op)->autocast; }

class Caster {
 public:
  Caster(Graph graph, const std::vector<Precision>& precisions, const Variables& variables)
      : graph_(std::move(graph)),
        precisions_(precisions),
        variables_(variables),
        wide_(!precisions.empty() && precisions[0].compute == DType::kF64 ? DType::kF64
                                                                          : DType::kF32),
        build_(graph_),
        chosen_(graph_.nodes.size(), kUnchosen),
        counts_(precisions.size()) {}

  // Retypes each node, and puts the casts that it reads before it.
  Status retype_all() {
    build_.name_prefix = "precision/";
    const size_t count = graph_.nodes.size();
    for (size_t i = 0; i < count; ++i) {
      const size_t casts = graph_.nodes.size();
      PIPER_TRY(retype(NodeId(i)));
      for (size_t c = casts; c < graph_.nodes.size(); ++c) order_.emplace_back(c);
      order_.emplace_back(i);
    }
    graph_.put_in_order(order_);
    return ok_status();
  }

  Result<Graph> run(Explanations& out) {
    for (const bool rest : {false, true})
      for (size_t d = 0; d < precisions_.size(); ++d)
        if (is_of_rest(precisions_[d]) == rest) PIPER_TRY(choose(d));
    for (size_t d = 0; d < precisions_.size(); ++d) PIPER_TRY(check_masters(d));
    for (const Value& value : graph_.values) original_.push_back(value.type.dtype);
    find_strong();
    find_beyond_f16();
    keep_masters();
    PIPER_TRY(retype_all());
    for (size_t d = 0; d < precisions_.size(); ++d) PIPER_TRY(report(d, out));
    return std::move(graph_);
  }

 private:
  struct Counts {
    std::map<std::string, int64_t> low, wide;  // ops by name
    int64_t matched = 0, following = 0, casts = 0, param_casts = 0, dropped = 0, masters = 0;
    bool changes() const { return !low.empty() || casts + dropped + masters > 0; }
  };

  // ---- Which ops ----
  Status choose(size_t d) {
    const Precision& precision = precisions_[d];
    std::set<std::string> found;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.pass != Pass::kF) continue;
      if (precision.match && !precision.match->match(node.scope)) continue;
      PIPER_ASSIGN(const auto met, match_node(graph_, node, precision.where, variables_));
      if (!met) continue;
      if (chosen_[i] != kUnchosen) {
        const Precision& first = precisions_[static_cast<size_t>(chosen_[i])];
        if (is_of_rest(precision) && !is_of_rest(first)) continue;
        return fail(precision.at, "precision: {} at '{}' is chosen twice", node.op, node.scope)
            .with_note("first at " + place_of(first.at))
            .with_note(
                "help: a pattern with '!' takes out what another entry names: match: "
                "[\"**\", \"!**/lm_head/**\"]");
      }
      chosen_[i] = static_cast<int32_t>(d);
      ++counts_[d].matched;
      found.insert(node.op);
    }
    if (counts_[d].matched == 0 && is_of_rest(precision)) return ok_status();
    if (counts_[d].matched == 0)
      return no_ops(graph_, "precision: matches no forward op", precision.at, precision.match,
                    precision.where);
    const std::vector<std::string> names(found.begin(), found.end());
    for (const auto& [op, at] : precision.keep)
      if (!found.contains(op))
        return fail(at, "precision: none of these ops is '{}'{}", op, did_you_mean(op, names))
            .with_note(fmt::format("they are {}", join(names, ", ")));
    return ok_status();
  }
  // ---- Which types ----
  // Finds by value whether it depends on the step's inputs or random numbers.
  void find_strong() {
    strong_.resize(graph_.values.size());
    for (size_t i = 0; i < graph_.values.size(); ++i)
      strong_[i] = graph_.values[i].kind == ValueKind::kInput;
    for (const Node& node : graph_.nodes) {
      const OpDef* def = find_op(node.op);
      bool strong = def && def->draws >= 0;
      for (ValueId input : node.inputs)
        strong = strong || (input.valid() && strong_[input.index()]);
      for (ValueId output : node.outputs) strong_[output.index()] = strong;
    }
  }

  // By value: whether it may have elements that are finite, but infinite in f16, as those that hide
  // scores: a softmax of scores that are all hidden has equal weights, and of -∞ it has none.
  void find_beyond_f16() {
    beyond_f16_.resize(graph_.values.size());
    if (std::none_of(precisions_.begin(), precisions_.end(),
                     [](const Precision& precision) { return precision.compute == DType::kF16; }))
      return;
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const Value& value = graph_.values[i];
      beyond_f16_[i] = value.kind == ValueKind::kInput ? info(value.type.dtype).is_float
                                                       : has_element_beyond_f16(value);
    }
    for (const Node& node : graph_.nodes)
      for (const ValueId output : node.outputs)
        for (const ValueId input : node.inputs)
          if (output.valid() && input.valid() && beyond_f16_[input.index()])
            beyond_f16_[output.index()] = info(dtype_of(output)).is_float;
  }
  static bool has_element_beyond_f16(const Value& value) {
    constexpr float kLargestF16 = 65504;
    if (value.kind != ValueKind::kConstant || value.type.dtype != DType::kF32) return false;
    const Bytes made = value.data.made();
    for (size_t i = 0; i + sizeof(float) <= made.size; i += sizeof(float)) {
      float element = 0;
      std::memcpy(&element, made.data + i, sizeof(float));
      if (std::isfinite(element) && std::abs(element) > kLargestF16) return true;
    }
    return false;
  }

  bool is_castable(DType dtype) const {
    return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16 || dtype == wide_;
  }

  // Keeps parameters of 16 bits that a chosen op reads in f32; in f64 it keeps all parameters so,
  // and constants and states that the model updates itself.
  void keep_masters() {
    std::map<ValueId, int32_t> reader;
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      for (ValueId input : graph_.nodes[i].inputs)
        if (input.valid() && chosen_[i] != kUnchosen) reader.try_emplace(input, chosen_[i]);
    for (const Param& param : graph_.params) {
      const auto found = reader.find(param.value);
      Value& value = graph_.value(param.value);
      if (found == reader.end() || !precisions_[static_cast<size_t>(found->second)].masters)
        continue;
      counts_[static_cast<size_t>(found->second)].masters += widen(value);
    }
    if (wide_ != DType::kF64) return;
    for (Value& value : graph_.values)
      if (value.kind == ValueKind::kConstant) widen(value);
    for (const StateUpdate& update : graph_.updates) widen(graph_.value(update.state));
  }
  // Returns whether the elements had another type.
  bool widen(Value& value) const {
    const DType dtype = value.type.dtype;
    if (dtype == wide_ || !is_castable(dtype)) return false;
    value.data = wide_ != DType::kF64   ? widened<float>(value.data, dtype)
                 : value.exact.size > 0 ? std::exchange(value.exact, {})
                                        : widened<double>(value.data, dtype);
    value.type.dtype = wide_;
    return true;
  }
  template <class To>
  static Bytes widened(const Bytes& narrow, DType dtype) {
    if (!narrow.data && narrow.size == 0) return narrow;  // filled
    const auto width = static_cast<size_t>(info(dtype).bytes);
    const auto make = [narrow, dtype, width] {
      const Bytes from = narrow.made();
      std::string bytes(from.size / width * sizeof(To), '\0');
      for (size_t i = 0; i < from.size / width; ++i) {
        float element = 0;
        uint16_t half = 0;
        std::memcpy(dtype == DType::kF32 ? static_cast<void*>(&element) : &half,
                    from.data + width * i, width);
        const To wide = dtype == DType::kF32 ? element : float_of_half(dtype, half);
        std::memcpy(bytes.data() + sizeof(To) * i, &wide, sizeof(To));
      }
      return Bytes::copy_of(bytes.data(), bytes.size());
    };
    constexpr size_t kLarge = size_t{1} << 20;
    return narrow.size < kLarge ? make() : Bytes::deferred(narrow.size / width * sizeof(To), make);
  }

  DType dtype_of(ValueId value) const { return graph_.value(value).type.dtype; }

  // Returns the type in which a chosen op computes, given its operands'.
  DType type_for(const Node& node, const Precision& precision) const {
    if (precision.compute == DType::kF64) return DType::kF64;
    const bool kept = std::any_of(precision.keep.begin(), precision.keep.end(),
                                  [&](const auto& op) { return op.first == node.op; });
    const Autocast autocast = autocast_of(node.op);
    if (autocast == Autocast::kLow && !kept) return precision.compute;
    if (autocast == Autocast::kF32 || kept || precision.compute == DType::kF32) return DType::kF32;
    if (precision.compute == DType::kF16 &&
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
          return input.valid() && !strong_[input.index()] && beyond_f16_[input.index()];
        }))
      return DType::kF32;
    std::set<DType> strong, weak;
    for (ValueId input : node.inputs)
      if (input.valid() && is_castable(dtype_of(input)))
        (strong_[input.index()] ? strong : weak).insert(dtype_of(input));
    const std::set<DType>& deciding = strong.empty() ? weak : strong;
    return deciding.size() == 1 ? *deciding.begin() : DType::kF32;
  }

  // Returns whether the input is a mask of attention with terms beyond the range of f16, which the
  // op takes in f32.
  bool is_wide_mask(const Node& node, size_t input) const {
    constexpr size_t kMask = 3;
    return node.op == "Attention" && input == kMask && beyond_f16_[node.inputs[input].index()];
  }

  // Returns what a node that no directive chose reads: the model's type, and in f64 what states
  // become.
  DType unchosen_type(const Node& node, ValueId input) const {
    return wide_ == DType::kF64 && node.pass == Pass::kU ? DType::kF64 : original_[input.index()];
  }

  // Has the node read its inputs in the type that it computes in.
  void cast_inputs(Node& node, int32_t d) {
    const DType type =
        d == kUnchosen ? DType::kF32 : type_for(node, precisions_[static_cast<size_t>(d)]);
    bool floats = false;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      ValueId& input = node.inputs[i];
      if (!input.valid() || !is_castable(dtype_of(input))) continue;
      floats = true;
      const DType own = type == DType::kF16 && is_wide_mask(node, i) ? DType::kF32 : type;
      input = in_type(input, d == kUnchosen ? unchosen_type(node, input) : own, node, d);
    }
    if (d != kUnchosen && floats) count(node, type, counts_[static_cast<size_t>(d)]);
  }

  Status retype(NodeId id) {
    const int32_t d = chosen_[id.index()];
    Node node = graph_.node(id);
    const auto dtypes = [&](DType dtype) {
      return std::any_of(node.inputs.begin(), node.inputs.end(),
                         [&](ValueId input) { return input.valid() && dtype_of(input) == dtype; });
    };
    if (wide_ != DType::kF64 && dtypes(DType::kF64)) return ok_status();
    if (d != kUnchosen && node.op == "Cast") {
      recast(node, counts_[static_cast<size_t>(d)]);
    } else {
      cast_inputs(node, d);
    }
    graph_.node(id) = node;
    return infer(id);
  }

  // Changes the model's own casts between floats: they have no effect under the directive. What is
  // made of integers is f32, or f64.
  void recast(Node& node, Counts& counts) {
    const ValueId input = node.inputs[0];
    const DType to = dtype_of(node.outputs[0]);
    if (!is_castable(to)) return;
    const DType type = is_castable(dtype_of(input)) ? dtype_of(input) : wide_;
    if (type != to) ++counts.dropped;
    node.attrs.set("to", std::string(info(type).name));
  }

  void count(const Node& node, DType type, Counts& counts) const {
    const Autocast autocast = autocast_of(node.op);
    if (type != DType::kF32 && autocast == Autocast::kLow) {
      ++counts.low[node.op];
    } else if (autocast != Autocast::kWidest) {
      ++counts.wide[node.op];
    } else {
      ++counts.following;
    }
  }

  Status infer(NodeId id) {
    const Node& node = graph_.node(id);
    const OpDef* def = find_op(node.op);
    PIPER_CHECK(def != nullptr, "op '{}' is not in the table", node.op);
    const Result<std::vector<TensorType>> types = def->types(use_of(graph_, node));
    if (!types)
      return fail("precision: {} at '{}': {}", node.op, node.scope, types.error().message);
    for (size_t o = 0; o < types->size(); ++o)
      if (node.outputs[o].valid()) graph_.value(node.outputs[o]).type = (*types)[o];
    return ok_status();
  }

  void count_cast(ValueId value, int32_t d) {
    if (d != kUnchosen) {
      Counts& counts = counts_[static_cast<size_t>(d)];
      ++counts.casts;
      counts.param_casts += graph_.value(value).kind == ValueKind::kState;
    }
  }

  // Returns the value in another type: cast once for each region that reads it, and a parameter
  // beside each op, so that each of its uses is one.
  ValueId in_type(ValueId value, DType type, const Node& reader, int32_t d) {
    if (dtype_of(value) == type) return value;
    const bool weak = !strong_[value.index()];
    // What is summed for an update of a state is still made where the value is.
    const NodeId producer = graph_.value(value).producer;
    const bool is_part = is_step_sum(reader) && producer.valid();
    const Node& beside = is_part ? graph_.node(producer) : reader;
    const Key key{value, type, beside.pass, beside.tags, weak ? reader.outputs[0] : ValueId()};
    const auto known = casts_.find(key);
    if (known != casts_.end()) return known->second;
    build_.scope = reader.scope;
    build_.tags = beside.tags;
    build_.pass = beside.pass;
    const ValueId made = build_.cast(value, type);
    count_cast(value, d);
    original_.resize(graph_.values.size(), type);
    strong_.resize(graph_.values.size(), !weak);
    beyond_f16_.resize(graph_.values.size(), beyond_f16_[value.index()]);
    return casts_[key] = made;
  }

  Status check_masters(size_t d) const {
    const Precision& precision = precisions_[d];
    if (precision.masters) return ok_status();
    for (size_t i = 0; i < chosen_.size(); ++i) {
      if (chosen_[i] != static_cast<int32_t>(d)) continue;
      for (ValueId input : graph_.nodes[i].inputs)
        if (input.valid() && is_low_parameter(input)) return ok_status();
    }
    return fail(precision.at,
                "precision: 'master: none' changes nothing: no parameter that these "
                "ops read is of 16 bits");
  }
  bool is_low_parameter(ValueId id) const {
    const DType dtype = graph_.value(id).type.dtype;
    return (dtype == DType::kBF16 || dtype == DType::kF16) &&
           std::any_of(graph_.params.begin(), graph_.params.end(),
                       [&](const Param& param) { return param.value == id; });
  }

  // ---- What was done ----
  static std::string list(const std::map<std::string, int64_t>& ops) {
    std::vector<std::string> parts;
    for (const auto& [op, count] : ops) parts.push_back(fmt::format("{} {}", count, op));
    return parts.empty() ? "none" : join(parts, ", ");
  }
  // A sweep over types has one in which the model computes anyway.
  static Status no_change(const Precision& precision, const Counts& counts, Explanations& out) {
    out.push_back(
        {precision.at,
         "precision",
         {counts.matched == 0
              ? std::string("nothing: other entries speak of all ops")
              : fmt::format("nothing: these {} ops compute in {} anyway, and nothing is cast",
                            counts.matched, info(precision.compute).name)}});
    return ok_status();
  }
  Status report(size_t d, Explanations& out) const {
    const Precision& precision = precisions_[d];
    const Counts& counts = counts_[d];
    if (!counts.changes() && !precision.loss_scale && !precision.reduce &&
        (!precision.accumulate || *precision.accumulate == DType::kF32))
      return no_change(precision, counts, out);
    std::vector<std::string> lines;
    if (precision.compute == DType::kF64) {
      lines.push_back(fmt::format("in f64: {} ops, {} parameters, their gradients and states",
                                  counts.matched, counts.masters));
      if (counts.casts > 0) lines.push_back(fmt::format("inserted {} casts", counts.casts));
      out.push_back({precision.at, "precision", std::move(lines)});
      return ok_status();
    }
    if (precision.compute != DType::kF32)
      lines.push_back(fmt::format("in {}: {}", info(precision.compute).name, list(counts.low)));
    lines.push_back(fmt::format("in f32: {}", list(counts.wide)));
    if (counts.following > 0)
      lines.push_back(fmt::format("in the type of their operands: {} others", counts.following));
    lines.push_back(fmt::format("inserted {} casts, {} of them of parameters", counts.casts,
                                counts.param_casts));
    if (counts.dropped > 0)
      lines.push_back(fmt::format("left out {} casts of the model", counts.dropped));
    if (counts.masters > 0)
      lines.push_back(fmt::format("{} parameters have masters in f32", counts.masters));
    for (const auto& [op, at] : precision.keep)
      if (autocast_of(op) == Autocast::kF32)
        lines.push_back(fmt::format("{} computes in f32 also where 'keep' does not name it", op));
    if (precision.accumulate && *precision.accumulate != DType::kF32)
      lines.push_back(
          fmt::format("gradients are added up in {}", info(*precision.accumulate).name));
    out.push_back({precision.at, "precision", std::move(lines)});
    return ok_status();
  }

  using Key = std::tuple<ValueId, DType, Pass, std::vector<int32_t>, ValueId>;
  Graph graph_;
  const std::vector<Precision>& precisions_;
  const Variables& variables_;
  const DType wide_;  // of parameters, and of what is neither low nor left as it is
  Builder build_;
  std::vector<int32_t> chosen_;  // by node: by which directive
  std::vector<Counts> counts_;   // by directive
  std::vector<DType> original_;  // by value
  std::vector<bool> strong_;     // by value
  std::vector<bool> beyond_f16_;
  std::map<Key, ValueId> casts_;
  std::vector<NodeId> order_;
};

// Adds casts, so that the chosen forward ops compute in the types of mixed precision (Micikevicius
// et al., 2018): MatMul and Attention in the low type; norms, softmax, losses, sums, powers and
// exponentials in f32; all others in the widest type of their operands, where parameters and
// constants follow the others. Parameters are f32, and cast beside each op that reads them (see
// Dag::copies). The model's own casts between floats are left out. Ops on f64 stay as they are.
// Errors: nothing matches or is changed, an unknown op, an op chosen twice.
Result<Graph> apply_precision(Graph forward, const TransformContext& context) {
  const std::vector<Precision>& precisions = context.strategy.precisions;
  if (precisions.empty()) return forward;
  return Caster(std::move(forward), precisions, context.variables).run(context.out);
}

}  // namespace

Transform precision_transform() { return {TransformTime::kForward, apply_precision}; }

}  // namespace piper
