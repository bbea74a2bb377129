// The makers of all ops' steps, by the file that defines them.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

// attention.cc
Status make_attention(const Use& use, Emitter& emit);
Status make_attention_grad(const Use& use, Emitter& emit);
Status make_attention_merge(const Use& use, Emitter& emit);

// move.cc
Status make_reshape(const Use& use, Emitter& emit);
Status make_transpose(const Use& use, Emitter& emit);

}  // namespace piper::cuda_kernels
