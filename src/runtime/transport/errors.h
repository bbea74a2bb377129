// The sentences with which waits end, the same for all transports.
#pragma once

#include <functional>

#include "piper/runtime/transport.h"

namespace piper {

// "rank 2 waited 5 s for a message on communicator 3 from rank 1, which waits for rank 0"; `what`
// is from "for" to "from", `chain` the ranks from the peer on, as chain_of_waits has them. A note
// says where the last one is (in a ring: each), as far as `activity` knows ("" where it does
// not).
Error timed_out(int64_t rank, double seconds, const std::string& what,
                std::span<const int64_t> chain,
                const std::function<std::string(int64_t rank)>& activity);
Error stopped_by(int64_t rank, int64_t peer, std::string_view reason);
// `got` < 0: more than wanted, nobody knows how many.
Error size_mismatch(int64_t rank, int64_t peer, const std::string& what, int64_t got,
                    int64_t wanted);

}  // namespace piper
