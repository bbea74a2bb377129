// Splits a step into prologue, body and epilogue, with versions of what the update writes.
#include "steps.h"

#include <algorithm>
#include <span>

#include "at.h"
#include "credit.h"
#include "piper/base/memory.h"
#include "piper/base/parallel.h"
#include "piper/plan/access.h"
#include "piper/plan/windows.h"
#include "place.h"

namespace piper {
namespace {

// Holds what is known of a role's windows. The instructions of the first three are the role's
// lists.
struct Split {
  std::vector<Window> windows;
  std::vector<std::vector<Instruction>> others;
  // By window: where each instruction of the one step is; -1: not there.
  std::vector<std::vector<int32_t>> positions;
  std::vector<size_t> copies;    // by window: it begins with so many copies to nearer steps
  std::vector<int32_t> nearest;  // by buffer: the least steps ahead that use it; -1: not known yet
};
constexpr size_t kPrologue = 0, kBody = 1, kLists = kWindowsInLists, kEpilogue = 2;

std::vector<Instruction>& list_of(RoleProgram& role, Split& split, size_t window) {
  if (window >= kLists) return split.others[window - kLists];
  return window == kPrologue ? role.prologue : window == kBody ? role.body : role.epilogue;
}

// Calls `use` with each state that the instruction changes.
template <class Use>
void for_each_change(const RoleProgram& role, const Instruction& one, const Use& use) {
  for (size_t a = 0; a < one.args.size(); ++a)
    if (role.tensor(one.args[a]).kind == BufferKind::kState &&
        (one.kind == InstructionKind::kCompute ? role.programs[at(one.program)].arg_written[a]
                                               : access_of(one.kind, a).writes))
      use(one.args[a]);
}

// Lets an instruction that is some steps ahead read as much newer versions of states. `changes`: by
// buffer, how often steps before its own still update a state that has no versions.
Status read_newer(const RoleProgram& role, int32_t steps, const std::vector<int32_t>& changes,
                  Instruction& one) {
  for (int32_t& arg : one.args) {
    int32_t newer = 0;
    for (int32_t of = arg; newer < steps && (of = role.tensor(of).previous_of) >= 0; ++newer)
      arg = of;
    if (newer < steps && (newer > 0 || changes[at(arg)] > 0))
      return fail("'{}' of {} reads '{}', which the update changes: not supported", one.label,
                  later_step(steps), role.name(arg));
  }
  return ok_status();
}

Result<Split> split_role(RoleProgram& role, const Steady& made, int32_t most) {
  std::vector<int32_t> all_changes(role.buffers.size());
  for (const Instruction& one : role.body)
    for_each_change(role, one, [&](int32_t state) { ++all_changes[at(state)]; });
  std::vector<int32_t> changes = all_changes;
  std::vector<Instruction> steady = std::move(role.body);
  role.body.clear();
  role.body.reserve(steady.size());
  role.steps_ahead = most;
  Split split{windows_of(most)};
  if (most > 1 && std::ssize(split.windows) * std::ssize(steady) > kMostInWindows)
    return fail("not supported: {} steps ahead with {} instructions in a step", most,
                steady.size());
  split.others.resize(split.windows.size() - kLists);
  split.positions.assign(split.windows.size(), std::vector<int32_t>(steady.size(), -1));
  split.copies.resize(split.windows.size());
  for (size_t i = 0; i < steady.size(); ++i) {
    const Instruction& one = steady[i];
    if (one.ahead == 0) for_each_change(role, one, [&](int32_t state) { --changes[at(state)]; });
    for (size_t w = 0; w < split.windows.size(); ++w) {
      const auto [first, end] = split.windows[w];
      if (one.ahead < first || one.ahead >= end) continue;
      std::vector<Instruction>& list = list_of(role, split, w);
      split.positions[w][at(made.numbers[i])] = static_cast<int32_t>(list.size());
      Instruction& here = list.emplace_back(one);
      here.ahead -= first;
      PIPER_TRY(read_newer(role, here.ahead, here.ahead > 1 ? all_changes : changes, here));
    }
  }
  return split;
}

// By cell: until when the sends of a section are under way.
using HeldUntil = std::vector<std::vector<int64_t>>;

HeldUntil held_in(const Dag& dag, std::vector<RoleProgram>& roles, size_t window,
                  const std::vector<Transfer>& transfers, std::vector<Split>& splits) {
  std::vector<RoleProgram> sections;
  for (size_t c = 0; c < roles.size(); ++c) {
    sections.emplace_back();
    sections.back().groups = roles[c].groups;
    sections.back().streams = roles[c].streams;
    sections.back().body.swap(list_of(roles[c], splits[c], window));
  }
  std::vector<Transfer> here;
  for (Transfer one : transfers) {
    one.send_position = splits[at(one.from_cell)].positions[window][at(one.send_position)];
    one.recv_position = splits[at(one.to_cell)].positions[window][at(one.recv_position)];
    if (one.send_position >= 0) here.push_back(one);
  }
  HeldUntil held = send_lifetimes(dag, sections, here);
  for (size_t c = 0; c < roles.size(); ++c)
    sections[c].body.swap(list_of(roles[c], splits[c], window));
  return held;
}

// Returns the copies of a section that leave for the host, and the computations that wait for them.
std::vector<LeavingCopy> leaving_in(const RoleProgram& role, size_t window,
                                    const std::vector<std::vector<int32_t>>& all,
                                    const OffloadPlan& plan) {
  if (plan.leaving.empty()) return {};
  std::vector<int32_t> here(role.body.size(), -1);  // by position in the body
  int32_t length = 0;
  for (size_t n = 0; n < all[kBody].size(); ++n) {
    here[at(all[kBody][n])] = all[window][n];
    length += all[window][n] >= 0 ? 1 : 0;
  }
  std::vector<LeavingCopy> leaving;
  for (const LeavingCopy& each : plan.leaving) {
    const int32_t copy = each.copy;
    int32_t until = each.until;
    if (here[at(copy)] < 0) continue;
    const auto waits = [&] {
      return here[at(until)] >= 0 && role.body[at(until)].kind == InstructionKind::kCompute;
    };
    while (at(until) < here.size() && !waits()) ++until;
    leaving.push_back({here[at(copy)], at(until) < here.size() ? here[at(until)] : length});
  }
  return leaving;
}

// Covers body positions. A section ends when all that it sent has been received.
struct Interval {
  int64_t first = 0, last = -1;
  bool empty() const { return last < first; }
  void include(int64_t from, int64_t to) {
    const bool is_first = empty();
    first = is_first ? from : std::min(first, from);
    last = is_first ? to : std::max(last, to);
  }
};

// Says when a step buffer is needed in a body, by how many steps ahead of the one under way that
// step is.
using Life = std::span<const Interval>;

// Returns when a step needs the buffer, counted from the begin of the body that runs for it; empty:
// never.
Interval life_of_step(const Life& life, int64_t body) {
  Interval all;
  for (size_t ahead = life.size(); ahead-- > 0;) {
    const int64_t begin = -static_cast<int64_t>(ahead) * body;
    if (!life[ahead].empty()) all.include(begin + life[ahead].first, begin + life[ahead].last);
  }
  return all;
}

// Holds the lives of a role's buffers.
struct Lives {
  size_t levels = 1;
  std::vector<Interval> all;  // by buffer and steps ahead
  Life operator[](size_t buffer) const { return Life(all).subspan(buffer * levels, levels); }
};

const Overlap* pair_at(const std::vector<Overlap>& pairs, int64_t position) {
  const auto next =
      std::upper_bound(pairs.begin(), pairs.end(), position,
                       [](int64_t wanted, const Overlap& pair) { return wanted < pair.end; });
  return next != pairs.end() && position >= next->first ? &*next : nullptr;
}

// Other windows do what a body does for some of its steps, in the same order: what may share memory
// there may share it here, if what is sent is held as long.
Lives find_lives(const RoleProgram& role, const std::vector<std::vector<int32_t>>& positions,
                 const std::vector<std::vector<int64_t>>& held, const std::vector<Overlap>& pairs) {
  const size_t windows = positions.size();
  std::vector<std::vector<int64_t>> in_body(windows);  // by position in a window
  for (size_t w = 0; w < windows; ++w) in_body[w].resize(held[w].size());
  for (size_t i = 0; i < positions[kBody].size(); ++i)
    for (size_t w = 0; w < windows; ++w)
      if (positions[w][i] >= 0) in_body[w][at(positions[w][i])] = positions[kBody][i];
  const int64_t end = static_cast<int64_t>(role.body.size()) - 1;
  const std::vector<int64_t> kept =
      kept_until(role, std::vector<int64_t>(role.body.size(), int64_t{-1}));
  Lives lives{at(role.steps_ahead) + 1};
  lives.all.resize(role.buffers.size() * lives.levels);
  for (size_t i = 0; i < positions[kBody].size(); ++i) {
    int64_t to = kept[at(positions[kBody][i])];
    for (size_t w = 0; w < windows; ++w) {
      if (positions[w][i] < 0) continue;
      const int64_t until = held[w][at(positions[w][i])];
      const bool all = until >= static_cast<int64_t>(in_body[w].size());
      if (until >= 0) to = std::max(to, all ? end : in_body[w][at(until)]);
    }
    const Instruction& one = role.body[at(positions[kBody][i])];
    // Both of a pair are alive at once: what begins or ends inside lives all through it.
    const Overlap* begins = pair_at(pairs, positions[kBody][i]);
    const Overlap* ends = pair_at(pairs, to);
    const int64_t from = begins ? begins->first : positions[kBody][i];
    if (ends) to = ends->end - 1;
    for (int32_t arg : one.args)
      lives.all[at(arg) * lives.levels + at(one.ahead)].include(from, to);
  }
  for (const Report& report : role.reports)
    lives.all[at(report.buffer) * lives.levels].include(end, end);
  return lives;
}

// Sets when a buffer that several steps of a body use is alive: from where one of them begins it,
// maybe past the end of the body, to where it is done with it.
void set_lifetime(const Life& life, int64_t body, Block& block) {
  block.first = block.last = 0;
  Interval step = life_of_step(life, body);
  if (step.empty()) return;
  for (; step.first < 0; step.first += body) step.last += body;
  block.first = step.first;
  block.last = step.last;
}

void place(RoleProgram& role, const Lives& lives, const std::vector<Slot>& pool) {
  const auto body = static_cast<int64_t>(role.body.size());
  std::vector<Block> blocks = place_kept(role, pool);
  for (size_t b = 0; b < blocks.size(); ++b)
    if (blocks[b].offset < 0) set_lifetime(lives[b], body, blocks[b]);
  place_others(role, blocks, body);
}

// ---- What two steps need at once ----

// Returns the buffers that the next step begins before the one under way is done with them.
Result<std::vector<int32_t>> needed_twice(const RoleProgram& role, const Lives& lives,
                                          const std::vector<Slot>& pool) {
  const auto body = static_cast<int64_t>(role.body.size());
  const std::vector<Block> blocks = place_kept(role, pool);
  std::vector<int32_t> twice;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].offset >= 0) continue;
    const Interval step = life_of_step(lives[b], body);
    if (step.empty() || step.last - step.first < body) continue;
    const auto buffer = static_cast<int32_t>(b);
    if (role.tensor(buffer).host)
      return fail("'{}' would be needed on the host by two steps at once", role.name(buffer))
          .with_note(
              "help: more microbatches, or fewer tasks of the next step before those of "
              "this one");
    twice.push_back(buffer);
  }
  return twice;
}

// Adds a second one of these buffers, for later steps, and returns it by buffer; others stay. It
// has the same name, by which messages are matched.
std::vector<int32_t> add_later_buffers(RoleProgram& role, const std::vector<int32_t>& twice) {
  std::vector<int32_t> later(role.buffers.size());
  for (size_t b = 0; b < later.size(); ++b) later[b] = static_cast<int32_t>(b);
  for (const int32_t b : twice) {
    const Buffer of = role.buffers[at(b)];
    later[at(b)] = static_cast<int32_t>(role.buffers.size());
    role.buffers.push_back({of.tensor, of.micro});
  }
  return later;
}

// Steps that are farther ahead than the nearest one that uses such a buffer have a second one. Each
// begins with a copy from there when it becomes that one: in front of a body, and of all windows
// that it is in. What is copied from one of these to the next has left it before it is filled
// again.
void keep_twice(RoleProgram& role, const std::vector<int32_t>& twice, const Lives& lives,
                Split& split, Steady& steady) {
  const std::vector<int32_t> later = add_later_buffers(role, twice);
  std::vector<int32_t>& nearest = split.nearest;
  nearest.resize(role.buffers.size(), -1);
  for (const int32_t b : twice) {
    for (int32_t ahead = 0; nearest[at(b)] < 0; ++ahead)
      if (!lives[at(b)][at(ahead)].empty()) nearest[at(b)] = ahead;
    nearest[at(later[at(b)])] = nearest[at(b)] + 1;
  }
  const auto by_nearest = [&](int32_t a, int32_t b) { return nearest[at(a)] < nearest[at(b)]; };
  std::vector<int32_t> ordered = twice;
  std::ranges::stable_sort(ordered, by_nearest);
  std::vector<Instruction> copies;
  for (const int32_t b : ordered) {
    Instruction& copy = copies.emplace_back();
    copy.kind = InstructionKind::kCopy;
    copy.pass = TaskPass::kMove;
    copy.args = {later[at(b)], b};
    copy.label = "next " + role.name(b);
    copy.micro = role.buffers[at(b)].micro;
    copy.ahead = nearest[at(b)];
  }
  for (size_t w = 0; w < split.windows.size(); ++w) {
    const auto [first, end] = split.windows[w];
    std::vector<Instruction>& list = list_of(role, split, w);
    for (Instruction& one : list)
      for (int32_t& arg : one.args)
        if (at(arg) < later.size() && one.ahead + first > nearest[at(arg)]) arg = later[at(arg)];
    std::vector<std::pair<int64_t, Instruction>> added;
    std::vector<size_t> which;
    for (size_t c = 0; c < copies.size(); ++c) {
      const int32_t ahead = copies[c].ahead;
      if (ahead < first || ahead >= end) continue;
      // After the copies of earlier rounds that are less far ahead.
      size_t before = 0;
      while (before < split.copies[w] && list[before].ahead + first < ahead) ++before;
      added.emplace_back(static_cast<int64_t>(before), copies[c]);
      added.back().second.ahead -= first;
      which.push_back(c);
    }
    const std::vector<std::pair<int64_t, Instruction>> where = added;
    const std::vector<int32_t> moved = insert_before(list, std::move(added));
    for (int32_t& position : split.positions[w])
      if (position >= 0) position = moved[at(position)];
    split.copies[w] += which.size();
    const size_t count = split.positions[w].size();
    split.positions[w].resize(count + copies.size(), -1);
    for (size_t k = 0; k < which.size(); ++k)
      split.positions[w][count + which[k]] =
          static_cast<int32_t>(where[k].first) + static_cast<int32_t>(k);
    if (w != kBody) continue;
    for (Overlap& pair : steady.pairs)
      pair = {moved[at(pair.first)], moved[at(pair.second)], moved[at(pair.end - 1)] + 1};
    for (LeavingCopy& each : steady.offloads.leaving) {
      const auto now = [&](int32_t i) {
        return at(i) < moved.size() ? moved[at(i)] : static_cast<int32_t>(list.size());
      };
      each.copy = now(each.copy), each.until = now(each.until);
    }
  }
}

// Does the work on a window as if it were the body.
template <class Work>
void as_body(RoleProgram& role, Split& split, size_t window, const Work& work) {
  role.body.swap(list_of(role, split, window));
  work();
  role.body.swap(list_of(role, split, window));
}

// Runs the work for all roles at once; returns the error of the first role that has one.
template <class Work>
Status for_all_roles(const std::vector<RoleProgram>& roles, const Work& work) {
  std::vector<Status> done(roles.size(), ok_status());
  in_parallel(roles.size(), [&](size_t c) { done[c] = work(c); });
  for (Status& status : done) PIPER_TRY(std::move(status));
  return ok_status();
}

// Holds for a role, by window, what leaves for the host and until when sends hold memory; and the
// lives of all buffers.
struct Timing {
  std::vector<std::vector<LeavingCopy>> leaving;
  std::vector<std::vector<int64_t>> until;
  Lives lives;
};

// Finds how long memory is held, and also what instructions wait for, as data flow.
std::vector<Timing> find_held(const Dag& dag, std::vector<RoleProgram>& roles,
                              const std::vector<Transfer>& transfers, std::vector<Split>& splits,
                              const std::vector<Steady>& steady) {
  const size_t windows = splits[0].windows.size();
  in_parallel(roles.size(), [&](size_t c) {
    for (size_t w = 0; w < windows; ++w) {
      for (Instruction& one : list_of(roles[c], splits[c], w)) one.waits.clear();
      as_body(roles[c], splits[c], w, [&] { wait_for_data(roles[c]); });
    }
  });
  std::vector<Timing> all(roles.size());
  for (size_t w = 0; w < windows; ++w) {
    HeldUntil held = held_in(dag, roles, w, transfers, splits);
    for (size_t c = 0; c < roles.size(); ++c) all[c].until.push_back(std::move(held[c]));
  }
  in_parallel(roles.size(), [&](size_t c) {
    for (size_t w = 0; w < windows; ++w) {
      all[c].leaving.push_back(leaving_in(roles[c], w, splits[c].positions, steady[c].offloads));
      for (const auto& [copy, until] : all[c].leaving[w]) all[c].until[w][at(copy)] = until - 1;
    }
    all[c].lives = find_lives(roles[c], splits[c].positions, all[c].until, steady[c].pairs);
  });
  return all;
}

// Adds what a window waits for to the list that it is taken from.
void add_waits(RoleProgram& role, Split& split, size_t window) {
  const size_t from = split.windows[window].first > 0 ? kPrologue : kEpilogue;
  const std::vector<int32_t>&here = split.positions[window], &there = split.positions[from];
  std::vector<int32_t> moved(split.others[window - kLists].size());
  for (size_t i = 0; i < here.size(); ++i)
    if (here[i] >= 0) moved[at(here[i])] = there[i];
  for (size_t i = 0; i < moved.size(); ++i) {
    std::vector<int32_t>& waits = list_of(role, split, from)[at(moved[i])].waits;
    for (const int32_t wait : split.others[window - kLists][i].waits)
      if (std::ranges::count(waits, moved[at(wait)]) == 0) waits.push_back(moved[at(wait)]);
    std::ranges::sort(waits);
  }
}

}  // namespace

Status split_steps(std::vector<RoleProgram>& roles, const std::vector<StepOrder>& orders,
                   const std::vector<Transfer>& transfers, const Dag& dag, Lowered& counts) {
  TwiceCount& twice = counts.twice;
  int32_t most = 1;
  for (const StepOrder& order : orders)
    for (const int32_t ahead : order.ahead) most = std::max(most, ahead);
  std::vector<Split> splits(roles.size());
  std::vector<Steady> steady(roles.size());
  PIPER_TRY(for_all_roles(roles, [&](size_t c) -> Status {
    steady[c] = make_steady(roles[c], orders[c], dag);
    PIPER_ASSIGN(splits[c], split_role(roles[c], steady[c], most));
    return ok_status();
  }));
  for (const Steady& each : steady) {
    add_counts(each.offloads, counts.offloads);
    add_counts(each.credits, counts.credits);
  }
  std::vector<Timing> held;
  bool is_settled = false;
  while (!is_settled) {
    is_settled = true;
    held = find_held(dag, roles, transfers, splits, steady);
    for (size_t c = 0; c < roles.size(); ++c) {
      PIPER_ASSIGN(const auto buffers, needed_twice(roles[c], held[c].lives, steady[c].pool));
      if (buffers.empty()) continue;
      is_settled = false;
      twice.values += static_cast<int64_t>(buffers.size());
      for (const int32_t b : buffers) twice.bytes += roles[c].tensor(b).type.bytes();
      keep_twice(roles[c], buffers, held[c].lives, splits[c], steady[c]);
    }
  }
  in_parallel(roles.size(), [&](size_t c) {
    RoleProgram& role = roles[c];
    place(role, held[c].lives, steady[c].pool);
    for (size_t w = 0; w < splits[c].windows.size(); ++w)
      as_body(role, splits[c], w, [&] {
        for (const auto& [copy, until] : held[c].leaving[w])
          if (at(until) < role.body.size()) role.body[at(until)].waits.push_back(copy);
        wait_for_memory(role, held[c].until[w]);
      });
    for (size_t w = kLists; w < splits[c].windows.size(); ++w) add_waits(role, splits[c], w);
  });
  return ok_status();
}

}  // namespace piper
