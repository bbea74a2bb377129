// Which checkpoints a folder holds, and which of them stay. Called by who writes checkpoints or
// looks for the newest.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "piper/runtime/checkpoint.h"

namespace piper {
namespace {

constexpr std::string_view kPrefix = "step-";

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

Error says_no_keep(const std::string& part, const std::string& name) {
  const std::vector<std::string> names{"last", "every", "best"};
  return fail(
             "'{}' does not say what to keep: expected last=N, every=N or best=N, each once, N "
             "from 1 on{}",
             part, did_you_mean(name, names))
      .with_code(ExitCode::kUsage);
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:09}", kPrefix, step); }

std::string checkpoints_in(const std::string& folder) {
  std::error_code ignored;
  const std::string inside = folder + "/checkpoints";
  if (!std::filesystem::is_directory(inside, ignored)) return folder;
  const auto holds_some = [](const std::string& place) {
    const auto steps = list_checkpoints(file_storage(), place);
    return steps && !steps->empty();
  };
  return holds_some(folder) && !holds_some(inside) ? folder : inside;
}

Result<std::vector<int64_t>> list_checkpoints(Storage& storage, const std::string& folder) {
  PIPER_ASSIGN(const std::vector<std::string> names, storage.list(folder));
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    if (!name.starts_with(kPrefix)) continue;
    const auto step = whole_number(std::string_view(name).substr(kPrefix.size()));
    if (step && checkpoint_name(*step) == name) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

Result<Keep> parse_keep(std::string_view text) {
  Keep keep;
  const std::pair<std::string_view, int64_t*> known[] = {
      {"last", &keep.last}, {"every", &keep.every}, {"best", &keep.best}};
  for (const std::string& part : split_text(text, ',')) {
    const size_t sign = part.find('=');
    const std::string name = part.substr(0, sign);
    const auto found = std::find_if(std::begin(known), std::end(known),
                                    [&](const auto& one) { return one.first == name; });
    const auto value =
        sign == part.npos ? std::nullopt : whole_number(std::string_view(part).substr(sign + 1));
    const bool is_again = found != std::end(known) && *found->second > 0;
    if (found == std::end(known) || !value || *value < 1 || is_again) {
      return says_no_keep(part, name);
    }
    *found->second = *value;
  }
  return keep;
}

std::vector<int64_t> surplus_checkpoints(
    const Keep& keep, std::span<const std::pair<int64_t, std::optional<double>>> all) {
  if (keep.last == 0 && keep.every == 0 && keep.best == 0) return {};
  std::vector<std::pair<int64_t, std::optional<double>>> newest(all.begin(), all.end());
  std::sort(newest.begin(), newest.end(), [](auto& a, auto& b) { return a.first > b.first; });
  auto best = newest;
  std::erase_if(best, [](const auto& one) { return !one.second || !std::isfinite(*one.second); });
  std::stable_sort(best.begin(), best.end(),
                   [](auto& a, auto& b) { return *a.second < *b.second; });
  best.resize(std::min(best.size(), static_cast<size_t>(keep.best)));
  std::vector<int64_t> surplus;
  for (size_t k = 1; k < newest.size(); ++k) {
    const int64_t step = newest[k].first;
    const bool stays =
        k < static_cast<size_t>(keep.last) || (keep.every > 0 && step % keep.every == 0) ||
        std::any_of(best.begin(), best.end(), [&](const auto& one) { return one.first == step; });
    if (!stays) surplus.push_back(step);
  }
  return surplus;
}

}  // namespace piper
