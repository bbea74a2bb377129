// Ops that draw random numbers: Random, and Dropout, which multiplies by a random mask.
//
// The number of an element depends on the key (of the seed and the op), the step and the element's
// place in the whole tensor of the whole batch, and on nothing else: Philox 4x32-10 with the
// counter (place / 4, step) makes four words, the element takes word place % 4. So every strategy
// draws the same. Dropout's gradient draws its mask again: nothing is stored for it, and a mask
// costs less to make than to read back from memory.
//
//   inputs: key i64[], step i64[], and, where the batch is cut, samples i64[n]: the numbers of the
//   samples in the global batch; n of them are one shard. Attributes of a cut use: `rows` runs of
//   equal length are what the shard has of the whole, in which `shards` such runs are after each
//   other. `cuts` has the same two numbers for each mesh axis that cuts the use, in the order in
//   which they do; of each an input follows, i64[]: its own number along it. Negative `rows` are so
//   many of which every second one has the runs from its end. `zeros` has three numbers for each
//   time that a dim went on into zeros: after how many cuts, and in how many stretches, of what was
//   there then, so many elements more. They are drawn like others.
#include "rules.h"

namespace piper {
namespace {

// Takes away the zeros that were put there after c cuts.
Status take_zeros(const std::vector<int64_t>& zeros, size_t c, int64_t& elements) {
  for (size_t z = zeros.size() / 3; z-- > 0;) {
    if (zeros[3 * z] != static_cast<int64_t>(c)) continue;
    const int64_t rows = zeros[3 * z + 1], behind = zeros[3 * z + 2];
    if (rows < 1 || behind < 0 || elements % rows != 0 || behind >= elements / rows)
      return fail("{} zeros after {} rows of {} elements", behind, rows, elements);
    elements -= rows * behind;
  }
  return ok_status();
}

// Checks what `cuts` and `zeros` leave, the last cut first: whether each is made of whole runs, of
// which the samples are `rows`.
Status check_runs(const Attrs& attrs, int64_t elements) {
  const std::vector<int64_t> cuts = attrs.integers("cuts"), zeros = attrs.integers("zeros");
  if (zeros.size() % 3 != 0) return fail("{} numbers of zeros", zeros.size());
  for (size_t c = cuts.size() / 2 + 1; c-- > 0;) {  // what was there after c cuts
    PIPER_TRY(take_zeros(zeros, c, elements));
    if (c == 0) break;
    const int64_t rows = cuts[2 * c - 2], parts = cuts[2 * c - 1];
    if (rows == 0 || rows < -INT64_MAX || parts < 1 || elements % rows != 0 ||
        elements > INT64_MAX / parts)
      return fail("{} parts of {} rows of {} elements", parts, rows, elements);
    elements *= parts;
  }
  const int64_t rows = attrs.integer("rows", 1), shards = attrs.integer("shards", 1);
  if (rows < 1 || shards < 1 || elements % rows != 0)
    return fail("{} rows of {} shards are no part of {} elements", rows, shards, elements);
  return ok_status();
}

// Checks the inputs [draws, …) of a use whose result has these elements.
Status check_draws(const OpTypes& use, size_t draws, const Shape& shape) {
  PIPER_TRY(check_type(use, draws, "key", {DType::kI64, {}}));
  PIPER_TRY(check_type(use, draws + 1, "step", {DType::kI64, {}}));
  const std::vector<int64_t> cuts = use.attrs.integers("cuts");
  const size_t axes = use.inputs.size() - std::min(use.inputs.size(), draws + 3);
  if (cuts.size() != 2 * axes) return fail("{} numbers of cuts for {} axes", cuts.size(), axes);
  PIPER_TRY(check_runs(use.attrs, num_elements(shape)));
  for (size_t i = draws + 3; i < use.inputs.size(); ++i)
    PIPER_TRY(check_type(use, i, "number along an axis", {DType::kI64, {}}));
  if (!has_input(use, draws + 2)) return ok_status();
  const TensorType& samples = use.inputs[draws + 2];
  if (samples.dtype == DType::kI64 && samples.shape.size() == 1 && samples.shape[0] > 0)
    return ok_status();
  return fail("input {} (samples) must be i64[n], but is {}", draws + 2, to_string(samples));
}

// Gives letters to the result only; key, step and numbers of parts have none.
LoopRule draw_loops(const OpTypes& use, size_t draws) {
  LoopBuilder build;
  const Dims dims = build.letters(use.outputs[0].shape);
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const size_t rank = use.inputs[i].shape.size();
    build.rule.inputs.push_back(i < draws ? dims : Dims(rank));
  }
  build.rule.outputs = {dims};
  return std::move(build.rule);
}

TypesResult random_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 2, size_t(-1)));
  PIPER_ASSIGN(Shape shape, check_shape(use.attrs, "shape"));
  PIPER_TRY(check_draws(use, 0, shape));
  const std::string name = use.attrs.text("dtype"), kind = use.attrs.text("distribution");
  const std::optional<DType> dtype = parse_dtype(name);
  if (!dtype || !is_float(*dtype)) return fail("draws no numbers of '{}'", quote_control(name));
  if (kind != "uniform" && kind != "normal") {
    return fail("'{}' is not a distribution: there are uniform and normal", quote_control(kind));
  }
  return std::vector<TensorType>{{*dtype, std::move(shape)}};
}

LoopRule random_loops(const OpTypes& use) { return draw_loops(use, 0); }

TypesResult dropout_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, size_t(-1)));
  PIPER_TRY(check_float(use, 0));
  PIPER_TRY(check_draws(use, 1, use.inputs[0].shape));
  const double ratio = use.attrs.real("ratio", 0.5);
  if (!(ratio >= 0 && ratio <= 1)) return fail("the ratio {} is not between 0 and 1", ratio);
  return std::vector<TensorType>{use.inputs[0]};
}

LoopRule dropout_loops(const OpTypes& use) {
  LoopRule rule = draw_loops(use, 1);
  rule.linear = {{0}};
  return rule;
}

// Returns the same mask, of the same key, step and samples.
Grads dropout_gradient(Builder& build, const GradientArgs& args) {
  std::vector<ValueId> inputs(args.inputs.begin(), args.inputs.end());
  inputs[0] = args.output_grads[0];
  Grads grads(args.inputs.size());
  grads[0] = build.op1("Dropout", std::move(inputs), args.attrs);
  return grads;
}

Attrs drawn(std::string_view distribution, double shift, double scale) {
  return {{"shape", Shape{4, 6}},
          {"dtype", "f64"},
          {"distribution", std::string(distribution)},
          {"shift", shift},
          {"scale", scale}};
}

}  // namespace

std::vector<OpDef> random_ops() {
  OpDef random{.name = "Random", .types = random_types, .loops = random_loops};
  random.cost = element_cost<20>;
  random.localise = localise_shape;
  random.draws = 0;
  random.samples = {{.inputs = {i64({}), i64({})}, .attrs = drawn("uniform", -1, 3)},
                    {.inputs = {i64({}), i64({})}, .attrs = drawn("normal", 0.5, 2)}};
  OpDef dropout{.name = "Dropout",
                .types = dropout_types,
                .gradient = dropout_gradient,
                .loops = dropout_loops};
  dropout.cost = element_cost<20>;
  dropout.in_place = {{0, 0}};
  dropout.draws = 1;
  dropout.samples = {{.inputs = {f64({4, 6}), i64({}), i64({})}, .attrs = {{"ratio", 0.4}}},
                     {.inputs = {f64({2, 3, 2}), i64({}), i64({})}, .attrs = {{"ratio", 1.0}}}};
  random.attributes = {{"shape", kIntegers}, {"dtype", kText},    {"distribution", kText},
                       {"shift", kReal},     {"scale", kReal},    {"rows"},
                       {"shards"},           {"cuts", kIntegers}, {"zeros", kIntegers}};
  dropout.attributes = {
      {"ratio", kReal}, {"rows"}, {"shards"}, {"cuts", kIntegers}, {"zeros", kIntegers}};
  return {random, dropout};
}

}  // namespace piper
