// Attention and its gradient against plain loops in double, at the edges of the kernel's blocks.
#include "cpu_harness.h"

namespace piper {
namespace {

using namespace piper::test;
using test::Tensor;  // not that of plans

constexpr double kNone = -std::numeric_limits<double>::infinity();

struct Case {
  int64_t queries, keys;
  int64_t heads = 2, kv_heads = 2, width = 8, v_width = 8;
  bool causal = false;
  int64_t offset = 0;
  std::vector<int64_t> first = {1, 1, 1, 1};  // tokens_first
  double softcap = 0;
  enum Mask { kNoMask, kAdded, kBool, kRowOfAdded } mask = kNoMask;
  double masked = kNone;
  int64_t batch = 2;
  std::vector<int64_t> first_query = {}, first_key = {};  // of equal stretches
  int64_t all_keys = keys;                                // that the mask is for

  std::string name() const {
    return fmt::format("{}x{} heads {}/{} widths {} {} causal {} offset {} cap {} mask {}", queries,
                       keys, heads, kv_heads, width, v_width, causal, offset, softcap,
                       static_cast<int>(mask));
  }
  Shape shape(size_t operand) const {  // q, k, v, y
    const bool of_keys = operand == 1 || operand == 2;
    const int64_t tokens = of_keys ? keys : queries, h = of_keys ? kv_heads : heads;
    const int64_t w = operand > 1 ? v_width : width;
    return first[operand] ? Shape{batch, tokens, h, w} : Shape{batch, h, tokens, w};
  }
  int64_t at(size_t operand, int64_t b, int64_t token, int64_t h, int64_t i) const {
    const bool of_keys = operand == 1 || operand == 2;
    const int64_t tokens = of_keys ? keys : queries, all = of_keys ? kv_heads : heads;
    const int64_t row =
        first[operand] ? (b * tokens + token) * all + h : (b * all + h) * tokens + token;
    return row * (operand > 1 ? v_width : width) + i;
  }
  Shape mask_shape() const {
    return mask == kRowOfAdded ? Shape{1, heads, queries, 1} : Shape{batch, 1, queries, all_keys};
  }
  int64_t mask_at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return mask == kRowOfAdded ? h * queries + i : (b * queries + i) * all_keys + key(j);
  }
  int64_t query(int64_t i) const { return number(first_query, queries, i); }
  int64_t key(int64_t j) const { return number(first_key, keys, j); }
  static int64_t number(const std::vector<int64_t>& first, int64_t tokens, int64_t i) {
    if (first.empty()) return i;
    const int64_t stretch = tokens / static_cast<int64_t>(first.size());
    return first[static_cast<size_t>(i / stretch)] + i % stretch;
  }
  // What tells where tokens begin, behind the input of the mask.
  std::vector<Tensor> numbers() const {
    std::vector<Tensor> made;
    for (const auto* first : {&first_query, &first_key}) {
      const Shape shape = first->size() == 1 ? Shape{} : Shape{std::ssize(*first)};
      if (first->empty() && !first_key.empty()) made.push_back(absent());
      if (!first->empty()) made.push_back({{DType::kI64, shape}, {first->begin(), first->end()}});
    }
    return made;
  }
  Attrs attrs() const {
    Attrs a{{"tokens_first", first}, {"scale", 0.4}};
    if (causal) a.set("causal", int64_t{1}), a.set("offset", offset);
    if (softcap > 0) a.set("softcap", softcap);
    if (masked != kNone) a.set("masked_score", masked);
    if (all_keys != keys && (mask == kAdded || mask == kBool)) a.set("keys", all_keys);
    return a;
  }
};

struct Results {
  Tensor y, lse, dq, dk, dv, dmask;
};

// One query of one head.
struct Row {
  std::vector<double> weights, slope;
  double lse = 0;
};

class Reference {
 public:
  Reference(const Case& c, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask)
      : c_(c), q_(q), k_(k), v_(v), mask_(mask) {}

  Row row(int64_t b, int64_t h, int64_t i) const {
    const int64_t g = h / (c_.heads / c_.kv_heads), n = c_.keys;
    Row r{std::vector<double>(n), std::vector<double>(n, 0.4)};
    double top = kNone, sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      double s = 0;
      for (int64_t x = 0; x < c_.width; ++x)
        s += q_[c_.at(0, b, i, h, x)] * k_[c_.at(1, b, j, g, x)];
      s *= 0.4;
      if (c_.softcap > 0) {
        const double t = std::tanh(s / c_.softcap);
        s = c_.softcap * t;
        r.slope[j] *= 1 - t * t;
      }
      if (c_.mask == Case::kBool && mask_[c_.mask_at(b, h, i, j)] == 0)
        s = c_.masked, r.slope[j] = 0;
      if (c_.mask == Case::kAdded || c_.mask == Case::kRowOfAdded)
        s += mask_[c_.mask_at(b, h, i, j)];
      if (c_.causal && c_.key(j) > c_.query(i) + c_.offset) s = kNone;
      r.weights[j] = s;
      top = std::max(top, s);
    }
    for (double& w : r.weights) sum += w = top == kNone ? 0 : std::exp(w - top);
    for (double& w : r.weights) w = sum > 0 ? w / sum : 0;
    r.lse = top + std::log(sum);
    if (sum == 0)
      r.lse = q_.type.dtype == DType::kF32 ? std::numeric_limits<float>::max()
                                           : std::numeric_limits<double>::max();
    return r;
  }

  Results run(const Tensor& dy) const {
    Results out;
    const auto zeros = [](const Shape& s) {
      return Tensor{{DType::kF64, s}, std::vector<double>(static_cast<size_t>(num_elements(s)))};
    };
    out = {zeros(c_.shape(3)), zeros({c_.batch, c_.heads, c_.queries}),
           zeros(c_.shape(0)), zeros(c_.shape(1)),
           zeros(c_.shape(2)), zeros(c_.mask_shape())};
    for (int64_t b = 0; b < c_.batch; ++b)
      for (int64_t h = 0; h < c_.heads; ++h)
        for (int64_t i = 0; i < c_.queries; ++i) add(b, h, i, dy, out);
    return out;
  }

 private:
  void add(int64_t b, int64_t h, int64_t i, const Tensor& dy, Results& out) const {
    const int64_t g = h / (c_.heads / c_.kv_heads);
    const Row r = row(b, h, i);
    out.lse[(b * c_.heads + h) * c_.queries + i] = r.lse;
    std::vector<double> dp(c_.keys);
    double dot = 0;
    for (int64_t j = 0; j < c_.keys; ++j) {
      for (int64_t x = 0; x < c_.v_width; ++x) {
        out.y[c_.at(3, b, i, h, x)] += r.weights[j] * v_[c_.at(2, b, j, g, x)];
        out.dv[c_.at(2, b, j, g, x)] += r.weights[j] * dy[c_.at(3, b, i, h, x)];
        dp[j] += dy[c_.at(3, b, i, h, x)] * v_[c_.at(2, b, j, g, x)];
      }
      dot += r.weights[j] * dp[j];
    }
    for (int64_t j = 0; j < c_.keys; ++j) {
      const double raw = r.weights[j] * (dp[j] - dot), ds = raw * r.slope[j];
      if (c_.mask == Case::kAdded || c_.mask == Case::kRowOfAdded)
        out.dmask[c_.mask_at(b, h, i, j)] += raw;
      for (int64_t x = 0; x < c_.width; ++x) {
        out.dq[c_.at(0, b, i, h, x)] += ds * k_[c_.at(1, b, j, g, x)];
        out.dk[c_.at(1, b, j, g, x)] += ds * q_[c_.at(0, b, i, h, x)];
      }
    }
  }

  const Case& c_;
  const Tensor &q_, &k_, &v_, &mask_;
};

void compare(const Case& c, DType dtype) {
  SCOPED_TRACE(c.name() + " " + info(dtype).name);
  Random random(20 + static_cast<uint64_t>(c.queries * 7 + c.keys));
  const Tensor q = random.uniform(dtype, c.shape(0), -1, 1),
               k = random.uniform(dtype, c.shape(1), -1, 1),
               v = random.uniform(dtype, c.shape(2), -1, 1),
               dy = random.uniform(dtype, c.shape(3), -1, 1);
  const bool boolean = c.mask == Case::kBool;
  Tensor mask = random.uniform(boolean ? DType::kBool : dtype, c.mask_shape(), boolean ? 0 : -1,
                               boolean ? 2 : 1);
  // Stretches of keys that are all kept, as most are, are looked at many at a time.
  for (size_t i = 0; boolean && i < mask.v.size(); ++i)
    if (i / 20 % 2 == 0) mask.v[i] = 1;
  const Results expected = Reference(c, q, k, v, mask).run(dy);
  const double near = dtype == DType::kF32 ? 4e-6 : 1e-13;
  const TensorType y_type{dtype, c.shape(3)}, lse_type{dtype, {c.batch, c.heads, c.queries}};

  std::vector<Tensor> inputs{q, k, v};
  const auto add_others = [&] {
    const std::vector<Tensor> numbers = c.numbers();
    if (c.mask != Case::kNoMask || !numbers.empty())
      inputs.push_back(c.mask != Case::kNoMask ? mask : absent());
    inputs.insert(inputs.end(), numbers.begin(), numbers.end());
  };
  add_others();
  const std::vector<Tensor> made = run("Attention", c.attrs(), inputs, {y_type, lse_type});
  expect_near(made[0], expected.y.v, near, near, "y");
  expect_near(made[1], expected.lse.v, near, near, "lse");

  inputs = {q, k, v, made[0], made[1], dy};
  std::vector<TensorType> outputs{q.type, k.type, v.type};
  Attrs attrs = c.attrs();
  add_others();
  if (c.mask == Case::kAdded || c.mask == Case::kRowOfAdded) {
    attrs.set("mask_grad", int64_t{1});
    outputs.push_back(mask.type);
  }
  const std::vector<Tensor> grads = run("AttentionGrad", attrs, inputs, outputs);
  const double sums = near * 4;  // of as many terms as there are queries
  expect_near(grads[0], expected.dq.v, sums, sums, "dq");
  expect_near(grads[1], expected.dk.v, sums, sums, "dk");
  expect_near(grads[2], expected.dv.v, sums, sums, "dv");
  if (grads.size() > 3) expect_near(grads[3], expected.dmask.v, sums, sums, "dmask");
}

void compare_both(const Case& c) {
  compare(c, DType::kF32);
  compare(c, DType::kF64);
}

TEST(Attention, AtTheEdgesOfBlocks) {
  for (int64_t tokens : {1, 7, 8, 11, 12, 13, 16, 17, 31, 33, 63, 64, 65, 128, 200}) {
    compare_both({.queries = tokens, .keys = tokens, .causal = true});
    compare_both({.queries = tokens, .keys = tokens});
  }
  compare_both({.queries = 5, .keys = 200, .causal = true, .offset = 195});
  compare_both({.queries = 130, .keys = 33, .causal = true});
}

TEST(Attention, OfAnyWidth) {
  for (int64_t width : {1, 3, 16, 20, 32, 40, 64, 72})
    compare_both({.queries = 19,
                  .keys = 35,
                  .width = width,
                  .v_width = 75 - width,
                  .causal = true,
                  .offset = 16});
}

// All keys weigh the same, or values are nothing, for every head.
TEST(Attention, OfNoWidth) {
  for (const int64_t kv_heads : {1, 2}) {
    compare_both({.queries = 19, .keys = 35, .kv_heads = kv_heads, .width = 0});
    compare_both({.queries = 19, .keys = 35, .kv_heads = kv_heads, .v_width = 0});
    compare_both({.queries = 19, .keys = 19, .kv_heads = kv_heads, .width = 0, .causal = true});
  }
}

TEST(Attention, OverSeveralBlocksOfKeys) {
  compare_both({.queries = 70, .keys = 1100, .width = 4, .v_width = 4, .batch = 1});
  compare_both({.queries = 700, .keys = 700, .width = 4, .v_width = 4, .causal = true, .batch = 1});
  compare_both({.queries = 530,
                .keys = 1030,
                .heads = 2,
                .kv_heads = 1,
                .width = 4,
                .v_width = 4,
                .causal = true,
                .offset = 500,
                .batch = 1});
  compare_both({.queries = 66,
                .keys = 640,
                .width = 4,
                .v_width = 4,
                .causal = true,
                .offset = 600,
                .softcap = 1.5,
                .mask = Case::kAdded,
                .batch = 1});
}

TEST(Attention, WhereSomeQueriesOrKeysSeeNothing) {
  compare_both({.queries = 40, .keys = 40, .causal = true, .offset = -17});
  compare_both({.queries = 40, .keys = 40, .causal = true, .offset = -64});
  compare_both({.queries = 9, .keys = 600, .causal = true, .offset = 3});
  compare_both({.queries = 600,
                .keys = 20,
                .heads = 1,
                .kv_heads = 1,
                .causal = true,
                .offset = -550,
                .batch = 1});
}

TEST(Attention, OfGroupedHeadsInEitherOrder) {
  compare_both({.queries = 21, .keys = 37, .heads = 6, .kv_heads = 2});
  compare_both({.queries = 21,
                .keys = 37,
                .heads = 4,
                .kv_heads = 1,
                .causal = true,
                .offset = 16,
                .first = {0, 1, 0, 1}});
  compare_both({.queries = 64,
                .keys = 64,
                .heads = 4,
                .kv_heads = 2,
                .causal = true,
                .first = {0, 0, 1, 0}});
}

TEST(Attention, WithMasksAndCaps) {
  for (const Case::Mask mask : {Case::kAdded, Case::kBool, Case::kRowOfAdded}) {
    compare_both({.queries = 21, .keys = 37, .mask = mask});
    compare_both({.queries = 37, .keys = 37, .causal = true, .softcap = 2, .mask = mask});
  }
  compare_both({.queries = 21, .keys = 37, .softcap = 0.7});
  compare_both({.queries = 21, .keys = 37, .mask = Case::kBool, .masked = -2});
}

// Tokens whose numbers are those of several stretches, as a rank of a ring has them.
TEST(Attention, OfTokensInStretches) {
  for (const Case::Mask mask : {Case::kNoMask, Case::kAdded, Case::kBool}) {
    // All keys; keys of the own rank, and of those before and behind it.
    compare_both({.queries = 10, .keys = 40, .causal = true, .mask = mask, .first_query = {5, 30}});
    for (const int64_t r : {0, 1, 2, 3})
      compare_both({.queries = 20,
                    .keys = 20,
                    .causal = true,
                    .mask = mask,
                    .first_query = {10, 60},
                    .first_key = {10 * r, 70 - 10 * r},
                    .all_keys = 80});
    compare_both(
        {.queries = 14, .keys = 21, .mask = mask, .first_key = {7, 14, 0}, .all_keys = 24});
  }
  // Stretches of several blocks, and with keys that come in any order.
  compare_both({.queries = 300,
                .keys = 1200,
                .heads = 1,
                .kv_heads = 1,
                .causal = true,
                .batch = 1,
                .first_query = {600, 1650},
                .first_key = {1050, 0, 2000, 600}});
  compare_both({.queries = 300,
                .keys = 300,
                .kv_heads = 1,
                .causal = true,
                .softcap = 2,
                .batch = 1,
                .first_query = {0, 1050},
                .first_key = {150, 900}});
}

TEST(Attention, HasTheSameBitsInABatchAndAlone) {
  const Case both{
      .queries = 37, .keys = 53, .width = 20, .v_width = 20, .causal = true, .offset = 16};
  Case alone = both;
  alone.batch = 1;
  Random random(3);
  std::vector<Tensor> whole, half;
  for (size_t i = 0; i < 3; ++i) {
    whole.push_back(random.uniform(DType::kF32, both.shape(i), -1, 1));
    half.push_back(whole.back());
    half.back().type.shape[0] = 1;
    half.back().v.erase(half.back().v.begin(), half.back().v.begin() + half.back().v.size() / 2);
  }
  const auto outputs = [](const Case& c) {
    return std::vector<TensorType>{{DType::kF32, c.shape(3)},
                                   {DType::kF32, {c.batch, c.heads, c.queries}}};
  };
  const auto a = run("Attention", both.attrs(), whole, outputs(both));
  const auto b = run("Attention", alone.attrs(), half, outputs(alone));
  for (size_t o = 0; o < 2; ++o)
    EXPECT_TRUE(std::equal(b[o].v.begin(), b[o].v.end(), a[o].v.begin() + a[o].v.size() / 2)) << o;
}

// Neighbouring numbers of their type are thousands apart there: the largest score's weight is 1, as
// it is 0 above itself.
TEST(Attention, OfScoresBeyondWhatTheirTypeCounts) {
  for (const DType dtype : {DType::kF32, DType::kF64})
    for (const Case::Mask kind : {Case::kNoMask, Case::kAdded, Case::kRowOfAdded, Case::kBool})
      for (const double loud : {1e6, 1e9, 1e11, 1e17}) {
        Case c{.queries = 19, .keys = 35, .causal = true, .offset = 16, .mask = kind};
        SCOPED_TRACE(fmt::format("{} {} times {}", c.name(), info(dtype).name, loud));
        Random random(7);
        Tensor q = random.uniform(dtype, c.shape(0), -1, 1),
               k = random.uniform(dtype, c.shape(1), -1, 1),
               v = random.uniform(dtype, c.shape(2), -1, 1),
               dy = random.uniform(dtype, c.shape(3), -1, 1);
        const DType of_mask = kind == Case::kBool ? DType::kBool : dtype;
        const Tensor mask = random.uniform(of_mask, c.mask_shape(), 0, 2);
        for (double& x : q.v) x = dtype == DType::kF32 ? static_cast<float>(x * loud) : x * loud;
        const Results expected = Reference(c, q, k, v, mask).run(dy);
        std::vector<Tensor> inputs{q, k, v};
        if (kind != Case::kNoMask) inputs.push_back(mask);
        const TensorType y{dtype, c.shape(3)}, lse{dtype, {c.batch, c.heads, c.queries}};
        const std::vector<Tensor> made = run("Attention", c.attrs(), inputs, {y, lse});
        expect_near(made[0], expected.y.v, 1e-5, 1e-5, "y");
        expect_near(made[1], expected.lse.v, 1e-5, 1e-5, "lse");
        inputs = {q, k, v, made[0], made[1], dy};
        if (kind != Case::kNoMask) inputs.push_back(mask);
        Attrs attrs = c.attrs();
        std::vector<TensorType> outputs{q.type, k.type, v.type};
        for (const bool with_mask : {false, true}) {
          if (with_mask && kind != Case::kAdded && kind != Case::kRowOfAdded) continue;
          if (with_mask) attrs.set("mask_grad", int64_t{1}), outputs.push_back(mask.type);
          const std::vector<Tensor> grads = run("AttentionGrad", attrs, inputs, outputs);
          expect_near(grads[2], expected.dv.v, 1e-5, 1e-5, "dv");
        }
      }
}

TEST(Attention, OfAScaleBelowZero) {
  const Case c{.queries = 19, .keys = 35};
  Random random(8);
  const Tensor q = random.uniform(DType::kF32, c.shape(0), -1, 1),
               k = random.uniform(DType::kF32, c.shape(1), -1, 1),
               v = random.uniform(DType::kF32, c.shape(2), -1, 1),
               dy = random.uniform(DType::kF32, c.shape(3), -1, 1);
  Tensor turned = q;
  for (double& x : turned.v) x = -x;
  Attrs below = c.attrs();
  below.set("scale", -0.4);
  const TensorType y{DType::kF32, c.shape(3)}, lse{DType::kF32, {c.batch, c.heads, c.queries}};
  const std::vector<Tensor> expected = run("Attention", c.attrs(), {turned, k, v}, {y, lse}),
                            made = run("Attention", below, {q, k, v}, {y, lse});
  expect_near(made[0], expected[0].v, 4e-6, 4e-6, "y");
  const std::vector<TensorType> types{q.type, k.type, v.type};
  const auto gradients = [&](const Attrs& attrs, const Tensor& queries, const auto& of) {
    return run("AttentionGrad", attrs, {queries, k, v, of[0], of[1], dy}, types);
  };
  const std::vector<Tensor> wanted = gradients(c.attrs(), turned, expected),
                            grads = gradients(below, q, made);
  for (size_t i = 1; i < 3; ++i)
    expect_near(grads[i], wanted[i].v, 2e-5, 2e-5, "of keys and values");
}

TEST(Attention, PassesNaNOn) {
  const Case c{.queries = 9, .keys = 20};
  Random random(5);
  Tensor q = random.uniform(DType::kF32, c.shape(0), -1, 1),
         k = random.uniform(DType::kF32, c.shape(1), -1, 1);
  k[c.at(1, 0, 3, 1, 2)] = std::numeric_limits<double>::quiet_NaN();
  const auto made =
      run("Attention", c.attrs(), {q, k, k}, {{DType::kF32, c.shape(3)}, {DType::kF32, {2, 2, 9}}});
  for (int64_t i = 0; i < 9; ++i) {
    EXPECT_TRUE(std::isnan(made[1][9 + i])) << i;    // head 1 of sample 0
    EXPECT_FALSE(std::isnan(made[1][18 + i])) << i;  // head 0 of sample 1
  }
}

}  // namespace
}  // namespace piper
