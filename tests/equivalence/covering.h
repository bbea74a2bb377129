// Chooses, of cases that are products of factors, so few that two values of two factors which any
// case has meet in one of the chosen, too. All of them where PIPER_COUNT asks for more.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "seed.h"

namespace piper::jobs {

using Values = std::vector<std::string>;               // of a case, one for each factor
using ValuePair = std::pair<std::pair<size_t, std::string>, std::pair<size_t, std::string>>;

inline std::set<ValuePair> pairs_of(const Values& values) {
  std::set<ValuePair> pairs;
  for (size_t a = 0; a < values.size(); ++a)
    for (size_t b = a + 1; b < values.size(); ++b)
      pairs.insert({{a, values[a]}, {b, values[b]}});
  return pairs;
}

// Always the next that has most pairs which those before it lack; `values_of` says a case's Values.
template <class Case, class ValuesOf>
std::vector<Case> covering(const std::vector<Case>& all, const ValuesOf& values_of) {
  if (given_count()) return all;
  std::vector<std::set<ValuePair>> left;
  for (const Case& one : all) left.push_back(pairs_of(values_of(one)));
  std::vector<Case> chosen;
  while (!left.empty()) {
    size_t best = 0;
    for (size_t i = 1; i < left.size(); ++i)
      if (left[i].size() > left[best].size()) best = i;
    if (left[best].empty()) break;
    chosen.push_back(all[best]);
    const std::set<ValuePair> found = left[best];
    for (std::set<ValuePair>& each : left)
      std::erase_if(each, [&](const ValuePair& pair) { return found.contains(pair); });
  }
  return chosen;
}

}  // namespace piper::jobs
