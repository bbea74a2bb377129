// The directive local_steps: copies of the model at its sites, and steps of outer optimizers.
#pragma once

#include "piper/planner/directives.h"

namespace piper {

// Returns how many sites take local steps; 1 where none do.
int64_t sites_of(const Strategy& strategy);
// Adds the place of each site's ops, by the tag that has the name of its axis. Error: what does not
// go with local steps.
Result<Strategy> place_sites(Strategy strategy);
// Describes what one entry of local_steps adds to the step: its outer optimizer's, and before a
// delayed one the step that takes its distances.
struct OuterGraph {
  Graph graph;
  OuterUpdate update;   // when it runs
  bool beside = false;  // a step, and not after it
  SourceSpan at;        // of the entry
};
struct Sites {
  Graph forward;
  std::vector<OuterGraph> outer;  // in the order in which those of one step run
};
// Makes a copy of the model for each site, and the steps of outer optimizers, where statistics take
// their mean over the sites: with ops in the regions, by `region_tags`, that read the parameters.
// Parts that are trained by themselves are noted in `trained` for each site, too.
Result<Sites> make_sites(Graph forward, const Strategy& strategy,
                         const std::vector<std::string>& region_tags, const Variables& variables,
                         std::map<std::string, TrainedPart>& trained, Explanations& out);

}  // namespace piper
