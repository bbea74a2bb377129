// Attention by blocks of queries: the scores of one block for all keys that it sees are made,
// used and forgotten, forward and backward, so that memory grows with the number of keys alone.
// A causal block skips the keys behind its last query's.
#include <algorithm>
#include <limits>

#include "families.h"
#include "gemm.h"
#include "piper/backend.h"
#include "rows.h"

namespace piper::cpu {
namespace {

constexpr int64_t kBlock = 64;                         // of queries, at most
constexpr int64_t kMaxPackedBytes = int64_t{1} << 20;  // they shall stay in a near cache

// An operand of [batch, tokens, heads, width] in either order: elements between neighbours.
struct Strides {
  int64_t batch = 0, token = 0, head = 0;
};

struct Form {
  int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, width = 0, v_width = 0;
  Strides q, k, v, y;
  double scale = 1, softcap = 0, masked = 0;
  bool causal = false;
  int64_t offset = 0;
  bool masks = false, adds = false;  // a mask of booleans; of terms
  int64_t mask[4] = {};              // elements between neighbours, 0 where it is repeated
  int64_t mask_elements = 0;

  int64_t seen_by(int64_t query) const {
    return causal ? std::clamp<int64_t>(query + offset + 1, 0, keys) : keys;
  }
};

Status read_mask(const Use& use, size_t input, Form& f) {
  if (use.inputs.size() <= input || !use.present[input]) return ok_status();
  const Shape& shape = use.in(input);
  const Shape scores{f.batch, f.heads, f.queries, f.keys};
  f.masks = use.inputs[input].dtype == DType::kBool;
  f.adds = !f.masks;
  PIPER_WANT(f.masks || use.inputs[input].dtype == use.type(), "mask {}",
             to_string(use.inputs[input]));
  PIPER_WANT(shape.size() == 4, "mask {}", to_string(shape));
  f.mask_elements = num_elements(shape);
  for (size_t d = 0; d < 4; ++d) {
    PIPER_WANT(shape[d] == 1 || shape[d] == scores[d], "mask {} for {}", to_string(shape),
               to_string(scores));
    f.mask[d] = shape[d] == 1 ? 0 : extent(shape, d + 1, 4);
  }
  return ok_status();
}

Status read_attributes(const Use& use, Form& f) {
  PIPER_ASSIGN(f.scale, use.real_or("scale", 1));
  PIPER_ASSIGN(f.softcap, use.real_or("softcap", 0));
  PIPER_ASSIGN(f.masked, use.real_or("masked_score", -std::numeric_limits<double>::infinity()));
  PIPER_ASSIGN(const int64_t causal, use.integer_or("causal", 0));
  PIPER_ASSIGN(f.offset, use.integer_or("offset", 0));
  f.causal = causal != 0;
  return ok_status();
}

// The form of a use whose first inputs are q, k, v and whose mask, if any, is `mask`; y is `y`.
Result<Form> form_of(const Use& use, size_t mask, const TensorType& y) {
  Form f;
  PIPER_ASSIGN(const auto first, use.integers("tokens_first"));
  PIPER_WANT(first.size() == 4, "tokens_first {}", to_string(first));
  int64_t tokens[4], heads[4], widths[4];
  Strides* strides[] = {&f.q, &f.k, &f.v, &f.y};
  for (size_t i = 0; i < 4; ++i) {
    const TensorType& type = i < 3 ? use.inputs[i] : y;
    PIPER_WANT(type.shape.size() == 4 && type.dtype == use.type() && type.shape[0] == use.in(0)[0],
               "of {}", to_string(type));
    tokens[i] = type.shape[first[i] ? 1 : 2];
    heads[i] = type.shape[first[i] ? 2 : 1];
    widths[i] = type.shape[3];
    strides[i]->batch = tokens[i] * heads[i] * widths[i];
    strides[i]->token = first[i] ? heads[i] * widths[i] : widths[i];
    strides[i]->head = first[i] ? widths[i] : tokens[i] * widths[i];
  }
  PIPER_WANT(tokens[0] == tokens[3] && tokens[1] == tokens[2] && heads[0] == heads[3] &&
                 heads[1] == heads[2] && heads[1] > 0 && heads[0] % heads[1] == 0 &&
                 widths[0] == widths[1] && widths[2] == widths[3],
             "of {}, {} and {} to {}", to_string(use.in(0)), to_string(use.in(1)),
             to_string(use.in(2)), to_string(y.shape));
  f.batch = use.in(0)[0], f.queries = tokens[0], f.keys = tokens[1], f.heads = heads[0];
  f.kv_heads = heads[1], f.width = widths[0], f.v_width = widths[2];
  PIPER_TRY(read_attributes(use, f));
  PIPER_TRY(read_mask(use, mask, f));
  return f;
}

template <class T>
class Attention {
 public:
  explicit Attention(const Form& form)
      : f(form), fns(attention_fns<T>()), gemm(gemm_fn<T>()), pack(gemm_pack_fn<T>()) {
    packs = packed_size(true) * static_cast<int64_t>(sizeof(T)) <= kMaxPackedBytes;
    block = std::min(kBlock, f.queries);
    while (block > 1 && scratch(true) * static_cast<int64_t>(sizeof(T)) > kKernelScratchBytes)
      block = (block + 1) / 2;
  }

  // Elements of the operands that all blocks of queries share.
  int64_t packed_size(bool backward) const {
    const int64_t scores = gemm_packed_size(scores_of(1, f.keys));
    if (!backward) return scores + gemm_packed_size(values_of(1, f.keys));
    return scores + gemm_packed_size(weight_grads_of(1, f.keys)) +
           gemm_packed_size(query_grads_of(1, f.keys));
  }
  // Elements: tiles of scores and their adjoints, rows, and what products need.
  int64_t scratch(bool backward) const {
    const int64_t products = std::max(
        {gemm_scratch(scores_of(block, f.keys)), gemm_scratch(values_of(block, f.keys)),
         gemm_scratch(weight_grads_of(block, f.keys)), gemm_scratch(query_grads_of(block, f.keys)),
         gemm_scratch(transposed(block, f.keys, f.width)),
         gemm_scratch(transposed(block, f.keys, f.v_width))});
    return products + (packs ? packed_size(backward) : 0) +
           (backward ? 2 * block * f.keys + 2 * f.keys : block * f.keys);
  }

  void forward(const T* q, const T* k, const T* v, const std::byte* mask, T* y, T* lse, T* scratch,
               int64_t begin, int64_t end) const {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t b = unit / f.heads, h = unit % f.heads, g = h / (f.heads / f.kv_heads);
      head_forward(q + at(f.q, b, h), k + at(f.k, b, g), v + at(f.v, b, g), mask_of(mask, b, h),
                   y + at(f.y, b, h), lse ? lse + unit * f.queries : nullptr, scratch);
    }
  }

  struct Adjoints {
    const T *y, *lse, *dy;
    T *dq, *dk, *dv, *dmask;
  };
  void backward(const T* q, const T* k, const T* v, const std::byte* mask, const Adjoints& a,
                T* scratch, int64_t begin, int64_t end) const {
    if (a.dmask) std::fill_n(a.dmask, f.mask_elements, T{0});
    const int64_t repeat = f.heads / f.kv_heads;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t b = unit / f.kv_heads, g = unit % f.kv_heads;
      T *dk = a.dk + at(f.k, b, g), *dv = a.dv + at(f.v, b, g);
      clear(dk, f.k.token, f.width);
      clear(dv, f.v.token, f.v_width);
      for (int64_t h = g * repeat; h < (g + 1) * repeat; ++h) {
        Adjoints of_head = {a.y + at(f.y, b, h),
                            a.lse + (b * f.heads + h) * f.queries,
                            a.dy + at(f.y, b, h),
                            a.dq + at(f.q, b, h),
                            dk,
                            dv,
                            a.dmask};
        if (a.dmask) of_head.dmask += b * f.mask[0] + h * f.mask[1];
        head_backward(q + at(f.q, b, h), k + at(f.k, b, g), v + at(f.v, b, g), mask_of(mask, b, h),
                      of_head, scratch);
      }
    }
  }
  // Nanoseconds of a head, roughly: two products forward.
  double work() const {
    return 4.0 * static_cast<double>(f.queries * f.keys) * static_cast<double>(f.width) / 50;
  }

 private:
  static int64_t at(const Strides& s, int64_t b, int64_t h) { return b * s.batch + h * s.head; }
  const std::byte* mask_of(const std::byte* mask, int64_t b, int64_t h) const {
    const int64_t bytes = f.masks ? 1 : static_cast<int64_t>(sizeof(T));
    return mask ? mask + (b * f.mask[0] + h * f.mask[1]) * bytes : nullptr;
  }
  void clear(T* rows, int64_t step, int64_t width) const {
    for (int64_t i = 0; i < f.keys; ++i) std::fill_n(rows + i * step, width, T{0});
  }
  ScoreRow<T> row_of(int64_t query, int64_t seen, const std::byte* mask) const {
    ScoreRow<T> row{f.seen_by(query), seen, static_cast<T>(f.scale), static_cast<T>(f.softcap)};
    row.masked = static_cast<T>(f.masked);
    row.mask_step = f.mask[3];
    if (f.adds) row.add = reinterpret_cast<const T*>(mask) + query * f.mask[2];
    if (f.masks) row.keep = reinterpret_cast<const uint8_t*>(mask) + query * f.mask[2];
    return row;
  }

  // The products for a block of m queries and the first n keys.
  Gemm scores_of(int64_t m, int64_t n) const {  // q · kᵀ
    return {.trans_b = true,
            .m = m,
            .n = n,
            .k = f.width,
            .a_step = f.q.token,
            .b_step = f.k.token,
            .c_step = n};
  }
  Gemm values_of(int64_t m, int64_t n) const {  // weights · v
    return {.m = m, .n = f.v_width, .k = n, .a_step = n, .b_step = f.v.token, .c_step = f.y.token};
  }
  Gemm weight_grads_of(int64_t m, int64_t n) const {  // dy · vᵀ
    return {.trans_b = true,
            .m = m,
            .n = n,
            .k = f.v_width,
            .a_step = f.y.token,
            .b_step = f.v.token,
            .c_step = n};
  }
  Gemm query_grads_of(int64_t m, int64_t n) const {  // score grads · k
    return {.m = m, .n = f.width, .k = n, .a_step = n, .b_step = f.k.token, .c_step = f.q.token};
  }
  Gemm transposed(int64_t m, int64_t n, int64_t width) const {  // weightsᵀ · dy, score gradsᵀ · q
    return {.trans_a = true, .accumulate = true, .m = n, .n = width, .k = m, .a_step = n};
  }

  // An operand that all blocks of queries share: packed once, or as it lies.
  struct Shared {
    const T* data = nullptr;
    int64_t depth = 0;  // of the packed one
  };
  Shared share(const Gemm& whole, const T* b, T*& rest) const {
    if (!packs) return {b, 0};
    T* packed = rest;
    rest += gemm_packed_size(whole);
    pack(whole, b, packed);
    return {packed, whole.k};
  }
  void multiply(Gemm g, const T* a, const Shared& b, T* c, T* rest) const {
    if (packs) g.packed_b = true, g.b_step = b.depth;
    gemm(g, a, b.data, c, rest);
  }

  void head_forward(const T* q, const T* k, const T* v, const std::byte* mask, T* y, T* lse,
                    T* scratch) const {
    T *s = scratch, *rest = scratch + block * f.keys;
    const Shared keys = share(scores_of(1, f.keys), k, rest);
    const Shared values = share(values_of(1, f.keys), v, rest);
    for (int64_t i0 = 0; i0 < f.queries; i0 += block) {
      const int64_t m = std::min(block, f.queries - i0), n = f.seen_by(i0 + m - 1);
      T inverse[kBlock];
      multiply(scores_of(m, n), q + i0 * f.q.token, keys, s, rest);
      for (int64_t i = 0; i < m; ++i) {
        const T sum = fns.weights(row_of(i0 + i, n, mask), s + i * n, inverse + i);
        if (lse) lse[i0 + i] = sum;
      }
      multiply(values_of(m, n), s, values, y + i0 * f.y.token, rest);
      for (int64_t i = 0; i < m; ++i) fns.multiply(y + (i0 + i) * f.y.token, inverse[i], f.v_width);
    }
  }

  void head_backward(const T* q, const T* k, const T* v, const std::byte* mask, const Adjoints& a,
                     T* scratch) const {
    T *s = scratch, *d = s + block * f.keys, *slope = d + block * f.keys;
    T *raw = slope + f.keys, *rest = raw + f.keys;
    const Shared keys = share(scores_of(1, f.keys), k, rest);
    const Shared values = share(weight_grads_of(1, f.keys), v, rest);
    const Shared key_rows = share(query_grads_of(1, f.keys), k, rest);
    for (int64_t i0 = 0; i0 < f.queries; i0 += block) {
      const int64_t m = std::min(block, f.queries - i0), n = f.seen_by(i0 + m - 1);
      const T *q0 = q + i0 * f.q.token, *y0 = a.y + i0 * f.y.token, *dy0 = a.dy + i0 * f.y.token;
      multiply(scores_of(m, n), q0, keys, s, rest);
      multiply(weight_grads_of(m, n), dy0, values, d, rest);
      for (int64_t i = 0; i < m; ++i) {
        const ScoreRow<T> row = row_of(i0 + i, n, mask);
        const T dot = fns.dot(y0 + i * f.y.token, dy0 + i * f.y.token, f.v_width);
        fns.gradient(row, a.lse[i0 + i], dot, s + i * n, d + i * n, slope, a.dmask ? raw : nullptr);
        if (a.dmask) add_to_mask(raw, row.seen, a.dmask + (i0 + i) * f.mask[2]);
      }
      Gemm to_v = transposed(m, n, f.v_width), to_k = transposed(m, n, f.width);
      to_v.b_step = f.y.token, to_v.c_step = f.v.token;
      to_k.b_step = f.q.token, to_k.c_step = f.k.token;
      gemm(to_v, s, dy0, a.dv, rest);
      multiply(query_grads_of(m, n), d, key_rows, a.dq + i0 * f.q.token, rest);
      gemm(to_k, d, q0, a.dk, rest);
    }
  }

  void add_to_mask(const T* raw, int64_t seen, T* dmask) const {
    for (int64_t j = 0; j < seen; ++j) dmask[j * f.mask[3]] += raw[j];
  }

  Form f;
  AttentionFns<T> fns;
  GemmFn<T> gemm;
  GemmPackFn<T> pack;
  bool packs = false;
  int64_t block = 1;
};

}  // namespace

Result<KernelPtr> make_attention(const Use& use) {
  PIPER_TRY(use.operands(3, 4, 2));
  PIPER_ASSIGN(const Form form, form_of(use, 3, use.outputs[0]));
  const size_t outputs = use.inputs.size();
  const bool masked = form.masks || form.adds;
  PIPER_WANT(!use.wanted[1] ||
                 use.outputs[1] == (TensorType{use.type(), {form.batch, form.heads, form.queries}}),
             "lse {}", to_string(use.outputs[1]));
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const Attention<T> kernel(form);
    return make_units_kernel(
        InPlace::kNo, form.batch * form.heads, kernel.work(),
        [=](Pointers p, std::byte* scratch, int64_t begin, int64_t end) {
          kernel.forward(input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), masked ? p[3] : nullptr,
                         output<T>(p, outputs), output<T>(p, outputs + 1),
                         reinterpret_cast<T*>(scratch), begin, end);
        },
        kernel.scratch(false) * static_cast<int64_t>(sizeof(T)));
  });
}

Result<KernelPtr> make_attention_grad(const Use& use) {
  PIPER_ASSIGN(const int64_t mask_grad, use.integer_or("mask_grad", 0));
  PIPER_TRY(use.operands(6, 7, mask_grad ? 4 : 3));
  PIPER_ASSIGN(const Form form, form_of(use, 6, use.inputs[3]));
  PIPER_WANT(use.inputs[4] == (TensorType{use.type(), {form.batch, form.heads, form.queries}}) &&
                 use.inputs[5] == use.inputs[3],
             "lse {}, dy {}", to_string(use.inputs[4]), to_string(use.inputs[5]));
  for (size_t i = 0; i < 3; ++i)
    PIPER_WANT(use.wanted[i] && use.outputs[i] == use.inputs[i], "output {} {}", i,
               to_string(use.outputs[i]));
  PIPER_WANT(!mask_grad || (form.adds && use.outputs[3] == use.inputs[6]), "gradient of the mask");
  const size_t o = use.inputs.size();
  const bool masked = form.masks || form.adds;
  return for_floats(use, use.type(), [&](auto zero) -> Result<KernelPtr> {
    using T = decltype(zero);
    const Attention<T> kernel(form);
    // The heads add to one gradient of the mask: one thread does them all.
    const int64_t units = form.batch * form.kv_heads;
    return make_units_kernel(
        InPlace::kNo, mask_grad ? 1 : units, kernel.work() * 3,
        [=](Pointers p, std::byte* scratch, int64_t begin, int64_t end) {
          kernel.backward(
              input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), masked ? p[6] : nullptr,
              {input<T>(p, 3), input<T>(p, 4), input<T>(p, 5), output<T>(p, o), output<T>(p, o + 1),
               output<T>(p, o + 2), mask_grad ? output<T>(p, o + 3) : nullptr},
              reinterpret_cast<T*>(scratch), begin, mask_grad ? units : end);
        },
        kernel.scratch(true) * static_cast<int64_t>(sizeof(T)));
  });
}

}  // namespace piper::cpu
