// What a plan set comes to, for people and from its plans only: `piperc --explain` prints it,
// piper-diff compares two. Nothing in it grows with the number of ranks: ranks that run one role at
// the same coordinates of the axes on which roles depend are one *device*.
#pragma once

#include <set>
#include <span>

#include "piper/plan/bundle.h"

namespace piper {

inline size_t index_of(int32_t id) { return static_cast<size_t>(id); }

using Settings = std::vector<std::pair<std::string, std::string>>;  // "lr" "0.002"

// Says what is held of a parameter, and how it is trained.
struct ParameterSummary {
  std::string name;
  std::vector<std::string> aliases;  // under which it is saved, too
  TensorType type;                   // of all of it
  // "dim 0 over tp, dim 1 in 3 stretches over dp"; empty: along dims it is whole.
  std::string layout;
  // kRunning: forward changes it (statistics of a batch norm).
  enum class Kind { kFrozen, kTrained, kRunning } kind = Kind::kFrozen;
  int64_t weight_bytes = 0, state_bytes = 0;  // on one rank; states: the optimizer's
  Settings settings;                          // of the optimizer; "" is its name
};

// Counts the ops of one combination of tags. In a role: sums over its `runs` microbatches on one
// rank. In a Summary: of one microbatch, over all devices.
struct StageSummary {
  std::string name;  // "stage=1"; empty where no tags tell regions apart
  int64_t runs = 0;  // forwards
  int64_t ops = 0;   // forward ops
  double forward_flops = 0, backward_flops = 0;
  std::vector<std::pair<DType, int64_t>> products;  // of a forward, by type
  double recomputed = 0;                            // forward ops that the backward runs again
  double kept_bytes = 0;                            // what its backward reads of forwards
  double sent_bytes = 0;                      // what it sends to other devices for a microbatch
  int64_t weight_bytes = 0, state_bytes = 0;  // of its parameters, on one rank
  std::vector<std::string> parameters;        // ascending
  // What it runs, by pass: digests, ascending.
  std::vector<std::pair<TaskPass, std::string>> programs;
  std::vector<int32_t> devices;  // that run it, ascending; only in a Summary
};

struct OrderedTask {
  int32_t stage = 0;  // of the role's stages
  int32_t micro = 0;
  TaskPass pass = TaskPass::kF;
  bool paired = false;      // '&' with the item before
  int32_t ahead = 0;        // of a step that is so many after the one under way
  bool recomputes = false;  // runs forward ops again
  int32_t stream = 0;       // of the role's streams
  bool operator==(const OrderedTask&) const = default;
};

// Counts messages of one kind that a rank takes part in, in a step. Bytes are those that it sends:
// of a collective, as a ring sends them.
struct TrafficSummary {
  InstructionKind kind = InstructionKind::kSend;
  std::string of;    // messages: "activations", "gradients", "sums of the step"
  std::string over;  // mesh axes: "pp"
  DType dtype = DType::kF32;
  std::string stream;
  bool fast = false;  // as Instruction::fast
  int64_t messages = 0, bytes = 0;
};

// Says where an instruction that is no computation is issued.
struct IssueSummary {
  InstructionKind kind = InstructionKind::kSend;
  std::string over;  // axes, or the name of the data
  int32_t micro = -1;
  int32_t behind = 0;  // so many items of the order
};

struct StreamSummary {
  std::string name;
  int32_t priority = 0;
  int64_t sms = 0;
  std::vector<std::pair<std::string, int64_t>> work;  // "all_reduce" 3: what runs on it
};

// Says what a rank copies to the host in a step.
struct OffloadSummary {
  std::string what;  // "activations", "optimizer"
  int64_t values = 0, bytes = 0;
};

struct OuterSummary {
  int64_t every = 0, offset = 0;  // see OuterUpdate
  int64_t bytes = 0;              // sent by a rank
};

struct RoleSummary {
  std::string digest;
  std::string target, table;  // as RoleProgram has them
  std::vector<StageSummary> stages;
  std::vector<ParameterSummary> parameters;  // in order of use
  std::vector<OrderedTask> order;            // of a steady step
  std::vector<TrafficSummary> traffic;       // a receive is counted with its send
  std::vector<IssueSummary> issues;
  std::vector<StreamSummary> streams;  // on which something runs
  std::vector<OffloadSummary> offloads;
  Settings train;                          // of the whole step: see Summary
  Settings inputs;                         // "i64[16,128] from 0 to 255"
  double flops = 0;                        // of a step
  std::optional<double> evaluation_flops;  // of a batch, where the plans can evaluate
  std::vector<OuterSummary> outer;         // by outer update
  int64_t elements = 0;
  int64_t weight_bytes = 0, optimizer_bytes = 0, constant_bytes = 0;
  int64_t step_bytes = 0;  // gradients, activations in flight, inputs
  int64_t packed_bytes = 0, workspace_bytes = 0, transport_bytes = 0, scratch_bytes = 0;
  int64_t peak_bytes = 0, host_bytes = 0;
  int64_t versions = 0, version_bytes = 0;  // older ones of parameters
  std::set<int32_t> kept_times;             // versions of a trained parameter
  int64_t ops() const;                      // forward
};

struct DeviceSummary {
  std::string where;        // "pp=1"; "all"
  std::vector<int64_t> at;  // its coordinates, on Summary::device_axes
  int64_t ranks = 1;
  int32_t role = 0;
};

struct Summary {
  Manifest manifest;                                  // without tables and files
  std::string initial_values;                         // digest of the file; empty: not written yet
  std::vector<std::pair<std::string, int64_t>> mesh;  // axes of several ranks
  std::vector<std::string> idle_axes;                 // of one
  std::vector<std::string> device_axes;
  Settings train;  // batch, microbatches, clipping, loss scale, seed, inputs, …
  std::vector<ParameterSummary> parameters;  // each once, by role
  std::vector<StageSummary> stages;          // by name, numbers ascending
  std::vector<DeviceSummary> devices;
  std::vector<RoleSummary> roles;
  const RoleSummary& role(const DeviceSummary& device) const {
    return roles[static_cast<size_t>(device.role)];
  }
  int64_t ranks() const;
};

// Requires roles that check_role accepts, of ops of the table. `digests`: whether roles get theirs,
// by which a diff tells equal ones.
Summary summarise(const PlanSet& set, bool digests = true);
// Summarises the set in a directory, read role by role; roles whose digests `known` has are taken
// from there. Errors: as those of read_plan_set, but rank files are not looked at; an op whose
// FLOPs are unknown.
Result<Summary> summarise(const std::string& directory, const Summary* known = nullptr);

// ---- In words: lines for people, the same in explanations and differences
std::string human_flops(double flops);  // "1.234 GFLOP"
// "F0 F1 B0&F2 …" of the items [first, end), of a stage "1F0": "*" where one recomputes, "'" of the
// next step.
std::string order_text(const RoleSummary& role, size_t first, size_t end, bool with_stages);
// "send of activations over pp", the axes as they are to be called.
std::string traffic_text(const TrafficSummary& traffic, const std::string& over);
std::string setting_text(const std::string& name, const std::string& value);  // "lr 0.002"
std::vector<std::string> train_lines(const Summary& summary);
std::vector<std::string> order_lines(const Summary& summary);
std::vector<std::string> memory_lines(const Summary& summary);
std::vector<std::string> traffic_lines(const Summary& summary);

}  // namespace piper
