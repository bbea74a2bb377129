// Sums over microbatches, uses and replicas.
#include <algorithm>

#include "expander.h"
#include "piper/planner/make_dag.h"

namespace piper {

std::vector<int32_t> Expander::chunks_of_nodes(bool early) const {
  const size_t classes = groups_ * variants();
  std::vector<int32_t> chunks(dag_.graph.nodes.size() * classes, -1);
  for (size_t c = 0; c < dag_.chunks.size(); ++c)
    if ((dag_.chunks[c].pass == TaskPass::kPrepare) == early)
      for (size_t k = 0; k < classes; ++k)
        if (runs_for(dag_.chunks[c], k))
          for (NodeId node : dag_.chunks[c].nodes) {
            int32_t& known = chunks[slot(node, k)];
            if (known < 0 || dag_.chunks[c].level <= dag_.chunks[static_cast<size_t>(known)].level)
              known = static_cast<int32_t>(c);
          }
  return chunks;
}

void Expander::index_sums() {
  sums_.resize(dag_.sums.size());
  contributions_.resize(dag_.chunks.size());
  chunk_of_ = chunks_of_nodes(false);
  const std::vector<int32_t> early_chunks = chunks_of_nodes(true);
  for (size_t s = 0; s < dag_.sums.size(); ++s) {
    const Sum& sum = dag_.sums[s];
    sum_of_value_[sum.value.value] = static_cast<int32_t>(s);
    sum_of_value_[result_of(static_cast<int32_t>(s)).value] = static_cast<int32_t>(s);
    for (size_t part = 0; part < sum.uses.size() * groups_; ++part) {
      const size_t u = part / groups_, g = part % groups_;
      const NodeId producer = dag_.graph.value(sum.uses[u]).producer;
      PIPER_CHECK(producer.valid(), "a contribution to '{}' is not computed", sum.name);
      int32_t c = -1;
      for (size_t k = g * variants(); k < (g + 1) * variants(); ++k) {
        // An early sum's contribution is made by an early chunk, any other by a main chunk.
        const int32_t early = early_chunks[slot(producer, k)];
        c = early >= 0 ? early : chunk_of_[slot(producer, k)];
        PIPER_CHECK(c >= 0, "no chunk makes a contribution to '{}'", sum.name);
        const Contribution made{sum.uses[u], static_cast<int32_t>(s), static_cast<int32_t>(u)};
        auto& of_chunk = contributions_[static_cast<size_t>(c)];
        if (of_chunk.empty() || of_chunk.back().sum != made.sum || of_chunk.back().use != made.use)
          of_chunk.push_back(made);
      }
      const ValueId like = sum.each_micro && !is_reference() ? sum.run_after(0) : sum.uses[u];
      const size_t own = accumulator_of(static_cast<int32_t>(s), u);
      std::vector<ItemId> parts;
      const bool turns = own == u && in_turns(static_cast<int32_t>(s));
      if (own != u) parts = sums_[s].parts[own * groups_ + g];
      if (turns)
        parts = turns_of(static_cast<int32_t>(s), u, g, dag_.chunks[static_cast<size_t>(c)].cell);
      for (int64_t r = 0; own == u && !turns && r < dag_.replicas_in_turn; ++r) {
        std::string name = fmt::format("{}.use{}", sum.name, u);
        if (groups_ > 1) name += fmt::format(".group{}", g);
        if (dag_.replicas_in_turn > 1) name += fmt::format(".replica{}", r);
        const ValueId value = pseudo_value(name, dag_.graph.value(like).type);
        parts.push_back(new_item(value, -1, dag_.chunks[static_cast<size_t>(c)].cell));
      }
      sums_[s].parts.push_back(std::move(parts));
    }
  }
}

int64_t Expander::first_of_round(int32_t s, int64_t replica) const {
  if (sum(s).rounds.empty()) return replica;
  const int64_t size = round(s, 0).size, stride = round(s, 0).stride;
  for (int64_t r = 0; r < replica; ++r) {
    const auto apart = static_cast<int64_t>(place_of(replica, 0) - place_of(r, 0));
    const int64_t own = static_cast<int64_t>(place_of(replica, 0)) / stride % size;
    if (apart == own * stride) return r;
  }
  return replica;
}

std::vector<ItemId> Expander::turns_of(int32_t s, size_t u, size_t g, int32_t cell) {
  const Shape shape = dag_.graph.value(sum(s).uses[u]).type.shape;
  std::vector<ItemId> turns(static_cast<size_t>(dag_.micros()));
  for (int64_t r = 0; r < dag_.replicas_in_turn; ++r)
    for (int64_t micro = 0; first_of_round(s, r) == r && micro < dag_.microbatches; ++micro) {
      if (static_cast<size_t>(dag_.group_of_micro(static_cast<int32_t>(micro))) != g) continue;
      const int64_t turn = r * dag_.microbatches + micro;
      const std::string name = fmt::format("{}.use{}.turn{}", sum(s).name, u, turn);
      turns[static_cast<size_t>(turn)] =
          new_item(pseudo_value(name, {wide_type(s), shape}), -1, cell);
    }
  return turns;
}

ItemId Expander::combine(int32_t s, const std::vector<ItemId>& members, size_t first,
                         const std::string& name) {
  const int32_t cell = dag_.items[members[0].index()].cell;
  const Chunk chunk = chunk_of_new_nodes(dag_, first, cell, name);
  const ValueId held = dag_.items[members[0].index()].value;
  const bool fits = dag_.graph.value(held).type == dag_.graph.value(chunk.writes[0]).type;
  const ItemId into = new_item(chunk.writes[0], -1, cell, fits ? members[0] : ItemId());
  Task task = end_task(add_chunk(chunk), name);
  for (ValueId value : dag_.chunks.back().reads) task.reads.push_back(find_item(value, -1, cell));
  task.writes = {into};
  task.combines.push_back({s, into, SmallVector(members)});
  dag_.tasks.push_back(std::move(task));
  return into;
}

ItemId Expander::add_parts(int32_t s, ItemId a, ItemId b) {
  const size_t first = dag_.graph.nodes.size();
  const ValueId va = dag_.items[a.index()].value, vb = dag_.items[b.index()].value;
  end_op("Add", {}, {va, vb}, dag_.graph.value(va).type, sum(s).name);
  return combine(s, {a, b}, first, "U sum " + sum(s).name);
}

ItemId Expander::sum_of_parts(int32_t s, size_t replica, int32_t twin) {
  ItemId total;
  for (size_t p = 0; p < sums_[static_cast<size_t>(s)].parts.size(); ++p) {
    if (accumulator_of(s, p / groups_) != p / groups_) continue;
    if (!sum(s).twin.empty() && sum(s).twin[p] != twin) continue;
    const ItemId part =
        in_turns(s) ? sum_of_turns(s, p, replica) : sums_[static_cast<size_t>(s)].parts[p][replica];
    if (!part.valid()) continue;
    total =
        total.valid() ? add_parts(s, move_to(total, dag_.items[part.index()].cell), part) : part;
  }
  return total;
}

std::vector<ItemId> Expander::sum_parts(int32_t s) {
  const int64_t twins = sum(s).twin.empty() ? 1 : dag_.twins;
  std::vector<ItemId> totals(static_cast<size_t>(dag_.replicas_in_turn * dag_.twins));
  for (int64_t r = 0; r < dag_.replicas_in_turn; ++r)
    for (int64_t t = 0; t < twins; ++t)  // by their numbers along the mesh
      if (!in_turns(s) || first_of_round(s, r) == r)
        totals[place_of(r, static_cast<int32_t>(t))] =
            sum_of_parts(s, static_cast<size_t>(r), static_cast<int32_t>(t));
  if (is_reference()) return {add_replicas(s, std::move(totals))};
  std::erase(totals, ItemId());
  return totals;
}

ItemId Expander::add_replicas(int32_t s, std::vector<ItemId> totals) {
  std::vector<bool> added(totals.size());
  for (size_t r = 0; r < totals.size(); ++r) added[r] = !totals[r].valid();
  // What plays one replica only rounds its term all the same.
  if (totals.size() == 1) {
    if (in_turns(s)) return totals[0];
    if (const PartsInBlocks* how = rounded_in(s, 0)) return add_in_blocks(s, totals, *how);
    const bool rounds = !sum(s).rounds.empty() && type_in(s, 0) != own_type(s);
    return rounds ? add_rounded(s, totals, type_in(s, 0)) : totals[0];
  }
  for (size_t at = in_turns(s) ? 1 : 0; at < sum(s).rounds.size(); ++at) {
    const int64_t size = round(s, at).size, stride = round(s, at).stride;
    const DType type = type_in(s, at);
    for (size_t r = 0; r < totals.size(); ++r) {
      if (added[r] || static_cast<int64_t>(r) / stride % size != 0) continue;
      std::vector<ItemId> members;
      for (int64_t k = 0; k < size; ++k) {
        const size_t member = r + static_cast<size_t>(k * stride);
        members.push_back(totals[member]);
        added[member] = k > 0;
      }
      if (const PartsInBlocks* how = rounded_in(s, at)) {
        totals[r] = add_in_blocks(s, members, *how);
        continue;
      }
      if (type != own_type(s) || info(type).bytes < 4) {
        totals[r] = add_rounded(s, members, type);
        continue;
      }
      for (size_t k = 1; k < members.size(); ++k) totals[r] = add_parts(s, totals[r], members[k]);
    }
  }
  // It plays one replica of several, at all places of the stage.
  for (size_t r = 1; r < totals.size(); ++r)
    if (!added[r]) totals[0] = add_parts(s, totals[0], totals[r]);
  return totals[0];
}

std::vector<ItemId> Expander::reduce(const std::vector<int32_t>& sums,
                                     const std::vector<ItemId>& totals, size_t r, ChunkId region) {
  const Sum& first = sum(sums[0]);
  const DType type = type_in(sums[0], r);
  const bool last = r + 1 == first.rounds.size(), scatter = r < first.cut_rounds();
  const std::vector<ItemId> from = in_type(sums, totals, type, fmt::format(".rounded{}", r));
  Task reduce{.kind = scatter ? InstructionKind::kReduceScatter : InstructionKind::kAllReduce,
              .cell = dag_.items[totals[0].index()].cell,
              .stream = round(sums[0], r).stream,
              .group = SmallVector(round(sums[0], r).axes),
              .fast = round(sums[0], r).fast,
              .scaled = blocks_in(sums[0], r).type,
              .block = blocks_in(sums[0], r).block,
              .slice = round(sums[0], r).slice,
              .reads = SmallVector(from)};
  if (r == 0) reduce.region = region;
  for (size_t i = 0; i < sums.size(); ++i) {
    ValueId value = scatter ? sum(sums[i]).run_after(r) : result_of(sums[i]);
    if (!last || type != own_type(sums[i]))
      value = pseudo_value(fmt::format("{}.level{}", sum(sums[i]).name, r),
                           {type, dag_.graph.value(value).type.shape});
    reduce.writes.push_back(new_item(value, -1, reduce.cell, scatter ? ItemId() : from[i]));
  }
  reduce.label =
      add_label(fmt::format("{} {}", to_string(reduce.kind), and_more(first.name, sums.size())));
  const std::vector<ItemId> done = reduce.writes;
  dag_.tasks.push_back(std::move(reduce));
  return done;
}

void Expander::finish_sums(const std::vector<int32_t>& sums, std::vector<ItemId> totals,
                           ChunkId region) {
  const int32_t cell = dag_.items[totals[0].index()].cell;
  const size_t rounds = is_reference() ? 0 : sum(sums[0]).rounds.size();
  for (size_t r = sum(sums[0]).each_micro ? 1 : 0; r < rounds; ++r)
    totals = reduce(sums, totals, r, region);
  totals = in_type(sums, totals, own_type(sums[0]), ".finished");
  for (size_t i = 0; i < sums.size(); ++i) {
    SumState& state = sums_[static_cast<size_t>(sums[i])];
    state.homes.push_back(cell);
    items_.set(result_of(sums[i]), -1, cell, totals[i]);
    dag_.items[totals[i].index()].sum = sums[i];
  }
}

void Expander::finish_sum(int32_t s) {
  if (!sums_[static_cast<size_t>(s)].homes.empty()) return;
  for (const ItemId total : sum_parts(s)) finish_sums({s}, {total});
}

void Expander::finish_late_sums() {
  std::vector<int32_t> order;
  for (size_t s = 0; s < sums_.size(); ++s)
    if (sums_[s].homes.empty()) order.push_back(static_cast<int32_t>(s));
  const auto last_made = [&](int32_t s) {
    int32_t last = 0;
    for (ValueId use : sum(s).uses) last = std::max(last, dag_.graph.value(use).producer.value);
    return last;
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::pair(last_made(a), a) < std::pair(last_made(b), b);
  });
  const auto chunk_of = [&](int32_t s) {
    const int32_t chunk = chunk_of_[slot(NodeId(static_cast<size_t>(last_made(s))), 0)];
    return chunk < 0 ? ChunkId() : ChunkId(static_cast<size_t>(chunk));
  };
  const auto region_of = [&](int32_t s) {
    const ChunkId chunk = chunk_of(s);
    return chunk.valid() ? dag_.chunks[chunk.index()].tags : std::vector<int32_t>();
  };
  // None of a loss, and of what several cells have added to, which the last one, or all of them,
  // sum over replicas.
  const auto named = [&](int32_t s, int32_t cell) {
    const ChunkId id = dag_.split_sums && sum(s).twin.empty() ? chunk_of(s) : ChunkId();
    if (!id.valid()) return id;
    const Chunk& chunk = dag_.chunks[id.index()];
    return is_backward(chunk.pass) && chunk.cell == cell ? id : ChunkId();
  };
  std::vector<std::vector<ItemId>> totals(sums_.size());
  for (int32_t s : order) totals[static_cast<size_t>(s)] = sum_parts(s);
  for (size_t cell = 0; cell < 2 * dag_.cells.size(); ++cell) {
    const bool cut = cell % 2 == 1;  // of each cell first those that stay whole
    struct Bucket {
      std::vector<int32_t> sums;
      std::vector<ItemId> totals;
      int64_t bytes = 0;
    };
    std::map<std::pair<std::vector<int32_t>, std::vector<int32_t>>, Bucket>
        buckets;  // by further axes and rounds
    const auto flush = [&](Bucket& bucket) {
      if (!bucket.sums.empty())
        finish_sums(bucket.sums, bucket.totals,
                    named(bucket.sums.back(), static_cast<int32_t>(cell / 2)));
      bucket = {};
    };
    for (int32_t s : order) {
      if (cut != sum(s).part.valid()) continue;
      const auto own = std::ranges::find_if(totals[static_cast<size_t>(s)], [&](ItemId total) {
        return static_cast<size_t>(dag_.items[total.index()].cell) == cell / 2;
      });
      if (own == totals[static_cast<size_t>(s)].end()) continue;
      const ItemId total = *own;
      const Item& item = dag_.items[total.index()];
      Bucket& bucket = buckets[{further_axes(dag_, sum(s)), sum(s).rounds}];
      const bool joins =
          bucket.sums.empty() || (own_type(bucket.sums[0]) == own_type(s) &&
                                  sum(bucket.sums[0]).cut_rounds() == sum(s).cut_rounds() &&
                                  region_of(bucket.sums.back()) == region_of(s));
      if (!joins) flush(bucket);
      bucket.sums.push_back(s);
      bucket.totals.push_back(total);
      bucket.bytes += travelling_bytes(s, dag_.graph.value(item.value).type);
      if (bucket.bytes >= bucket_of(s)) flush(bucket);
    }
    for (auto& [axes, bucket] : buckets) flush(bucket);
  }
}

}  // namespace piper
