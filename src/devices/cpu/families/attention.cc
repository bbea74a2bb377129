// Makers of attention: what a use means.
#include "attention.h"

#include <array>
#include <cmath>
#include <limits>

#include "families.h"

namespace piper::cpu {
namespace {

// Estimates the nanoseconds of a head: two products forward.
double work_of(const DeviceAttention& f) {
  return 4.0 * static_cast<double>(f.queries * f.keys) * static_cast<double>(f.width) / 50;
}

// Returns the form of a run of the attention whose mask is this input.
AttentionForm placed(const DeviceAttention& attention, size_t mask, Pointers p) {
  AttentionForm form{attention, {}, {}};
  if (form.query_stretches > 0) form.query = {input<int64_t>(p, mask + 1), form.query_stretches};
  if (form.key_stretches > 0) form.key = {input<int64_t>(p, mask + 2), form.key_stretches};
  return form;
}

}  // namespace

AttentionSizes attention_sizes(const DeviceAttention& form) {
  constexpr int64_t kKeys = 512, kQueries = 128, kPacked = int64_t{1} << 16;  // elements
  const auto round = [](int64_t n) { return std::max((n + 31) / 32, int64_t{1}) * 32; };
  const int64_t widest = std::max({form.width, form.v_width, int64_t{1}});
  const int64_t queries = std::min(round(form.queries), kQueries);
  return {.query_block = queries,
          .score_rows = queries + 1,
          .key_block =
              std::min(round(form.keys), std::clamp(round(kPacked / widest), int64_t{32}, kKeys))};
}

int64_t attention_scratch(const DeviceAttention& form, bool backward) {
  const AttentionSizes sizes = attention_sizes(form);
  const int64_t scores = sizes.key_block * sizes.score_rows;
  const int64_t both =
      sizes.key_block * (form.width + form.v_width) + sizes.query_block * form.width + scores;
  if (!backward) return both + 2 * ((form.queries + 31) / 16 * 16);
  return both + scores + sizes.key_block * (form.width + 1) + sizes.query_block * form.v_width;
}

namespace {

Result<KernelPtr> make_attention(const Use& use) {
  const DeviceAttention form = attention_of(use, 3, use.outputs[0]);
  const size_t outputs = use.inputs.size();
  const bool masked = form.mask != form.kNoMask;
  return for_floats(use, use.type(), [&]<class T>(T) {
    const auto forward = attention_fns<T>().forward;
    return make_units_kernel(
        InPlace::kNo, form.batch * form.heads, work_of(form),
        [=](Pointers p, std::byte* scratch, int64_t begin, int64_t end) {
          const std::byte* mask = masked ? p[3] : nullptr;
          forward(placed(form, 3, p), {input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), mask},
                  output<T>(p, outputs), output<T>(p, outputs + 1), reinterpret_cast<T*>(scratch),
                  begin, end);
        },
        attention_scratch(form, false) * static_cast<int64_t>(sizeof(T)));
  });
}

Result<KernelPtr> make_attention_grad(const Use& use) {
  const DeviceAttention form = attention_grad_of(use);
  const size_t parts = use.attrs.find("grad_columns") ? 1 : 3;  // outputs of dq, dk and dv
  const int64_t mask_elements = form.mask_grad ? num_elements(use.in(6)) : 0;
  const size_t o = use.inputs.size();
  const bool masked = form.mask != form.kNoMask;
  return for_floats(use, use.type(), [&]<class T>(T) {
    const auto backward = attention_fns<T>().backward;
    // The heads add to one gradient of the mask: one thread does them all.
    const int64_t units = form.batch * form.kv_heads;
    return make_units_kernel(
        InPlace::kNo, form.mask_grad ? 1 : units, work_of(form) * 3,
        [=](Pointers p, std::byte* scratch, int64_t begin, int64_t end) {
          const std::byte* mask = masked ? p[6] : nullptr;
          if (form.mask_grad) std::fill_n(output<T>(p, o + parts), mask_elements, T{0});
          backward(placed(form, 6, p), {input<T>(p, 0), input<T>(p, 1), input<T>(p, 2), mask},
                   {input<T>(p, 3), input<T>(p, 4), input<T>(p, 5), output<T>(p, o),
                    output<T>(p, parts == 3 ? o + 1 : o), output<T>(p, parts == 3 ? o + 2 : o),
                    form.mask_grad ? output<T>(p, o + parts) : nullptr},
                   reinterpret_cast<T*>(scratch), begin, form.mask_grad ? units : end);
        },
        attention_scratch(form, true) * static_cast<int64_t>(sizeof(T)));
  });
}

// Makes the kernel that weights parts by their sums of exponentials; what sees no key has none.
Result<KernelPtr> make_attention_merge(const Use& use) {
  const int64_t tokens_first = use.attrs.integer("tokens_first", 0);
  const Shape& y = use.in(0);
  const int64_t tokens = y[tokens_first ? 1 : 2], heads = y[tokens_first ? 2 : 1], width = y[3];
  const DeviceRows strides = rows_of(y, tokens_first != 0);
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
