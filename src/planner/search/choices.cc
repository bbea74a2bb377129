// Choices: their neighbours, and the strategy files that they stand for.
#include "choices.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "piper/base/yaml.h"

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
  if ((choice.context > 1) == choice.attention.empty()) return false;
  if (choice.experts > 1 && space.experts.empty()) return false;
  const bool has_budget = !choice.recompute.empty() && choice.recompute == space.budget;
  if (has_budget != (choice.keep > 0)) return false;
  // Experts have samples of their own, too.
  if (batch <= 0) return true;
  for (const int64_t part : {choice.replicas, choice.experts, choice.microbatches}) {
    if (batch % part != 0) return false;
    batch /= part;
  }
  return true;
}

namespace {
// Returns whether the choice has what the file is beside.
bool has_place(const SearchSpace::Beside& file, const SearchChoice& choice) {
  const auto part = std::ranges::find(kParts, file.needs, &ChoicePart::name);
  return part == std::end(kParts) || part->is_in(choice);
}
}  // namespace

void settle(const SearchSpace& space, SearchChoice& choice) {
  if (choice.pipeline == 1) choice.schedule = space.schedules.front();
  if (choice.recompute.empty() || choice.recompute != space.budget) choice.keep = 0;
  if (choice.replicas == 1) choice.memory = space.memory.front();
  if (choice.tensor == 1) choice.sequence = choice.vocabulary = false;
  for (const SearchSpace::Beside& file : space.beside)
    if (!has_place(file, choice)) choice.beside.erase(file.name);
  if (choice.context == 1) choice.attention.clear();
  if (choice.context > 1 && choice.attention.empty() && !space.context.empty())
    choice.attention = space.context.front();
}

int64_t kept_of(const SearchChoice& choice, double bytes) {
  const auto under_way = static_cast<double>(std::min(choice.pipeline, choice.microbatches));
  return static_cast<int64_t>(bytes / under_way / (int64_t{1} << 20));
}

// Adds other ways to recompute. A budget begins with what is left of the memory, of which each
// microbatch under way takes a part, and then goes up and down.
template <class Add>
void vary_recompute(const SearchSpace& space, const SearchChoice& of, double spare, Add add) {
  SearchChoice choice = of;
  choice.recompute.clear();
  add(choice);
  for (const std::string& way : space.recompute) {
    choice.recompute = way;
    add(choice);
  }
  if (space.budget.empty()) return;
  choice = of;
  choice.recompute = space.budget;
  if (of.keep == 0) {
    choice.keep = kept_of(of, spare);
    if (choice.keep > 0) add(choice);
    return;
  }
  for (const double times : {0.5, 0.8, 1.25, 2.0}) {
    choice.keep = std::max<int64_t>(1, std::llround(static_cast<double>(of.keep) * times));
    add(choice);
  }
}

std::vector<SearchChoice> neighbours(const SearchSpace& space, const SearchChoice& of,
                                     double spare) {
  std::vector<SearchChoice> all;
  const auto add = [&](SearchChoice choice) {
    settle(space, choice);
    if (choice != of) all.push_back(std::move(choice));
  };
  constexpr int64_t SearchChoice::*kAxes[] = {&SearchChoice::pipeline, &SearchChoice::tensor,
                                              &SearchChoice::replicas, &SearchChoice::context,
                                              &SearchChoice::experts};
  for (const auto from : kAxes)
    for (const auto to : kAxes) {
      int64_t last = 0;
      for (const int64_t factor : prime_factors(of.*from)) {
        if (from == to || std::exchange(last, factor) == factor) continue;
        SearchChoice choice = of;
        choice.*from /= factor;
        choice.*to *= factor;
        add(choice);
        // Each replica and stage then has as many microbatches as before.
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
  for (const std::string& attention : space.context) {
    SearchChoice choice = of;
    choice.attention = attention;
    add(choice);
  }
  vary_recompute(space, of, spare, add);
  for (const auto flag : {&SearchChoice::sequence, &SearchChoice::vocabulary}) {
    SearchChoice choice = of;
    choice.*flag = !(choice.*flag);
    add(choice);
  }
  for (const SearchSpace::Beside& file : space.beside) {
    SearchChoice choice = of;
    if (choice.beside.erase(file.name) == 0) choice.beside.insert(file.name);
    add(choice);
  }
  return all;
}

std::vector<SearchChoice> beginnings(const SearchSpace& space, int64_t ranks, int64_t of_node,
                                     int64_t batch) {
  std::vector<SearchChoice> all;
  for (const bool recomputes : {false, true})
    for (const SearchSpace::Begin& begin : space.begin) {
      if (recomputes && space.recompute.empty()) continue;
      if (ranks % begin.pipeline != 0) continue;
      const int64_t tensor =
          begin.tensor > 0 ? begin.tensor : std::min(ranks / begin.pipeline, of_node);
      if (ranks % (begin.pipeline * tensor) != 0) continue;
      SearchChoice choice{.pipeline = begin.pipeline,
                          .tensor = tensor,
                          .replicas = ranks / (begin.pipeline * tensor),
                          .schedule = begin.schedule,
                          .memory = begin.memory,
                          .microbatches = begin.pipeline > 1 ? 4 * begin.pipeline : 1,
                          .vocabulary = tensor > 1,
                          .recompute = {},
                          .attention = {},
                          .beside = {}};
      // With several stages, each keeps its inputs; one stage keeps those of its layers.
      if (recomputes)
        choice.recompute = begin.pipeline > 1 ? space.recompute.back() : space.recompute.front();
      settle(space, choice);
      const auto add = [&] {
        if (std::find(all.begin(), all.end(), choice) == all.end()) all.push_back(choice);
      };
      add();
      // One stage begins with all samples at once, and with one sample at a time.
      if (begin.pipeline > 1 || batch % choice.replicas != 0) continue;
      choice.microbatches = std::max<int64_t>(batch / choice.replicas, 1);
      add();
    }
  return all;
}

std::vector<std::string> names_of(const SearchSpace& space, const SearchChoice& choice) {
  std::vector<std::string> names;
  if (choice.experts > 1) names.push_back(space.experts);
  if (choice.context > 1) names.push_back(choice.attention);
  names.insert(names.end(), choice.beside.begin(), choice.beside.end());
  return names;
}

std::string text_of(const SearchSpace& space, const SearchChoice& choice, const std::string& base) {
  std::vector<std::string> names = {choice.schedule, choice.memory};
  std::ranges::move(names_of(space, choice), std::back_inserter(names));
  if (choice.tensor > 1) names.emplace_back(choice.sequence ? "tensor/sequence" : "tensor/tensor");
  if (choice.vocabulary) names.emplace_back("tensor/vocabulary");
  if (!choice.recompute.empty()) names.push_back(choice.recompute);
  std::string includes = yaml::in_quotes(base);
  for (const std::string& name : names) includes += fmt::format(", <{}>", name);
  std::string params = fmt::format("stages: {}, microbatches: {}, dp: {}", choice.pipeline,
                                   choice.microbatches, choice.replicas);
  for (const auto& [name, ranks] :
       {std::pair("ep", choice.experts), {"cp", choice.context}, {"tp", choice.tensor}})
    if (ranks > 1) params += fmt::format(", {}: {}", name, ranks);
  if (choice.keep > 0) params += fmt::format(", keep: {}", choice.keep);
  return fmt::format("piper: 1\ninclude: [{}]\nparams: {{{}}}\n", includes, params);
}

}  // namespace piper::choices
