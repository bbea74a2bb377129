// Choices: their neighbours, and the strategy files that they stand for.
#include "choices.h"

#include <algorithm>

namespace piper::choices {

std::vector<int64_t> prime_factors(int64_t number) {
  std::vector<int64_t> factors;
  for (int64_t factor = 2; factor * factor <= number; ++factor)
    while (number % factor == 0) {
      factors.push_back(factor);
      number /= factor;
    }
  if (number > 1) factors.push_back(number);
  return factors;
}

bool is_possible(const SearchSpace& space, const SearchChoice& choice, int64_t batch) {
  if (choice.pipeline == 1 && choice.schedule != space.schedules.front()) return false;
  if (choice.replicas == 1 && choice.memory != space.memory.front()) return false;
  if (choice.tensor == 1 && (choice.sequence || choice.vocabulary)) return false;
  return batch <= 0 || batch % (choice.replicas * choice.microbatches) == 0;
}

void settle(const SearchSpace& space, SearchChoice& choice) {
  if (choice.pipeline == 1) choice.schedule = space.schedules.front();
  if (choice.replicas == 1) choice.memory = space.memory.front();
  if (choice.tensor == 1) choice.sequence = choice.vocabulary = false;
}

std::vector<SearchChoice> neighbours(const SearchSpace& space, const SearchChoice& of) {
  std::vector<SearchChoice> all;
  const auto add = [&](SearchChoice choice) {
    settle(space, choice);
    if (choice != of) all.push_back(std::move(choice));
  };
  constexpr int64_t SearchChoice::*kAxes[] = {&SearchChoice::pipeline, &SearchChoice::tensor,
                                              &SearchChoice::replicas};
  for (const auto from : kAxes)
    for (const auto to : kAxes) {
      int64_t last = 0;
      for (const int64_t factor : prime_factors(of.*from)) {
        if (from == to || std::exchange(last, factor) == factor) continue;
        SearchChoice choice = of;
        choice.*from /= factor;
        choice.*to *= factor;
        add(choice);
        // With as many microbatches for each replica and stage as before.
        if (to == &SearchChoice::replicas && choice.microbatches % factor == 0) {
          choice.microbatches /= factor;
          add(choice);
        } else if (from == &SearchChoice::replicas) {
          choice.microbatches *= factor;
          add(choice);
        }
      }
    }
  for (const int64_t times : {2, 4}) {
    SearchChoice more = of, less = of;
    more.microbatches *= times;
    add(more);
    if (of.microbatches % times != 0) continue;
    less.microbatches /= times;
    add(less);
  }
  for (const std::string& schedule : space.schedules) {
    SearchChoice choice = of;
    choice.schedule = schedule;
    add(choice);
  }
  for (const std::string& memory : space.memory) {
    SearchChoice choice = of;
    choice.memory = memory;
    add(choice);
  }
  for (const auto flag :
       {&SearchChoice::sequence, &SearchChoice::vocabulary, &SearchChoice::recompute}) {
    SearchChoice choice = of;
    choice.*flag = !(choice.*flag);
    add(choice);
  }
  return all;
}

std::vector<SearchChoice> beginnings(const SearchSpace& space, int64_t ranks, int64_t of_node) {
  std::vector<SearchChoice> all;
  for (const bool recompute : {false, true})
    for (const SearchSpace::Begin& begin : space.begin) {
      if (ranks % begin.pipeline != 0) continue;
      const int64_t tensor =
          begin.tensor > 0 ? begin.tensor : std::min(ranks / begin.pipeline, of_node);
      if (ranks % (begin.pipeline * tensor) != 0) continue;
      SearchChoice choice{begin.pipeline, tensor,       ranks / (begin.pipeline * tensor),
                          begin.schedule, begin.memory, begin.pipeline > 1 ? 4 * begin.pipeline : 1,
                          false,          tensor > 1,   recompute};
      settle(space, choice);
      if (std::find(all.begin(), all.end(), choice) == all.end()) all.push_back(std::move(choice));
    }
  return all;
}

std::string text_of(const SearchChoice& choice, const std::string& base) {
  std::string includes = fmt::format("<{}>, <{}>", choice.schedule, choice.memory);
  if (choice.tensor > 1) includes += choice.sequence ? ", <tensor/sequence>" : ", <tensor/tensor>";
  if (choice.vocabulary) includes += ", <tensor/vocabulary>";
  if (choice.recompute) includes += ", <memory/recompute>";
  std::string params = fmt::format("stages: {}, microbatches: {}, dp: {}", choice.pipeline,
                                   choice.microbatches, choice.replicas);
  if (choice.tensor > 1) params += fmt::format(", tp: {}", choice.tensor);
  return fmt::format("piper: 1\ninclude: [{}, {}]\nparams: {{{}}}\n", base, includes, params);
}

}  // namespace piper::choices
