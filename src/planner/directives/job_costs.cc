// Costs by the places of a strategy: which devices run a region, and what its ops take there.
#include "piper/planner/job_costs.h"

#include <algorithm>
#include <memory>

#include "match.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

// Gives the axes that one `place` names their coordinates, if it holds for the node.
Status place_by(const Place& place, const Graph& graph, const Node& node, const Mesh& mesh,
                const Variables& variables, Variables& tags, std::vector<int32_t>& coordinates) {
  PIPER_ASSIGN(const auto placed, place_node(graph, node, place, variables, tags, 0, mesh));
  if (!placed) return ok_status();
  tags.insert(tags.end(), placed->tags.begin(), placed->tags.end());
  for (const auto& [axis, at] : placed->on)
    if (at >= 0 && at < mesh[axis].second) coordinates[axis] = static_cast<int32_t>(at);
  return ok_status();
}

// Returns a program of the op alone, whose results are arguments.
Program program_of(const Graph& graph, const Node& node, std::optional<DType> floats) {
  Program program;
  program.label = node.op;
  ProgramOp op{node.op, node.attrs, {}, {}};
  const auto add = [&](ValueId id, bool written, std::vector<int32_t>& ids) {
    ids.push_back(id.valid() ? program.num_args : -1);
    if (!id.valid()) return;
    TensorType type = graph.value(id).type;
    if (floats && type.dtype == DType::kF32) type.dtype = *floats;
    program.values.push_back(std::move(type));
    program.arg_written.push_back(written);
    program.arg_read.push_back(!written);
    ++program.num_args;
  };
  for (ValueId input : node.inputs) add(input, false, op.inputs);
  for (ValueId output : node.outputs) add(output, true, op.outputs);
  program.ops.push_back(std::move(op));
  return program;
}

}  // namespace

JobCosts::JobCosts(const DeviceCosts* devices, const Strategy& strategy, const Cut& cut,
                   const Variables& variables)
    : devices_(devices),
      strategy_(strategy),
      cut_(cut),
      variables_(variables),
      mesh_(mesh_of(cut.mesh)) {
  for (int64_t rank = 0; devices_ && rank < ranks_of(mesh_); ++rank)
    kind_of_.push_back(devices_->kind_of(rank));
  for (const int32_t kind : kind_of_) alike_ = alike_ && kind == kind_of_.front();
}

std::vector<int32_t> JobCosts::place_of(const Graph& graph,
                                        const std::vector<int32_t>& tags) const {
  std::vector<int32_t> coordinates(cut_.mesh.size(), -1);
  Node node;
  node.tags = tags;
  Variables known = named_tags(graph, node);
  for (const Place& place : strategy_.places)
    (void)place_by(place, graph, node, mesh_, variables_, known, coordinates);
  return coordinates;
}

int64_t JobCosts::first_rank(const std::vector<int32_t>& coordinates) const {
  std::vector<int64_t> at;
  for (const int32_t coordinate : coordinates) at.push_back(std::max(coordinate, 0));
  return rank_of(mesh_, at);
}

MessageTime JobCosts::message(const std::vector<int32_t>& from,
                              const std::vector<int32_t>& to) const {
  constexpr double kBytes = 1 << 20;
  const int64_t sender = first_rank(from), receiver = first_rank(to);
  if (sender == receiver) return {};
  const double latency = devices_->message_seconds(sender, receiver, 0);
  return {latency, (devices_->message_seconds(sender, receiver, kBytes) - latency) / kBytes};
}

std::vector<int32_t> JobCosts::kinds_at(const std::vector<int32_t>& coordinates) const {
  if (alike_) return {kind_of_.begin(), kind_of_.begin() + (kind_of_.empty() ? 0 : 1)};
  std::vector<int32_t> kinds;
  for (size_t rank = 0; rank < kind_of_.size(); ++rank) {
    const std::vector<int64_t> at = coordinates_of(mesh_, static_cast<int64_t>(rank));
    const bool is_there = std::ranges::equal(
        coordinates, at,
        [](int32_t wanted, int64_t coordinate) { return wanted < 0 || wanted == coordinate; });
    if (is_there && std::find(kinds.begin(), kinds.end(), kind_of_[rank]) == kinds.end())
      kinds.push_back(kind_of_[rank]);
  }
  return kinds;
}

Result<double> JobCosts::seconds(const Graph& graph, const Node& node, int32_t kind,
                                 std::optional<DType> products) const {
  const OpDef* def = find_op(node.op);
  if (!def || !def->cost) return 0.0;
  const Cost cost = def->cost(use_of(graph, node));
  if (cost.flops <= 0) return 0.0;
  return devices_->seconds_of(
      kind, program_of(graph, node, cost.is_matmul ? products : std::optional<DType>()));
}

Result<double> JobCosts::seconds_of_gradient(const Graph& graph, const Node& node, int32_t kind,
                                             const std::vector<bool>& is_read,
                                             std::optional<DType> products) const {
  const OpDef* def = find_op(node.op);
  if (!def || !def->gradient) return 0.0;
  Graph alone;
  const auto like = [&](ValueId id) {
    if (!id.valid()) return ValueId();
    const Value& value = graph.value(id);
    return alone.add_value({.name = value.name, .type = value.type, .kind = ValueKind::kInput});
  };
  const auto has_gradient = [&](ValueId id) {
    return id.valid() && info(graph.value(id).type.dtype).is_float;
  };
  std::vector<ValueId> inputs, outputs, adjoints;
  for (ValueId input : node.inputs) inputs.push_back(like(input));
  for (ValueId output : node.outputs) {
    outputs.push_back(like(output));
    const bool has_adjoint = has_gradient(output) && is_read[output.index()];
    adjoints.push_back(has_adjoint ? like(output) : ValueId());
  }
  if (std::ranges::none_of(adjoints, [](ValueId id) { return id.valid(); })) return 0.0;
  const auto wanted = std::make_unique<bool[]>(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) wanted[i] = has_gradient(node.inputs[i]);
  Builder build(alone);
  def->gradient(build, {inputs, outputs, adjoints, node.attrs, {wanted.get(), inputs.size()}});
  double sum = 0;
  for (const Node& made : alone.nodes) {
    PIPER_ASSIGN(const double one, seconds(alone, made, kind, products));
    sum += one;
  }
  return sum;
}

Result<double> JobCosts::seconds(const Graph& graph, const Node& node,
                                 const std::vector<int32_t>& kinds) const {
  double most = 0;
  for (const int32_t kind : kinds) {
    PIPER_ASSIGN(const double one, seconds(graph, node, kind));
    most = std::max(most, one);
  }
  return most;
}

}  // namespace piper
