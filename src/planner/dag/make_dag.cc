// Cuts a graph into chunks by tags and passes.
#include <algorithm>
#include <map>
#include <set>

#include "kept.h"
#include "piper/ir/ops.h"
#include "rounds.h"

namespace piper {
namespace {

// Marks the nodes that make `value` in a variant, back to inputs, state and StepSums.
void mark(const Dag& dag, int32_t variant, ValueId value, std::vector<bool>& marked) {
  const Graph& graph = dag.graph;
  std::vector<ValueId> open{value};
  while (!open.empty()) {
    const Value& v = graph.value(dag.variants.read(open.back(), variant));
    open.pop_back();
    if (v.kind != ValueKind::kNode || marked[v.producer.index()]) continue;
    const Node& node = graph.node(v.producer);
    if (is_step_sum(node)) continue;
    marked[v.producer.index()] = true;
    for (ValueId input : node.inputs)
      if (input.valid()) open.push_back(input);
  }
}

constexpr int32_t kLate = -1;

// Returns by node, for each StepSum that some microbatch needs and that is finished before the
// first one, how many others must be finished before it, as a mean before the deviation from it.
std::vector<int32_t> levels_of_sums(const Graph& graph) {
  std::vector<bool> early(graph.nodes.size());
  for (const Node& node : graph.nodes) {
    if (node.pass == Pass::kU) continue;
    for (ValueId input : node.inputs) {
      if (!input.valid() || graph.value(input).kind != ValueKind::kNode) continue;
      const NodeId producer = graph.value(input).producer;
      if (is_step_sum(graph.node(producer)) && !is_step_sum(node)) early[producer.index()] = true;
    }
  }
  std::vector<int32_t> levels(graph.nodes.size(), kLate), behind(graph.values.size());
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    int32_t deepest = 0;
    for (ValueId input : graph.nodes[i].inputs)
      if (input.valid()) deepest = std::max(deepest, behind[input.index()]);
    if (early[i]) levels[i] = deepest;
    for (ValueId output : graph.nodes[i].outputs) behind[output.index()] = deepest + early[i];
  }
  return levels;
}

TaskPass pass_of(const Dag& dag, const Node& node) {
  const bool again = std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
    return output.valid() && dag.variants.is_copy(output);
  });
  if (again && dag.split_recompute) return TaskPass::kR;
  switch (node.pass) {
    case Pass::kF:
      return TaskPass::kF;
    case Pass::kBI:
      return dag.split_backward ? TaskPass::kBI : TaskPass::kB;
    case Pass::kBW:
      return dag.split_backward ? TaskPass::kBW : TaskPass::kB;
    case Pass::kU:
      return TaskPass::kU;
  }
  return TaskPass::kU;
}

// Returns the pass of each node that is needed. Ops of the backward pass that only give what is
// kept another name, for ops that run again, belong to these.
std::vector<TaskPass> passes_of(const Dag& dag, int32_t variant, const std::vector<bool>& needed) {
  const Graph& graph = dag.graph;
  std::vector<TaskPass> passes;
  for (const Node& node : graph.nodes) passes.push_back(pass_of(dag, node));
  for (size_t i = passes.size(); i-- > 0;) {
    if (!needed[i] || passes[i] != TaskPass::kR) continue;
    for (const ValueId input : graph.nodes[i].inputs) {
      if (!input.valid()) continue;
      const NodeId producer = graph.value(dag.variants.read(input, variant)).producer;
      if (producer.valid() && is_backward(graph.node(producer)))
        passes[producer.index()] = TaskPass::kR;
    }
  }
  return passes;
}

std::string chunk_name(const Dag& dag, const Chunk& chunk) {
  std::string name = chunk.pass == TaskPass::kPrepare ? "count" : name_of(chunk.pass);
  if (chunk.level > 0) name += fmt::format(" {}", chunk.level + 1);
  for (size_t t = 0; t < chunk.tags.size(); ++t)  // none of the compiler's own, which have a dot
    if (chunk.tags[t] != kNoTag && dag.region_tags[t].find('.') == std::string::npos)
      name += fmt::format(" {}={}", dag.region_tags[t], chunk.tags[t]);
  return name;
}

using Key = std::tuple<TaskPass, int32_t, std::vector<int32_t>>;  // pass, level and tags

bool runs_in(const Chunk& chunk, int32_t variant) {
  return chunk.variants.empty() ||
         std::binary_search(chunk.variants.begin(), chunk.variants.end(), variant);
}

// Groups nodes into chunks. Early chunks hold copies of all that their sums need; the main chunks
// partition the rest of the passes. Chunks are in order of their first node.
std::vector<Chunk> group_nodes(const Dag& dag, int32_t variant) {
  const Graph& graph = dag.graph;
  const std::vector<int32_t> levels = levels_of_sums(graph);
  const auto tags_of = [&](NodeId id) {
    std::vector<int32_t> tags;
    for (const std::string& tag : dag.region_tags) {
      const int index = graph.tag_index(tag);
      tags.push_back(index < 0 ? kNoTag : graph.tag(graph.node(id), index));
    }
    return tags;
  };
  std::vector<Chunk> chunks;
  std::map<Key, size_t> by_key;
  const auto add = [&](size_t node, Key key) {
    const auto [known, is_new] = by_key.try_emplace(std::move(key), chunks.size());
    if (is_new) {
      const auto& [pass, level, tags] = known->first;
      chunks.push_back({.pass = pass, .tags = tags, .level = level});
      chunks.back().name = chunk_name(dag, chunks.back());
    }
    chunks[known->second].nodes.emplace_back(node);
  };
  std::vector<bool> needed(graph.nodes.size());
  std::map<std::pair<int32_t, std::vector<int32_t>>, std::vector<bool>> needed_early;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!is_step_sum(graph.nodes[i])) continue;
    for (ValueId use : graph.nodes[i].inputs) {
      if (levels[i] == kLate) {
        mark(dag, variant, use, needed);
      } else if (graph.value(use).kind == ValueKind::kNode) {
        auto& marks = needed_early[{levels[i], tags_of(graph.value(use).producer)}];
        marks.resize(graph.nodes.size());
        mark(dag, variant, use, marks);
      }
    }
  }
  const std::vector<TaskPass> passes = passes_of(dag, variant, needed);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const auto& [of, marks] : needed_early)
      if (marks[i]) add(i, {TaskPass::kPrepare, of.first, of.second});
    if (needed[i]) add(i, {passes[i], 0, tags_of(NodeId(i))});
  }
  return chunks;
}

// Returns for each node the chunk that makes its values for readers in other chunks; early chunks
// make only sums.
std::vector<int32_t> main_chunks(const Dag& dag, const std::vector<Chunk>& chunks,
                                 int32_t variant) {
  std::vector<int32_t> chunk_of(dag.graph.nodes.size(), -1);
  for (size_t c = 0; c < chunks.size(); ++c)
    if (chunks[c].pass != TaskPass::kPrepare && runs_in(chunks[c], variant))
      for (NodeId node : chunks[c].nodes) chunk_of[node.index()] = static_cast<int32_t>(c);
  return chunk_of;
}

// Returns by value the nodes that read it in a variant.
std::vector<std::vector<NodeId>> readers_in(const Dag& dag, int32_t variant,
                                            const std::vector<int32_t>& chunk_of) {
  auto all = readers(dag.graph);
  for (const auto& [copy, original] : dag.variants.copies)
    if (!dag.variants.makes(variant, copy))
      all[original.index()].insert(all[original.index()].end(), all[copy.index()].begin(),
                                   all[copy.index()].end());
  for (auto& nodes : all) std::erase_if(nodes, [&](NodeId id) { return chunk_of[id.index()] < 0; });
  return all;
}

void find_reads_and_writes(const Dag& dag, int32_t variant, std::vector<Chunk>& chunks) {
  const Graph& graph = dag.graph;
  const std::vector<int32_t> chunk_of = main_chunks(dag, chunks, variant);
  const auto all_readers = readers_in(dag, variant, chunk_of);
  std::vector<int32_t> inside(graph.nodes.size(), -1);
  for (size_t c = 0; c < chunks.size(); ++c) {
    Chunk& chunk = chunks[c];
    for (NodeId id : chunk.nodes) inside[id.index()] = static_cast<int32_t>(c);
    const auto is_inside = [&](NodeId id) { return inside[id.index()] == static_cast<int32_t>(c); };
    for (NodeId id : chunk.nodes) {
      for (ValueId input : graph.node(id).inputs) {
        if (!input.valid()) continue;
        const Value& value = graph.value(input);
        if (value.kind != ValueKind::kNode || !is_inside(value.producer))
          chunk.reads.push_back(input);
      }
      if (chunk.pass == TaskPass::kPrepare) continue;
      for (ValueId output : graph.node(id).outputs)
        for (NodeId reader : all_readers[output.index()])
          if (!is_inside(reader)) {
            chunk.writes.push_back(output);
            break;
          }
    }
    for (auto* list : {&chunk.reads, &chunk.writes}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
  }
}

// Variants share the chunks that are the same in both, and are in the order of their first nodes.
void make_chunks(Dag& dag) {
  std::map<std::pair<Key, std::vector<std::vector<int32_t>>>, size_t> known;
  const auto numbers = [](const auto& ids) {
    std::vector<int32_t> out;
    for (auto id : ids) out.push_back(id.value);
    return out;
  };
  for (int32_t v = 0; v < dag.variants.count(); ++v) {
    std::vector<Chunk> chunks = group_nodes(dag, v);
    find_reads_and_writes(dag, v, chunks);
    for (Chunk& chunk : chunks) {
      const auto [at, is_new] =
          known.try_emplace({{chunk.pass, chunk.level, chunk.tags},
                             {numbers(chunk.nodes), numbers(chunk.reads), numbers(chunk.writes)}},
                            dag.chunks.size());
      if (is_new) dag.chunks.push_back(std::move(chunk));
      dag.chunks[at->second].variants.push_back(v);
    }
  }
  for (Chunk& chunk : dag.chunks)
    if (static_cast<int32_t>(chunk.variants.size()) == dag.variants.count()) chunk.variants.clear();
  std::stable_sort(dag.chunks.begin(), dag.chunks.end(), [](const Chunk& a, const Chunk& b) {
    return a.nodes.front() < b.nodes.front();
  });
}

// Adds the chunks that make the value, in each variant that the chunk runs in.
void add_makers(const Dag& dag, size_t c, ValueId input,
                const std::vector<std::vector<int32_t>>& chunk_of, std::vector<int32_t>& result) {
  for (int32_t v = 0; v < dag.variants.count(); ++v)
    if (runs_in(dag.chunks[c], v)) {
      const NodeId made_by = dag.graph.value(dag.variants.read(input, v)).producer;
      result.push_back(chunk_of[static_cast<size_t>(v)][made_by.index()]);
    }
}

// Returns the chunks that must run before chunk `c` (with repeats); `chunk_of`: by variant.
std::vector<int32_t> before(const Dag& dag, size_t c,
                            const std::vector<std::vector<int32_t>>& chunk_of,
                            const std::vector<int32_t>& early_of) {
  const Graph& graph = dag.graph;
  std::vector<int32_t> result;
  for (ValueId input : dag.chunks[c].reads) {
    if (graph.value(input).kind != ValueKind::kNode) continue;
    const NodeId producer = graph.value(input).producer;
    if (is_step_sum(graph.node(producer))) {
      for (ValueId use : graph.node(producer).inputs)
        if (graph.value(use).kind == ValueKind::kNode)
          result.push_back(early_of[graph.value(use).producer.index()]);
    } else if (dag.chunks[c].pass != TaskPass::kPrepare) {
      add_makers(dag, c, input, chunk_of, result);
    }
  }
  return result;
}

std::string where_of(const Node& node) {
  return fmt::format("{} '{}'{}", node.op, node.name,
                     node.scope.empty() ? "" : fmt::format(" ({})", node.scope));
}

// Returns an op of one chunk that reads what an op of another one makes.
std::string why_after(const Dag& dag, const Chunk& chunk, const Chunk& other) {
  for (NodeId id : chunk.nodes)
    for (ValueId input : dag.graph.node(id).inputs) {
      const NodeId producer = input.valid() ? dag.graph.value(input).producer : NodeId();
      if (!producer.valid() ||
          std::find(other.nodes.begin(), other.nodes.end(), producer) == other.nodes.end())
        continue;
      return fmt::format("in '{}' {} reads what {} makes in '{}'", chunk.name,
                         where_of(dag.graph.node(id)), where_of(dag.graph.node(producer)),
                         other.name);
    }
  return fmt::format("'{}' begins with {}", chunk.name,
                     where_of(dag.graph.node(chunk.nodes.front())));
}

Error circle_error(const Dag& dag, const std::vector<int32_t>& waiting,
                   const std::vector<std::vector<int32_t>>& preds) {
  // Follow unfinished predecessors until one repeats: the shortest way to show a cycle is one lap.
  const auto is_waiting = [&](int32_t c) { return waiting[static_cast<size_t>(c)] > 0; };
  int32_t at = 0;
  while (!is_waiting(at)) ++at;
  std::vector<int32_t> path;
  while (std::find(path.begin(), path.end(), at) == path.end()) {
    path.push_back(at);
    for (int32_t p : preds[static_cast<size_t>(at)])
      if (is_waiting(p)) {
        at = p;
        break;
      }
  }
  std::string chain;
  std::vector<std::string> notes;
  path.push_back(at);
  for (auto it = std::find(path.begin(), path.end(), at); it + 1 != path.end(); ++it) {
    const Chunk& chunk = dag.chunks[static_cast<size_t>(*it)];
    chain += fmt::format("'{}' needs ", chunk.name);
    notes.push_back(why_after(dag, chunk, dag.chunks[static_cast<size_t>(it[1])]));
  }
  Error error = fail("the tags cut the model into regions that need each other: {}'{}'", chain,
                     dag.chunks[static_cast<size_t>(at)].name);
  error.notes = std::move(notes);
  error.notes.push_back("help: tag the ops so that each region is entered once");
  return error;
}

Status order_chunks(Dag& dag) {
  const size_t n = dag.chunks.size();
  std::vector<std::vector<int32_t>> chunk_of;
  for (int32_t v = 0; v < dag.variants.count(); ++v)
    chunk_of.push_back(main_chunks(dag, dag.chunks, v));
  std::vector<int32_t> early_of(dag.graph.nodes.size(), -1);
  for (size_t c = 0; c < n; ++c)
    if (dag.chunks[c].pass == TaskPass::kPrepare)
      for (NodeId node : dag.chunks[c].nodes) {
        int32_t& known = early_of[node.index()];
        if (known < 0 || dag.chunks[c].level <= dag.chunks[static_cast<size_t>(known)].level)
          known = static_cast<int32_t>(c);
      }
  const std::vector<int32_t> of_tokens = chunks_before(dag);
  std::vector<std::vector<int32_t>> preds(n), succs(n);
  std::vector<int32_t> waiting(n);
  for (size_t c = 0; c < n; ++c) {
    preds[c] = before(dag, c, chunk_of, early_of);
    preds[c].push_back(of_tokens[c]);
    std::sort(preds[c].begin(), preds[c].end());
    preds[c].erase(std::unique(preds[c].begin(), preds[c].end()), preds[c].end());
    std::erase(preds[c], -1);
    waiting[c] = static_cast<int32_t>(preds[c].size());
    for (int32_t p : preds[c]) succs[static_cast<size_t>(p)].push_back(static_cast<int32_t>(c));
  }
  std::vector<int32_t> ready, order;
  for (size_t c = 0; c < n; ++c)
    if (waiting[c] == 0) ready.push_back(static_cast<int32_t>(c));
  while (!ready.empty()) {
    const auto next = std::min_element(ready.begin(), ready.end());
    const int32_t c = *next;
    ready.erase(next);
    order.push_back(c);
    for (int32_t s : succs[static_cast<size_t>(c)])
      if (--waiting[static_cast<size_t>(s)] == 0) ready.push_back(s);
  }
  if (order.size() != n) return circle_error(dag, waiting, preds);
  std::vector<Chunk> sorted;
  for (int32_t c : order) sorted.push_back(std::move(dag.chunks[static_cast<size_t>(c)]));
  dag.chunks = std::move(sorted);
  return ok_status();
}

// Notes which parameters are trained parts, and which states the ops that update these have.
void note_trained(Dag& dag, const std::map<std::string, TrainedPart>& trained) {
  const Graph& graph = dag.graph;
  std::map<ValueId, TrainedPart> parts;
  for (const Param& param : graph.params)
    if (const auto part = trained.find(param.name); part != trained.end())
      parts[param.value] = part->second;
  std::map<NodeId, TrainedPart> updated_by;
  for (const StateUpdate& update : graph.updates)
    if (const auto part = parts.find(update.state); part != parts.end())
      updated_by[graph.value(update.next).producer] = part->second;
  for (const StateUpdate& update : graph.updates)
    if (const auto part = updated_by.find(graph.value(update.next).producer);
        part != updated_by.end())
      parts.emplace(update.state, part->second);
  for (auto& [value, part] : parts) {
    part.value = value;
    dag.trained.push_back(part);
  }
}

}  // namespace

Result<Dag> make_dag(Graph graph, const DagSpec& spec) {
  Dag dag;
  dag.graph = std::move(graph);
  dag.mesh = spec.mesh;
  dag.region_tags = spec.region_tags;
  dag.tokens = spec.tokens;
  dag.microbatches = spec.microbatches;
  dag.replicas_in_turn = spec.replicas_in_turn;
  dag.twins = spec.twins;
  dag.twin_stride = spec.twin_stride;
  dag.split_backward = spec.split_backward;
  dag.split_recompute = spec.split_recompute;
  dag.split_update = spec.split_update;
  dag.split_sums = spec.split_sums;
  dag.group_of = spec.group_of;
  dag.variants = spec.variants;

  if (!spec.trained.empty()) note_trained(dag, spec.trained);
  if (spec.keeps_copies) keep_copies(dag, spec.copies);
  if (!spec.in_blocks.read.empty()) read_in_blocks(dag, spec.in_blocks.read);
  const bool delays = !spec.weight_versions.empty();
  if (delays) keep_previous_weights(dag, spec.weight_versions);
  if (delays || spec.steps_overlap) keep_next_step(dag);
  make_chunks(dag);
  PIPER_TRY(order_chunks(dag));
  add_sums(dag, spec);
  dag.cells.push_back(std::vector<int32_t>(dag.mesh.size(), -1));
  return dag;
}

}  // namespace piper
