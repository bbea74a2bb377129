// Describes what makers of kernels are told of one use of an op, whatever the device: its types,
// how loops walk through its operands, which random numbers it takes, what an attention of any form
// means.
#pragma once

#include <array>

#include "piper/devices/program.h"

namespace piper {

// Describes one use of an op, as check_use (signatures.h) allows it; beside it what joining made:
// Fused and Pack, and the attributes `then`, `columns`, `grad_columns` and `packed_b`.
struct KernelUse {
  std::string_view op;
  const Attrs& attrs;
  std::vector<TensorType> inputs;  // of an absent one: f32[]
  std::vector<bool> present;       // by input
  std::vector<TensorType> outputs;

  const Shape& in(size_t i) const { return inputs[i].shape; }
  const Shape& out(size_t i = 0) const { return outputs[i].shape; }
  DType type(size_t i = 0) const { return inputs[i].dtype; }
  bool has(size_t input) const { return input < inputs.size() && present[input]; }
};
KernelUse kernel_use(const Program& program, const ProgramOp& op);

// Returns the product of extents [from, to) of a shape.
inline int64_t extent(const Shape& shape, size_t from, size_t to) {
  int64_t product = 1;
  for (size_t d = from; d < to; ++d) product *= shape[d];
  return product;
}
// Returns row-major strides in elements.
std::vector<int64_t> row_major(const Shape& shape);
// Returns the strides with which the dims of `to` walk an operand of shape `from` that is broadcast
// to it.
std::vector<int64_t> spread_strides(const Shape& from, const Shape& to);

// Holds extents, and by operand a stride of each. At least one dim.
struct Walk {
  Shape extents;
  std::vector<std::vector<int64_t>> strides;
};
// Returns a walk without extents of 1, and with neighbours merged that every operand walks through
// without a gap. Strides of a single element are `single`.
Walk folded(const Shape& extents, const std::vector<std::vector<int64_t>>& strides,
            int64_t single = 1);

// Says where a use of Random or Dropout finds its key, and which elements of the whole tensor it
// has (src/ir/ops/families/random.cc).
struct Draw {
  // Says how a cut divides: runs of so many elements are each one of `shards` in what it cuts.
  struct Cut {
    int64_t run = 1, shards = 1;
    size_t operand = 0;  // that has the own number, `unit` times; 0: it is none
    int64_t unit = 1;
    bool mirrored = false;  // in every second run of the whole the own one counts from the end
    int64_t zeros = 0;      // so many elements of a run were not there before
  };
  size_t key = 0;  // operand
  int64_t elements = 0;
  std::vector<Cut> cuts;  // the last one first
};
Draw draw_of(const KernelUse& use, size_t key);

// Describes an operand of an attention: elements between neighbours along batch, tokens and heads,
// and in front of the first; those of one token and head are adjacent.
struct DeviceRows {
  int64_t batch = 0, token = 0, head = 0, first = 0;
  int64_t at(int64_t b, int64_t h) const { return first + b * batch + h * head; }
  bool operator==(const DeviceRows&) const = default;
};
DeviceRows rows_of(const Shape& shape, bool tokens_first);

// Describes Attention or AttentionGrad as the table of ops has them
// (src/ir/ops/families/attention.cc), wherever their operands are. lse is f32 (f64 of f64), of
// [batch, heads, queries].
struct DeviceAttention {
  static constexpr int64_t kFurthest = int64_t{1} << 40;  // a token
  bool is_gradient = false;
  DType type = DType::kF32;  // of q, k, v, y and their adjoints
  int64_t batch = 0, queries = 0, keys = 0, heads = 0, kv_heads = 0, width = 0, v_width = 0;
  DeviceRows q, k, v, y;  // y: of dy too
  DeviceRows dq, dk, dv;
  double scale = 1, softcap = 0;
  bool causal = false;
  int64_t offset = 0;
  int64_t query_stretches = 0, key_stretches = 0;  // of first and first_key; 0: numbers from 0 on
  enum Mask : uint8_t { kNoMask, kKeeps, kAdds } mask = kNoMask;
  bool wide_mask = false;  // terms in f32 beside operands in f16
  double masked_score = 0;
  std::array<int64_t, 4> mask_step{};  // elements between neighbours, 0 where it is repeated
  int64_t all_keys = 0;                // that the mask is for
  bool mask_grad = false;
  bool operator==(const DeviceAttention&) const = default;
};
// The inputs begin with q, k and v; after that of the mask, which is this one, are the numbers of
// the first query and of the first key.
DeviceAttention attention_of(const KernelUse& use, size_t mask, const TensorType& y);
// Returns the attention with the places of dq, dk and dv: outputs of their own, or columns that
// fill the first.
DeviceAttention attention_grad_of(const KernelUse& use);

}  // namespace piper
