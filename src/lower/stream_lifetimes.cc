// How long sent buffers are held where messages have streams of their own: streams of one cell know
// of each other what they wait for, and no more.
#include <algorithm>
#include <unordered_map>

#include "at.h"
#include "send_lifetimes.h"

namespace piper {
namespace {

// What is known to be complete when an instruction is: of each stream that receives, in any cell,
// the last position. Streams of one cell know of each other what they wait for.
class Knowledge {
 public:
  Knowledge(const std::vector<RoleProgram>& roles, const std::vector<Transfer>& transfers)
      : roles_(roles), sends_(roles.size()), crossed_(crossed_axes(roles)) {
    for (const Transfer& t : transfers)
      sends_[at(t.to_cell)][t.recv_position] = {t.from_cell, t.send_position};
    for (const RoleProgram& role : roles) {
      std::vector<int32_t>& slots = slot_of_.emplace_back(role.streams.size(), -1);
      last_.emplace_back(role.streams.size(), -1);
      for (const Instruction& one : role.body)
        if (one.kind == InstructionKind::kRecv && slots[at(one.stream)] < 0)
          slots[at(one.stream)] = static_cast<int32_t>(width_++);
    }
    for (const RoleProgram& role : roles) rows_.emplace_back(role.body.size() * width_, -1);
    next_.resize(roles.size());
    run();
  }

  bool knows(int32_t cell, int64_t position, const Transfer& transfer) const {
    const RoleProgram& role = roles_[at(transfer.to_cell)];
    const int32_t stream = role.body[at(transfer.recv_position)].stream;
    const auto slot = at(slot_of_[at(transfer.to_cell)][at(stream)]);
    return rows_[at(cell)][at(position) * width_ + slot] >= transfer.recv_position;
  }

 private:
  const Instruction& instruction(size_t c) const { return roles_[c].body[next_[c]]; }
  bool is_join(size_t c) { return crosses_cells(roles_[c], instruction(c), crossed_); }

  void run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t c = 0; c < roles_.size(); ++c)
        while (next_[c] < roles_[c].body.size() && step(c)) progress = true;
    }
  }
  // Whether the cell's next instruction could be taken.
  bool step(size_t c) {
    const Instruction& one = instruction(c);
    if (is_join(c)) return join(c);
    if (one.kind != InstructionKind::kRecv) {
      start(c, now_);
      finish(c, now_);
      return true;
    }
    const auto [from, position] = sends_[c].at(static_cast<int32_t>(next_[c]));
    if (next_[at(from)] <= at(position)) return false;
    start(c, now_);
    learn(now_, at(from), position);
    finish(c, now_);
    return true;
  }
  // Joins every cell: all must have come. Each then knows what all knew.
  bool join(size_t) {
    for (size_t k = 0; k < roles_.size(); ++k)
      if (next_[k] >= roles_[k].body.size() || instruction(k).kind != InstructionKind::kAllReduce ||
          !is_join(k))
        return false;
    std::vector<int32_t> all(width_, -1);
    for (size_t k = 0; k < roles_.size(); ++k) {
      start(k, now_);
      for (size_t s = 0; s < width_; ++s) all[s] = std::max(all[s], now_[s]);
    }
    for (size_t k = 0; k < roles_.size(); ++k) {
      now_ = all;
      finish(k, now_);
    }
    return true;
  }
  void learn(std::vector<int32_t>& row, size_t cell, int64_t position) const {
    const int32_t* known = &rows_[cell][at(position) * width_];
    for (size_t s = 0; s < width_; ++s) row[s] = std::max(row[s], known[s]);
  }
  void start(size_t c, std::vector<int32_t>& row) const {
    row.assign(width_, -1);
    const Instruction& one = instruction(c);
    if (const int32_t last = last_[c][at(one.stream)]; last >= 0) learn(row, c, last);
    for (int32_t wait : one.waits) learn(row, c, wait);
  }
  void finish(size_t c, std::vector<int32_t>& row) {
    const Instruction& one = instruction(c);
    const auto position = static_cast<int32_t>(next_[c]++);
    if (const int32_t slot = slot_of_[c][at(one.stream)]; slot >= 0) row[at(slot)] = position;
    last_[c][at(one.stream)] = position;
    std::copy(row.begin(), row.end(), &rows_[c][at(position) * width_]);
  }

  const std::vector<RoleProgram>& roles_;
  // By cell and position of a receive: its send's cell and position.
  std::vector<std::unordered_map<int32_t, std::pair<int32_t, int32_t>>> sends_;
  const std::vector<bool> crossed_;                   // by mesh axis
  size_t width_ = 0;                                  // slots
  std::vector<std::vector<int32_t>> slot_of_, last_;  // by cell and stream
  std::vector<std::vector<int32_t>> rows_;            // by cell: [position × width + slot]
  std::vector<size_t> next_;
  std::vector<int32_t> now_;
};

}  // namespace

std::vector<std::vector<int64_t>> lifetimes_by_stream(const std::vector<RoleProgram>& roles,
                                                      const std::vector<Transfer>& transfers) {
  std::vector<std::vector<int64_t>> held;
  for (const RoleProgram& role : roles) held.emplace_back(role.body.size(), -1);
  if (transfers.empty()) return held;
  const Knowledge knowledge(roles, transfers);
  for (const Transfer& t : transfers) {
    const auto size = static_cast<int64_t>(roles[static_cast<size_t>(t.from_cell)].body.size());
    int64_t last = t.send_position;
    while (last + 1 < size && !knowledge.knows(t.from_cell, last + 1, t)) ++last;
    if (last + 1 == size) last = size;
    held[static_cast<size_t>(t.from_cell)][static_cast<size_t>(t.send_position)] = last;
  }
  return held;
}

}  // namespace piper
