// Splits a step into prologue, body and epilogue, with two versions of what the update writes.
#include "steps.h"

#include <algorithm>
#include <array>

#include "at.h"
#include "credit.h"
#include "piper/base/memory.h"
#include "piper/base/parallel.h"
#include "piper/plan/access.h"
#include "place.h"

namespace piper {
namespace {

// A Section is one of the three that become roles of their own, for what works on bodies.
enum Section { kPrologue, kBody, kEpilogue };
constexpr Section kSections[] = {kPrologue, kBody, kEpilogue};

std::vector<Instruction>& list_of(RoleProgram& role, Section section) {
  return section == kPrologue ? role.prologue : section == kBody ? role.body : role.epilogue;
}

// Returns by buffer what a task of the next step reads instead, before the update of the one under
// way.
std::vector<int32_t> newest_versions(const RoleProgram& role) {
  std::vector<int32_t> newest;
  for (size_t b = 0; b < role.buffers.size(); ++b) newest.push_back(static_cast<int32_t>(b));
  for (size_t b = 0; b < role.buffers.size(); ++b)
    if (const int32_t of = role.tensor(role.buffers[b]).previous_of; of >= 0) newest[b] = of;
  return newest;
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

// Where each instruction of the one step is in the three lists; -1: not there.
using Positions = std::array<std::vector<int32_t>, 3>;

// Lets the next step read the newest version of a state. `changes`: by buffer, how often the one
// under way still updates a state that has no versions.
Status read_newest(const RoleProgram& role, const std::vector<int32_t>& newest,
                   const std::vector<int32_t>& changes, Instruction& one) {
  for (int32_t& arg : one.args) {
    arg = newest[at(arg)];
    if (changes[at(arg)] > 0)
      return fail("'{}' of the next step reads '{}', which the update changes: not supported",
                  one.label, role.name(arg));
  }
  return ok_status();
}

Result<Positions> split(RoleProgram& role, const Steady& made) {
  const std::vector<int32_t> newest = newest_versions(role);
  std::vector<int32_t> changes(role.buffers.size());
  for (const Instruction& one : role.body)
    for_each_change(role, one, [&](int32_t state) { ++changes[at(state)]; });
  for (size_t b = 0; b < newest.size(); ++b)
    if (newest[b] != static_cast<int32_t>(b)) changes[at(newest[b])] = 0;
  std::vector<Instruction> steady = std::move(role.body);
  role.body.clear();
  role.body.reserve(steady.size());
  const auto ahead = at(
      std::count_if(steady.begin(), steady.end(), [](const auto& one) { return one.ahead != 0; }));
  role.prologue.reserve(ahead);
  role.epilogue.reserve(steady.size() - ahead);
  role.steps_ahead = 1;
  Positions positions;
  positions.fill(std::vector<int32_t>(steady.size(), -1));
  const auto add = [&](Section section, size_t i, Instruction one) {
    positions[section][at(made.numbers[i])] = static_cast<int32_t>(list_of(role, section).size());
    list_of(role, section).push_back(std::move(one));
  };
  for (size_t i = 0; i < steady.size(); ++i) {
    Instruction& one = steady[i];
    if (one.ahead == 0) {
      for_each_change(role, one, [&](int32_t state) { --changes[at(state)]; });
      add(kBody, i, one);
      add(kEpilogue, i, std::move(one));
      continue;
    }
    add(kPrologue, i, one);
    role.prologue.back().ahead = 0;
    PIPER_TRY(read_newest(role, newest, changes, one));
    add(kBody, i, std::move(one));
  }
  return positions;
}

// By cell: until when the sends of a section are under way.
using HeldUntil = std::vector<std::vector<int64_t>>;

HeldUntil held_in(const Dag& dag, std::vector<RoleProgram>& roles, Section section,
                  const std::vector<Transfer>& transfers, const std::vector<Positions>& positions) {
  std::vector<RoleProgram> sections;
  for (RoleProgram& role : roles) {
    sections.emplace_back();
    sections.back().groups = role.groups;
    sections.back().streams = role.streams;
    sections.back().body.swap(list_of(role, section));
  }
  std::vector<Transfer> here;
  for (Transfer one : transfers) {
    one.send_position = positions[at(one.from_cell)][section][at(one.send_position)];
    one.recv_position = positions[at(one.to_cell)][section][at(one.recv_position)];
    if (one.send_position >= 0) here.push_back(one);
  }
  HeldUntil held = send_lifetimes(dag, sections, here);
  for (size_t c = 0; c < roles.size(); ++c) sections[c].body.swap(list_of(roles[c], section));
  return held;
}

// Returns the copies of a section that leave for the host, and the computations that wait for them.
std::vector<LeavingCopy> leaving_in(const RoleProgram& role, Section section, const Positions& all,
                                    const OffloadPlan& plan) {
  if (plan.leaving.empty()) return {};
  std::vector<int32_t> here(role.body.size(), -1);  // by position in the body
  int32_t length = 0;
  for (size_t n = 0; n < all[kBody].size(); ++n) {
    here[at(all[kBody][n])] = all[section][n];
    length += all[section][n] >= 0 ? 1 : 0;
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
    first = empty() ? from : std::min(first, from);
    last = std::max(last, to);
  }
};

// Says when a step buffer is needed in a body: by the step under way, by the next one.
struct Life {
  Interval own, next;
};

const Overlap* pair_at(const std::vector<Overlap>& pairs, int64_t position) {
  const auto next =
      std::upper_bound(pairs.begin(), pairs.end(), position,
                       [](int64_t wanted, const Overlap& pair) { return wanted < pair.end; });
  return next != pairs.end() && position >= next->first ? &*next : nullptr;
}

// Prologue and epilogue do what a body does for one of its steps, in the same order: what may share
// memory there may share it here, if what is sent is held as long.
std::vector<Life> find_lives(const RoleProgram& role, const Positions& positions,
                             const std::array<std::vector<int64_t>, 3>& held,
                             const std::vector<Overlap>& pairs) {
  std::array<std::vector<int64_t>, 3> in_body;  // by position in a section
  for (Section section : kSections) in_body[section].resize(held[section].size());
  for (size_t i = 0; i < positions[kBody].size(); ++i)
    for (Section section : kSections)
      if (positions[section][i] >= 0)
        in_body[section][at(positions[section][i])] = positions[kBody][i];
  const int64_t end = static_cast<int64_t>(role.body.size()) - 1;
  std::vector<Life> lives(role.buffers.size());
  for (size_t i = 0; i < positions[kBody].size(); ++i) {
    int64_t to = positions[kBody][i];
    for (Section section : kSections) {
      if (positions[section][i] < 0) continue;
      const int64_t until = held[section][at(positions[section][i])];
      const bool all = until >= static_cast<int64_t>(in_body[section].size());
      if (until >= 0) to = std::max(to, all ? end : in_body[section][at(until)]);
    }
    const Instruction& one = role.body[at(positions[kBody][i])];
    // Both of a pair are alive at once: what begins or ends inside lives all through it.
    const Overlap* begins = pair_at(pairs, positions[kBody][i]);
    const Overlap* ends = pair_at(pairs, to);
    const int64_t from = begins ? begins->first : positions[kBody][i];
    if (ends) to = ends->end - 1;
    for (int32_t arg : one.args)
      (one.ahead ? lives[at(arg)].next : lives[at(arg)].own).include(from, to);
  }
  for (const Report& report : role.reports) lives[at(report.buffer)].own.include(end, end);
  return lives;
}

bool meets_next(const Life& life) {
  return !life.own.empty() && !life.next.empty() && life.own.last >= life.next.first;
}

// Sets when a buffer that both steps of a body use is alive: from where the next step begins it,
// past the end of the body, to where its own step is done with it.
void set_lifetime(const Life& life, int64_t body, Block& block) {
  block.first = block.last = 0;
  if (life.own.empty() && life.next.empty()) return;
  const bool both = !life.own.empty() && !life.next.empty();
  const Interval& begin = life.next.empty() ? life.own : life.next;
  block.first = begin.first;
  block.last = both ? life.own.last + body : begin.last;
}

void place(RoleProgram& role, const std::vector<Life>& lives, const std::vector<Slot>& pool) {
  const auto body = static_cast<int64_t>(role.body.size());
  std::vector<Block> blocks = place_kept(role, pool);
  for (size_t b = 0; b < blocks.size(); ++b)
    if (blocks[b].offset < 0) set_lifetime(lives[b], body, blocks[b]);
  place_others(role, blocks, body);
}

// ---- What two steps need at once ----

// Returns the buffers that the next step begins before the one under way is done with them.
Result<std::vector<int32_t>> needed_twice(const RoleProgram& role, const std::vector<Life>& lives,
                                          const std::vector<Slot>& pool) {
  const std::vector<Block> blocks = place_kept(role, pool);
  std::vector<int32_t> twice;
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].offset >= 0 || !meets_next(lives[b])) continue;
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

// Adds a second one of these buffers, for the next step, and returns it by buffer; others stay. It
// has the same name, by which messages are matched.
std::vector<int32_t> add_next_buffers(RoleProgram& role, const std::vector<int32_t>& twice) {
  std::vector<int32_t> next(role.buffers.size());
  for (size_t b = 0; b < next.size(); ++b) next[b] = static_cast<int32_t>(b);
  for (const int32_t b : twice) {
    const Buffer of = role.buffers[at(b)];
    next[at(b)] = static_cast<int32_t>(role.buffers.size());
    role.buffers.push_back({of.tensor, of.micro});
  }
  return next;
}

// The next step has a second buffer of each, and begins when its turn comes with a copy from there:
// in front of the body and of the epilogue.
void keep_twice(RoleProgram& role, const std::vector<int32_t>& twice, Positions& positions,
                Steady& steady) {
  const std::vector<int32_t> next = add_next_buffers(role, twice);
  for (auto* list : {&role.prologue, &role.body})
    for (Instruction& one : *list)
      if (list == &role.prologue || one.ahead != 0)
        for (int32_t& arg : one.args) arg = next[at(arg)];
  std::vector<Instruction> copies;
  for (const int32_t b : twice) {
    Instruction& copy = copies.emplace_back();
    copy.kind = InstructionKind::kCopy;
    copy.pass = TaskPass::kMove;
    copy.args = {next[at(b)], b};
    copy.label = "next " + role.name(b);
    copy.micro = role.buffers[at(b)].micro;
  }
  const auto count = static_cast<int32_t>(copies.size());
  for (const Section section : kSections) {
    const bool begins = section != kPrologue;
    auto& list = list_of(role, section);
    if (begins) list.insert(list.begin(), copies.begin(), copies.end());
    for (int32_t& position : positions[section])
      if (begins && position >= 0) position += count;
    for (int32_t i = 0; i < count; ++i) positions[section].push_back(begins ? i : -1);
  }
  for (Overlap& pair : steady.pairs)
    pair = {pair.first + count, pair.second + count, pair.end + count};
  for (LeavingCopy& each : steady.offloads.leaving) each.copy += count, each.until += count;
}

// Does the work on a section as if it were the body.
template <class Work>
void as_body(RoleProgram& role, Section section, const Work& work) {
  role.body.swap(list_of(role, section));
  work();
  role.body.swap(list_of(role, section));
}

// Runs the work for all roles at once; returns the error of the first role that has one.
template <class Work>
Status for_all_roles(const std::vector<RoleProgram>& roles, const Work& work) {
  std::vector<Status> done(roles.size(), ok_status());
  in_parallel(roles.size(), [&](size_t c) { done[c] = work(c); });
  for (Status& status : done) PIPER_TRY(std::move(status));
  return ok_status();
}

// Holds for a role what leaves for the host and until when sends hold memory, by section; and all
// lives.
struct Timing {
  std::array<std::vector<LeavingCopy>, 3> leaving;
  std::array<std::vector<int64_t>, 3> until;
  std::vector<Life> lives;
};

// Finds how long memory is held, and also what instructions wait for, as data flow.
std::vector<Timing> find_held(const Dag& dag, std::vector<RoleProgram>& roles,
                              const std::vector<Transfer>& transfers,
                              const std::vector<Positions>& positions,
                              const std::vector<Steady>& steady) {
  in_parallel(roles.size(), [&](size_t c) {
    for (const Section section : kSections) {
      for (Instruction& one : list_of(roles[c], section)) one.waits.clear();
      as_body(roles[c], section, [&] { wait_for_data(roles[c]); });
    }
  });
  std::vector<Timing> all(roles.size());
  for (const Section section : kSections) {
    HeldUntil held = held_in(dag, roles, section, transfers, positions);
    for (size_t c = 0; c < roles.size(); ++c) all[c].until[section] = std::move(held[c]);
  }
  in_parallel(roles.size(), [&](size_t c) {
    for (const Section section : kSections) {
      all[c].leaving[section] = leaving_in(roles[c], section, positions[c], steady[c].offloads);
      for (const auto& [copy, until] : all[c].leaving[section])
        all[c].until[section][at(copy)] = until - 1;
    }
    all[c].lives = find_lives(roles[c], positions[c], all[c].until, steady[c].pairs);
  });
  return all;
}

}  // namespace

Status split_steps(std::vector<RoleProgram>& roles, const std::vector<StepOrder>& orders,
                   const std::vector<Transfer>& transfers, const Dag& dag, Lowered& counts) {
  TwiceCount& twice = counts.twice;
  std::vector<Positions> positions(roles.size());
  std::vector<Steady> steady(roles.size());
  PIPER_TRY(for_all_roles(roles, [&](size_t c) -> Status {
    steady[c] = make_steady(roles[c], orders[c], dag);
    PIPER_ASSIGN(positions[c], split(roles[c], steady[c]));
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
    held = find_held(dag, roles, transfers, positions, steady);
    for (size_t c = 0; c < roles.size(); ++c) {
      PIPER_ASSIGN(const auto buffers, needed_twice(roles[c], held[c].lives, steady[c].pool));
      if (buffers.empty()) continue;
      is_settled = false;
      twice.values += static_cast<int64_t>(buffers.size());
      for (const int32_t b : buffers) twice.bytes += roles[c].tensor(b).type.bytes();
      keep_twice(roles[c], buffers, positions[c], steady[c]);
    }
  }
  in_parallel(roles.size(), [&](size_t c) {
    RoleProgram& role = roles[c];
    place(role, held[c].lives, steady[c].pool);
    for (const Section section : kSections)
      as_body(role, section, [&] {
        for (const auto& [copy, until] : held[c].leaving[section])
          if (at(until) < role.body.size()) role.body[at(until)].waits.push_back(copy);
        wait_for_memory(role, held[c].until[section]);
      });
  });
  return ok_status();
}

}  // namespace piper
