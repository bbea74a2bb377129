// Chunks -> tasks: the state of one expansion. Private to the dag room.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "piper/plan/instruction.h"
#include "update.h"

namespace piper {

// Finds items by value, microbatch (-1: of the whole step) and cell.
class ItemTable {
 public:
  explicit ItemTable(int64_t micros) : micros_(static_cast<size_t>(micros)) {}

  ItemId find(ValueId value, int32_t micro, int32_t cell) const {
    if (value.index() >= rows_.size()) return {};
    for (const Row& row : rows_[value.index()])
      if (row.cell == cell && (row.of_micros == (micro >= 0)))
        return ids_[row.first + static_cast<size_t>(std::max(micro, 0))];
    return {};
  }
  void set(ValueId value, int32_t micro, int32_t cell, ItemId id) {
    if (value.index() >= rows_.size()) rows_.resize(value.index() + 1);
    auto& rows = rows_[value.index()];
    const bool of_micros = micro >= 0;
    const auto known = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
      return row.cell == cell && row.of_micros == of_micros;
    });
    const size_t first = known == rows.end() ? ids_.size() : known->first;
    if (known == rows.end()) {
      rows.push_back({cell, of_micros, first});
      ids_.resize(first + (of_micros ? micros_ : 1));
    }
    ids_[first + static_cast<size_t>(std::max(micro, 0))] = id;
  }

 private:
  struct Row {
    int32_t cell = 0;
    bool of_micros = false;
    size_t first = 0;  // in ids_
  };
  size_t micros_;
  std::vector<std::vector<Row>> rows_;  // by value
  std::vector<ItemId> ids_;
};

// Adds how many more there are, for labels.
inline std::string and_more(const std::string& first, size_t count) {
  return count > 1 ? fmt::format("{} and {} more", first, count - 1) : first;
}

class Expander {
 public:
  explicit Expander(Dag dag) : dag_(std::move(dag)), items_(dag_.micros()) {}

  void index_updates();
  Result<Dag> run();

 private:
  struct SumState {
    std::vector<std::vector<ItemId>> parts;  // [use × groups + group][replica in turn, or turn]
    std::vector<int32_t> homes;              // the cells that finish it
  };
  struct Contribution {
    ValueId value;
    int32_t sum, use;
  };

  const Sum& sum(int32_t s) const { return dag_.sums[static_cast<size_t>(s)]; }
  const SumRound& round(int32_t s, size_t r) const {
    return dag_.rounds[static_cast<size_t>(sum(s).rounds[r])];
  }
  // Returns the use in whose accumulator another one of the sum is added up.
  size_t accumulator_of(int32_t s, size_t use) const {
    return sum(s).into.empty() ? use : static_cast<size_t>(sum(s).into[use]);
  }
  // Returns whether the squares of a sum that the cell has are those that are added up.
  bool counts_in(int32_t s, int32_t cell) const {
    const std::vector<int32_t>& homes = sums_[static_cast<size_t>(s)].homes;
    bool in_parts = false;  // of which each of them has its own
    for (size_t r = 0; r < sum(s).cut_rounds(); ++r) in_parts |= round(s, r).twins > 1;
    return homes.front() == cell || (in_parts && std::ranges::count(homes, cell) > 0);
  }
  // Returns the value in which a sum is finished.
  ValueId result_of(int32_t s) const { return sum(s).part.valid() ? sum(s).part : sum(s).value; }

  // Microbatches of one class are of one group and of one variant.
  size_t variants() const { return static_cast<size_t>(dag_.variants.count()); }
  size_t class_of(int32_t micro) const {
    return static_cast<size_t>(dag_.group_of_micro(micro)) * variants() +
           static_cast<size_t>(dag_.variants.of(micro));
  }
  // Where lists by node hold what belongs to a node and a class of microbatches.
  size_t slot(NodeId node, size_t of_class) const {
    return node.index() * groups_ * variants() + of_class;
  }
  bool runs_for(const Chunk& chunk, size_t of_class) const {
    const auto has = [](const std::vector<int32_t>& list, size_t number) {
      return list.empty() ||
             std::binary_search(list.begin(), list.end(), static_cast<int32_t>(number));
    };
    return has(chunk.groups, of_class / variants()) && has(chunk.variants, of_class % variants());
  }

  void reserve();

  // ---- Items ----
  ItemId new_item(ValueId value, int32_t micro, int32_t cell, ItemId alias = {}) {
    dag_.items.push_back({.value = value, .micro = micro, .cell = cell, .alias = alias});
    const ItemId id(dag_.items.size() - 1);
    items_.set(value, micro, cell, id);
    return id;
  }
  ItemId find_item(ValueId value, int32_t micro, int32_t cell) const {
    return items_.find(value, micro, cell);
  }
  // Returns a value without a producer in the graph: accumulators and what collectives leave
  // after.
  ValueId pseudo_value(const std::string& name, const TensorType& type) {
    return dag_.graph.add_value({.name = name, .type = type});
  }

  int32_t add_label(std::string label) {
    dag_.labels.push_back(std::move(label));
    return static_cast<int32_t>(dag_.labels.size() - 1);
  }
  // Returns one of the labels of the tasks that bring a value: one, or those of the send and of the
  // receive.
  int32_t bringing_label(ValueId value, std::initializer_list<std::string_view> kinds);

  // ---- Sums ----
  void index_sums();
  // Returns for each node and group of microbatches the chunk of the wanted kind that holds it, of
  // early ones one of the first level; -1: none.
  std::vector<int32_t> chunks_of_nodes(bool early) const;

  // ---- The end of the step, piece by piece ----
  ValueId end_op(const char* op, Attrs attrs, std::vector<ValueId> inputs, TensorType type,
                 const std::string& name);
  ChunkId add_chunk(Chunk chunk) {
    dag_.chunks.push_back(std::move(chunk));
    return ChunkId(dag_.chunks.size() - 1);
  }
  Task end_task(ChunkId id, const std::string& label) {
    return {.pass = TaskPass::kU,
            .chunk = id,
            .cell = dag_.chunks[id.index()].cell,
            .label = add_label(label)};
  }
  // Returns the nodes from `first` on, the last of which makes one of several members of a sum in
  // one cell: into the first one's memory.
  ItemId combine(int32_t s, const std::vector<ItemId>& members, size_t first,
                 const std::string& name);
  // Adds two items of one cell.
  ItemId add_parts(int32_t s, ItemId a, ItemId b);

  // Sums a parameter's gradient: for each use the groups of microbatches in order, then the uses,
  // then the replicas, round by round; the reduction over ranks is left. Parts that several cells
  // hold travel from one to the next: the last finishes the sum, for all that read it. Or the cells
  // are replicas: then each has a total of its own.
  std::vector<ItemId> sum_parts(int32_t s);
  ItemId sum_of_parts(int32_t s, size_t replica, int32_t twin);
  ItemId add_replicas(int32_t s, std::vector<ItemId> totals);
  // One device plays all ranks, or the first.
  bool is_reference() const { return dag_.replicas_in_turn > 1 || dag_.mesh.empty(); }
  // It adds up what one microbatch of each replica of the first round contributes, as these do by
  // a reduction in every microbatch.
  bool in_turns(int32_t s) const { return is_reference() && sum(s).each_micro; }
  // Returns where the total of a replica is in a list of all, and in which replica's place those
  // of its first round are added up.
  size_t place_of(int64_t replica, int32_t twin) const {
    const int64_t stride = dag_.replicas_in_turn == 1 ? 1 : dag_.twin_stride;
    return static_cast<size_t>((replica / stride * dag_.twins + twin) * stride + replica % stride);
  }
  int64_t first_of_round(int32_t s, int64_t replica) const;
  // In turns: the accumulators of a part of a sum, by replica that is the first of its round, and
  // microbatch; in f32 at least.
  std::vector<ItemId> turns_of(int32_t s, size_t u, size_t g, int32_t cell);
  ItemId sum_of_turns(int32_t s, size_t part, size_t replica);
  DType wide_type(int32_t s) const {
    return info(own_type(s)).bytes < 4 ? DType::kF32 : own_type(s);
  }

  // ---- In which type gradients travel ----
  DType own_type(int32_t s) const { return dag_.graph.value(result_of(s)).type.dtype; }
  DType type_in(int32_t s, size_t r) const { return round(s, r).dtype.value_or(own_type(s)); }
  int64_t travelling_bytes(int32_t s, const TensorType& type) const {
    const int64_t elements = num_elements(type.shape);
    if (sum(s).rounds.empty()) return elements * info(own_type(s)).bytes;
    const InBlocks in = blocks_in(s, 0);
    return in.any() ? in.bytes(elements) : elements * info(type_in(s, 0)).bytes;
  }
  // Returns how many bytes a message with this sum holds at least: the entries of `replicate` that
  // add it up may name several numbers.
  int64_t bucket_of(int32_t s) const {
    int64_t bytes = 0;
    for (size_t r = 0; r < sum(s).rounds.size(); ++r) bytes = std::max(bytes, round(s, r).bucket);
    return bytes;
  }
  // Returns in which blocks terms travel in a round, if they do: it leaves a part of the sum.
  InBlocks blocks_in(int32_t s, size_t r) const {
    const SumRound& of = round(s, r);
    return r < sum(s).cut_rounds() ? InBlocks{of.scaled, of.block} : InBlocks();
  }
  ValueId cast(ValueId value, DType type, const std::string& name);
  std::string several(const std::vector<int32_t>& sums, DType type) const;  // for labels
  // Casts several sums of one cell to another type; those that have it already stay.
  std::vector<ItemId> in_type(const std::vector<int32_t>& sums, std::vector<ItemId> items,
                              DType type, const std::string& suffix);
  // Returns a chunk of pass U that casts, and a task of it.
  ChunkId casting_chunk(const std::vector<ValueId>& made, int32_t cell, const std::string& name);
  void add_casts(ChunkId chunk, const std::vector<int32_t>& sums, const std::vector<ItemId>& from,
                 const std::vector<ValueId>& made);
  // Returns what ranks do by a reduction that rounds: the oracle's part of a round, in the first
  // one's memory.
  ItemId add_rounded(int32_t s, const std::vector<ItemId>& members, DType type);
  // Returns the sum of the members' values in their order, each as round() makes it.
  template <class Round>
  ValueId add_all(int32_t s, const std::vector<ItemId>& members, const Round& round);
  // Returns how the term of each replica is rounded in a round of the oracle; null: not in blocks.
  const PartsInBlocks* rounded_in(int32_t s, size_t r) const {
    const std::vector<int32_t>& by_round = sum(s).in_blocks;
    return r < by_round.size() && by_round[r] >= 0
               ? &dag_.in_blocks[static_cast<size_t>(by_round[r])]
               : nullptr;
  }
  ItemId add_in_blocks(int32_t s, const std::vector<ItemId>& members, const PartsInBlocks& how);
  // Returns a replica's term as it travels in the first round.
  ValueId rounded(int32_t s, ValueId term);
  ValueId rounded(int32_t s, ValueId term, const PartsInBlocks& how);

  // Reduces round `r` of several sums, as one message.
  std::vector<ItemId> reduce(const std::vector<int32_t>& sums, const std::vector<ItemId>& totals,
                             size_t r, ChunkId region);

  // Finishes several sums of one cell, with one message a round: theirs are alike. `region`: a
  // chunk of the one whose gradients they are, where an order may name it.
  void finish_sums(const std::vector<int32_t>& sums, std::vector<ItemId> totals,
                   ChunkId region = {});

  void finish_sum(int32_t s);

  // Reduces gradients in the order in which the backward finishes them, joined into buckets. What
  // one region finishes does not wait for another.
  void finish_late_sums();

  void add_transfer(ItemId from, ItemId to);
  // ---- Data flow ----
  // Returns the item in `cell`, sent there if it lives elsewhere.
  ItemId move_to(ItemId from, int32_t cell);

  // Returns the same by way of parts, of which each rank of the axes sends one.
  ItemId move_in_parts(ItemId from, int32_t cell);
  ValueId slice_value(const Item& item);
  ItemId own_part(ItemId whole);
  const std::vector<int32_t>* sliced(const Item& item) const {
    const bool any = item.micro >= 0 && item.value.index() < dag_.sliced.size() &&
                     !dag_.sliced[item.value.index()].empty();
    return any ? &dag_.sliced[item.value.index()] : nullptr;
  }

  // Returns what a sum travels as, made where it is finished.
  ItemId put_sum(int32_t s, NodeId maker);
  // Returns the item that holds `value` for `micro` in `cell`, with the tasks that bring it there.
  ItemId ensure(ValueId id, int32_t micro, int32_t cell);

  // Returns a task of the chunk; `before`: that of the microbatch before this one, or none.
  TaskId add_compute(ChunkId id, int32_t micro, TaskId before);
  std::vector<Task> collectives_of(const Task& host);
  // Adds the collectives within a task.
  void add_collectives(TaskId of);

  ItemId accumulator(int32_t sum, int32_t use, int32_t micro) const;

  // ---- Reductions in every microbatch ----
  // Holds what one task contributes to a parameter's gradient, before it is summed over replicas,
  // as it is and as it travels; the part of it that is left; and what joins the accumulator.
  struct Reduced {
    ValueId whole, travels, part, joins;
  };
  Reduced& reduced(int32_t s, int32_t use);
  ItemId whole_contribution(const Contribution& c, const Task& task);

  // Reduces contributions as the backward makes them, joined into buckets.
  void reduce_contributions(TaskId id);
  void reduce_bucket(const Task& of, const std::vector<Accumulate>& bucket);
  void round_bucket(const Task& of, const std::vector<Accumulate>& bucket);
  ChunkId joining_chunk(const std::vector<Accumulate>& bucket, int32_t cell);

  // ---- The end of the step ----
  Status add_update();

  // The previous version takes the newest's value; the update follows.
  void keep_newest(const Version& version, int32_t cell);
  bool is_copy(ValueId state) const;
  // Returns its own part of a state that lives in parts only.
  ValueId kept_of(ValueId state) const;
  // Gathers a parameter that is kept in parts.
  ItemId gather_whole(ValueId param, int32_t cell);

  // These are for parameters and copies that stay whole and are updated in parts.
  std::vector<const Part*> cut_in_step(int32_t cell, const UpdateIndex& index) const;
  void add_own_parts(int32_t cell, const std::vector<const Part*>& cut);
  // Gathers updated parts back into whole parameters, joined into buckets.
  void gather_updated(int32_t cell, std::vector<const Part*> cut);
  // Gathers or cuts what a chunk of the update reads so.
  void add_exchanges(const Chunk& chunk);

  // Returns a chunk of pass U, once for the step; what it writes first.
  ItemId add_update_task(const Chunk& chunk);

  // Every cell needs the norm and the loss: squares of the parameters' gradients, each from the
  // cell of its first use, and the loss travel in one vector, summed over cells (all but one term
  // are zero, so the sum is exact).
  void share_scalars();
  // Where steps may overlap, cells that are ahead do not wait for the others: if only reports need
  // the vector, only the first cell gets it, and reports.
  void gather_scalars(const ScalarVector& scalars, const std::vector<ItemId>& own);
  bool update_reads(ValueId value) const;  // directly or not
  Reports reports_of(const Reports& all, int32_t cell) const;

  Dag dag_;
  size_t groups_ = 1;  // of microbatches
  bool gathers_scalars_ = false;
  ItemTable items_;
  std::unordered_map<int32_t, int32_t> sum_of_value_;
  std::unordered_map<int32_t, ValueId> state_of_;           // by its next value
  std::unordered_map<int32_t, ValueId> next_of_;            // by state
  std::unordered_map<int32_t, const Part*> part_of_;        // by the whole: see kept_of()
  std::map<std::pair<int32_t, int32_t>, Reduced> reduced_;  // by sum and use
  using BucketKey = std::tuple<int32_t, int32_t, int32_t>;  // its first sum and use, and cell
  std::map<BucketKey, ChunkId> joining_, rounding_;
  std::vector<SumState> sums_;
  std::vector<std::vector<Contribution>> contributions_;       // by chunk
  std::vector<int32_t> chunk_of_;                              // main chunks, by slot()
  std::vector<int32_t> bringing_labels_;                       // by value; -1: none yet
  std::vector<std::optional<std::vector<Task>>> collectives_;  // by chunk: tasks within its own
  std::unordered_map<int32_t, ValueId> slice_of_;  // by value: the own part that is sent
};

}  // namespace piper
