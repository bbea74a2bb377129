// Inserts the copies between device and host that offload asks for.
#include "offload.h"

#include <algorithm>
#include <map>

#include "at.h"
#include "gathers.h"

namespace piper {
namespace {

class Copier {
 public:
  Copier(RoleProgram& role, const Dag& dag, const std::vector<Overlap>& overlaps, OffloadPlan& plan)
      : role_(role), dag_(dag), overlaps_(overlaps), plan_(plan) {
    plan.counts.resize(dag.offloads.size());
    find_tasks();
    accesses_.resize(role.buffers.size());
    for (size_t i = 0; i < role.body.size(); ++i)
      for (int32_t arg : role.body[i].args)
        if (accesses_[at(arg)].empty() || accesses_[at(arg)].back() != static_cast<int64_t>(i))
          accesses_[at(arg)].push_back(static_cast<int64_t>(i));
  }

  // Notes until when what leaves the device is still there.
  void note_leaving(const std::vector<int32_t>& moved) {
    const auto length = static_cast<int32_t>(role_.body.size());
    for (size_t c = 0; c < copies_.size(); ++c)
      if (copies_[c].until >= 0)
        plan_.leaving.push_back(
            {static_cast<int32_t>(copies_[c].before) + static_cast<int32_t>(c),
             at(copies_[c].until) < moved.size() ? moved[at(copies_[c].until)] : length});
  }

  std::vector<int32_t> run(const std::vector<std::vector<int32_t>>& buffers) {
    for (size_t o = 0; o < dag_.offloads.size(); ++o) {
      if (dag_.offloads[o].parameters)
        move_parameters(dag_.offloads[o], plan_.counts[o]);
      else if (dag_.offloads[o].optimizer)
        move_states(dag_.offloads[o], plan_.counts[o]);
      else
        for (int32_t buffer : buffers[o]) move_kept(buffer, dag_.offloads[o], plan_.counts[o]);
    }
    std::stable_sort(copies_.begin(), copies_.end(), [](const Copy& a, const Copy& b) {
      return std::pair(a.before, a.until < 0) < std::pair(b.before, b.until < 0);
    });
    std::vector<std::pair<int64_t, Instruction>> added;
    for (Copy& copy : copies_) added.emplace_back(copy.before, std::move(copy.instruction));
    const std::vector<int32_t> moved = insert_before(role_.body, std::move(added));
    note_leaving(moved);
    return moved;
  }

 private:
  struct Copy {
    int64_t before = 0;  // this instruction; it belongs to the step of the one it is made with
    int64_t until = -1;  // of one that leaves: waited for by this instruction
    Instruction instruction;
  };

  // ---- Compute tasks of the microbatches ----
  void find_tasks() {
    const std::string* last = nullptr;
    for (size_t i = 0; i < role_.body.size(); ++i) {
      const Instruction& one = role_.body[i];
      if (is_task(one) && (!last || *last != one.label)) {
        starts_.push_back(static_cast<int64_t>(i));
        last = &one.label;
      }
      task_of_.push_back(static_cast<int64_t>(starts_.size()) - 1);
      if (one.kind == InstructionKind::kCompute) programs_.push_back(static_cast<int64_t>(i));
    }
  }
  static bool is_task(const Instruction& one) {
    return one.kind == InstructionKind::kCompute && is_ordered(one.pass);
  }
  static bool is_backward(const Instruction& one) {
    return is_task(one) && one.pass != TaskPass::kF;
  }
  int64_t start_of(int64_t task) const {
    if (task >= static_cast<int64_t>(starts_.size())) return static_cast<int64_t>(task_of_.size());
    return starts_[at(std::max<int64_t>(task, 0))];
  }

  // ---- Activations ----
  // Returns how many runs of the body after `first` of a step its `i` comes.
  int64_t runs_between(int64_t first, int64_t i) const {
    return role_.body[at(first)].ahead - role_.body[at(i)].ahead;
  }
  // Returns a buffer's uses in the order of its step: what belongs to later ones comes before the
  // rest, which is in later runs of the body.
  std::vector<int64_t> uses_in_time(int32_t buffer) const {
    std::vector<int64_t> uses = accesses_[at(buffer)];
    std::stable_sort(uses.begin(), uses.end(), [&](int64_t a, int64_t b) {
      return role_.body[at(a)].ahead > role_.body[at(b)].ahead;
    });
    return uses;
  }

  // Keeps a value on the host from its last use in the forward until its first in the backward.
  void move_kept(int32_t buffer, const Offload& offload, OffloadCount& count) {
    const std::vector<int64_t> uses = uses_in_time(buffer);
    const auto back = std::find_if(uses.begin(), uses.end(),
                                   [&](int64_t i) { return is_backward(role_.body[at(i)]); });
    if (back == uses.begin() || back == uses.end()) return;
    const int64_t leaves = *std::prev(back), needed = *back;
    const int64_t between = runs_between(leaves, needed) * std::ssize(starts_);
    const int64_t gone = task_of_[at(leaves)] + offload.in_flight,
                  comes = task_of_[at(needed)] + between - offload.distance;
    const int64_t bytes = role_.tensor(buffer).type.bytes();
    if (comes - gone < 2) {  // no task in between during which it is away
      ++count.stay;
      return;
    }
    ++count.values;
    count.bytes += bytes;
    const int32_t host = add_buffer(buffer, ".host"), again = add_buffer(buffer, ".again");
    role_.tensor(host).host = true;
    for (auto use = back; use != uses.end(); ++use)
      for (int32_t& arg : role_.body[at(*use)].args)
        if (arg == buffer) arg = again;
    const int32_t micro = role_.body[at(needed)].micro;
    // A run of the body does not begin before all copies of the one before are complete.
    copy(buffer, host, leaves + 1, start_of(gone + 1), offload, micro, role_.body[at(leaves)]);
    copy(host, again, start_of(comes - between), -1, offload, micro, role_.body[at(needed)]);
  }

  // Returns whether an entry speaks of a parameter, or of its states: by name, or as of the rest.
  bool speaks_of(const Offload& offload, std::string_view param) const {
    const auto names = [&](const Offload& one) {
      return one.optimizer == offload.optimizer && one.parameters == offload.parameters &&
             std::ranges::binary_search(one.names, param);
    };
    return offload.names.empty() ? std::ranges::none_of(dag_.offloads, names) : names(offload);
  }

  // ---- States ----
  // Keeps on the host the states that only one instruction reads and writes, and copies them for
  // it.
  void move_states(const Offload& offload, OffloadCount& count) {
    std::vector<std::pair<int64_t, std::vector<int32_t>>> updates;  // instructions, their states
    for (size_t b = 0; b < accesses_.size(); ++b) {
      const Tensor& tensor = role_.tensor(role_.buffers[b]);
      if (tensor.kind != BufferKind::kState || !tensor.param.empty() || tensor.host ||
          tensor.previous_of >= 0 || tensor.copy_of >= 0)
        continue;
      if (!speaks_of(offload, tensor.name.substr(0, tensor.name.rfind('.')))) continue;
      if (accesses_[b].size() != 1 || num_elements(tensor.type.shape) <= 1) {
        ++count.stay;
        continue;
      }
      updates.push_back({accesses_[b][0], {static_cast<int32_t>(b)}});
    }
    std::stable_sort(updates.begin(), updates.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::pair<int64_t, std::vector<int32_t>>> joined;
    for (auto& [instruction, states] : updates) {
      if (joined.empty() || joined.back().first != instruction) joined.push_back({instruction, {}});
      joined.back().second.push_back(states[0]);
    }
    const auto start = [&](int64_t k) {
      return k < static_cast<int64_t>(joined.size()) ? joined[at(std::max<int64_t>(k, 0))].first
                                                     : static_cast<int64_t>(task_of_.size());
    };
    for (int64_t k = 0; k < static_cast<int64_t>(joined.size()); ++k)
      for (int32_t state : joined[at(k)].second) {
        const int32_t here = add_buffer(state, ".here");
        role_.tensor(state).host = true;
        for (int32_t& arg : role_.body[at(joined[at(k)].first)].args)
          if (arg == state) arg = here;
        const Instruction& update = role_.body[at(joined[at(k)].first)];
        copy(state, here, start(k - offload.distance), -1, offload, -1, update);
        copy(here, state, joined[at(k)].first + 1, start(k + offload.in_flight + 1), offload, -1,
             update);
        ++count.values;
        count.bytes += role_.tensor(state).type.bytes();
      }
  }

  void bring_for_uses(int32_t buffer, const Offload& offload) {
    const auto b = static_cast<size_t>(buffer);
    std::vector<int64_t> visit;
    for (const int64_t use : accesses_[b]) {
      const bool follows =
          visit.empty() || updates(visit.back(), buffer) ||
          (!updates(use, buffer) && program_at(use) - program_at(visit.back()) <= offload.distance);
      if (!follows) bring(buffer, std::exchange(visit, {}), offload);
      visit.push_back(use);
    }
    bring(buffer, visit, offload);
  }

  // ---- Parameters ----
  // Keeps parameters, or this rank's parts of them, on the host, and brings them for each use: of
  // programs that follow one another once. The update's use is the last; what it leaves goes back.
  void move_parameters(const Offload& offload, OffloadCount& count) {
    const auto is_kept = [&](const Tensor& tensor) {
      return tensor.kind == BufferKind::kState && (!tensor.param.empty() || tensor.copy_of >= 0) &&
             speaks_of(offload, role_.original(tensor).param);
    };
    for (size_t b = 0; b < accesses_.size(); ++b) {
      if (!is_kept(role_.tensor(role_.buffers[b])) || accesses_[b].empty()) continue;
      const auto buffer = static_cast<int32_t>(b);
      role_.tensor(buffer).host = true;
      bring_for_uses(buffer, offload);
      ++count.values;
      count.bytes += role_.tensor(buffer).type.bytes();
    }
  }
  // Returns how many programs run before an instruction.
  int64_t program_at(int64_t i) const {
    return std::lower_bound(programs_.begin(), programs_.end(), i) - programs_.begin();
  }
  // Returns whether an instruction brings a parameter whole after its update.
  bool gathers(int64_t i, int32_t buffer) const {
    const Instruction& one = role_.body[at(i)];
    if (one.kind == InstructionKind::kAllGather)
      for (size_t a = 1; a < one.args.size(); a += 2)
        if (one.args[a] == buffer) return true;
    return false;
  }
  // Returns whether an instruction belongs to the update of a parameter. One that takes the rank's
  // own part only reads it, and may come long before: where updates are within the backward, other
  // tasks read the parameter in between.
  bool updates(int64_t i, int32_t buffer) const {
    const Instruction& one = role_.body[at(i)];
    return gathers(i, buffer) ||
           (one.kind == InstructionKind::kCompute && one.pass == TaskPass::kU);
  }
  void bring(int32_t buffer, const std::vector<int64_t>& visit, const Offload& offload) {
    const Instruction& first = role_.body[at(visit.front())];
    const bool is_overwritten = gathers(visit.front(), buffer);
    const bool changed =
        std::ranges::any_of(visit, [&](int64_t use) { return updates(use, buffer); });
    const int32_t here = add_buffer(buffer, ".here");
    for (const int64_t use : visit)
      for (int32_t& arg : role_.body[at(use)].args)
        if (arg == buffer) arg = here;
    const int64_t last = std::ssize(programs_) - 1,
                  program = program_at(visit.front()) - offload.distance;
    const int64_t ahead = last < 0 ? 0 : programs_[at(std::clamp<int64_t>(program, 0, last))];
    if (!is_overwritten) copy(buffer, here, std::min(ahead, visit.front()), -1, offload, -1, first);
    if (changed)
      copy(here, buffer, visit.back() + 1, static_cast<int64_t>(task_of_.size()), offload, -1,
           first);
  }

  // ---- Copies ----
  int32_t add_buffer(int32_t like, const char* suffix) {
    const auto [from, micro, offset] = role_.buffers[at(like)];
    const auto [known, is_new] =
        tensors_.try_emplace({from, suffix}, static_cast<int32_t>(role_.tensors.size()));
    if (is_new) {
      const Tensor& tensor = role_.tensors[at(from)];
      role_.tensors.push_back({.name = tensor.name + suffix, .type = tensor.type});
    }
    role_.buffers.push_back({known->second, micro});
    return static_cast<int32_t>(role_.buffers.size() - 1);
  }
  // Adds a copy. `until`: when a copy to the host must be complete; -1 for one that comes back.
  void copy(int32_t from, int32_t to, int64_t before, int64_t until, const Offload& offload,
            int32_t micro, const Instruction& with) {
    const bool leaves = until >= 0;
    for (const Overlap& o : overlaps_) {  // their sides begin and end together
      if (before > o.first && before < o.end) before = leaves ? o.end : o.first;
      if (until > o.first && until < o.end) until = o.first;
    }
    const int32_t here = role_.tensor(from).host ? to : from;
    copies_.push_back(
        {before,
         leaves ? std::max(until, before) : -1,
         {.kind = InstructionKind::kCopy,
          .pass = TaskPass::kMove,
          .stream = leaves ? offload.out_stream : offload.in_stream,
          .args = {from, to},
          .label = fmt::format("{} {}", leaves ? "offload" : "load", role_.name(here)),
          .micro = micro,
          .ahead = with.ahead}});
  }

  RoleProgram& role_;
  const Dag& dag_;
  const std::vector<Overlap>& overlaps_;
  OffloadPlan& plan_;
  std::vector<int64_t> starts_, task_of_;       // first instructions of tasks; by instruction
  std::vector<int64_t> programs_;               // positions of computations
  std::vector<std::vector<int64_t>> accesses_;  // by buffer: instructions, ascending
  std::vector<Copy> copies_;
  std::map<std::pair<int32_t, std::string_view>, int32_t> tensors_;  // by what they are copies of
};

}  // namespace

void add_counts(const OffloadPlan& plan, std::vector<OffloadCount>& counts) {
  for (size_t o = 0; o < plan.counts.size(); ++o) {
    counts[o].values += plan.counts[o].values;
    counts[o].bytes += plan.counts[o].bytes;
    counts[o].stay += plan.counts[o].stay;
  }
}

std::vector<int32_t> insert_copies(RoleProgram& role, const Dag& dag,
                                   const std::vector<std::vector<int32_t>>& buffers,
                                   const std::vector<Overlap>& overlaps, OffloadPlan& plan) {
  return Copier(role, dag, overlaps, plan).run(buffers);
}

}  // namespace piper
