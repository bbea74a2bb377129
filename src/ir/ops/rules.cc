// Checks that shape rules of several ops share: arity, types, axes, broadcasting.
#include "rules.h"

#include <algorithm>

namespace piper {

Status check_arity(const OpTypes& use, size_t least, size_t most) {
  const size_t given = use.inputs.size();
  if (given < least || given > most) {
    std::string wanted = least == most        ? fmt::format("{}", least)
                         : most == size_t(-1) ? fmt::format("at least {}", least)
                                              : fmt::format("{} to {}", least, most);
    return fail("takes {} inputs, but has {}", wanted, given);
  }
  for (size_t i = 0; i < least; ++i) {
    if (!use.present[i]) return fail("input {} is required, but absent", i);
  }
  return ok_status();
}

std::string operands(const OpTypes& use) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    parts.push_back(use.present[i] ? to_string(use.inputs[i]) : "(absent)");
  }
  return join(parts, ", ");
}

Status check_float(const OpTypes& use, size_t input) {
  if (is_float(use.inputs[input].dtype)) return ok_status();
  return fail("input {} must be floating point, but is {}", input, to_string(use.inputs[input]));
}

Result<DType> product_type(const OpTypes& use) {
  const DType dtype = use.inputs[0].dtype;
  const AttrValue* to = use.attrs.find("to");
  if (to == nullptr) return dtype;
  const auto* text = std::get_if<std::string>(to);
  if (!text || *text != info(DType::kF32).name || dtype == DType::kF64)
    return fail("products of {} are not made in {}", operands(use), print_attrs(use.attrs));
  return DType::kF32;
}

TypesResult float_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 1, 1));
  PIPER_TRY(check_float(use, 0));
  return std::vector<TensorType>{use.inputs[0]};
}

Status check_index(const OpTypes& use, size_t input) {
  if (is_index(use.inputs[input].dtype)) return ok_status();
  return fail("input {} must hold i64 or i32 indices, but is {}", input,
              to_string(use.inputs[input]));
}

Status check_type(const OpTypes& use, size_t input, std::string_view role, const TensorType& type) {
  if (use.inputs[input] == type) return ok_status();
  return fail("input {} ({}) must be {}, but is {}", input, role, to_string(type),
              to_string(use.inputs[input]));
}

Status check_first(const OpTypes& use, size_t input) {
  if (!has_input(use, input)) return ok_status();
  return check_type(use, input, "first", {DType::kI64, {}});
}

Status check_part(const OpTypes& use, size_t input) {
  PIPER_TRY(check_first(use, input));
  const int64_t whole = use.attrs.integer("whole");
  if (!has_input(use, input) || whole > 0) return ok_status();
  return fail("a part of {} in all", whole);
}

Result<size_t> check_axis(const Attrs& attrs, std::string_view name, size_t rank) {
  const int64_t axis = attrs.integer(name);
  if (axis < 0 || axis >= static_cast<int64_t>(rank)) {
    return fail("{} {} is outside of the {} dims", name, axis, rank);
  }
  return static_cast<size_t>(axis);
}

Status check_reduction(const Attrs& attrs) {
  constexpr std::string_view kKnown[] = {"none", "add", "mul", "max", "min"};
  const std::string name = attrs.text("reduction", "none");
  if (std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown)) return ok_status();
  return fail("there is no reduction '{}'", quote_control(name));
}

std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  Shape shape(std::max(a.size(), b.size()));
  for (size_t i = 0; i < shape.size(); ++i) {  // from the innermost dim
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return std::nullopt;
    shape[shape.size() - 1 - i] = x == 1 ? y : x;
  }
  return shape;
}

Result<std::vector<int64_t>> check_list(const Attrs& attrs, std::string_view name, size_t rank) {
  std::vector<int64_t> list = attrs.integers(name);
  if (list.size() != rank) {
    return fail("{} {} must have {} entries, one for each dim", name, to_string(list), rank);
  }
  return list;
}

Result<Shape> check_shape(const Attrs& attrs, std::string_view name) {
  constexpr int64_t kMostElements = int64_t{1} << 48;  // far beyond any memory, far below overflow
  Shape shape = attrs.integers(name);
  int64_t elements = 1;
  for (int64_t extent : shape) {
    if (extent < 0) return fail("{} {} has a negative extent", name, to_string(shape));
    if (extent > 0 && elements > kMostElements / extent) {
      return fail("{} {} has too many elements", name, to_string(shape));
    }
    elements *= extent;
  }
  return shape;
}

OpAttribute whole_of_parts() {
  return {"whole", kInteger, [](const OpDef& op, const OpTypes& use) {
            const auto firsts = op.loops(use).firsts;
            return std::any_of(firsts.begin(), firsts.end(), [&](const auto& first) {
              return has_input(use, static_cast<size_t>(first.second));
            });
          }};
}

Attrs localise_shape(const OpTypes& use, const std::vector<Shape>& local_outputs) {
  Attrs attrs = use.attrs;
  attrs.set("shape", local_outputs[0]);
  return attrs;
}

Cost per_element(const OpTypes& use, double flops) {
  int64_t elements = 0;
  for (const TensorType& type : use.outputs)
    elements = std::max(elements, num_elements(type.shape));
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    if (use.present[i]) elements = std::max(elements, num_elements(use.inputs[i].shape));
  }
  return {.flops = flops * static_cast<double>(elements)};
}

}  // namespace piper
