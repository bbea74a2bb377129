// The makers of all ops' steps, by the file that defines them.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

// grouped.cc
Status make_grouped_matmul(const Use& use, Emitter& emit);
Status make_grouped_matmul_grad(const Use& use, Emitter& emit);

// move.cc
Status make_reshape(const Use& use, Emitter& emit);
Status make_transpose(const Use& use, Emitter& emit);

// optimizer.cc
Status make_adagrad(std::span<const Use> uses, Emitter& emit);
Status make_adamw(std::span<const Use> uses, Emitter& emit);
Status make_onnx_adam(std::span<const Use> uses, Emitter& emit);
Status make_sgd(std::span<const Use> uses, Emitter& emit);

// product.cc
Status make_linear(const Use& use, Emitter& emit);
Status make_matmul(const Use& use, Emitter& emit);

// scalars.cc
Status make_clip_factor(const Use& use, Emitter& emit);
Status make_global_norm(const Use& use, Emitter& emit);
Status make_learning_rate(const Use& use, Emitter& emit);
Status make_loss_scale(const Use& use, Emitter& emit);
Status make_next_loss_scale(const Use& use, Emitter& emit);
Status make_next_step(const Use& use, Emitter& emit);
Status make_not_finite(const Use& use, Emitter& emit);
Status make_sum_squares(std::span<const Use> uses, Emitter& emit);

}  // namespace piper::cuda_kernels
