// What files without metadata computed of parameters, told by the values.
#include <algorithm>
#include <cstring>
#include <set>

#include "names.h"
#include "piper/frontend/onnx.h"
#include "ways.h"

namespace piper::onnx_import {
namespace {

// Returns what the older exporter computes of one parameter, the layouts first; a number is
// measured.
const std::vector<Chain>& chains() {
  static const std::vector<Chain> kChains = {
      {{"clone"}},     {{"permute"}},   {{"reshape"}},   {{"permute", "reshape"}},
      {{"slice"}},     {{"neg"}},       {{"sqrt"}},      {{"add"}, true},
      {{"sub"}, true}, {{"mul"}, true}, {{"div"}, true},
  };
  return kChains;
}

// Returns whether shapes tell a layout, where the numbers tell nothing: dims of 1 more or less, or
// a transpose.
bool shapes_tell(const Shape& from, const Shape& to) {
  const auto larger = [](Shape shape) {
    std::erase(shape, 1);
    return shape;
  };
  Shape dims = larger(from);
  const bool transposed = from == Shape(to.rbegin(), to.rend()) && from.size() == 2;
  const bool same = dims == larger(to);
  std::sort(dims.begin(), dims.end());
  return (same || transposed) && std::adjacent_find(dims.begin(), dims.end()) == dims.end();
}

std::optional<Derivation> derived(const OnnxTensor& parameter, const OnnxTensor& value) {
  constexpr size_t kLayouts = 3;
  const bool tells = is_telling(value) && is_telling(parameter);
  if (num_elements(value.type.shape) > num_elements(parameter.type.shape) ||
      (!tells && !shapes_tell(parameter.type.shape, value.type.shape)))
    return {};
  for (size_t c = 0; c < (tells ? chains().size() : kLayouts); ++c)
    if (auto found = way_forth(parameter, value, chains()[c])) return found;
  return {};
}

// Of these PyTorch computes a weight that may be equal to one of them at first.
bool is_part_of_weight(std::string_view name) {
  constexpr std::string_view kLast[] = {"weight_g", "weight_v", "weight_orig"};
  return name.find("parametrizations.") != name.npos ||
         std::any_of(std::begin(kLast), std::end(kLast),
                     [&](std::string_view last) { return name.ends_with(last); });
}

}  // namespace

bool is_telling(const OnnxTensor& tensor) {
  const size_t size = static_cast<size_t>(info(tensor.type.dtype).bytes);
  std::string_view first, second;
  for (size_t at = 0; at < tensor.data.size; at += size) {
    const std::string_view one = as_text(tensor.data.span()).substr(at, size);
    if (first.empty() || one == first) {
      first = one;
    } else if (second.empty() || one == second) {
      second = one;
    } else {
      return true;
    }
  }
  return false;
}

bool is_transpose(const OnnxTensor& a, const OnnxTensor& b) {
  const Shape &of = a.type.shape, &to = b.type.shape;
  if (a.type.dtype != b.type.dtype || of != Shape(to.rbegin(), to.rend())) return false;
  const size_t size = static_cast<size_t>(info(a.type.dtype).bytes);
  const size_t rows = static_cast<size_t>(of[0]), columns = static_cast<size_t>(of[1]);
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c)
      if (std::memcmp(a.data.data + (r * columns + c) * size, b.data.data + (c * rows + r) * size,
                      size) != 0)
        return false;
  return true;
}

// Returns whether the tensor is zeros, and one number where attention must not look: no parameter
// is like that.
bool is_mask(const OnnxTensor& tensor) {
  constexpr double kHuge = -1e4;
  bool huge = false;
  const auto count = static_cast<size_t>(num_elements(tensor.type.shape));
  for (size_t i = 0; i < count; ++i) {
    const double x = read_number(tensor.data, tensor.type.dtype, i);
    if (x != 0 && !(x <= kHuge)) return false;
    huge = huge || x != 0;
  }
  return huge;
}

Sources::Sources(const OnnxModel& model, const PriorKnowledge& prior) {
  std::set<std::string_view> names;
  for (const OnnxTensor& tensor : model.initializers) {
    names.insert(tensor.name);
    if (info(tensor.type.dtype).is_float && !is_anonymous(model, tensor.name))
      kept_.push_back(tensor);
  }
  for (const auto& [name, value] : prior.values)
    if (info(value.type.dtype).is_float && !names.count(name) && !is_part_of_weight(name))
      lost_.push_back(value);
}

std::vector<Sources::Found> Sources::of(const OnnxTensor& value, const std::string& module,
                                        bool lost) const {
  const std::string within = module.empty() ? "" : module + ".";
  std::vector<Found> found;
  for (const bool elsewhere : {false, true}) {
    if (elsewhere && (within.empty() || !is_telling(value) || !found.empty())) break;
    for (const OnnxTensor& parameter : lost ? lost_ : kept_) {
      if (parameter.name.starts_with(within) == elsewhere) continue;
      if (auto derivation = derived(parameter, value))
        found.push_back({&parameter, *std::move(derivation)});
    }
  }
  return found;
}

std::string Sources::unseen(const std::string& module, const std::set<std::string>& seen) const {
  for (const OnnxTensor& parameter : lost_)
    if (module_of(parameter.name) == module && !seen.count(parameter.name) &&
        is_uniform(parameter.data, parameter.type.dtype))
      return parameter.name;
  return {};
}

}  // namespace piper::onnx_import
