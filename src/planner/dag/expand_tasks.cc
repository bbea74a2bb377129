// Chunks -> tasks. A task per (chunk, microbatch), then what data flow between them asks for.
#include <algorithm>

#include "expander.h"

namespace piper {

void Expander::index_updates() {
  for (const StateUpdate& update : dag_.graph.updates) {
    state_of_.try_emplace(update.next.value, update.state);
    next_of_.try_emplace(update.state.value, update.next);
  }
}

Result<Dag> Expander::run() {
  spread_directions(dag_);
  square_by_runs(dag_);
  for (const Part& part : dag_.parts)
    if (part.param.valid() && part.gather != Gather::kUpdate)
      part_of_.emplace(part.param.value, &part);
  groups_ = static_cast<size_t>(dag_.num_groups());
  index_sums();
  const size_t num_chunks = dag_.chunks.size();
  reserve();
  index_updates();
  for (size_t c = 0; c < num_chunks; ++c) {
    TaskId before;
    for (int32_t q = 0; q < dag_.micros(); ++q)
      if (runs_for(dag_.chunks[c], class_of(q))) before = add_compute(ChunkId(c), q, before);
  }
  finish_late_sums();
  PIPER_TRY(add_update());
  return std::move(dag_);
}

// What is not used of it costs nothing.
void Expander::reserve() {
  const auto micros = static_cast<size_t>(dag_.micros());
  size_t items = 0;
  for (const Chunk& chunk : dag_.chunks) items += chunk.reads.size() + chunk.writes.size();
  dag_.tasks.reserve(dag_.tasks.size() + 4 * dag_.chunks.size() * micros);
  dag_.items.reserve(dag_.items.size() + items * micros);
}

// Sends an item from its cell to that of the other.
void Expander::add_transfer(ItemId from, ItemId to) {
  const Item &item = dag_.items[from.index()], &other = dag_.items[to.index()];
  const int32_t label = bringing_label(item.value, {"send", "recv"});
  dag_.tasks.push_back({.kind = InstructionKind::kSend,
                        .micro = item.micro,
                        .cell = item.cell,
                        .peer = other.cell,
                        .label = label,
                        .reads = {from}});
  dag_.tasks.push_back({.kind = InstructionKind::kRecv,
                        .micro = item.micro,
                        .cell = other.cell,
                        .peer = item.cell,
                        .label = label + 1,
                        .writes = {to}});
}

ItemId Expander::move_to(ItemId from, int32_t cell) {
  const Item item = dag_.items[from.index()];
  if (item.cell == cell) return from;
  const ItemId known = find_item(item.value, item.micro, cell);
  if (known.valid()) return known;
  if (sliced(item)) return move_in_parts(from, cell);
  const ItemId to = new_item(item.value, item.micro, cell);
  dag_.items[to.index()].sum = item.sum;
  add_transfer(from, to);
  return to;
}

// Returns a new value for a rank's part of the item's.
ValueId Expander::slice_value(const Item& item) {
  const Value& value = dag_.graph.value(item.value);
  int64_t ranks = 1;
  for (int32_t axis : *sliced(item)) ranks *= dag_.mesh[static_cast<size_t>(axis)].size;
  const int64_t elements = (num_elements(value.type.shape) + ranks - 1) / ranks;
  return pseudo_value(value.name + ".slice", {value.type.dtype, {elements}});
}

ItemId Expander::own_part(ItemId whole) {
  const Item item = dag_.items[whole.index()];
  const auto [slice, is_new] = slice_of_.try_emplace(item.value.value);
  if (is_new) slice->second = slice_value(item);
  const ItemId known = find_item(slice->second, item.micro, item.cell);
  if (known.valid()) return known;
  const ItemId part = new_item(slice->second, item.micro, item.cell);
  dag_.tasks.push_back({.kind = InstructionKind::kOwnPart,
                        .micro = item.micro,
                        .cell = item.cell,
                        .label = bringing_label(item.value, {"own_part", "all_gather"}),
                        .group = SmallVector(*sliced(item)),
                        .reads = {whole},
                        .writes = {part}});
  return part;
}

ItemId Expander::move_in_parts(ItemId from, int32_t cell) {
  const Item item = dag_.items[from.index()];
  const ItemId part = move_to(own_part(from), cell);
  const ItemId whole = new_item(item.value, item.micro, cell);
  dag_.tasks.push_back({.kind = InstructionKind::kAllGather,
                        .micro = item.micro,
                        .cell = cell,
                        .label = bringing_label(item.value, {"own_part", "all_gather"}) + 1,
                        .group = SmallVector(*sliced(item)),
                        .reads = {part},
                        .writes = {whole}});
  return whole;
}

ItemId Expander::ensure(ValueId id, int32_t micro, int32_t cell) {
  if (micro >= 0) id = dag_.variants.read(id, dag_.variants.of(micro));
  const Value& value = dag_.graph.value(id);
  if (value.kind == ValueKind::kConstant || value.kind == ValueKind::kState ||
      (value.kind == ValueKind::kInput && value.batch_dim < 0))
    micro = -1;
  if (const ItemId known = find_item(id, micro, cell); known.valid()) return known;
  if (value.kind == ValueKind::kInput) {
    const ItemId item = new_item(id, micro, cell);
    dag_.tasks.push_back({.kind = InstructionKind::kInput,
                          .micro = micro,
                          .cell = cell,
                          .label = bringing_label(id, {"input"}),
                          .writes = {item}});
    return item;
  }
  if (part_of_.contains(id.value)) return gather_whole(id, cell);
  if (value.kind != ValueKind::kNode) return new_item(id, -1, cell);
  if (const auto sum = sum_of_value_.find(id.value); sum != sum_of_value_.end()) {
    const ValueId result = result_of(sum->second);
    if (const ItemId known = find_item(result, -1, cell); known.valid()) return known;
    finish_sum(sum->second);
    return move_to(find_item(result, -1, sums_[static_cast<size_t>(sum->second)].homes[0]), cell);
  }
  const Node& maker = dag_.graph.node(value.producer);
  if (maker.pass == Pass::kU && maker.inputs.size() == 1)
    if (const auto sum = sum_of_value_.find(maker.inputs[0].value); sum != sum_of_value_.end())
      return move_to(put_sum(sum->second, value.producer), cell);
  const int32_t chunk = chunk_of_[slot(value.producer, class_of(std::max(micro, 0)))];
  PIPER_CHECK(chunk >= 0, "value '{}' is made by no chunk", value.name);
  const ItemId made = find_item(id, micro, dag_.chunks[static_cast<size_t>(chunk)].cell);
  PIPER_CHECK(made.valid(), "value '{}' is read before it is made", value.name);
  return move_to(made, cell);
}

ItemId Expander::put_sum(int32_t s, NodeId maker) {
  finish_sum(s);
  const int32_t home = sums_[static_cast<size_t>(s)].homes[0];
  const ValueId made = dag_.graph.node(maker).outputs[0];
  if (const ItemId known = find_item(made, -1, home); known.valid()) return known;
  Chunk chunk = end_chunk(dag_, home, "U put " + sum(s).name);
  chunk.nodes = {maker};
  chunk.reads = dag_.graph.node(maker).inputs;
  chunk.writes = {made};
  return add_update_task(chunk);
}

int32_t Expander::bringing_label(ValueId value, std::initializer_list<std::string_view> kinds) {
  if (value.index() >= bringing_labels_.size())
    bringing_labels_.resize(dag_.graph.values.size(), -1);
  int32_t& first = bringing_labels_[value.index()];
  if (first >= 0) return first;
  first = static_cast<int32_t>(dag_.labels.size());
  for (std::string_view kind : kinds)
    add_label(fmt::format("{} {}", kind, dag_.graph.value(value).name));
  return first;
}

TaskId Expander::add_compute(ChunkId id, int32_t micro, TaskId before) {
  Task task{.pass = dag_.chunks[id.index()].pass,
            .chunk = id,
            .micro = micro,
            .cell = dag_.chunks[id.index()].cell,
            .label = before.valid() ? dag_.tasks[before.index()].label
                                    : add_label(dag_.chunks[id.index()].name)};
  // What is read may be finished on the way, by chunks that are new.
  const size_t reads = dag_.chunks[id.index()].reads.size();
  task.reads.reserve(reads);
  for (size_t r = 0; r < reads; ++r) {
    const ItemId known = before.valid() ? dag_.tasks[before.index()].reads[r] : ItemId();
    const bool of_all = known.valid() && dag_.items[known.index()].micro < 0;
    task.reads.push_back(of_all ? known
                                : ensure(dag_.chunks[id.index()].reads[r], micro, task.cell));
  }
  const Chunk& chunk = dag_.chunks[id.index()];
  task.writes.reserve(chunk.writes.size());
  for (ValueId value : chunk.writes) task.writes.push_back(new_item(value, micro, task.cell));
  if (micro >= 0) {
    task.accumulates.reserve(contributions_[id.index()].size());
    for (const Contribution& c : contributions_[id.index()])
      task.accumulates.push_back(
          {c.value,
           sum(c.sum).each_micro ? whole_contribution(c, task) : accumulator(c.sum, c.use, micro),
           c.sum, c.use});
  }
  const TaskId made(dag_.tasks.size());
  dag_.tasks.push_back(std::move(task));
  add_collectives(made);
  if (micro >= 0) reduce_contributions(made);
  return made;
}

// Returns the collectives among a chunk's nodes as tasks.
std::vector<Task> Expander::collectives_of(const Task& host) {
  std::vector<Task> own;
  for (NodeId id : dag_.chunks[host.chunk.index()].nodes) {
    const Node& node = dag_.graph.node(id);
    const InstructionDef* const def = find_instruction(node.op);
    if (def == nullptr) continue;
    own.push_back({.kind = def->kind,
                   .cell = host.cell,
                   .label = add_label(
                       fmt::format("{} {}", def->word, dag_.graph.value(node.outputs[0]).name)),
                   .group = SmallVector(mesh_axes_of(node)),
                   .nodes = {id}});
  }
  return own;
}

void Expander::add_collectives(TaskId of) {
  const Task host = dag_.tasks[of.index()];
  collectives_.resize(dag_.chunks.size());
  auto& own = collectives_[host.chunk.index()];
  if (!own) own = collectives_of(host);
  for (Task task : *own) {
    task.micro = host.micro;
    task.within = of;
    dag_.tasks.push_back(std::move(task));
  }
}

ItemId Expander::accumulator(int32_t sum, int32_t use, int32_t micro) const {
  const int64_t replica = micro / dag_.microbatches;
  const size_t part =
      static_cast<size_t>(use) * groups_ + static_cast<size_t>(dag_.group_of_micro(micro));
  const int64_t turn =
      in_turns(sum) ? first_of_round(sum, replica) * dag_.microbatches + micro % dag_.microbatches
                    : replica;
  return sums_[static_cast<size_t>(sum)].parts[part][static_cast<size_t>(turn)];
}

Result<Dag> expand_tasks(Dag dag) { return Expander(std::move(dag)).run(); }

}  // namespace piper
