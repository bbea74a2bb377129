// The order of computations as a strategy gives it: programs, explicit lists, policies, and
// PyTorch's pipeline files.
#pragma once

#include "piper/frontend/expression.h"

namespace piper {

// Holds one item of an order program after expansion for one coordinate: takes the next task that
// matches.
struct OrderItem {
  std::string pass;                                   // "F" "B" "BI" "BW" "U"
  std::vector<std::pair<std::string, int64_t>> tags;  // F[chunk=0, mb=3]
  bool optional = false;                              // F?
  bool paired = false;                                // & with the next item
  bool apart = false;      // &&: collectives of the next one have streams of their own
  SourceSpan at, pair_at;  // pair_at: the '&'
};
// Holds one cell of an explicit list or of a pipeline file.
struct OrderCell {
  // "F" "B" "BI" "BW"; in files also the kinds of communication, "SEND_F" …
  std::string type;
  int64_t stage = -1, micro = -1;  // -1: not said
  bool paired = false;             // overlaps the next cell: '&'
  SourceSpan at;
  bool apart = false;  // '&&'
};
using OrderRows = std::vector<std::vector<OrderCell>>;  // by coordinate
// costs: {F: 18, BI: 18, BW: 9, send: 0.6}: times of a microbatch, in any one unit.
struct PassTimes {
  double forward = 0, backward = 0, input_half = 0, weight_half = 0;
};
struct StageTimes : PassTimes {
  int64_t stage = 0;
  SourceSpan at;
};
struct PolicyCosts : PassTimes {
  double send = 0;                 // of a message
  std::vector<StageTimes> stages;  // that take other times
};
// policy: {prefer: [B, F, BW], in_flight: "P - r", memory: 2GiB, costs: model, goal: end}
struct Policy {
  std::vector<std::string> prefer;  // passes, the most wanted first
  std::optional<Expr> in_flight;    // chunks whose activations a device holds at most, over r, P, M
  int64_t memory = 0;               // bytes of activations that a device holds at most; 0: any
  bool unit_costs = false;          // a forward and each half of a backward take one unit
  std::optional<PolicyCosts> costs;  // stated ones
  bool span = false;  // what counts is how long a device is at work, not the end of all
  SourceSpan at, in_flight_at;
};
// Says which letters a pipeline file uses; see below.
enum class CsvDialect { kDetect, kOld, kNew };
struct Order {
  // The program runs once per coordinate of these mesh axes, row-major; none: of those that `place`
  // uses.
  std::vector<std::string> each;
  // Text; parsed when read, expanded by expand_order; empty: `rows` are the order.
  std::string program;
  // By line of the program: where it is, and its length where columns there are those here.
  std::vector<SourceSpan> lines;
  OrderRows rows;                            // explicit lists, computations alone
  CsvDialect dialect = CsvDialect::kDetect;  // of the file that they come of
  std::optional<Policy> policy;
  SourceSpan at;
  Variables bound;           // params and mesh sizes; expand_order's own variables come first
  std::string micro = "mb";  // what split calls the microbatch
};
// Returns the items of `order` at coordinate r of its axis; variables: r, P (axis size), M
// (microbatches); at most 2^18 items.
Result<std::vector<OrderItem>> expand_order(const Order& order, const Variables& variables);
// These return the passes and tags that the program can name, without expanding it: {"F","BI","BW"}
// splits the backward.
Result<std::vector<std::string>> passes_named(const Order& order);
Result<std::vector<std::string>> tags_named(const Order& order);
// Returns whether the program names updates of some stages, as U[stage=3], and not just the end of
// the step.
Result<bool> names_updates(const Order& order);

// ---- PyTorch's pipeline files -------------------------------------------------------------------
// Holds a row a device, cells "<stage><TYPE><microbatch>". Two dialects: until PyTorch 2.5 B was
// the input half of a backward, W the weight half, BW the whole; since then I, W and B. Two kinds:
// computations only (cells may be empty), or with the sends and receives between neighbour stages,
// and UNSHARD, RESHARD and REDUCE_GRAD.
struct OrderFile {
  OrderRows rows;
  bool has_communication = false;
};
// Errors, each with its cell: text that is no cell, an empty cell among communication, a cell that
// is there twice, a stage in two rows, a send without its receive, rows that wait for each other.
Result<OrderFile> parse_order_csv(std::string_view text, const std::string& path,
                                  CsvDialect dialect);
std::string print_order_csv(const OrderRows& rows, CsvDialect dialect);
// Returns the rows as PyTorch executes them: adjacent halves joined, then sends and receives in one
// order that is legal on all devices. Error: rows that wait for each other.
Result<OrderRows> add_communication(OrderRows rows);

}  // namespace piper
