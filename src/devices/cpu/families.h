// The makers of all kernels, by the file that defines them.
#pragma once

#include "kernel.h"

namespace piper::cpu {

// pointwise.cc and fused.cc define these.
Result<KernelPtr> make_pointwise(const Use& use);
Result<KernelPtr> make_fused(const Use& use);
Result<KernelPtr> make_gelu_and_slope(const Use& use);
// matmul.cc defines these.
Result<KernelPtr> make_matmul(const Use& use);
Result<KernelPtr> make_pack(const Use& use);
// move.cc defines these.
Result<KernelPtr> make_transpose(const Use& use);
Result<KernelPtr> make_reshape(const Use& use);
Result<KernelPtr> make_expand(const Use& use);
Result<KernelPtr> make_slice(const Use& use);
// in_blocks.cc defines these.
Result<KernelPtr> make_to_blocks(const Use& use);
Result<KernelPtr> make_from_blocks(const Use& use);
// fill.cc defines these.
Result<KernelPtr> make_concat(const Use& use);
Result<KernelPtr> make_pad(const Use& use);
Result<KernelPtr> make_fill(const Use& use);
Result<KernelPtr> make_trilu(const Use& use);
// random.cc defines these.
Result<KernelPtr> make_random(const Use& use);
Result<KernelPtr> make_dropout(const Use& use);
// gather.cc defines these.
Result<KernelPtr> make_gather(const Use& use);
Result<KernelPtr> make_gather_grad(const Use& use);
Result<KernelPtr> make_gather_nd(const Use& use);
// grouped.cc defines these.
Result<KernelPtr> make_grouped_matmul(const Use& use);
Result<KernelPtr> make_grouped_matmul_grad(const Use& use);
Result<KernelPtr> make_row_places(const Use& use);
// scatter.cc defines these.
Result<KernelPtr> make_gather_elements(const Use& use);
Result<KernelPtr> make_gather_elements_grad(const Use& use);
Result<KernelPtr> make_scatter_elements(const Use& use);
Result<KernelPtr> make_gather_nd_grad(const Use& use);
Result<KernelPtr> make_scatter_nd(const Use& use);
// top_k.cc defines these.
Result<KernelPtr> make_top_k(const Use& use);
// window.cc defines these.
Result<KernelPtr> make_unfold(const Use& use);
Result<KernelPtr> make_fold(const Use& use);
// reduce.cc defines these.
Result<KernelPtr> make_reduce(const Use& use);
Result<KernelPtr> make_reduce_extreme_grad(const Use& use);
Result<KernelPtr> make_reduce_prod_grad(const Use& use);
Result<KernelPtr> make_cumsum(const Use& use);
// softmax.cc defines these.
Result<KernelPtr> make_softmax(const Use& use);
Result<KernelPtr> make_softmax_grad(const Use& use);
// attention.cc defines these.
Result<KernelPtr> make_attention(const Use& use);
Result<KernelPtr> make_attention_grad(const Use& use);
Result<KernelPtr> make_attention_merge(const Use& use);
// norm.cc defines these.
Result<KernelPtr> make_layer_norm(const Use& use);
Result<KernelPtr> make_layer_norm_grad_x(const Use& use);
Result<KernelPtr> make_layer_norm_grad_params(const Use& use);
Result<KernelPtr> make_rms_norm(const Use& use);
Result<KernelPtr> make_rms_norm_grad_x(const Use& use);
Result<KernelPtr> make_rms_norm_grad_scale(const Use& use);
Result<KernelPtr> make_group_norm(const Use& use);
Result<KernelPtr> make_group_norm_grad_x(const Use& use);
Result<KernelPtr> make_group_norm_grad_params(const Use& use);
// rotary.cc defines these.
Result<KernelPtr> make_rotary(const Use& use);
// loss.cc defines these.
Result<KernelPtr> make_cross_entropy_sum(const Use& use);
Result<KernelPtr> make_cross_entropy_terms(const Use& use);
Result<KernelPtr> make_cross_entropy_of_terms(const Use& use);
Result<KernelPtr> make_cross_entropy_grad(const Use& use);
Result<KernelPtr> make_label_count(const Use& use);
// optimizer.cc defines these.
Result<KernelPtr> make_sum_squares(const Use& use);
Result<KernelPtr> make_global_norm(const Use& use);
Result<KernelPtr> make_clip_factor(const Use& use);
Result<KernelPtr> make_learning_rate(const Use& use);
Result<KernelPtr> make_next_step(const Use& use);
Result<KernelPtr> make_next_loss_scale(const Use& use);
Result<KernelPtr> make_not_finite(const Use& use);
Result<KernelPtr> make_update(const Use& use);  // of update_rules(), rows.h

}  // namespace piper::cpu
