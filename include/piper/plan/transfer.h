// How the states of a job move between its ranks when it goes on under other plans: which elements
// of which state go from whom to whom. It follows from what ranks hold (Held) under both plan sets;
// verify_transfer (piper/plan/verify.h) proves it.
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

struct StateTransfer {
  struct Run {  // of the elements of a whole tensor
    int64_t first = 0, count = 0;
    int64_t end() const { return first + count; }
    bool operator==(const Run&) const = default;
  };
  struct State {
    std::string name;  // as names_of_state gives it
    TensorType whole;  // as it is held before
  };
  struct Move {
    int64_t from = 0, to = 0;  // ranks; the same: it stays
    int32_t state = 0;
    std::vector<Run> runs;  // ascending, apart from each other
  };
  std::vector<State> states;
  std::vector<Move> moves;  // ascending in from, to, state
  // Bytes that travel between ranks, and that stay where they are. No transfer moves fewer than the
  // least: what ranks need and do not hold themselves.
  int64_t moved_bytes = 0, kept_bytes = 0, least_bytes = 0;
  int64_t bytes_of(const Move& move) const;
};

// Plans the transfer of all states that both sets have; other states begin as the new plans say.
// Both have all their roles. Error (kUsage): they are for different numbers of ranks.
Result<StateTransfer> plan_transfer(const PlanSet& from, const PlanSet& to);

// Returns the first of these names under which ranks of a set hold a state, by its names; nothing
// if none does.
std::optional<std::string> name_held(const std::map<std::string, TensorType>& held,
                                     std::span<const std::string> names);
// Returns the states that ranks of the set hold, by their first name, with their whole types.
std::map<std::string, TensorType> held_states(const PlanSet& set);

}  // namespace piper
