// Who holds what, and with which values: what all ranks say, put together on its way to rank 0.
// Private to the runtime room.
#pragma once

#include <map>

#include "piper/runtime/transport.h"

namespace piper {

// Counts the ranks that hold equal values, and names the lowest of them.
struct Holders {
  static constexpr size_t kNamed = 8;
  int64_t count = 0;
  std::vector<int64_t> ranks;
  void add(const Holders& others);
};
// By what is held: a tensor, and which of its elements; by the digest of their values.
using Held64 = std::pair<uint64_t, uint64_t>;
using HoldersOf = std::map<Held64, std::map<uint64_t, Holders>>;

// Collective: what the ranks below say is added to `own`; rank 0 has all. No rank's messages grow
// with the world, and bytes only with what is held by nobody else.
Status gather_holders(Control& control, HoldersOf& own, const char* what);

uint64_t number_of(std::string_view bytes);      // a digest
std::string list_ranks(const Holders& holders);  // "ranks 0, 2 and 9 more"

}  // namespace piper
