// How long the orders are that policies find for the rows of the zero-bubble paper, beside the
// paper's own and what none can be below, and how much time of processors the search takes.
#include <cmath>
#include <ctime>

#include "unit/zero_bubble_rows.h"

namespace piper {
namespace {

// Returns the time of all threads of this process, in milliseconds.
double processor_time() {
  return 1e3 * static_cast<double>(std::clock()) / static_cast<double>(CLOCKS_PER_SEC);
}

int run(int repeats) {
  double all = 0;
  bool is_good = true;
  fmt::print("devices microbatches chunks memory | bubble  table   bound | ms\n");
  for (const published::OrderRow& row : published::order_rows()) {
    const auto made = published::pipeline_of(row);
    if (!made) return fmt::print("{}\n", print_error(made.error())), 1;
    const TaskLists deps = find_dependencies(made->dag);
    const ListPolicy policy = published::policy_of(row, made->dag);
    double least = INFINITY;
    OrderLength found;
    for (int turn = 0; turn < repeats; ++turn) {
      const double begin = processor_time();
      const auto orders = list_schedule(made->dag, deps, policy);
      least = std::min(least, processor_time() - begin);
      if (!orders) return fmt::print("{}\n", print_error(orders.error())), 1;
      found = length_of(made->dag, deps, policy, *orders);
    }
    all += least;
    const double bubble = row.bubble(found.length);
    is_good = is_good && bubble <= row.papers;
    fmt::print("{:7} {:12} {:6} {:5}p | {:.4f}  {:.4f}  {:.4f} | {:.1f}{}\n", row.p, row.m,
               row.chunks, row.memory, bubble, row.papers, row.bubble(found.bound), least,
               bubble > row.papers ? "  longer than the table's" : "");
  }
  fmt::print("all rows: {:.0f} ms of processors' time (bar: 100)\n", all);
  return is_good ? 0 : 1;
}

}  // namespace
}  // namespace piper

int main(int count, char** arguments) {
  return piper::run(count > 1 ? std::max(std::atoi(arguments[1]), 1) : 5);
}
