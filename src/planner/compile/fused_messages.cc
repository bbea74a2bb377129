// Joins messages as directive `fuse` says, and counts what was joined.
#include "making.h"

namespace piper {
namespace {

// Counts what one round of joining did, for what is left from the round before.
void count_joined(const Fused& fused, const std::vector<JoinedMessages>& joined,
                  std::vector<FuseCount>& counts) {
  for (size_t g = 0; g < joined.size(); ++g) {
    FuseCount& count = counts[fused.rule[g]];
    if (joined[g].messages == 0) continue;
    count.left -= static_cast<int64_t>(fused.groups[g].size()) - joined[g].messages;
    count.apart += joined[g].messages - 1;
    if (count.example.empty()) count.example = joined[g].apart;
  }
}

}  // namespace

Result<Dag> fused_messages(Dag dag, std::vector<ComputeOrder>& order, const Strategy& strategy,
                           const Variables& variables, Explanations& explain) {
  PIPER_ASSIGN(const Fused fused, apply_fuse(dag, strategy, variables));
  std::vector<FuseCount> counts(strategy.fuses.size());
  for (size_t r = 0; r < counts.size(); ++r) counts[r].left = fused.matched[r];
  count_joined(fused, join_messages(dag, order, fused.groups), counts);
  PIPER_ASSIGN(const Fused shared, fuse_microbatches(dag, strategy, variables));
  if (!shared.groups.empty())
    count_joined(shared, join_messages(dag, order, shared.groups), counts);
  explain_fuse(dag, strategy, fused, counts, explain);
  return dag;
}

}  // namespace piper
