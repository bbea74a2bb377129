// What the exporter computed from a parameter while it folded constants, undone where there is one
// exact answer. A result bears the name of its call, "permute_3".
#include <algorithm>
#include <set>

#include "host.h"
#include "params.h"

namespace piper::onnx_import {

// "layer_norm_12" -> "layer_norm": calls of one function are numbered.
std::string_view stem_of(std::string_view call) {
  const size_t end = call.find_last_not_of("0123456789");
  if (end == std::string_view::npos || end + 1 == call.size() || call[end] != '_') return call;
  return call.substr(0, end);
}

namespace {

bool rows_differ(const Bytes& data, size_t rows) {
  const std::string_view text = as_text(data.span());
  std::set<std::string_view> seen;
  for (size_t r = 0; r < rows; ++r)
    if (!seen.insert(text.substr(r * (text.size() / rows), text.size() / rows)).second)
      return false;
  return true;
}

// A table looked up at constant positions: one that repeats itself along whole dims, as a table of
// positions does along the batch, is taken once. None where rows are equal otherwise, as those of
// relative positions are, since the order of the table is lost then; and none of rows of one number
// each, which may be equal by chance.
std::optional<Unfolded> unfold_lookup(const OnnxTensor& folded) {
  const Shape& shape = folded.type.shape;
  auto [once, data] = compress(folded.data, shape, folded.type.dtype);
  const int64_t rows = num_elements(once) / shape.back();
  if (once.back() != shape.back() || !rows_differ(data, static_cast<size_t>(rows))) return {};
  Unfolded out{{folded.type.dtype, {rows, shape.back()}}, {}, ""};
  if (once != out.type.shape) out.derivation.push_back(reshape_step(out.type.shape, once));
  if (once != shape) out.derivation.push_back(expand_step(once, shape));
  out.note = fmt::format(
      "was looked up at constant positions by the exporter: it has the {} row{} that the file "
      "keeps, in the order looked up",
      rows, rows == 1 ? "" : "s");
  return out;
}

}  // namespace

std::optional<Unfolded> unfold(const OnnxTensor& folded) {
  constexpr std::string_view kTransposes[] = {"permute", "transpose", "t", "numpy_t"};
  const std::string_view stem = stem_of(folded.name);
  const Shape& shape = folded.type.shape;
  if (stem == "embedding" && shape.size() >= 2 && folded.data.size > 0)
    return unfold_lookup(folded);
  const bool transposes =
      std::find(std::begin(kTransposes), std::end(kTransposes), stem) != std::end(kTransposes);
  if (!transposes || shape.size() != 2 || folded.folded_from.size() != 1) return {};
  const Shape own{shape[1], shape[0]};
  return Unfolded{{folded.type.dtype, own}, transposition(own), ""};
}

}  // namespace piper::onnx_import
