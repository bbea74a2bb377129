// The whole compiler as one straight list of steps. tools/piperc.cc is its command line.
#pragma once

#include <any>
#include <functional>
#include <memory>

#include "piper/devices/device_costs.h"
#include "piper/frontend/import.h"
#include "piper/frontend/strategy.h"
#include "piper/plan/bundle.h"
#include "piper/planner/directives.h"
#include "piper/planner/schedule.h"

namespace piper {

// What piperc sets CompileOptions::largest_single to: such a plan takes at most a fifth of a second
// and 50 MB to make.
inline constexpr int64_t kLargestSingle = 16384;

// Holds the models that compilations have read.
struct KnownModels;
std::shared_ptr<KnownModels> make_known_models();

struct CompileOptions {
  std::string model, strategy;
  // Shared by compilations, also of several threads at once, that read the same models: each is
  // read once. Its files must not change meanwhile. Null: each compilation reads its own.
  std::shared_ptr<KnownModels> known_models = {};
  std::string initial_values;  // as in ImportOptions
  bool absent_values = false;  // likewise
  std::vector<Definition> defines;
  std::vector<std::string> library;  // folders of strategies: see parse_strategy
  // Sizes of mesh axes in place of the strategy's. What the strategy computes from the size that it
  // gives stays: the batch and its microbatches.
  std::vector<std::pair<std::string, int64_t>> axis_sizes;
  // Makes plans for this stage of the strategy's 'rampup'; nothing: for the steps behind it.
  std::optional<size_t> stage;
  // The costs of ops and messages on the devices that the plans are for: `balance`, `policy` and
  // budgets of `recompute` choose by them. Null: they count FLOPs and bytes.
  std::shared_ptr<const DeviceCosts> devices = {};
  std::string target = "cpu";  // the kind of device: see piper/devices/registry.h
  bool evaluation = false;     // also RoleProgram::evaluation
  bool oracles = true;         // also the single-device plans that --verify-against runs beside
  // `single` plays all replicas one after the other: where there are several and it would have more
  // instructions than this, it plays the first only; 0: never.
  int64_t largest_single = 0;
  bool order = false;  // also Compiled::order
  // Called after each step with its name and a function that prints what it made; may be empty.
  std::function<void(std::string_view step, const std::function<std::string()>& text)> dump;
};

// Returns the values of -D. Error (kUsage): a text that is not name=value.
Result<std::vector<Definition>> parse_definitions(std::span<const std::string> texts);

// Returns names that --dump accepts, in order of the steps.
std::span<const std::string_view> dump_steps();

struct Compiled {
  PlanSet set;
  std::optional<PlanSet> single, uncut;
  std::vector<RampStage> rampup;      // of the strategy
  std::vector<std::string> warnings;  // for those who do not ask for explanations, too
  Explanations explanations;
  std::vector<ParamReport> parameters;  // and what else the importer reports
  std::vector<std::string> constants, separated;
  std::vector<Note> notes;
  // Where mesh axes cut tensors: how parameters are laid out, and each collective with what it is
  // for.
  std::vector<std::string> layouts;
  // Composite ops found in the model and its gradient.
  std::vector<std::pair<std::string, int64_t>> patterns;
  std::vector<std::string> left;  // softmaxes of products of which no attention was made, and why
  int64_t instructions = 0;       // of a step, over devices that run different ones
  OrderRows order;                // the computations of each device, if asked for
  std::vector<std::pair<std::string, double>> seconds;  // by step
  // What the steps made on the way, of the last plans: a program that ends now need not take it
  // apart.
  std::any remains;
};

// Ensures that the verifier has accepted every set it returns.
Result<Compiled> compile(const CompileOptions& options);

// ---- What --explain prints
struct ExplainTopics {
  std::vector<std::string> names;  // without "summary" and "all": what these stand for
  bool lines = false;              // say where in the strategy each directive stands
  bool has(std::string_view topic) const;
};
// Parses a list of topics such as "order,memory"; "" and "summary" are the usual ones. Error: an
// unknown topic, with the nearest.
Result<ExplainTopics> parse_topics(std::string_view text);
std::string explain_topics();  // "summary, train, …, all, lines"
std::string explain(const Compiled& compiled, const ExplainTopics& topics);

// Counts bytes that the computations of a step read and write on one rank, as the plans' target
// joins their ops: each pass moves each of its operands once, whatever a cache would keep.
struct MemoryTraffic {
  struct Kind {
    TaskPass pass = TaskPass::kNone;  // as Instruction::pass
    std::string op;                   // PassTraffic::kind
    bool is_product = false;
    int64_t runs = 0, read = 0, written = 0;
    int64_t bytes() const { return read + written; }
  };
  std::vector<Kind> kinds;  // most bytes first
  // By tensor, most first; those inside a program count together: "within 'F h/0'".
  std::vector<std::pair<std::string, int64_t>> tensors;
  int64_t product_bytes() const;  // matrix products, attention, and what these take along
  int64_t other_bytes() const;
};
// Returns the traffic by role. Requires roles of a target of piper/devices/registry.h.
std::vector<MemoryTraffic> memory_traffic(const PlanSet& set);

// Sets what messages on streams with a credit take beside computations, if the devices are known.
Status time_messages(Dag& dag, const JobCosts& costs);
// Returns the order of the computations that the strategy asks for; list scheduling where it gives
// a policy or, like none (null), nothing. Requires tasks.
Result<std::vector<ComputeOrder>> choose_order(const Dag& dag, const TaskLists& deps,
                                               const Strategy* strategy, const Variables& variables,
                                               const JobCosts& costs, Explanations& explain);

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
