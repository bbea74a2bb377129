// What stands for the ids of a Dag in its text form. Private to the dag room.
#pragma once

#include <unordered_map>

#include "fields.h"
#include "piper/base/field_text.h"

namespace piper {

struct DagNames {
  const Dag& dag;
  // By how they are written: what has been read so far.
  std::unordered_map<std::string, ValueId> values = {};
  std::unordered_map<std::string, ItemId> items = {};

  std::string print(ValueId id) const;
  std::string print(NodeId id) const;
  std::string print(ItemId id) const;
  std::string print(ChunkId id) const;
  std::string print(TaskId id) const;
  std::string print(const std::pair<ValueId, ValueId>& copy) const;
  void read(LineReader& line, std::string_view text, ValueId& to) const;
  void read(LineReader& line, std::string_view text, NodeId& to) const;
  void read(LineReader& line, std::string_view text, ItemId& to) const;
  void read(LineReader& line, std::string_view text, ChunkId& to) const;
  void read(LineReader& line, std::string_view text, TaskId& to) const;
  void read(LineReader& line, std::string_view text, std::pair<ValueId, ValueId>& to) const;
};

}  // namespace piper
