// A pipeline's training DAG without a model: a chain of a matrix product and a tanh a
// stage, so that each has both halves of a backward, under a file of
// strategies/ or any other strategy.
#pragma once

#include <gtest/gtest.h>

#include "piper/frontend/autodiff.h"
#include "piper/planner/compile.h"
#include "piper/planner/directives.h"
#include "piper/planner/job_costs.h"
#include "piper/planner/schedule.h"
#include "piper/planner/sharding.h"
#include "support/forms/parse_graph.h"

namespace piper::chain {

inline std::string library_file(const std::string& name) {
  return std::string(PIPER_SOURCE_DIR) + "/strategies/" + name + ".yaml";
}

// One training step of `stages` products, a sample a microbatch.
inline Result<Graph> make_graph(int64_t stages, int64_t microbatches) {
  std::string text = fmt::format(
      "graph batch={0} shards=1 tag=stage\ninput %x:f32[{0},1] batch_dim=0\n", microbatches);
  for (int64_t s = 0; s < stages; ++s) text += fmt::format("state %w{}:f32[1,1] = fill 1\n", s);
  for (int64_t s = 0; s < stages; ++s)
    text += fmt::format(
        "%m{0}:f32[{1},1] = MatMul(%{2}, %w{0}) tags={{stage={0}}}\n"
        "%h{0}:f32[{1},1] = Tanh(%m{0}) tags={{stage={0}}}\n",
        s, microbatches, s == 0 ? "x" : fmt::format("h{}", s - 1));
  text += fmt::format(
      "%loss:f32[] = ReduceSum(%h{0}) {{axes=[0,1], keepdims=0}} tags={{stage={0}}}\n"
      "output %loss\nloss %loss\n",
      stages - 1);
  for (int64_t s = 0; s < stages; ++s) text += fmt::format("param w{0} %w{0}\n", s);
  return parse_graph(text);
}

struct Made {
  Dag dag;
  std::vector<ComputeOrder> compute;
  Schedule schedule;
};

inline Result<Made> schedule(const Strategy& strategy, Graph forward) {
  Explanations explain;
  Variables variables = strategy.params;
  for (const MeshAxis& axis : strategy.mesh) variables.emplace_back(axis.name, axis.size);
  const int64_t microbatches = strategy.splits.at(0).into;
  PIPER_ASSIGN(const Cut cut, apply_split(strategy, microbatches, explain));
  PIPER_ASSIGN(Differentiated step, differentiate(std::move(forward), strategy.train));
  PIPER_ASSIGN(Graph graph, shard_batch(std::move(step.graph), {1, microbatches, {}}));
  DagSpec spec;
  spec.mesh = cut.mesh;
  spec.region_tags = {"stage"};
  spec.microbatches = microbatches;
  PIPER_ASSIGN(spec.weight_versions,
               versions_of(graph, strategy.weight_versions, variables, explain));
  for (const Order& order : strategy.orders) {
    PIPER_ASSIGN(const auto passes, passes_named(order));
    for (const std::string& pass : passes) spec.split_backward |= pass == "BI" || pass == "BW";
  }
  PIPER_ASSIGN(Dag dag, make_dag(std::move(graph), spec));
  PIPER_ASSIGN(dag, apply_place(std::move(dag), strategy.places, variables, explain));
  Made made;
  PIPER_ASSIGN(made.dag, expand_tasks(std::move(dag)));
  const TaskLists deps = find_dependencies(made.dag);
  PIPER_ASSIGN(made.compute, choose_order(made.dag, deps, &strategy, variables,
                                          JobCosts(nullptr, strategy, cut, variables), explain));
  PIPER_ASSIGN(made.schedule, make_schedule(made.dag, deps, made.compute));
  return made;
}

inline Result<Made> schedule(const Strategy& strategy, int64_t stages) {
  PIPER_ASSIGN(Graph forward, make_graph(stages, strategy.splits.at(0).into));
  return schedule(strategy, std::move(forward));
}

// A file of the library for P devices with V chunks each and M microbatches.
inline Result<Made> library(const std::string& name, int64_t P, int64_t V, int64_t M,
                            std::vector<Definition> more = {}) {
  more.push_back({"stages", std::to_string(P)});
  more.push_back({"microbatches", std::to_string(M)});
  PIPER_ASSIGN(const Strategy strategy, parse_strategy(library_file(name), more));
  return schedule(strategy, P * V);
}

// A device's order in the notation of formats/strategy.md, stages always named, a backward whose
// parts stand together in one: "0F0 3F0 0F1&3B0".
inline std::string row(const Made& made, size_t cell) {
  const ComputeOrder& order = made.compute.at(cell);
  std::string text;
  size_t pair = 0;
  for (int32_t i = 0; i < static_cast<int32_t>(order.tasks.size()); ++i) {
    const Task& task = made.dag.tasks[order.tasks[static_cast<size_t>(i)].index()];
    while (pair < order.overlaps.size() && order.overlaps[pair].second < i) ++pair;
    const bool second = pair < order.overlaps.size() && order.overlaps[pair].second == i;
    std::string pass(1, static_cast<char>(task.pass));
    if (task.pass == TaskPass::kBI && static_cast<size_t>(i) + 1 < order.tasks.size()) {
      const Task& next = made.dag.tasks[order.tasks[static_cast<size_t>(i) + 1].index()];
      const bool whole =
          next.pass == TaskPass::kBW && next.micro == task.micro &&
          made.dag.chunks[next.chunk.index()].tags == made.dag.chunks[task.chunk.index()].tags;
      if (whole) pass = "B", ++i;
    }
    text += text.empty() ? "" : second ? "&" : " ";
    text += fmt::format("{}{}{}", made.dag.chunks[task.chunk.index()].tags[0], pass, task.micro);
  }
  return text;
}

}  // namespace piper::chain
