// What the interpreter of plans knows of a rank: its memory, messages under way, where it stands.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "mutation/symbols.h"

namespace piper::mutation {

struct Fault {  // thrown where a run ends early, and caught by its interpreter
  std::string text;
};
template <class... Args>
[[noreturn]] void fault(fmt::format_string<Args...> text, Args&&... args) {
  throw Fault{fmt::format(text, std::forward<Args>(args)...)};
}

// The memory of a rank.
struct Memory {
  Symbols cells;
  void check(int64_t at, int64_t count) const {
    if (at < 0 || count < 0 || at + count > static_cast<int64_t>(cells.size()))
      fault("cells [{}, {}) of {}", at, at + count, cells.size());
  }
  Symbols read(int64_t byte, int64_t count) const {
    check(byte / 4, count);
    return {cells.begin() + byte / 4, cells.begin() + byte / 4 + count};
  }
  void write(int64_t byte, const Symbols& symbols) {
    check(byte / 4, static_cast<int64_t>(symbols.size()));
    std::copy(symbols.begin(), symbols.end(), cells.begin() + byte / 4);
  }
};

// A message under way: what it holds, or where that lies until it is received.
struct Message {
  int64_t sender = 0;
  std::vector<int32_t> buffers;
  std::vector<Symbols> copied;
  // The send's stream and index, if it ends with the receive.
  std::optional<std::pair<size_t, int32_t>> waits;
};

struct Rank {
  const RoleProgram* role = nullptr;
  std::vector<int64_t> coordinates;
  Memory arena, host;
  Memory& memory(const Buffer& buffer) { return role->tensor(buffer).host ? host : arena; }
  const Memory& memory(const Buffer& buffer) const {
    return role->tensor(buffer).host ? host : arena;
  }
  // What it is doing: prologue, steps of the body, epilogue.
  const std::vector<Instruction>* section = nullptr;
  int64_t phase = -1, step = 0;
  std::vector<bool> done, arrived;           // by instruction
  std::vector<std::vector<int32_t>> queues;  // by stream, of instructions
  std::vector<size_t> next;                  // by stream
  size_t left = 0;
  int64_t unreceived = 0;  // messages that it sent in this phase
  bool ended = false;
};

}  // namespace piper::mutation
