// Mutations of what a plan does, perhaps alike in all microbatches or on all ranks: such as only
// the plan for one device tells.
#include <array>
#include <map>

#include "mutation/places.h"

namespace piper::mutation {
namespace {

bool computes(const Instruction& i) { return i.kind == InstructionKind::kCompute; }
bool loads(const Instruction& i) { return i.kind == InstructionKind::kInput; }

// A role, or what one of its ranks alone runs from now on.
RoleProgram& role_or_rank(PlanSet& set, Random& random, size_t rank) {
  int32_t& role = set.role_of_rank[rank];
  if (random() % 2 && std::count(set.role_of_rank.begin(), set.role_of_rank.end(), role) > 1) {
    set.roles.push_back(set.roles[static_cast<size_t>(role)]);
    role = static_cast<int32_t>(set.roles.size()) - 1;
  }
  return set.roles[static_cast<size_t>(role)];
}
RoleProgram& role_or_rank(PlanSet& set, Random& random) {
  return role_or_rank(set, random, below(random, set.role_of_rank.size()));
}
Instruction* any_instruction(RoleProgram& role, Random& random, Filter filter) {
  std::vector<Instruction*> found;
  for (Instruction& one : role.body)
    if (filter(one)) found.push_back(&one);
  return found.empty() ? nullptr : found[below(random, found.size())];
}
// The program of all instructions that run it, or of one of them alone.
Program* any_program(RoleProgram& role, Random& random) {
  Instruction* one = any_instruction(role, random, computes);
  if (!one) return nullptr;
  if (random() % 2) {
    role.programs.push_back(role.programs[static_cast<size_t>(one->program)]);
    one->program = static_cast<int32_t>(role.programs.size()) - 1;
  }
  return &role.programs[static_cast<size_t>(one->program)];
}
template <class T>
T* one_of(std::vector<T*> list, Random& random) {
  return list.empty() ? nullptr : list[below(random, list.size())];
}
std::vector<ProgramOp*> optimizers(RoleProgram& role) {
  std::vector<ProgramOp*> ops;
  for (Program& program : role.programs)
    for (ProgramOp& op : program.ops)
      if (is_optimizer(op)) ops.push_back(&op);
  return ops;
}
std::vector<Tensor*> states(RoleProgram& role) {
  std::vector<Tensor*> found;
  for (Tensor& tensor : role.tensors)
    if (tensor.kind == BufferKind::kState) found.push_back(&tensor);
  return found;
}

Done compute_another_op(PlanSet& set, Random& random) {
  Program* program = any_program(role_or_rank(set, random), random);
  if (!program) return std::nullopt;
  std::vector<ProgramOp*> ops;
  for (ProgramOp& op : program->ops)
    if (op.op == "Tanh" || op.op == "Relu" || op.op == "MatMul" || op.op == "ReduceSum")
      ops.push_back(&op);
  ProgramOp* op = one_of(ops, random);
  if (!op) return std::nullopt;
  op->op += "Otherwise";
  return op->op;
}
Done load_another_input(PlanSet& set, Random& random) {
  RoleProgram& role = role_or_rank(set, random);
  Instruction* one = any_instruction(role, random, loads);
  if (!one) return std::nullopt;
  std::vector<DataInput*> others;
  for (DataInput& input : role.inputs)
    if (input.name != one->input) others.push_back(&input);
  const DataInput* other = one_of(others, random);
  if (!other) return std::nullopt;
  one->input = other->name;
  return fmt::format("{}: '{}'", one->label, other->name);
}
Done exchange_starts(PlanSet& set, Random& random) {
  RoleProgram& role = role_or_rank(set, random);
  Tensor *a = one_of(states(role), random), *b = one_of(states(role), random);
  if (!a || a->init == b->init || a->type.bytes() != b->type.bytes()) return std::nullopt;
  const std::string first = a->init, second = b->init;
  for (RoleProgram& each : set.roles)
    for (Tensor* tensor : states(each))
      if (!tensor->init.empty())
        tensor->init = tensor->init == first    ? second
                       : tensor->init == second ? first
                                                : tensor->init;
  return fmt::format("'{}' and '{}'", first, second);
}
Done fill_otherwise(PlanSet& set, Random& random) {
  RoleProgram& role = role_or_rank(set, random);
  const Tensor* chosen = one_of(states(role), random);
  if (!chosen || !chosen->init.empty()) return std::nullopt;
  const std::string name = chosen->name;
  for (RoleProgram& each : set.roles)
    for (Tensor* tensor : states(each))
      if (tensor->name == name) tensor->fill += 1;
  return name;
}
Done change_hyperparameter(PlanSet& set, Random& random) {
  ProgramOp* op = one_of(optimizers(role_or_rank(set, random)), random);
  if (!op) return std::nullopt;
  const auto& items = op->attrs.items();
  const auto [name, value] = items[below(random, items.size())];
  if (!std::holds_alternative<double>(value)) return std::nullopt;
  op->attrs.set(name, std::get<double>(value) + 0.25);
  return op->op + " " + name;
}
// A gradient, a state or the parameter itself for one another.
Done exchange_operands(PlanSet& set, Random& random) {
  RoleProgram& role = role_or_rank(set, random);
  ProgramOp* op = one_of(optimizers(role), random);
  if (!op || op->inputs.size() < 5) return std::nullopt;
  const size_t i = below(random, 4), j = below(random, 4);
  if (op->inputs[i] == op->inputs[j] || op->inputs[i] < 0 || op->inputs[j] < 0) return std::nullopt;
  std::swap(op->inputs[i], op->inputs[j]);
  return fmt::format("{}: {} and {}", op->op, i, j);
}
Done update_op_twice(PlanSet& set, Random& random) {
  RoleProgram& role = role_or_rank(set, random);
  for (Program& program : role.programs)
    for (size_t o = 0; o < program.ops.size(); ++o)
      if (is_optimizer(program.ops[o]) && random() % 2) {
        const ProgramOp again = program.ops[o];
        program.ops.insert(program.ops.begin() + static_cast<std::ptrdiff_t>(o), again);
        return again.op;
      }
  return std::nullopt;
}
Done forget_parameter(PlanSet& set, Random& random) {
  const Tensor* chosen = one_of(states(role_or_rank(set, random)), random);
  if (!chosen || chosen->param.empty()) return std::nullopt;
  const std::string param = chosen->param;
  for (RoleProgram& each : set.roles)
    for (Tensor* tensor : states(each))
      if (tensor->param == param) tensor->param.clear();
  return param;
}
// Something else, which is named otherwise and said to be of no microbatch.
Done call_otherwise(PlanSet& set, Random& random) {
  RoleProgram& role = role_or_rank(set, random);
  Instruction* one = any_instruction(
      role, random, [](const Instruction& i) { return computes(i) && i.micro >= 0; });
  if (!one) return std::nullopt;
  Program program = role.programs[static_cast<size_t>(one->program)];
  program.ops[below(random, program.ops.size())].op += "Otherwise";
  role.programs.push_back(std::move(program));
  one->program = static_cast<int32_t>(role.programs.size()) - 1;
  const std::string text = std::exchange(one->label, "G stage=1 mb=9");
  if (random() % 2) one->micro = -1;
  return text;
}
Done exchange_squares(PlanSet& set, Random& random) {
  std::vector<ProgramOp*> ops;
  for (Program& program : role_or_rank(set, random).programs)
    for (ProgramOp& op : program.ops)
      if ((op.op == "Concat" || op.op == "GlobalNorm") && op.inputs.size() > 1) ops.push_back(&op);
  ProgramOp* op = one_of(ops, random);
  if (!op) return std::nullopt;
  const size_t i = below(random, op->inputs.size() - 1);
  if (op->inputs[i] == op->inputs[i + 1]) return std::nullopt;
  std::swap(op->inputs[i], op->inputs[i + 1]);
  return fmt::format("{} {}", op->op, i);
}
// Other elements of the same tensor.
Done slice_elsewhere(PlanSet& set, Random& random) {
  std::vector<std::pair<ProgramOp*, std::vector<int64_t>>> moved;  // with other starts
  for (Program& program : role_or_rank(set, random).programs)
    for (ProgramOp& op : program.ops) {
      if (op.op != "Slice") continue;
      const Shape &from = program.values[static_cast<size_t>(op.inputs[0])].shape,
                  &to = program.values[static_cast<size_t>(op.outputs[0])].shape;
      const std::vector<int64_t> starts = op.attrs.integers("starts");
      for (size_t d = 0; d < starts.size() && d < to.size(); ++d) {
        if (to[d] == from[d] || !op.attrs.integers("steps").empty()) continue;
        std::vector<int64_t> other = starts;
        other[d] += starts[d] + to[d] < from[d] ? 1 : -1;
        if (other[d] >= 0) moved.emplace_back(&op, std::move(other));
      }
    }
  if (moved.empty()) return std::nullopt;
  auto& [op, starts] = moved[below(random, moved.size())];
  op->attrs.set("starts", starts);
  return fmt::format("{}", print_attrs(op->attrs));
}
// An op that takes and makes the same.
Done replace_op(PlanSet& set, Random& random) {
  static const std::map<std::string_view, std::vector<const char*>> kAlike = {
      {"Add", {"Sub", "Mul"}}, {"Sub", {"Add", "Mul"}},   {"Mul", {"Add", "Div"}},
      {"Div", {"Mul"}},        {"Relu", {"Tanh", "Neg"}}, {"Tanh", {"Relu", "Sigmoid"}},
      {"Exp", {"Neg", "Tanh"}}};
  std::vector<ProgramOp*> ops;
  Program* program = any_program(role_or_rank(set, random), random);
  for (size_t o = 0; program && o < program->ops.size(); ++o)
    if (kAlike.contains(program->ops[o].op)) ops.push_back(&program->ops[o]);
  ProgramOp* op = one_of(ops, random);
  if (!op) return std::nullopt;
  const auto& others = kAlike.at(op->op);
  const std::string was = std::exchange(op->op, others[below(random, others.size())]);
  return was + " " + op->op;
}
// A scale, the number that keeps a norm from infinity, a share that is dropped.
Done change_real(PlanSet& set, Random& random) {
  std::vector<std::pair<ProgramOp*, std::string>> numbers;
  for (Program& program : role_or_rank(set, random).programs)
    for (ProgramOp& op : program.ops)
      for (const auto& [name, value] : op.attrs.items())
        if (std::holds_alternative<double>(value)) numbers.emplace_back(&op, name);
  if (numbers.empty()) return std::nullopt;
  const auto& [op, name] = numbers[below(random, numbers.size())];
  op->attrs.set(name, op->attrs.real(name) / 2 + 0.125);
  return op->op + " " + name;
}
// Of how many a part is, along which dim, which label does not count.
Done change_integer(PlanSet& set, Random& random) {
  std::vector<std::pair<ProgramOp*, const char*>> numbers;
  for (Program& program : role_or_rank(set, random).programs)
    for (ProgramOp& op : program.ops)
      for (const char* name : {"whole", "axis", "ignore_index", "offset", "causal"})
        if (op.attrs.find(name)) numbers.emplace_back(&op, name);
  if (numbers.empty()) return std::nullopt;
  const auto& [op, name] = numbers[below(random, numbers.size())];
  op->attrs.set(name, op->attrs.integer(name) + (below(random, 2) == 0 ? 1 : -1));
  return fmt::format("{} {} {}", op->op, name, op->attrs.integer(name));
}
// A factor, a bound, a rate.
Done change_literal(PlanSet& set, Random& random) {
  std::vector<std::pair<const Program*, std::string*>> literals;
  for (Program& program : role_or_rank(set, random).programs)
    for (auto& [value, bytes] : program.literals)
      if (!bytes.empty()) literals.emplace_back(&program, &bytes);
  if (literals.empty()) return std::nullopt;
  const auto& [program, bytes] = literals[below(random, literals.size())];
  bytes->back() = static_cast<char>(bytes->back() ^ 1);
  return program->label;
}
// One value for another of the same type, wherever the role's instructions of that kind read it.
Done exchange_values(PlanSet& set, Random& random) {
  RoleProgram& role = role_or_rank(set, random);
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (const Instruction& one : role.body)
    for (const int32_t a : one.args)
      for (const int32_t b : one.args)
        if (one.kind == InstructionKind::kCompute && a < b &&
            role.tensor(a).type == role.tensor(b).type)
          pairs.emplace_back(a, b);
  if (pairs.empty()) return std::nullopt;
  const auto [a, b] = pairs[below(random, pairs.size())];
  const std::string label = any_instruction(role, random, computes)->label;
  for (Instruction& one : role.body)
    if (one.kind == InstructionKind::kCompute && one.label == label)
      for (int32_t& arg : one.args) arg = arg == a ? b : arg == b ? a : arg;
  return fmt::format("{}: '{}' and '{}'", label, role.name(a), role.name(b));
}
// Of two operands of one type each stands for the other.
Done exchange_inputs(PlanSet& set, Random& random) {
  std::vector<std::array<int32_t*, 2>> pairs;
  for (Program& program : role_or_rank(set, random).programs)
    for (ProgramOp& op : program.ops)
      for (size_t i = 1; i < op.inputs.size(); ++i)
        if (op.inputs[i - 1] >= 0 && op.inputs[i] >= 0 && op.inputs[i - 1] != op.inputs[i] &&
            program.values[static_cast<size_t>(op.inputs[i - 1])] ==
                program.values[static_cast<size_t>(op.inputs[i])])
          pairs.push_back({&op.inputs[i - 1], &op.inputs[i]});
  if (pairs.empty()) return std::nullopt;
  const auto& [a, b] = pairs[below(random, pairs.size())];
  std::swap(*a, *b);
  return fmt::format("{} and {}", *a, *b);
}
// What an op reads has been rounded to 16 bits and back.
Done round_between(PlanSet& set, Random& random) {
  Program* program = any_program(role_or_rank(set, random), random);
  std::vector<std::pair<size_t, size_t>> places;
  for (size_t o = 0; program && o < program->ops.size(); ++o)
    for (size_t i = 0; i < program->ops[o].inputs.size(); ++i)
      if (const int32_t input = program->ops[o].inputs[i];
          input >= 0 && program->values[static_cast<size_t>(input)].dtype == DType::kF32)
        places.emplace_back(o, i);
  if (places.empty()) return std::nullopt;
  const auto [o, i] = places[below(random, places.size())];
  const int32_t input = program->ops[o].inputs[i];
  const auto half = static_cast<int32_t>(program->values.size());
  const Shape shape = program->values[static_cast<size_t>(input)].shape;
  program->values.push_back({DType::kBF16, shape});
  program->values.push_back({DType::kF32, shape});
  program->ops[o].inputs[i] = half + 1;
  const std::vector<ProgramOp> casts = {{"Cast", {{"to", "bf16"}}, {input}, {half}},
                                        {"Cast", {{"to", "f32"}}, {half}, {half + 1}}};
  program->ops.insert(program->ops.begin() + static_cast<std::ptrdiff_t>(o), casts.begin(),
                      casts.end());
  return fmt::format("{}: op {}", program->label, o);
}
// A part begins elsewhere, as all ranks count.
Done shift_first(PlanSet& set, Random& random) {
  std::vector<std::pair<Program*, size_t>> places;
  for (Program& program : role_or_rank(set, random).programs)
    for (size_t o = 0; o < program.ops.size(); ++o)
      if ((program.ops[o].attrs.find("whole") || program.ops[o].attrs.find("cuts")) &&
          program.ops[o].inputs.back() >= 0)
        places.emplace_back(&program, o);
  if (places.empty()) return std::nullopt;
  const auto [program, o] = places[below(random, places.size())];
  const int32_t first = program->ops[o].inputs.back();
  const auto one = static_cast<int32_t>(program->values.size());
  const TensorType type = program->values[static_cast<size_t>(first)];
  program->values.insert(program->values.end(), 2, type);
  std::vector<int64_t> ones(static_cast<size_t>(num_elements(type.shape)), 1);
  program->literals.emplace_back(
      one, std::string(reinterpret_cast<const char*>(ones.data()), ones.size() * sizeof(int64_t)));
  program->ops[o].inputs.back() = one + 1;
  program->ops.insert(program->ops.begin() + static_cast<std::ptrdiff_t>(o),
                      {"Add", {}, {first, one}, {one + 1}});
  return fmt::format("{}: op {}", program->label, o);
}
// Other random numbers.
Done change_draw(PlanSet& set, Random& random) {
  RoleProgram& role = role_or_rank(set, random);
  std::vector<Tensor*> constants;
  for (Tensor& tensor : role.tensors)
    if (tensor.kind == BufferKind::kConstant && tensor.type.dtype == DType::kI64)
      constants.push_back(&tensor);
  Tensor* key = one_of(constants, random);
  if (!key) return std::nullopt;
  key->init.empty() ? void(key->fill += 1) : void(key->init += "'");
  return key->name;
}
// Rank 0 speaks for all.
Done drop_report(PlanSet& set, Random& random) {
  std::vector<Report>& reports = role_or_rank(set, random, 0).reports;
  if (reports.empty()) return std::nullopt;
  const auto report = reports.begin() + static_cast<std::ptrdiff_t>(below(random, reports.size()));
  std::string name = report->name;
  reports.erase(report);
  return name;
}

std::vector<ProgramOp*> in_blocks(RoleProgram& role) {
  std::vector<ProgramOp*> ops;
  for (Program& program : role.programs)
    for (ProgramOp& op : program.ops)
      if (op.op == "ToBlocks" || op.op == "FromBlocks") ops.push_back(&op);
  return ops;
}
// Ops of one rank, of one role or of all have the other type of 8 bits, so that both ends of a
// message may agree.
Done round_to_another_type(PlanSet& set, Random& random) {
  std::vector<ProgramOp*> ops = in_blocks(role_or_rank(set, random));
  if (below(random, 3) == 0) {
    ops.clear();
    for (RoleProgram& role : set.roles)
      for (ProgramOp* op : in_blocks(role)) ops.push_back(op);
  }
  if (ops.empty()) return std::nullopt;
  if (below(random, 3) == 0) ops = {one_of(ops, random)};
  for (ProgramOp* op : ops)
    op->attrs.set("to", std::string(op->attrs.text("to") == "int8" ? "float8" : "int8"));
  return fmt::format("{} ops", ops.size());
}
// One op counts its blocks along another axis, or in others.
Done round_in_other_blocks(PlanSet& set, Random& random) {
  ProgramOp* op = one_of(in_blocks(role_or_rank(set, random)), random);
  if (!op) return std::nullopt;
  std::vector<std::string> names;
  for (const auto& [name, value] : op->attrs.items())
    if (std::holds_alternative<int64_t>(value)) names.push_back(name);
  if (names.empty()) return std::nullopt;
  const std::string& name = names[below(random, names.size())];
  const int64_t value = op->attrs.integer(name);
  op->attrs.set(name, below(random, 2) == 0 ? value * 2 : value + 1);
  return fmt::format("{} of {}", name, op->op);
}

constexpr Mutation kRounds[] = {
    {"round to another type", round_to_another_type},
    {"round in other blocks", round_in_other_blocks},
};

constexpr Mutation kDoings[] = {
    {"compute another op", compute_another_op},
    {"load another input", load_another_input},
    {"exchange starts", exchange_starts},
    {"fill otherwise", fill_otherwise},
    {"change a hyperparameter", change_hyperparameter},
    {"exchange operands", exchange_operands},
    {"update twice", update_op_twice},
    {"forget a parameter", forget_parameter},
    {"call otherwise", call_otherwise},
    {"exchange squares", exchange_squares},
    {"slice elsewhere", slice_elsewhere},
    {"replace an op", replace_op},
    {"change a number", change_real},
    {"change an integer", change_integer},
    {"change a literal", change_literal},
    {"exchange values", exchange_values},
    {"exchange inputs", exchange_inputs},
    {"round between", round_between},
    {"shift a first", shift_first},
    {"change a draw", change_draw},
    {"drop a report", drop_report},
};

}  // namespace

std::span<const Mutation> round_mutations() { return kRounds; }
std::span<const Mutation> doing_mutations() { return kDoings; }

}  // namespace piper::mutation
