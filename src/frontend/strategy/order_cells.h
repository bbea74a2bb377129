// Cells of explicit orders: "3F0", "BI2".
#pragma once

#include "piper/frontend/strategy.h"

namespace piper::order_cells {

// Explicit lists in the language's own notation: cells with blanks between, '&' joins two.
Result<std::vector<OrderCell>> parse_list(const std::string& text, const SourceSpan& at);

// Checks that every cell is there once.
Status check_rows(const OrderRows& rows);
// Checks that every stage is in one row.
Status check_stages(const OrderRows& rows);

bool is_compute(const OrderCell& cell);
std::string name(const OrderCell& cell);

}  // namespace piper::order_cells
