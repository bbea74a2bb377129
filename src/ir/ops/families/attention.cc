// Attention: every query's weighted mean of the values, weights softmax(scores) over the keys.
//   Attention(q, k, v, mask?, first?, first_key?) -> (y, lse)
//   AttentionGrad(q, k, v, y, lse, dy, mask?, first?, first_key?) -> (dq, dk, dv[, dmask])
// Attributes of both:
//   tokens_first  for q, k, v and y: 1 where the dims are [batch, tokens, heads, width], 0 where
//                 they are [batch, heads, tokens, width]
//   scale         of the scores q·k
//   softcap       c > 0: scores become c·tanh(score / c)
//   causal        1: query i sees the keys j ≤ i + offset; first, first_key: the numbers of the
//                 first query and of the first key, or, i64[n], of those of each of n equal
//                 stretches of them: query i of T has the number first[i / (T/n)] + i % (T/n)
//   keys          with first_key: how many there are in all, for which the mask is, or which causal
//                 queries see if there are not as many queries (see `whole`)
//   masked_score  what a score becomes where a boolean mask is false; -∞ when absent
// of Attention: hidden_score, the finite score beside which nothing is left of others, where the
// mask may give it to all keys of a query; and of AttentionGrad: mask_grad, 1 to make dmask.
// The heads of k and v divide those of q: query head h reads key head h / (heads of q / heads of
// k). A mask has four dims, each 1 or that of [batch, heads of q, queries, keys]: booleans, or
// terms added to the scores, of the type of q or, beside f16, in f32: numbers that hide scores are
// beyond the range of f16. A query that sees no key (all its scores -∞) gets 0. lse, the
// logarithm of a query's sum of exponentials, [batch, heads of q, queries], saves the backward op
// the sums: it makes the weights again and never stores all of them (Dao et al., 2022,
// FlashAttention). It is the largest number where no key is seen. With y and lse of all keys, what
// the backward op makes of some of them are terms of dq, and dk and dv of those (Liu et al., 2023,
// Ring Attention). AttentionMerge (attention_merge.cc) makes of parts what it is
// of all keys.

#include <limits>
#include <numeric>

#include "rules.h"

namespace piper {
namespace {

enum Operand : size_t { kQ, kK, kV, kY };

struct AttentionSizes {
  int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, width = 0, v_width = 0;
  int64_t all_keys = 0;  // that the mask is for
  std::vector<int64_t> tokens_first;
  bool causal = false;

  Shape shape(Operand operand) const {
    const int64_t tokens = operand == kK || operand == kV ? keys : queries;
    const int64_t h = operand == kK || operand == kV ? kv_heads : heads;
    const int64_t w = operand == kV || operand == kY ? v_width : width;
    return tokens_first[operand] ? Shape{batch, tokens, h, w} : Shape{batch, h, tokens, w};
  }
  Shape statistics() const { return {batch, heads, queries}; }
};

Status check_heads(const OpTypes& use, const AttentionSizes& s) {
  if (s.shape(kK) != use.inputs[kK].shape || s.shape(kV) != use.inputs[kV].shape)
    return fail("keys and values do not fit the queries: {}", operands(use));
  if (s.all_keys < s.keys) return fail("{} keys of {}", s.keys, s.all_keys);
  if (s.kv_heads < 1 || s.heads < 1 || s.heads % s.kv_heads != 0)
    return fail("{} heads of keys do not divide {} of queries", s.kv_heads, s.heads);
  return ok_status();
}

Result<AttentionSizes> attention_sizes_of(const OpTypes& use) {
  AttentionSizes s;
  PIPER_ASSIGN(s.tokens_first, check_list(use.attrs, "tokens_first", 4));
  const TensorType &q = use.inputs[kQ], &k = use.inputs[kK], &v = use.inputs[kV];
  PIPER_TRY(check_float(use, kQ));
  for (const TensorType* type : {&q, &k, &v}) {
    if (type->dtype != q.dtype || type->shape.size() != 4)
      return fail("the operands must be of one type and four dims, but are {}", operands(use));
  }
  const auto dim = [&](Operand operand, bool tokens) {
    return use.inputs[operand].shape[(s.tokens_first[operand] != 0) == tokens ? 1 : 2];
  };
  s.batch = q.shape[0], s.queries = dim(kQ, true), s.heads = dim(kQ, false), s.width = q.shape[3];
  s.keys = dim(kK, true), s.all_keys = use.attrs.integer("keys", s.keys),
  s.kv_heads = dim(kK, false), s.v_width = v.shape[3];
  s.causal = use.attrs.integer("causal") != 0;
  PIPER_TRY(check_heads(use, s));
  return s;
}

Status check_mask(const OpTypes& use, size_t input, const AttentionSizes& s) {
  if (!has_input(use, input)) return ok_status();
  const TensorType& mask = use.inputs[input];
  const DType dtype = use.inputs[kQ].dtype;
  const bool is_wider = dtype == DType::kF16 && mask.dtype == DType::kF32;
  if (mask.dtype != DType::kBool && mask.dtype != dtype && !is_wider)
    return fail("input {} (mask) must be bool or {}{}, but is {}", input, info(dtype).name,
                dtype == DType::kF16 ? " or f32" : "", to_string(mask));
  const Shape scores{s.batch, s.heads, s.queries, s.all_keys};
  bool fits = mask.shape.size() == 4;
  for (size_t d = 0; fits && d < 4; ++d) fits = mask.shape[d] == 1 || mask.shape[d] == scores[d];
  if (!fits)
    return fail("input {} (mask) {} does not fit {}", input, to_string(mask), to_string(scores));
  return ok_status();
}

// Checks the numbers of the first tokens.
Status check_numbers(const OpTypes& use, size_t first, const AttentionSizes& s) {
  for (const auto& [input, tokens] : {std::pair(first, s.queries), {first + 1, s.keys}}) {
    if (!has_input(use, input) || use.inputs[input].shape.empty()) {
      PIPER_TRY(check_first(use, input));
      continue;
    }
    const TensorType& numbers = use.inputs[input];
    if (numbers.dtype != DType::kI64 || numbers.shape.size() != 1 || numbers.shape[0] < 1 ||
        tokens % numbers.shape[0] != 0)
      return fail("input {} (first) {} is not of equal stretches of {} tokens", input,
                  to_string(numbers), tokens);
  }
  const int64_t whole = use.attrs.integer("whole", 1);
  return whole > 0 ? ok_status() : fail("a part of {} in all", whole);
}

TensorType statistics_type(const OpTypes& use, const AttentionSizes& s) {
  const DType dtype = use.inputs[kQ].dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  return {dtype, s.statistics()};
}

TypesResult attention_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 3, 6));
  PIPER_ASSIGN(const AttentionSizes s, attention_sizes_of(use));
  PIPER_TRY(check_numbers(use, 4, s));
  PIPER_TRY(check_mask(use, 3, s));
  return std::vector<TensorType>{{use.inputs[kQ].dtype, s.shape(kY)}, statistics_type(use, s)};
}

TypesResult attention_grad_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 6, 9));
  PIPER_ASSIGN(const AttentionSizes s, attention_sizes_of(use));
  PIPER_TRY(check_numbers(use, 7, s));
  PIPER_TRY(check_type(use, 3, "y", {use.inputs[kQ].dtype, s.shape(kY)}));
  PIPER_TRY(check_type(use, 4, "lse", statistics_type(use, s)));
  PIPER_TRY(check_type(use, 5, "dy", {use.inputs[kQ].dtype, s.shape(kY)}));
  PIPER_TRY(check_mask(use, 6, s));
  std::vector<TensorType> made{use.inputs[kQ], use.inputs[kK], use.inputs[kV]};
  if (use.attrs.integer("mask_grad") != 0) {
    if (!has_input(use, 6) || !is_float(use.inputs[6].dtype))
      return fail("there is no gradient of a mask that is not added: {}", operands(use));
    made.push_back(use.inputs[6]);
  }
  return made;
}

// Of the keys of a query all of whose scores are the hidden one, each has the weight 1 / n. The
// backward op takes exp(score - lse) for it, which is 1: log n is lost in an lse of that size. All
// that it makes is linear in dy, so dy of such a query is divided by n.
class HiddenQueries {
 public:
  HiddenQueries(Builder& build, const GradientArgs& args) : b_(build), args_(args) {}

  ValueId divided(ValueId dy) {
    const double hidden = args_.attrs.real("hidden_score");
    const ValueId mask = terms();
    const DType dtype = b_.type(mask).dtype;
    const DType exact = dtype == DType::kF64 ? dtype : DType::kF32;
    const ValueId top = b_.op1("ReduceMax", {mask}, over_keys());
    const ValueId is_top = b_.op1("Equal", {mask, top});
    ValueId n = b_.reduce_sum(b_.cast(is_top, exact), {3}, true);
    if (b_.shape(mask)[3] == 1) n = b_.mul(n, b_.scalar(static_cast<double>(keys()), exact));
    const ValueId one = b_.scalar(1, exact);
    const ValueId is_hidden = b_.op1("Less", {top, b_.scalar(hidden / 2, dtype)});
    ValueId share = b_.op1("Where", {is_hidden, b_.div(one, n), one});
    if (tokens_first(kY)) share = b_.transpose(share, {0, 2, 1, 3});
    if (b_.type(dy).dtype != exact) share = b_.cast(share, b_.type(dy).dtype);
    return b_.mul(dy, share);
  }

 private:
  static Attrs over_keys() { return {{"axes", std::vector<int64_t>{3}}, {"keepdims", int64_t{1}}}; }
  bool tokens_first(Operand operand) const {
    return args_.attrs.integers("tokens_first")[operand] != 0;
  }
  int64_t tokens(Operand operand) const {
    return b_.shape(args_.inputs[operand])[tokens_first(operand) ? 1 : 2];
  }
  int64_t keys() const { return tokens(kK); }

  // Returns what the mask adds to the scores, -∞ where no key is seen.
  ValueId terms() {
    ValueId mask = args_.inputs[3];
    const bool is_double = b_.type(args_.inputs[kQ]).dtype == DType::kF64;
    const DType exact = is_double ? DType::kF64 : DType::kF32;  // beyond the range of f16
    if (b_.type(mask).dtype == DType::kBool)
      mask = b_.op1(
          "Where", {mask, b_.scalar(0, exact), b_.scalar(args_.attrs.real("masked_score"), exact)});
    if (args_.attrs.integer("causal") == 0) return mask;
    const ValueId is_seen =
        b_.op1("LessOrEqual", {numbers({1, 1, 1, keys()}, 0),
                               numbers({1, 1, tokens(kQ), 1}, args_.attrs.integer("offset"))});
    const double unseen = -std::numeric_limits<double>::infinity();
    return b_.op1("Where", {is_seen, mask, b_.scalar(unseen, b_.type(mask).dtype)});
  }
  ValueId numbers(const Shape& shape, int64_t first) {
    std::vector<int64_t> all(static_cast<size_t>(num_elements(shape)));
    std::iota(all.begin(), all.end(), first);
    return b_.constant({DType::kI64, shape},
                       Bytes::copy_of(all.data(), all.size() * sizeof(all[0])));
  }

  Builder& b_;
  const GradientArgs& args_;
};

Grads attention_gradient(Builder& build, const GradientArgs& args) {
  if (args.output_grads[1].valid()) return {};  // lse is for the backward op alone
  ValueId dy = args.output_grads[0];
  if (args.attrs.find("hidden_score")) dy = HiddenQueries(build, args).divided(dy);
  std::vector<ValueId> inputs{args.inputs[kQ], args.inputs[kK], args.inputs[kV],
                              args.outputs[0], args.outputs[1], dy};
  Attrs attrs;
  for (const auto& [name, value] : args.attrs.items())
    if (name != "hidden_score") attrs.set(name, value);
  const bool masked = args.inputs.size() > 3 && args.inputs[3].valid();
  if (masked) inputs.push_back(args.inputs[3]);
  if (masked && args.wanted[3]) attrs.set("mask_grad", int64_t{1});
  Grads grads = build.op("AttentionGrad", inputs, attrs);
  grads.resize(args.inputs.size());
  return grads;
}

// Keys of a causal use are whole: a block of them would need another offset.
struct AttentionLetters {
  LoopBuilder build;
  char batch, group, repeat, query, key, masked_key, width, v_width;
  std::vector<int64_t> tokens_first;
  Shape scores;  // that a mask is for

  Dims dims(Operand operand) const {
    const bool of_keys = operand == kK || operand == kV;
    const Dim tokens{of_keys ? key : query};
    const Dim heads = of_keys ? Dim{group} : Dim{group, repeat};
    const Dim last{operand == kV || operand == kY ? v_width : width};
    return tokens_first[operand] ? Dims{{batch}, tokens, heads, last}
                                 : Dims{{batch}, heads, tokens, last};
  }
  Dims statistics() const { return {{batch}, {group, repeat}, {query}}; }
  Dims mask(const OpTypes& use, size_t input) const {
    return use.present[input] ? broadcast_dims({{batch}, {group, repeat}, {query}, {masked_key}},
                                               scores, use.inputs[input].shape)
                              : Dims{};
  }
  // Adds the letters of the operands from `mask_input` on: the mask, and after it the numbers of
  // the first query and key.
  void add_others(const OpTypes& use, size_t mask_input, const AttentionSizes& s) {
    const auto first = static_cast<int>(mask_input) + 1;
    LoopRule& attention_rule = build.rule;
    while (attention_rule.inputs.size() < use.inputs.size())
      attention_rule.inputs.push_back(
          attention_rule.inputs.size() == mask_input
              ? mask(use, mask_input)
              : Dims(use.inputs[attention_rule.inputs.size()].shape.size()));
    if (s.causal) attention_rule.firsts = {{query, first}};
    attention_rule.stretches = true;
    const bool told = has_input(use, mask_input + 2),
               has_keys = has_input(use, mask_input) && use.inputs[mask_input].shape[3] != 1;
    if (told || (!s.causal && !has_keys))
      attention_rule.turns = {query, key, told ? first + 1 : -1};
  }
};

AttentionLetters attention_letters_of(const AttentionSizes& s, bool told) {
  AttentionLetters l;
  l.batch = l.build.letter(s.batch);
  l.group = l.build.letter(s.kv_heads);
  l.repeat = l.build.letter(s.heads / s.kv_heads);
  l.query = l.build.letter(s.queries);
  l.key = s.causal || told ? l.build.whole(s.keys) : l.build.letter(s.keys);
  l.masked_key = told ? l.build.whole(s.all_keys) : l.key;
  l.width = l.build.whole(s.width);
  l.v_width = l.build.whole(s.v_width);
  l.tokens_first = s.tokens_first;
  l.scores = {s.batch, s.heads, s.queries, s.all_keys};
  return l;
}

AttentionSizes sizes_of_checked(const OpTypes& use) {
  Result<AttentionSizes> sizes = attention_sizes_of(use);
  PIPER_CHECK(sizes.ok(), "of an ill-typed {}", "Attention");
  return *std::move(sizes);
}

LoopRule attention_rule(const OpTypes& use) {
  const AttentionSizes s = sizes_of_checked(use);
  AttentionLetters l = attention_letters_of(s, has_input(use, 5));
  l.build.mark_whole(l.key);
  l.build.rule.inputs = {l.dims(kQ), l.dims(kK), l.dims(kV)};
  l.add_others(use, 3, s);
  l.build.rule.outputs = {l.dims(kY), l.statistics()};
  l.build.rule.reduces = LoopRule::kMerge;
  return l.build.rule;
}

// A block of the keys makes a term of dq, a block of the queries one of dk and dv.
LoopRule attention_grad_rule(const OpTypes& use) {
  const AttentionSizes s = sizes_of_checked(use);
  AttentionLetters l = attention_letters_of(s, has_input(use, 8));
  l.build.rule.inputs = {l.dims(kQ), l.dims(kK),     l.dims(kV),
                         l.dims(kY), l.statistics(), l.dims(kY)};
  l.add_others(use, 6, s);
  l.build.rule.outputs = {l.dims(kQ), l.dims(kK), l.dims(kV)};
  if (use.outputs.size() > 3) l.build.rule.outputs.push_back(l.mask(use, 6));
  l.build.rule.linear = {{5}};
  return l.build.rule;
}

// Counts the scores that products compute; causal uses skip the keys that a query does not see.
double scores_computed(const OpTypes& use, const AttentionSizes& s) {
  const auto all = static_cast<double>(s.batch * s.heads) * static_cast<double>(s.queries) *
                   static_cast<double>(s.keys);
  return s.causal && use.attrs.integer("offset") < s.keys ? all / 2 : all;
}
Cost attention_cost(const OpTypes& use) {
  const AttentionSizes s = sizes_of_checked(use);
  return {.flops = 2 * scores_computed(use, s) * static_cast<double>(s.width + s.v_width),
          .is_matmul = true};
}
Cost grad_cost(const OpTypes& use) {
  const AttentionSizes s = sizes_of_checked(use);
  return {.flops = 2 * scores_computed(use, s) * static_cast<double>(3 * s.width + 2 * s.v_width),
          .is_matmul = true};
}

// ---- Samples ----------------------------------------------------------------------------------

struct Sample {
  std::vector<int64_t> tokens_first;
  int64_t queries, keys, heads, kv_heads, width, v_width;
  Attrs more;
  std::optional<TensorType> mask = {};
};

std::vector<Sample> uses() {
  const Attrs causal{{"causal", int64_t{1}}, {"offset", int64_t{0}}};
  const Attrs ahead{{"causal", int64_t{1}}, {"offset", int64_t{1}}};
  const Attrs soft{{"softcap", 1.5}}, low{{"masked_score", -3.0}};
  return {{{0, 0, 0, 0}, 4, 5, 2, 2, 3, 3, {}},
          {{1, 1, 1, 1}, 4, 4, 2, 2, 4, 4, causal},
          {{1, 0, 1, 0}, 3, 4, 4, 2, 3, 5, ahead},
          {{1, 1, 1, 1}, 3, 6, 4, 1, 3, 3, soft, f64({2, 1, 1, 6})},
          {{0, 0, 0, 1}, 4, 4, 2, 2, 3, 3, causal, f64({1, 2, 4, 1})},
          {{0, 1, 0, 1}, 4, 6, 4, 2, 3, 3, low, boolean({2, 1, 4, 6})},
          {{1, 1, 1, 1}, 2, 9, 2, 2, 2, 3, {}, boolean({1, 1, 1, 9})}};
}

OpSample sample_of(const Sample& use, bool grad) {
  AttentionSizes s{2,         use.queries, use.keys, use.heads,       use.kv_heads,
                   use.width, use.v_width, use.keys, use.tokens_first};
  OpSample sample{.inputs = {f64(s.shape(kQ)), f64(s.shape(kK)), f64(s.shape(kV))},
                  .attrs = use.more};
  sample.attrs.set("tokens_first", use.tokens_first);
  sample.attrs.set("scale", 0.7);
  if (grad) {
    sample.inputs.insert(sample.inputs.end(),
                         {f64(s.shape(kY)), f64(s.statistics()), f64(s.shape(kY))});
    sample.low = 0.5;  // of lse, too: the weights stay small
    if (use.mask && is_float(use.mask->dtype)) sample.attrs.set("mask_grad", int64_t{1});
  }
  if (use.mask) sample.inputs.push_back(*use.mask);
  return sample;
}

// These are attributes of a use whose mask is this input: `keys` if it is over these, or if their
// numbers are known, `masked_score` if it is boolean.
template <size_t mask>
OpAttribute keys() {
  return {"keys", kInteger, [](const OpDef&, const OpTypes& use) {
            const bool is_masked = has_input(use, mask) && use.inputs[mask].shape[3] != 1;
            return is_masked || (use.attrs.integer("causal") != 0 && has_input(use, mask + 2));
          }};
}
template <size_t mask>
OpAttribute masked_score() {
  return {"masked_score", kReal, [](const OpDef&, const OpTypes& use) {
            return has_input(use, mask) && use.inputs[mask].dtype == DType::kBool;
          }};
}
OpAttribute offset() {
  return {"offset", kInteger,
          [](const OpDef&, const OpTypes& use) { return use.attrs.integer("causal") != 0; }};
}
}  // namespace

std::vector<OpDef> attention_ops() {
  OpDef def{.name = "Attention",
            .types = attention_types,
            .gradient = attention_gradient,
            .loops = attention_rule};
  def.cost = attention_cost;
  def.autocast = OpDef::Autocast::kLow;
  def.nonzero = {1};
  OpDef grad{.name = "AttentionGrad", .types = attention_grad_types, .loops = attention_grad_rule};
  grad.cost = grad_cost;
  for (const Sample& use : uses()) {
    def.samples.push_back(sample_of(use, false));
    grad.samples.push_back(sample_of(use, true));
  }
  def.attributes = {{"tokens_first", kIntegers},
                    {"scale", kReal},
                    {"softcap", kReal},
                    masked_score<3>(),
                    {"hidden_score", kReal},
                    {"causal"},
                    offset(),
                    keys<3>(),
                    whole_of_parts()};
  grad.attributes = {{"tokens_first", kIntegers},
                     {"scale", kReal},
                     {"softcap", kReal},
                     masked_score<6>(),
                     {"causal"},
                     offset(),
                     keys<6>(),
                     whole_of_parts(),
                     {"mask_grad"}};
  return {def, grad};
}

}  // namespace piper
