// Chunks -> programs: a chunk is cut into segments by layer, and each segment becomes a program
// shared by content.
#pragma once

#include <map>

#include "piper/plan/bundle.h"
#include "piper/planner/dag.h"
#include "segments.h"

namespace piper {

// Says what a program argument means in one task.
struct SegmentArg {
  enum class Kind { kRead, kWrite, kInner, kSum } kind = Kind::kRead;
  // kRead, kWrite: position in the task's reads or writes; kInner: index of ChunkPrograms::inner;
  // kSum: of its accumulates.
  int32_t index = 0;
};
// Names a program, or a message between two of them: then `args` are what each of its collectives
// reads and makes.
struct Segment {
  int32_t program = -1;  // index of ProgramPool::programs
  ChunkCollective collective;
  std::vector<SegmentArg> args;
  std::vector<int32_t> sums;      // accumulates (by index) that this segment makes
  std::vector<int32_t> sum_args;  // by sum: its position in args
};
struct ChunkPrograms {
  std::vector<bool> first;  // by accumulate of the task: nothing has been added before
  std::vector<Segment> segments;
  std::vector<ValueId> inner;  // values passed between segments of the chunk
};

class ProgramPool {
 public:
  explicit ProgramPool(const Dag& dag);
  // Returns the programs of a task's chunk. `first`: see ChunkPrograms; `collectives`: see
  // segments.h. Cells may ask at once.
  const ChunkPrograms& of_task(const Task& task, const std::vector<bool>& first,
                               const std::vector<ChunkCollective>& collectives);
  // Gives all that were asked for their programs, those of the lowest cell first.
  void share();
  const std::vector<Program>& programs() const { return programs_; }

 private:
  // Holds a segment's own program, before equal ones become one.
  struct Made {
    Program program;
    std::string digest;
    Segment* segment = nullptr;
  };

  using Key =
      std::pair<std::vector<bool>, std::vector<ChunkCollective>>;  // `first`, and collectives
  void build(const Task& task, const Key& key, ChunkPrograms& result);
  int32_t add(Made made);

  const Dag& dag_;
  std::vector<bool> literal_;  // by value: a constant that lives inside programs, not in a buffer
  std::vector<Program> programs_;
  std::map<std::string, int32_t> by_digest_;
  std::vector<std::map<Key, ChunkPrograms>> by_chunk_;
  std::vector<std::vector<Made>> made_;  // by cell
};

}  // namespace piper
