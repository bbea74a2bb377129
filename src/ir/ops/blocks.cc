// Rounds values on their way, as ops of a graph.
#include "piper/ir/blocks.h"

#include <fmt/format.h>

namespace piper {
namespace {

int64_t run_from(const Shape& shape, int64_t axis) {
  return num_elements(Shape(shape.begin() + axis, shape.end()));
}

Attrs attrs_of_blocks(const InBlocks& in, const Shape& shape, int64_t least) {
  const int64_t axis = axis_of_blocks(shape, in.block, least);
  Attrs attrs{{"to", std::string(kScaledNames[static_cast<size_t>(in.type)])}, {"block", in.block}};
  if (axis > 0) attrs.set("run", run_from(shape, axis)), attrs.set("axis", axis);
  return attrs;
}

// Returns by how much a number changes at most.
std::string largest_change(const SentAs& how) {
  if (how.dtype == DType::kBF16) return "1/256 of itself";
  if (how.dtype) return "1/2048 of itself within the range of f16";
  return how.in.type == Scaled::kInt8
             ? fmt::format("1/254 of the largest in its block of {}", how.in.block)
             : fmt::format("1/16 of itself, or 2^-18 of the largest in its block of {}",
                           how.in.block);
}

}  // namespace

std::string SentAs::name() const {
  return dtype ? std::string(info(*dtype).name) : kScaledNames[static_cast<size_t>(in.type)];
}

int64_t axis_of_blocks(const Shape& shape, int64_t block, int64_t least) {
  int64_t axis = std::ssize(shape), run = 1;
  while (axis > least && run < block) run *= shape[static_cast<size_t>(--axis)];
  return axis == std::ssize(shape) ? 0 : axis;
}

ValueId put_as(Builder& build, ValueId value, const SentAs& how, int64_t least) {
  if (how.dtype) return build.cast(value, *how.dtype);
  const Shape shape = build.type(value).shape;
  return build.op1("ToBlocks", {value}, attrs_of_blocks(how.in, shape, least));
}

ValueId take_as(Builder& build, ValueId sent, const TensorType& type, const SentAs& how,
                int64_t least) {
  if (how.dtype) return build.cast(sent, type.dtype);
  Attrs attrs = attrs_of_blocks(how.in, type.shape, least);
  attrs.set("shape", type.shape);
  attrs.set("type", std::string(info(type.dtype).name));
  return build.op1("FromBlocks", {sent}, std::move(attrs));
}

void SentBytes::add(const TensorType& type, const SentAs& how, int64_t least) {
  exact += type.bytes();
  if (how.dtype) {
    sent += TensorType{*how.dtype, type.shape}.bytes();
  } else if (const int64_t elements = num_elements(type.shape); elements > 0) {
    const int64_t run = run_from(type.shape, axis_of_blocks(type.shape, how.in.block, least));
    sent += elements / run * how.in.bytes(run);
  }
}

std::string SentBytes::explain(const SentAs& how, std::string_view of) const {
  return fmt::format(
      "travel in {}, rounded: {} in place of {} {}; each number differs by at most {}", how.name(),
      human_bytes(sent), human_bytes(exact), of, largest_change(how));
}

}  // namespace piper
