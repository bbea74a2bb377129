// The cells of RNN, GRU and LSTM. Private to the rules room.
#pragma once

#include "rule.h"

namespace piper::onnx_import {

// Describes an activation of a cell, with the numbers that it reads.
struct Activation {
  std::string name;
  double alpha = 0, beta = 0;
};

// Holds what one direction has, of a batch of B, hidden states of H elements, and gates of the
// cell, G·H elements in all.
struct CellDirection {
  bool reversed = false;
  int64_t hidden = 0;
  std::vector<Activation> activations;
  Vals x;                     // by time step: what the input makes of the gates, [B, G·H]
  Val recurrent;              // R, [G·H, H]
  Val inner_bias, peepholes;  // [G·H], [3·H]; absent: none
  double clip = 0;            // of what goes into activations; 0: none
  Val h, c;                   // states, [B, H]; c is the LSTM's
};

// Computes, from the states before a step and the step's input, those after it.
struct CellKind {
  std::string_view op;
  int64_t gates;
  std::vector<std::string> activations;  // of one direction
  Status (*cell)(RuleContext&, CellDirection&, const Val&);
};
const CellKind& cell_kind_of(std::string_view op);

// Reads `count` activations for each direction. Their numbers are in two lists, which only those
// that read numbers take from.
Result<std::vector<Activation>> activations_of(RuleContext& c, const std::vector<std::string>& own,
                                               size_t count);
// Cuts a dim into equal parts.
Result<Vals> equal_parts(RuleContext& c, const Val& x, size_t axis, int64_t count);

}  // namespace piper::onnx_import
