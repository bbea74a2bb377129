// The pass of a step that a task or an instruction belongs to.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

namespace piper {

// The values are the letters that plans and their text forms hold.
enum class TaskPass : char {
  kNone = ' ',     // not stated
  kMove = '-',     // communication and input, which belong to no pass
  kPrepare = 'P',  // what the step needs before its first microbatch: label counts
  kF = 'F',        // forward
  kB = 'B',        // a whole backward
  kBI = 'I',       // its input-gradient part, where an order names the parts
  kBW = 'W',       // its weight-gradient part
  kR = 'R',        // forward ops that run again for a backward, where an order names them
  kU = 'U',        // sums, clipping and updates
};

struct TaskPassName {
  TaskPass pass;
  const char* name;  // in strategies and labels
};
inline constexpr std::array<TaskPassName, 9> kTaskPasses = {{{TaskPass::kNone, " "},
                                                             {TaskPass::kMove, "-"},
                                                             {TaskPass::kPrepare, "P"},
                                                             {TaskPass::kF, "F"},
                                                             {TaskPass::kB, "B"},
                                                             {TaskPass::kBI, "BI"},
                                                             {TaskPass::kBW, "BW"},
                                                             {TaskPass::kR, "R"},
                                                             {TaskPass::kU, "U"}}};
constexpr const char* name_of(TaskPass pass) {
  return std::ranges::find(kTaskPasses, pass, &TaskPassName::pass)->name;
}
constexpr std::optional<TaskPass> find_task_pass(std::string_view name) {
  const auto row = std::ranges::find(kTaskPasses, name, &TaskPassName::name);
  return row == kTaskPasses.end() ? std::nullopt : std::optional(row->pass);
}

// What runs again for a backward belongs to it.
constexpr bool is_backward(TaskPass pass) {
  return pass == TaskPass::kB || pass == TaskPass::kBI || pass == TaskPass::kBW ||
         pass == TaskPass::kR;
}
// Returns whether an order names its tasks, which each microbatch has.
constexpr bool is_ordered(TaskPass pass) { return pass == TaskPass::kF || is_backward(pass); }

// Returns whether a pass has this letter, as text forms and plan files hold it.
constexpr bool is_letter_of(TaskPass, int32_t letter) {
  return std::ranges::any_of(kTaskPasses, [&](const TaskPassName& row) {
    return static_cast<int32_t>(row.pass) == letter;
  });
}

}  // namespace piper
