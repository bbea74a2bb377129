// Runs a plan set on symbols instead of numbers, to find out what it would do: whether it ends, and
// what it leaves in its state. Shares no code with the compiler, the verifier or the runtime.
//
// Memory is cells of four bytes, each a 64-bit symbol. What an op computes is a hash of the op and
// of all it reads; sums are sums of symbols, so that their order does not matter. What a plan must
// not read holds poison: memory before it is written in a step.
// Two runs that differ in poison and in order but leave equal symbols behind read no poison and
// have no race that shows.
//
// Every run is legal: instructions of one stream in order, each after what it waits for; a receive
// when its message is there; a collective when all its members have come. Which of the legal next
// ones goes first is drawn from the seed, as is whether a message is copied when it is sent or only
// when it is received.
#pragma once

#include "piper/plan/bundle.h"

namespace piper::mutation {

struct Run {
  uint64_t seed = 0;      // of the order and of the poison
  bool in_order = false;  // each rank one instruction after the other, as written
  int64_t steps = 2;
};

struct Outcome {
  std::string fault;              // empty: all ranks reached the end
  std::vector<uint64_t> symbols;  // of state and reports, by rank and step
  bool operator==(const Outcome&) const = default;
};

Outcome interpret(const PlanSet& set, const Run& run);

}  // namespace piper::mutation
