// Chunks -> tasks. A task per (chunk, microbatch), then what data flow between them asks for.
#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "piper/dag.h"
#include "shard.h"
#include "update.h"

namespace piper {
namespace {

class Expander {
 public:
  explicit Expander(Dag dag) : dag_(std::move(dag)) {}

  Result<Dag> run() {
    square_by_runs(dag_);
    sharded_ = shard_states(dag_);
    for (size_t p = 0; p < sharded_.size(); ++p)
      if (sharded_[p].gradient.valid()) sharded_of_[sharded_[p].gradient.value] = p;
    index_sums();
    for (size_t c = 0; c < dag_.chunks.size(); ++c) {
      if (dag_.chunks[c].pass != 'P')
        for (NodeId node : dag_.chunks[c].nodes) chunk_of_[node.index()] = static_cast<int32_t>(c);
    }
    const size_t num_chunks = dag_.chunks.size();
    for (size_t c = 0; c < num_chunks; ++c)
      for (int32_t q = 0; q < dag_.micros(); ++q) add_compute(ChunkId(c), q);
    finish_late_sums();
    PIPER_TRY(add_update());
    return std::move(dag_);
  }

 private:
  struct SumState {
    std::vector<ChunkId> chunk;              // by use
    std::vector<std::vector<ItemId>> parts;  // [use][sequential replica]
    bool finished = false;
    int32_t home = 0;  // cell that finishes it
  };
  struct Contribution {
    ValueId value;
    int32_t sum, use;
  };

  // The parameter whose gradient a sum is, if it is cut.
  const ShardedParam* sharded(int32_t s) const {
    const auto found = sharded_of_.find(dag_.sums[static_cast<size_t>(s)].value.value);
    return found == sharded_of_.end() ? nullptr : &sharded_[found->second];
  }
  // Whether it is reduced over the first level in every microbatch.
  bool reduces_each(int32_t s) const { return dag_.sharding.reduce_each && sharded(s); }
  // The value in which a sum is finished.
  ValueId result_of(int32_t s) const {
    const ShardedParam* cut = sharded(s);
    return cut ? cut->gradient_part : dag_.sums[static_cast<size_t>(s)].value;
  }

  int64_t sequential_replicas() const { return dag_.sequential_replicas ? dag_.replicas : 1; }

  // ---- Items ----
  static uint64_t key(ValueId value, int32_t micro, int32_t cell) {
    return (static_cast<uint64_t>(value.value) << 40) |
           (static_cast<uint64_t>(static_cast<uint32_t>(micro + 1)) << 16) |
           static_cast<uint64_t>(cell);
  }
  ItemId new_item(ValueId value, int32_t micro, int32_t cell, ItemId alias = {}) {
    Item item;
    item.value = value;
    item.micro = micro;
    item.cell = cell;
    item.alias = alias;
    dag_.items.push_back(item);
    const ItemId id(dag_.items.size() - 1);
    items_[key(value, micro, cell)] = id;
    return id;
  }
  ItemId find_item(ValueId value, int32_t micro, int32_t cell) const {
    const auto it = items_.find(key(value, micro, cell));
    return it == items_.end() ? ItemId() : it->second;
  }
  // A value without a producer in the graph: accumulators and what collectives leave behind.
  ValueId pseudo_value(const std::string& name, const TensorType& type) {
    Value value;
    value.name = name;
    value.type = type;
    return dag_.graph.add_value(std::move(value));
  }

  std::string micro_label(int32_t micro) const {
    if (micro < 0) return "";
    if (!dag_.sequential_replicas || dag_.replicas == 1) return fmt::format(" mb={}", micro);
    return fmt::format(" replica={} mb={}", micro / dag_.microbatches, micro % dag_.microbatches);
  }

  // ---- Sums ----
  void index_sums() {
    sums_.resize(dag_.sums.size());
    contributions_.resize(dag_.chunks.size());
    std::vector<int32_t> main_chunk(dag_.graph.nodes.size(), -1), early_chunk = main_chunk;
    for (size_t c = 0; c < dag_.chunks.size(); ++c)
      for (NodeId node : dag_.chunks[c].nodes)
        (dag_.chunks[c].pass == 'P' ? early_chunk : main_chunk)[node.index()] =
            static_cast<int32_t>(c);
    chunk_of_.assign(dag_.graph.nodes.size(), -1);
    for (size_t s = 0; s < dag_.sums.size(); ++s) {
      const Sum& sum = dag_.sums[s];
      sum_of_value_[sum.value.value] = static_cast<int32_t>(s);
      sum_of_value_[result_of(static_cast<int32_t>(s)).value] = static_cast<int32_t>(s);
      for (size_t u = 0; u < sum.uses.size(); ++u) {
        const NodeId producer = dag_.graph.value(sum.uses[u]).producer;
        PIPER_CHECK(producer.valid(), "a contribution to '{}' is not computed", sum.name);
        const int32_t early = early_chunk[producer.index()];
        // An early sum's contribution is made by an early chunk, any other by a main chunk.
        const int32_t c =
            main_chunk[producer.index()] >= 0 && early < 0 ? main_chunk[producer.index()] : early;
        PIPER_CHECK(c >= 0, "no chunk makes a contribution to '{}'", sum.name);
        sums_[s].chunk.push_back(ChunkId(static_cast<size_t>(c)));
        contributions_[static_cast<size_t>(c)].push_back(
            {sum.uses[u], static_cast<int32_t>(s), static_cast<int32_t>(u)});
        std::vector<ItemId> parts;
        for (int64_t r = 0; r < sequential_replicas(); ++r) {
          const std::string name =
              fmt::format("{}.use{}{}", sum.name, u,
                          sequential_replicas() > 1 ? fmt::format(".replica{}", r) : "");
          const bool cut = reduces_each(static_cast<int32_t>(s));
          const ValueId like = cut ? result_of(static_cast<int32_t>(s)) : sum.uses[u];
          const ValueId value = pseudo_value(name, dag_.graph.value(like).type);
          parts.push_back(new_item(value, -1, dag_.chunks[static_cast<size_t>(c)].cell));
        }
        sums_[s].parts.push_back(std::move(parts));
      }
    }
  }

  // A chunk of pass U that adds two items of one cell into the first one's memory.
  ItemId add_parts(int32_t s, ItemId a, ItemId b) {
    const int32_t cell = dag_.items[a.index()].cell;
    const ValueId va = dag_.items[a.index()].value, vb = dag_.items[b.index()].value;
    Node node;
    node.op = "Add";
    node.name = dag_.sums[static_cast<size_t>(s)].name;
    node.pass = Pass::kU;
    node.inputs = {va, vb};
    const TensorType type = dag_.graph.value(va).type;
    const NodeId id = dag_.graph.add_node(std::move(node), std::span(&type, 1));
    const ValueId out = dag_.graph.node(id).outputs[0];
    Chunk chunk;
    chunk.pass = 'U';
    chunk.tags.assign(dag_.region_tags.size(), kNoTag);
    chunk.nodes = {id};
    const bool ascending = va < vb;
    chunk.reads = ascending ? std::vector{va, vb} : std::vector{vb, va};
    chunk.writes = {out};
    chunk.cell = cell;
    chunk.name = "U sum " + dag_.sums[static_cast<size_t>(s)].name;
    dag_.chunks.push_back(std::move(chunk));
    const ItemId into = new_item(out, -1, cell, a);
    Task task;
    task.pass = 'U';
    task.chunk = ChunkId(dag_.chunks.size() - 1);
    task.cell = cell;
    task.label = dag_.chunks.back().name;
    task.reads = ascending ? std::vector{a, b} : std::vector{b, a};
    task.writes = {into};
    task.combines.push_back({s, into, {a, b}});
    dag_.tasks.push_back(std::move(task));
    return into;
  }

  // Uses in order, then sequential replicas level by level; what is left to do is the reduction
  // over replica ranks.
  ItemId sum_parts(int32_t s) {
    const SumState& state = sums_[static_cast<size_t>(s)];
    std::vector<ItemId> totals;  // by replica
    for (size_t r = 0; r < static_cast<size_t>(sequential_replicas()); ++r) {
      totals.push_back(state.parts[0][r]);
      for (size_t u = 1; u < state.parts.size(); ++u) {
        const ItemId part = state.parts[u][r];
        totals[r] = add_parts(s, move_to(totals[r], dag_.items[part.index()].cell), part);
      }
    }
    if (totals.size() == 1) return totals[0];
    std::vector<bool> added(totals.size());
    for (const SumLevel& level : dag_.levels)
      for (size_t r = 0; r < totals.size(); ++r) {
        if (added[r] || static_cast<int64_t>(r) / level.stride % level.size != 0) continue;
        for (int64_t k = 1; k < level.size; ++k) {
          const size_t other = r + static_cast<size_t>(k * level.stride);
          totals[r] = add_parts(s, totals[r], totals[other]);
          added[other] = true;
        }
      }
    return totals[0];
  }

  bool reduces_over_ranks() const { return !dag_.sequential_replicas && dag_.replicas > 1; }

  // One level's share of several sums, as one message.
  std::vector<ItemId> reduce_level(const std::vector<int32_t>& sums,
                                   const std::vector<ItemId>& totals, size_t level) {
    const bool last = level + 1 == dag_.levels.size(), scatter = level == 0 && sharded(sums[0]);
    Task reduce;
    reduce.kind = scatter ? TaskKind::kReduceScatter : TaskKind::kAllReduce;
    reduce.cell = dag_.items[totals[0].index()].cell;
    reduce.stream = dag_.levels[level].stream;
    reduce.group = {dag_.levels[level].axis};
    reduce.reads = totals;
    for (size_t i = 0; i < sums.size(); ++i) {
      ValueId value = result_of(sums[i]);
      if (!last)
        value = pseudo_value(
            fmt::format("{}.level{}", dag_.sums[static_cast<size_t>(sums[i])].name, level),
            dag_.graph.value(value).type);
      reduce.writes.push_back(new_item(value, -1, reduce.cell, scatter ? ItemId() : totals[i]));
    }
    reduce.label = fmt::format("{} {}{}", kTaskKindNames[static_cast<size_t>(reduce.kind)],
                               dag_.sums[static_cast<size_t>(sums[0])].name,
                               sums.size() > 1 ? fmt::format(" and {} more", sums.size() - 1) : "");
    const std::vector<ItemId> done = reduce.writes;
    dag_.tasks.push_back(std::move(reduce));
    return done;
  }

  // Finishes several sums of one cell, with one message a level. All are cut, or none is.
  void finish_sums(const std::vector<int32_t>& sums, std::vector<ItemId> totals) {
    const int32_t cell = dag_.items[totals[0].index()].cell;
    if (reduces_over_ranks())
      for (size_t level = reduces_each(sums[0]) ? 1 : 0; level < dag_.levels.size(); ++level)
        totals = reduce_level(sums, totals, level);
    for (size_t i = 0; i < sums.size(); ++i) {
      SumState& state = sums_[static_cast<size_t>(sums[i])];
      state.finished = true;
      state.home = cell;
      items_[key(result_of(sums[i]), -1, cell)] = totals[i];
      dag_.items[totals[i].index()].sum = sums[i];
    }
  }

  void finish_sum(int32_t s) {
    if (sums_[static_cast<size_t>(s)].finished) return;
    finish_sums({s}, {sum_parts(s)});
  }

  // Gradients in the order in which the backward makes them, joined into buckets.
  void finish_late_sums() {
    std::vector<int32_t> order;
    for (size_t s = 0; s < sums_.size(); ++s)
      if (!sums_[s].finished) order.push_back(static_cast<int32_t>(s));
    const auto last_made = [&](int32_t s) {
      int32_t last = 0;
      for (ValueId use : dag_.sums[static_cast<size_t>(s)].uses)
        last = std::max(last, dag_.graph.value(use).producer.value);
      return last;
    };
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return std::pair(last_made(a), a) < std::pair(last_made(b), b);
    });
    std::vector<ItemId> totals(sums_.size());
    for (int32_t s : order) totals[static_cast<size_t>(s)] = sum_parts(s);
    for (size_t cell = 0; cell < 2 * dag_.cells.size(); ++cell) {
      const bool cut = cell % 2 == 1;  // of each cell first those that stay whole
      std::vector<int32_t> bucket;
      std::vector<ItemId> bucket_totals;
      int64_t bytes = 0;
      const auto flush = [&] {
        if (!bucket.empty()) finish_sums(bucket, bucket_totals);
        bucket.clear();
        bucket_totals.clear();
        bytes = 0;
      };
      for (int32_t s : order) {
        const ItemId total = totals[static_cast<size_t>(s)];
        const Item& item = dag_.items[total.index()];
        if (static_cast<size_t>(item.cell) != cell / 2 || cut != (sharded(s) != nullptr)) continue;
        const TensorType& type = dag_.graph.value(item.value).type;
        if (!bucket_totals.empty() &&
            dag_.graph.value(dag_.items[bucket_totals[0].index()].value).type.dtype != type.dtype)
          flush();
        bucket.push_back(s);
        bucket_totals.push_back(total);
        bytes += type.bytes();
        if (bytes >= dag_.bucket_bytes) flush();
      }
      flush();
    }
  }

  // ---- Data flow ----
  // The item in `cell`, sent there if it lives elsewhere.
  ItemId move_to(ItemId from, int32_t cell) {
    const Item item = dag_.items[from.index()];
    if (item.cell == cell) return from;
    const ItemId known = find_item(item.value, item.micro, cell);
    if (known.valid()) return known;
    const ItemId to = new_item(item.value, item.micro, cell);
    dag_.items[to.index()].sum = item.sum;
    const std::string what = dag_.graph.value(item.value).name + micro_label(item.micro);
    Task send;
    send.kind = TaskKind::kSend;
    send.micro = item.micro;
    send.cell = item.cell;
    send.peer = cell;
    send.reads = {from};
    send.label = "send " + what;
    dag_.tasks.push_back(std::move(send));
    Task recv;
    recv.kind = TaskKind::kRecv;
    recv.micro = item.micro;
    recv.cell = cell;
    recv.peer = item.cell;
    recv.writes = {to};
    recv.label = "recv " + what;
    dag_.tasks.push_back(std::move(recv));
    return to;
  }

  // The item that holds `value` for `micro` in `cell`, with the tasks that bring it there.
  ItemId ensure(ValueId id, int32_t micro, int32_t cell) {
    const Value& value = dag_.graph.value(id);
    if (value.kind == ValueKind::kConstant || value.kind == ValueKind::kState ||
        (value.kind == ValueKind::kInput && value.batch_dim < 0))
      micro = -1;
    if (const ItemId known = find_item(id, micro, cell); known.valid()) return known;
    if (value.kind == ValueKind::kInput) {
      const ItemId item = new_item(id, micro, cell);
      Task task;
      task.kind = TaskKind::kInput;
      task.micro = micro;
      task.cell = cell;
      task.writes = {item};
      task.label = "input " + value.name + micro_label(micro);
      dag_.tasks.push_back(std::move(task));
      return item;
    }
    if (value.kind != ValueKind::kNode) return new_item(id, -1, cell);
    if (const auto sum = sum_of_value_.find(id.value); sum != sum_of_value_.end()) {
      const ValueId result = result_of(sum->second);
      if (const ItemId known = find_item(result, -1, cell); known.valid()) return known;
      finish_sum(sum->second);
      return move_to(find_item(result, -1, sums_[static_cast<size_t>(sum->second)].home), cell);
    }
    const int32_t chunk = chunk_of_[value.producer.index()];
    PIPER_CHECK(chunk >= 0, "value '{}' is made by no chunk", value.name);
    const ItemId made = find_item(id, micro, dag_.chunks[static_cast<size_t>(chunk)].cell);
    PIPER_CHECK(made.valid(), "value '{}' is read before it is made", value.name);
    return move_to(made, cell);
  }

  void add_compute(ChunkId id, int32_t micro) {
    Task task;
    task.pass = dag_.chunks[id.index()].pass;
    task.chunk = id;
    task.micro = micro;
    task.cell = dag_.chunks[id.index()].cell;
    task.label = dag_.chunks[id.index()].name + micro_label(micro);
    const std::vector<ValueId> reads = dag_.chunks[id.index()].reads;
    for (ValueId value : reads) task.reads.push_back(ensure(value, micro, task.cell));
    for (ValueId value : dag_.chunks[id.index()].writes)
      task.writes.push_back(new_item(value, micro, task.cell));
    if (micro >= 0) {
      const auto replica =
          static_cast<size_t>(dag_.sequential_replicas ? micro / dag_.microbatches : 0);
      for (const Contribution& c : contributions_[id.index()])
        task.accumulates.push_back(
            {c.value,
             reduces_each(c.sum) ? whole_contribution(c, task) : accumulator(c.sum, c.use, replica),
             c.sum, c.use});
    }
    const Task added = task;
    dag_.tasks.push_back(std::move(task));
    if (micro >= 0 && dag_.sharding.reduce_each) reduce_contributions(added);
  }

  ItemId accumulator(int32_t sum, int32_t use, size_t replica) const {
    return sums_[static_cast<size_t>(sum)].parts[static_cast<size_t>(use)][replica];
  }

  // ---- Reductions in every microbatch ----
  // What one task contributes to a parameter's gradient, before it is summed over replicas; the
  // part of it that is left; and that part under a name of its own, which joins the accumulator.
  struct Reduced {
    ValueId whole, part, joins;
  };
  Reduced& reduced(int32_t sum, int32_t use) {
    Reduced& values = reduced_[{sum, use}];
    if (values.whole.valid()) return values;
    const Sum& of = dag_.sums[static_cast<size_t>(sum)];
    const std::string name = fmt::format("{}.use{}", of.name, use);
    const TensorType whole = dag_.graph.value(of.uses[static_cast<size_t>(use)]).type;
    const TensorType part = dag_.graph.value(result_of(sum)).type;
    values.whole = pseudo_value(name + ".whole", whole);
    values.part = pseudo_value(name + ".part", part);
    Node node;
    node.op = "Reshape";
    node.name = name + ".joins";
    node.pass = Pass::kU;
    node.attrs.set("shape", part.shape);
    node.inputs = {values.part};
    const NodeId id = dag_.graph.add_node(std::move(node), std::span(&part, 1));
    values.joins = dag_.graph.node(id).outputs[0];
    return values;
  }
  ItemId whole_contribution(const Contribution& c, const Task& task) {
    return new_item(reduced(c.sum, c.use).whole, task.micro, task.cell);
  }

  // As the backward makes them, joined into buckets.
  void reduce_contributions(const Task& task) {
    std::vector<Accumulate> made;
    for (const Accumulate& a : task.accumulates)
      if (reduces_each(a.sum)) made.push_back(a);
    std::stable_sort(made.begin(), made.end(), [&](const Accumulate& a, const Accumulate& b) {
      return dag_.graph.value(a.contribution).producer < dag_.graph.value(b.contribution).producer;
    });
    std::vector<Accumulate> bucket;
    int64_t bytes = 0;
    for (const Accumulate& a : made) {
      bucket.push_back(a);
      bytes += dag_.graph.value(a.contribution).type.bytes();
      if (bytes < dag_.bucket_bytes && &a != &made.back()) continue;
      reduce_bucket(task, bucket);
      bucket.clear();
      bytes = 0;
    }
  }
  void reduce_bucket(const Task& of, const std::vector<Accumulate>& bucket) {
    const std::string what =
        fmt::format("{}{}{}", dag_.sums[static_cast<size_t>(bucket[0].sum)].name,
                    bucket.size() > 1 ? fmt::format(" and {} more", bucket.size() - 1) : "",
                    micro_label(of.micro));
    Task reduce = first_level_task(TaskKind::kReduceScatter, of.cell);
    reduce.stream = dag_.levels[0].stream;
    reduce.micro = of.micro;
    reduce.label = "reduce_scatter " + what;
    Task join;
    join.pass = 'U';
    join.cell = of.cell;
    join.micro = of.micro;
    join.label = "add " + what;
    join.chunk = joining_chunk(bucket, of.cell);
    for (const Accumulate& a : bucket) {
      const Reduced& values = reduced(a.sum, a.use);
      reduce.reads.push_back(a.into);
      reduce.writes.push_back(new_item(values.part, of.micro, of.cell));
      join.accumulates.push_back(
          {values.joins, accumulator(a.sum, a.use, 0), a.sum, a.use, reduce.writes.back()});
    }
    for (ValueId value : dag_.chunks[join.chunk.index()].reads)
      join.reads.push_back(find_item(value, of.micro, of.cell));
    dag_.tasks.push_back(std::move(reduce));
    dag_.tasks.push_back(std::move(join));
  }
  ChunkId joining_chunk(const std::vector<Accumulate>& bucket, int32_t cell) {
    const auto [known, is_new] =
        joining_.try_emplace({bucket[0].sum, bucket[0].use}, dag_.chunks.size());
    if (!is_new) return known->second;
    Chunk chunk;
    chunk.pass = 'U';
    chunk.tags.assign(dag_.region_tags.size(), kNoTag);
    chunk.cell = cell;
    chunk.name = "U add " + dag_.sums[static_cast<size_t>(bucket[0].sum)].name;
    for (const Accumulate& a : bucket) {
      const Reduced& values = reduced(a.sum, a.use);
      chunk.nodes.push_back(dag_.graph.value(values.joins).producer);
      chunk.reads.push_back(values.part);
    }
    std::sort(chunk.reads.begin(), chunk.reads.end());
    dag_.chunks.push_back(std::move(chunk));
    return known->second;
  }

  // ---- The end of the step ----
  // Cells that hold a copy of each state value: where some chunk reads it.
  std::vector<std::set<int32_t>> cells_of_state() const {
    std::vector<std::set<int32_t>> cells(dag_.graph.values.size());
    for (const Chunk& chunk : dag_.chunks)
      for (ValueId value : chunk.reads)
        if (dag_.graph.value(value).kind == ValueKind::kState)
          cells[value.index()].insert(chunk.cell);
    return cells;
  }

  Status add_update() {
    const int32_t num_cells = static_cast<int32_t>(dag_.cells.size());
    const auto held = cells_of_state();
    if (num_cells > 1 || !sharded_.empty()) share_scalars();
    const auto reports = report_values(dag_);
    for (int32_t cell = 0; cell < num_cells; ++cell) {
      const std::vector<const ShardedParam*> cut = cut_in_step(cell, held);
      if (!cut.empty()) add_own_parts(cell, cut);
      dag_.chunks.push_back(update_chunk(dag_, cell, held, reports));
      add_update_task(ChunkId(dag_.chunks.size() - 1));
      if (!cut.empty()) gather_updated(cell, cut);
      dag_.reports.emplace_back();
      for (const auto& [name, value] : reports)
        dag_.reports.back().emplace_back(name, ensure_made(value, cell));
    }
    return ok_status();
  }

  // Parameters that stay whole and are updated in parts.
  std::vector<const ShardedParam*> cut_in_step(int32_t cell,
                                               const std::vector<std::set<int32_t>>& held) const {
    std::vector<const ShardedParam*> cut;
    if (dag_.sharding.parameters) return cut;
    for (const ShardedParam& param : sharded_)
      if (held[param.whole.index()].count(cell)) cut.push_back(&param);
    return cut;
  }
  Task first_level_task(TaskKind kind, int32_t cell) const {
    Task task;
    task.kind = kind;
    task.cell = cell;
    task.group = {dag_.levels[0].axis};
    return task;
  }
  void add_own_parts(int32_t cell, const std::vector<const ShardedParam*>& cut) {
    Task task = first_level_task(TaskKind::kOwnPart, cell);
    for (const ShardedParam* param : cut) {
      task.reads.push_back(ensure(param->whole, -1, cell));
      task.writes.push_back(new_item(param->part, -1, cell));
    }
    task.label = fmt::format("own parts of {} parameters", cut.size());
    dag_.tasks.push_back(std::move(task));
  }
  // Back into whole parameters, joined into buckets.
  void gather_updated(int32_t cell, const std::vector<const ShardedParam*>& cut) {
    Task gather;
    int64_t bytes = 0;
    const auto flush = [&](const std::string& name) {
      gather.label = fmt::format(
          "all_gather {}{}", name,
          gather.reads.size() > 1 ? fmt::format(" and {} more", gather.reads.size() - 1) : "");
      dag_.tasks.push_back(std::move(gather));
      bytes = 0;
    };
    std::string first;
    for (const ShardedParam* param : cut) {
      const Value& whole = dag_.graph.value(param->whole);
      if (bytes == 0) {
        gather = first_level_task(TaskKind::kAllGather, cell);
        gather.stream = dag_.sharding.gather_stream;
        first = whole.name;
      }
      const TensorType type = whole.type;
      const ValueId gathered = pseudo_value(whole.name + ".gathered", type);
      gather.reads.push_back(find_item(next_of(param->part), -1, cell));
      gather.writes.push_back(new_item(gathered, -1, cell, ensure(param->whole, -1, cell)));
      bytes += std::max<int64_t>(type.bytes(), 1);
      if (bytes >= dag_.bucket_bytes) flush(first);
    }
    if (bytes > 0) flush(first);
  }
  ValueId next_of(ValueId state) const {
    for (const StateUpdate& update : dag_.graph.updates)
      if (update.state == state) return update.next;
    return {};
  }

  // A value of the update chunk, or a finished sum.
  ItemId ensure_made(ValueId value, int32_t cell) {
    const ItemId known = find_item(value, -1, cell);
    return known.valid() ? known : ensure(value, -1, cell);
  }

  void add_update_task(ChunkId id) {
    const Chunk chunk = dag_.chunks[id.index()];
    Task task;
    task.pass = 'U';
    task.chunk = id;
    task.cell = chunk.cell;
    task.label = "U";
    for (ValueId value : chunk.reads) task.reads.push_back(ensure(value, -1, chunk.cell));
    for (ValueId value : chunk.writes) {
      ItemId alias;
      for (const StateUpdate& update : dag_.graph.updates)
        if (update.next == value) alias = ensure(update.state, -1, chunk.cell);
      task.writes.push_back(new_item(value, -1, chunk.cell, alias));
    }
    dag_.tasks.push_back(std::move(task));
  }

  // The squares of the gradients that are cut and finished in `cell`: summed run by run where the
  // parts are, then gathered.
  GatheredSquares gather_squares(const ScalarVector& scalars, int32_t cell) {
    GatheredSquares squares;
    squares.shards = num_shards(dag_);
    squares.runs = runs_of_part(dag_);
    std::vector<ValueId> parts;
    bool any = false;
    for (ValueId source : scalars.sources) {
      const int32_t s = sum_of_value_.at(source.value);
      const bool here = sharded(s) && owner(s) == cell;
      parts.push_back(here ? result_of(s) : ValueId());
      any = any || here;
    }
    if (!any) return squares;
    dag_.chunks.push_back(squares_chunk(dag_, parts, cell, squares));
    const ItemId own = add_scalar_task(ChunkId(dag_.chunks.size() - 1));
    Task gather = first_level_task(TaskKind::kAllGather, cell);
    gather.reads = {own};
    gather.writes = {new_item(squares.all, -1, cell)};
    gather.label = "all_gather squares";
    dag_.tasks.push_back(std::move(gather));
    return squares;
  }

  // A chunk that writes one value of the step.
  ItemId add_scalar_task(ChunkId id) {
    const Chunk chunk = dag_.chunks[id.index()];
    Task task;
    task.pass = 'U';
    task.chunk = id;
    task.cell = chunk.cell;
    task.label = chunk.name;
    for (ValueId value : chunk.reads) task.reads.push_back(ensure(value, -1, chunk.cell));
    task.writes.push_back(new_item(chunk.writes[0], -1, chunk.cell));
    const ItemId written = task.writes[0];
    dag_.tasks.push_back(std::move(task));
    return written;
  }

  // Every cell needs the norm and the loss: squares of the parameters' gradients, each from the
  // cell of its first use, and the loss travel in one vector, summed over cells (all but one term
  // are zero, so the sum is exact).
  void share_scalars() {
    const ScalarVector scalars = scalar_vector(dag_);
    std::vector<ItemId> own;
    for (ValueId source : scalars.sources) finish_sum(sum_of_value_.at(source.value));
    for (int32_t cell = 0; cell < static_cast<int32_t>(dag_.cells.size()); ++cell) {
      std::vector<bool> here;
      for (ValueId source : scalars.sources)
        here.push_back(owner(sum_of_value_.at(source.value)) == cell);
      const GatheredSquares squares = gather_squares(scalars, cell);
      dag_.chunks.push_back(scalar_chunk(dag_, scalars, here, squares, cell));
      own.push_back(add_scalar_task(ChunkId(dag_.chunks.size() - 1)));
    }
    for (int32_t cell = 0; cell < static_cast<int32_t>(dag_.cells.size()); ++cell) {
      const ItemId mine = own[static_cast<size_t>(cell)];
      if (own.size() == 1) {
        items_[key(scalars.shared, -1, cell)] = mine;
        continue;
      }
      Task reduce;
      reduce.kind = TaskKind::kAllReduce;
      reduce.cell = cell;
      reduce.label = "all_reduce step scalars";
      for (size_t a = 0; a < dag_.mesh.size(); ++a)
        if (dag_.mesh[a].placed) reduce.group.push_back(static_cast<int32_t>(a));
      reduce.reads = {mine};
      reduce.writes = {new_item(scalars.shared, -1, cell, mine)};
      dag_.tasks.push_back(std::move(reduce));
    }
  }

  // The cell that contributes a sum's scalar: the home of its finished value.
  int32_t owner(int32_t s) const { return sums_[static_cast<size_t>(s)].home; }

  Dag dag_;
  std::unordered_map<uint64_t, ItemId> items_;
  std::unordered_map<int32_t, int32_t> sum_of_value_;
  std::vector<ShardedParam> sharded_;
  std::unordered_map<int32_t, size_t> sharded_of_;          // by gradient
  std::map<std::pair<int32_t, int32_t>, Reduced> reduced_;  // by sum and use
  std::map<std::pair<int32_t, int32_t>, ChunkId> joining_;  // by the first of a bucket
  std::vector<SumState> sums_;
  std::vector<std::vector<Contribution>> contributions_;  // by chunk
  std::vector<int32_t> chunk_of_;                         // by node: main chunk
};

}  // namespace

Result<Dag> expand_tasks(Dag dag) { return Expander(std::move(dag)).run(); }

}  // namespace piper
