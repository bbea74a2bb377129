// Makes the rows of a simulation from role programs: steps, lanes, overlapped pairs.
#include "rows.h"

#include <algorithm>
#include <tuple>

#include "piper/plan/lanes.h"
#include "piper/plan/windows.h"

namespace piper {

TaskPass shown_pass(const Instruction& one) {
  return is_ordered(one.pass) ? one.pass : TaskPass::kU;
}

namespace timeline {
namespace {

// The stream on which the compiler puts the second half of an overlapped pair.
constexpr std::string_view kSecondHalf = "overlap";

bool is_chunk(const Instruction& one) {
  return one.kind == InstructionKind::kCompute && shown_pass(one) != TaskPass::kU;
}

class RowMaker {
 public:
  explicit RowMaker(Row& row) : row_(row), role_(*row.out->role), threads_(role_) {}

  void run(const RankCosts& costs, int32_t steps) {
    row_.works = costs.lanes;
    const size_t lanes = row_.works == RankLanes::kStreams
                             ? std::max<size_t>(role_.streams.size(), 1)
                         : row_.works == RankLanes::kThread ? 1
                                                            : 2;
    row_.lanes.resize(lanes);
    row_.next.resize(lanes);
    row_.last.assign(lanes, -1);
    row_.slowed = costs.slowed;
    row_.between_steps = costs.between_steps;
    const int32_t most = role_.steps_ahead;
    for (int32_t first = most; first > 0; --first)
      add(role_.prologue, costs.prologue, 1 - first, {first - 1, most});
    for (int32_t step = 0; step < steps; ++step) add(role_.body, costs.body, step, {0, most + 1});
    for (int32_t end = most; end > 0; --end)
      add(role_.epilogue, costs.epilogue, steps + most - end, {0, end});
  }

 private:
  // Adds what the list has of the steps that are ahead as the window says.
  void add(const std::vector<Instruction>& list, const std::vector<StepCost>& costs, int32_t number,
           Window window) {
    TimedRow& out = *row_.out;
    const auto section = static_cast<int32_t>(out.sections.size());
    const auto first = static_cast<int32_t>(out.steps.size());
    const auto is_in = [&](const Instruction& one) {
      return one.ahead >= window.first && one.ahead < window.end;
    };
    const auto count = static_cast<int32_t>(std::ranges::count_if(list, is_in));
    out.sections.push_back({first, count});
    out.steps.reserve(out.steps.size() + at(count));
    row_.steps.reserve(row_.steps.size() + at(count));
    row_.issued.reserve(row_.issued.size() + at(count));
    row_.sections.push_back({count});
    std::vector<int32_t>& step_of = row_.sections.back().step_of;
    step_of.assign(list.size(), -1);
    std::vector<int32_t> last_on(std::max<size_t>(role_.streams.size(), 1), -1);
    double issued = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!is_in(list[i])) continue;
      const auto step = step_of[i] = static_cast<int32_t>(out.steps.size());
      out.steps.push_back({&list[i], number, section, costs[i]});
      row_.issued.push_back(issued += costs[i].host);
      StepState& state = row_.steps.emplace_back();
      state.lane = lane_of(list[i]);
      int32_t& before = last_on[at(list[i].stream)];
      if (before >= 0 && row_.steps[at(before)].lane != state.lane) state.before = before;
      before = step;
      row_.lanes[at(state.lane)].push_back(step);
    }
    find_pairs(first);
  }
  int32_t lane_of(const Instruction& one) const {
    if (row_.works == RankLanes::kStreams) return one.stream;
    if (row_.works == RankLanes::kThread) return 0;
    return threads_.of(one);
  }

  const Instruction& one(int32_t step) const { return *row_.out->steps[at(step)].one; }
  bool is_second(int32_t step) const {
    const size_t stream = at(one(step).stream);
    return stream < role_.streams.size() && role_.streams[stream].name == kSecondHalf;
  }
  // The computations of a second half are together, right after those of the first: one task,
  // or both parts of a backward.
  void find_pairs(int32_t first) {
    if (row_.works != RankLanes::kStreams) return;  // a thread does one after the other
    std::vector<int32_t> chunks;
    for (auto s = first; at(s) < row_.steps.size(); ++s)
      if (is_chunk(one(s))) chunks.push_back(s);
    for (size_t i = 1; i < chunks.size(); ++i) {
      if (!is_second(chunks[i]) || is_second(chunks[i - 1])) continue;
      size_t begin = i - 1, end = i;
      while (begin > 0 && belongs(chunks[begin - 1], chunks[begin])) --begin;
      while (end < chunks.size() && is_second(chunks[end])) ++end;
      const auto pair = static_cast<int32_t>(row_.pairs.size());
      row_.pairs.push_back({{chunks[begin], chunks[i]}});
      for (size_t c = begin; c < end; ++c) {
        TimedStep& step = row_.out->steps[at(chunks[c])];
        row_.steps[at(chunks[c])].pair = pair;
        step.second = c >= i;
        row_.pairs.back().work[step.second ? 1 : 0] += step.cost.device;
      }
    }
  }
  bool belongs(int32_t before, int32_t after) const {
    const TimedStep &a = row_.out->steps[at(before)], &b = row_.out->steps[at(after)];
    const auto task = [](const TimedStep& step) {
      return std::tuple(step.one->pass, step.one->stage, step.one->micro,
                        step.number + step.one->ahead, std::string_view(step.one->label));
    };
    const bool halves = a.one->pass == TaskPass::kBI && b.one->pass == TaskPass::kBW &&
                        a.one->stage == b.one->stage && a.one->micro == b.one->micro &&
                        a.number == b.number;
    return row_.steps[at(before)].pair < 0 && !is_second(before) && (halves || task(a) == task(b));
  }

  Row& row_;
  const RoleProgram& role_;
  const TwoThreads threads_;
};

}  // namespace

void fill_row(Row& row, const RankCosts& costs, int32_t steps) { RowMaker(row).run(costs, steps); }

}  // namespace timeline
}  // namespace piper
