// Until when what is sent must stay in memory: what each stream knows of the others.
#include "send_lifetimes.h"

#include <algorithm>

#include "at.h"
#include "piper/base/parallel.h"
#include "segments.h"

namespace piper {
namespace {

// Holds what a lane, a stream of a cell, knows, in rows: from an instruction of the cell on, of
// each lane that receives the last instruction known complete.
class Rows {
 public:
  explicit Rows(size_t width) : since_{0}, complete_(width, -1), width_(width) {}
  size_t size() const { return since_.size(); }
  int64_t since(size_t row) const { return since_[row]; }
  const int32_t* complete(size_t row) const { return complete_.data() + row * width_; }
  void add(int64_t since, const std::vector<int32_t>& complete) {
    since_.push_back(since);
    complete_.insert(complete_.end(), complete.begin(), complete.end());
  }

 private:
  std::vector<int64_t> since_;
  std::vector<int32_t> complete_;
  size_t width_;
};

bool joins_all_cells(const Dag& dag, const std::vector<int32_t>& axes) {
  for (size_t a = 0; a < dag.mesh.size(); ++a)
    if (dag.mesh[a].placed &&
        !std::binary_search(axes.begin(), axes.end(), static_cast<int32_t>(a)))
      return false;
  return is_over_cells(dag, axes);
}

// Returns by cell and instruction whether it joins all cells, for axes tell these apart.
std::vector<std::vector<uint8_t>> find_joins(const Dag& dag,
                                             const std::vector<RoleProgram>& roles) {
  std::vector<std::vector<uint8_t>> joins(roles.size());
  in_parallel(roles.size(), [&](size_t c) {
    joins[c].reserve(roles[c].body.size());
    for (const Instruction& one : roles[c].body)
      joins[c].push_back(one.kind == InstructionKind::kAllReduce &&
                         joins_all_cells(dag, roles[c].groups[at(one.group)].axes));
  });
  return joins;
}

// Follows all cells as far as they run, and notes what each lane knows of the others. Its knowledge
// changes when it receives, waits for another lane of its cell, or joins the other cells.
class Walk {
 public:
  Walk(const Dag& dag, const std::vector<RoleProgram>& roles,
       const std::vector<Transfer>& transfers)
      : roles_(roles),
        received_(roles.size()),
        known_(roles.size()),
        next_(roles.size()),
        joins_(find_joins(dag, roles)) {
    for (size_t c = 0; c < roles.size(); ++c) {
      received_[c].resize(roles[c].body.size());
      known_[c].resize(roles[c].body.size());
      first_lane_.push_back(slot_of_.size());
      slot_of_.resize(slot_of_.size() + roles[c].streams.size(), -1);
    }
    for (const Transfer& t : transfers) {
      received_[at(t.to_cell)][at(t.recv_position)] = &t;
      int32_t& slot = slot_of_[lane(at(t.to_cell), at(t.recv_position))];
      if (slot < 0) slot = static_cast<int32_t>(width_++);
    }
    rows_.assign(slot_of_.size(), Rows(width_));
    last_.assign(slot_of_.size(), -1);
  }

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t c = 0; c < roles_.size(); ++c)
        while (next_[c] < roles_[c].body.size() && step(c)) progress = true;
    }
  }

  // Returns the last position of the sender at which the receive may still be under way.
  int64_t held(const Transfer& t) const {
    const size_t from = at(t.from_cell), to = lane(at(t.to_cell), at(t.recv_position));
    const size_t slot = at(slot_of_[to]);
    auto held = static_cast<int64_t>(roles_[from].body.size());
    for (size_t s = 0; s < roles_[from].streams.size(); ++s) {
      const Rows& rows = rows_[first_lane_[from] + s];
      size_t low = 0, high = rows.size();  // the first row that tells
      while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (rows.complete(middle)[slot] < t.recv_position)
          low = middle + 1;
        else
          high = middle;
      }
      if (low < rows.size()) held = std::min(held, rows.since(low) - 1);
    }
    return held;
  }

 private:
  size_t lane(size_t cell, size_t position) const {
    return first_lane_[cell] + at(roles_[cell].body[position].stream);
  }

  // Returns whether the next instruction of the cell could run.
  bool step(size_t c) {
    if (joins_[c][next_[c]]) return join();
    const Transfer* t = received_[c][next_[c]];
    if (t && next_[at(t->from_cell)] <= at(t->send_position)) return false;
    const bool learns = t || !roles_[c].body[next_[c]].waits.empty();
    if (learns) {
      start(c);
      if (t) learn(at(t->from_cell), at(t->send_position));
    }
    finish(c, learns);
    return true;
  }
  // Joins every cell: all must have arrived. Each then knows what all knew.
  bool join() {
    for (size_t k = 0; k < roles_.size(); ++k)
      if (next_[k] == roles_[k].body.size() || !joins_[k][next_[k]]) return false;
    std::vector<int32_t> all(width_, -1);
    for (size_t k = 0; k < roles_.size(); ++k) {
      start(k);
      for (size_t s = 0; s < width_; ++s) all[s] = std::max(all[s], now_[s]);
    }
    for (size_t k = 0; k < roles_.size(); ++k) {
      now_ = all;
      finish(k, true);
    }
    return true;
  }
  // Starts with what the lane knows when its next instruction may begin.
  void start(size_t c) {
    now_.assign(width_, -1);
    if (const int32_t last = last_[lane(c, next_[c])]; last >= 0) learn(c, at(last));
    for (int32_t wait : roles_[c].body[next_[c]].waits) learn(c, at(wait));
  }
  // Learns that an instruction is complete, and what was known then.
  void learn(size_t c, size_t position) {
    const size_t from = lane(c, position);
    const int32_t* known = rows_[from].complete(at(known_[c][position]));
    for (size_t s = 0; s < width_; ++s) now_[s] = std::max(now_[s], known[s]);
    if (const int32_t slot = slot_of_[from]; slot >= 0)
      now_[at(slot)] = std::max(now_[at(slot)], static_cast<int32_t>(position));
  }
  void finish(size_t c, bool learned) {
    const size_t position = next_[c]++, here = lane(c, position);
    Rows& rows = rows_[here];
    if (learned && !std::equal(now_.begin(), now_.end(), rows.complete(rows.size() - 1)))
      rows.add(static_cast<int64_t>(position), now_);
    known_[c][position] = static_cast<int32_t>(rows.size() - 1);
    last_[here] = static_cast<int32_t>(position);
  }

  const std::vector<RoleProgram>& roles_;
  // By cell and instruction: of receives the transfer, and the row of what was known when it ran.
  std::vector<std::vector<const Transfer*>> received_;
  std::vector<std::vector<int32_t>> known_;
  std::vector<size_t> first_lane_;  // by cell
  std::vector<int32_t> slot_of_;    // by lane that receives; -1: none
  size_t width_ = 0;                // slots
  std::vector<Rows> rows_;          // by lane
  std::vector<int32_t> last_;       // by lane: its last instruction that has run
  std::vector<size_t> next_;        // by cell
  std::vector<int32_t> now_;
  const std::vector<std::vector<uint8_t>> joins_;
};

}  // namespace

std::vector<std::vector<int64_t>> send_lifetimes(const Dag& dag,
                                                 const std::vector<RoleProgram>& roles,
                                                 const std::vector<Transfer>& transfers) {
  std::vector<std::vector<int64_t>> held(roles.size());
  for (size_t c = 0; c < roles.size(); ++c) held[c].assign(roles[c].body.size(), -1);
  if (transfers.empty()) return held;
  Walk walk(dag, roles, transfers);
  walk.run();
  for (const Transfer& t : transfers) held[at(t.from_cell)][at(t.send_position)] = walk.held(t);
  return held;
}

}  // namespace piper
