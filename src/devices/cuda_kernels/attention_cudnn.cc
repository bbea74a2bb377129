// What cuDNN is asked for. The limits are those of its releases, as its documentation and plans for
// devices that are not there show them.
#include <algorithm>
#include <cmath>

#include "emitter.h"

namespace piper {
namespace {

using cuda_kernels::ceil_div;
constexpr int64_t kPiece = 16, kWidest = 128;  // bytes; elements
constexpr int64_t kMostStretches = 4, kFurthest = int64_t{1} << 30;
// A head of keys is not cut: what of it is larger than that is for kernels with less memory.
constexpr int64_t kMostForHead = int64_t{2} << 30;

bool fits(const DeviceRows& rows, int64_t bytes) {
  for (const int64_t step : {rows.batch, rows.token, rows.head, rows.first})
    if (step * bytes % kPiece != 0) return false;
  return true;
}

// Returns bytes for a head of keys of one sample, and for all that read it: of deterministic
// gradients, the adjoints of the scores in 16 bits, whole tiles of them, and the sums of dy · y;
// with grouped heads, gradients of k and v for each head of queries.
int64_t bytes_for_head(const DeviceAttention& a) {
  const int64_t queries = ceil_div(a.queries, 64) * 64, keys = ceil_div(a.keys, 128) * 128;
  const int64_t repeat = a.heads / a.kv_heads;
  const int64_t grouped = repeat > 1 ? a.keys * (a.width + a.v_width) * 2 : 0;
  return repeat * (queries * keys * 2 + a.queries * 4 + grouped);
}

int64_t greatest_divisor(int64_t n, int64_t most) {
  int64_t d = std::clamp<int64_t>(most, 1, n);
  while (n % d != 0) --d;
  return d;
}

// Returns whether kernels repeat a row of mask terms for each query: if all queries share one row,
// cuDNN's gradients apply its first term to every key (seen with cuDNN 9.19 on an H100).
bool repeats_rows(const DeviceAttention& a) { return a.is_gradient && a.mask_step[2] == 0; }

// A score that replaces others is no term, unless it is -∞; terms in f32 exceed the library's.
bool is_mask_taken(const DeviceAttention& a) {
  if (a.mask == DeviceAttention::kNoMask) return true;
  const bool is_term = a.mask == DeviceAttention::kAdds ? !a.wide_mask : std::isinf(a.masked_score);
  if (!is_term || a.mask_step[3] == 0 || a.mask_grad) return false;
  if (a.is_gradient && a.queries == 1) return false;
  return !repeats_rows(a) || cudnn_terms(a).bytes <= kMostCudnnBytes;
}

// Returns which keys queries see by their numbers.
bool is_order_taken(const DeviceAttention& a) {
  if (!a.causal) return true;
  if (a.query_stretches == 0) return a.key_stretches == 0 && a.offset >= 0 && a.offset <= kFurthest;
  return a.offset == 0 && std::max(a.query_stretches, a.key_stretches) <= kMostStretches;
}

}  // namespace

bool cudnn_takes(const DeviceAttention& a) {
  const bool is_half = a.type == DType::kBF16 || a.type == DType::kF16;
  const bool is_there = a.batch > 0 && a.queries > 0 && a.keys > 0 && a.queries * a.keys > 1;
  const int64_t bytes = info(a.type).bytes;
  const auto fits_width = [&](int64_t width) {
    return width > 0 && width <= kWidest && width * bytes % kPiece == 0;
  };
  if (!is_half || !is_there || !fits_width(a.width) || !fits_width(a.v_width)) return false;
  if (!is_mask_taken(a) || !is_order_taken(a)) return false;
  for (const DeviceRows* rows : {&a.q, &a.k, &a.v, &a.y, &a.dq, &a.dk, &a.dv})
    if (!fits(*rows, bytes)) return false;
  return !a.is_gradient || bytes_for_head(a) <= kMostForHead;
}

CudnnTerms cudnn_terms(const DeviceAttention& a) {
  if (a.mask == DeviceAttention::kNoMask) return {};
  const int64_t bytes = info(a.type).bytes, whole = kPiece / bytes;
  CudnnTerms terms{{a.batch, a.heads, a.queries, a.keys}, {}, bytes};
  for (size_t d = 0; d < 3; ++d)
    if (a.mask_step[d] == 0 && !(d == 2 && repeats_rows(a))) terms.dims[d] = 1;
  const int64_t row = ceil_div(a.keys, whole) * whole, head = terms.dims[2] * row;
  terms.steps = {terms.dims[1] * head, head, row, 1};
  terms.bytes *= terms.dims[0] * terms.steps[0];
  return terms;
}

CudnnSlice cudnn_slice(const DeviceAttention& a) {
  constexpr int64_t kSpare = 4096;  // what engines need beside
  CudnnSlice slice{a.batch, a.kv_heads, kSpare};
  if (!a.is_gradient) return slice;
  const int64_t head = bytes_for_head(a), sample = head * a.kv_heads;
  slice.samples = greatest_divisor(a.batch, kMostCudnnBytes / sample);
  if (sample > kMostCudnnBytes)
    slice.kv_heads = greatest_divisor(a.kv_heads, kMostCudnnBytes / head);
  slice.bytes = slice.samples * slice.kv_heads * head + kSpare;
  return slice;
}

}  // namespace piper
