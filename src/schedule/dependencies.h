// What tasks wait for.
#pragma once

#include <span>

#include "piper/dag.h"

namespace piper {

// The computations whose order is free; all else is derived from it.
bool is_ordered(const Task& task);

// Lists of tasks, by task, in one array.
class TaskLists {
 public:
  std::span<const TaskId> operator[](size_t task) const {
    return {tasks_.data() + end_[task], end_[task + 1] - end_[task]};
  }
  // The list of the next task.
  void add(std::span<const TaskId> tasks) {
    tasks_.insert(tasks_.end(), tasks.begin(), tasks.end());
    end_.push_back(tasks_.size());
  }

 private:
  std::vector<TaskId> tasks_;
  std::vector<size_t> end_{0};  // [t + 1]: of the list of t
};

// Tasks that must be issued before each task: writers of what it reads, and for receives the send.
// Ascending.
TaskLists find_dependencies(const Dag& dag);

}  // namespace piper
