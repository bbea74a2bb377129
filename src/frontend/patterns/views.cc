// Follows reshapes, transposes and repeats of a tensor, so that an attention's operands are found
// after them.
#include "views.h"

#include <algorithm>
#include <numeric>

#include "piper/ir/ops.h"

namespace piper::patterns {

Modes joined(const Modes& modes) {
  Modes out;
  for (const Mode& mode : modes) {
    if (mode.extent == 1) continue;
    if (!out.empty() && out.back().stride == mode.stride * mode.extent) {
      out.back() = {out.back().extent * mode.extent, mode.stride};
    } else {
      out.push_back(mode);
    }
  }
  return out;
}

Modes joined(const ViewDims& dims) {
  Modes all;
  for (const Modes& modes : dims) all.insert(all.end(), modes.begin(), modes.end());
  return joined(all);
}

int64_t extent_of(const Modes& modes) {
  int64_t extent = 1;
  for (const Mode& mode : modes) extent *= mode.extent;
  return extent;
}

Shape shape_of(const ViewDims& dims) {
  Shape shape;
  for (const Modes& modes : dims) shape.push_back(extent_of(modes));
  return shape;
}

bool is_repeated(const Modes& modes) {
  return std::all_of(modes.begin(), modes.end(), [](const Mode& m) { return m.stride == 0; });
}

bool has_repeats(const Modes& modes) {
  return std::any_of(modes.begin(), modes.end(), [](const Mode& m) { return m.stride == 0; });
}

ViewDims dims_of(const Shape& shape) {
  ViewDims dims(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d])
    if (shape[d] != 1) dims[d] = {{shape[d], stride}};
  return dims;
}

std::optional<ViewDims> cut(const Modes& run, const Shape& into) {
  Modes rest = joined(run);
  std::reverse(rest.begin(), rest.end());  // the outermost is last
  ViewDims dims;
  for (const int64_t extent : into) {
    Modes& dim = dims.emplace_back();
    for (int64_t left = extent; left != 1;) {
      if (rest.empty()) return std::nullopt;
      Mode& mode = rest.back();
      if (mode.extent <= 0 || left <= 0) return std::nullopt;
      if (left % mode.extent == 0) {
        dim.push_back(mode);
        left /= mode.extent;
        rest.pop_back();
      } else if (mode.extent % left == 0) {
        mode.extent /= left;
        dim.push_back({left, mode.stride * mode.extent});
        left = 1;
      } else {
        return std::nullopt;
      }
    }
  }
  if (!rest.empty()) return std::nullopt;
  return dims;
}

ViewDims broadcast_to(ViewDims dims, const Shape& shape) {
  dims.insert(dims.begin(), shape.size() - dims.size(), Modes());
  for (size_t d = 0; d < shape.size(); ++d)
    if (extent_of(dims[d]) != shape[d]) dims[d] = {{shape[d], 0}};
  return dims;
}

bool is_view(const Graph& graph, const Node& node) {
  if (node.op == "Concat") {  // of one value, several times
    return std::all_of(node.inputs.begin(), node.inputs.end(),
                       [&](ValueId id) { return id == node.inputs[0]; });
  }
  const auto extents = [](const Shape& shape) { return num_elements(shape) > 0; };
  return (node.op == "Reshape" || node.op == "Transpose" || node.op == "Expand") &&
         extents(graph.value(node.outputs[0]).type.shape);
}

std::optional<ViewDims> seen_through(const Graph& graph, const Node& node, const ViewDims& dims) {
  const Shape& made = graph.value(node.outputs[0]).type.shape;
  if (node.op == "Reshape") return cut(joined(dims), made);
  if (node.op == "Expand") return broadcast_to(dims, made);
  if (node.op == "Transpose") {
    ViewDims moved;
    for (const int64_t d : node.attrs.integers("perm"))
      moved.push_back(dims[static_cast<size_t>(d)]);
    return moved;
  }
  ViewDims repeated = dims;
  Modes& dim = repeated[static_cast<size_t>(node.attrs.integer("axis"))];
  if (node.inputs.size() > 1)
    dim.insert(dim.begin(), {static_cast<int64_t>(node.inputs.size()), 0});
  return repeated;
}

namespace {

// Holds all modes of a view, in their order, with the places of those that have a stride, by
// stride.
struct Runs {
  Modes modes;
  std::vector<size_t> by_stride;
  std::vector<int64_t> order;  // perm of a Transpose from the order by stride to that of the view
};

Runs runs_of(const ViewDims& dims) {
  Runs runs;
  for (const Modes& dim : dims) runs.modes.insert(runs.modes.end(), dim.begin(), dim.end());
  std::vector<size_t> strided;
  for (size_t i = 0; i < runs.modes.size(); ++i)
    if (runs.modes[i].stride != 0) strided.push_back(i);
  runs.by_stride = strided;
  std::stable_sort(runs.by_stride.begin(), runs.by_stride.end(),
                   [&](size_t a, size_t b) { return runs.modes[a].stride > runs.modes[b].stride; });
  for (const size_t i : strided)
    runs.order.push_back(std::find(runs.by_stride.begin(), runs.by_stride.end(), i) -
                         runs.by_stride.begin());
  return runs;
}

}  // namespace

ViewOps ops_of(const Shape& base, const ViewDims& dims) {
  const Runs runs = runs_of(dims);
  return {.expands = has_repeats(runs.modes),
          .transposes = !std::is_sorted(runs.order.begin(), runs.order.end()),
          .reshapes = shape_of(dims) != base};
}

ValueId write_view(Builder& build, ValueId base, const ViewDims& dims) {
  const Runs runs = runs_of(dims);
  ValueId made = base;
  if (!std::is_sorted(runs.order.begin(), runs.order.end())) {
    Shape apart;
    for (const size_t i : runs.by_stride) apart.push_back(runs.modes[i].extent);
    made = build.transpose(build.reshape(made, apart), runs.order);
  }
  if (has_repeats(runs.modes)) {
    Shape once, all;
    for (const Mode& mode : runs.modes) {
      once.push_back(mode.stride == 0 ? 1 : mode.extent);
      all.push_back(mode.extent);
    }
    made = build.expand(build.reshape(made, once), all);
  }
  return build.reshape(made, shape_of(dims));
}

}  // namespace piper::patterns
