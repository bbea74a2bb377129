// Which computations wait for a reduction: none for one that has just begun.
#pragma once

#include "piper/planner/lower.h"

namespace piper {

// Delays what rounds, adds up or keeps the result of a reduction on another stream. Reductions that
// begin between the same two backwards are a burst, where both have matrix products: others do not
// last until any of it has moved. What reads one of them stands where as many bytes as those up to
// it have begun to move after the burst: of equal layers behind the next layer's, as PyTorch's
// fully sharded data parallelism does. At the latest it stands before the first other instruction
// that uses its buffers. So backwards run beside reductions, and at most the results of twice the
// largest burst of a stream wait in memory. What uses buffers of delayed instructions is delayed,
// too, if it rises itself; their order is kept. Nothing enters an overlap; what leaves one goes on
// with the other computations. Changes role.body, and where overlaps end, before which
// raise_reductions and order_messages have put each reduction where it begins; gives by old
// position the new one.
std::vector<int32_t> delay_readers(RoleProgram& role, const Dag& dag,
                                   std::vector<Overlap>& overlaps);

}  // namespace piper
