// Which instructions of a role run where steps overlap.
//
// A body that runs for step s, counted from 0, has instructions of the steps s to s + n, where n is
// RoleProgram::steps_ahead. A *window* keeps of these the ones that are `first` to `end` - 1 steps
// ahead. N steps in a row are the windows for s = -n … N - 1 that keep what is of the steps 0 to
// N - 1: at first windows without `first`, and at the end without what is farthest ahead.
#pragma once

#include "piper/plan/role.h"

namespace piper {

inline constexpr int32_t kMostStepsAhead = 63;

struct Window {
  int32_t first = 0, end = 1;
  bool operator==(const Window&) const = default;
};

// Returns "the next step", or "a step 2 ahead".
std::string later_step(int32_t steps);

// Returns the window that runs for `step`, where those of [begin, end) are run and no others.
Window window_at(int32_t steps_ahead, int64_t step, int64_t begin, int64_t end);

// Returns all windows: those of a role's lists first, which are prologue, body and epilogue.
inline constexpr size_t kWindowsInLists = 3;
std::vector<Window> windows_of(int32_t steps_ahead);

// Returns how many instructions all windows have together at most, and how many may be.
inline constexpr int64_t kMostInWindows = int64_t{1} << 22;
int64_t most_in_windows(const RoleProgram& role);

// Returns the instructions of a window. As in a prologue, `ahead` counts from the first step of the
// window, and what reads older versions of states reads them as they are before that step. Each
// instruction is ordered after all that it is ordered after in the role's own list.
std::vector<Instruction> instructions_of(const RoleProgram& role, const Window& window);

}  // namespace piper
