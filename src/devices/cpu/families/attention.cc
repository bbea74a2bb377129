// Makers of attention: what a use means.
#include "attention.h"

#include <array>
#include <cmath>
#include <limits>

#include "families.h"

namespace piper::cpu {
namespace {

using Form = AttentionForm;
constexpr int64_t kFurthest = AttentionNumbers::kFurthest;

void read_mask(const Use& use, size_t input, Form& f) {
  if (use.inputs.size() <= input || !use.present[input]) return;
  const Shape& shape = use.in(input);
  f.all_keys = use.attrs.integer("keys", f.keys);
  f.masks = use.inputs[input].dtype == DType::kBool;
  f.adds = !f.masks;
  f.mask_elements = num_elements(shape);
  for (size_t d = 0; d < 4; ++d) f.mask[d] = shape[d] == 1 ? 0 : extent(shape, d + 1, 4);
}

void read_attributes(const Use& use, Form& f) {
  f.scale = use.attrs.real("scale", 1);
  f.softcap = use.attrs.real("softcap", 0);
  f.masked = use.attrs.real("masked_score", -std::numeric_limits<double>::infinity());
  f.offset = std::clamp(use.attrs.integer("offset"), -kFurthest, kFurthest);
  f.causal = use.attrs.integer("causal") != 0;
}

AttentionStrides strides_of(const Shape& shape, bool tokens_first) {
  const int64_t inner = shape[2] * shape[3];
  return {.batch = shape[1] * inner,
          .token = tokens_first ? inner : shape[3],
          .head = tokens_first ? shape[3] : inner};
}

// q, k and v, or their gradients, are `columns` of one tensor of `elements`: its rows are tokens.
void place_columns(const std::vector<int64_t>& columns, int64_t elements, const Form& f,
                   std::array<AttentionStrides*, 3> strides) {
  const int64_t tokens = f.batch * f.queries, row = tokens > 0 ? elements / tokens : 0;
  for (size_t i = 0; i < 3; ++i) *strides[i] = {f.queries * row, row, f.width, columns[i]};
}

Form form_of_columns(const Use& use, const std::vector<int64_t>& columns, const TensorType& y) {
  Form f;
  const auto first = use.attrs.integers("tokens_first");
  f.kv_heads = use.attrs.integer("kv_heads");
  f.batch = y.shape[0], f.queries = f.keys = y.shape[first[3] ? 1 : 2];
  f.heads = y.shape[first[3] ? 2 : 1], f.width = f.v_width = y.shape[3];
  f.y = strides_of(y.shape, first[3]);
  place_columns(columns, num_elements(use.in(0)), f, {&f.q, &f.k, &f.v});
  return f;
}

Form form_of_operands(const Use& use, const TensorType& y) {
  Form f;
  const auto first = use.attrs.integers("tokens_first");
  int64_t tokens[4], heads[4], widths[4];
  AttentionStrides* strides[] = {&f.q, &f.k, &f.v, &f.y};
  for (size_t i = 0; i < 4; ++i) {
    const TensorType& type = i < 3 ? use.inputs[i] : y;
    tokens[i] = type.shape[first[i] ? 1 : 2];
    heads[i] = type.shape[first[i] ? 2 : 1];
    widths[i] = type.shape[3];
    *strides[i] = strides_of(type.shape, first[i]);
  }
  f.batch = use.in(0)[0], f.queries = tokens[0], f.keys = tokens[1], f.heads = heads[0];
  f.kv_heads = heads[1], f.width = widths[0], f.v_width = widths[2];
  return f;
}

// Returns the form of a use whose first inputs are q, k, v and whose mask, if any, is `mask`; y is
// `y`.
Form form_of(const Use& use, size_t mask, const TensorType& y) {
  const std::vector<int64_t> columns = use.attrs.integers("columns");
  Form f = columns.empty() ? form_of_operands(use, y) : form_of_columns(use, columns, y);
  read_attributes(use, f);
  read_mask(use, mask, f);
  return f;
}

// Places dq, dk and dv: they are outputs of their own, or columns that fill the first.
void place_gradients(const Use& use, const std::vector<int64_t>& columns, Form& f) {
  if (!columns.empty())
    return place_columns(columns, num_elements(use.out()), f, {&f.dq, &f.dk, &f.dv});
  const auto first = use.attrs.integers("tokens_first");
  AttentionStrides* const strides[] = {&f.dq, &f.dk, &f.dv};
  for (size_t i = 0; i < 3; ++i) *strides[i] = strides_of(use.out(i), first[i]);
}

// Estimates the nanoseconds of a head: two products forward.
double work_of(const Form& f) {
  return 4.0 * static_cast<double>(f.queries * f.keys) * static_cast<double>(f.width) / 50;
}

// Says where the queries and keys of a use begin among all: inputs after that of the mask. 0: there
// is none.
struct Firsts {
  size_t query = 0, key = 0;
  int64_t query_stretches = 1, key_stretches = 1;

  AttentionForm placed(AttentionForm form, Pointers p) const {
    if (query) form.query = {input<int64_t>(p, query), query_stretches};
    if (key) form.key = {input<int64_t>(p, key), key_stretches};
    return form;
  }
};
Firsts firsts_of(const Use& use, size_t mask) {
  Firsts firsts;
  for (size_t i = mask + 1; i < use.inputs.size(); ++i) {
    if (!use.present[i]) continue;
    const bool of_queries = i == mask + 1;
    const int64_t stretches = num_elements(use.in(i));
    (of_queries ? firsts.query : firsts.key) = i;
    (of_queries ? firsts.query_stretches : firsts.key_stretches) = stretches;
  }
  return firsts;
}

}  // namespace

AttentionSizes attention_sizes(const AttentionForm& form) {
  constexpr int64_t kKeys = 512, kQueries = 128, kPacked = int64_t{1} << 16;  // elements
  const auto round = [](int64_t n) { return std::max((n + 31) / 32, int64_t{1}) * 32; };
  const int64_t widest = std::max({form.width, form.v_width, int64_t{1}});
  const int64_t queries = std::min(round(form.queries), kQueries);
  return {.query_block = queries,
          .score_rows = queries + 1,
          .key_block =
              std::min(round(form.keys), std::clamp(round(kPacked / widest), int64_t{32}, kKeys))};
}

int64_t attention_scratch(const AttentionForm& form, bool backward) {
  const AttentionSizes sizes = attention_sizes(form);
  const int64_t scores = sizes.key_block * sizes.score_rows;
  const int64_t both =
      sizes.key_block * (form.width + form.v_width) + sizes.query_block * form.width + scores;
  if (!backward) return both + 2 * ((form.queries + 31) / 16 * 16);
  return both + scores + sizes.key_block * (form.width + 1) + sizes.query_block * form.v_width;
}

namespace {

Result<KernelPtr> make_attention(const Use& use) {
  const Form form = form_of(use, 3, use.outputs[0]);
  const Firsts firsts = firsts_of(use, 3);
  const size_t outputs = use.inputs.size();
  const bool masked = form.masks || form.adds;
  return for_floats(use, use.type(), [&]<class T>(T) {
    const auto forward = attention_fns<T>().forward;
    return make_units_kernel(
        InPlace::kNo, form.batch * form.heads, work_of(form),
        [=](Pointers p, std::byte* scratch, int64_t begin, int64_t end) {
          const std::byte* mask = masked ? p[3] : nullptr;
          forward(firsts.placed(form, p), {input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), mask},
                  output<T>(p, outputs), output<T>(p, outputs + 1), reinterpret_cast<T*>(scratch),
                  begin, end);
        },
        attention_scratch(form, false) * static_cast<int64_t>(sizeof(T)));
  });
}

Result<KernelPtr> make_attention_grad(const Use& use) {
  const int64_t mask_grad = use.attrs.integer("mask_grad", 0);
  const std::vector<int64_t> columns = use.attrs.integers("grad_columns");
  const size_t parts = columns.empty() ? 3 : 1;  // outputs of dq, dk and dv
  Form form = form_of(use, 6, use.inputs[3]);
  const Firsts firsts = firsts_of(use, 6);
  place_gradients(use, columns, form);
  const size_t o = use.inputs.size();
  const bool masked = form.masks || form.adds;
  return for_floats(use, use.type(), [&]<class T>(T) {
    const auto backward = attention_fns<T>().backward;
    // The heads add to one gradient of the mask: one thread does them all.
    const int64_t units = form.batch * form.kv_heads;
    return make_units_kernel(
        InPlace::kNo, mask_grad ? 1 : units, work_of(form) * 3,
        [=](Pointers p, std::byte* scratch, int64_t begin, int64_t end) {
          const std::byte* mask = masked ? p[6] : nullptr;
          if (mask_grad) std::fill_n(output<T>(p, o + parts), form.mask_elements, T{0});
          backward(firsts.placed(form, p), {input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), mask},
                   {input<T>(p, 3), input<T>(p, 4), input<T>(p, 5), output<T>(p, o),
                    output<T>(p, parts == 3 ? o + 1 : o), output<T>(p, parts == 3 ? o + 2 : o),
                    mask_grad ? output<T>(p, o + parts) : nullptr},
                   reinterpret_cast<T*>(scratch), begin, mask_grad ? units : end);
        },
        attention_scratch(form, true) * static_cast<int64_t>(sizeof(T)));
  });
}

// Makes the kernel that weights parts by their sums of exponentials; what sees no key has none.
Result<KernelPtr> make_attention_merge(const Use& use) {
  const int64_t tokens_first = use.attrs.integer("tokens_first", 0);
  const Shape& y = use.in(0);
  const int64_t tokens = y[tokens_first ? 1 : 2], heads = y[tokens_first ? 2 : 1], width = y[3];
  const AttentionStrides strides = strides_of(y, tokens_first != 0);
  const auto parts = static_cast<double>(use.attrs.integer("parts", 1));
  const double hidden = use.attrs.real("hidden_score", -std::numeric_limits<double>::infinity());
  return for_floats(use, use.type(), [&]<class T>(T) {
    constexpr T kNone = std::numeric_limits<T>::max();
    return make_units_kernel(
        InPlace::kYes, y[0] * heads, static_cast<double>(tokens * (width + 50)),
        [=](Pointers p, std::byte*, int64_t begin, int64_t end) {
          for (int64_t row = begin * tokens; row < end * tokens; ++row) {
            const int64_t unit = row / tokens, at = strides.at(unit / heads, unit % heads) +
                                                    row % tokens * strides.token;
            const T a = input<T>(p, 1)[row], b = input<T>(p, 3)[row];
            const T *from_a = input<T>(p, 0) + at, *from_b = input<T>(p, 2) + at;
            const T top = a == kNone ? b : b == kNone || a > b || a != a ? a : b;  // keeps NaN
            const T count = a <= static_cast<T>(hidden / 2) ? static_cast<T>(parts) : T{1};
            const T of_a = a == kNone ? T{0} : count * std::exp(a - top),
                    of_b = b == kNone ? T{0} : std::exp(b - top), sum = of_a + of_b;
            const bool none = sum == 0;
            const T share_a = none ? T{0} : of_a / sum, share_b = none ? T{0} : of_b / sum;
            T* const to = output<T>(p, 4) + at;
            for (int64_t i = 0; i < width; ++i) to[i] = share_a * from_a[i] + share_b * from_b[i];
            output<T>(p, 5)[row] = none ? kNone : top + std::log(sum);
          }
        });
  });
}

}  // namespace

std::vector<KernelRow> attention_kernels() {
  return {{"Attention", make_attention},
          {"AttentionGrad", make_attention_grad},
          {"AttentionMerge", make_attention_merge}};
}

}  // namespace piper::cpu
