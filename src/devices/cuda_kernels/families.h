// The makers of all ops' steps, by the file that defines them.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

// attention.cc defines these.
Status make_attention(const Use& use, Emitter& emit);
Status make_attention_grad(const Use& use, Emitter& emit);
Status make_attention_merge(const Use& use, Emitter& emit);

// fill.cc defines these.
Status make_fill(const Use& use, Emitter& emit);
Status make_pad(const Use& use, Emitter& emit);
Status make_trilu(const Use& use, Emitter& emit);

// in_blocks.cc defines these.
Status make_from_blocks(const Use& use, Emitter& emit);
Status make_to_blocks(const Use& use, Emitter& emit);

// gather.cc defines these.
Status make_gather(const Use& use, Emitter& emit);
Status make_gather_elements(const Use& use, Emitter& emit);
Status make_gather_nd(const Use& use, Emitter& emit);

// group_norm.cc defines these.
Status make_group_norm(const Use& use, Emitter& emit);
Status make_group_norm_grad_params(const Use& use, Emitter& emit);
Status make_group_norm_grad_x(const Use& use, Emitter& emit);

// grouped.cc defines these.
Status make_grouped_matmul(const Use& use, Emitter& emit);
Status make_grouped_matmul_grad(const Use& use, Emitter& emit);
Status make_row_places(const Use& use, Emitter& emit);

// loss.cc defines these.
Status make_cross_entropy_grad(const Use& use, Emitter& emit);
Status make_cross_entropy_of_terms(const Use& use, Emitter& emit);
Status make_cross_entropy_sum(const Use& use, Emitter& emit);
Status make_cross_entropy_terms(const Use& use, Emitter& emit);
Status make_label_count(const Use& use, Emitter& emit);

// move.cc defines these.
Status make_concat(const Use& use, Emitter& emit);
Status make_expand(const Use& use, Emitter& emit);
Status make_reshape(const Use& use, Emitter& emit);
Status make_slice(const Use& use, Emitter& emit);
Status make_transpose(const Use& use, Emitter& emit);

// optimizer.cc defines these.
Status make_update(const Run& run, Emitter& emit);
std::vector<std::string_view> update_ops();  // those that make_update makes

// product.cc defines these.
Status make_linear(const Use& use, Emitter& emit);
Status make_matmul(const Use& use, Emitter& emit);

// random.cc defines these.
Status make_dropout(const Use& use, Emitter& emit);
Status make_random(const Use& use, Emitter& emit);

// reduce.cc defines these.
Status make_reduce(const Use& use, Emitter& emit);
Status make_reduce_extreme_grad(const Use& use, Emitter& emit);
Status make_reduce_prod_grad(const Use& use, Emitter& emit);

// rotary.cc defines these.
Status make_rotary(const Use& use, Emitter& emit);

// scalars.cc defines these.
Status make_clip_factor(const Use& use, Emitter& emit);
Status make_global_norm(const Use& use, Emitter& emit);
Status make_learning_rate(const Use& use, Emitter& emit);
Status make_loss_scale(const Use& use, Emitter& emit);
Status make_next_loss_scale(const Use& use, Emitter& emit);
Status make_next_step(const Use& use, Emitter& emit);
Status make_not_finite(const Use& use, Emitter& emit);
Status make_sum_squares(const Run& run, Emitter& emit);

// scan.cc defines these.
Status make_cumsum(const Use& use, Emitter& emit);

// scatter.cc defines these.
Status make_gather_elements_grad(const Use& use, Emitter& emit);
Status make_gather_grad(const Use& use, Emitter& emit);
Status make_gather_nd_grad(const Use& use, Emitter& emit);
Status make_scatter_elements(const Use& use, Emitter& emit);
Status make_scatter_nd(const Use& use, Emitter& emit);

// softmax.cc defines these.
Status make_softmax(const Use& use, Emitter& emit);
Status make_softmax_grad(const Use& use, Emitter& emit);

// top_k.cc defines these.
Status make_top_k(const Use& use, Emitter& emit);

// window.cc defines these.
Status make_fold(const Use& use, Emitter& emit);
Status make_unfold(const Use& use, Emitter& emit);

}  // namespace piper::cuda_kernels
