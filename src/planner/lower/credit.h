// The order of the sums of gradients on streams with a credit.
#pragma once

#include "piper/planner/lower.h"

namespace piper {

// Orders the sums of gradients of such streams as a simulation of the body sends them: computations
// take their FLOPs one after the other, messages what Dag::streams says, and what is received is
// there. While less than the credit is under way the next message is that whose parameters the
// next forward reads first, of those whose terms are there. Changes role.body only, before which
// raise_reductions has put messages just after their terms; gives by old position the new one.
// Adds to `counts`.
std::vector<int32_t> order_messages(RoleProgram& role, const Dag& dag,
                                    const std::vector<Overlap>& overlaps,
                                    std::vector<CreditCount>& counts);
void add_counts(const std::vector<CreditCount>& more, std::vector<CreditCount>& counts);

}  // namespace piper
