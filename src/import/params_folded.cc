// What the exporter computed from a parameter while it folded constants, undone where there is one
// exact answer. A result bears the name of its call, "permute_3".
#include <algorithm>

#include "params.h"

namespace piper::onnx_import {

// "layer_norm_12" -> "layer_norm": calls of one function are numbered.
std::string_view stem_of(std::string_view call) {
  const size_t end = call.find_last_not_of("0123456789");
  if (end == std::string_view::npos || end + 1 == call.size() || call[end] != '_') return call;
  return call.substr(0, end);
}

std::optional<Unfolded> unfold(const OnnxTensor& folded) {
  constexpr std::string_view kTransposes[] = {"permute", "transpose", "t", "numpy_t"};
  const std::string_view stem = stem_of(folded.name);
  const Shape& shape = folded.type.shape;
  if (stem == "embedding" && shape.size() >= 2 && folded.data.size > 0) {
    Unfolded out{false, folded.type, ""};
    out.type.shape = {num_elements(shape) / shape.back(), shape.back()};
    out.note = fmt::format(
        "was looked up at constant positions by the exporter: it has the {} rows that the file "
        "keeps",
        out.type.shape[0]);
    return out;
  }
  const bool transposes =
      std::find(std::begin(kTransposes), std::end(kTransposes), stem) != std::end(kTransposes);
  if (!transposes || shape.size() != 2 || folded.folded_from.size() != 1) return {};
  return Unfolded{true, {folded.type.dtype, {shape[1], shape[0]}}, ""};
}

}  // namespace piper::onnx_import
