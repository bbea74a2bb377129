// Summarises one role: work, traffic, memory, parameters, order.
#include "role.h"

#include <algorithm>
#include <map>
#include <set>

#include "piper/base/counted.h"
#include "piper/plan/flops.h"

namespace piper {
namespace {

std::string axes_text(const RoleProgram& role, const std::vector<int32_t>& axes) {
  std::string text;
  for (int32_t axis : axes) {
    const auto& [name, size] = role.mesh[index_of(axis)];
    if (size > 1) text += (text.empty() ? "" : "+") + name;
  }
  return text;
}

// "stage=1" of "F stage=1 mb=3".
std::string region_of(const Instruction& one) {
  std::string text = one.label;
  const std::string tail = fmt::format(" mb={}", one.micro);
  if (text.ends_with(tail)) text.resize(text.size() - tail.size());
  const size_t space = text.find(' ');
  return space == text.npos ? "" : text.substr(space + 1);
}

// Returns what a rank sends of so many bytes that it brings or gets whole. Where an index says
// which rows travel, as many go to each.
int64_t sent_of(const RoleProgram& role, const Instruction& one, int64_t bytes) {
  int64_t members = 1;
  for (int32_t axis : role.groups[index_of(one.group)].axes)
    if (__builtin_mul_overflow(members, role.mesh[index_of(axis)].second, &members))
      members = INT64_MAX;
  int64_t sent = bytes - bytes / std::max<int64_t>(members, 1);
  const ArgForm form = info(one.kind).args;
  if (form == ArgForm::kTurns) return bytes;
  if (form == ArgForm::kPieces) add_bytes(sent, sent);  // a reduce-scatter and an all-gather
  return sent;
}

class RoleWalk {
 public:
  RoleWalk(const RoleProgram& role, std::vector<double> flops)
      : role_(role),
        flops_(std::move(flops)),
        made_(role.buffers.size()),
        awaited_(role.buffers.size(), -1),
        work_(role.streams.size()) {
    for (const Program& program : role.programs) digests_.push_back(program_digest(program));
  }

  RoleSummary run() {
    for (const Instruction& one : role_.body) visit(one);
    for (const Stream& stream : role_.streams) {
      const auto& work = work_[static_cast<size_t>(&stream - role_.streams.data())];
      if (work.empty()) continue;
      out_.streams.push_back({stream.name, stream.priority, stream.sms, {}});
      out_.streams.back().work.assign(work.begin(), work.end());
    }
    for (auto& [key, traffic] : traffic_) out_.traffic.push_back(std::move(traffic));
    for (const auto& [what, offload] : offloads_) out_.offloads.push_back(offload);
    for (size_t s = 0; s < out_.stages.size(); ++s) {
      out_.stages[s].parameters.assign(parameters_[s].begin(), parameters_[s].end());
      out_.stages[s].programs.assign(programs_[s].begin(), programs_[s].end());
      out_.stages[s].runs = static_cast<int64_t>(forwards_[s].size());
    }
    return std::move(out_);
  }

 private:
  // Says what made a buffer: by which stage, if any, in a forward or not.
  struct Made {
    int32_t stage = -1;
    bool forward = false, received = false, counted = false;
  };

  void visit(const Instruction& one) {
    count_stream(one);
    switch (one.kind) {
      case InstructionKind::kCompute:
        return compute(one);
      case InstructionKind::kSend:
        send(one);
        break;
      case InstructionKind::kRecv:
        for (int32_t arg : one.args) receive(one, arg);
        break;
      case InstructionKind::kCopy:
        copy(one);
        break;
      case InstructionKind::kInput:
        made_[index_of(one.args[0])] = {};
        break;
      case InstructionKind::kPosition:
        break;
      default:
        collective(one);
        break;
    }
    issue(one);
  }

  bool is_local(const Instruction& one) const {
    return is_collective(one.kind) && over(one).empty();
  }
  void count_stream(const Instruction& one) {
    if (is_local(one)) return;
    const bool computes = one.kind == InstructionKind::kCompute;
    const std::string what = computes ? name_of(one.pass) : to_string(one.kind);
    ++work_[index_of(one.stream)][what];
  }

  // ---- Computations ----
  void compute(const Instruction& one) {
    const Work& work = role_.programs[index_of(one.program)].work;
    const double flops = flops_[index_of(one.program)];
    out_.flops += flops;
    if (!is_ordered(one.pass) || one.micro < 0) return;
    const int32_t stage = stage_of(region_of(one));
    StageSummary& here = out_.stages[index_of(stage)];
    add_item(one, stage, work);
    (one.pass == TaskPass::kF ? here.forward_flops : here.backward_flops) += flops;
    if (one.pass == TaskPass::kF) count_forward(one, stage, work);
    here.recomputed += static_cast<double>(work.recomputed);
    programs_[index_of(stage)].emplace(one.pass, digests_[index_of(one.program)]);
    use_args(one, stage);
  }

  int32_t stage_of(const std::string& name) {
    const auto [found, is_new] =
        stages_.try_emplace(name, static_cast<int32_t>(out_.stages.size()));
    if (is_new) {
      out_.stages.push_back({.name = name});
      parameters_.emplace_back();
      programs_.emplace_back();
      forwards_.emplace_back();
      first_micro_.push_back(-1);
    }
    return found->second;
  }

  // Ops and products are those of the first microbatch.
  void count_forward(const Instruction& one, int32_t stage, const Work& work) {
    StageSummary& here = out_.stages[index_of(stage)];
    if (forwards_[index_of(stage)].empty()) first_micro_[index_of(stage)] = one.micro;
    forwards_[index_of(stage)].insert(one.micro);
    if (one.micro != first_micro_[index_of(stage)]) return;
    here.ops += work.ops;
    std::map<DType, int64_t> products(here.products.begin(), here.products.end());
    for (const auto& [dtype, count] : work.products) products[dtype] += count;
    here.products.assign(products.begin(), products.end());
  }

  void add_item(const Instruction& one, int32_t stage, const Work& work) {
    const OrderedTask item{stage,     one.micro,           one.pass,  is_second(one),
                           one.ahead, work.recomputed > 0, one.stream};
    OrderedTask* last = out_.order.empty() ? nullptr : &out_.order.back();
    const bool same = last && last->stage == stage && last->micro == one.micro;
    if (same && last->pass == one.pass)
      last->recomputes |= item.recomputes;
    else
      out_.order.push_back(item);
  }
  bool is_second(const Instruction& one) const {
    return role_.streams[index_of(one.stream)].name == "overlap";
  }

  void use_args(const Instruction& one, int32_t stage) {
    const Program& program = role_.programs[index_of(one.program)];
    for (size_t a = 0; a < one.args.size(); ++a) {
      const int32_t buffer = one.args[a];
      Made& made = made_[index_of(buffer)];
      const bool writes = program.arg_written[a];
      if (program.arg_read[a]) note_parameter(role_.tensor(buffer), stage);
      if (program.arg_read[a] && one.pass != TaskPass::kF) keep(buffer, stage);
      if (writes || (program.arg_read[a] && one.pass == TaskPass::kF && made.received))
        made = {stage, one.pass == TaskPass::kF, false, false};
      // The backward is before it in a body: it reads what the step before has begun.
      if (one.ahead > 0 && awaited_[index_of(buffer)] >= 0)
        keep(buffer, awaited_[index_of(buffer)]);
    }
  }
  // A backward of the stage reads it.
  void keep(int32_t buffer, int32_t stage) {
    Made& made = made_[index_of(buffer)];
    const Tensor& tensor = role_.tensor(buffer);
    if (made.stage < 0 && !made.received) awaited_[index_of(buffer)] = stage;
    if (!made.forward || made.counted || tensor.kind != BufferKind::kStep) return;
    made.counted = true;
    count_kept(tensor, stage);
  }
  void count_kept(const Tensor& tensor, int32_t stage) {
    out_.stages[index_of(stage)].kept_bytes += static_cast<double>(tensor.type.bytes());
  }
  void receive(const Instruction& one, int32_t buffer) {
    made_[index_of(buffer)] = {.received = true};
    const int32_t reader = awaited_[index_of(buffer)];
    if (one.ahead > 0 && reader >= 0) count_kept(role_.tensor(buffer), reader);
  }
  void note_parameter(const Tensor& tensor, int32_t stage) {
    const std::string& param = role_.original(tensor).param;
    if (!param.empty()) parameters_[index_of(stage)].insert(param);
  }

  // ---- What is no computation ----
  std::string over(const Instruction& one) const {
    if (one.kind == InstructionKind::kInput) return one.input;
    if (one.group >= 0) return axes_text(role_, role_.groups[index_of(one.group)].axes);
    std::vector<int32_t> axes;
    for (size_t a = 0; a < one.peer.size(); ++a)
      if (one.peer[a] >= 0) axes.push_back(static_cast<int32_t>(a));
    return axes_text(role_, axes);
  }

  void add_traffic(const Instruction& one, DType dtype, int64_t bytes, const std::string& of = "") {
    const std::string& stream = role_.streams[index_of(one.stream)].name;
    const std::string where = over(one);
    TrafficSummary& traffic = traffic_[{one.kind, of, where, dtype, stream, one.fast}];
    traffic.kind = one.kind;
    traffic.of = of;
    traffic.over = where;
    traffic.dtype = dtype;
    traffic.stream = stream;
    traffic.fast = one.fast;
    ++traffic.messages;
    add_bytes(bytes, traffic.bytes);
  }

  void send(const Instruction& one) {
    int64_t bytes = 0;
    bool forward = false;
    for (int32_t arg : one.args) {
      const Made& made = made_[index_of(arg)];
      forward |= made.forward;
      add_bytes(role_.tensor(arg).type.bytes(), bytes);
      if (made.stage >= 0 && one.micro >= 0)
        out_.stages[index_of(made.stage)].sent_bytes +=
            static_cast<double>(role_.tensor(arg).type.bytes());
    }
    const char* of_micro = forward ? "activations" : "gradients";
    add_traffic(one, role_.tensor(one.args[0]).type.dtype, bytes,
                one.micro < 0 ? "sums of the step" : of_micro);
  }

  void collective(const Instruction& one) {
    for (size_t a = 0; takes_pairs(one.kind) && a + 1 < one.args.size(); a += 2) {
      const Made& from = made_[index_of(one.args[a])];
      made_[index_of(one.args[a + 1])] = {from.stage, from.forward, from.received, false};
    }
    if (!is_collective(one.kind) || is_local(one)) return;
    std::map<DType, int64_t> bytes;  // a message of several types is one of each
    for (size_t a = 0; a < one.args.size(); ++a) {
      // Of rows that go where an index sends them: what a rank has of them, or gets back.
      const auto whole = static_cast<size_t>(std::max(info(one.kind).whole, 0));
      const bool counts = takes_index(one.kind)   ? a == 1 - whole
                          : takes_pairs(one.kind) ? a % 2 == whole
                                                  : true;
      const TensorType& type = role_.tensor(one.args[a]).type;
      const int64_t travel = one.count > 0 ? one.count * info(type.dtype).bytes
                             : one.scaled == Scaled::kNone
                                 ? type.bytes()
                                 : one.in_blocks().bytes(num_elements(type.shape));
      if (counts) add_bytes(travel, bytes[type.dtype]);
    }
    const std::string in_blocks =
        one.scaled == Scaled::kNone
            ? ""
            : fmt::format("parts in {}", kScaledNames[static_cast<size_t>(one.scaled)]);
    for (const auto& [dtype, of_type] : bytes)
      add_traffic(one, dtype, sent_of(role_, one, of_type), in_blocks);
  }

  void copy(const Instruction& one) {
    const Tensor &from = role_.tensor(one.args[0]), &to = role_.tensor(one.args[1]);
    made_[index_of(one.args[1])] = made_[index_of(one.args[0])];
    if (!to.host || from.host) return;
    const char* what = to.kind == BufferKind::kState ? "optimizer" : "activations";
    OffloadSummary& offload = offloads_[what];
    offload.what = what;
    ++offload.values;
    add_bytes(to.type.bytes(), offload.bytes);
  }

  void issue(const Instruction& one) {
    if (is_local(one)) return;
    out_.issues.push_back(
        {one.kind, over(one), one.micro, static_cast<int32_t>(out_.order.size())});
  }

  const RoleProgram& role_;
  const std::vector<double> flops_;  // by program
  RoleSummary out_;
  std::vector<Made> made_;        // by buffer
  std::vector<int32_t> awaited_;  // by buffer: the stage whose backward reads it before it is made
  std::vector<std::string> digests_;
  std::map<std::string, int32_t> stages_;
  std::vector<std::set<std::string>> parameters_;                     // by stage
  std::vector<std::set<std::pair<TaskPass, std::string>>> programs_;  // likewise
  std::vector<std::set<int32_t>> forwards_;
  std::vector<int32_t> first_micro_;
  std::map<std::tuple<InstructionKind, std::string, std::string, DType, std::string, bool>,
           TrafficSummary>
      traffic_;
  std::map<std::string, OffloadSummary> offloads_;
  std::vector<std::map<std::string, int64_t>> work_;  // by stream
};

void count_memory(const RoleProgram& role, RoleSummary& summary) {
  for (const Tensor& tensor : role.tensors) {
    const int64_t bytes = tensor.type.bytes();
    if (tensor.previous_of >= 0 && tensor.type.dtype != DType::kI64) {
      ++summary.versions;
      add_bytes(bytes, summary.version_bytes);
    }
    if (tensor.host) continue;
    if (tensor.kind == BufferKind::kConstant) add_bytes(bytes, summary.constant_bytes);
    if (tensor.kind != BufferKind::kState) continue;
    const bool weight = tensor.previous_of >= 0 || tensor.copy_of >= 0 || !tensor.param.empty();
    add_bytes(bytes, weight ? summary.weight_bytes : summary.optimizer_bytes);
  }
  summary.step_bytes = role.arena_bytes;
  for (int64_t kept : {summary.weight_bytes, summary.optimizer_bytes, summary.constant_bytes})
    summary.step_bytes = std::max<int64_t>(summary.step_bytes - kept, 0);
  for (int64_t bytes : role.workspace_bytes) add_bytes(bytes, summary.workspace_bytes);
  summary.packed_bytes = role.packed_bytes;
  summary.transport_bytes = role.transport_bytes;
  summary.scratch_bytes = role.scratch_bytes;
  summary.peak_bytes = role.peak_bytes();
  summary.host_bytes = role.host_bytes;
}

std::string layout_of(const RoleProgram& role, const Tensor& tensor) {
  std::string text;
  for (const auto& [axis, dim, outer, block] : tensor.cuts) {
    if (axis < 0) {
      text += fmt::format("{}block {} of dim {}", text.empty() ? "" : ", ", outer, dim);
      continue;
    }
    const std::string over = axes_text(role, {axis});
    if (over.empty()) continue;
    text += fmt::format("{}dim {}{} over {}{}", text.empty() ? "" : ", ", dim,
                        outer == 1 ? "" : fmt::format(" in {} stretches", outer), over,
                        block == 0 ? "" : ", with zeros");
  }
  return text;
}

// Requires the parameters.
void count_versions(const RoleProgram& role, RoleSummary& summary) {
  std::map<std::string_view, int32_t> oldest;
  for (const Tensor& tensor : role.tensors)
    if (tensor.kind == BufferKind::kState) {
      int32_t& age = oldest[role.original(tensor).param];
      age = std::max(age, role.age(tensor));
    }
  for (const ParameterSummary& one : summary.parameters)
    if (one.kind == ParameterSummary::Kind::kTrained)
      summary.kept_times.insert(1 + oldest[one.name]);
}

void add_parameters(const RoleProgram& role, const Training& training, RoleSummary& summary) {
  std::map<std::string, const Training::Update*> updates;
  for (const Training::Update& update : training.updates) updates[update.parameter] = &update;
  std::set<std::string> running;
  for (const SumTarget& sum : role.sum_targets)
    if (sum.name.ends_with(".batch")) running.insert(sum.name.substr(0, sum.name.size() - 6));
  std::map<std::string, size_t> known;
  for (const Tensor& tensor : role.tensors) {
    if (tensor.kind != BufferKind::kState || tensor.param.empty()) continue;
    const auto [found, is_new] = known.try_emplace(tensor.param, summary.parameters.size());
    if (is_new) summary.parameters.emplace_back();
    ParameterSummary& parameter = summary.parameters[found->second];
    parameter.name = tensor.param;
    parameter.aliases = tensor.aliases;
    parameter.type = tensor.whole_type();
    parameter.layout = layout_of(role, tensor);
    add_bytes(tensor.type.bytes(), parameter.weight_bytes);
    add_bytes(num_elements(tensor.type.shape), summary.elements);
    const auto update = updates.find(tensor.param);
    if (running.contains(tensor.param)) parameter.kind = ParameterSummary::Kind::kRunning;
    if (update == updates.end()) continue;
    parameter.kind = ParameterSummary::Kind::kTrained;
    parameter.settings = update->second->settings;
    parameter.state_bytes = update->second->state_bytes;
  }
}

void sum_by_stage(RoleSummary& summary) {
  std::map<std::string_view, const ParameterSummary*> by_name;
  for (const ParameterSummary& parameter : summary.parameters) by_name[parameter.name] = &parameter;
  for (StageSummary& stage : summary.stages)
    for (const std::string& name : stage.parameters)
      if (const auto found = by_name.find(name); found != by_name.end()) {
        add_bytes(found->second->weight_bytes, stage.weight_bytes);
        add_bytes(found->second->state_bytes, stage.state_bytes);
      }
}

void add_batch(const RoleProgram& role, RoleSummary& summary) {
  int64_t count = 0;
  for (const Instruction& one : role.body) count = std::max(count, one.samples.count);
  std::set<std::string> gradients;
  for (const Instruction& one : role.body)
    for (const Contribution& part : one.contributions)
      if (role.sum_targets[index_of(part.target)].name.ends_with(".grad"))
        gradients.insert(info(role.tensor(one.args[index_of(part.arg)]).type.dtype).name);
  summary.train.emplace_back("global_batch", std::to_string(role.samples()));
  if (count > 0) summary.train.emplace_back("microbatch_size", std::to_string(count));
  if (!gradients.empty())
    summary.train.emplace_back(
        "gradients", join(std::vector<std::string>(gradients.begin(), gradients.end()), ", "));
}

std::string input_text(const DataInput& input) {
  std::string text = to_string(input.type);
  if (input.batch_dim != 0)
    text +=
        input.batch_dim < 0 ? ", uncut" : fmt::format(", samples along dim {}", input.batch_dim);
  if (input.low <= input.high) text += fmt::format(" from {} to {}", input.low, input.high);
  if (input.ignore != INT64_MIN) text += fmt::format(", {} ignored", input.ignore);
  for (size_t i = 0; i < input.ranges.size(); i += 4)
    text +=
        fmt::format("{} {} of a sample from {} to {}", i == 0 ? "," : " and",
                    counted(input.ranges[i], "element"), input.ranges[i + 1], input.ranges[i + 2]);
  return text;
}

}  // namespace

int64_t RoleSummary::ops() const {
  int64_t sum = 0;
  for (const StageSummary& stage : stages) sum += stage.ops;
  return sum;
}

namespace {

std::optional<double> flops_of_evaluation(const RoleProgram& role,
                                          const std::vector<double>& flops) {
  if (role.evaluation.empty()) return {};
  double sum = 0;
  for (const Instruction& one : role.evaluation)
    if (one.kind == InstructionKind::kCompute) sum += flops[index_of(one.program)];
  return sum;
}

}  // namespace

Result<RoleSummary> summarise_role(const RoleProgram& role) {
  PIPER_ASSIGN(std::vector<double> flops, program_flops(role));
  const std::optional<double> evaluation = flops_of_evaluation(role, flops);
  RoleSummary summary = RoleWalk(role, std::move(flops)).run();
  Training training = find_training(role);
  summary.evaluation_flops = evaluation;
  for (const OuterUpdate& update : role.outer_updates)
    summary.outer.push_back({update.every, update.offset, outer_bytes(role, update)});
  summary.target = role.target;
  summary.table = role.table;
  count_memory(role, summary);
  add_parameters(role, training, summary);
  count_versions(role, summary);
  sum_by_stage(summary);
  add_batch(role, summary);
  summary.train.insert(summary.train.end(), training.shared.begin(), training.shared.end());
  for (const DataInput& input : role.inputs)
    summary.inputs.emplace_back(input.name, input_text(input));
  return summary;
}

}  // namespace piper
