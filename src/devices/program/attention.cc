// Reads the operands and attributes of an attention into the form that kernels and cuDNN take.
#include <algorithm>
#include <limits>

#include "piper/devices/kernel_use.h"

namespace piper {

DeviceRows rows_of(const Shape& shape, bool tokens_first) {
  const int64_t inner = shape[2] * shape[3];
  return {.batch = shape[1] * inner,
          .token = tokens_first ? inner : shape[3],
          .head = tokens_first ? shape[3] : inner};
}

namespace {

using Form = DeviceAttention;

// q, k and v, or their gradients, are `columns` of one tensor of `elements`: its rows are tokens.
void place_columns(const std::vector<int64_t>& columns, int64_t elements, const Form& f,
                   std::array<DeviceRows*, 3> rows) {
  const int64_t tokens = f.batch * f.queries, row = tokens > 0 ? elements / tokens : 0;
  for (size_t i = 0; i < 3; ++i) *rows[i] = {f.queries * row, row, f.width, columns[i]};
}

void read_columns(const KernelUse& use, const std::vector<int64_t>& columns, const TensorType& y,
                  Form& f) {
  const bool tokens_first = use.attrs.integers("tokens_first")[3] != 0;
  f.kv_heads = use.attrs.integer("kv_heads");
  f.batch = y.shape[0], f.queries = f.keys = y.shape[tokens_first ? 1 : 2];
  f.heads = y.shape[tokens_first ? 2 : 1], f.width = f.v_width = y.shape[3];
  f.y = rows_of(y.shape, tokens_first);
  place_columns(columns, num_elements(use.in(0)), f, {&f.q, &f.k, &f.v});
}

void read_operands(const KernelUse& use, const TensorType& y, Form& f) {
  const auto first = use.attrs.integers("tokens_first");
  const Shape &q = use.in(0), &k = use.in(1), &v = use.in(2);
  f.batch = q[0], f.queries = q[first[0] ? 1 : 2], f.heads = q[first[0] ? 2 : 1];
  f.keys = k[first[1] ? 1 : 2], f.kv_heads = k[first[1] ? 2 : 1];
  f.width = q[3], f.v_width = v[3];
  f.q = rows_of(q, first[0]), f.k = rows_of(k, first[1]), f.v = rows_of(v, first[2]);
  f.y = rows_of(y.shape, first[3]);
}

void read_mask(const KernelUse& use, size_t mask, Form& f) {
  f.all_keys = use.attrs.integer("keys", f.keys);
  f.masked_score = use.attrs.real("masked_score", -std::numeric_limits<double>::infinity());
  f.mask_grad = use.attrs.integer("mask_grad") != 0;
  if (!use.has(mask)) return;
  const Shape& shape = use.in(mask);
  f.mask = use.type(mask) == DType::kBool ? Form::kKeeps : Form::kAdds;
  f.wide_mask = f.mask == Form::kAdds && use.type(mask) != f.type;
  for (size_t d = 0; d < 4; ++d) f.mask_step[d] = shape[d] == 1 ? 0 : extent(shape, d + 1, 4);
}

}  // namespace

DeviceAttention attention_of(const KernelUse& use, size_t mask, const TensorType& y) {
  Form f;
  f.type = use.type();
  const std::vector<int64_t> columns = use.attrs.integers("columns");
  if (columns.empty())
    read_operands(use, y, f);
  else
    read_columns(use, columns, y, f);
  read_mask(use, mask, f);
  f.scale = use.attrs.real("scale", 1), f.softcap = use.attrs.real("softcap", 0);
  f.causal = use.attrs.integer("causal") != 0;
  f.offset = std::clamp(use.attrs.integer("offset"), -Form::kFurthest, Form::kFurthest);
  if (use.has(mask + 1)) f.query_stretches = num_elements(use.in(mask + 1));
  if (use.has(mask + 2)) f.key_stretches = num_elements(use.in(mask + 2));
  return f;
}

DeviceAttention attention_grad_of(const KernelUse& use) {
  Form f = attention_of(use, 6, use.inputs[3]);
  f.is_gradient = true;
  const std::vector<int64_t> columns = use.attrs.integers("grad_columns");
  if (!columns.empty()) {
    place_columns(columns, num_elements(use.out()), f, {&f.dq, &f.dk, &f.dv});
    return f;
  }
  const auto first = use.attrs.integers("tokens_first");
  f.dq = rows_of(use.out(0), first[0]), f.dk = rows_of(use.out(1), first[1]);
  f.dv = rows_of(use.out(2), first[2]);
  return f;
}

}  // namespace piper
