// Attention by cuDNN, from 9.11 on: the composite graph of scaled dot products, softmax and their
// gradient, as its engines know it. What cudnn_takes says yes to is asked for, slice by slice.
//
// Results are as those of our own kernels within rounding: weights and their adjoints are rounded
// to 16 bits before they are multiplied, and the gradients of grouped heads before they are summed.
// They are the same in each run: the adjoints of all scores are kept in the workspace, and products
// with them are the gradients. (With sums of dq in f32 instead, engines add in any order, in less
// memory, and cuDNN's note of what is not deterministic does not tell.)
//
// Of masks it is given terms, added to scores after a cap (cudnn_terms): it has no plans for masks
// of booleans. Gradients need a row of terms for each query: of one for all queries, their engines
// read the first term only, for every key (seen with cuDNN 9.19 on an H100). Numbers of tokens are
// sums of indices and of what the program has in memory. A score that is not seen is finite there,
// so that no softmax over part of the keys is NaN; what it makes of a query that sees none is
// overwritten by a kernel, and with the largest number for a logarithm of sums the gradient has
// weights of 0 for it.
//
// What cuDNN 9.19 has deterministic plans for, as tests/cuda/cudnn_test.cc asks it:
//
//                                  forward                 gradient
//                                  8.0  9.0  10.0  12.0    8.0  9.0  10.0  12.0
//   causal or not, heads in groups  +    +    +     +       +    +    +     +
//   causal from an offset on        +    +    +     .       +    +    +     .
//   numbers in stretches            +    +    +     .       +    +    +     .
//   masks: keys, tokens, all        +    +    +     .       +    +    +     .
//   masks and numbers               +    +    +     .       +    +    +     .
//   a cap                           +    +    +     .       -    +    -     .
//
// (.: not asked in tests.) Where there is none, kernels of our own do it.
//
// That its graphs have plans is tested without a device; what they mean, with a cuDNN of our own
// and, where there is a device, with cuDNN (tests/cuda/cudnn_numbers_test.cc).
#pragma once

#include <optional>
#include <span>

#include "attention_graph.h"
#include "piper/devices/cuda_kernels.h"

namespace piper::cuda {

// Holds the graph of one slice (cudnn_slice), and where its memory is.
struct AttentionGraph {
  // Names a place in operand `operand` of a DeviceStep; that of slice (sample b, head of keys g)
  // begins first + b × batch + g × head bytes after its start.
  struct Place {
    DnnGraph::Tensor tensor;
    size_t operand;
    int64_t first, batch, head;
  };
  DnnGraph graph;
  std::vector<Place> places;
  // Of gradients, f32 sums of each query, at the beginning of the workspace.
  std::optional<DnnGraph::Tensor> sums;
  int64_t sums_bytes = 0;
};
AttentionGraph attention_graph(const DeviceAttention& attention);

class AttentionPlan {
 public:
  // Error: cudnn_takes says no, or cuDNN is too old, or has no deterministic plan that is content
  // with the workspace of cudnn_slice; why. Kernels do it then.
  static Result<AttentionPlan> make(const Cudnn& api, const DeviceAttention& attention,
                                    const DnnTarget& target);
  int64_t workspace_bytes() const { return plan_.workspace + graph_.sums_bytes; }  // of a call

  // A call for each slice, with addresses that stay: those of the step's operands, in order, and of
  // cudnn_slice(…).bytes of workspace. The plan outlives its calls.
  using Calls = std::vector<DnnObject>;
  Result<Calls> bind(std::span<std::byte* const> operands, std::byte* workspace) const;
  // Queues them, one after the other, on the stream that the handle has. cuDNN's status.
  int run(DnnContext* handle, const Calls& calls) const;

 private:
  AttentionPlan(const Cudnn& api, const DeviceAttention& attention, AttentionGraph graph,
                DnnPlan plan)
      : api_(&api), attention_(attention), graph_(std::move(graph)), plan_(std::move(plan)) {}
  Result<DnnObject> bind_slice(std::span<std::byte* const> operands, std::byte* workspace,
                               int64_t sample, int64_t head) const;

  const Cudnn* api_;
  DeviceAttention attention_;
  AttentionGraph graph_;
  DnnPlan plan_;
};

}  // namespace piper::cuda
