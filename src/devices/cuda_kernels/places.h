// What gathers and scatters say of the places that their indices name.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

// Views data [batches, rows, inner] and indices [batches or 1, places, depth], which name rows: of
// `sizes`, or a part of those that begins where an operand says.
struct Places {
  int64_t batches = 1, rows = 1, inner = 1, places = 1;
  bool own_indices = false;    // each batch has its own
  std::vector<int64_t> sizes;  // what each index of a place counts
  std::string first = "0";     // an expression: the row that the rows begin at
};
// Returns the places of Gather and GatherGrad, whose operand 2 may say where the rows begin.
Places places_of_axis(const Use& use, const Shape& data, const Shape& indices);
// Returns the places of GatherND and its like: data [batch dims, named dims, rest].
Places places_of_slices(const Shape& data, const Shape& indices, int64_t batch_dims);
// "Named<2>" and "{{3, 4}, {4, 1}}".
std::string named_type(const Places& places);
std::string named_value(const Places& places);

// Says for GatherElements and its like how positions of `indices` walk data, except along the axis.
struct Along {
  Shape extents;
  std::vector<int64_t> strides;
  int64_t size = 0, step = 0;  // of the axis
};
Along along(const Use& use, const Shape& data, const Shape& indices);

}  // namespace piper::cuda_kernels
