// Tables of sinusoids: a library's modules make them once and do not train them. The class of a
// module says so, or the numbers do where the exporter has looked the table up.
#include <cmath>

#include "claims.h"
#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

constexpr std::string_view kClasses = "pkg.torch.onnx.class_hierarchy";

// "['net.Model', 'lib.SinusoidalPositionalEmbedding', 'aten.embedding.default']": the last but one.
bool is_of_sinusoidal_module(const OnnxNode& node) {
  const std::vector<std::string> classes =
      split_text(std::string(find_metadata(node.metadata, kClasses)), ',');
  if (classes.size() < 2) return false;
  const std::string& module = classes[classes.size() - 2];
  return module.find("Sinusoidal") != module.npos && module.find("Embedding") != module.npos;
}

// Returns whether each column is the sine or cosine of the row's number times a rate of its own.
bool holds_sinusoids(const RecoveredParam& param) {
  constexpr int64_t kFewest = 4, kMost = 64;  // rows
  const Shape& shape = param.type.shape;
  if (shape.size() != 2 || shape[0] < kFewest || shape[1] < 4 || param.data.size == 0) return false;
  // The sine or cosine of 0. Most weights begin otherwise, and need not be transposed to be told.
  const DType dtype = param.type.dtype;
  if (param.stored.size >= static_cast<size_t>(info(dtype).bytes)) {
    const double first = read_number(param.stored, dtype, 0);
    if (first != 0 && first != 1) return false;
  }
  const Bytes data = param.data.made();
  const double slack =
      param.type.dtype == DType::kF32 || param.type.dtype == DType::kF64 ? 1e-3 : 2e-2;
  int64_t sines = 0;
  for (int64_t c = 0; c < shape[1]; ++c) {
    const auto at = [&](int64_t row) {
      return read_number(data, param.type.dtype, static_cast<size_t>(row * shape[1] + c));
    };
    const bool is_sine = at(0) == 0;
    if ((!is_sine && at(0) != 1) || std::fabs(at(1)) > 1) return false;
    const double rate = is_sine ? std::asin(at(1)) : std::acos(at(1));
    sines += is_sine;
    for (int64_t row = 2; row < std::min(shape[0], kMost); ++row) {
      const double angle = rate * static_cast<double>(row);
      // A cosine near 1 tells its rate less well, the more so the farther the row.
      const double off = std::fabs(at(row) - (is_sine ? std::sin(angle) : std::cos(angle)));
      if (off > slack * static_cast<double>(row)) return false;
    }
  }
  return sines > 0 && sines < shape[1];
}

}  // namespace

void freeze_sinusoids(const OnnxModel& model, Recovery& recovery) {
  std::vector<bool> named(recovery.params.size());
  for (const ParamUse& use : recovery.uses)
    named[use.param] = named[use.param] || is_of_sinusoidal_module(model.nodes[use.node]);
  for (size_t p = 0; p < recovery.params.size(); ++p) {
    RecoveredParam& param = recovery.params[p];
    if (param.running || (!named[p] && !holds_sinusoids(param))) continue;
    param.frozen = true;
    recovery.notes.push_back({param.name, kSinusoids});
  }
}

}  // namespace piper::onnx_import
