// The whole compiler as one straight list of steps. tools/piperc.cc is its command line.
#pragma once

#include <any>
#include <functional>

#include "piper/bundle.h"
#include "piper/directives.h"
#include "piper/fuse.h"
#include "piper/import.h"
#include "piper/schedule.h"
#include "piper/strategy.h"

namespace piper {

struct CompileOptions {
  std::string model, strategy;
  std::string initial_values;  // as in ImportOptions
  std::vector<Definition> defines;
  bool fuse = true;     // false: plans run every op on its own, with the same bits
  bool oracles = true;  // also the single-device plans that --verify-against runs beside
  bool order = false;   // also Compiled::order
  // Called after each step with its name and a function that prints what it made; may be empty.
  std::function<void(std::string_view step, const std::function<std::string()>& text)> dump;
};

// Names that --dump accepts, in order of the steps.
std::span<const std::string_view> dump_steps();

// One line of the table that --explain prints for each device role.
struct RoleSummary {
  std::string where;  // "pp=1"
  int64_t ranks = 1;
  int64_t ops = 0;  // forward ops
  int64_t parameters = 0, elements = 0;
  double flops = 0;  // of one step on one rank
  int64_t weight_bytes = 0, optimizer_bytes = 0, constant_bytes = 0;
  int64_t step_bytes = 0;    // gradients, activations in flight, inputs, packed weights
  int64_t packed_bytes = 0;  // the latter
  int64_t workspace_bytes = 0, transport_bytes = 0, peak_bytes = 0;
  int64_t host_bytes = 0;  // what is offloaded
  int64_t instructions = 0, programs = 0;
};

struct Compiled {
  PlanSet set;
  std::optional<PlanSet> single, uncut;
  Explanations explanations;
  std::vector<ParamReport> parameters;  // and what else the importer reports
  std::vector<std::string> constants, separated;
  std::vector<Note> notes;
  // Composite ops found in the model and its gradient.
  std::vector<std::pair<std::string, int64_t>> patterns;
  FuseCounts fused;  // over distinct programs
  std::vector<RoleSummary> roles;
  OrderRows order;  // the computations of each device, if asked for
  std::vector<std::pair<std::string, double>> seconds;  // by step
  // What the steps made on the way, of the last plans: a program that ends now need not take it
  // apart.
  std::any remains;
};

// Ensures that the verifier has accepted every set it returns.
Result<Compiled> compile(const CompileOptions& options);

// The order of the computations that the strategy asks for; list scheduling where it gives a policy
// or, like none (null), nothing. Requires tasks.
Result<std::vector<ComputeOrder>> choose_order(const Dag& dag, const TaskLists& deps,
                                               const Strategy* strategy, const Variables& variables,
                                               Explanations& explain);

// Writes the model with the strategy's loss and optimizer as ONNX's own training_info. Refused:
// what that cannot say (AdamW, clipping, schedules).
Status emit_onnx_training(const CompileOptions& options, const std::string& path);

// ---- A model without a strategy
struct DescribeOptions {
  std::string model;
  std::vector<std::pair<std::string, int64_t>> dims;  // sizes of dynamic dims; others are assumed
};
struct Described {
  std::string text;       // inputs, parameters, layers, ops, costs, and all that is not supported
  bool supported = true;  // false: a part of the text says what is missing
};
Result<Described> describe(const DescribeOptions& options);

}  // namespace piper
