// The second thread of a rank, which runs what communicates beside what computes.
#include "helper.h"

#include <algorithm>
#include <exception>
#include <map>

#include "piper/plan/lanes.h"

namespace piper {

Status start_helper(Executor::State& state) {
  const bool can_help = state.source.helper && !state.backend.is_asynchronous() &&
                        state.source.set->world() > 1 && TwoThreads(*state.role).overlaps();
  if (!can_help) return ok_status();
  PIPER_ASSIGN(state.helper, Helper::start(state));
  return ok_status();
}

void draw_lines(const Executor::State& state, BoundSection& section) {
  if (!state.helper) return;
  const std::vector<Instruction>& all = *section.instructions;
  const TwoThreads threads(*state.role);
  struct Place {
    size_t line = 0;
    int32_t number = 0;  // from 1
  };
  std::vector<Place> places;
  std::map<int32_t, size_t> last_on;  // by stream
  int32_t known[2] = {};              // by line: how far the other one is by then
  for (size_t i = 0; i < all.size(); ++i) {
    const Instruction& one = all[i];
    const size_t line = threads.of(one);
    LineOp made{static_cast<int32_t>(i)};
    const auto behind = [&](size_t before) {
      if (places[before].line == line || places[before].number <= known[line]) return;
      known[line] = made.after = places[before].number;
    };
    for (const int32_t before : one.waits) behind(static_cast<size_t>(before));
    if (const auto last = last_on.find(one.stream); last != last_on.end()) behind(last->second);
    if (made.after > 0)
      section.lines[1 - line][static_cast<size_t>(made.after - 1)].is_awaited = true;
    section.lines[line].push_back(made);
    places.push_back({line, static_cast<int32_t>(section.lines[line].size())});
    last_on[one.stream] = i;
  }
  if (!section.lines[0].empty() && !section.lines[1].empty()) return;
  for (std::vector<LineOp>& line : section.lines) line.clear();
}

Result<std::unique_ptr<Helper>> Helper::start(Executor::State& state) {
  std::unique_ptr<Helper> made(new Helper(state));
  const auto help = [helper = made.get()] {
    try {
      helper->status_ = helper->run_line(kHelps);
    } catch (const std::exception& problem) {
      helper->status_ = fail("{}", problem.what()).with_code(ExitCode::kStorage);
      helper->publish(kHelps, kFailed);
    }
  };
  PIPER_ASSIGN(made->worker_, Worker::start(help, state.source.helper_core));
  return made;
}

Status Helper::run(const BoundSection& section, int64_t step) {
  section_ = &section;
  step_ = step;
  trace_ = next_trace(state_, section, step);
  for (Done& done : done_) done.count.store(0, std::memory_order_relaxed);
  worker_->begin();
  const Status own = run_line(kOwn);
  worker_->finish();
  return own ? status_ : own;
}

// Returns early, without an error of its own, where the other line has one.
Status Helper::run_line(size_t line) {
  int32_t done = 0;
  Recorder::Line& recorded = state_.recorder.lines[line];
  double before = now_us();
  for (const LineOp& at : section_->lines[line]) {
    if (at.after > 0 && !wait_for_other(line, at.after)) return ok_status();
    if (at.after > 0) before = now_us();
    const Op& op = section_->ops[static_cast<size_t>(at.op)];
    // Other ranks may wait for this thread, so it is the one that says what the rank does.
    if (line == kHelps) state_.activity.store(op.label, std::memory_order_release);
    recorded.note(op.label, step_, before);
    const NvtxScope range = range_of(state_, *section_, static_cast<size_t>(at.op));
    const double start = trace_ != nullptr ? now_us() : 0;
    if (Status status = run_op(state_, op); !status) {
      publish(line, kFailed);
      return located(op, step_, std::move(status).error());
    }
    if (state_.fault_at == at.op) [[unlikely]] {
      if (Status status = do_fault(state_); !status) {
        publish(line, kFailed);
        return status;
      }
    }
    const double end = now_us();
    recorded.spend(op.spent, end - before);
    if (trace_ != nullptr)
      trace_[at.op] =
          event_of(*section_, step_, static_cast<size_t>(at.op), start, end, start - before);
    before = end;
    ++done;
    if (at.is_awaited) publish(line, done);
  }
  return ok_status();
}

bool Helper::wait_for_other(size_t line, int32_t after) {
  const std::atomic<int32_t>& other = done_[1 - line].count;
  if (line == kHelps && other.load(std::memory_order_acquire) < after) {
    const LineOp& last = section_->lines[kOwn][static_cast<size_t>(after - 1)];
    state_.activity.store(section_->ops[static_cast<size_t>(last.op)].label,
                          std::memory_order_release);
  }
  return await(other, [&](int32_t done) { return done >= after; }) != kFailed;
}

void Helper::publish(size_t line, int32_t done) {
  done_[line].count.store(done, std::memory_order_release);
  done_[line].count.notify_one();
}

}  // namespace piper
