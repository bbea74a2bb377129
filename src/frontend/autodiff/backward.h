// The reverse sweep over a forward graph.
#pragma once

#include "piper/frontend/autodiff.h"

namespace piper {

// A contribution is one use's term of the gradient of a parameter.
struct ParamContribution {
  NodeId node;  // the use
  int input = 0;
  ValueId value;
};

struct BackwardPass {
  Graph graph;                                                // with the backward nodes appended
  ValueId loss_scale;  // f32[] that the loss was multiplied with; state where dynamic; or none
  std::vector<std::vector<ParamContribution>> contributions;  // by parameter, in order of uses
};

// Appends the backward nodes, of passes BI and BW. Error: an op without gradient on the way.
Result<BackwardPass> append_backward(Graph forward, const std::optional<LossScale>& scale);

}  // namespace piper
