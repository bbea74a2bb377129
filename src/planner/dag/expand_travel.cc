// How sums travel over replicas: rounded to 16 bits, and in every microbatch.
#include <algorithm>

#include "expander.h"
#include "kept.h"

namespace piper {

std::string Expander::several(const std::vector<int32_t>& sums, DType type) const {
  return fmt::format("{} to {}", and_more(sum(sums[0]).name, sums.size()), info(type).name);
}

ValueId Expander::end_op(const char* op, Attrs attrs, std::vector<ValueId> inputs, TensorType type,
                         const std::string& name) {
  Node node{.op = op,
            .name = name,
            .attrs = std::move(attrs),
            .inputs = std::move(inputs),
            .pass = Pass::kU};
  return dag_.graph.node(dag_.graph.add_node(std::move(node), std::span(&type, 1))).outputs[0];
}

ValueId Expander::cast(ValueId value, DType type, const std::string& name) {
  const TensorType from = dag_.graph.value(value).type, to{type, from.shape};
  return from == to ? value : end_op("Cast", {{"to", info(type).name}}, {value}, to, name);
}

ChunkId Expander::casting_chunk(const std::vector<ValueId>& made, int32_t cell,
                                const std::string& name) {
  Chunk chunk = end_chunk(dag_, cell, "U cast " + name);
  for (ValueId value : made) {
    const NodeId producer = dag_.graph.value(value).producer;
    chunk.nodes.push_back(producer);
    chunk.reads.push_back(dag_.graph.node(producer).inputs[0]);
  }
  chunk.writes = made;
  std::sort(chunk.reads.begin(), chunk.reads.end());
  std::sort(chunk.writes.begin(), chunk.writes.end());
  return add_chunk(std::move(chunk));
}

void Expander::add_casts(ChunkId id, const std::vector<int32_t>& sums,
                         const std::vector<ItemId>& from, const std::vector<ValueId>& made) {
  const Chunk& chunk = dag_.chunks[id.index()];
  Task task = end_task(id, chunk.name.substr(2));
  task.micro = dag_.items[from[0].index()].micro;
  for (ValueId value : chunk.reads) task.reads.push_back(find_item(value, task.micro, task.cell));
  for (ValueId value : chunk.writes) task.writes.push_back(new_item(value, task.micro, task.cell));
  for (size_t i = 0; i < sums.size(); ++i)
    task.combines.push_back({sums[i], find_item(made[i], task.micro, task.cell), {from[i]}});
  dag_.tasks.push_back(std::move(task));
}

std::vector<ItemId> Expander::in_type(const std::vector<int32_t>& sums, std::vector<ItemId> items,
                                      DType type, const std::string& suffix) {
  if (dag_.graph.value(dag_.items[items[0].index()].value).type.dtype == type) return items;
  const int32_t cell = dag_.items[items[0].index()].cell;
  std::vector<ValueId> made;
  for (size_t i = 0; i < sums.size(); ++i)
    made.push_back(cast(dag_.items[items[i].index()].value, type, sum(sums[i]).name + suffix));
  add_casts(casting_chunk(made, cell, several(sums, type)), sums, items, made);
  for (size_t i = 0; i < items.size(); ++i) items[i] = find_item(made[i], -1, cell);
  return items;
}

template <class Round>
ValueId Expander::add_all(int32_t s, const std::vector<ItemId>& members, const Round& round) {
  ValueId total;
  for (ItemId member : members) {
    const ValueId part = round(dag_.items[member.index()].value);
    total = total.valid()
                ? end_op("Add", {}, {total, part}, dag_.graph.value(part).type, sum(s).name)
                : part;
  }
  return total;
}

ItemId Expander::add_rounded(int32_t s, const std::vector<ItemId>& members, DType type) {
  const std::string& name = sum(s).name;
  const size_t first = dag_.graph.nodes.size();
  const ValueId total = add_all(
      s, members, [&](ValueId value) { return cast(cast(value, type, name), DType::kF32, name); });
  cast(cast(total, type, name), own_type(s), name);
  return combine(s, members, first, fmt::format("U sum {} in {}", name, info(type).name));
}

// Terms are added up in f32 at least, and their sum is rounded to the type of the sum once.
ItemId Expander::add_in_blocks(int32_t s, const std::vector<ItemId>& members,
                               const PartsInBlocks& how) {
  const std::string& name = sum(s).name;
  const size_t first = dag_.graph.nodes.size();
  const ValueId total = add_all(
      s, members, [&](ValueId value) { return cast(rounded(s, value, how), wide_type(s), name); });
  cast(total, own_type(s), name);
  const char* const type = kScaledNames[static_cast<size_t>(how.scaled)];
  return combine(s, members, first, fmt::format("U sum {} in {}", name, type));
}

ValueId Expander::rounded(int32_t s, ValueId term) {
  const PartsInBlocks* how = rounded_in(s, 0);
  return how ? rounded(s, term, *how) : cast(term, type_in(s, 0), sum(s).name);
}

ValueId Expander::rounded(int32_t s, ValueId term, const PartsInBlocks& how) {
  Builder build(dag_.graph);
  build.pass = Pass::kU;
  build.name_prefix = sum(s).name + ".";
  return rounded_in_blocks(build, term, how);
}

ItemId Expander::sum_of_turns(int32_t s, size_t part, size_t replica) {
  ItemId total;
  const std::string& name = sum(s).name;
  const auto micros = static_cast<size_t>(dag_.microbatches);
  for (size_t m = 0; m < micros; ++m) {
    ItemId turn = sums_[static_cast<size_t>(s)].parts[part][replica * micros + m];
    if (!turn.valid()) continue;  // of another group
    const size_t first = dag_.graph.nodes.size();
    const ValueId value = dag_.items[turn.index()].value;
    cast(rounded_in(s, 0) ? value : cast(value, type_in(s, 0), name), own_type(s), name);
    if (dag_.graph.nodes.size() > first) turn = combine(s, {turn}, first, "U cast " + name);
    total = total.valid() ? add_parts(s, total, turn) : turn;
  }
  return total;
}

Expander::Reduced& Expander::reduced(int32_t s, int32_t use) {
  Reduced& values = reduced_[{s, use}];
  if (values.whole.valid()) return values;
  const Sum& of = sum(s);
  const std::string name = fmt::format("{}.use{}", of.name, use);
  const TensorType whole = dag_.graph.value(of.uses[static_cast<size_t>(use)]).type;
  values.whole = pseudo_value(name + ".whole", whole);
  if (in_turns(s)) {
    values.travels = values.part = values.whole;
    values.joins = cast(rounded(s, values.whole), wide_type(s), name + ".joins");
    return values;
  }
  const TensorType part = dag_.graph.value(of.run_after(0)).type;
  const DType type = type_in(s, 0);
  values.travels = cast(values.whole, type, name + ".travels");
  values.part = pseudo_value(name + ".part", {type, part.shape});
  if (type != part.dtype) {
    values.joins = cast(values.part, part.dtype, name + ".joins");
    return values;
  }
  values.joins = end_op("Reshape", {{"shape", part.shape}}, {values.part}, part, name + ".joins");
  return values;
}

ItemId Expander::whole_contribution(const Contribution& c, const Task& task) {
  return new_item(reduced(c.sum, c.use).whole, task.micro, task.cell);
}

void Expander::reduce_contributions(TaskId id) {
  std::vector<Accumulate> made;
  for (const Accumulate& a : dag_.tasks[id.index()].accumulates)
    if (sum(a.sum).each_micro) made.push_back(a);
  if (made.empty()) return;
  const Task task = dag_.tasks[id.index()];
  std::stable_sort(made.begin(), made.end(), [&](const Accumulate& a, const Accumulate& b) {
    return dag_.graph.value(a.contribution).producer < dag_.graph.value(b.contribution).producer;
  });
  std::vector<Accumulate> bucket;
  int64_t bytes = 0;
  for (const Accumulate& a : made) {
    bucket.push_back(a);
    bytes += travelling_bytes(a.sum, dag_.graph.value(a.contribution).type);
    const bool joins = &a != &made.back() && sum(a.sum).rounds[0] == sum((&a + 1)->sum).rounds[0];
    if (bytes < bucket_of(a.sum) && joins) continue;
    reduce_bucket(task, bucket);
    bucket.clear();
    bytes = 0;
  }
}

void Expander::reduce_bucket(const Task& of, const std::vector<Accumulate>& bucket) {
  const std::string what = and_more(sum(bucket[0].sum).name, bucket.size());
  const bool turns = in_turns(bucket[0].sum);
  if (!turns) round_bucket(of, bucket);
  const SumRound& first = round(bucket[0].sum, 0);
  Task reduce{.kind = InstructionKind::kReduceScatter,
              .micro = of.micro,
              .cell = of.cell,
              .stream = first.stream,
              .label = add_label("reduce_scatter " + what),
              .group = SmallVector(first.axes),
              .fast = first.fast,
              .scaled = first.scaled,
              .block = first.block,
              .slice = first.slice,
              .region = dag_.split_sums ? of.chunk : ChunkId()};
  Task join = end_task(joining_chunk(bucket, of.cell), "add " + what);
  join.micro = of.micro;
  for (const Accumulate& a : bucket) {
    const Reduced& values = reduced(a.sum, a.use);
    reduce.reads.push_back(find_item(values.travels, of.micro, of.cell));
    const ItemId part = turns ? a.into : new_item(values.part, of.micro, of.cell);
    reduce.writes.push_back(part);
    join.accumulates.push_back(
        {values.joins, accumulator(a.sum, a.use, of.micro), a.sum, a.use, part});
  }
  for (ValueId value : dag_.chunks[join.chunk.index()].reads)
    join.reads.push_back(find_item(value, of.micro, of.cell));
  if (!turns) dag_.tasks.push_back(std::move(reduce));
  dag_.tasks.push_back(std::move(join));
}

// Rounds what travels of a bucket, unless all contributions travel as they are.
void Expander::round_bucket(const Task& of, const std::vector<Accumulate>& bucket) {
  std::vector<int32_t> sums;
  std::vector<ItemId> from;
  std::vector<ValueId> made;
  for (const Accumulate& a : bucket) {
    const Reduced& values = reduced(a.sum, a.use);
    if (values.travels == values.whole) continue;
    sums.push_back(a.sum);
    from.push_back(a.into);
    made.push_back(values.travels);
  }
  if (made.empty()) return;
  const auto [known, is_new] =
      rounding_.try_emplace({bucket[0].sum, bucket[0].use, of.cell}, dag_.chunks.size());
  if (is_new) casting_chunk(made, of.cell, several(sums, type_in(sums[0], 0)));
  add_casts(known->second, sums, from, made);
}

ChunkId Expander::joining_chunk(const std::vector<Accumulate>& bucket, int32_t cell) {
  const auto [known, is_new] =
      joining_.try_emplace({bucket[0].sum, bucket[0].use, cell}, dag_.chunks.size());
  if (!is_new) return known->second;
  Chunk chunk = end_chunk(dag_, cell, "U add " + sum(bucket[0].sum).name);
  for (const Accumulate& a : bucket) {
    const Reduced& values = reduced(a.sum, a.use);
    for (ValueId value = values.joins; value != values.part;
         value = dag_.graph.node(chunk.nodes.back()).inputs[0])
      chunk.nodes.push_back(dag_.graph.value(value).producer);
    chunk.reads.push_back(values.part);
  }
  std::sort(chunk.nodes.begin(), chunk.nodes.end());
  std::sort(chunk.reads.begin(), chunk.reads.end());
  dag_.chunks.push_back(std::move(chunk));
  return known->second;
}

}  // namespace piper
