// Mutations of the step's numbers where no label tells: what brings other ones to where they are
// read, what rounds them on the way, and updates that are said to be of a microbatch.
#include <map>
#include <set>

#include "mutation/places.h"
#include "piper/base/memory.h"

namespace piper::mutation {
namespace {

// A program of the instruction's own.
Program& own_program(RoleProgram& role, Instruction& one) {
  Program program = role.programs[static_cast<size_t>(one.program)];
  one.program = static_cast<int32_t>(role.programs.size());
  return role.programs.emplace_back(std::move(program));
}
bool has_op(const RoleProgram& role, const Instruction& one, std::string_view part) {
  if (!is_compute(one)) return false;
  const Program& program = role.programs[static_cast<size_t>(one.program)];
  return std::any_of(program.ops.begin(), program.ops.end(),
                     [&](const ProgramOp& op) { return op.op.find(part) != std::string::npos; });
}
bool updates(const RoleProgram& role, const Instruction& one) {
  return has_op(role, one, "Sgd") || has_op(role, one, "Adam") || has_op(role, one, "Adagrad");
}
template <class Is>
std::optional<Spot> spot_where(PlanSet& set, Random& random, const Is& is) {
  std::vector<Spot> spots;
  for (RoleProgram& role : set.roles)
    for (size_t i = 0; i < role.body.size(); ++i)
      if (is(role, role.body[i])) spots.push_back({&role, i});
  if (spots.empty()) return std::nullopt;
  return spots[below(random, spots.size())];
}
// In front of the instruction at `at`, on its stream, behind all that it waits for.
void insert(RoleProgram& role, size_t at, Instruction one) {
  const Instruction& next = role.body[at];
  one.stream = next.stream, one.waits = next.waits;
  role.body.insert(role.body.begin() + static_cast<std::ptrdiff_t>(at), std::move(one));
  for (size_t i = at + 1; i < role.body.size(); ++i)
    for (int32_t& wait : role.body[i].waits)
      if (static_cast<size_t>(wait) >= at) ++wait;
}
// What brings the content of one buffer into another of its type: the own part of one member, or a
// copy, called as if it belonged to a microbatch.
Instruction bring(RoleProgram& role, int32_t from, int32_t to, Random& random) {
  Instruction one;
  one.pass = TaskPass::kMove;
  one.label = "own_part h";
  one.micro = 0;
  one.args = {from, to};
  one.kind = below(random, 2) == 0 ? InstructionKind::kOwnPart : InstructionKind::kCopy;
  if (one.kind == InstructionKind::kCopy) return one;
  one.group = static_cast<int32_t>(role.groups.size());
  role.groups.push_back({"one", {}});
  return one;
}

// The squares from before they are shared come back behind that.
Done bring_back_squares(PlanSet& set, Random& random) {
  const auto spot = spot_where(set, random, [](const RoleProgram& role, const Instruction& one) {
    return one.kind == InstructionKind::kAllReduce &&
           role.tensor(one.args[0]).type.dtype == DType::kF64 && one.micro < 0;
  });
  if (!spot || spot->index + 1 >= spot->role->body.size()) return std::nullopt;
  RoleProgram& role = *spot->role;
  const int32_t squares = spot->at().args[0];
  const std::string name = spot->name();
  const int32_t kept = role.add_buffer({.name = "kept", .type = role.tensor(squares).type});
  role.buffers[static_cast<size_t>(kept)].offset = role.arena_bytes;
  role.arena_bytes += align_up(role.tensor(kept).type.bytes());
  const int32_t stream = spot->at().stream;
  Instruction back = bring(role, kept, squares, random), save = bring(role, squares, kept, random);
  insert(role, spot->index, save);
  const size_t behind = spot->index + 2;
  if (behind >= role.body.size()) return std::nullopt;
  insert(role, behind, back);
  role.body[behind].stream = stream;
  role.body[behind].waits.clear();
  Instruction& next = role.body[behind + 1];
  if (next.stream != stream) {
    next.waits.push_back(static_cast<int32_t>(behind));
    std::sort(next.waits.begin(), next.waits.end());
  }
  return name;
}
// Before an update one number of the step takes the place of another.
Done bring_another_number(PlanSet& set, Random& random) {
  const auto spot = spot_where(set, random, updates);
  if (!spot) return std::nullopt;
  RoleProgram& role = *spot->role;
  std::vector<int32_t> numbers;
  for (size_t b = 0; b < role.buffers.size(); ++b)
    if (role.tensor(b).type.shape.empty() && role.tensor(b).kind == BufferKind::kStep)
      numbers.push_back(static_cast<int32_t>(b));
  if (numbers.size() < 2) return std::nullopt;
  const int32_t from = numbers[below(random, numbers.size())],
                to = numbers[below(random, numbers.size())];
  if (from == to || role.tensor(from).type != role.tensor(to).type) return std::nullopt;
  const std::string text =
      fmt::format("{}: '{}' into '{}'", spot->name(), role.name(from), role.name(to));
  insert(role, spot->index, bring(role, from, to, random));
  return text;
}
// Through a narrower float and back, between an op and what it makes or takes.
void round_value(Program& program, size_t op, bool made, size_t which, DType narrow) {
  ProgramOp& one = program.ops[op];
  int32_t& value = made ? one.outputs[which] : one.inputs[which];
  TensorType type = program.values[static_cast<size_t>(value)];
  const DType wide = type.dtype;
  const auto local = [&](DType dtype) {
    type.dtype = dtype;
    program.values.push_back(type);
    return static_cast<int32_t>(program.values.size()) - 1;
  };
  const int32_t other = local(wide), rounded = local(narrow), from = made ? other : value,
                to = made ? value : other;
  value = other;
  const auto cast = [](int32_t in, int32_t out, DType dtype) {
    return ProgramOp{"Cast", {{"to", std::string(info(dtype).name)}}, {in}, {out}};
  };
  const ProgramOp casts[] = {cast(from, rounded, narrow), cast(rounded, to, wide)};
  program.ops.insert(program.ops.begin() + static_cast<std::ptrdiff_t>(op + (made ? 1 : 0)),
                     std::begin(casts), std::end(casts));
}
Done round_squares(PlanSet& set, Random& random) {
  const auto spot = spot_where(set, random, [](const RoleProgram& role, const Instruction& one) {
    return has_op(role, one, "SumSquares");
  });
  if (!spot) return std::nullopt;
  Program& program = own_program(*spot->role, spot->at());
  std::vector<size_t> ops;
  for (size_t o = 0; o < program.ops.size(); ++o)
    if (program.ops[o].op == "SumSquares" || program.ops[o].op == "Concat") ops.push_back(o);
  const DType narrow = below(random, 2) == 0 ? DType::kF32 : DType::kBF16;
  const size_t op = ops[below(random, ops.size())];
  const std::string text =
      fmt::format("{}: {} through {}", spot->name(), program.ops[op].op, info(narrow).name);
  round_value(program, op, true, 0, narrow);
  return text;
}
Done round_gradient(PlanSet& set, Random& random) {
  const auto spot = spot_where(set, random, updates);
  if (!spot) return std::nullopt;
  Program& program = own_program(*spot->role, spot->at());
  std::vector<size_t> ops;
  for (size_t o = 0; o < program.ops.size(); ++o)
    if (is_optimizer(program.ops[o])) ops.push_back(o);
  const size_t op = ops[below(random, ops.size())];
  const DType dtype = program.values[static_cast<size_t>(program.ops[op].inputs[1])].dtype;
  if (info(dtype).bytes < 4) return std::nullopt;
  round_value(program, op, false, 1, DType::kF16);
  return spot->name();
}
// An update that is said to be of a microbatch does something else.
Done relabel_update(PlanSet& set, Random& random) {
  const auto spot = spot_where(set, random, updates);
  if (!spot) return std::nullopt;
  Program& program = own_program(*spot->role, spot->at());
  spot->at().micro = 0;
  std::vector<size_t> ops;
  for (size_t o = 0; o < program.ops.size(); ++o)
    if (is_optimizer(program.ops[o])) ops.push_back(o);
  const size_t at = ops[below(random, ops.size())];
  ProgramOp& op = program.ops[at];
  const size_t rate = op.op == "AdamW" ? 4 : 3;
  const std::string text = fmt::format("{}: {}", spot->name(), op.op);
  switch (below(random, 3)) {
    case 0: {
      const ProgramOp again = op;
      program.ops.insert(program.ops.begin() + static_cast<std::ptrdiff_t>(at), again);
      return text + " twice";
    }
    case 1:
      if (op.inputs.size() <= rate + 1 || op.inputs[rate + 1] < 0) return std::nullopt;
      op.inputs[rate + 1] = -1;
      return text + " without a factor";
    default:
      if (op.op != "AdamW") return std::nullopt;
      std::swap(op.inputs[2], op.inputs[3]);
      return text + " with its moments exchanged";
  }
}
// Nobody reads what is done for nothing, and elsewhere is done something else.
Done hide_behind_own_part(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  const auto spot = spot_where(set, random, [&](const RoleProgram& of, const Instruction& one) {
    return &of == &role && is_compute(one) && one.micro >= 0;
  });
  if (!spot || role.groups.empty()) return std::nullopt;
  const auto group = static_cast<int32_t>(below(random, role.groups.size()));
  int64_t members = 1;
  for (const int32_t axis : role.groups[static_cast<size_t>(group)].axes)
    members *= role.mesh[static_cast<size_t>(axis)].second;
  const int32_t whole = spot->at().args[0];
  const TensorType type = role.tensor(whole).type;
  if (members == 1 || num_elements(type.shape) % members != 0) return std::nullopt;
  Program& program = own_program(role, spot->at());
  std::vector<ProgramOp*> ops;
  for (ProgramOp& op : program.ops)
    if (op.op == "Tanh" || op.op == "Relu" || op.op == "Sigmoid") ops.push_back(&op);
  if (ops.empty()) return std::nullopt;
  ProgramOp& op = *ops[below(random, ops.size())];
  op.op = op.op == "Tanh" ? "Relu" : "Tanh";
  for (Instruction& one : role.body)  // in all blocks of samples
    if (is_compute(one) && one.micro >= 0 &&
        role.programs[static_cast<size_t>(one.program)].label == program.label &&
        role.programs[static_cast<size_t>(one.program)].values == program.values)
      one.program = spot->at().program;
  const int32_t part =
      role.add_buffer({.name = "part", .type = {type.dtype, {num_elements(type.shape) / members}}});
  role.buffers[static_cast<size_t>(part)].offset = role.arena_bytes;
  role.arena_bytes += align_up(role.tensor(part).type.bytes());
  Instruction take = bring(role, whole, part, random);
  take.kind = InstructionKind::kOwnPart;
  take.group = group;
  const size_t at = spot->index + 1;
  if (at >= role.body.size()) return std::nullopt;
  const int32_t stream = spot->at().stream;
  insert(role, at, take);
  role.body[at].stream = stream;
  role.body[at].waits.clear();
  return fmt::format("{}: {}, and '{}' in parts", spot->name(), op.op, role.name(whole));
}
// ---- Random numbers -----------------------------------------------------------------------------
std::vector<ProgramOp*> draws(RoleProgram& role) {
  std::vector<ProgramOp*> ops;
  for (Program& program : role.programs)
    for (ProgramOp& op : program.ops)
      if (op.op == "Dropout" || op.op == "Random") ops.push_back(&op);
  return ops;
}
// For other elements, wherever that is drawn.
Done draw_elsewhere(PlanSet& set, Random& random) {
  const std::vector<ProgramOp*> all = draws(any_role(set, random));
  if (all.empty()) return std::nullopt;
  const ProgramOp chosen = *all[below(random, all.size())];
  const auto changed = [&](Attrs attrs) {
    const std::vector<int64_t> zeros = attrs.integers("zeros");
    if (zeros.empty() || below(random, 2) == 0) {
      attrs.set("rows", 2 * attrs.integer("rows", 1));
      return attrs;
    }
    std::vector<int64_t> other = zeros;
    if (below(random, 2) == 0)
      other[1] *= 2, other[2] /= 2;
    else
      other[2] /= 2;
    attrs.set("zeros", other);
    return attrs;
  };
  const Attrs attrs = changed(chosen.attrs);
  for (RoleProgram& role : set.roles)
    for (ProgramOp* op : draws(role))
      if (op->attrs == chosen.attrs) op->attrs = attrs;
  return fmt::format("{} instead of {}", print_attrs(attrs), print_attrs(chosen.attrs));
}
// Two draws have each other's key, in all microbatches, forward and backward.
Done exchange_keys(PlanSet& set, Random& random) {
  const auto key_args = [](const RoleProgram& role, const Instruction& one) {
    std::vector<size_t> args;
    if (!has_op(role, one, "Dropout")) return args;
    const Program& program = role.programs[static_cast<size_t>(one.program)];
    for (const ProgramOp& op : program.ops)
      if (op.op == "Dropout" && op.inputs[1] < program.num_args)
        args.push_back(static_cast<size_t>(op.inputs[1]));
    return args;
  };
  std::set<int32_t> keys;
  RoleProgram& role = any_role(set, random);
  for (const Instruction& one : role.body)
    for (const size_t arg : key_args(role, one)) keys.insert(one.args[arg]);
  if (keys.size() < 2) return std::nullopt;
  const int32_t a = *keys.begin(), b = *std::next(keys.begin());
  for (Instruction& one : role.body)
    for (const size_t arg : key_args(role, one))
      if (one.args[arg] == a || one.args[arg] == b) one.args[arg] = one.args[arg] == a ? b : a;
  return fmt::format("'{}' and '{}'", role.name(a), role.name(b));
}

constexpr Mutation kNumbers[] = {
    {"bring back squares", bring_back_squares}, {"bring another number", bring_another_number},
    {"round squares", round_squares},           {"round a gradient", round_gradient},
    {"relabel an update", relabel_update},
};
constexpr Mutation kDraws[] = {
    {"draw elsewhere", draw_elsewhere},
    {"exchange keys", exchange_keys},
};
constexpr Mutation kHidden[] = {
    {"hide behind own parts", hide_behind_own_part},
};

}  // namespace

std::span<const Mutation> number_mutations() { return kNumbers; }
std::span<const Mutation> draw_mutations() { return kDraws; }
std::span<const Mutation> hidden_mutations() { return kHidden; }

}  // namespace piper::mutation
