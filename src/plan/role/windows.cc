// Takes from a role the instructions that run while steps begin and end.
#include "piper/plan/windows.h"

#include <algorithm>
#include <utility>

namespace piper {
namespace {

void add_all(const std::vector<int32_t>& waits, std::vector<int32_t>& to) {
  to.insert(to.end(), waits.begin(), waits.end());
  std::sort(to.begin(), to.end());
  to.erase(std::unique(to.begin(), to.end()), to.end());
}

// Drops the instructions that `keeps` refuses. What comes after one of them, on its stream or
// because it waits, comes after all that this one would have come after.
template <class Keeps>
std::vector<Instruction> filtered(const RoleProgram& role, const std::vector<Instruction>& list,
                                  const Keeps& keeps) {
  std::vector<Instruction> kept;
  std::vector<std::vector<int32_t>> behind(list.size());  // by position: what is complete by then
  std::vector<std::vector<int32_t>> open(std::max<size_t>(role.streams.size(), 1));  // by stream
  for (size_t i = 0; i < list.size(); ++i) {
    std::vector<int32_t>& before = open[static_cast<size_t>(list[i].stream)];
    for (const int32_t wait : list[i].waits) add_all(behind[static_cast<size_t>(wait)], before);
    if (keeps(list[i])) {
      const auto number = static_cast<int32_t>(kept.size());
      kept.push_back(list[i]);
      std::erase_if(before, [&](int32_t wait) {
        return kept[static_cast<size_t>(wait)].stream == list[i].stream;
      });
      kept.back().waits = std::exchange(before, {number});
    }
    behind[i] = before;
  }
  return kept;
}

}  // namespace

std::string later_step(int32_t steps) {
  return steps == 1 ? "the next step" : fmt::format("a step {} ahead", steps);
}

Window window_at(int32_t steps_ahead, int64_t step, int64_t begin, int64_t end) {
  const auto at = [&](int64_t ahead) {
    return static_cast<int32_t>(std::clamp<int64_t>(ahead, 0, int64_t{steps_ahead} + 1));
  };
  return {at(begin - step), at(end - step)};
}

std::vector<Window> windows_of(int32_t steps_ahead) {
  const int32_t all = steps_ahead + 1;
  std::vector<Window> windows{{1, all}, {0, all}, {0, steps_ahead}};
  for (int32_t first = 0; first < all; ++first)
    for (int32_t end = first + 1; end <= all; ++end)
      if (const Window window{first, end}; std::ranges::count(windows, window) == 0)
        windows.push_back(window);
  return windows;
}

int64_t most_in_windows(const RoleProgram& role) {
  const int64_t longest =
      std::max({std::ssize(role.prologue), std::ssize(role.body), std::ssize(role.epilogue)});
  return std::ssize(windows_of(role.steps_ahead)) * longest;
}

std::vector<Instruction> instructions_of(const RoleProgram& role, const Window& window) {
  const int32_t all = role.steps_ahead + 1;
  if (window == Window{0, all}) return role.body;
  const bool begins = window.first > 0;  // else it goes on with the first step
  const std::vector<Instruction>& list = begins ? role.prologue : role.epilogue;
  if (window == (begins ? Window{1, all} : Window{0, all - 1})) return list;
  const int32_t later = begins ? window.first - 1 : 0;
  std::vector<Instruction> kept = filtered(role, list, [&](const Instruction& one) {
    return one.ahead >= later && one.ahead < window.end - (begins ? 1 : 0);
  });
  if (later == 0) return kept;
  std::vector<int32_t> older(role.buffers.size(), -1);
  for (size_t b = 0; b < older.size(); ++b)
    if (const int32_t of = role.tensor(static_cast<int32_t>(b)).previous_of; of >= 0)
      older[static_cast<size_t>(of)] = static_cast<int32_t>(b);
  for (Instruction& one : kept) {
    one.ahead -= later;
    for (int32_t& arg : one.args)
      for (int32_t k = 0; k < later && older[static_cast<size_t>(arg)] >= 0; ++k)
        arg = older[static_cast<size_t>(arg)];
  }
  return kept;
}

}  // namespace piper
