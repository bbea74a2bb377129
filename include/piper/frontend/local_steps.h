// The directive `local_steps`: sites that train by themselves, and the optimizer between them.
#pragma once

#include <optional>
#include <string>

#include "piper/base/scaled.h"
#include "piper/frontend/autodiff.h"

namespace piper {

// Trains a copy of the model on each coordinate of a mesh axis, a *site*, with parameters,
// optimizer states and samples of its own. After each `every` steps the outer optimizer updates the
// outer parameters by their gradient, which is their distance from the mean over the sites, and all
// sites go on with these (DiLoCo, Douillard et al., 2023). Several entries join parameters of their
// own, at steps of their own (Streaming DiLoCo, Douillard et al., 2025). With a delay sites go on
// between the step at whose end the distances are taken and that at whose end the update comes.
// - local_steps: {over: site, every: 8, outer: {sgd: {lr: 0.7, momentum: 0.9, nesterov: true}}}
struct LocalSteps {
  std::string over;
  std::optional<Glob> match;  // parameters by path; nothing: all others
  int64_t every = 1;
  int64_t offset = 0;  // steps after a multiple of `every`
  int64_t delay = 0;   // steps from there to the update; less than `every`
  double mix = 0;      // the share of a site's own parameters in those that it goes on with
  TrainSpec outer;     // one group, of all parameters
  // How distances, and the gradient made of them, travel, and if they may be rounded for it.
  std::optional<DType> dtype;
  InBlocks in = {Scaled::kNone, 256};
  bool lossy = false;
  bool is_rounded() const { return in.any() || (dtype && *dtype != DType::kF32); }
  SourceSpan at, over_at, match_at, offset_at, delay_at, outer_at, dtype_at;
};

}  // namespace piper
