#include "send_lifetimes.h"

#include <algorithm>

#include "piper/parallel.h"

namespace piper {
namespace {

// What a cell knows, in rows: from one of its instructions on, by cell, the last instruction known
// complete.
class Rows {
 public:
  explicit Rows(size_t cells) : since_{0}, complete_(cells, -1), cells_(cells) {}
  void reserve(size_t rows) {
    since_.reserve(rows);
    complete_.reserve(rows * cells_);
  }
  size_t size() const { return since_.size(); }
  int64_t since(size_t row) const { return since_[row]; }
  int32_t* complete(size_t row) { return complete_.data() + row * cells_; }
  const int32_t* complete(size_t row) const { return complete_.data() + row * cells_; }
  // A row like the last.
  int32_t* add(int64_t since) {
    since_.push_back(since);
    complete_.resize(complete_.size() + cells_);
    std::copy_n(complete(size() - 2), cells_, complete(size() - 1));
    return complete(size() - 1);
  }

 private:
  std::vector<int64_t> since_;
  std::vector<int32_t> complete_;
  size_t cells_;
};

bool on_streams_of_their_own(const std::vector<RoleProgram>& roles) {
  std::vector<uint8_t> apart(roles.size());
  in_parallel(roles.size(), [&](size_t c) {
    if (roles[c].streams.size() == 1) return;
    apart[c] = std::any_of(roles[c].body.begin(), roles[c].body.end(), [](const Instruction& one) {
      return one.stream != 0 &&
             (one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv);
    });
  });
  return std::find(apart.begin(), apart.end(), true) != apart.end();
}

// By cell and instruction: whether it joins all cells.
std::vector<std::vector<uint8_t>> find_joins(const std::vector<RoleProgram>& roles) {
  std::vector<std::vector<uint8_t>> joins(roles.size());
  const std::vector<bool> crossed = crossed_axes(roles);
  in_parallel(roles.size(), [&](size_t c) {
    joins[c].reserve(roles[c].body.size());
    for (const Instruction& one : roles[c].body)
      joins[c].push_back(crosses_cells(roles[c], one, crossed));
  });
  return joins;
}

}  // namespace

std::vector<bool> crossed_axes(const std::vector<RoleProgram>& roles) {
  std::vector<std::vector<bool>> of_role(roles.size());
  in_parallel(roles.size(), [&](size_t c) {
    std::vector<bool>& crossed = of_role[c];
    for (const Instruction& one : roles[c].body) {
      crossed.resize(std::max(crossed.size(), one.peer.size()));
      for (size_t axis = 0; axis < one.peer.size(); ++axis)
        if (one.peer[axis] >= 0) crossed[axis] = true;
    }
  });
  std::vector<bool> all;
  for (const std::vector<bool>& crossed : of_role) {
    all.resize(std::max(all.size(), crossed.size()));
    for (size_t axis = 0; axis < crossed.size(); ++axis)
      if (crossed[axis]) all[axis] = true;
  }
  return all;
}

bool crosses_cells(const RoleProgram& role, const Instruction& instruction,
                   const std::vector<bool>& crossed_axes) {
  if (instruction.kind != InstructionKind::kAllReduce) return false;
  // A group whose axes tell cells apart joins all cells.
  const auto& axes = role.groups[static_cast<size_t>(instruction.group)].axes;
  return std::any_of(axes.begin(), axes.end(), [&](int32_t axis) {
    return static_cast<size_t>(axis) < crossed_axes.size() &&
           crossed_axes[static_cast<size_t>(axis)];
  });
}

std::vector<std::vector<int64_t>> send_lifetimes(const std::vector<RoleProgram>& roles,
                                                 const std::vector<Transfer>& transfers) {
  if (on_streams_of_their_own(roles)) return lifetimes_by_stream(roles, transfers);
  const size_t cells = roles.size();
  std::vector<std::vector<int64_t>> held(cells);
  for (size_t c = 0; c < cells; ++c) held[c].assign(roles[c].body.size(), -1);
  if (transfers.empty()) return held;

  // By cell and instruction: of receives the transfer, of sends what was known when it ran.
  std::vector<std::vector<const Transfer*>> received(cells);
  std::vector<std::vector<int32_t>> known(cells);
  // A cell's knowledge changes when it receives, or joins the others.
  std::vector<Rows> rows(cells, Rows(cells));
  std::vector<size_t> next(cells);
  std::vector<size_t> receives(cells);
  for (const Transfer& t : transfers) ++receives[static_cast<size_t>(t.to_cell)];
  for (size_t c = 0; c < cells; ++c) {
    rows[c].reserve(receives[c] + 4);  // and the first, and joins
    received[c].resize(roles[c].body.size());
    known[c].resize(roles[c].body.size());
  }
  for (const Transfer& t : transfers)
    received[static_cast<size_t>(t.to_cell)][static_cast<size_t>(t.recv_position)] = &t;
  const std::vector<std::vector<uint8_t>> joins = find_joins(roles);
  // Whether the next instruction of `c` could run; notes what is known from then on.
  const auto receive = [&](size_t c, const Transfer& t) {
    const auto from = static_cast<size_t>(t.from_cell);
    if (next[from] <= static_cast<size_t>(t.send_position)) return false;
    int32_t* now = rows[c].add(static_cast<int64_t>(next[c]));
    const auto row = static_cast<size_t>(known[from][static_cast<size_t>(t.send_position)]);
    const int32_t* sent = rows[from].complete(row);
    for (size_t k = 0; k < cells; ++k) now[k] = std::max(now[k], sent[k]);
    now[from] = std::max(now[from], t.send_position);
    return true;
  };
  // Joins every cell: all must have arrived. Each then knows what all knew.
  const auto join = [&] {
    std::vector<int32_t> all(cells);
    for (size_t k = 0; k < cells; ++k) {
      if (next[k] == roles[k].body.size() || !joins[k][next[k]]) return false;
      all[k] = static_cast<int32_t>(next[k]) - 1;
    }
    for (size_t k = 0; k < cells; ++k) {
      std::copy(all.begin(), all.end(), rows[k].add(static_cast<int64_t>(next[k])));
      known[k][next[k]++] = static_cast<int32_t>(rows[k].size() - 1);
    }
    return true;
  };
  for (bool progress = true; progress;) {
    progress = false;
    for (size_t c = 0; c < cells; ++c)
      for (; next[c] < roles[c].body.size(); progress = true) {
        if (joins[c][next[c]]) {
          if (!join()) break;
          continue;
        }
        const Transfer* transfer = received[c][next[c]];
        if (transfer && !receive(c, *transfer)) break;
        known[c][next[c]++] = static_cast<int32_t>(rows[c].size() - 1);
      }
  }
  for (const Transfer& t : transfers) {
    const auto from = static_cast<size_t>(t.from_cell), to = static_cast<size_t>(t.to_cell);
    // The first row that tells; nothing is known before the send itself.
    size_t low = static_cast<size_t>(known[from][static_cast<size_t>(t.send_position)]),
           high = rows[from].size();
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (rows[from].complete(middle)[to] < t.recv_position)
        low = middle + 1;
      else
        high = middle;
    }
    held[from][static_cast<size_t>(t.send_position)] =
        low == rows[from].size() ? static_cast<int64_t>(roles[from].body.size())
                                 : rows[from].since(low) - 1;
  }
  return held;
}

}  // namespace piper
