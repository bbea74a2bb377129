// Fill{shape, value, dtype}: every element the same.
#include "rules.h"

namespace piper {
namespace {

TypesResult fill_types(const OpTypes& use) {
  PIPER_TRY(check_arity(use, 0, 0));
  PIPER_ASSIGN(Shape shape, check_shape(use.attrs, "shape"));
  const std::string name = use.attrs.text("dtype");
  const std::optional<DType> dtype = parse_dtype(name);
  if (!dtype) return fail("'{}' is not an element type", quote_control(name));
  return std::vector<TensorType>{{*dtype, std::move(shape)}};
}

LoopRule fill_rule(const OpTypes& use) { return pointwise_loops(use, {}); }

}  // namespace

std::vector<OpDef> fill_ops() {
  OpDef def{.name = "Fill", .types = fill_types, .loops = fill_rule};
  def.cost = moves;
  def.localise = localise_shape;
  def.samples = {{.attrs = {{"shape", Shape{4, 3}}, {"value", 1.5}, {"dtype", "f64"}}},
                 {.attrs = {{"shape", Shape{2}}, {"value", 7.0}, {"dtype", "i64"}}}};
  def.attributes = {{"shape", kIntegers}, {"value", kReal}, {"dtype", kText}};
  return {def};
}

}  // namespace piper
