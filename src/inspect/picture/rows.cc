// Makes the rows of a picture from role programs: tasks, costs, streams.
#include "rows.h"

#include <algorithm>
#include <set>
#include <tuple>

namespace piper::timeline {
namespace {

// The stream on which the compiler puts the second half of an overlapped pair.
constexpr std::string_view kSecondHalf = "overlap";

bool is_chunk(const Instruction& one) {
  return one.kind == InstructionKind::kCompute && pass_of(one) != TaskPass::kU;
}
double units_of(const Instruction& one) {
  return !is_chunk(one) || one.micro < 0 ? 0 : one.pass == TaskPass::kB ? 2 : 1;
}

using TaskKey = std::tuple<TaskPass, int32_t, int32_t, int32_t, std::string_view>;
TaskKey task_of(const Step& step) {
  const Instruction& one = *step.one;
  return {one.pass, one.stage, one.micro, step.number + one.ahead, one.label};
}

class RowMaker {
 public:
  RowMaker(Row& row, PictureCosts costs, const std::vector<double>& flops)
      : row_(row), costs_(costs), flops_(flops) {}

  // Places the steps of a row, with so many bodies between prologue and epilogue where steps
  // overlap.
  void run(int32_t bodies) {
    const RoleProgram& role = *row_.role;
    const size_t streams = std::max<size_t>(role.streams.size(), 1);
    row_.streams.resize(streams);
    row_.next.resize(streams);
    row_.clock.resize(streams);
    row_.open_cell.assign(streams, -1);
    if (role.steps_ahead == 0) return add(role.body, 0);
    add(role.prologue, 0);
    for (int32_t body = 0; body < bodies; ++body) add(role.body, body);
    add(role.epilogue, bodies);
  }

 private:
  void add(const std::vector<Instruction>& list, int32_t number) {
    const auto section = static_cast<int32_t>(row_.sections.size());
    const auto first = static_cast<int32_t>(row_.steps.size());
    row_.sections.push_back({first, static_cast<int32_t>(list.size())});
    for (const Instruction& one : list) {
      row_.streams[at(one.stream)].push_back(static_cast<int32_t>(row_.steps.size()));
      Step& step = row_.steps.emplace_back();
      step.one = &one;
      step.number = number;
      step.section = section;
      step.cost = cost_of(step);
    }
    find_pairs(first);
  }
  // A task takes its units with its first instruction.
  double cost_of(const Step& step) {
    if (step.one->kind != InstructionKind::kCompute) return 0;
    if (costs_ == PictureCosts::kFlops) return flops_[at(step.one->program)];
    return seen_.insert(task_of(step)).second ? units_of(*step.one) : 0;
  }

  bool is_second(int32_t step) const {
    const size_t stream = at(row_.steps[at(step)].one->stream);
    return stream < row_.role->streams.size() && row_.role->streams[stream].name == kSecondHalf;
  }
  // The computations of a second half are together, right after those of the first: one task,
  // or both parts of a backward.
  void find_pairs(int32_t first) {
    std::vector<int32_t> chunks;
    for (auto s = first; at(s) < row_.steps.size(); ++s)
      if (is_chunk(*row_.steps[at(s)].one)) chunks.push_back(s);
    for (size_t i = 1; i < chunks.size(); ++i) {
      if (!is_second(chunks[i]) || is_second(chunks[i - 1])) continue;
      size_t begin = i - 1, end = i;
      while (begin > 0 && belongs(chunks[begin - 1], chunks[begin])) --begin;
      while (end < chunks.size() && is_second(chunks[end])) ++end;
      const auto pair = static_cast<int32_t>(row_.pairs.size());
      row_.pairs.push_back({{chunks[begin], chunks[i]}});
      for (size_t c = begin; c < end; ++c) {
        Step& step = row_.steps[at(chunks[c])];
        step.pair = pair;
        step.second = c >= i;
        row_.pairs.back().work[step.second ? 1 : 0] += step.cost;
      }
    }
  }
  bool belongs(int32_t before, int32_t after) const {
    const Step &a = row_.steps[at(before)], &b = row_.steps[at(after)];
    const bool halves = a.one->pass == TaskPass::kBI && b.one->pass == TaskPass::kBW &&
                        a.one->stage == b.one->stage && a.one->micro == b.one->micro &&
                        a.number == b.number;
    return a.pair < 0 && !is_second(before) && (halves || task_of(a) == task_of(b));
  }

  Row& row_;
  const PictureCosts costs_;
  const std::vector<double>& flops_;
  std::set<TaskKey> seen_;
};

}  // namespace

TaskPass pass_of(const Instruction& one) { return is_ordered(one.pass) ? one.pass : TaskPass::kU; }

void fill_row(Row& row, PictureCosts costs, const std::vector<double>& flops, int32_t bodies) {
  RowMaker(row, costs, flops).run(bodies);
}

}  // namespace piper::timeline
