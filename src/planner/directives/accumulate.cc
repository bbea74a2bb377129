// precision: gradients that are added up in 16 bits.
#include <algorithm>

#include "piper/ir/ops.h"
#include "piper/planner/directives.h"

namespace piper {
namespace {

// Lets ops that take no 16-bit gradient, as those of an optimizer's direction, read what it is in
// f32.
void widen_where_needed(Graph& step, const Param& param, const std::vector<NodeId>& readers) {
  ValueId wide;
  for (const NodeId reader : readers) {
    if (find_op(step.node(reader).op)->types(use_of(step, step.node(reader)))) continue;
    if (!wide.valid()) {
      const Value& gradient = step.value(param.gradient);
      const TensorType type{DType::kF32, gradient.type.shape};
      Node cast{.op = "Cast",
                .name = gradient.name + ".f32",
                .scope = step.node(reader).scope,
                .attrs = {{"to", std::string(info(type.dtype).name)}},
                .inputs = {param.gradient},
                .pass = Pass::kU};
      wide = step.node(step.add_node(std::move(cast), std::span(&type, 1))).outputs[0];
    }
    std::ranges::replace(step.node(reader).inputs, param.gradient, wide);
  }
}

}  // namespace

Result<Graph> accumulate_in_halves(Graph step, const std::vector<Precision>& precisions) {
  const auto said = std::find_if(precisions.begin(), precisions.end(), [](const Precision& one) {
    return one.accumulate && *one.accumulate != DType::kF32;
  });
  if (said == precisions.end()) return step;
  const DType dtype = *said->accumulate;
  const auto all_readers = readers(step);
  for (const Param& param : step.params) {
    if (!param.gradient.valid()) continue;
    if (step.value(param.gradient).type.dtype == DType::kF64)
      return fail(said->accumulate_at,
                  "precision: the gradient of '{}' is f64, and not added up in {}",
                  quote_control(step.value(param.value).name), info(dtype).name);
    const NodeId sum = step.value(param.gradient).producer;
    std::vector<ValueId> contributions = step.node(sum).inputs;
    for (ValueId& contribution : contributions) {
      const Value& value = step.value(contribution);
      const Node& maker = step.node(value.producer);
      Node cast{.op = "Cast",
                .name = value.name + ".rounded",
                .scope = maker.scope,
                .attrs = {{"to", std::string(info(dtype).name)}},
                .inputs = {contribution},
                .pass = maker.pass,
                .tags = maker.tags};
      const TensorType type{dtype, value.type.shape};
      contribution = step.node(step.add_node(std::move(cast), std::span(&type, 1))).outputs[0];
    }
    step.node(sum).inputs = std::move(contributions);
    step.value(param.gradient).type.dtype = dtype;
    widen_where_needed(step, param, all_readers[param.gradient.index()]);
  }
  return in_topological_order(std::move(step));
}

}  // namespace piper
