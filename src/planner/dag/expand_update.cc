// The end of a step: norm, clipping, optimizer, parts and reports.
#include <algorithm>

#include "expander.h"

namespace piper {

Status Expander::add_update() {
  const int32_t num_cells = static_cast<int32_t>(dag_.cells.size());
  if (num_cells > 1 && dag_.graph.loss.valid()) share_scalars();
  const UpdateIndex index(dag_);
  const auto reports = report_values(dag_);
  for (int32_t cell = 0; cell < num_cells; ++cell) {
    const std::vector<const Part*> cut = cut_in_step(cell, index);
    if (!cut.empty()) add_own_parts(cell, cut);
    for (const Version& version : dag_.versions)
      if (index.held[version.previous.index()].count(cell)) keep_newest(version, cell);
    const Reports own = reports_of(reports, cell);
    for (const Chunk& chunk : update_chunks(dag_, cell, index, UpdateRegions(dag_), own)) {
      if (chunk.nodes.empty()) continue;
      add_exchanges(chunk);
      add_update_task(chunk);
    }
    if (!cut.empty()) gather_updated(cell, cut);
    dag_.reports.emplace_back();
    for (const auto& [name, value] : own)
      dag_.reports.back().emplace_back(name, ensure(value, -1, cell));
  }
  return ok_status();
}

bool Expander::is_copy(ValueId state) const {
  return std::any_of(dag_.copies.begin(), dag_.copies.end(),
                     [&](const Copy& copy) { return copy.copy == state; });
}

ValueId Expander::kept_of(ValueId state) const {
  const auto part = part_of_.find(state.value);
  return part == part_of_.end() ? state : part->second->value;
}

ItemId Expander::gather_whole(ValueId param, int32_t cell) {
  const Part& part = *part_of_.at(param.value);
  const ItemId own = ensure(part.value, -1, cell), whole = new_item(param, -1, cell);
  dag_.tasks.push_back({.kind = InstructionKind::kAllGather,
                        .cell = cell,
                        .stream = part.stream,
                        .distance = part.distance,
                        .label = add_label("all_gather " + dag_.graph.value(param).name),
                        .group = SmallVector(part.over),
                        .reads = {own},
                        .writes = {whole}});
  return whole;
}

void Expander::keep_newest(const Version& version, int32_t cell) {
  const ValueId previous = kept_of(version.previous);
  const std::string name = dag_.graph.value(previous).name;
  const ValueId next = pseudo_value(name + ".next", dag_.graph.value(previous).type);
  const ItemId newest = ensure(kept_of(version.newest), -1, cell),
               made = new_item(next, -1, cell, ensure(previous, -1, cell));
  dag_.tasks.push_back({.kind = InstructionKind::kCopy,
                        .cell = cell,
                        .label = add_label("copy " + name),
                        .reads = {newest},
                        .writes = {made}});
}

std::vector<const Part*> Expander::cut_in_step(int32_t cell, const UpdateIndex& index) const {
  std::vector<const Part*> cut;
  for (const Part& part : dag_.parts)
    if (part.param.valid() && part.gather == Gather::kUpdate &&
        index.held[part.param.index()].contains(cell))
      cut.push_back(&part);
  return cut;
}

void Expander::add_own_parts(int32_t cell, const std::vector<const Part*>& cut) {
  std::map<std::vector<int32_t>, Task> tasks;  // by all axes: a run before the runs of it
  for (const Part* part : cut) {
    if (is_copy(part->param)) {  // it is made anew
      new_item(part->value, -1, cell);
      continue;
    }
    Task& task = tasks[part->all_over()];
    task.group = SmallVector(part->over);
    task.reads.push_back(ensure(part->cut_of(), -1, cell));
    task.writes.push_back(new_item(part->value, -1, cell));
  }
  for (auto& [over, task] : tasks) {
    task.kind = InstructionKind::kOwnPart, task.cell = cell;
    task.label = add_label(fmt::format("own parts of {} parameters", task.reads.size()));
    dag_.tasks.push_back(std::move(task));
  }
}

// Runs of runs are put together first: what they make is read by the next gathers.
void Expander::gather_updated(int32_t cell, std::vector<const Part*> cut) {
  struct Bucket {
    Task gather;
    int64_t bytes = 0;
    std::string first;
  };
  const UpdateRegions regions(dag_);
  // The key has all axes, the region where updates are tasks of regions, and what the entry of
  // `replicate` says: stream and bucket.
  std::map<std::tuple<std::vector<int32_t>, std::optional<size_t>, int32_t, int64_t>, Bucket>
      buckets;
  std::unordered_map<int32_t, ItemId> made;  // by run that was put together
  const auto flush = [&](Bucket& bucket) {
    if (bucket.bytes == 0) return;
    bucket.gather.label =
        add_label("all_gather " + and_more(bucket.first, bucket.gather.reads.size()));
    dag_.tasks.push_back(std::move(bucket.gather));
    bucket.bytes = 0;
  };
  std::ranges::stable_sort(
      cut, [](const Part* a, const Part* b) { return a->above.size() > b->above.size(); });
  size_t depth = cut.front()->above.size();
  for (const Part* part : cut) {
    if (std::exchange(depth, part->above.size()) != part->above.size())
      for (auto& [key, bucket] : buckets) flush(bucket);
    const Value& whole = dag_.graph.value(part->cut_of());
    const auto region = regions.of_param(part->param);
    Bucket& bucket = buckets[{part->all_over(), region, part->stream, part->bucket}];
    if (bucket.bytes == 0) {
      bucket.gather = {.kind = InstructionKind::kAllGather,
                       .cell = cell,
                       .stream = part->stream,
                       .group = SmallVector(part->over),
                       .region = region ? regions.chunk(*region) : ChunkId()};
      bucket.first = whole.name;
    }
    const TensorType type = whole.type;
    const ValueId gathered = pseudo_value(whole.name + ".gathered", type);
    const auto known = made.find(part->value.value);
    bucket.gather.reads.push_back(
        known == made.end() ? find_item(next_of_[part->value.value], -1, cell) : known->second);
    const ItemId to = new_item(gathered, -1, cell, ensure(part->cut_of(), -1, cell));
    made[part->cut_of().value] = to;
    bucket.gather.writes.push_back(to);
    bucket.bytes += std::max<int64_t>(type.bytes(), 1);
    if (bucket.bytes >= part->bucket) flush(bucket);
  }
  for (auto& [key, bucket] : buckets) flush(bucket);
}

void Expander::add_exchanges(const Chunk& chunk) {
  // After so many others, how, over.
  using Wave = std::tuple<size_t, InstructionKind, bool, std::vector<int32_t>>;
  std::map<Wave, Task> tasks;
  const auto from = [](const Part& one) { return gathers(one) ? one.value : one.param; };
  const auto to = [](const Part& one) { return gathers(one) ? one.param : one.value; };
  // Those of one value follow one another.
  std::vector<const Part*> before;
  for (const Part& exchange : dag_.exchanges) {
    if (before.empty() || from(exchange) != to(*before.back())) before.clear();
    before.push_back(&exchange);
    const bool is_read = std::binary_search(chunk.reads.begin(), chunk.reads.end(), to(exchange));
    if (!is_read || find_item(to(exchange), -1, chunk.cell).valid()) continue;
    for (size_t at = 0; at < before.size(); ++at) {
      const Part& one = *before[at];
      const InstructionKind kind = one.spreads    ? InstructionKind::kAllToAll
                                   : gathers(one) ? InstructionKind::kAllGather
                                                  : InstructionKind::kOwnPart;
      Task& task = tasks[{at, kind, gathers(one), one.over}];
      if (is_collective(kind)) task.stream = one.stream;
      task.reads.push_back(ensure(from(one), -1, chunk.cell));
      task.writes.push_back(new_item(to(one), -1, chunk.cell));
    }
  }
  for (auto& [wave, task] : tasks) {
    const auto& [at, kind, is_gather, over] = wave;
    const std::string& first = dag_.graph.value(dag_.items[task.reads[0].index()].value).name;
    task.kind = kind, task.cell = chunk.cell, task.group = SmallVector(over);
    const std::string what = kind == InstructionKind::kOwnPart ? "own parts of" : to_string(kind);
    task.label = add_label(fmt::format("{} {}", what, and_more(first, task.reads.size())));
    dag_.tasks.push_back(std::move(task));
  }
}

ItemId Expander::add_update_task(const Chunk& chunk) {
  Task task = end_task(add_chunk(chunk), chunk.name);
  if (dag_.split_update &&
      std::any_of(chunk.tags.begin(), chunk.tags.end(), [](int32_t tag) { return tag != kNoTag; }))
    task.region = task.chunk;
  for (ValueId value : chunk.reads) task.reads.push_back(ensure(value, -1, chunk.cell));
  for (ValueId value : chunk.writes) {
    ItemId alias;
    const auto state = state_of_.find(value.value);
    if (state != state_of_.end()) alias = ensure(state->second, -1, chunk.cell);
    task.writes.push_back(new_item(value, -1, chunk.cell, alias));
  }
  const ItemId first = task.writes.empty() ? ItemId() : task.writes[0];
  dag_.tasks.push_back(std::move(task));
  return first;
}

void Expander::share_scalars() {
  const ScalarVector scalars = scalar_vector(dag_);
  std::vector<ItemId> own;
  for (ValueId source : scalars.sources) finish_sum(sum_of_value_.at(source.value));
  for (int32_t cell = 0; cell < static_cast<int32_t>(dag_.cells.size()); ++cell) {
    std::vector<bool> here;
    for (ValueId source : scalars.sources)
      here.push_back(counts_in(sum_of_value_.at(source.value), cell));
    const Chunk whole = scalar_chunk(dag_, scalars, here, cell);
    ItemId made;
    for (const Chunk& chunk : UpdateRegions(dag_).taken_apart(dag_, whole)) {
      made = add_update_task(chunk);
      dag_.tasks.back().region = {};  // not the update itself, which may need the norm of all
    }
    own.push_back(made);
  }
  gathers_scalars_ = !dag_.versions.empty() && !update_reads(scalars.shared);
  if (gathers_scalars_) return gather_scalars(scalars, own);
  for (int32_t cell = 0; cell < static_cast<int32_t>(dag_.cells.size()); ++cell) {
    const ItemId mine = own[static_cast<size_t>(cell)];
    Task reduce{.kind = InstructionKind::kAllReduce,
                .cell = cell,
                .label = add_label("all_reduce step scalars"),
                .reads = {mine},
                .writes = {new_item(scalars.shared, -1, cell, mine)}};
    for (size_t a = 0; a < dag_.mesh.size(); ++a)
      if (dag_.mesh[a].tells_cells_apart()) reduce.group.push_back(static_cast<int32_t>(a));
    dag_.tasks.push_back(std::move(reduce));
  }
}

bool Expander::update_reads(ValueId value) const {
  const Graph& graph = dag_.graph;
  std::vector<bool> seen(graph.values.size());
  std::vector<ValueId> open;
  for (const StateUpdate& update : graph.updates) open.push_back(update.next);
  while (!open.empty()) {
    const ValueId read = open.back();
    open.pop_back();
    if (read == value) return true;
    const NodeId producer = graph.value(read).producer;
    if (!producer.valid() || seen[read.index()] || graph.node(producer).pass != Pass::kU) continue;
    seen[read.index()] = true;
    for (ValueId input : graph.node(producer).inputs)
      if (input.valid()) open.push_back(input);
  }
  return false;
}

void Expander::gather_scalars(const ScalarVector& scalars, const std::vector<ItemId>& own) {
  ItemId sum = own[0];
  for (size_t cell = 1; cell < own.size(); ++cell) {
    const ItemId part = move_to(own[cell], 0);
    sum = add_update_task(sum_chunk(dag_, dag_.items[sum.index()].value,
                                    dag_.items[part.index()].value, "U sum step scalars"));
  }
  items_.set(scalars.shared, -1, 0, sum);
}

Reports Expander::reports_of(const Reports& all, int32_t cell) const {
  if (!gathers_scalars_ || cell == 0) return all;
  Reports own;
  for (const auto& report : all)
    if (report.second != dag_.graph.loss && report.second != dag_.graph.grad_norm)
      own.push_back(report);
  return own;
}

}  // namespace piper
