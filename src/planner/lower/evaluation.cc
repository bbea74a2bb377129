// Joins the plans of a step with those of its forward pass alone, or of an outer update: one role
// program, in which the states and constants are the step's, and all else follows them in the same
// arena.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "at.h"
#include "piper/base/memory.h"
#include "piper/plan/outer_updates.h"
#include "piper/planner/lower.h"

namespace piper {
namespace {

// Returns the position of an equal element, which is added if there is none.
template <class T, class Same>
int32_t find_or_add(std::vector<T>& all, const T& one, Same same) {
  const auto known =
      std::find_if(all.begin(), all.end(), [&](const T& each) { return same(each, one); });
  const auto place = static_cast<int32_t>(known - all.begin());
  if (known == all.end()) all.push_back(one);
  return place;
}

bool is_kept(const Tensor& tensor) { return tensor.kind != BufferKind::kStep; }

// Returns the bytes that are kept for ever at the begin of an arena.
int64_t kept_bytes(const RoleProgram& role, bool host) {
  int64_t bytes = 0;
  for (const Buffer& buffer : role.buffers)
    if (is_kept(role.tensor(buffer)) && role.tensor(buffer).host == host)
      bytes += align_up(role.tensor(buffer).type.bytes());
  return bytes;
}

int64_t& bytes_of_arena(RoleProgram& role, bool host) {
  return host ? role.host_bytes : role.arena_bytes;
}

class Joiner {
 public:
  Joiner(RoleProgram& role, RoleProgram section, bool is_outer)
      : role_(role), from_(std::move(section)), is_outer_(is_outer) {}

  void renumber(Instruction& one, int32_t first_program) const {
    for (int32_t& arg : one.args) arg = buffer_[at(arg)];
    one.stream = stream_[at(one.stream)];
    if (one.program >= 0) one.program += first_program;
    if (one.group >= 0) one.group = group_[at(one.group)];
    if (one.communicator >= 0) one.communicator = communicator_[at(one.communicator)];
    for (Contribution& part : one.contributions) part.target = sum_[at(part.target)];
    for (SumRead& read : one.sum_reads) read.target = sum_[at(read.target)];
  }

  // The instructions become those of `to`.
  Status run(std::vector<Instruction>& to) {
    add_tables();
    PIPER_TRY(add_kept());
    add_others();
    PIPER_TRY(add_inputs());
    const auto first_program = static_cast<int32_t>(role_.programs.size());
    std::move(from_.programs.begin(), from_.programs.end(), std::back_inserter(role_.programs));
    for (Instruction& one : from_.body) {
      renumber(one, first_program);
      to.push_back(std::move(one));
    }
    for (const Report& report : from_.reports)  // an outer update has none
      role_.evaluation_reports.push_back({report.name, buffer_[at(report.buffer)]});
    return ok_status();
  }

 private:
  void add_communicators() {
    std::vector<bool> taken(role_.communicators.size());
    for (Communicator one : from_.communicators) {
      for (int32_t& stream : one.streams) stream = stream_[at(stream)];
      size_t c = 0;
      while (c < taken.size() && (taken[c] || !is_same(role_.communicators[c], one))) ++c;
      if (c == taken.size()) role_.communicators.push_back(one), taken.push_back(true);
      taken[c] = true;
      communicator_.push_back(static_cast<int32_t>(c));
    }
  }

  void add_tables() {
    for (const Stream& one : from_.streams)
      stream_.push_back(find_or_add(
          role_.streams, one, [](const Stream& a, const Stream& b) { return a.name == b.name; }));
    for (const Group& one : from_.groups)
      group_.push_back(find_or_add(
          role_.groups, one, [](const Group& a, const Group& b) { return a.axes == b.axes; }));
    for (Tensor& tensor : from_.tensors)
      if (tensor.part_of >= 0) tensor.part_of = group_[at(tensor.part_of)];
    for (const SumTarget& one : from_.sum_targets)
      sum_.push_back(find_or_add(role_.sum_targets, one, std::equal_to<SumTarget>()));
    add_communicators();
    role_.workspace_bytes.resize(role_.streams.size());
  }
  static bool is_same(const Communicator& a, const Communicator& b) {
    return std::tie(a.axes, a.from, a.to, a.streams) == std::tie(b.axes, b.from, b.to, b.streams);
  }

  const Tensor* find_tensor(const Tensor& like) const {
    const auto known = std::find_if(role_.tensors.begin(), role_.tensors.end(), [&](auto& each) {
      return each.name == like.name && each.kind == like.kind;
    });
    return known == role_.tensors.end() ? nullptr : &*known;
  }
  // Returns what a step gathers of the same parameter in the same type.
  const Tensor* find_gathered(const Tensor& like) const {
    const auto known = std::find_if(role_.tensors.begin(), role_.tensors.end(), [&](auto& each) {
      return each.param == like.param && each.kind == like.kind &&
             each.type.dtype == like.type.dtype;
    });
    return known == role_.tensors.end() ? nullptr : &*known;
  }
  int32_t buffer_of(const Tensor& tensor) const {
    const auto number = static_cast<int32_t>(&tensor - role_.tensors.data());
    return static_cast<int32_t>(
        std::find_if(role_.buffers.begin(), role_.buffers.end(),
                     [&](const Buffer& buffer) { return buffer.tensor == number; }) -
        role_.buffers.begin());
  }

  // States are those of the step. Constants that only the evaluation reads come after all that is
  // kept, and what the step makes moves up.
  Status add_kept() {
    buffer_.assign(from_.buffers.size(), -1);
    for (const bool host : {false, true}) first_[host] = kept_bytes(role_, host);
    std::vector<size_t> added;
    std::array<int64_t, 2> room{};
    for (size_t b = 0; b < from_.buffers.size(); ++b) {
      const Tensor& tensor = from_.tensor(from_.buffers[b]);
      if (!is_kept(tensor)) continue;
      const Tensor* known = find_tensor(tensor);
      if (known != nullptr) {
        if (std::tie(known->type, known->cuts, known->part_of, known->whole, known->init) !=
            std::tie(tensor.type, tensor.cuts, tensor.part_of, tensor.whole, tensor.init))
          return fail("'{}' lies differently in a step and in {}", quote_control(tensor.name),
                      is_outer_ ? "an outer update" : "an evaluation")
              .with_code(ExitCode::kRefused);
        buffer_[b] = buffer_of(*known);
        continue;
      }
      if (tensor.kind == BufferKind::kState && !is_outer_)
        return fail("the evaluation reads the state '{}', which no step has there",
                    quote_control(tensor.name))
            .with_code(ExitCode::kRefused);
      added.push_back(b);
      room[tensor.host] += align_up(tensor.type.bytes());
    }
    for (Buffer& buffer : role_.buffers)
      if (!is_kept(role_.tensor(buffer))) buffer.offset += room[role_.tensor(buffer).host];
    for (const bool host : {false, true})
      if (int64_t& bytes = bytes_of_arena(role_, host); room[host] > 0)
        bytes = std::max(bytes, first_[host]) + room[host];
    for (const size_t b : added) {
      const Tensor tensor = from_.tensor(from_.buffers[b]);
      buffer_[b] = role_.add_buffer(tensor);
      role_.buffers.back().offset = first_[tensor.host];
      first_[tensor.host] += align_up(tensor.type.bytes());
    }
    return ok_status();
  }

  // Returns where what the steps make ends.
  int64_t end_of_steps() const {
    int64_t end = 0;
    for (const auto* section : {&role_.prologue, &role_.body, &role_.epilogue})
      for (const Instruction& one : *section)
        for (const int32_t arg : one.args)
          if (const Buffer& buffer = role_.buffers[at(arg)]; !role_.tensor(buffer).host)
            end = std::max(end, align_up(buffer.offset + role_.tensor(buffer).type.bytes()));
    return end;
  }

  void add_tensor_of(const Buffer& buffer) {
    Tensor tensor = from_.tensor(buffer);
    // A gathered copy says of which parameter: the step keeps that. Where it has two versions,
    // its own copy has another name.
    const Tensor* like = tensor.param.empty() ? nullptr : find_gathered(tensor);
    if (like != nullptr)
      tensor.copy_of = like->copy_of;
    else if (tensor.copy_of >= 0)
      tensor.copy_of = buffer_[at(tensor.copy_of)];
    role_.tensors.push_back(std::move(tensor));
  }

  // What the evaluation makes lies as in its own plan, after all that is kept; and after what the
  // body makes, if it runs beside it.
  void add_others() {
    const bool beside = runs_beside(from_, {.instructions = from_.body});
    std::array<int64_t, 2> up = first_;
    if (beside) up[0] = std::max(up[0], end_of_steps());
    for (const bool host : {false, true}) up[host] -= kept_bytes(from_, host);
    std::map<int32_t, int32_t> tensors;
    for (size_t b = 0; b < from_.buffers.size(); ++b) {
      const Buffer& buffer = from_.buffers[b];
      if (is_kept(from_.tensor(buffer))) continue;
      const auto [known, is_new] =
          tensors.try_emplace(buffer.tensor, static_cast<int32_t>(role_.tensors.size()));
      if (is_new) add_tensor_of(buffer);
      buffer_[b] = static_cast<int32_t>(role_.buffers.size());
      role_.buffers.push_back(
          {known->second, buffer.micro, buffer.offset + up[from_.tensor(buffer).host]});
    }
    for (const bool host : {false, true})
      if (const int64_t bytes = bytes_of_arena(from_, host); bytes > 0)
        bytes_of_arena(role_, host) = std::max(bytes_of_arena(role_, host), bytes + up[host]);
  }

  Status add_inputs() {
    for (const DataInput& input : from_.inputs) {
      const auto known =
          std::find_if(role_.inputs.begin(), role_.inputs.end(),
                       [&](const DataInput& each) { return each.name == input.name; });
      if (known == role_.inputs.end())
        role_.inputs.push_back(input);
      else if (known->type != input.type || known->batch_dim != input.batch_dim)
        return fail("the input '{}' is another in a step than in an evaluation",
                    quote_control(input.name))
            .with_code(ExitCode::kRefused);
    }
    return ok_status();
  }

  RoleProgram& role_;
  RoleProgram from_;
  const bool is_outer_;
  std::vector<int32_t> stream_, group_, communicator_, sum_, buffer_;  // by number in `from_`
  std::array<int64_t, 2> first_{};  // where what is kept ends on the device, and on the host
};

// Adds the constants that the step does not have. Those of one name with other elements get another
// name.
void add_constants(Lowered& step, Lowered& evaluation) {
  std::map<std::string, std::string> renamed;
  std::set<std::string_view> constants;
  for (const RoleProgram& role : evaluation.roles)
    for (const Tensor& tensor : role.tensors)
      if (tensor.kind == BufferKind::kConstant) constants.insert(tensor.init);
  for (size_t e = 0; e < evaluation.tensors.size(); ++e) {
    auto& [name, bytes] = evaluation.tensors[e];
    const auto known = std::find_if(step.tensors.begin(), step.tensors.end(),
                                    [&](const auto& each) { return each.first == name; });
    const bool differs = known != step.tensors.end() && constants.contains(name) &&
                         as_text(known->second.made().span()) != as_text(bytes.made().span());
    if (known != step.tensors.end() && !differs) continue;
    std::string own = name;
    if (differs) {
      while (std::ranges::count(step.tensors, own, [](const auto& each) { return each.first; }) > 0)
        own = "evaluation/" + own;
      renamed[name] = own;
    }
    step.tensor_types.emplace_back(own, evaluation.tensor_types[e].second);
    step.tensors.emplace_back(own, bytes);
  }
  if (renamed.empty()) return;
  for (RoleProgram& role : evaluation.roles)
    for (Tensor& tensor : role.tensors)
      if (const auto other = renamed.find(tensor.init); other != renamed.end())
        tensor.name = tensor.init = other->second;
}

}  // namespace

Status add_evaluation(Lowered& step, Lowered evaluation) {
  PIPER_CHECK(step.roles.size() == evaluation.roles.size(), "a step and its forward pass differ");
  add_constants(step, evaluation);
  for (size_t r = 0; r < step.roles.size(); ++r)
    PIPER_TRY(
        Joiner(step.roles[r], std::move(evaluation.roles[r]), false).run(step.roles[r].evaluation));
  return ok_status();
}

Status add_outer(Lowered& step, Lowered outer, int64_t every, int64_t offset) {
  PIPER_CHECK(step.roles.size() == outer.roles.size(), "a step and its outer update differ");
  add_constants(step, outer);
  for (size_t r = 0; r < step.roles.size(); ++r) {
    OuterUpdate update{every, offset, {}};
    PIPER_TRY(Joiner(step.roles[r], std::move(outer.roles[r]), true).run(update.instructions));
    step.roles[r].outer_updates.push_back(std::move(update));
  }
  return ok_status();
}

}  // namespace piper
