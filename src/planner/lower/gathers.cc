// Inserts the gathers of parameters that replicas share, and frees them after their last use.
#include "gathers.h"

#include <algorithm>
#include <map>
#include <set>

#include "at.h"
#include "piper/base/memory.h"
#include "piper/plan/flops.h"
#include "segments.h"

namespace piper {
namespace {

class Inserter {
 public:
  Inserter(RoleProgram& role, const std::vector<GatheredBuffer>& gathered, const Dag& dag,
           std::vector<Slot>& pool)
      : role_(role), dag_(dag), pool_(pool) {
    for (const GatheredBuffer& each : gathered) {
      part_of_[each.whole] = each;
      distance_ = std::max(distance_, at(task_of(each.whole).distance));
    }
  }

  std::vector<int32_t> run() {
    find_updates();
    form_buckets();
    assign_slots();
    load_into_pool();
    int32_t most = 1;
    for (const Instruction& one : role_.body) most = std::max(most, one.ahead);
    for (int32_t ahead = 0; ahead <= most; ++ahead) load_and_keep(ahead);
    std::stable_sort(loads_.begin(), loads_.end(),
                     [](const Load& a, const Load& b) { return a.need < b.need; });
    issue();
    std::vector<std::pair<int64_t, Instruction>> added;
    for (const Load& load : loads_) added.emplace_back(load.issue, gather(load));
    return insert_before(role_.body, std::move(added));
  }

 private:
  struct Bucket {
    std::vector<int32_t> buffers;  // whole parameters
    Gather when;
    int64_t bytes = 0;
    size_t slot = 0;  // Gather::kPass
  };
  struct Load {
    std::vector<int32_t> buffers;  // where to
    int32_t ahead = 0;             // of the instructions that read them: of which step they are
    int64_t need = 0;              // the first of these
    int64_t free_after = -1;       // the last one that reads what lay in their memory
    int64_t issue = 0;             // stands just before this one
  };

  // Finds updates of parts. Where steps overlap, the next step reads parts that this one updates.
  void find_updates() {
    std::map<int32_t, std::vector<int32_t>> wholes;  // by part
    for (const auto& [whole, own] : part_of_) wholes[own.part].push_back(whole);
    for (size_t i = 0; i < role_.body.size(); ++i) {
      const Instruction& one = role_.body[i];
      if (one.ahead > 0) begins_.push_back(static_cast<int64_t>(i));
      for (size_t a = 0; a < one.args.size() && one.kind == InstructionKind::kCompute; ++a)
        if (const auto found = wholes.find(one.args[a]);
            found != wholes.end() && role_.programs[at(one.program)].arg_written[a])
          for (int32_t whole : found->second) updated_[whole] = static_cast<int64_t>(i);
    }
  }
  // Returns which instruction of the next step is the first after the update; -1: none, or there is
  // no update.
  int64_t first_after_update(int32_t buffer) const {
    const auto found = updated_.find(buffer);
    if (found == updated_.end()) return -1;
    const auto next = std::ranges::lower_bound(begins_, found->second);
    return next == begins_.end() ? -1 : *next;
  }

  const Task& task_of(int32_t buffer) const { return dag_.tasks[part_of_.at(buffer).task.index()]; }
  // What may share a bucket: when, group of ranks, stream, distance, what `fuse` has joined,
  // and from where on the next step may read it.
  using Key =
      std::tuple<Gather, int32_t, int32_t, int32_t, TaskId, Scaled, int64_t, int64_t, int64_t>;
  Key key_of(int32_t buffer) const {
    const GatheredBuffer& own = part_of_.at(buffer);
    const Task& task = task_of(buffer);
    return {own.when,
            own.group,
            task.stream,
            task.distance,
            task.writes.size() > 1 ? own.task : TaskId(),
            own.in.type,
            own.in.block,
            own.bucket,
            first_after_update(buffer)};
  }

  // Forms buckets in order of first use; what one instruction uses first of one group stays
  // together.
  void form_buckets() {
    needs_.resize(role_.body.size());
    std::map<int32_t, size_t> bucket_of;  // by buffer
    std::map<Key, size_t> open;
    for (size_t i = 0; i < role_.body.size(); ++i) {
      std::set<size_t> needs;
      for (int32_t arg : role_.body[i].args) {
        if (!part_of_.contains(arg)) continue;
        if (!bucket_of.contains(arg)) {
          const auto [known, is_new] = open.try_emplace(key_of(arg), buckets_.size());
          if (is_new) buckets_.push_back({{}, part_of_[arg].when});
          bucket_of[arg] = known->second;
          buckets_[known->second].buffers.push_back(arg);
          buckets_[known->second].bytes += role_.tensor(arg).type.bytes();
        }
        needs.insert(bucket_of[arg]);
      }
      needs_[i].assign(needs.begin(), needs.end());
      std::erase_if(open, [&](const auto& each) {
        const bool joined = std::get<TaskId>(each.first).valid();
        const int64_t least = part_of_.at(buckets_[each.second].buffers[0]).bucket;
        return !joined && buckets_[each.second].bytes >= least;
      });
    }
  }

  // Assigns prefetch + 1 slots, taken in turn, and one more for what an instruction needs beside
  // them.
  void assign_slots() {
    std::vector<std::set<size_t>> together(buckets_.size());
    for (const auto& needs : needs_)
      for (size_t a : needs) together[a].insert(needs.begin(), needs.end());
    const auto turns = std::count_if(buckets_.begin(), buckets_.end(), [](const Bucket& bucket) {
      return bucket.when == Gather::kPass;
    });
    const size_t turn = std::min(distance_ + 1, at(turns));
    pool_.resize(turn);
    std::vector<std::set<size_t>> held(turn);  // by slot
    size_t next = 0;
    for (size_t b = 0; b < buckets_.size(); ++b) {
      if (buckets_[b].when != Gather::kPass) continue;
      const auto is_free = [&](size_t slot) {
        return std::none_of(held[slot].begin(), held[slot].end(),
                            [&](size_t other) { return together[b].contains(other); });
      };
      size_t slot = next++ % turn, tried = 0;
      for (; tried < held.size() && !is_free(slot); ++tried) slot = (slot + 1) % held.size();
      if (tried == held.size()) {
        slot = held.size();
        held.emplace_back();
        pool_.emplace_back();
      }
      held[slot].insert(b);
      buckets_[b].slot = slot;
      int64_t offset = 0;
      for (int32_t buffer : buckets_[b].buffers) {
        pool_[slot].buffers.emplace_back(buffer, offset);
        offset += align_up(role_.tensor(buffer).type.bytes());
      }
      pool_[slot].bytes = std::max(pool_[slot].bytes, offset);
    }
  }

  // A bucket that is still in its slot is not gathered again. For the next step it is another one.
  void load_into_pool() {
    const std::pair<int64_t, int32_t> nothing{-1, 0};
    std::vector<std::pair<int64_t, int32_t>> holds(pool_.size(), nothing);
    std::vector<int64_t> last_use(pool_.size(), -1);
    for (size_t i = 0; i < needs_.size(); ++i)
      for (size_t b : needs_[i]) {
        if (buckets_[b].when != Gather::kPass) continue;
        const size_t slot = buckets_[b].slot;
        const int32_t ahead = role_.body[i].ahead;
        const std::pair wanted{static_cast<int64_t>(b), ahead};
        if (holds[slot] != wanted)
          loads_.push_back({buckets_[b].buffers, ahead, static_cast<int64_t>(i), last_use[slot]});
        holds[slot] = wanted;
        last_use[slot] = static_cast<int64_t>(i);
      }
  }

  // Loads a parameter and keeps it to the end of the step, or as long as some microbatch that has
  // used it will do so again: for the step under way, or in the same body for the next.
  void load_and_keep(int32_t ahead) {
    std::map<std::pair<size_t, int32_t>, size_t> last;  // by bucket and microbatch
    for (size_t i = 0; i < needs_.size(); ++i)
      for (size_t b : needs_[i])
        if (role_.body[i].ahead == ahead) last[{b, role_.body[i].micro}] = i;
    std::vector<std::set<int32_t>> in_flight(buckets_.size());
    std::vector<std::vector<int32_t>> now(buckets_.size());  // the buffers; empty: dropped
    std::vector<bool>& used = kept_before_;
    used.resize(buckets_.size());
    for (size_t i = 0; i < needs_.size(); ++i)
      for (size_t b : needs_[i]) {
        if (role_.body[i].ahead != ahead || buckets_[b].when == Gather::kPass) continue;
        if (now[b].empty()) {
          now[b] = used[b] ? copies_of(buckets_[b].buffers) : buckets_[b].buffers;
          used[b] = true;
          loads_.push_back({now[b], ahead, static_cast<int64_t>(i)});
        }
        for (int32_t& arg : role_.body[i].args) {
          const auto& whole = buckets_[b].buffers;
          const auto found = std::find(whole.begin(), whole.end(), arg);
          if (found != whole.end()) arg = now[b][at(found - whole.begin())];
        }
        const int32_t micro = role_.body[i].micro;
        if (last[{b, micro}] > i)
          in_flight[b].insert(micro);
        else
          in_flight[b].erase(micro);
        if (buckets_[b].when != Gather::kStep && in_flight[b].empty()) now[b].clear();
      }
  }
  std::vector<int32_t> copies_of(const std::vector<int32_t>& buffers) {
    std::vector<int32_t> copies;
    for (int32_t buffer : buffers) {
      const Buffer copy = role_.buffers[at(buffer)];
      copies.push_back(static_cast<int32_t>(role_.buffers.size()));
      part_of_[copies.back()] = part_of_[buffer];
      role_.buffers.push_back(copy);
    }
    return copies;
  }

  // Issues so many loads ahead of the one that is needed, once the memory is free; those of one
  // distance in order.
  void issue() {
    std::map<size_t, int64_t> last;  // by distance
    for (size_t k = 0; k < loads_.size(); ++k) {
      const size_t ahead = at(task_of(loads_[k].buffers[0]).distance);
      const int64_t wanted = k < ahead ? 0 : loads_[k - ahead].need;
      loads_[k].issue = std::max({wanted, loads_[k].free_after + 1, last[ahead]});
      for (int32_t buffer : loads_[k].buffers)
        if (const auto update = updated_.find(buffer);
            update != updated_.end() && update->second < loads_[k].need)
          loads_[k].issue = std::max(loads_[k].issue, update->second + 1);
      last[ahead] = loads_[k].issue;
    }
    std::stable_sort(loads_.begin(), loads_.end(),
                     [](const Load& a, const Load& b) { return a.issue < b.issue; });
  }

  Instruction gather(const Load& load) {
    Instruction one{.kind = InstructionKind::kAllGather,
                    .pass = TaskPass::kMove,
                    .stream = task_of(load.buffers[0]).stream,
                    .group = part_of_[load.buffers[0]].group,
                    .scaled = part_of_[load.buffers[0]].in.type,
                    .block = part_of_[load.buffers[0]].in.block,
                    .ahead = load.ahead};
    for (int32_t buffer : load.buffers) {
      one.args.push_back(part_of_[buffer].part);
      one.args.push_back(buffer);
    }
    const Tensor& first = role_.tensor(load.buffers[0]);
    one.label = fmt::format(
        "all_gather {}{}", first.param,
        load.buffers.size() > 1 ? fmt::format(" and {} more", load.buffers.size() - 1) : "");
    return one;
  }

  RoleProgram& role_;
  const Dag& dag_;
  std::vector<Slot>& pool_;
  std::map<int32_t, GatheredBuffer> part_of_;  // by whole buffer
  size_t distance_ = 0;                        // so many buckets ahead at most
  std::vector<Bucket> buckets_;
  std::vector<std::vector<size_t>> needs_;  // by instruction: buckets, ascending
  std::vector<Load> loads_;
  std::map<int32_t, int64_t> updated_;  // by whole buffer: what updates its part
  std::vector<int64_t> begins_;         // instructions of the next step
  std::vector<bool> kept_before_;       // by bucket: its own buffers have held it
};

}  // namespace

bool rises(const RoleProgram& role, const Instruction& one, const Dag& dag) {
  if (one.kind == InstructionKind::kCompute)
    return one.pass == TaskPass::kU && (one.micro >= 0 || !one.combines.empty());
  if (!info(one.kind).adds) return false;
  const auto& axes = role.groups[at(one.group)].axes;
  const auto sharded = [&](int32_t axis) { return dag.mesh[at(axis)].sharded; };
  const bool of_values = one.micro >= 0 && std::all_of(axes.begin(), axes.end(), sharded);
  return !of_values && !is_over_cells(dag, axes);
}

ProgramProducts::ProgramProducts(const RoleProgram& role) : have_(role.programs.size()) {
  for (size_t p = 0; p < have_.size(); ++p)
    have_[p] = std::ranges::any_of(role.programs[p].ops, [&](const ProgramOp& op) {
      const Result<OpWork> work = work_of(role.programs[p], op);
      return !work || work->kind != OpWork::kElements;
    });
  if (std::ranges::count(have_, true) == 0) have_.clear();
}

bool ProgramProducts::are_in(const Instruction& one) const {
  return one.kind == InstructionKind::kCompute && (have_.empty() || have_[at(one.program)]);
}

std::vector<int64_t> ends_of_overlaps(const std::vector<Overlap>& overlaps, size_t instructions) {
  std::vector<int64_t> ends(instructions, -1);
  for (const Overlap& o : overlaps)
    std::fill(ends.begin() + o.first, ends.begin() + o.end, int64_t{o.end} - 1);
  return ends;
}

std::vector<bool> placed_reductions(const Dag& dag, const std::vector<TaskId>& tasks) {
  std::vector<bool> placed;
  for (TaskId id : tasks) {
    const Task& task = dag.tasks[id.index()];
    placed.push_back(task.region.valid() && info(task.kind).adds);
  }
  return placed;
}

std::vector<int32_t> raise_reductions(RoleProgram& role, const Dag& dag,
                                      const std::vector<Overlap>& overlaps,
                                      const std::vector<bool>& stays) {
  // Each instruction's place: after another, in order. Nothing enters or leaves an overlap.
  std::vector<std::pair<int64_t, int64_t>> order;
  std::vector<int64_t> last(role.buffers.size(), -1);  // by buffer: behind what its last use stands
  const std::vector<int64_t> ends = ends_of_overlaps(overlaps, role.body.size());
  for (size_t i = 0; i < role.body.size(); ++i) {
    const Instruction& one = role.body[i];
    int64_t behind = static_cast<int64_t>(i);
    const bool is_placed = i < stays.size() && stays[i];
    if (ends[i] < 0 && !is_placed && rises(role, one, dag)) {
      behind = -1;
      for (int32_t arg : one.args) behind = std::max(behind, last[at(arg)]);
      if (behind >= 0) behind = std::max(behind, ends[at(behind)]);
    }
    for (int32_t arg : one.args) last[at(arg)] = behind;
    order.emplace_back(behind, static_cast<int64_t>(i));
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    const bool stays_a = a.first == a.second, stays_b = b.first == b.second;
    return std::tuple(a.first, !stays_a, a.second) < std::tuple(b.first, !stays_b, b.second);
  });
  std::vector<Instruction> body;
  body.reserve(role.body.size());
  std::vector<int32_t> moved(role.body.size());
  for (const auto& [behind, i] : order) {
    moved[at(i)] = static_cast<int32_t>(body.size());
    body.push_back(std::move(role.body[at(i)]));
  }
  role.body = std::move(body);
  return moved;
}

std::vector<int32_t> insert_before(std::vector<Instruction>& body,
                                   std::vector<std::pair<int64_t, Instruction>> added) {
  std::vector<Instruction> all;
  std::vector<int32_t> moved;
  all.reserve(body.size() + added.size());
  size_t next = 0;
  for (size_t i = 0; i <= body.size(); ++i) {
    for (; next < added.size() && added[next].first == static_cast<int64_t>(i); ++next)
      all.push_back(std::move(added[next].second));
    if (i == body.size()) break;
    moved.push_back(static_cast<int32_t>(all.size()));
    all.push_back(std::move(body[i]));
  }
  body = std::move(all);
  return moved;
}

std::vector<int32_t> insert_gathers(RoleProgram& role, const std::vector<GatheredBuffer>& gathered,
                                    const Dag& dag, std::vector<Slot>& pool) {
  return Inserter(role, gathered, dag, pool).run();
}

}  // namespace piper
