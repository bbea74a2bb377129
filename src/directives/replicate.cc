#include <algorithm>

#include "piper/directives.h"

namespace piper {

Result<Dag> apply_replicate(Dag dag, const std::vector<Replicate>& replicates, Explanations& out) {
  std::vector<std::string> axes;
  for (const DagAxis& axis : dag.mesh) axes.push_back(axis.name);
  for (size_t i = 0; i < replicates.size(); ++i) {
    const Replicate& replicate = replicates[i];
    if (std::find(axes.begin(), axes.end(), replicate.over) == axes.end())
      return fail(replicate.over_at, "replicate: the mesh has no axis '{}'{}", replicate.over,
                  did_you_mean(replicate.over, axes));
    if (i > 0)
      return fail(replicate.at,
                  "not supported: a second replicate directive; one axis holds all replicas")
          .with_note(fmt::format("the first is at line {}", replicates[0].at.line));
    dag.bucket_bytes = replicate.bucket_bytes;
    dag.reduce_stream = static_cast<int32_t>(dag.streams.size());
    dag.streams.push_back(replicate.stream);
    int64_t gradients = 0, bytes = 0;
    for (const Param& param : dag.graph.params) {
      if (!param.gradient.valid()) continue;
      ++gradients;
      bytes += dag.graph.value(param.gradient).type.bytes();
    }
    out.push_back({replicate.at,
                   "replicate",
                   {fmt::format("{} gradients ({}) are summed over {} once a step, in messages of "
                                "at least {}, on stream '{}'",
                                gradients, human_bytes(bytes), replicate.over,
                                human_bytes(replicate.bucket_bytes), replicate.stream)}});
  }
  return dag;
}

}  // namespace piper
