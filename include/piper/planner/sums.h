// Sums over a step, and the states that are cut over the ranks which have their terms: part of the
// Dag.
#pragma once

#include "piper/base/scaled.h"
#include "piper/ir/graph.h"

namespace piper {

// A SumRound is one message that reduces the terms of a sum, in rank order. Each of `size`
// replicas, whose numbers differ by multiples of `stride`, has a term; ranks of further mesh axes
// may have terms of the same sum.
struct SumRound {
  int64_t size = 1, stride = 1;  // of replicas
  int64_t twins = 1;             // by which the devices of a stage make `size` larger
  std::vector<int32_t> axes;     // of the mesh, ascending: theirs and the further ones
  int32_t stream = 0;
  // Terms are rounded to this type before they travel, and so is their sum; nothing: they travel as
  // they are added up.
  std::optional<DType> dtype = {};
  // If it cuts the sum, terms travel in 8 bits, in blocks of so many elements; their sum is not
  // rounded. Such a round is of replicas only: a round before it adds up the terms of other ranks.
  Scaled scaled = Scaled::kNone;
  int64_t block = 0;
  bool fast = false;   // added up by the device's own library, not in rank order
  int64_t bucket = 0;  // of sums that are ready one after the other: messages hold at least so much
  int64_t slice = 0;   // messages hold at most so many bytes; 0: any size
  int32_t line = -1;   // which `replicate` entry it is of; -1: of none
  // Not the first one, and it cuts what those before it leave, as the first one may do.
  bool cuts = false;
  bool operator==(const SumRound&) const = default;
};

// Says that a value is rounded in blocks as parts of it are that travel so. `piece`: what a rank
// has whole, of parts of `run` elements. `outer`: each dim is so many stretches, of each of which a
// piece has its own.
struct PartsInBlocks {
  Scaled scaled = Scaled::kNone;
  int64_t block = 0;
  Shape piece, outer;
  int64_t run = 0;
};

// A Sum is one StepSum: its contributions by use, and how it is finished.
struct Sum {
  ValueId value;              // output of the StepSum
  std::vector<ValueId> uses;  // contributions
  std::string name;
  std::vector<int32_t> into = {};    // by use: that whose accumulator it adds to; empty: its own
  std::vector<int32_t> rounds = {};  // of Dag::rounds, in order
  // By use, and in it by group of microbatches: at which of the places of its stage it is added up,
  // if these are replicas; empty: they are not.
  std::vector<int32_t> twin = {};
  // If it is cut: the own run that the last of its first rounds leaves, and the runs that those
  // before that leave, each a run of the one before.
  ValueId part = {};
  std::vector<ValueId> larger = {};
  bool each_micro = false;              // the first round is in every microbatch
  std::vector<int32_t> in_blocks = {};  // by round: of Dag::in_blocks, or -1; empty: none
  size_t cut_rounds() const { return part.valid() ? larger.size() + 1 : 0; }
  ValueId run_after(size_t round) const { return round < larger.size() ? larger[round] : part; }
};

// Says when a whole parameter is gathered from its parts: for each pass that reads it, for each
// microbatch, once a step; or after each update, and it stays whole.
enum class Gather : uint8_t { kPass, kMicrobatch, kStep, kUpdate };
inline constexpr const char* kGatherNames[] = {"pass", "microbatch", "step", "update"};

// A Part is a value of which each rank of some mesh axes holds a run of the flat elements, zeros
// after the end: of an axis of replicas, and of those over which the gradient has terms.
struct Part {
  ValueId value;  // the own run
  ValueId param;  // the whole parameter, or its previous version, when it is a part of one
  TensorType whole;
  std::vector<int32_t> over = {};  // in the order in which the runs follow one another
  Gather gather = Gather::kPass;
  int32_t stream = 0, distance = 0;  // of the task that gathers it
  Scaled scaled = Scaled::kNone;     // it travels in 8 bits, in blocks of so many elements
  int64_t block = 0;
  int64_t bucket = 0;  // messages hold at least so many bytes of such parameters
  // Of an exchange: `value` is a run of each of as many values as there are ranks, `param` the
  // rank's own one of these.
  bool spreads = false;
  // It is a run of a run, which lies over these axes: of a value (none: of a state by itself).
  ValueId within = {};
  std::vector<int32_t> above = {};
  // Returns what it is cut of, and the axes over which ranks have runs of the whole, in the order
  // in which these follow one another.
  ValueId cut_of() const { return within.valid() ? within : param; }
  std::vector<int32_t> all_over() const {
    std::vector<int32_t> all = above;
    all.insert(all.end(), over.begin(), over.end());
    return all;
  }
};

// A Copy is a trained parameter as microbatches read it, rounded to 16 bits: a state that the
// update writes.
struct Copy {
  ValueId master, copy;
};

// A Version pairs two versions of a trained parameter, of its copy, or of the step's number where
// random ops read it. Of k versions, k - 1 of these form a chain, and microbatches read the oldest.
struct Version {
  ValueId newest;    // the parameter, its copy, or a version of it; the number of the next step
  ValueId previous;  // one update older: takes the newest's value just before that changes
};

}  // namespace piper
