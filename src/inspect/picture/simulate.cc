// What runs when: each row is followed as far as it can go, and computations take the device in
// order of the time at which they can begin.
#include <algorithm>
#include <map>
#include <queue>
#include <set>
#include <tuple>

#include "piper/plan/flops.h"
#include "rows.h"

namespace piper {
namespace {

using namespace timeline;  // NOLINT: the rows that are followed

// ---- All rows at once ---------------------------------------------------------------------------

class Simulation {
 public:
  Simulation(const PlanSet& set, PictureCosts costs) : set_(set), costs_(costs) {}

  // Simulates a step, with so many bodies where steps overlap.
  Status run(int32_t bodies) {
    PIPER_TRY(make_rows(bodies));
    for (size_t row = 0; row < rows_.size(); ++row) touch(row);
    do {
      settle();
      while (!ready_.empty()) {
        const Ready next = ready_.top();
        ready_.pop();
        next.change < 0 ? start(next) : end_shared(next);
        settle();
      }
    } while (take_apart());
    return check_end();
  }
  std::vector<Row>& rows() { return rows_; }
  const std::vector<std::vector<int64_t>>& ranks() const { return ranks_; }

 private:
  // Describes a step that asks for the device, or the next end of steps that share it.
  struct Ready {
    double time = 0;
    int32_t step = 0;
    size_t row = 0;
    bool is_alone = false;  // shares the device with none
    int32_t change = -1;    // of an end: when it was told (Sharing::changes)
    // What shares the device goes first.
    bool operator>(const Ready& other) const {
      return std::tie(time, is_alone, step, row, change) >
             std::tie(other.time, other.is_alone, other.step, other.row, other.change);
    }
  };
  struct Meeting {
    size_t members = 0, arrived = 0;
    double time = 0;
    std::vector<size_t> rows;
  };

  // ---- Rows: a rank of those that do the same ----
  Status make_rows(int32_t bodies) {
    PIPER_ASSIGN(const std::vector<int64_t> same, same_ranks());
    row_of_rank_.resize(same.size());
    for (size_t rank = 0; rank < same.size(); ++rank) {
      if (at(same[rank]) == rank) {
        row_of_rank_[rank] = rows_.size();
        rows_.emplace_back().rank = static_cast<int64_t>(rank);
        ranks_.emplace_back();
      } else {
        row_of_rank_[rank] = row_of_rank_[at(same[rank])];
      }
      ranks_[row_of_rank_[rank]].push_back(static_cast<int64_t>(rank));
    }
    std::vector<std::vector<double>> flops(set_.roles.size());
    for (size_t r = 0; r < flops.size() && costs_ == PictureCosts::kFlops; ++r) {
      PIPER_ASSIGN(flops[r], program_flops(set_.roles[r]));
    }
    for (Row& row : rows_) {
      const size_t role = at(set_.role_of_rank[at(row.rank)]);
      row.role = &set_.roles[role];
      fill_row(row, costs_, flops[role], bodies);
    }
    for (size_t row = 0; row < rows_.size(); ++row) match(row);
    return ok_status();
  }
  // Returns by rank the first rank that differs only on axes along which all ranks have one role.
  Result<std::vector<int64_t>> same_ranks() const {
    const auto& mesh = set_.roles[at(set_.role_of_rank[0])].mesh;
    for (const int32_t role : set_.role_of_rank)
      if (set_.roles[at(role)].mesh != mesh)
        return fail("the plans of other ranks are not at hand: name their folder");
    std::vector<int64_t> same(at(set_.world()));
    for (size_t rank = 0; rank < same.size(); ++rank) same[rank] = static_cast<int64_t>(rank);
    int64_t stride = 1;
    for (size_t a = mesh.size(); a-- > 0; stride *= mesh[a].second) {
      const auto first = [&](int64_t rank) {
        return rank - rank / stride % mesh[a].second * stride;
      };
      bool alike = true;
      for (int64_t rank = 0; rank < set_.world() && alike; ++rank)
        alike = set_.role_of_rank[at(rank)] == set_.role_of_rank[at(first(rank))];
      for (int64_t& rank : same)
        if (alike) rank = first(rank);
    }
    return same;
  }

  // Messages and collectives get their turns in issue order.
  void match(size_t index) {
    Row& row = rows_[index];
    const std::vector<int64_t> own = coordinates_of(row.role->mesh, row.rank);
    std::vector<std::vector<size_t>> members;  // by group
    for (const Group& group : row.role->groups) {
      std::set<size_t> rows;
      for (const int64_t rank : group_ranks(*row.role, group, own))
        rows.insert(row_of_rank_[at(rank)]);
      members.emplace_back(rows.begin(), rows.end());
    }
    std::map<std::tuple<InstructionKind, size_t, int32_t>, int64_t> messages;
    std::map<int32_t, int64_t> meetings;
    for (Step& step : row.steps) {
      const Instruction& one = *step.one;
      if (one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv) {
        step.peer = row_of_rank_[at(peer_rank(*row.role, one.peer, own))];
        step.turn = messages[{one.kind, step.peer, one.communicator}]++;
      }
      if (!is_collective(one.kind)) continue;
      const std::vector<size_t>& rows = members[at(one.group)];
      const auto [known, is_new] = meeting_of_.emplace(
          std::tuple(one.communicator, rows, meetings[one.communicator]++), meetings_.size());
      if (is_new) meetings_.push_back({rows.size(), 0, 0, rows});
      step.meeting = known->second;
    }
  }

  // ---- Time ----
  void touch(size_t row) { touched_.insert(row); }
  void settle() {
    while (!touched_.empty()) {
      const size_t row = *touched_.begin();
      touched_.erase(touched_.begin());
      for (size_t stream = 0; stream < rows_[row].streams.size(); ++stream)
        while (advance(row, stream)) {
        }
    }
  }
  // Runs the next step of a stream, if it can run at once: what computes asks for the device.
  bool advance(size_t index, size_t stream) {
    Row& row = rows_[index];
    if (row.next[stream] == row.streams[stream].size()) return false;
    const int32_t number = row.streams[stream][row.next[stream]];
    Step& step = row.steps[at(number)];
    if (step.queued) return false;
    const std::optional<double> time = can_begin(index, step);
    if (!time) return false;
    Pair* pair = pair_of(row, step);
    if (pair && !pair->started) return meet_half(index, *pair, number, *time);
    if (step.cost == 0) return finish(index, number, *time, *time);
    step.queued = true;
    ready_.push({std::max(*time, row.device), number, index, pair == nullptr});
    return false;
  }
  static Pair* pair_of(Row& row, const Step& step) {
    if (step.pair < 0 || row.pairs[at(step.pair)].apart) return nullptr;
    return &row.pairs[at(step.pair)];
  }
  // A pair asks for the device when both of its halves can begin. False: so far none has.
  bool meet_half(size_t index, Pair& pair, int32_t number, double time) {
    Row& row = rows_[index];
    const size_t half = row.steps[at(number)].second ? 1 : 0;
    if (number != pair.begins[half]) return false;
    pair.ready[half] = time;
    if (pair.ready[1 - half] < 0) return false;
    for (const int32_t begin : pair.begins) row.steps[at(begin)].queued = true;
    ready_.push({std::max({pair.ready[0], pair.ready[1], row.device}), pair.begins[0], index});
    return false;
  }
  // Returns when all that the step needs has arrived; nothing: this is not known yet.
  std::optional<double> can_begin(size_t index, Step& step) {
    Row& row = rows_[index];
    double time = row.clock[at(step.one->stream)];
    if (step.section > 0) {
      const Section& before = row.sections[at(step.section) - 1];
      if (before.left > 0) return {};
      time = std::max(time, before.end);
    }
    for (const int32_t wait : step.one->waits) {
      const double finish = row.steps[at(row.sections[at(step.section)].first + wait)].finish;
      if (finish < 0) return {};
      time = std::max(time, finish);
    }
    if (step.one->kind == InstructionKind::kRecv) return received(index, step, time);
    return is_collective(step.one->kind) ? met(step, time) : std::optional(time);
  }
  std::optional<double> received(size_t index, const Step& step, double time) {
    const auto sent = sent_.find({step.peer, index, step.one->communicator, step.turn});
    if (sent == sent_.end()) return {};
    return std::max(time, sent->second);
  }
  std::optional<double> met(Step& step, double time) {
    Meeting& meeting = meetings_[step.meeting];
    if (!std::exchange(step.arrived, true)) {
      meeting.time = std::max(meeting.time, time);
      if (++meeting.arrived == meeting.members)
        for (const size_t member : meeting.rows) touch(member);
    }
    if (meeting.arrived < meeting.members) return {};
    return meeting.time;
  }

  void start(const Ready& ready) {
    Row& row = rows_[ready.row];
    if (row.device > ready.time) {
      Ready later = ready;
      later.time = row.device;
      return ready_.push(later);
    }
    const Step& step = row.steps[at(ready.step)];
    Pair* pair = pair_of(row, step);
    if (!pair) {
      if (!row.sharing.is_idle()) return row.held.push_back(ready.step);
      row.device = ready.time + step.cost;
      finish(ready.row, ready.step, ready.time, row.device);
    } else if (pair->started) {
      share(ready.row, ready.step, ready.time);
    } else {
      pair->started = true;
      for (const int32_t begin : pair->begins) share(ready.row, begin, ready.time);
    }
  }
  // A step of a pair begins: beside the other half, if that runs.
  void share(size_t index, int32_t number, double time) {
    Row& row = rows_[index];
    const Step& step = row.steps[at(number)];
    if (step.cost == 0) {
      finish(index, number, time, time);
      return;
    }
    row.sharing.begin(number, step.cost, row.pairs[at(step.pair)].work[step.second ? 1 : 0], time);
    expect_end(index);
  }
  void expect_end(size_t index) {
    const Sharing& sharing = rows_[index].sharing;
    if (!sharing.is_idle()) ready_.push({sharing.next_end(), 0, index, false, sharing.changes()});
  }
  void end_shared(const Ready& ready) {
    Row& row = rows_[ready.row];
    if (ready.change != row.sharing.changes()) return;
    for (const auto& [step, start] : row.sharing.end(ready.time))
      finish(ready.row, step, start, ready.time);
    expect_end(ready.row);
    if (!row.sharing.is_idle()) return;
    for (const int32_t step : std::exchange(row.held, {}))
      ready_.push({ready.time, step, ready.row, true});
  }
  bool finish(size_t index, int32_t number, double start, double end) {
    Row& row = rows_[index];
    Step& step = row.steps[at(number)];
    const size_t stream = at(step.one->stream);
    step.finish = row.clock[stream] = end;
    ++row.next[stream];
    Section& section = row.sections[at(step.section)];
    --section.left;
    section.end = std::max(section.end, end);
    if (step.cost > 0) {
      section.computed = std::max(section.computed, end);
      row.device = std::max(row.device, end);
      add_cell(row, step, start, end);
    }
    if (step.one->kind == InstructionKind::kSend) {
      sent_[{index, step.peer, step.one->communicator, step.turn}] = end;
      touch(step.peer);
    }
    touch(index);
    return true;
  }
  // Updates are together whatever they are of.
  static bool continues(const PictureCell& cell, const Step& step, double start) {
    const Instruction& one = *step.one;
    const bool touches = start - (cell.start + cell.length) <= 1e-9 * start;
    if (cell.pass == TaskPass::kU) return touches && pass_of(one) == TaskPass::kU;
    return touches && cell.pass == one.pass && cell.stage == one.stage && cell.micro == one.micro &&
           cell.step == step.number + one.ahead && cell.task == one.label;
  }
  void add_cell(Row& row, const Step& step, double start, double end) {
    const Instruction& one = *step.one;
    int32_t& open = row.open_cell[at(one.stream)];
    if (open < 0 || !continues(row.cells[at(open)], step, start)) {
      open = static_cast<int32_t>(row.cells.size());
      const bool paired = step.pair >= 0 && row.pairs[at(step.pair)].started;
      row.cells.push_back({start,
                           0,
                           0,
                           pass_of(one),
                           one.stage,
                           one.micro,
                           step.number + one.ahead,
                           paired,
                           paired && step.second,
                           one.label,
                           {}});
    }
    PictureCell& cell = row.cells[at(open)];
    cell.length = end - cell.start;
    cell.work += step.cost;
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
      for (size_t stream = 0; stream < row.streams.size(); ++stream)
        if (row.next[stream] < row.streams[stream].size()) {
          const Step& step = row.steps[at(row.streams[stream][row.next[stream]])];
          return fail("the schedule cannot be drawn: rank {} waits for ever in '{}' ({})", row.rank,
                      quote_control(step.one->label), to_string(step.one->kind))
              .with_note("help: piper-verify says what is wrong with the plans")
              .with_code(ExitCode::kPlan);
        }
    return ok_status();
  }

  const PlanSet& set_;
  const PictureCosts costs_;
  std::vector<Row> rows_;
  std::vector<std::vector<int64_t>> ranks_;  // by row
  std::vector<size_t> row_of_rank_;
  std::vector<Meeting> meetings_;
  std::map<std::tuple<int32_t, std::vector<size_t>, int64_t>, size_t> meeting_of_;
  std::map<std::tuple<size_t, size_t, int32_t, int64_t>, double> sent_;
  std::set<size_t> touched_;
  std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready_;
};

// The part of a steady step in which rows are idle.
Result<double> steady_idle(const PlanSet& set, PictureCosts costs) {
  constexpr int32_t kBodies = 3;  // the first may still wait for the pipeline to fill
  Simulation simulation(set, costs);
  PIPER_TRY(simulation.run(kBodies));
  double busy = 0, period = 0;
  for (const Row& row : simulation.rows()) {
    for (const PictureCell& cell : row.cells) busy += cell.step == 1 ? cell.work : 0;
    period = std::max(period, row.sections[kBodies].computed - row.sections[kBodies - 1].computed);
  }
  return period > 0 ? 1 - busy / (period * static_cast<double>(simulation.rows().size())) : 0;
}

void label_cells(PictureRow& row) {
  std::set<int32_t> stages;
  for (const PictureCell& cell : row.cells)
    if (cell.pass != TaskPass::kU) stages.insert(cell.stage);
  for (PictureCell& cell : row.cells) {
    cell.label = static_cast<char>(cell.pass);
    if (cell.pass == TaskPass::kU) continue;
    if (cell.micro >= 0) cell.label += std::to_string(cell.micro);
    if (stages.size() > 1)
      cell.label +=
          static_cast<char>('a' + std::distance(stages.begin(), stages.find(cell.stage)) % 26);
    if (cell.step > 0) cell.label += '\'';
  }
}

}  // namespace

Result<Picture> make_picture(const PlanSet& set, PictureCosts costs) {
  Simulation simulation(set, costs);
  PIPER_TRY(simulation.run(1));
  Picture picture{.costs = costs};
  for (size_t r = 0; r < simulation.rows().size(); ++r) {
    PictureRow& row = picture.rows.emplace_back();
    row.ranks = simulation.ranks()[r];
    row.cells = std::move(simulation.rows()[r].cells);
    std::stable_sort(row.cells.begin(), row.cells.end(), [](const auto& a, const auto& b) {
      return std::tie(a.start, a.second) < std::tie(b.start, b.second);
    });
    label_cells(row);
    for (const PictureCell& cell : row.cells)
      picture.length = std::max(picture.length, cell.start + cell.length);
  }
  for (PictureRow& row : picture.rows) {
    double busy = 0;
    for (const PictureCell& cell : row.cells) busy += cell.work;
    row.idle = picture.length > 0 ? 1 - busy / picture.length : 0;
    picture.idle += row.idle / static_cast<double>(picture.rows.size());
  }
  if (set.roles[at(set.role_of_rank[0])].steps_ahead > 0) {
    PIPER_ASSIGN(picture.steady_idle, steady_idle(set, costs));
  }
  return picture;
}

}  // namespace piper
