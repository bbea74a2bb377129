// Applies the transforms of a time, for the compiler's list of steps.
#include "transforms.h"

namespace piper {
namespace {

template <class Made>
Result<Made> apply_all(TransformTime time, Made made, const TransformContext& context) {
  const Transform all[] = {
#define PIPER_FAMILY(name) name##_transform(),
#include "families.inc"
#undef PIPER_FAMILY
  };
  for (const Transform& one : all) {
    if (one.time != time) continue;
    const auto apply = std::get_if<Result<Made> (*)(Made, const TransformContext&)>(&one.apply);
    PIPER_CHECK(apply, "a transform is of another time than what it changes");
    PIPER_ASSIGN(made, (*apply)(std::move(made), context));
  }
  return made;
}

}  // namespace

Result<Graph> apply_transforms(TransformTime time, Graph forward, const TransformContext& context) {
  return apply_all(time, std::move(forward), context);
}
Result<Dag> apply_transforms(TransformTime time, Dag dag, const TransformContext& context) {
  return apply_all(time, std::move(dag), context);
}

}  // namespace piper
