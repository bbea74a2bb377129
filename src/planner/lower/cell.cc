// Lowers the tasks of one cell to the instructions of its role.
#include "cell.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "cell_buffers.h"
#include "credit.h"
#include "delayed_readers.h"
#include "piper/planner/make_dag.h"

namespace piper {
namespace {

// Returns the samples of a microbatch: block replica × microbatches + mb of equal blocks; a replica
// rank adds its coordinate's share.
SampleRange samples_of(const Dag& dag, int32_t micro) {
  SampleRange range;
  range.count = dag.graph.batch / dag.graph.shards;
  range.first = std::max(micro, 0) * range.count;
  range.stride.assign(dag.mesh.size(), 0);
  int64_t stride = range.count * dag.microbatches;
  for (size_t a = dag.mesh.size(); a-- > 0;)
    if (dag.mesh[a].shares_batch()) {
      range.stride[a] = stride;
      stride *= dag.mesh[a].size;
    }
  return range;
}

class CellLowerer {
 public:
  CellLowerer(const Dag& dag, const ProgramPool& pool, Places& places, int32_t cell)
      : dag_(dag), pool_(pool), places_(places), cell_(cell) {}

  // `steps_overlap`: what it makes is decomposed by task, so no instruction moves.
  LoweredCell run(const std::vector<TaskId>& order, const std::vector<Overlap>& overlaps,
                  bool steps_overlap) {
    role_.mesh = mesh_of(dag_.mesh);
    for (const TaskStream& stream : dag_.streams)
      role_.streams.push_back({stream.name, stream.priority, stream.sms});
    for (const Sum& sum : dag_.sums)
      role_.sum_targets.push_back({sum.name, static_cast<int32_t>(sum.uses.size())});
    role_.batch = dag_.graph.batch;
    if (!overlaps.empty()) {
      second_stream_ = static_cast<int32_t>(role_.streams.size());
      role_.streams.push_back({"overlap"});
    }
    reserve(order);
    std::vector<int32_t>& start = starts_;
    size_t pair = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      while (pair < overlaps.size() && at(overlaps[pair].end) <= i) ++pair;
      is_second_ = pair < overlaps.size() && at(overlaps[pair].second) <= i;
      start.push_back(static_cast<int32_t>(role_.body.size()));
      places_.instruction[order[i].index()] = start.back();
      lower_task(dag_.tasks[order[i].index()]);
    }
    start.push_back(static_cast<int32_t>(role_.body.size()));
    for (const Overlap& o : overlaps)
      overlaps_.push_back({start[at(o.first)], start[at(o.second)], start[at(o.end)]});
    for (const auto& [name, item] : dag_.reports[at(cell_)])
      role_.reports.push_back({name, buffer_of(item)});
    buffers_.name_masters();
    find_offloaded();
    if (!steps_overlap) {
      move_communication(order);
      copy_to_host(order);
    }
    wait_for_data(role_);
    for (const LeavingCopy& copy : offload_plan_.leaving)
      if (copy.until < static_cast<int32_t>(role_.body.size())) wait_for(copy.until, copy.copy);
    for (const Overlap& o : overlaps_) fork_and_join(o);
    return {std::move(role_),         std::move(overlaps_),
            std::move(starts_),       std::move(buffers_.gathered),
            std::move(pool_slots_),   std::move(offloaded_),
            std::move(offload_plan_), std::move(credits_)};
  }

 private:
  void reserve(const std::vector<TaskId>& order) {
    size_t instructions = 0, buffers = places_.items_of_cell[at(cell_)];
    for (TaskId id : order) {
      const ChunkPrograms* programs = places_.programs[id.index()];
      instructions += programs ? programs->segments.size() : 1;
      buffers += programs ? programs->inner.size() : 0;
    }
    role_.body.reserve(instructions);
    role_.buffers.reserve(buffers);
  }

  int32_t buffer_of(ItemId id) { return buffers_.of(id); }

  // ---- Instructions ----
  Instruction& add_instruction(InstructionKind kind, const Task& task) {
    Instruction& instruction = role_.body.emplace_back();
    instruction.kind = kind;
    const bool second = is_second_ && task.kind == InstructionKind::kCompute && task.stream == 0;
    instruction.stream = second ? second_stream_ : task.stream;
    instruction.label = print_label(dag_, task);
    instruction.micro = task.micro >= 0 ? static_cast<int32_t>(task.micro % dag_.microbatches) : -1;
    instruction.micros = task.micros;
    instruction.pass = task.kind == InstructionKind::kCompute ? task.pass : TaskPass::kMove;
    if (task.chunk.valid()) instruction.stage = stage_of(dag_.chunks[task.chunk.index()]);
    return instruction;
  }
  int32_t stage_of(const Chunk& chunk) const {
    for (size_t t = 0; t < dag_.region_tags.size(); ++t)
      if (dag_.region_tags[t] == "stage" && chunk.tags[t] != kNoTag) return chunk.tags[t];
    return chunk.pass == TaskPass::kU ? -1 : cell_;
  }

  void lower_task(const Task& task) {
    if (task.within.valid() || gathers_parameters(dag_, task)) return;  // beside computations
    switch (task.kind) {
      case InstructionKind::kCompute:
        return lower_compute(task);
      case InstructionKind::kInput:
        return lower_input(task);
      case InstructionKind::kSend:
        return lower_transfer(task, task.reads);
      case InstructionKind::kRecv:
        return lower_transfer(task, task.writes);
      case InstructionKind::kCopy:
        return lower_copy(task);
      default:
        // Other kinds are between the programs of a task.
        PIPER_CHECK(!info(task.kind).within, "no task of the DAG is of kind '{}'",
                    to_string(task.kind));
        return lower_message(task);
    }
  }

  void lower_input(const Task& task) {
    const Value& value = dag_.graph.value(dag_.items[task.writes[0].index()].value);
    const bool numbers = dag_.items[task.writes[0].index()].value == dag_.graph.sample;
    Instruction& instruction = add_instruction(InstructionKind::kInput, task);
    if (!numbers) instruction.input = value.name;
    instruction.samples = samples_of(dag_, task.micro);
    if (value.batch_dim < 0)
      instruction.samples = {0, dag_.graph.batch, std::vector<int64_t>(dag_.mesh.size())};
    const int32_t buffer = buffer_of(task.writes[0]);
    role_.body.back().args = {buffer};
  }

  void lower_transfer(const Task& task, const SmallVector<ItemId>& items) {
    std::vector<int32_t> args;
    for (ItemId item : items) args.push_back(buffer_of(item));
    Instruction& instruction = add_instruction(task.kind, task);
    instruction.args = std::move(args);
    instruction.peer = dag_.cells[at(task.peer)];
    // A number of its own: that of the send.
    const auto number = static_cast<int32_t>(&task - dag_.tasks.data());
    instruction.communicator = task.kind == InstructionKind::kSend ? number : number - 1;
  }

  // Sums are formed in place.
  void lower_message(const Task& task) {
    const InstructionKind kind = task.kind;
    std::vector<int32_t> args;
    for (size_t i = 0; i < task.reads.size(); ++i) {
      args.push_back(buffer_of(task.reads[i]));
      if (takes_pairs(kind)) args.push_back(buffer_of(task.writes[i]));
    }
    const int32_t group = buffers_.group_of(task.group);
    if (task.slice > 0) return lower_slices(task, args, group);
    Instruction& instruction = add_instruction(kind, task);
    instruction.args = std::move(args);
    instruction.group = group;
    instruction.fast = task.fast;
    instruction.scaled = task.scaled, instruction.block = task.block;
    if (kind != InstructionKind::kAllToAll) return;
    const ValueId from = dag_.items[task.reads[0].index()].value;
    const bool is_own = dag_.graph.value(from).type.shape[0] == 1;  // else runs of all members'
    (is_own ? instruction.dim : instruction.to_dim) = 0;
  }

  // Cuts a sum into messages of at most so many bytes, larger tensors where devices align them.
  void lower_slices(const Task& task, const std::vector<int32_t>& args, int32_t group) {
    constexpr int64_t kAligned = 256;
    std::vector<int32_t> together;
    int64_t bytes = 0;
    const auto emit = [&](std::vector<int32_t> of, int64_t first, int64_t count) {
      if (of.empty()) return;
      Instruction& one = add_instruction(task.kind, task);
      one.args = std::move(of);
      one.group = group;
      one.fast = task.fast;
      one.first = first, one.count = count;
      if (count > 0) one.label += fmt::format(" from {}", first);
    };
    const std::ptrdiff_t step = takes_pairs(task.kind) ? 2 : 1;
    int64_t parts = 1;  // that each message has a stretch of
    for (const int32_t axis : task.group) parts *= step > 1 ? dag_.mesh[at(axis)].size : 1;
    for (auto arg = args.begin(); arg != args.end(); arg += step) {
      const std::vector<int32_t> own(arg, arg + step);
      const TensorType& type = role_.tensor(own.front()).type;
      if (bytes + type.bytes() > task.slice) emit(std::exchange(together, {}), 0, 0), bytes = 0;
      if (type.bytes() <= task.slice) {
        together.insert(together.end(), own.begin(), own.end());
        bytes += type.bytes();
        continue;
      }
      const int64_t elements = num_elements(role_.tensor(own.back()).type.shape),
                    most = std::max(task.slice / parts / kAligned, int64_t{1}) * kAligned /
                           info(type.dtype).bytes;
      if (most >= elements) {
        emit(own, 0, 0);
        continue;
      }
      for (int64_t first = 0; first < elements; first += most)
        emit(own, first, std::min(most, elements - first));
    }
    emit(std::move(together), 0, 0);
  }

  void lower_copy(const Task& task) {
    const std::vector<int32_t> args = {buffer_of(task.reads[0]), buffer_of(task.writes[0])};
    role_.tensor(args[1]).previous_of = args[0];
    add_instruction(InstructionKind::kCopy, task).args = args;
  }

  // Finished sums that a task reads, by the buffers they are in.
  using SumsRead = std::unordered_map<int32_t, int32_t>;

  // Adds one buffer for each value that passes between segments.
  std::vector<int32_t> add_inner(const ChunkPrograms& programs, const Task& task) {
    std::vector<int32_t> inner;
    inner.reserve(programs.inner.size());
    for (ValueId value : programs.inner) inner.push_back(buffers_.add(value, task.micro));
    return inner;
  }

  SumsRead sums_read_by(const Task& task) {
    SumsRead sums;
    for (ItemId item : task.reads)
      if (const int32_t sum = dag_.items[item.index()].sum; sum >= 0) sums[buffer_of(item)] = sum;
    return sums;
  }

  void lower_compute(const Task& task) {
    const ChunkPrograms& programs = *places_.programs[at(&task - dag_.tasks.data())];
    const std::vector<int32_t> inner = add_inner(programs, task);
    SumsRead sums = sums_read_by(task);
    for (const Segment& segment : programs.segments) {
      std::vector<int32_t> args;
      args.reserve(segment.args.size());
      for (const SegmentArg& arg : segment.args) args.push_back(argument_buffer(task, arg, inner));
      if (!segment.collective.nodes.empty()) {
        take_own_sums(segment.collective, args, sums);
        lower_collective(task, segment.collective, std::move(args));
        continue;
      }
      const int32_t program = program_of(segment.program);
      Instruction& instruction = add_instruction(InstructionKind::kCompute, task);
      instruction.program = program;
      instruction.args = std::move(args);
      declare_sums(task, segment, programs.first, sums, instruction);
    }
  }
  // Its own block of a finished sum is read as one.
  void take_own_sums(const ChunkCollective& collective, const std::vector<int32_t>& args,
                     SumsRead& sums) const {
    if (dag_.graph.node(collective.nodes[0]).op != "OwnBlock") return;
    for (size_t a = 0; a + 1 < args.size(); a += 2)
      if (const auto sum = sums.find(args[a]); sum != sums.end())
        sums.insert_or_assign(args[a + 1], sum->second);
  }
  // Lowers a collective between two programs of a task. `args`: what its collectives read and make,
  // in turn.
  void lower_collective(const Task& task, const ChunkCollective& collective,
                        std::vector<int32_t> args) {
    const Node& node = dag_.graph.node(collective.nodes[0]);
    const int32_t group = buffers_.group_of(mesh_axes_of(node));
    if (node.op == "OwnFirst") {
      Instruction& one = add_instruction(InstructionKind::kPosition, task);
      one.pass = TaskPass::kMove;
      one.args = std::move(args);
      one.group = group;
      one.outer = node.attrs.integer("size");
      one.turn = static_cast<int32_t>(node.attrs.integer("turn", 0));
      one.mirrored = node.attrs.integer("mirrored", 0) != 0;
      return;
    }
    const InstructionDef& def = *find_instruction(node.op);
    const InstructionKind kind = def.kind;
    const bool reduces = def.args == ArgForm::kPieces;
    for (size_t a = 0; reduces && a < args.size(); ++a) {
      if (args[a] != args[a + 1])
        add_instruction(InstructionKind::kCopy, task).args = {args[a], args[a + 1]};
      args.erase(args.begin() + static_cast<std::ptrdiff_t>(a));
    }
    if (takes_index(kind)) std::swap(args[1], args[2]);  // what is made, then the index
    Instruction& one = add_instruction(kind, task);
    if (collective.stream != 0) one.stream = collective.stream;
    one.label += fmt::format(" {}", to_string(kind));
    if (collective.nodes.size() > 1) one.label += fmt::format(" x {}", collective.nodes.size());
    one.pass = TaskPass::kMove;
    one.args = std::move(args);
    one.group = group;
    if (def.maximum_op != nullptr && node.op == def.maximum_op) one.reduction = Reduction::kMax;
    one.turn = static_cast<int32_t>(node.attrs.integer("turn", 0));
    if (reduces || def.args == ArgForm::kTurns) return;
    one.dim = static_cast<int32_t>(node.attrs.integer("dim"));
    one.outer = node.attrs.integer("outer");
    one.to_dim = static_cast<int32_t>(node.attrs.integer("to_dim", -1));
    one.to_outer = node.attrs.integer("to_outer", 1);
    one.mirrored = node.attrs.integer("mirrored", 0) != 0;
    one.to_mirrored = node.attrs.integer("to_mirrored", 0) != 0;
    one.owned = node.attrs.integer("owned", 0);
  }
  int32_t argument_buffer(const Task& task, const SegmentArg& arg,
                          const std::vector<int32_t>& inner) {
    const auto i = at(arg.index);
    switch (arg.kind) {
      case SegmentArg::Kind::kRead:
        return buffer_of(task.reads[i]);
      case SegmentArg::Kind::kWrite:
        return buffer_of(task.writes[i]);
      case SegmentArg::Kind::kInner:
        return inner[i];
      case SegmentArg::Kind::kSum:
        return buffer_of(task.accumulates[i].into);
    }
    return -1;
  }
  int32_t program_of(int32_t pooled) {
    auto [it, is_new] = programs_.try_emplace(pooled, static_cast<int32_t>(role_.programs.size()));
    if (is_new) role_.programs.push_back(pool_.programs()[at(pooled)]);
    return it->second;
  }

  // Declares what the verifier sums: contributions made here, sums of parts, and finished sums that
  // are read.
  void declare_sums(const Task& task, const Segment& segment, const std::vector<bool>& first,
                    const SumsRead& sums, Instruction& instruction) {
    if (segment.sums.empty() && task.combines.empty() && sums.empty()) return;
    std::unordered_map<int32_t, int32_t> first_args;  // by buffer
    for (size_t a = 0; a < instruction.args.size(); ++a)
      first_args.emplace(instruction.args[a], static_cast<int32_t>(a));
    const auto arg_of = [&](int32_t buffer) {
      const auto arg = first_args.find(buffer);
      return arg == first_args.end() ? -1 : arg->second;
    };
    instruction.contributions.reserve(segment.sums.size());
    for (size_t i = 0; i < segment.sums.size(); ++i) {
      const int32_t s = segment.sums[i];
      const Accumulate& a = task.accumulates[at(s)];
      if (a.reduced.valid()) {
        const int32_t into = arg_of(buffer_of(a.into)), from = arg_of(buffer_of(a.reduced));
        instruction.combines.push_back({into, {from}});
        if (!first[at(s)]) instruction.combines.back().from = {into, from};
        continue;
      }
      instruction.contributions.push_back({segment.sum_args[i], a.sum, a.use, !first[at(s)]});
    }
    if (!instruction.contributions.empty()) instruction.samples = samples_of(dag_, task.micro);
    if (task.combines.empty() && sums.empty()) return;
    std::set<int32_t> combined;
    for (const Combine& c : task.combines) {
      SumCombine combine;
      combine.arg = arg_of(buffer_of(c.into));
      for (ItemId from : c.from) combine.from.push_back(arg_of(buffer_of(from)));
      if (combine.arg < 0) continue;
      combined.insert(combine.from.begin(), combine.from.end());
      instruction.combines.push_back(std::move(combine));
    }
    for (size_t a = 0; a < instruction.args.size(); ++a) {
      const auto arg = static_cast<int32_t>(a);
      const auto sum = sums.find(instruction.args[a]);
      if (sum != sums.end() && !combined.count(arg) && arg_of(sum->first) == arg)
        instruction.sum_reads.push_back({arg, sum->second});
    }
  }

  void move_communication(const std::vector<TaskId>& order) {
    const std::vector<bool> placed = placed_reductions(dag_, order);
    std::vector<bool> stays(role_.body.size());
    for (size_t i = 0; i < order.size(); ++i)
      for (int32_t k = starts_[i]; placed[i] && k < starts_[i + 1]; ++k) stays[at(k)] = true;
    follow(order, raise_reductions(role_, dag_, overlaps_, stays));
    follow(order, order_messages(role_, dag_, overlaps_, credits_));
    follow(order, delay_readers(role_, dag_, overlaps_));
    if (buffers_.gathered.empty()) return;
    follow(order, insert_gathers(role_, buffers_.gathered, dag_, pool_slots_));
  }
  void find_offloaded() {
    offloaded_.resize(dag_.offloads.size());
    for (size_t o = 0; o < offloaded_.size(); ++o)
      for (ItemId item : dag_.offloads[o].items)
        if (dag_.items[item.index()].cell == cell_) offloaded_[o].push_back(buffer_of(item));
  }
  void copy_to_host(const std::vector<TaskId>& order) {
    if (dag_.offloads.empty()) return;
    follow(order, insert_copies(role_, dag_, offloaded_, overlaps_, offload_plan_));
  }
  // Moves positions to where their instructions have moved.
  void follow(const std::vector<TaskId>& order, const std::vector<int32_t>& moved) {
    const auto now = [&](int32_t i) { return moved[at(i)]; };
    for (TaskId task : order) {
      int32_t& position = places_.instruction[task.index()];
      if (at(position) < moved.size()) position = now(position);
    }
    for (Overlap& o : overlaps_) o = {now(o.first), now(o.second), now(o.end - 1) + 1};
  }

  void wait_for(int32_t later, int32_t earlier) {
    std::vector<int32_t>& waits = role_.body[at(later)].waits;
    const auto next = std::lower_bound(waits.begin(), waits.end(), earlier);
    if (next == waits.end() || *next != earlier) waits.insert(next, earlier);
  }

  // The second tasks of an overlap begin after all before it, and all after it waits for them, so
  // that memory may pass from one stream to the other.
  void fork_and_join(const Overlap& overlap) {
    const auto on = [&](int32_t i, int32_t stream) { return role_.body[at(i)].stream == stream; };
    int32_t before = overlap.first - 1, first = overlap.second, last = overlap.end - 1;
    while (before >= 0 && !on(before, 0)) --before;
    while (first <= last && !on(first, second_stream_)) ++first;
    while (last >= first && !on(last, second_stream_)) --last;
    if (first > last) return;  // all of it has streams of its own
    if (before >= 0) wait_for(first, before);
    for (int32_t after = overlap.end; after < static_cast<int32_t>(role_.body.size()); ++after)
      if (on(after, 0)) return wait_for(after, last);
  }

  const Dag& dag_;
  const ProgramPool& pool_;
  Places& places_;
  int32_t cell_;
  RoleProgram role_;
  CellBuffers buffers_{dag_, places_, role_};
  int32_t second_stream_ = 0;
  bool is_second_ = false;         // the task being lowered is one of an overlap's second
  std::vector<Overlap> overlaps_;  // by instruction
  std::vector<int32_t> starts_;    // by task in order: its first instruction, and the end
  std::vector<Slot> pool_slots_;
  OffloadPlan offload_plan_;
  std::vector<CreditCount> credits_;
  std::vector<std::vector<int32_t>> offloaded_;    // buffers, by Dag::offloads
  std::unordered_map<int32_t, int32_t> programs_;  // by pooled program
};

}  // namespace

LoweredCell lower_cell(const Dag& dag, const Schedule& schedule, const ProgramPool& pool,
                       Places& places, int32_t cell) {
  const auto c = at(cell);
  const bool steps_overlap = !schedule.body.empty();
  const std::vector<Overlap> none;  // in one of two steps
  return CellLowerer(dag, pool, places, cell)
      .run(schedule.order[c], steps_overlap ? none : schedule.overlaps[c], steps_overlap);
}

}  // namespace piper
