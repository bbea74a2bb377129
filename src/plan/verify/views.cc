// A plan that evaluates, as two: that of its steps, and that of its evaluation, whose body is the
// forward pass. The rules read one or the other.
#include "views.h"

#include <algorithm>
#include <map>

#include "effects.h"
#include "piper/base/memory.h"
#include "piper/plan/outer_updates.h"

namespace piper {
namespace {

// Takes out of a role what no instruction and no report of it uses, and numbers the rest anew.
class Compactor {
 public:
  explicit Compactor(RoleProgram& role) : role_(role) {}

  // Gives the numbers in instructions their new values.
  void renumber(const std::vector<int32_t>& buffers, const std::vector<int32_t>& programs,
                const std::vector<int32_t>& sums) {
    for (auto* section : role_.sections())
      for (Instruction& one : *section) {
        for (int32_t& arg : one.args) arg = buffers[static_cast<size_t>(arg)];
        if (one.program >= 0) one.program = programs[static_cast<size_t>(one.program)];
        for (Contribution& part : one.contributions)
          part.target = sums[static_cast<size_t>(part.target)];
        for (SumRead& read : one.sum_reads) read.target = sums[static_cast<size_t>(read.target)];
      }
  }

  void run() {
    find_used();
    const auto buffers = compact(role_.buffers, buffers_);
    std::vector<bool> tensors(role_.tensors.size());
    for (const Buffer& buffer : role_.buffers) tensors[static_cast<size_t>(buffer.tensor)] = true;
    const auto tensor = compact(role_.tensors, tensors);
    const auto programs = compact(role_.programs, programs_),
               sums = compact(role_.sum_targets, sums_);
    compact(role_.inputs, inputs_);
    for (Buffer& buffer : role_.buffers) buffer.tensor = tensor[static_cast<size_t>(buffer.tensor)];
    for (Tensor& one : role_.tensors)
      for (int32_t* of : {&one.copy_of, &one.previous_of})
        if (*of >= 0) *of = buffers[static_cast<size_t>(*of)];
    renumber(buffers, programs, sums);
    for (Report& report : role_.reports)
      report.buffer = buffers[static_cast<size_t>(report.buffer)];
    state_memory();
  }

 private:
  void find_used() {
    buffers_.resize(role_.buffers.size());
    programs_.resize(role_.programs.size());
    sums_.resize(role_.sum_targets.size());
    inputs_.resize(role_.inputs.size());
    for (auto* section : role_.sections())
      for (const Instruction& one : *section) {
        for (const int32_t arg : one.args) use(arg);
        if (one.program >= 0) programs_[static_cast<size_t>(one.program)] = true;
        for (const Contribution& part : one.contributions)
          sums_[static_cast<size_t>(part.target)] = true;
        for (const SumRead& read : one.sum_reads) sums_[static_cast<size_t>(read.target)] = true;
        for (size_t i = 0; i < inputs_.size(); ++i)
          if (role_.inputs[i].name == one.input) inputs_[i] = true;
      }
    for (const Report& report : role_.reports) use(report.buffer);
    // What is kept stays, used or not: nothing else may take its place.
    for (size_t b = 0; b < buffers_.size(); ++b)
      if (role_.tensor(static_cast<int32_t>(b)).kind != BufferKind::kStep)
        use(static_cast<int32_t>(b));
  }
  // A copy or version counts as being used with what it is of.
  void use(int32_t buffer) {
    if (buffers_[static_cast<size_t>(buffer)]) return;
    buffers_[static_cast<size_t>(buffer)] = true;
    const Tensor& tensor = role_.tensor(buffer);
    for (const int32_t of : {tensor.copy_of, tensor.previous_of})
      if (of >= 0) use(of);
  }
  // Returns the new numbers.
  template <class T>
  static std::vector<int32_t> compact(std::vector<T>& all, const std::vector<bool>& used) {
    std::vector<int32_t> number(all.size(), -1);
    size_t kept = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (!used[i]) continue;
      number[i] = static_cast<int32_t>(kept);
      if (kept != i) all[kept] = std::move(all[i]);
      ++kept;
    }
    all.resize(kept);
    return number;
  }
  void state_memory() {
    role_.arena_bytes = role_.host_bytes = 0;
    for (const Buffer& buffer : role_.buffers) {
      const Tensor& tensor = role_.tensor(buffer);
      int64_t& end = tensor.host ? role_.host_bytes : role_.arena_bytes;
      end = std::max(end, align_up(buffer.offset + tensor.type.bytes()));
    }
    role_.staging_bytes = staging_of(role_);
  }

  RoleProgram& role_;
  std::vector<bool> buffers_, programs_, sums_, inputs_;
};

enum class View { kSteps, kEvaluation, kOuter, kBeside };

// Leaves the evaluation or the outer update as the only thing that the role runs.
void run_alone(RoleProgram& role, View wanted, size_t update) {
  const bool evaluates = wanted == View::kEvaluation;
  role.body = std::move(evaluates ? role.evaluation : role.outer_updates[update].instructions);
  role.reports = evaluates ? std::move(role.evaluation_reports) : std::vector<Report>();
  role.prologue.clear(), role.epilogue.clear();
  role.steps_ahead = 0;
}

// To an outer update that does not use them, older versions of states are states like others. Their
// names say of what they are, and not whether a rank has a part.
void leave_versions(RoleProgram& role) {
  std::vector<bool> used(role.buffers.size());
  for (const Instruction& one : role.body)
    for (const int32_t arg : one.args) used[static_cast<size_t>(arg)] = true;
  std::map<int32_t, std::string> names;  // by buffer
  for (size_t b = 0; b < used.size(); ++b)
    if (const auto buffer = static_cast<int32_t>(b);
        !used[b] && role.tensor(buffer).previous_of >= 0)
      names.emplace(buffer, identity_of(role, role.tensor(buffer)));
  for (auto& [buffer, name] : names) {
    Tensor& tensor = role.tensor(buffer);
    tensor.name = std::move(name);
    tensor.previous_of = -1, tensor.init.clear();
  }
}

PlanSet view_of(const PlanSet& set, View wanted, size_t update = 0) {
  PlanSet view;
  view.manifest = set.manifest;
  view.role_of_rank = set.role_of_rank;
  for (RoleProgram role : set.roles) {
    if (wanted == View::kBeside) {
      role.body = instructions_beside(role, role.outer_updates[update]);
    } else if (wanted != View::kSteps) {
      run_alone(role, wanted, update);
      if (wanted == View::kOuter) leave_versions(role);
    }
    role.evaluation.clear(), role.evaluation_reports.clear();
    role.outer_updates.clear();
    Compactor(role).run();
    view.roles.push_back(std::move(role));
  }
  return view;
}

}  // namespace

bool evaluates(const PlanSet& set) {
  return std::any_of(set.roles.begin(), set.roles.end(),
                     [](const RoleProgram& role) { return !role.evaluation.empty(); });
}
size_t outer_updates(const PlanSet& set) {
  return set.roles.empty() ? 0 : set.roles[0].outer_updates.size();
}

PlanSet steps_of(const PlanSet& set) { return view_of(set, View::kSteps); }
PlanSet evaluation_of(const PlanSet& set) { return view_of(set, View::kEvaluation); }
PlanSet outer_of(const PlanSet& set, size_t update) { return view_of(set, View::kOuter, update); }
PlanSet steps_beside(const PlanSet& set, size_t update) {
  return view_of(set, View::kBeside, update);
}

Status check_shared(const PlanSet& set) {
  for (const RoleProgram& role : set.roles) PIPER_TRY(check_role(role));
  return ok_status();
}

}  // namespace piper
