// What layer and RMS norm share: types and letters over the dims from an axis on.
#pragma once

#include "rules.h"

namespace piper {

// Returns the type of scale and bias, or, with dims of 1, of the statistics of each row.
inline TensorType normalised(const TensorType& x, size_t axis) {
  return {x.dtype, Shape(x.shape.begin() + static_cast<int64_t>(axis), x.shape.end())};
}
inline TensorType statistics(const TensorType& x, size_t axis) {
  TensorType type = x;
  for (size_t d = axis; d < type.shape.size(); ++d) type.shape[d] = 1;
  return type;
}

// Returns the axis of a use whose rows have elements.
inline Result<size_t> check_rows_of(const OpTypes& use, const TensorType& x) {
  PIPER_ASSIGN(const size_t axis, check_axis(use.attrs, "axis", x.shape.size()));
  const bool empty = num_elements(normalised(x, axis).shape) == 0;
  if (empty && num_elements(statistics(x, axis).shape) > 0)
    return fail("there is nothing to normalise in {}", to_string(x));
  return axis;
}

struct NormLetters {
  LoopBuilder build;
  Dims x, params, statistics;
};
inline NormLetters letters_of(const OpTypes& use, size_t x) {
  NormLetters n;
  const size_t axis = static_cast<size_t>(use.attrs.integer("axis"));
  n.x = n.build.letters(use.inputs[x].shape);
  n.params.assign(n.x.begin() + static_cast<int64_t>(axis), n.x.end());
  n.statistics = n.x;
  for (size_t d = axis; d < n.x.size(); ++d) n.statistics[d] = {};
  return n;
}
inline void mark_params_whole(NormLetters& n) {
  for (const Dim& dim : n.params) n.build.mark_whole(dim[0]);
}

}  // namespace piper
