// precision: gradients that are added up in 16 bits.
#include <algorithm>

#include "piper/planner/directives.h"

namespace piper {

Result<Graph> accumulate_in_halves(Graph step, const std::vector<Precision>& precisions) {
  const auto said = std::find_if(precisions.begin(), precisions.end(), [](const Precision& one) {
    return one.accumulate && *one.accumulate != DType::kF32;
  });
  if (said == precisions.end()) return step;
  const DType dtype = *said->accumulate;
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
  }
  return in_topological_order(std::move(step));
}

}  // namespace piper
