#include "divide.h"

#include "piper/ops.h"

namespace piper {
namespace {

// The numbers nearest to `count`, one below and one above, that divide `total`: "2 or 4 would do".
std::string nearest_divisors(int64_t total, int64_t count) {
  int64_t below = std::min(count, total), above = count;
  while (below > 1 && total % below != 0) --below;
  while (above <= total && total % above != 0) ++above;
  if (above > total) return fmt::format("{} would do", below);
  return fmt::format("{} or {} would do", below, above);
}

Status check_samples(int64_t samples, const std::string& whose, const BatchCut& cut) {
  if (samples % cut.replicas != 0) {
    return fail(cut.at, "{} cannot be shared by {} replicas; {}", whose, cut.replicas,
                nearest_divisors(samples, cut.replicas));
  }
  int64_t each = samples / cut.replicas;
  if (each % cut.microbatches == 0) return ok_status();
  std::string part =
      cut.replicas == 1 ? "" : fmt::format(", {} for each of {} replicas,", each, cut.replicas);
  return fail(cut.at, "{}{} cannot be cut into {} microbatches; {}", whose, part, cut.microbatches,
              nearest_divisors(each, cut.microbatches));
}

}  // namespace

Status check_divisible(const Graph& graph, const BatchCut& cut) {
  PIPER_CHECK(cut.replicas >= 1 && cut.microbatches >= 1);
  if (graph.batch > 0) {
    PIPER_TRY(check_samples(graph.batch, fmt::format("a batch of {} samples", graph.batch), cut));
  }
  for (ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    if (value.batch_dim < 0) continue;
    int64_t extent = value.type.shape[static_cast<size_t>(value.batch_dim)];
    PIPER_TRY(check_samples(
        extent, fmt::format("input '{}' of {} samples", quote_control(value.name), extent), cut));
  }
  return ok_status();
}

}  // namespace piper
