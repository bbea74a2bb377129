// What uses of Attention and AttentionGrad mean, wherever their operands are.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

DeviceRows rows_of(const Shape& shape, bool tokens_first);
// The inputs begin with q, k and v; after that of the mask, which is this one, are the numbers of
// the first query and of the first key.
DeviceAttention attention_of(const Use& use, size_t mask, const TensorType& y);
// Returns the attention with the places of dq, dk and dv: outputs of their own, or columns that
// fill the first.
DeviceAttention attention_grad_of(const Use& use);

}  // namespace piper::cuda_kernels
