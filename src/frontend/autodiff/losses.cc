// The losses that a strategy may name: a row for each in kRows, built of ordinary ops, so that
// their gradients are those of the ops. Formulas are those of torch.nn.functional.
#include <algorithm>
#include <numeric>

#include "piper/frontend/autodiff.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

using Kind = LossTerm::Kind;
using Reduction = LossTerm::Reduction;

// A Use holds what a row builds with. Numbers have the type of y.
struct Use {
  Builder& build;
  const LossTerm& term;
  ValueId y, t;  // the value and its target, of one type
  ValueId number(double value) const { return build.scalar(value, build.type(y).dtype); }
  ValueId op(std::string_view name, std::vector<ValueId> inputs, Attrs attrs = {}) const {
    return build.op1(name, std::move(inputs), std::move(attrs));
  }
  ValueId error() const { return build.sub(y, t); }
  ValueId sum(ValueId x) const {
    std::vector<int64_t> axes(build.shape(x).size());
    std::iota(axes.begin(), axes.end(), 0);
    return build.reduce_sum(x, std::move(axes), false);
  }
};

// ---- A loss for each element --------------------------------------------------------------------

ValueId itself(const Use& u) { return u.y; }
ValueId squared(const Use& u) {
  const ValueId error = u.error();
  return u.build.mul(error, error);
}
ValueId absolute(const Use& u) { return u.op("Abs", {u.error()}); }

// Returns `square` where the error is less than beta, and elsewhere the line that continues it.
ValueId below_beta(const Use& u, ValueId square, ValueId line) {
  const ValueId size = u.op("Abs", {u.error()});
  return u.op("Where", {u.op("Less", {size, u.number(u.term.beta)}), square, line});
}
ValueId line_of(const Use& u) {  // |error| - beta / 2
  return u.build.sub(absolute(u), u.number(u.term.beta / 2));
}
ValueId smooth_absolute(const Use& u) {
  return below_beta(u, u.build.div(squared(u), u.number(2 * u.term.beta)), line_of(u));
}
ValueId huber(const Use& u) {
  return below_beta(u, u.build.mul(squared(u), u.number(0.5)),
                    u.build.mul(line_of(u), u.number(u.term.beta)));
}

// Returns max(log x, -100), through which no gradient flows.
ValueId bounded_log(const Use& u, ValueId x) {
  return u.op("Detach", {u.op("Max", {u.op("Log", {x}), u.number(-100)})});
}
// Returns -(t·log y + (1 - t)·log(1 - y)) with bounded logarithms, whose slope is (y - t) /
// max(y·(1 - y), 1e-12) also where y is 0 or 1: there the logarithms have none.
ValueId binary_cross_entropy(const Use& u) {
  Builder& b = u.build;
  const ValueId rest = b.sub(u.number(1), u.y), others = b.sub(u.number(1), u.t);
  const ValueId likely =
      b.add(b.mul(u.t, bounded_log(u, u.y)), b.mul(others, bounded_log(u, rest)));
  const ValueId spread = u.op("Max", {b.mul(u.y, rest), u.number(1e-12)});
  const ValueId slope = u.op("Detach", {b.div(u.error(), spread)});
  const ValueId nothing = b.sub(u.y, u.op("Detach", {u.y}));
  return b.sub(b.mul(nothing, slope), likely);
}
// (1 - t)·y + (1 + (pos_weight - 1)·t)·log(1 + exp(-y))
ValueId binary_cross_entropy_of_logits(const Use& u) {
  Builder& b = u.build;
  ValueId positive = u.op("Softplus", {b.neg(u.y)});
  if (u.term.pos_weight != 1) {
    const ValueId more = b.mul(u.t, u.number(u.term.pos_weight - 1));
    positive = b.mul(positive, b.add(more, u.number(1)));
  }
  return b.add(b.mul(b.sub(u.number(1), u.t), u.y), positive);
}

// Returns t·(log t - y), which is 0 where t is 0.
ValueId divergence(const Use& u) {
  Builder& b = u.build;
  if (u.term.log_target) return b.mul(u.op("Exp", {u.t}), b.sub(u.t, u.y));
  const ValueId is_zero = u.op("Equal", {u.t, u.number(0)});
  const ValueId log = u.op("Log", {u.op("Where", {is_zero, u.number(1), u.t})});
  return b.mul(u.t, b.sub(log, u.y));
}

// ---- Reductions ---------------------------------------------------------------------------------

// Whole numbers are exact in every type, their reciprocals in none: sums are divided.
ValueId reduced(const Use& u, ValueId elements, Reduction reduction) {
  const Shape& shape = u.build.shape(elements);
  const int64_t count = reduction == Reduction::kMean                          ? num_elements(shape)
                        : reduction == Reduction::kBatchMean && !shape.empty() ? shape[0]
                                                                               : 1;
  const ValueId sum = u.sum(elements);
  return count == 1 ? sum : u.build.div(sum, u.number(static_cast<double>(count)));
}

// ---- Cross-entropy ------------------------------------------------------------------------------

// Sums over the rows whose label counts the mean over all classes: -Σ log p / classes.
ValueId smoothed_part(const Use& u) {
  Builder& b = u.build;
  const auto last = static_cast<int64_t>(b.shape(u.y).size()) - 1;
  const auto classes = static_cast<double>(b.shape(u.y).back());
  const ValueId rows = b.reduce_sum(u.op("LogSoftmax", {u.y}, {{"axis", last}}), {last}, false);
  const ValueId ignored = b.scalar(static_cast<double>(u.term.ignore_index), DType::kI64);
  const ValueId counted = u.op("Where", {u.op("Equal", {u.t, ignored}), u.number(0), rows});
  return b.div(u.sum(counted), u.number(-classes));
}

// Computes, with classes last, (1 - ε) of the label's loss and ε of the mean over all classes
// (Szegedy et al., Rethinking the Inception Architecture, 2016).
ValueId cross_entropy(const Use& u) {
  Builder& b = u.build;
  const Attrs ignore{{"ignore_index", u.term.ignore_index}};
  ValueId sum = b.op1("CrossEntropySum", {u.y, u.t}, ignore);
  const double smoothing = u.term.label_smoothing;
  if (smoothing > 0)
    sum = b.add(b.mul(sum, u.number(1 - smoothing)), b.mul(smoothed_part(u), u.number(smoothing)));
  if (u.term.reduction == Reduction::kSum) return sum;
  ValueId count = b.op1("LabelCount", {u.t}, ignore);
  const DType dtype = b.type(sum).dtype;
  if (dtype != DType::kF32) count = b.cast(count, dtype);
  return b.div(sum, count);
}

// ---- The table ----------------------------------------------------------------------------------

struct Row {
  Kind kind;
  ValueId (*elements)(const Use&);  // of each element, except kCrossEntropy
  bool has_target = true;
};
constexpr Row kRows[] = {
    {Kind::kOutput, itself, false},
    {Kind::kMean, itself, false},
    {Kind::kSum, itself, false},
    {Kind::kCrossEntropy, cross_entropy},
    {Kind::kMse, squared},
    {Kind::kL1, absolute},
    {Kind::kSmoothL1, smooth_absolute},
    {Kind::kHuber, huber},
    {Kind::kBce, binary_cross_entropy},
    {Kind::kBceWithLogits, binary_cross_entropy_of_logits},
    {Kind::kKl, divergence},
};

// ---- Operands -----------------------------------------------------------------------------------

std::vector<std::string> names_of(const Graph& graph, const std::vector<ValueId>& values) {
  std::vector<std::string> names;
  for (ValueId id : values) names.push_back(graph.value(id).name);
  return names;
}

// Returns a value of the model that is made in each step.
Status check_output_type(const LossTerm& term, const TensorType& type) {
  const std::string name = quote_control(term.output);
  if (!info(type.dtype).is_float)
    return fail(term.output_at, "loss: '{}' is {}, not floats", name, to_string(type));
  if (num_elements(type.shape) == 0)
    return fail(term.output_at, "loss: '{}' is {}, without elements", name, to_string(type));
  if (term.kind == Kind::kOutput && num_elements(type.shape) != 1)
    return fail(term.output_at, "loss: '{}' is {}, not a scalar", name, to_string(type))
        .with_note(
            fmt::format("help: loss: {{mean: {0}}}, {{sum: {0}}}, or a loss with a target", name));
  return ok_status();
}

Result<ValueId> find_output(const Graph& graph, const LossTerm& term) {
  const ValueId found = graph.find_value(term.output);
  if (!found.valid()) {
    const std::vector<std::string> names = names_of(graph, graph.outputs);
    return fail(term.output_at, "loss: the model has no value '{}'{}", quote_control(term.output),
                did_you_mean(term.output, names))
        .with_note(fmt::format("outputs of the model: {}", quote_control(join(names, ", "))));
  }
  PIPER_TRY(check_output_type(term, graph.value(found).type));
  return found;
}

// Returns the dim of a target that counts samples: that of the inputs, or the only one of that
// many.
Result<int> batch_dim_of(const Graph& graph, const LossTerm& term, const Shape& shape) {
  const auto is_batch = [&](int d) {
    return d >= 0 && d < static_cast<int>(shape.size()) &&
           shape[static_cast<size_t>(d)] == graph.batch;
  };
  for (ValueId id : graph.inputs)
    if (is_batch(graph.value(id).batch_dim)) return graph.value(id).batch_dim;
  int found = -1, count = 0;
  for (int d = 0; d < static_cast<int>(shape.size()); ++d)
    if (is_batch(d)) found = d, ++count;
  if (count == 1) return found;
  return fail(term.target_at, "loss: the target of '{}' would be {}, {}",
              quote_control(term.output), to_string(shape),
              count == 0 ? fmt::format("and no dim counts the {} samples of a batch", graph.batch)
                         : fmt::format("and {} of its dims might count samples", count))
      .with_note("help: export the model with an output that has a dim of samples");
}

// Returns the value of that name, or an input that is made. The type is derived from what the loss
// is of.
Result<ValueId> find_target(Graph& graph, const LossTerm& term, const TensorType& type) {
  const ValueId known = graph.find_value(term.target);
  if (!known.valid()) {
    PIPER_ASSIGN(const int batch_dim, batch_dim_of(graph, term, type.shape));
    Value target;
    target.name = term.target;
    target.type = type;
    target.kind = ValueKind::kInput;
    target.batch_dim = batch_dim;
    graph.inputs.push_back(graph.add_value(std::move(target)));
    return graph.inputs.back();
  }
  const TensorType& found = graph.value(known).type;
  const bool fits = found.shape == type.shape && found.dtype != DType::kBool &&
                    (info(type.dtype).is_float || !info(found.dtype).is_float);
  if (fits) return known;
  return fail(term.target_at, "loss: the target of '{}' must be {}, but '{}' is {}",
              quote_control(term.output), to_string(type), quote_control(term.target),
              to_string(found));
}

// ---- One term -----------------------------------------------------------------------------------

// [n, classes, …] -> [n, …, classes]
Result<ValueId> classes_last(Builder& build, const LossTerm& term, ValueId logits) {
  const TensorType& type = build.type(logits);
  const auto rank = static_cast<int64_t>(type.shape.size());
  const int64_t dim = term.dim < 0 ? term.dim + rank : term.dim;
  if (rank < 2)
    return fail(term.output_at,
                "loss: logits must be of shape [samples, …, classes], but '{}' is {}",
                quote_control(term.output), to_string(type));
  if (dim < 0 || dim >= rank)
    return fail(term.at, "loss: '{}' is {}, which has no dim {} of classes",
                quote_control(term.output), to_string(type), term.dim);
  if (dim == rank - 1) return logits;
  std::vector<int64_t> perm;
  for (int64_t d = 0; d < rank; ++d)
    if (d != dim) perm.push_back(d);
  perm.push_back(dim);
  return build.transpose(logits, std::move(perm));
}

Result<ValueId> entropy_term(Builder& build, const LossTerm& term, ValueId logits) {
  PIPER_ASSIGN(logits, classes_last(build, term, logits));
  TensorType labels{DType::kI64, build.shape(logits)};
  labels.shape.pop_back();
  PIPER_ASSIGN(ValueId target, find_target(build.graph(), term, labels));
  if (build.type(target).dtype != DType::kI64) target = build.cast(target, DType::kI64);
  const bool widens = term.label_smoothing > 0 && info(build.type(logits).dtype).bytes == 2;
  if (widens) logits = build.cast(logits, DType::kF32);
  return cross_entropy({build, term, logits, target});
}

// Losses of 16-bit values are formed in f32.
Result<ValueId> term_of(Builder& build, const LossTerm& term) {
  PIPER_ASSIGN(ValueId y, find_output(build.graph(), term));
  const Row& row = *std::find_if(std::begin(kRows), std::end(kRows),
                                 [&](const Row& each) { return each.kind == term.kind; });
  if (term.kind == Kind::kCrossEntropy) return entropy_term(build, term, y);
  if (term.kind == Kind::kOutput) return build.reshape(y, {});
  if (info(build.type(y).dtype).bytes == 2) y = build.cast(y, DType::kF32);
  ValueId t;
  if (row.has_target) {
    PIPER_ASSIGN(t, find_target(build.graph(), term, build.type(y)));
    if (build.type(t).dtype != build.type(y).dtype) t = build.cast(t, build.type(y).dtype);
  }
  const Use use{build, term, y, t};
  return reduced(use, row.elements(use),
                 term.kind == Kind::kSum ? Reduction::kSum : term.reduction);
}

// Adds up the parts in the widest type of them, at least f32 where there are several.
ValueId weighted_sum(Builder& build, std::span<const LossTerm> terms,
                     const std::vector<ValueId>& parts) {
  const auto is_f64 = [&](ValueId id) { return build.type(id).dtype == DType::kF64; };
  const DType type = parts.size() == 1                                 ? build.type(parts[0]).dtype
                     : std::any_of(parts.begin(), parts.end(), is_f64) ? DType::kF64
                                                                       : DType::kF32;
  ValueId total;
  for (size_t i = 0; i < parts.size(); ++i) {
    ValueId part = build.type(parts[i]).dtype == type ? parts[i] : build.cast(parts[i], type);
    if (terms[i].weight != 1) part = build.mul(part, build.scalar(terms[i].weight, type));
    total = total.valid() ? build.add(total, part) : part;
  }
  return total;
}

}  // namespace

Result<Graph> add_loss(Graph forward, std::span<const LossTerm> terms) {
  if (forward.inputs.empty()) return fail(terms[0].at, "the model has no inputs");
  Builder build(forward);
  build.scope = "loss";
  build.name_prefix = "loss_";
  std::vector<ValueId> parts;
  for (const LossTerm& term : terms) {
    PIPER_ASSIGN(const ValueId part, term_of(build, term));
    parts.push_back(part);
  }
  const ValueId total = weighted_sum(build, terms, parts);
  forward.loss = total;
  const bool known = std::count(forward.outputs.begin(), forward.outputs.end(), total) > 0;
  if (!known) forward.outputs.push_back(total);
  return forward;
}

}  // namespace piper
