// Choices of a search, as plain values. Private to the room.
#pragma once

#include <string_view>

#include "piper/planner/search.h"

namespace piper::choices {

// Names the choices that are an axis of ranks, or yes or no.
struct ChoicePart {
  std::string_view name;
  int64_t SearchChoice::*ranks = nullptr;
  bool SearchChoice::*flag = nullptr;
  bool is_in(const SearchChoice& choice) const { return ranks ? choice.*ranks > 1 : choice.*flag; }
};
inline constexpr ChoicePart kParts[] = {{"pipeline", &SearchChoice::pipeline},
                                        {"tensor", &SearchChoice::tensor},
                                        {"replicas", &SearchChoice::replicas},
                                        {"context", &SearchChoice::context},
                                        {"experts", &SearchChoice::experts},
                                        {"sequence", nullptr, &SearchChoice::sequence},
                                        {"vocabulary", nullptr, &SearchChoice::vocabulary}};

// Returns whether the choice makes sense for a batch of so many samples; 0: any.
bool is_possible(const SearchSpace& space, const SearchChoice& choice, int64_t batch);
// Gives choices of axes of size 1 their only value.
void settle(const SearchSpace& space, SearchChoice& choice);
// Returns the MiB of a microbatch that a stage may keep, of so many bytes for all under way.
int64_t kept_of(const SearchChoice& choice, double bytes);
// Returns what differs in one choice, each once. `spare`: bytes that are left of a device's memory.
std::vector<SearchChoice> neighbours(const SearchSpace& space, const SearchChoice& of,
                                     double spare);
// Returns what the space begins with. `of_node`: devices of a node; `batch`: samples of a step, 0:
// not known.
std::vector<SearchChoice> beginnings(const SearchSpace& space, int64_t ranks, int64_t of_node,
                                     int64_t batch);
// Returns the name without its folder.
inline std::string_view last_of(std::string_view name) { return name.substr(name.rfind('/') + 1); }
// Returns the names of the library that the choice includes, and for which a model may have
// nothing.
std::vector<std::string> names_of(const SearchSpace& space, const SearchChoice& choice);
// Returns the strategy file; `base` is the path of the user's.
std::string text_of(const SearchSpace& space, const SearchChoice& choice, const std::string& base);

}  // namespace piper::choices
