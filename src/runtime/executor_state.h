// What an executor is once loaded: flat instructions, everything resolved.
#pragma once

#include <deque>

#include "piper/runtime.h"

namespace piper {

// One instruction, ready to run.
struct Op {
  InstructionKind kind = InstructionKind::kCompute;
  int32_t handle = -1;                  // binding, route, group or input
  int32_t root = 0;                     // kBroadcast; the own position for kOwnPart; kRotate: turn
  std::byte* a = nullptr;               // args[0]
  std::byte* b = nullptr;               // args[1]; kPosition: the numbers
  int32_t ahead = 0;                    // steps ahead of the one under way
  int64_t size = 0;                     // bytes; first sample for kInput
  int64_t count = 0;                    // samples of kInput; pieces, shards
  const Piece* pieces = nullptr;        // kAllReduce
  const Shard* shards = nullptr;        // kReduceScatter, kAllGather, kOwnPart
  const Exchange* exchanges = nullptr;  // kAllToAll
  const Rows* rows = nullptr;           // kDispatch, kCombine
  const MessagePart* parts = nullptr;   // kSend, kRecv of several args
  const char* label = nullptr;          // "instruction 12 (recv F stage=1 mb=3)"
};

struct BoundSection {
  const char* name = nullptr;  // "prologue", "epilogue"; null for the body
  const std::vector<Instruction>* instructions = nullptr;
  std::vector<Op> ops;
};

struct Executor::State {
  State(const RankSource& from, Backend& on, Transport& over)
      : source(from), backend(on), transport(over), activity(over.activity()) {}

  const RankSource source;
  Backend& backend;
  Transport& transport;
  std::atomic<const char*>& activity;
  const RoleProgram* role = nullptr;
  std::vector<int64_t> coordinates;
  std::byte* arena = nullptr;
  std::unique_ptr<std::byte, void (*)(void*)> host{nullptr, std::free};  // the host's arena
  std::vector<std::byte*> workspaces;                                    // by stream
  BoundSection prologue, body, epilogue;
  std::vector<std::string> labels;  // never resized after load: others read them
  std::vector<std::vector<Piece>> pieces;
  std::vector<std::vector<Shard>> shards;
  std::vector<std::vector<Exchange>> exchanges;
  std::vector<std::vector<int64_t>> positions;
  std::deque<Rows> rows;
  std::vector<std::vector<MessagePart>> messages;
  std::vector<double> reports;
  // The last `trace_steps` steps, as a ring of whole steps.
  std::vector<TraceEvent> trace;
  int64_t traced_steps = 0;

  std::byte* at(const Buffer& buffer) const {
    return (role->tensor(buffer).host ? host.get() : arena) + buffer.offset;
  }
  std::byte* at(int32_t buffer) const { return at(role->buffers[static_cast<size_t>(buffer)]); }
  const TensorType& type(int32_t buffer) const { return role->tensor(buffer).type; }
};

}  // namespace piper
