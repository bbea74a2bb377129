// In which order a plan adds up what its microbatches contribute, so that its reference plan
// adds in the same order. Private to the compile room.
#pragma once

#include <map>
#include <set>

#include "piper/planner/directives.h"
#include "piper/planner/schedule.h"

namespace piper {

// Says how the strategy's plan sums, for the single-device plan.
struct Summing {
  std::vector<int32_t> group_of;                        // see Dag
  std::map<std::string, std::vector<int32_t>> twin_of;  // by sum: see Sum
  std::set<std::string> each_micro;  // sums that every microbatch rounds: see Sum
  std::vector<std::string> region_tags;                 // of the chunks below
  size_t finer = 0;    // of these, the last ones: the single-device plan has none of them
  std::string tokens;  // of these, that of chunks of tokens; empty: none
  // By pass and tags of a chunk its microbatches in the order in which it adds them. Empty: each
  // sum adds its microbatches in ascending order, in each group of them.
  std::map<std::pair<TaskPass, std::vector<int32_t>>, std::vector<int32_t>> orders;
};

// Sets `orders`, and says in `lines` where they do not ascend, where chunks of tokens of several
// microbatches alternate in one sum, and where parts of a stage add in different orders.
void find_sum_orders(const Dag& dag, const std::vector<ComputeOrder>& compute, Summing& summing,
                     std::vector<std::string>& lines);

// Returns the policy by which the oracle, whose chunks have the tags of `summing`, adds as it says.
ListPolicy policy_like(const Dag& oracle, const Summing& summing);

}  // namespace piper
