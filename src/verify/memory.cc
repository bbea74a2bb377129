#include <algorithm>
#include <map>

#include "cells.h"

namespace piper::verify {
namespace {

struct Access {
  bool reads = false, writes = false;
};

Access access_of(const RoleProgram& role, const Instruction& instruction, size_t arg) {
  switch (instruction.kind) {
    case InstructionKind::kCompute: {
      const Program& program = role.programs[static_cast<size_t>(instruction.program)];
      return {program.arg_read[arg], program.arg_written[arg]};
    }
    case InstructionKind::kSend: return {true, false};
    case InstructionKind::kInput:
    case InstructionKind::kRecv: return {false, true};
    case InstructionKind::kAllReduce:
    case InstructionKind::kBroadcast: return {true, true};
    default: return {arg == 0, arg == 1};
  }
}

// For each instruction, by stream, the number of its instructions (as index + 1) known complete before it starts.
std::vector<std::vector<int32_t>> stream_clocks(const RoleProgram& role) {
  const size_t streams = role.streams.size();
  std::vector<std::vector<int32_t>> clock(role.body.size(), std::vector<int32_t>(streams));
  std::vector<int32_t> last(streams, -1);
  for (size_t i = 0; i < role.body.size(); ++i) {
    const auto learn = [&](int32_t j) {
      const auto& other = clock[static_cast<size_t>(j)];
      for (size_t s = 0; s < streams; ++s) clock[i][s] = std::max(clock[i][s], other[s]);
      auto& own = clock[i][static_cast<size_t>(role.body[static_cast<size_t>(j)].stream)];
      own = std::max(own, j + 1);
    };
    const auto stream = static_cast<size_t>(role.body[i].stream);
    if (last[stream] >= 0) learn(last[stream]);
    for (int32_t wait : role.body[i].waits) learn(wait);
    last[stream] = static_cast<int32_t>(i);
  }
  return clock;
}

// Positions in issue order between which a buffer's bytes matter.
struct Life {
  int64_t first = INT64_MAX, last = -1;
  std::map<int32_t, int32_t> last_on_stream;
};

// The last position of the sender at which the receive may still be under way.
int64_t send_held_until(const Model& model, Place send) {
  const Place recv = model.cells[static_cast<size_t>(send.cell)].partner[static_cast<size_t>(send.at)];
  const auto& clock = model.clock[static_cast<size_t>(send.cell)];
  // What the sender knows of the receiver only grows: binary search.
  const auto known = std::partition_point(clock.begin() + send.at, clock.end(), [&](const std::vector<int32_t>& c) {
    return c[static_cast<size_t>(recv.cell)] <= recv.at;
  });
  return known == clock.end() ? static_cast<int64_t>(clock.size()) : known - clock.begin() - 1;
}

std::vector<Life> lives_of(const Model& model, int32_t cell) {
  const RoleProgram& role = *model.cells[static_cast<size_t>(cell)].role;
  const auto end = static_cast<int64_t>(role.body.size());
  std::vector<Life> lives(role.buffers.size());
  for (int32_t i = 0; i < end; ++i) {
    const Instruction& instruction = role.body[static_cast<size_t>(i)];
    for (int32_t arg : instruction.args) {
      Life& life = lives[static_cast<size_t>(arg)];
      life.first = std::min<int64_t>(life.first, i);
      life.last = std::max<int64_t>(life.last, i);
      life.last_on_stream[instruction.stream] = i;
      if (instruction.kind == InstructionKind::kSend) life.last = std::max(life.last, send_held_until(model, {cell, i}));
    }
  }
  for (const piper::Report& r : role.reports) lives[static_cast<size_t>(r.buffer)].last = end;
  for (size_t b = 0; b < lives.size(); ++b)
    if (role.buffers[b].kind != BufferKind::kStep) lives[b].first = -1, lives[b].last = end;
  return lives;
}

std::string buffer_text(const RoleProgram& role, size_t b) {
  const Buffer& buffer = role.buffers[b];
  return fmt::format("{} (bytes {} to {})", buffer.name, buffer.offset, buffer.offset + buffer.type.bytes());
}

// Sweeps over positions; the live buffers are kept by offset, so that a new one only meets its neighbours.
void check_overlaps(const RoleProgram& role, const std::vector<Life>& lives, const std::string& where, Report& report) {
  struct Event {
    int64_t at;
    bool begins;
    size_t buffer;
  };
  std::vector<Event> events;
  for (size_t b = 0; b < lives.size(); ++b) {
    if (lives[b].last < lives[b].first || role.buffers[b].type.bytes() == 0) continue;
    events.push_back({lives[b].first, true, b});
    events.push_back({lives[b].last + 1, false, b});
  }
  // A buffer that ends at p has its last use at p - 1: ends come before beginnings.
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return std::pair(a.at, a.begins) < std::pair(b.at, b.begins); });
  std::map<int64_t, size_t> live;
  for (const Event& event : events) {
    const Buffer& buffer = role.buffers[event.buffer];
    if (!event.begins) {
      const auto it = live.find(buffer.offset);
      if (it != live.end() && it->second == event.buffer) live.erase(it);
      continue;
    }
    const auto next = live.lower_bound(buffer.offset);
    const auto clash = [&](size_t other) {
      report.find("memory", "{}: {} and {} share memory while both are in use", where, buffer_text(role, event.buffer),
                  buffer_text(role, other));
    };
    if (next != live.end() && next->first < buffer.offset + buffer.type.bytes()) clash(next->second);
    if (next != live.begin()) {
      const auto before = std::prev(next);
      if (before->first + role.buffers[before->second].type.bytes() > buffer.offset) clash(before->second);
    }
    live.emplace(buffer.offset, event.buffer);
  }
}

// Memory that changes hands between streams: the new owner's first use must come after every use of the old one.
void check_reuse_across_streams(const RoleProgram& role, const std::vector<Life>& lives, const std::string& where, Report& report) {
  if (role.streams.size() < 2) return;
  const auto clock = stream_clocks(role);
  std::vector<size_t> mixed;  // buffers that a stream other than the first touches
  for (size_t b = 0; b < lives.size(); ++b)
    if (role.buffers[b].kind == BufferKind::kStep &&
        std::any_of(lives[b].last_on_stream.begin(), lives[b].last_on_stream.end(), [](const auto& s) { return s.first != 0; }))
      mixed.push_back(b);
  const auto overlap = [&](size_t a, size_t b) {
    const Buffer &x = role.buffers[a], &y = role.buffers[b];
    return x.offset < y.offset + y.type.bytes() && y.offset < x.offset + x.type.bytes();
  };
  const auto check = [&](size_t old_owner, size_t new_owner) {
    const auto start = static_cast<size_t>(lives[new_owner].first);
    for (const auto& [stream, last] : lives[old_owner].last_on_stream)
      if (role.body[start].stream != stream && clock[start][static_cast<size_t>(stream)] <= last)
        report.find("memory", "{}: '{}' may overwrite {} while stream '{}' still uses it in '{}'", where, role.body[start].label,
                    role.buffers[old_owner].name, role.streams[static_cast<size_t>(stream)].name, role.body[static_cast<size_t>(last)].label);
  };
  for (size_t m : mixed)
    for (size_t b = 0; b < lives.size(); ++b) {
      if (b == m || role.buffers[b].kind != BufferKind::kStep || lives[b].last < 0 || !overlap(m, b)) continue;
      if (lives[m].last < lives[b].first) check(m, b);
      else if (lives[b].last < lives[m].first) check(b, m);
    }
}

void check_programs(const RoleProgram& role, const std::string& where, Report& report) {
  std::vector<int64_t> workspace(role.streams.size());
  for (const Program& program : role.programs) {
    std::vector<int32_t> first(program.values.size(), -1), last(program.values.size(), -1);
    std::vector<bool> literal(program.values.size());
    for (const auto& [value, bytes] : program.literals) literal[static_cast<size_t>(value)] = true;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      for (int32_t v : program.ops[i].inputs)
        if (v >= 0) last[static_cast<size_t>(v)] = static_cast<int32_t>(i);
      for (int32_t v : program.ops[i].outputs) {
        if (first[static_cast<size_t>(v)] < 0) first[static_cast<size_t>(v)] = static_cast<int32_t>(i);
        last[static_cast<size_t>(v)] = std::max(last[static_cast<size_t>(v)], static_cast<int32_t>(i));
      }
    }
    std::vector<size_t> locals;
    for (size_t v = static_cast<size_t>(program.num_args); v < program.values.size(); ++v) {
      if (literal[v] || first[v] < 0) continue;
      if (program.offsets[v] < 0 || program.offsets[v] + program.values[v].bytes() > program.workspace_bytes)
        report.find("memory", "{}: program '{}' keeps a value outside its workspace", where, program.label);
      locals.push_back(v);
    }
    std::sort(locals.begin(), locals.end(), [&](size_t a, size_t b) { return first[a] < first[b]; });
    for (size_t i = 0; i < locals.size(); ++i)
      for (size_t j = i + 1; j < locals.size(); ++j) {
        const size_t a = locals[i], b = locals[j];
        if (last[a] < first[b]) continue;
        const int64_t a0 = program.offsets[a], a1 = a0 + program.values[a].bytes();
        const int64_t b0 = program.offsets[b], b1 = b0 + program.values[b].bytes();
        // An op may write in place over an input that it reads last, byte for byte.
        const bool in_place = last[a] == first[b] && first[a] != first[b] && a0 == b0 && a1 == b1;
        if (a0 < b1 && b0 < a1 && !in_place)
          report.find("memory", "{}: program '{}' keeps two values in the same bytes at op {}", where, program.label, first[b]);
      }
  }
  for (const Instruction& instruction : role.body)
    if (instruction.kind == InstructionKind::kCompute) {
      int64_t& bytes = workspace[static_cast<size_t>(instruction.stream)];
      bytes = std::max(bytes, role.programs[static_cast<size_t>(instruction.program)].workspace_bytes);
    }
  if (workspace != role.workspace_bytes) report.find("memory", "{}: the stated workspace is not what its programs need", where);
}

}  // namespace

void check_order(const Model& model, Report& report) {
  for (size_t c = 0; c < model.cells.size(); ++c) {
    const RoleProgram& role = *model.cells[c].role;
    const auto clock = stream_clocks(role);
    struct Uses {
      int32_t write = -1;
      std::map<int32_t, int32_t> reads;  // by stream, since the write
    };
    std::vector<Uses> uses(role.buffers.size());
    for (size_t i = 0; i < role.body.size(); ++i) {
      const Place place{static_cast<int32_t>(c), static_cast<int32_t>(i)};
      const Instruction& instruction = role.body[i];
      const auto after = [&](int32_t earlier) {
        const int32_t stream = role.body[static_cast<size_t>(earlier)].stream;
        return stream == instruction.stream || clock[i][static_cast<size_t>(stream)] > earlier;
      };
      for (size_t a = 0; a < instruction.args.size(); ++a) {
        const auto b = static_cast<size_t>(instruction.args[a]);
        const Access access = access_of(role, instruction, a);
        Uses& use = uses[b];
        if (access.reads && use.write < 0 && role.buffers[b].kind == BufferKind::kStep)
          report.find("order", "{} reads {} before anything has written it", model.name(place), role.buffers[b].name);
        if (use.write >= 0 && !after(use.write))
          report.find("order", "{} does not wait for {}, which writes {} on another stream", model.name(place),
                      model.name({place.cell, use.write}), role.buffers[b].name);
        for (const auto& [stream, read] : use.reads)
          if (access.writes && !after(read))
            report.find("order", "{} does not wait for {}, which reads {} on another stream", model.name(place),
                        model.name({place.cell, read}), role.buffers[b].name);
        if (access.writes) use = {place.at, {}};
        else use.reads[instruction.stream] = place.at;
      }
    }
    for (const piper::Report& r : role.reports)
      if (uses[static_cast<size_t>(r.buffer)].write < 0 && role.buffers[static_cast<size_t>(r.buffer)].kind == BufferKind::kStep)
        report.find("order", "report '{}' of rank {} is never written", r.name, model.cells[c].rank);
  }
}

void check_memory(const Model& model, Report& report) {
  for (size_t c = 0; c < model.cells.size(); ++c) {
    const RoleProgram& role = *model.cells[c].role;
    const std::string where = fmt::format("rank {}", model.cells[c].rank);
    int64_t end = 0;
    for (const Buffer& buffer : role.buffers) {
      if (buffer.offset < 0 || buffer.offset % 64 != 0) report.find("memory", "{}: {} is not aligned", where, buffer.name);
      end = std::max(end, (buffer.offset + buffer.type.bytes() + 63) / 64 * 64);
    }
    if (end != role.arena_bytes) report.find("memory", "{}: the stated arena is {} bytes, its buffers end at {}", where, role.arena_bytes, end);
    const auto lives = lives_of(model, static_cast<int32_t>(c));
    check_overlaps(role, lives, where, report);
    check_reuse_across_streams(role, lives, where, report);
    check_programs(role, where, report);
  }
}

}  // namespace piper::verify
