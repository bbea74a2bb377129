// The schedule as text. A small simulation in units of time: instructions of a rank one after
// another, a receive not before its send; the first instruction of a (pass, stage, microbatch)
// takes its time, what follows of the same is part of it. Where steps overlap, several are
// followed, and a sum over rows is a meeting.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include "piper/runtime.h"

namespace piper {
namespace {

constexpr size_t kLongestRow = 240;

int duration_of(char pass) {
  if (pass == 'B') return 2;
  return pass == 'F' || pass == 'I' || pass == 'W' ? 1 : 0;
}

const char* colour_of(char pass) {
  switch (pass) {
    case 'F':
      return "\x1b[44;97m";
    case 'B':
      return "\x1b[42;30m";
    case 'I':
      return "\x1b[46;30m";
    default:
      return "\x1b[43;30m";
  }
}

struct Cell {
  int start = 0, length = 0;
  char pass = ' ';
  int stage = -1, micro = -1;
  int step = 0;
  bool overlaps = false;  // the cell before: '&' joins them
};

struct Row {
  int64_t rank = 0;
  size_t next = 0;  // instruction
  int clock = 0;
  bool overlaps = false;  // the last cell is on another stream than the first
  bool waits = false;     // for others, in a sum
  std::set<std::tuple<char, int, int, int>> seen;
  std::vector<Cell> cells;
  std::vector<std::pair<const Instruction*, int>> list;  // what it runs, each with its step
  std::vector<int> body_ends;                            // times
};

class Simulation {
 public:
  // Where steps overlap: so many bodies between prologue and epilogue.
  Simulation(const PlanSet& set, int bodies)
      : set_(set), row_of_role_(set.roles.size(), -1), overlaps_(set.roles[0].steps_ahead > 0) {
    for (size_t rank = 0; rank < set.role_of_rank.size(); ++rank) {
      int& row = row_of_role_[static_cast<size_t>(set.role_of_rank[rank])];
      if (row >= 0) continue;
      row = static_cast<int>(rows_.size());
      rows_.emplace_back().rank = static_cast<int64_t>(rank);
      make_list(rows_.back(), bodies);
    }
  }

  // False when the rows alone cannot be followed to the end.
  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t i = 0; i < rows_.size(); ++i) {
        while (advance(static_cast<int>(i))) moved = true;
      }
    }
    return std::all_of(rows_.begin(), rows_.end(),
                       [&](const Row& row) { return row.next == row.list.size(); });
  }
  const std::vector<Row>& rows() const { return rows_; }

 private:
  const RoleProgram& role(const Row& row) const {
    return set_.roles[static_cast<size_t>(set_.role_of_rank[static_cast<size_t>(row.rank)])];
  }
  void make_list(Row& row, int bodies) {
    const auto add = [&](const std::vector<Instruction>& list, int step) {
      for (const Instruction& one : list) row.list.emplace_back(&one, step + one.ahead);
    };
    if (!overlaps_) return add(role(row).body, 0);
    add(role(row).prologue, 0);
    for (int step = 0; step < bodies; ++step) add(role(row).body, step);
    add(role(row).epilogue, bodies);
  }
  // The row that stands for the peer.
  int row_of_peer(const Row& row, const Instruction& one) const {
    int64_t peer = peer_rank(role(row), one.peer, coordinates_of(role(row).mesh, row.rank));
    return row_of_role_[static_cast<size_t>(set_.role_of_rank[static_cast<size_t>(peer)])];
  }

  bool advance(int index) {
    Row& row = rows_[static_cast<size_t>(index)];
    if (row.next == row.list.size()) return false;
    const auto [instruction, step] = row.list[row.next];
    const Instruction& one = *instruction;
    if (overlaps_ && one.kind == InstructionKind::kAllReduce && !meet(index)) return false;
    if (one.kind == InstructionKind::kRecv) {
      auto& queue = messages_[{row_of_peer(row, one), index, one.channel}];
      if (queue.empty()) return false;
      row.clock = std::max(row.clock, queue.front());
      queue.pop_front();
    } else if (one.kind == InstructionKind::kSend) {
      messages_[{index, row_of_peer(row, one), one.channel}].push_back(row.clock);
    } else if (int length = duration_of(one.pass);
               one.kind == InstructionKind::kCompute && length > 0 && one.micro >= 0 &&
               row.seen.insert({one.pass, one.stage, one.micro, step}).second) {
      const bool overlaps = one.stream != 0 && !row.cells.empty() && !row.overlaps;
      row.cells.push_back({row.clock, length, one.pass, one.stage, one.micro, step, overlaps});
      row.overlaps = one.stream != 0;
      row.clock += length;
    }
    ++row.next;
    if (!role(row).body.empty() && &one == &role(row).body.back())
      row.body_ends.push_back(row.clock);
    return true;
  }

  // A sum over several rows: none goes on before all are there. False: one is missing.
  bool meet(int index) {
    Row& row = rows_[static_cast<size_t>(index)];
    const Group& group = role(row).groups[static_cast<size_t>(row.list[row.next].first->group)];
    auto& own = arrivals_[{index, group.axes}];
    if (!row.waits) own.push_back(row.clock);
    row.waits = true;
    for (int64_t rank : group_ranks(role(row), group, coordinates_of(role(row).mesh, row.rank))) {
      const int other =
          row_of_role_[static_cast<size_t>(set_.role_of_rank[static_cast<size_t>(rank)])];
      const auto& times = arrivals_[{other, group.axes}];
      if (times.size() < own.size()) return false;
      row.clock = std::max(row.clock, times[own.size() - 1]);
    }
    row.waits = false;
    return true;
  }

  const PlanSet& set_;
  std::vector<int> row_of_role_;
  std::vector<Row> rows_;
  const bool overlaps_;
  std::map<std::tuple<int, int, int32_t>, std::deque<int>> messages_;  // times at which they arrive
  std::map<std::pair<int, std::vector<int32_t>>, std::vector<int>> arrivals_;  // by row and axes
};

// "F3", or "F3b" for the second of a rank's stages, "F3'" for the second step.
std::string label_of(const Row& row, const Cell& cell) {
  std::set<int> stages;
  for (const Cell& one : row.cells) stages.insert(one.stage);
  std::string label = fmt::format("{}{}", cell.pass, cell.micro);
  if (stages.size() > 1) {
    label += static_cast<char>('a' + std::distance(stages.begin(), stages.find(cell.stage)) % 26);
  }
  return label + (cell.step > 0 ? "'" : "");
}

// The part of a steady step in which rows are idle.
double steady_idle(const PlanSet& set) {
  constexpr int kBodies = 3;  // the first may still wait for the pipeline to fill
  Simulation simulation(set, kBodies);
  if (!simulation.run()) return 0;
  double busy = 0, period = 0;
  for (const Row& row : simulation.rows()) {
    for (const Cell& cell : row.cells) busy += cell.step == 1 ? cell.length : 0;
    period = std::max<double>(period, row.body_ends[kBodies - 1] - row.body_ends[kBodies - 2]);
  }
  return period > 0 ? 1 - busy / (period * static_cast<double>(simulation.rows().size())) : 0;
}

// The ranks that run the row's program: "0,1" or "0+63".
std::string ranks_of(const PlanSet& set, const Row& row) {
  std::string text;
  int64_t more = 0;
  int32_t role = set.role_of_rank[static_cast<size_t>(row.rank)];
  for (size_t rank = 0; rank < set.role_of_rank.size(); ++rank) {
    if (set.role_of_rank[rank] != role) continue;
    if (text.size() > 8) {
      ++more;
    } else {
      text += (text.empty() ? "" : ",") + std::to_string(rank);
    }
  }
  return more > 0 ? fmt::format("{}+{}", text, more) : text;
}

std::string draw_row(const Row& row, int end, size_t width, bool colour) {
  std::string text;
  size_t shown = 0;
  int at = 0;
  auto idle_until = [&](int until) {
    for (; at < until && shown + width <= kLongestRow; ++at, shown += width) {
      text += fmt::format("{:<{}}", "..", width);
    }
  };
  for (const Cell& cell : row.cells) {
    idle_until(cell.start);
    if (cell.overlaps && !text.empty() && text.back() == ' ') text.back() = '&';
    size_t cells = static_cast<size_t>(cell.length) * width;
    if (shown + cells > kLongestRow) return text + "...";
    std::string block = fmt::format("{:=<{}}", label_of(row, cell), cells - 1);
    text += colour ? fmt::format("{}{}\x1b[0m ", colour_of(cell.pass), block) : block + " ";
    shown += cells;
    at = cell.start + cell.length;
  }
  idle_until(end);
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

std::string draw_schedule(const PlanSet& set, bool colour) {
  Simulation simulation(set, 1);
  if (!simulation.run())
    return "schedule: cannot be drawn, for a receive has no send among the rows\n";
  int end = 0;
  int busy = 0;
  size_t width = 3;
  size_t head = 4;
  for (const Row& row : simulation.rows()) {
    head = std::max(head, ranks_of(set, row).size());
    for (const Cell& cell : row.cells) {
      end = std::max(end, cell.start + cell.length);
      busy += cell.length;
      width = std::max(width, label_of(row, cell).size() + 1);
    }
  }
  if (end == 0) return "schedule: no microbatches\n";
  std::string text = fmt::format("{:>{}}  time ->\n", "rank", head);
  for (const Row& row : simulation.rows()) {
    text +=
        fmt::format("{:>{}}  {}\n", ranks_of(set, row), head, draw_row(row, end, width, colour));
  }
  double idle =
      1.0 - static_cast<double>(busy) / (end * static_cast<double>(simulation.rows().size()));
  const bool overlaps =
      std::any_of(simulation.rows().begin(), simulation.rows().end(), [](const Row& row) {
        return std::any_of(row.cells.begin(), row.cells.end(),
                           [](const Cell& cell) { return cell.overlaps; });
      });
  text += fmt::format(
      "{:>{}}  F forward 1, B backward 2 (I its input part 1, W its weight part 1){}, .. idle "
      "{:.0f} %",
      "", head, overlaps ? ", & overlap" : "", idle * 100);
  if (set.roles[0].steps_ahead > 0)
    text +=
        fmt::format(", ' of the second step; in a steady step {:.0f} %", steady_idle(set) * 100);
  return text + "\n";
}

}  // namespace piper
