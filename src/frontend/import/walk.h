// The walk over the nodes of an ONNX graph, which makes ours.
#pragma once

#include "piper/frontend/import.h"
#include "piper/frontend/params.h"

namespace piper::onnx_import {

// Says which branch an If takes, or how many turns a loop has.
struct Taken {
  std::string output;  // the first of the node
  int64_t value;       // the condition, or how many turns
};
struct Walked {
  Graph graph;
  std::vector<Note> notes;   // on inputs
  std::vector<Taken> taken;  // Ifs, Loops and Scans that are decided
};
// Makes our graph of all nodes. Fails if a node is refused, and while a branch or turns have yet to
// replace a node in `out.taken`. Fills `out` also where it fails.
Status walk_nodes(const OnnxModel& model, const std::vector<std::string>& scopes,
                  const Recovery& recovery, const ImportOptions& options, Walked& out);

}  // namespace piper::onnx_import
