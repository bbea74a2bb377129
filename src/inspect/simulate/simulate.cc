// The engine: each row is followed as far as it can go; computations take the device, and messages
// their links, in order of the time at which they can begin.
#include "piper/inspect/simulate.h"

#include <algorithm>
#include <queue>
#include <set>
#include <tuple>

#include "wires.h"

namespace piper {
namespace {

using namespace timeline;  // NOLINT: the rows that are followed

class Engine {
 public:
  // Requires: `all` is made of the timeline's rows.
  Engine(const Machine& machine, Timeline& out, Matched& all)
      : machine_(machine),
        out_(out),
        rows_(all.rows),
        transfers_(all.transfers),
        ports_(all.ports, all.transfers.size()) {}

  Status run() {
    for (size_t row = 0; row < rows_.size(); ++row) touch(row);
    do {
      settle();
      while (!events_.empty()) {
        const Event next = events_.top();
        events_.pop();
        happen(next);
        settle();
      }
    } while (take_apart());
    return check_end();
  }

 private:
  // What happens at one time happens in this order: ends, begins of transfers, begins of
  // computations, of which those that share the device go first.
  struct Event {
    enum Kind : uint8_t { kDeviceEnds, kTransferEnds, kTransferMoves, kAsksForDevice };
    double time = 0;
    Kind kind = kDeviceEnds;
    bool is_alone = false;  // shares the device with none
    int32_t id = 0;         // a step, or a transfer
    int32_t row = 0;
    int32_t change = 0;  // of an end: when it was told
    bool operator>(const Event& other) const {
      return std::tie(time, kind, is_alone, id, row, change) >
             std::tie(other.time, other.kind, other.is_alone, other.id, other.row, other.change);
    }
  };

  // ---- What can begin ----
  void touch(size_t row) { touched_.insert(row); }
  void settle() {
    while (!touched_.empty()) {
      const size_t row = *touched_.begin();
      touched_.erase(touched_.begin());
      for (size_t lane = 0; lane < rows_[row].lanes.size(); ++lane)
        while (advance(static_cast<int32_t>(row), lane)) {
        }
    }
  }
  TimedStep& timed(int32_t row, int32_t step) { return out_.rows[at(row)].steps[at(step)]; }

  // Runs the next step of a lane, if it can run at once. False: it cannot, or an event will end it.
  bool advance(int32_t index, size_t lane) {
    Row& row = rows_[at(index)];
    if (row.next[lane] == row.lanes[lane].size()) return false;
    const int32_t number = row.lanes[lane][row.next[lane]];
    StepState& state = row.steps[at(number)];
    if (state.asked || !can_begin(index, number)) return false;
    const TimedStep& step = timed(index, number);
    if (step.one->kind == InstructionKind::kCompute) return compute(index, number);
    if (state.transfer < 0) return finish(index, number, step.ready, step.ready + step.cost.lane);
    const bool sends = step.one->kind == InstructionKind::kSend;
    if (sends) finish(index, number, step.ready, step.ready + step.cost.lane);
    state.asked = true;
    come(index, number);
    return sends;
  }
  // Finds when all that the step needs was there. False: this is not known yet.
  bool can_begin(int32_t index, int32_t number) {
    const Row& row = rows_[at(index)];
    const StepState& state = row.steps[at(number)];
    TimedStep& step = timed(index, number);
    step.ready = 0;
    step.ready_cause = Cause::kStart;
    step.ready_step = -1;
    const auto behind = [&](double time, Cause cause, int32_t of) {
      if (time <= step.ready) return;
      step.ready = time;
      step.ready_cause = cause;
      step.ready_step = of;
    };
    const auto behind_step = [&](int32_t before, Cause cause) {
      const double end = timed(index, before).end;
      if (end >= 0) behind(end, cause, before);
      return end >= 0;
    };
    if (step.section > 0) {
      if (row.sections[at(step.section) - 1].left > 0) return false;
      const TimedSection& before = row.out->sections[at(step.section) - 1];
      behind(before.end + row.between_steps, Cause::kSection,
             before.count > 0 ? before.first + before.count - 1 : -1);
    }
    if (const int32_t last = row.last[at(state.lane)]; last >= 0) behind_step(last, Cause::kLane);
    if (state.before >= 0 && !behind_step(state.before, Cause::kLane)) return false;
    const std::vector<int32_t>& step_of = row.sections[at(step.section)].step_of;
    for (const int32_t wait : step.one->waits)
      if (step_of[at(wait)] >= 0 && !behind_step(step_of[at(wait)], Cause::kWaits)) return false;
    if (row.works == RankLanes::kStreams)
      behind(issue_time(index, step.section) + row.issued[at(number)], Cause::kHost, -1);
    step.cause = step.ready_cause;
    step.cause_row = step.ready_step < 0 ? -1 : index;
    step.cause_step = step.ready_step;
    return true;
  }
  // The host issues a section while the one before it runs; it waits for the last but one.
  double issue_time(int32_t index, int32_t section) {
    Row& row = rows_[at(index)];
    double& host = row.sections[at(section)].host;
    if (host >= 0) return host;
    host = 0;
    if (section > 0) {
      const TimedSection& before = row.out->sections[at(section) - 1];
      host = issue_time(index, section - 1) +
             (before.count > 0 ? row.issued[at(before.first + before.count - 1)] : 0);
      if (section > 1) host = std::max(host, row.out->sections[at(section) - 2].end);
    }
    return host;
  }

  bool finish(int32_t index, int32_t number, double start, double end) {
    Row& row = rows_[at(index)];
    TimedStep& step = timed(index, number);
    step.start = start;
    step.end = end;
    const size_t lane = at(row.steps[at(number)].lane);
    row.last[lane] = number;
    ++row.next[lane];
    TimedSection& section = row.out->sections[at(step.section)];
    if (step.cost.device > 0) section.computed = std::max(section.computed, end);
    out_.length = std::max(out_.length, end);
    end_part(index, step.section, end);
    return true;
  }
  void end_part(int32_t index, int32_t section, double end) {
    TimedSection& out = out_.rows[at(index)].sections[at(section)];
    out.end = std::max(out.end, end);
    --rows_[at(index)].sections[at(section)].left;
    touch(at(index));
  }

  // ---- Transfers ----
  void come(int32_t index, int32_t number) {
    const int32_t id = rows_[at(index)].steps[at(number)].transfer;
    Transfer& transfer = transfers_[at(id)];
    const TimedStep& step = timed(index, number);
    const bool sends = step.one->kind == InstructionKind::kSend;
    const bool receives = step.one->kind == InstructionKind::kRecv;
    const double time = sends ? step.end : step.ready;
    transfer.arrivals.push_back({index, number, time});
    // A sender that waits for nobody is all that its message needs.
    if (receives && !machine_.sends_wait) {
      if (transfer.end >= 0) receive(transfer);
      return;
    }
    ask_to_move(id);
  }
  // What the transfer needs has come: it moves when the one before it has ended.
  void ask_to_move(int32_t id) {
    Transfer& transfer = transfers_[at(id)];
    if (transfer.asked || !has_all(transfer)) return;
    double time = begin_of(transfer);
    if (transfer.previous >= 0) {
      const double before = transfers_[at(transfer.previous)].end;
      if (before < 0) return;
      time = std::max(time, before);
    }
    transfer.asked = true;
    transfer.start = time;
    if (transfer.wire == 0) return arrive(id, time + transfer.latency);
    events_.push({time + transfer.latency, Event::kTransferMoves, false, id});
  }
  bool has_all(const Transfer& transfer) const {
    if (!transfer.is_message() || machine_.sends_wait)
      return std::ssize(transfer.arrivals) == transfer.needed;
    return std::any_of(transfer.arrivals.begin(), transfer.arrivals.end(),
                       [&](const Arrival& one) { return is_sender(one); });
  }
  bool is_sender(const Arrival& one) const {
    return out_.rows[at(one.row)].steps[at(one.step)].one->kind == InstructionKind::kSend;
  }
  double begin_of(const Transfer& transfer) const {
    double time = 0;
    for (const Arrival& one : transfer.arrivals)
      if (!transfer.is_message() || machine_.sends_wait || is_sender(one))
        time = std::max(time, one.time);
    return time;
  }
  void move(int32_t id, double time) {
    const Transfer& transfer = transfers_[at(id)];
    for (const int32_t row : transfer.rows) count_moving(row, 1, time);
    expect_ends(ports_.begin(id, transfer.wire, transfer.ports, time));
  }
  void expect_ends(const std::vector<int32_t>& transfers) {
    for (const int32_t id : transfers)
      events_.push({ports_.end_of(id), Event::kTransferEnds, false, id, 0, ports_.changes(id)});
  }
  void end_transfer(const Event& event) {
    if (event.change != ports_.changes(event.id)) return;
    expect_ends(ports_.end(event.id, event.time));
    for (const int32_t row : transfers_[at(event.id)].rows) count_moving(row, -1, event.time);
    arrive(event.id, event.time);
  }
  void count_moving(int32_t index, int32_t change, double time) {
    Row& row = rows_[at(index)];
    const bool was = row.moving > 0;
    row.moving += change;
    if (row.slowed == 0 || was == (row.moving > 0)) return;
    row.device.set_speed(row.moving > 0 ? 1 - row.slowed : 1, time);
    expect_device_end(index);
  }
  // All of a transfer has moved.
  void arrive(int32_t id, double time) {
    Transfer& transfer = transfers_[at(id)];
    transfer.end = time;
    if (transfer.is_message()) {
      end_part(transfer.sender_row, transfer.sender_section, time);
      receive(transfer);
    } else {
      const Arrival last = transfer.last();
      for (const Arrival& one : transfer.arrivals) {
        blame(transfer, one, last, Cause::kMembers);
        finish(one.row, one.step, transfer.start, time + timed(one.row, one.step).cost.lane);
      }
    }
    if (transfer.next >= 0) ask_to_move(transfer.next);
  }
  // The receiver goes on, if it has come.
  void receive(const Transfer& message) {
    for (const Arrival& one : message.arrivals) {
      if (is_sender(one)) continue;
      const bool waits = message.end > one.time;
      const double start = waits ? std::max(message.start, one.time) : one.time;
      if (waits)
        for (const Arrival& sender : message.arrivals)
          if (is_sender(sender)) blame(message, one, sender, Cause::kMessage);
      finish(one.row, one.step, start,
             std::max(message.end, one.time) + timed(one.row, one.step).cost.lane);
    }
  }
  // Notes why a step began no sooner: by another one that came later, or what was before.
  void blame(const Transfer& transfer, const Arrival& one, const Arrival& last, Cause cause) {
    TimedStep& step = timed(one.row, one.step);
    const Transfer* previous = transfer.previous < 0 ? nullptr : &transfers_[at(transfer.previous)];
    if (previous && transfer.start > std::max(last.time, one.time) &&
        previous->end >= transfer.start) {
      // Its receiver has been there until it ended, if it has come.
      Arrival before = previous->last();
      for (const Arrival& other : previous->arrivals)
        if (!is_sender(other)) before = other;
      step.cause = Cause::kOrder;
      step.cause_row = before.row;
      step.cause_step = before.step;
    } else if (last.time > one.time || (cause == Cause::kMessage && !machine_.sends_wait)) {
      step.cause = cause;
      step.cause_row = last.row;
      step.cause_step = last.step;
    }
  }

  // ---- Computations ----
  Pair* pair_of(Row& row, int32_t step) {
    const int32_t pair = row.steps[at(step)].pair;
    if (pair < 0 || row.pairs[at(pair)].apart) return nullptr;
    return &row.pairs[at(pair)];
  }
  bool compute(int32_t index, int32_t number) {
    Row& row = rows_[at(index)];
    const TimedStep& step = timed(index, number);
    Pair* pair = pair_of(row, number);
    if (pair && !pair->started) return meet_half(index, *pair, number, step.ready);
    if (step.cost.device == 0) return finish(index, number, step.ready, step.ready);
    row.steps[at(number)].asked = true;
    events_.push({step.ready, Event::kAsksForDevice, pair == nullptr, number, index});
    return false;
  }
  // A pair asks for the device when both of its halves can begin. False: so far none has.
  bool meet_half(int32_t index, Pair& pair, int32_t number, double time) {
    Row& row = rows_[at(index)];
    const size_t half = timed(index, number).second ? 1 : 0;
    if (number != pair.begins[half]) return false;
    pair.ready[half] = time;
    if (pair.ready[1 - half] < 0) return false;
    for (const int32_t begin : pair.begins) row.steps[at(begin)].asked = true;
    events_.push({std::max(pair.ready[0], pair.ready[1]), Event::kAsksForDevice, false,
                  pair.begins[0], index});
    return false;
  }
  void ask_for_device(const Event& event) {
    Row& row = rows_[at(event.row)];
    Pair* pair = pair_of(row, event.id);
    if (row.alone >= 0 || (!pair && !row.device.is_idle())) return row.held.push_back(event.id);
    if (!pair) {
      row.alone = event.id;
      begin(event.row, event.id, 1, event.time);
    } else if (pair->started) {
      share(event.row, event.id, event.time);
    } else {
      pair->started = true;
      for (const int half : {0, 1}) {
        TimedStep& step = timed(event.row, pair->begins[half]);
        if (pair->ready[half] < pair->ready[1 - half]) {
          step.cause = Cause::kPair;
          step.cause_step = pair->begins[1 - half];
          step.cause_row = event.row;
        }
        share(event.row, pair->begins[half], event.time);
      }
    }
  }
  // A step of a pair begins: beside the other half, if that runs.
  void share(int32_t index, int32_t number, double time) {
    Row& row = rows_[at(index)];
    TimedStep& step = timed(index, number);
    step.paired = true;
    if (step.cost.device == 0) {
      finish(index, number, time, time);
      return;
    }
    begin(index, number, row.pairs[at(row.steps[at(number)].pair)].work[step.second ? 1 : 0], time);
  }
  void begin(int32_t index, int32_t number, double weight, double time) {
    Row& row = rows_[at(index)];
    TimedStep& step = timed(index, number);
    if (time > step.ready && row.computed >= 0 && step.cause != Cause::kPair) {
      step.cause = Cause::kDevice;
      step.cause_row = index;
      step.cause_step = row.computed;
    }
    row.device.begin(number, step.cost.device, weight, time);
    expect_device_end(index);
  }
  void expect_device_end(int32_t index) {
    const Device& device = rows_[at(index)].device;
    if (!device.is_idle())
      events_.push({device.next_end(), Event::kDeviceEnds, false, 0, index, device.changes()});
  }
  void end_on_device(const Event& event) {
    Row& row = rows_[at(event.row)];
    if (event.change != row.device.changes()) return;
    for (const auto& [step, start] : row.device.end(event.time)) {
      row.computed = step;
      if (row.alone == step) row.alone = -1;
      finish(event.row, step, start, event.time);
    }
    expect_device_end(event.row);
    if (!row.device.is_idle()) return;
    for (const int32_t step : std::exchange(row.held, {}))
      events_.push(
          {event.time, Event::kAsksForDevice, pair_of(row, step) == nullptr, step, event.row});
  }

  void happen(const Event& event) {
    switch (event.kind) {
      case Event::kDeviceEnds:
        return end_on_device(event);
      case Event::kTransferEnds:
        return end_transfer(event);
      case Event::kTransferMoves:
        return move(event.id, event.time);
      case Event::kAsksForDevice:
        return ask_for_device(event);
    }
  }

  // Runs one after the other the halves of a pair whose second half needs the first one. False:
  // there is none.
  bool take_apart() {
    for (size_t row = 0; row < rows_.size(); ++row)
      for (Pair& pair : rows_[row].pairs)
        if (!pair.started && !pair.apart && std::max(pair.ready[0], pair.ready[1]) >= 0) {
          pair.apart = true;
          touch(row);
          return true;
        }
    return false;
  }
  Status check_end() const {
    for (const Row& row : rows_)
      for (size_t lane = 0; lane < row.lanes.size(); ++lane)
        if (row.next[lane] < row.lanes[lane].size()) {
          const TimedStep& step = row.out->steps[at(row.lanes[lane][row.next[lane]])];
          return fail("the schedule cannot be followed: rank {} waits for ever in '{}' ({})",
                      row.rank, quote_control(step.one->label), to_string(step.one->kind))
              .with_note("help: piper-verify says what is wrong with the plans")
              .with_code(ExitCode::kPlan);
        }
    return ok_status();
  }

  const Machine& machine_;
  Timeline& out_;
  std::vector<Row>& rows_;
  std::vector<Transfer>& transfers_;
  Ports ports_;
  std::set<size_t> touched_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

int64_t Machine::place_of(const PlanSet&, int64_t) const { return 0; }

Result<Timeline> simulate(const PlanSet& set, const Machine& machine, int32_t steps) {
  Timeline timeline;
  Matched all;
  PIPER_TRY(match_rows(set, machine, steps, timeline, all));
  PIPER_TRY(Engine(machine, timeline, all).run());
  return timeline;
}

}  // namespace piper
