#include "steps.h"

#include <algorithm>
#include <array>

#include "piper/memory.h"
#include "place.h"

namespace piper {
namespace {

size_t at(int32_t id) { return static_cast<size_t>(id); }

// One of the three sections as a role of its own, for what works on bodies.
enum Section { kPrologue, kBody, kEpilogue };
constexpr Section kSections[] = {kPrologue, kBody, kEpilogue};

std::vector<Instruction>& list_of(RoleProgram& role, Section section) {
  return section == kPrologue ? role.prologue : section == kBody ? role.body : role.epilogue;
}

// By buffer: what a task of the next step reads instead, before the update of the one under way.
std::vector<int32_t> newest_versions(const RoleProgram& role) {
  std::vector<int32_t> newest;
  for (size_t b = 0; b < role.buffers.size(); ++b) newest.push_back(static_cast<int32_t>(b));
  for (size_t b = 0; b < role.buffers.size(); ++b)
    if (role.buffers[b].previous_of >= 0) newest[b] = role.buffers[b].previous_of;
  return newest;
}

std::vector<bool> written_states(const RoleProgram& role) {
  std::vector<bool> written(role.buffers.size());
  for (const Instruction& one : role.body)
    for (size_t a = 0; a < one.args.size() && one.kind == InstructionKind::kCompute; ++a)
      if (role.programs[at(one.program)].arg_written[a] &&
          role.buffers[at(one.args[a])].kind == BufferKind::kState)
        written[at(one.args[a])] = true;
  return written;
}

// Where each instruction of the one step stands in the three lists; -1: not there.
using Positions = std::array<std::vector<int32_t>, 3>;

Result<Positions> split(RoleProgram& role, const StepOrder& order, int32_t channels) {
  const std::vector<int32_t> newest = newest_versions(role);
  const std::vector<bool> written = written_states(role);
  const std::vector<Instruction> step = std::move(role.body);
  role.body.clear();
  role.steps_ahead = 1;
  Positions positions;
  positions.fill(std::vector<int32_t>(step.size(), -1));
  const auto add = [&](Section section, int32_t i, const Instruction& one) {
    positions[section][at(i)] = static_cast<int32_t>(list_of(role, section).size());
    list_of(role, section).push_back(one);
  };
  for (int32_t task : order.body)
    for (int32_t i = order.starts[at(task)]; i < order.starts[at(task) + 1]; ++i) {
      Instruction one = step[at(i)];
      one.waits.clear();
      if (!order.ahead[at(task)]) {
        add(kBody, i, one);
        add(kEpilogue, i, one);
        continue;
      }
      if (!one.peer.empty()) one.channel += channels;
      add(kPrologue, i, one);
      one.ahead = 1;
      for (int32_t& arg : one.args) {
        arg = newest[at(arg)];
        if (!written[at(arg)] || !role.buffers[at(arg)].param.empty()) continue;
        return fail("'{}' of the next step reads '{}', which the update changes: not supported",
                    one.label, role.buffers[at(arg)].name)
            .with_code(ExitCode::kRefused);
      }
      add(kBody, i, one);
    }
  return positions;
}

// By cell: until when the sends of a section are under way.
using Held = std::vector<std::vector<int64_t>>;

Held held_in(std::vector<RoleProgram>& roles, Section section,
             const std::vector<Transfer>& transfers, const std::vector<Positions>& positions) {
  std::vector<RoleProgram> sections;
  for (RoleProgram& role : roles) {
    sections.emplace_back();
    sections.back().groups = role.groups;
    sections.back().body.swap(list_of(role, section));
  }
  std::vector<Transfer> here;
  for (Transfer one : transfers) {
    one.send_position = positions[at(one.from_cell)][section][at(one.send_position)];
    one.recv_position = positions[at(one.to_cell)][section][at(one.recv_position)];
    if (one.send_position >= 0) here.push_back(one);
  }
  Held held = send_lifetimes(sections, here);
  for (size_t c = 0; c < roles.size(); ++c) sections[c].body.swap(list_of(roles[c], section));
  return held;
}

struct Interval {
  int64_t first = 0, last = -1;
  bool empty() const { return last < first; }
  void include(int64_t from, int64_t to) {
    first = empty() ? from : std::min(first, from);
    last = std::max(last, to);
  }
};

// When a step buffer is needed, on the time line prologue, body, epilogue.
struct Life {
  Interval in[3];
  Interval own, next;  // in the body: by the step under way, by the next one
};

std::vector<Life> find_lives(RoleProgram& role, const std::array<std::vector<int64_t>, 3>& held) {
  std::vector<Life> lives(role.buffers.size());
  int64_t begin = 0;
  for (Section section : kSections) {
    const std::vector<Instruction>& list = list_of(role, section);
    const int64_t end = begin + static_cast<int64_t>(list.size()) - 1;
    for (size_t i = 0; i < list.size(); ++i)
      for (int32_t arg : list[i].args) {
        const int64_t from = begin + static_cast<int64_t>(i);
        const int64_t to = std::min(end, std::max(from, begin + held[section][i]));
        Life& life = lives[at(arg)];
        life.in[section].include(from, to);
        if (section == kBody) (list[i].ahead ? life.next : life.own).include(from, to);
      }
    for (const Report& report : role.reports)
      if (section != kPrologue) lives[at(report.buffer)].in[section].include(end, end);
    begin = end + 1;
  }
  return lives;
}

// What is alive twice on the time line.
struct Twice {
  int64_t bytes = 0, offset = -1;
  Interval first, second;

  bool meets(const Twice& other) const {
    return meets(first, other.first) || meets(first, other.second) || meets(second, other.first) ||
           meets(second, other.second);
  }
  static bool meets(const Interval& a, const Interval& b) {
    return !a.empty() && !b.empty() && a.first <= b.last && b.first <= a.last;
  }
};

// A buffer that both steps of a body use lives from where the next step begins it, past the end of
// the section, to where its own step has done with it. It must not be needed by two at once.
Status set_lifetime(const RoleProgram& role, size_t b, const Life& life, Twice& block) {
  if (life.own.empty() || life.next.empty()) {
    block.first = life.in[life.next.empty() ? kBody : kPrologue];
    block.second = life.in[life.next.empty() ? kEpilogue : kBody];
    return ok_status();
  }
  if (life.next.first <= life.own.last)
    return fail("'{}' would be needed by two steps at once", role.buffers[b].name)
        .with_code(ExitCode::kRefused)
        .with_note(
            "help: more microbatches, or fewer tasks of the next step before those of this one");
  block.first = {life.in[kPrologue].first, life.own.last};
  block.second = {life.next.first, life.in[kEpilogue].last};
  return ok_status();
}

// The largest first, each at the lowest offset from `base` on that is free. Returns the greatest
// end.
int64_t place_twice(std::vector<Twice>& blocks, int64_t base) {
  std::vector<size_t> order;
  for (size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].offset < 0) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return blocks[a].bytes > blocks[b].bytes; });
  std::vector<size_t> placed;  // by offset
  int64_t end = base;
  for (size_t i : order) {
    Twice& block = blocks[i];
    block.offset = base;
    for (size_t p : placed) {
      if (!blocks[p].meets(block)) continue;
      if (block.offset + block.bytes <= blocks[p].offset) break;
      block.offset = std::max(block.offset, blocks[p].offset + align_up(blocks[p].bytes));
    }
    end = std::max(end, block.offset + align_up(block.bytes));
    const auto at = std::upper_bound(placed.begin(), placed.end(), i, [&](size_t a, size_t b) {
      return blocks[a].offset < blocks[b].offset;
    });
    placed.insert(at, i);
  }
  return end;
}

Status place(RoleProgram& role, const std::array<std::vector<int64_t>, 3>& held) {
  const std::vector<Life> lives = find_lives(role, held);
  std::vector<Twice> blocks(role.buffers.size());
  int64_t kept = 0;  // for ever, before all others
  for (size_t b = 0; b < blocks.size(); ++b) {
    blocks[b].bytes = role.buffers[b].type.bytes();
    if (role.buffers[b].kind == BufferKind::kStep) {
      PIPER_TRY(set_lifetime(role, b, lives[b], blocks[b]));
    } else {
      blocks[b].offset = kept;
      kept += align_up(blocks[b].bytes);
    }
  }
  role.arena_bytes = place_twice(blocks, kept);
  for (size_t b = 0; b < blocks.size(); ++b) role.buffers[b].offset = blocks[b].offset;
  return ok_status();
}

void add_waits(RoleProgram& role, Section section, const std::vector<int64_t>& held) {
  RoleProgram alone;
  alone.streams = role.streams;
  alone.buffers = role.buffers;
  alone.programs = std::move(role.programs);  // they say which arguments are written
  alone.body = std::move(list_of(role, section));
  wait_for_data(alone);
  wait_for_memory(alone, held);
  list_of(role, section) = std::move(alone.body);
  role.programs = std::move(alone.programs);
}

}  // namespace

Status split_steps(std::vector<RoleProgram>& roles, const std::vector<StepOrder>& orders,
                   const std::vector<Transfer>& transfers, int32_t channels) {
  std::vector<Positions> positions;
  for (size_t c = 0; c < roles.size(); ++c) {
    PIPER_ASSIGN(Positions of_cell, split(roles[c], orders[c], channels));
    positions.push_back(std::move(of_cell));
  }
  Held held[3];
  for (Section section : kSections) held[section] = held_in(roles, section, transfers, positions);
  for (size_t c = 0; c < roles.size(); ++c) {
    PIPER_TRY(place(roles[c], {held[kPrologue][c], held[kBody][c], held[kEpilogue][c]}));
    for (Section section : kSections) add_waits(roles[c], section, held[section][c]);
  }
  return ok_status();
}

}  // namespace piper
