// Ops that draw random numbers.
#include <bit>
#include <charconv>

#include "piper/frontend/onnx.h"
#include "rule.h"

namespace piper::onnx_import {
namespace {

// Seeds of ops are floats; they are no seeds of strategies, so that none is another's by chance.
std::optional<uint64_t> own_seed(const RuleContext& c) {
  constexpr uint64_t kOwn = uint64_t{1} << 63, kInteger = uint64_t{1} << 62;  // as Dropout has it
  if (const auto seed = c.read<int64_t>("seed"))
    return kOwn | kInteger | (static_cast<uint64_t>(*seed) & (kInteger - 1));
  const auto seed = c.read<double>("seed");
  if (!seed) return std::nullopt;
  return kOwn | std::bit_cast<uint32_t>(static_cast<float>(*seed));
}

Result<DType> float_type(const RuleContext& c, DType otherwise) {
  if (!c.has_attr("dtype")) return otherwise;
  const std::optional<DType> dtype = dtype_of_code(c.integer("dtype", 0));
  if (dtype && info(*dtype).is_float) return *dtype;
  return c.error("elements of {} are not supported", type_name(c.integer("dtype", 0)));
}

struct Distribution {
  const char* name;
  double shift, scale;
};
Result<Val> random(RuleContext& c, const Emitter::Draw& draw, const TensorType& type,
                   const Distribution& of) {
  PIPER_TRY(c.check_shape(type.shape));
  return c.op("Random", {draw.key, draw.step},
              {{"shape", type.shape},
               {"dtype", std::string(info(type.dtype).name)},
               {"distribution", std::string(of.name)},
               {"shift", of.shift},
               {"scale", of.scale}});
}

Distribution distribution_of(const RuleContext& c) {
  if (c.node.op.starts_with("RandomNormal")) {
    return {"normal", c.real("mean", 0), c.real("scale", 1)};
  }
  const double low = c.real("low", 0);
  return {"uniform", low, c.real("high", 1) - low};
}

Result<Vals> random_of_shape(RuleContext& c) {
  PIPER_TRY(c.need(0, 0));
  PIPER_ASSIGN(const DType dtype, float_type(c, DType::kF32));
  return single(
      random(c, c.emit.draw(own_seed(c)), {dtype, c.integers("shape")}, distribution_of(c)));
}

Result<Vals> random_like(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  PIPER_ASSIGN(const DType dtype, float_type(c, x.dtype));
  if (!info(dtype).is_float) return c.error("numbers of {} are not supported", info(dtype).name);
  return single(random(c, c.emit.draw(own_seed(c)), {dtype, x.shape}, distribution_of(c)));
}

Result<Vals> bernoulli(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& p = c.in(0);
  if (!info(p.dtype).is_float) return c.error("needs probabilities, got {}", info(p.dtype).name);
  const std::optional<DType> dtype =
      c.has_attr("dtype") ? dtype_of_code(c.integer("dtype", 0)) : std::optional(p.dtype);
  if (!dtype) return c.error("elements of {} are not supported", type_name(c.integer("dtype", 0)));
  PIPER_ASSIGN(const Val drawn,
               random(c, c.emit.draw(own_seed(c)), {p.dtype, p.shape}, {"uniform", 0, 1}));
  PIPER_ASSIGN(const Val hit, c.pointwise("Less", {drawn, p}));
  PIPER_ASSIGN(Val y, c.cast(hit, *dtype));
  y.narrow = narrow_of_code(c.integer("dtype", 0));
  return Vals{std::move(y)};
}

// Returns numbers of Gumbel's distribution with the other sign: log(-log u).
Result<Val> gumbel_noise(RuleContext& c, const TensorType& type) {
  PIPER_ASSIGN(Val noise, random(c, c.emit.draw(own_seed(c)), type, {"uniform", 0, 1}));
  PIPER_ASSIGN(noise, c.pointwise("Log", {noise}));
  PIPER_ASSIGN(noise, c.pointwise("Neg", {noise}));
  return c.pointwise("Log", {noise});
}

// Draws by log-probabilities x [n, classes], up to a constant for each row: the class in which x
// with noise of Gumbel's distribution is largest is drawn by its probability (Maddison et al., A*
// sampling, 2014).
Result<Vals> multinomial(RuleContext& c) {
  PIPER_TRY(c.need(1, 1));
  const Val& x = c.in(0);
  const int64_t count = c.integer("sample_size", 1);
  const std::optional<DType> dtype = dtype_of_code(c.integer("dtype", 6));  // i32
  if (x.rank() != 2 || x.shape[1] < 1 || count < 1 || !info(x.dtype).is_float)
    return c.error("cannot draw {} from {}", count, to_string(x.shape));
  if (dtype != DType::kI32 && dtype != DType::kI64)
    return c.error("numbers of type {} are not supported", c.integer("dtype", 6));
  const TensorType type{DType::kF64, {x.shape[0], count, x.shape[1]}};
  PIPER_ASSIGN(const Val noise, gumbel_noise(c, type));
  PIPER_ASSIGN(Val logits, c.reshape(x, {x.shape[0], 1, x.shape[1]}));
  PIPER_ASSIGN(logits, c.cast(logits, DType::kF64));
  PIPER_ASSIGN(const Val noisy, c.pointwise("Sub", {logits, noise}));
  PIPER_ASSIGN(
      const Vals best,
      c.ops("TopK", {noisy}, {{"axis", int64_t{2}}, {"k", int64_t{1}}, {"largest", int64_t{1}}}));
  PIPER_ASSIGN(const Val drawn, c.reshape(best[1], {x.shape[0], count}));
  return single(c.cast(drawn, *dtype));
}

std::optional<double> known_number(const Val& v) {
  if (!v.is_constant() || num_elements(v.stored) != 1) return std::nullopt;
  return read_number(v.data, v.dtype, 0);
}

// Returns the dropout of scaled_dot_product_attention(query, key, value, mask, dropout_p, …): 0 for
// all other calls.
double ratio_of_attention(const RuleContext& c) {
  const auto call = parse_call(find_metadata(c.node.metadata, "pkg.torch.onnx.fx_node"));
  double ratio = 0;
  if (!call || call->function != kAttentionCall || call->words.size() < 5) return 0;
  const std::string& word = call->words[4];
  std::from_chars(word.data(), word.data() + word.size(), ratio);
  return ratio > 0 && ratio < 1 ? ratio : 0;
}

Status check_dropout(RuleContext& c, const std::optional<double>& training,
                     const std::optional<double>& ratio, DType dtype) {
  if (!training || !ratio) {
    return c.error("its {} must be known when the model is compiled", training ? "ratio" : "mode");
  }
  if (!(*ratio > 0 && *ratio < 1)) return c.error("its ratio {} is not in [0, 1)", *ratio);
  if (!info(dtype).is_float) return c.error("of {} is not supported", info(dtype).name);
  return ok_status();
}

// Returns the mask that Dropout has drawn (nobody makes it where nobody reads it).
Result<Val> drawn_mask(RuleContext& c, const Emitter::Draw& draw, const Shape& shape,
                       double ratio) {
  const TensorType type{DType::kF64, shape};
  PIPER_ASSIGN(const Val drawn, random(c, draw, type, {"uniform", 0, 1}));
  return c.pointwise("GreaterOrEqual", {drawn, c.number(ratio, drawn)});
}

// It trains where it is told so: from opset 12 on by an input, before opset 7 by not being told
// that it tests, and between them never.
Result<Vals> dropout(RuleContext& c) {
  PIPER_TRY(c.need(1, 3));
  const Val& x = c.in(0);
  const bool trains = c.opset < 7 && c.integer("is_test", 0) == 0;
  const std::optional<double> training = c.has(2) ? known_number(c.in(2)) : trains ? 1.0 : 0.0;
  const std::optional<double> ratio = c.has(1) ? known_number(c.in(1)) : c.real("ratio", 0.5);
  const bool done = ratio_of_attention(c) > 0;  // see with_attention_dropout()
  const std::optional<uint64_t> seed = own_seed(c);
  if (training == 0.0 || ratio == 0.0 || done) {
    PIPER_ASSIGN(Val kept, c.expand(number_val(1, DType::kBool), x.shape));
    return Vals{x, std::move(kept)};
  }
  PIPER_TRY(check_dropout(c, training, ratio, x.dtype));
  const Emitter::Draw draw = c.emit.draw(seed);
  PIPER_ASSIGN(Val y, c.op("Dropout", {x, draw.key, draw.step}, {{"ratio", *ratio}}));
  if (c.node.outputs.size() < 2) return Vals{std::move(y)};
  PIPER_ASSIGN(Val mask, drawn_mask(c, draw, x.shape, *ratio));
  return Vals{std::move(y), std::move(mask)};
}

constexpr ImportRule kRandomRules[] = {
    {"Bernoulli", 15, kNewest, bernoulli},
    {"Dropout", 1, kNewest, dropout, "with a known mode and ratio"},
    {"Multinomial", 7, kNewest, multinomial},
    {"RandomNormal", 1, kNewest, random_of_shape},
    {"RandomNormalLike", 1, kNewest, random_like},
    {"RandomUniform", 1, kNewest, random_of_shape},
    {"RandomUniformLike", 1, kNewest, random_like},
};

}  // namespace

Result<Val> with_attention_dropout(RuleContext& c, const Val& weights) {
  const double ratio = ratio_of_attention(c);
  if (ratio == 0) return weights;
  const Emitter::Draw draw = c.emit.draw(std::nullopt);
  return c.op("Dropout", {weights, draw.key, draw.step}, {{"ratio", ratio}});
}

std::span<const ImportRule> random_rules() { return kRandomRules; }

}  // namespace piper::onnx_import
