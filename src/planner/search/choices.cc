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

bool is_possible(const Choice& choice, int64_t batch) {
  if (choice.pipeline == 1 && choice.schedule != "1f1b") return false;
  if (choice.replicas == 1 && choice.memory != "ddp") return false;
  if (choice.tensor == 1 && (choice.sequence || choice.vocabulary)) return false;
  return batch <= 0 || batch % (choice.replicas * choice.microbatches) == 0;
}

void settle(Choice& choice) {
  if (choice.pipeline == 1) choice.schedule = "1f1b";
  if (choice.replicas == 1) choice.memory = "ddp";
  if (choice.tensor == 1) choice.sequence = choice.vocabulary = false;
}

std::vector<Choice> neighbours(const Choice& of) {
  std::vector<Choice> all;
  const auto add = [&](Choice choice) {
    settle(choice);
    if (choice != of) all.push_back(std::move(choice));
  };
  constexpr int64_t Choice::*kAxes[] = {&Choice::pipeline, &Choice::tensor, &Choice::replicas};
  for (const auto from : kAxes)
    for (const auto to : kAxes) {
      int64_t last = 0;
      for (const int64_t factor : prime_factors(of.*from)) {
        if (from == to || std::exchange(last, factor) == factor) continue;
        Choice choice = of;
        choice.*from /= factor;
        choice.*to *= factor;
        add(choice);
        // With as many microbatches for each replica and stage as before.
        if (to == &Choice::replicas && choice.microbatches % factor == 0) {
          choice.microbatches /= factor;
          add(choice);
        } else if (from == &Choice::replicas) {
          choice.microbatches *= factor;
          add(choice);
        }
      }
    }
  for (const int64_t times : {2, 4}) {
    Choice more = of, less = of;
    more.microbatches *= times;
    add(more);
    if (of.microbatches % times != 0) continue;
    less.microbatches /= times;
    add(less);
  }
  for (const std::string_view schedule : kSchedules) {
    Choice choice = of;
    choice.schedule = schedule;
    add(choice);
  }
  for (const std::string_view memory : kMemory) {
    Choice choice = of;
    choice.memory = memory;
    add(choice);
  }
  for (const auto flag : {&Choice::sequence, &Choice::vocabulary, &Choice::recompute}) {
    Choice choice = of;
    choice.*flag = !(choice.*flag);
    add(choice);
  }
  return all;
}

std::vector<Choice> usual_ones(int64_t ranks, int64_t of_node) {
  std::vector<Choice> all;
  const auto add = [&](int64_t pipeline, int64_t tensor, const char* schedule, const char* memory,
                       bool recompute) {
    if (pipeline > ranks || ranks % (pipeline * tensor) != 0) return;
    Choice choice{pipeline, tensor,     ranks / (pipeline * tensor),
                  schedule, memory,     pipeline > 1 ? 4 * pipeline : 1,
                  false,    tensor > 1, recompute};
    settle(choice);
    if (std::find(all.begin(), all.end(), choice) == all.end()) all.push_back(std::move(choice));
  };
  for (const bool recompute : {false, true}) {
    add(1, 1, "1f1b", "ddp", recompute);
    add(1, 1, "1f1b", "zero3", recompute);
    add(1, std::min(ranks, of_node), "1f1b", "zero1", recompute);
    for (const int64_t pipeline : {2, 4, 8}) {
      add(pipeline, 1, "1f1b", "zero1", recompute);
      add(pipeline, 1, "zbv", "zero1", recompute);
      add(pipeline, std::min(ranks / pipeline, of_node), "interleaved-1f1b", "zero1", recompute);
    }
  }
  return all;
}

std::string text_of(const Choice& choice, const std::string& base) {
  std::string includes = fmt::format("<schedules/{}>, <memory/{}>", choice.schedule, choice.memory);
  if (choice.tensor > 1) includes += choice.sequence ? ", <tensor/sequence>" : ", <tensor/tensor>";
  if (choice.vocabulary) includes += ", <tensor/vocabulary>";
  if (choice.recompute) includes += ", <memory/recompute>";
  std::string params = fmt::format("stages: {}, microbatches: {}, dp: {}", choice.pipeline,
                                   choice.microbatches, choice.replicas);
  if (choice.tensor > 1) params += fmt::format(", tp: {}", choice.tensor);
  return fmt::format("piper: 1\ninclude: [{}, {}]\nparams: {{{}}}\n", base, includes, params);
}

}  // namespace piper::choices
