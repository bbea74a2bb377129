// Mutations of what all ranks and parameters have in common: the numbers of a step, what is kept
// and read by one name, what a name means at both ends of a message.
#include <map>
#include <set>

#include "mutation/places.h"

namespace piper::mutation {
namespace {

bool is_of_step(const Instruction& i) {
  return i.kind == InstructionKind::kCompute && i.micro < 0 && i.pass == TaskPass::kU;
}
bool is_shared(const Instruction& i) { return is_collective(i.kind) && i.micro < 0; }

// All ops of one name in a role.
std::vector<ProgramOp*> ops_of(RoleProgram& role, std::string_view name) {
  std::vector<ProgramOp*> ops;
  for (Program& program : role.programs)
    for (ProgramOp& op : program.ops)
      if (op.op == name) ops.push_back(&op);
  return ops;
}

// Whether other roles have such ops: what all that have some do alike is trusted.
bool is_elsewhere(PlanSet& set, const RoleProgram& role, std::string_view name) {
  return std::any_of(set.roles.begin(), set.roles.end(), [&](RoleProgram& other) {
    return &other != &role && !ops_of(other, name).empty();
  });
}

// A role goes its own way in what it makes of the step's numbers.
Done change_number(PlanSet& set, Random& random) {
  constexpr std::pair<const char*, const char*> kNumbers[] = {{"LearningRate", "base"},
                                                              {"ClipFactor", "max_norm"},
                                                              {"NextLossScale", "growth"}};
  RoleProgram& role = any_role(set, random);
  const auto& [op, attr] = kNumbers[below(random, std::size(kNumbers))];
  if (!is_elsewhere(set, role, op)) return std::nullopt;
  const std::vector<ProgramOp*> ops = ops_of(role, op);
  for (ProgramOp* each : ops) each->attrs.set(attr, each->attrs.real(attr) * 2 + 1);
  if (ops.empty()) return std::nullopt;
  return fmt::format("{} of {}", attr, op);
}

// One that leaves out that gradients are clipped or scaled, or that a step is skipped.
Done forget_number(PlanSet& set, Random& random) {
  constexpr std::pair<const char*, size_t> kOptimizers[] = {
      {"Sgd", 3}, {"AdamW", 4}, {"Adagrad", 3}};
  RoleProgram& role = any_role(set, random);
  const size_t more = random() % 2 ? 1 : 3;
  size_t changed = 0;
  for (const auto& [name, rate] : kOptimizers)
    for (ProgramOp* op : ops_of(role, name)) {
      if (!is_elsewhere(set, role, name)) return std::nullopt;
      if (op->inputs.size() <= rate + more || op->inputs[rate + more] < 0) continue;
      if (more == 3)
        op->inputs.pop_back();
      else
        op->inputs[rate + more] = -1;
      ++changed;
    }
  if (changed == 0) return std::nullopt;
  return fmt::format("input {} behind the learning rate, in {} updates", more, changed);
}

Done start_otherwise(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  const auto is_kept_elsewhere = [&](const Tensor& tensor) {
    return std::any_of(set.roles.begin(), set.roles.end(), [&](const RoleProgram& other) {
      return &other != &role && std::any_of(other.tensors.begin(), other.tensors.end(),
                                            [&](const Tensor& t) { return t.name == tensor.name; });
    });
  };
  std::vector<Tensor*> tensors;
  for (Tensor& tensor : role.tensors)
    if (tensor.kind == BufferKind::kState && tensor.init.empty() && is_kept_elsewhere(tensor))
      tensors.push_back(&tensor);
  if (tensors.empty()) return std::nullopt;
  Tensor& tensor = *tensors[below(random, tensors.size())];
  tensor.fill += 1;
  return fmt::format("'{}' at {}", tensor.name, tensor.fill);
}

// Ranks that hold the same are added to one another once more.
Done reduce_over_more(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_shared);
  if (!spot) return std::nullopt;
  const std::string label = spot->at().label;
  const size_t axis = below(random, spot->role->mesh.size());
  if (spot->role->mesh[axis].second == 1) return std::nullopt;
  bool changed = false;
  for (RoleProgram& role : set.roles)
    for (Instruction& one : role.body) {
      if (!is_shared(one) || one.label != label) continue;
      std::vector<int32_t> axes = role.groups[static_cast<size_t>(one.group)].axes;
      if (std::find(axes.begin(), axes.end(), static_cast<int32_t>(axis)) != axes.end())
        return std::nullopt;
      axes.push_back(static_cast<int32_t>(axis));
      std::sort(axes.begin(), axes.end());
      one.group = static_cast<int32_t>(role.groups.size());
      role.groups.push_back({"more", axes});
      changed = true;
    }
  if (!changed) return std::nullopt;
  return fmt::format("'{}' over axis {}, too", label, axis);
}

// Two values of one type change places on the way, in all microbatches.
Done cross_values(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  std::map<std::pair<int32_t, int32_t>, std::pair<Instruction*, size_t>> sent;  // tensor, micro
  std::set<int32_t> tensors;
  for (Instruction& one : role.body) {
    if (one.kind != InstructionKind::kSend || one.micro < 0) continue;
    for (size_t a = 0; a < one.args.size(); ++a) {
      const Buffer& buffer = role.buffers[static_cast<size_t>(one.args[a])];
      sent[{buffer.tensor, buffer.micro}] = {&one, a};
      tensors.insert(buffer.tensor);
    }
  }
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (int32_t a : tensors)
    for (int32_t b : tensors)
      if (a < b &&
          role.tensors[static_cast<size_t>(a)].type == role.tensors[static_cast<size_t>(b)].type)
        pairs.emplace_back(a, b);
  if (pairs.empty()) return std::nullopt;
  const auto [a, b] = pairs[below(random, pairs.size())];
  for (const auto& [key, first] : sent)
    if (const auto second = sent.find({b, key.second}); key.first == a && second != sent.end())
      std::swap(first.first->args[first.second], second->second.first->args[second->second.second]);
  return fmt::format("'{}' and '{}'", role.tensors[static_cast<size_t>(a)].name,
                     role.tensors[static_cast<size_t>(b)].name);
}

// An update, or what leads to it, takes or makes another value of the same type.
Done change_number_taken(PlanSet& set, Random& random) {
  return take_another(set, random, is_of_step);
}

// A backward draws by a key or count that no forward has, in all microbatches, and may say that it
// is a forward. (Which of two forwards a backward belongs to, verifiers trust.)
template <TaskPass pass>
Done draw_otherwise(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return i.kind == InstructionKind::kCompute && i.micro >= 0 && i.pass != TaskPass::kF;
  });
  if (!spot) return std::nullopt;
  RoleProgram& role = *spot->role;
  const Program& program = role.programs[static_cast<size_t>(spot->at().program)];
  std::vector<size_t> args;
  for (const ProgramOp& op : program.ops)
    for (size_t i = 1; op.op == "Dropout" && i < 3; ++i)
      if (op.inputs[i] < program.num_args) args.push_back(static_cast<size_t>(op.inputs[i]));
  if (args.empty()) return std::nullopt;
  const size_t arg = args[below(random, args.size())];
  const int32_t before = spot->at().args[arg];
  std::set<int32_t> drawn;  // arguments of forwards
  for (const Instruction& one : role.body)
    if (one.kind == InstructionKind::kCompute && one.pass == TaskPass::kF)
      drawn.insert(one.args.begin(), one.args.end());
  std::vector<int32_t> others;
  for (size_t b = 0; b < role.buffers.size(); ++b)
    if (static_cast<int32_t>(b) != before && role.tensor(b).type == role.tensor(before).type &&
        role.tensor(b).kind != BufferKind::kStep && !drawn.contains(static_cast<int32_t>(b)))
      others.push_back(static_cast<int32_t>(b));
  if (others.empty()) return std::nullopt;
  const int32_t other = others[below(random, others.size())];
  const std::string label = program.label;
  const TaskPass was = spot->at().pass;
  for (Instruction& one : role.body)
    if (one.kind == InstructionKind::kCompute && one.pass == was &&
        role.programs[static_cast<size_t>(one.program)].label == label && arg < one.args.size() &&
        one.args[arg] == before)
      one.args[arg] = other, one.pass = pass;
  return fmt::format("{}: '{}' instead of '{}'", spot->name(), role.name(other), role.name(before));
}

constexpr Mutation kAgreement[] = {
    {"change a number of the step", change_number},
    {"forget a number of the step", forget_number},
    {"start otherwise", start_otherwise},
    {"reduce over more", reduce_over_more},
    {"cross two values", cross_values},
    {"take another number", change_number_taken},
    {"draw otherwise", draw_otherwise<TaskPass::kB>},
};
constexpr Mutation kRedraws[] = {
    {"draw otherwise", draw_otherwise<TaskPass::kB>},
    {"draw as a forward", draw_otherwise<TaskPass::kF>},
};

}  // namespace

std::span<const Mutation> agreement_mutations() { return kAgreement; }
std::span<const Mutation> redraw_mutations() { return kRedraws; }

}  // namespace piper::mutation
