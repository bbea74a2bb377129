// Windows over the spatial dims of [n, c, s…], as convolutions and pools name them in attributes.
#pragma once

#include "rule.h"

namespace piper::onnx_import {

struct Windows {
  std::vector<int64_t> kernel, strides, dilations, before, after;  // by spatial dim
  std::vector<int64_t> count;                                      // how many windows there are
  std::vector<int64_t> overhang;  // ceil_mode: elements that the last window reads behind the pads
  int64_t places() const { return num_elements(count); }
  bool padded() const;
};

// Returns the attributes strides, dilations, pads, auto_pad (and ceil_mode where `rounds`) for
// windows of `kernel` over x.
Result<Windows> read_windows(RuleContext& c, const Val& x, std::vector<int64_t> kernel,
                             bool rounds);
// Fails if the attribute kernel_shape says another size than the weights have.
Status check_kernel(const RuleContext& c, const Val& weight);
// Pads x with `value` around it, where the windows need it.
Result<Val> padded(RuleContext& c, const Val& x, const Windows& w, double value);
// Returns the elements of all windows, [n, o…, c, k…], of an x that is padded.
Result<Val> unfolded(RuleContext& c, const Val& x, const Windows& w);

}  // namespace piper::onnx_import
