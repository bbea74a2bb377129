// What was found, as a strategy file with comments.
#include <filesystem>
#include <set>
#include <tuple>

#include "choices.h"

namespace piper {
namespace {

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

std::string row_of(const Tried& tried) {
  if (!tried.refused.empty())
    return fmt::format("refused  {}: {}", describe(tried.choice), quote_control(tried.refused));
  return fmt::format("{:>9}  idle {:>4}  exposed {:>4}  {:>9}{}  {}", human_seconds(tried.step),
                     percent(tried.idle), percent(tried.exposed),
                     human_bytes(static_cast<int64_t>(tried.peak_bytes)),
                     tried.fits() ? "" : " (does not fit)", describe(tried.choice));
}

}  // namespace

std::string describe(const SearchChoice& choice) {
  std::vector<std::string> words;
  if (choice.pipeline > 1)
    words.push_back(
        fmt::format("pipeline {} ({})", choice.pipeline, choices::last_of(choice.schedule)));
  if (choice.tensor > 1)
    words.push_back(fmt::format("tensor {}{}{}", choice.tensor,
                                choice.sequence ? " + sequence" : "",
                                choice.vocabulary ? " + vocabulary" : ""));
  if (choice.context > 1)
    words.push_back(
        fmt::format("context {} ({})", choice.context, choices::last_of(choice.attention)));
  if (choice.experts > 1) words.push_back(fmt::format("experts {}", choice.experts));
  if (choice.replicas > 1)
    words.push_back(
        fmt::format("replicas {} ({})", choice.replicas, choices::last_of(choice.memory)));
  words.push_back(
      fmt::format("{} microbatch{}", choice.microbatches, choice.microbatches == 1 ? "" : "es"));
  if (!choice.recompute.empty()) words.emplace_back(choices::last_of(choice.recompute));
  if (choice.keep > 0) words.back() += fmt::format(" ({} MiB)", choice.keep);
  for (const std::string& name : choice.beside) words.emplace_back(choices::last_of(name));
  return join(words, ", ");
}

std::string describe(const Tried& tried) {
  return tried.params.empty() ? describe(tried.choice) : tried.params;
}

std::string print_found(const Found& found, const SearchOptions& options) {
  constexpr size_t kShown = 5;
  const Tried& best = found.tried.front();
  PIPER_CHECK(best.fits(), "there is a strategy to print");
  std::string text = fmt::format("{}for {} on {}: {}.\n", kFoundLine,
                                 std::filesystem::path(options.compile.model).filename().string(),
                                 std::filesystem::path(options.cluster.path).filename().string(),
                                 describe(best.choice));
  text += fmt::format("# A step is predicted to take {}", human_seconds(best.step));
  if (found.bound > 0)
    text += fmt::format("; with all devices at the peak of their products it would take {}",
                        human_seconds(found.bound));
  text += fmt::format(".\n# Best of {} tried{}:\n", found.tried.size(),
                      found.ended ? "; changing one choice makes it no better" : "");
  // Choices that change nothing, as a budget that all keeps within, make no other plans.
  std::set<std::tuple<double, double, double>> shown;
  for (const Tried& one : found.tried)
    if (shown.size() < kShown && shown.insert({one.step, one.idle, one.peak_bytes}).second)
      text += "#   " + row_of(one) + "\n";
  if (best.choice.pipeline > 1)
    text += "# Stages are cut by what their ops take there: compile it with the same --cluster.\n";
  return text + best.text;
}

}  // namespace piper
