// Choices of a search, as plain values. Private to the room.
#pragma once

#include "piper/planner/search.h"

namespace piper::choices {

inline constexpr std::array<std::string_view, 5> kSchedules = {"1f1b", "interleaved-1f1b", "zb-h1",
                                                               "zbv", "dualpipev"};
inline constexpr std::array<std::string_view, 4> kMemory = {"ddp", "zero1", "zero2", "zero3"};

// Returns whether the choice makes sense for a batch of so many samples; 0: any.
bool is_possible(const Choice& choice, int64_t batch);
// Gives choices of axes of size 1 their only value.
void settle(Choice& choice);
// Returns what differs in one choice, each once.
std::vector<Choice> neighbours(const Choice& of);
// Returns what experts begin with. `of_node`: devices of a node.
std::vector<Choice> usual_ones(int64_t ranks, int64_t of_node);
// Returns the strategy file; `base` is the path of the user's.
std::string text_of(const Choice& choice, const std::string& base);

}  // namespace piper::choices
