// The makers of all ops' steps, by the file that defines them.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

// group_norm.cc
Status make_group_norm(const Use& use, Emitter& emit);
Status make_group_norm_grad_params(const Use& use, Emitter& emit);
Status make_group_norm_grad_x(const Use& use, Emitter& emit);

// loss.cc
Status make_cross_entropy_grad(const Use& use, Emitter& emit);
Status make_cross_entropy_of_terms(const Use& use, Emitter& emit);
Status make_cross_entropy_sum(const Use& use, Emitter& emit);
Status make_cross_entropy_terms(const Use& use, Emitter& emit);
Status make_label_count(const Use& use, Emitter& emit);

// move.cc
Status make_reshape(const Use& use, Emitter& emit);
Status make_transpose(const Use& use, Emitter& emit);

// softmax.cc
Status make_softmax(const Use& use, Emitter& emit);
Status make_softmax_grad(const Use& use, Emitter& emit);

}  // namespace piper::cuda_kernels
