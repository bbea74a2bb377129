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

// Follows all cells as far as they run, and notes what each knows of the others. A cell's knowledge
// changes when it receives, or joins the others.
class Walk {
 public:
  Walk(const std::vector<RoleProgram>& roles, const std::vector<Transfer>& transfers)
      : roles_(roles),
        cells_(roles.size()),
        received_(cells_),
        known_(cells_),
        rows_(cells_, Rows(cells_)),
        next_(cells_),
        joins_(find_joins(roles)) {
    std::vector<size_t> receives(cells_);
    for (const Transfer& t : transfers) ++receives[static_cast<size_t>(t.to_cell)];
    for (size_t c = 0; c < cells_; ++c) {
      rows_[c].reserve(receives[c] + 4);  // and the first, and joins
      received_[c].resize(roles[c].body.size());
      known_[c].resize(roles[c].body.size());
    }
    for (const Transfer& t : transfers)
      received_[static_cast<size_t>(t.to_cell)][static_cast<size_t>(t.recv_position)] = &t;
  }

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t c = 0; c < cells_; ++c)
        for (; next_[c] < roles_[c].body.size(); progress = true) {
          if (joins_[c][next_[c]]) {
            if (!join()) break;
            continue;
          }
          const Transfer* transfer = received_[c][next_[c]];
          if (transfer && !receive(c, *transfer)) break;
          note(c);
        }
    }
  }

  // The last position of the sender at which the receive may still be under way.
  int64_t held(const Transfer& t) const {
    const auto from = static_cast<size_t>(t.from_cell), to = static_cast<size_t>(t.to_cell);
    // The first row that tells; nothing is known before the send itself.
    size_t low = static_cast<size_t>(known_[from][static_cast<size_t>(t.send_position)]),
           high = rows_[from].size();
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (rows_[from].complete(middle)[to] < t.recv_position)
        low = middle + 1;
      else
        high = middle;
    }
    return low == rows_[from].size() ? static_cast<int64_t>(roles_[from].body.size())
                                     : rows_[from].since(low) - 1;
  }

 private:
  void note(size_t c) { known_[c][next_[c]++] = static_cast<int32_t>(rows_[c].size() - 1); }

  // Whether the next instruction of `c` could run; notes what is known from then on.
  bool receive(size_t c, const Transfer& t) {
    const auto from = static_cast<size_t>(t.from_cell);
    if (next_[from] <= static_cast<size_t>(t.send_position)) return false;
    int32_t* now = rows_[c].add(static_cast<int64_t>(next_[c]));
    const auto row = static_cast<size_t>(known_[from][static_cast<size_t>(t.send_position)]);
    const int32_t* sent = rows_[from].complete(row);
    for (size_t k = 0; k < cells_; ++k) now[k] = std::max(now[k], sent[k]);
    now[from] = std::max(now[from], t.send_position);
    return true;
  }

  // Joins every cell: all must have arrived. Each then knows what all knew.
  bool join() {
    std::vector<int32_t> all(cells_);
    for (size_t k = 0; k < cells_; ++k) {
      if (next_[k] == roles_[k].body.size() || !joins_[k][next_[k]]) return false;
      all[k] = static_cast<int32_t>(next_[k]) - 1;
    }
    for (size_t k = 0; k < cells_; ++k) {
      std::copy(all.begin(), all.end(), rows_[k].add(static_cast<int64_t>(next_[k])));
      note(k);
    }
    return true;
  }

  const std::vector<RoleProgram>& roles_;
  const size_t cells_;
  // By cell and instruction: of receives the transfer, and the row of what was known when it ran.
  std::vector<std::vector<const Transfer*>> received_;
  std::vector<std::vector<int32_t>> known_;
  std::vector<Rows> rows_;
  std::vector<size_t> next_;
  const std::vector<std::vector<uint8_t>> joins_;
};

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
  std::vector<std::vector<int64_t>> held(roles.size());
  for (size_t c = 0; c < roles.size(); ++c) held[c].assign(roles[c].body.size(), -1);
  if (transfers.empty()) return held;
  Walk walk(roles, transfers);
  walk.run();
  for (const Transfer& t : transfers)
    held[static_cast<size_t>(t.from_cell)][static_cast<size_t>(t.send_position)] = walk.held(t);
  return held;
}

}  // namespace piper
