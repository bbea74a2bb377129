// Mutations that aim at one promise of the verifier each: updates once a step, parameters gathered
// fresh, one order of collectives, races between streams, equal microbatches.
#include "mutation/places.h"
#include "piper/base/memory.h"

namespace piper::mutation {
namespace {

bool is_send(const Instruction& i) { return i.kind == InstructionKind::kSend; }
bool is_pairs(const Instruction& i) { return takes_pairs(i.kind); }
bool is_update(const Instruction& i) {
  return i.kind == InstructionKind::kCompute && i.micro < 0 && !i.sum_reads.empty();
}
bool sums(const Instruction& i) {
  return i.kind == InstructionKind::kCompute && i.micro < 0 &&
         !(i.sum_reads.empty() && i.combines.empty());
}
bool of_later_microbatch(const Instruction& i) {
  return i.kind == InstructionKind::kCompute && i.micro > 0;
}

const Tensor& tensor_of(const RoleProgram& role, const Instruction& one, size_t arg) {
  return role.tensor(one.args[arg]);
}

// Two messages of one type change places: each goes where the other was meant to go.
Done swap_messages(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_send);
  if (!spot) return std::nullopt;
  RoleProgram& role = *spot->role;
  std::vector<Instruction*> others;
  for (Instruction& other : role.body)
    if (is_send(other) && other.args[0] != spot->at().args[0] &&
        tensor_of(role, other, 0).type == tensor_of(role, spot->at(), 0).type)
      others.push_back(&other);
  if (others.empty()) return std::nullopt;
  Instruction& other = *others[below(random, others.size())];
  std::swap(spot->at().args, other.args);
  return fmt::format("{} and '{}'", spot->name(), other.label);
}

Done swap_collectives(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_collective);
  if (!spot) return std::nullopt;
  std::vector<size_t> others;
  for (size_t i = 0; i < spot->role->body.size(); ++i)
    if (i != spot->index && is_collective(spot->role->body[i])) others.push_back(i);
  if (others.empty()) return std::nullopt;
  const size_t other = others[below(random, others.size())];
  const std::string text = fmt::format("{} and {}", spot->name(), other);
  auto order = positions(*spot->role);
  std::swap(order[spot->index], order[other]);
  reorder(*spot->role, order);
  return text;
}

Done update_twice(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_update);
  if (!spot) return std::nullopt;
  auto order = positions(*spot->role);
  const size_t at = spot->index + 1 + below(random, order.size() - spot->index);
  const std::string text = fmt::format("{} again at {}", spot->name(), at);
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(at), spot->index);
  reorder(*spot->role, order);
  return text;
}

// Parameters or states from before they are made.
Done gather_early(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return i.kind == InstructionKind::kAllGather || i.kind == InstructionKind::kOwnPart;
  });
  if (!spot || spot->index == 0) return std::nullopt;
  auto order = positions(*spot->role);
  const size_t to = below(random, spot->index);
  const std::string text = fmt::format("{} at {}", spot->name(), to);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(spot->index));
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(to), spot->index);
  reorder(*spot->role, order);
  return text;
}

Done swap_pairs(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_pairs);
  if (!spot) return std::nullopt;
  auto& args = spot->at().args;
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t i = 0; i < args.size(); ++i)
    for (size_t j = i + 2; j < args.size(); j += 2)
      if (tensor_of(*spot->role, spot->at(), i).type == tensor_of(*spot->role, spot->at(), j).type)
        pairs.emplace_back(i, j);
  if (pairs.empty()) return std::nullopt;
  const auto [i, j] = pairs[below(random, pairs.size())];
  std::swap(args[i], args[j]);
  return fmt::format("{}: args {} and {}", spot->name(), i, j);
}

// A sum or a parameter at the end of the step is taken for another of its type.
Done change_end(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, sums);
  if (!spot) return std::nullopt;
  const RoleProgram& role = *spot->role;
  Instruction& one = spot->at();
  std::vector<size_t> args;
  for (const SumRead& read : one.sum_reads) args.push_back(static_cast<size_t>(read.arg));
  for (const SumCombine& sum : one.combines)
    args.insert(args.end(), sum.from.begin(), sum.from.end());
  for (size_t a = 0; a < one.args.size(); ++a)
    if (!tensor_of(role, one, a).param.empty()) args.push_back(a);
  const size_t arg = args[below(random, args.size())];
  std::vector<int32_t> others;
  for (size_t b = 0; b < role.buffers.size(); ++b)
    if (static_cast<int32_t>(b) != one.args[arg] &&
        role.tensor(b).type == tensor_of(role, one, arg).type)
      others.push_back(static_cast<int32_t>(b));
  if (others.empty()) return std::nullopt;
  const int32_t other = others[below(random, others.size())];
  const std::string text = fmt::format("{}: '{}' instead of '{}'", spot->name(), role.name(other),
                                       role.name(one.args[arg]));
  one.args[arg] = other;
  return text;
}

// A stream waits no longer for another at all.
Done drop_waits(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) { return !i.waits.empty(); });
  if (!spot) return std::nullopt;
  auto& body = spot->role->body;
  const int32_t stream = spot->at().stream,
                other = body[static_cast<size_t>(spot->at().waits[0])].stream;
  for (Instruction& one : body)
    if (one.stream == stream)
      std::erase_if(one.waits,
                    [&](int32_t wait) { return body[static_cast<size_t>(wait)].stream == other; });
  return fmt::format("stream {} for stream {}", stream, other);
}

// One microbatch computes a little otherwise than the first: another factor, axis or order.
Done change_computation(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, of_later_microbatch);
  if (!spot) return std::nullopt;
  RoleProgram& role = *spot->role;
  Program program = role.programs[static_cast<size_t>(spot->at().program)];
  ProgramOp& op = program.ops[below(random, program.ops.size())];
  if (op.op == "Add" || op.op == "Mul" || op.op == "Reshape" || op.op == "Cast" ||
      op.op == "Expand" || op.op == "Slice")
    return std::nullopt;  // may be the same in another order, or only copy bytes
  if (op.inputs.size() > 1 && op.inputs[0] >= 0 && op.inputs[1] >= 0 &&
      op.inputs[0] != op.inputs[1] &&
      program.values[static_cast<size_t>(op.inputs[0])] ==
          program.values[static_cast<size_t>(op.inputs[1])]) {
    std::swap(op.inputs[0], op.inputs[1]);
  } else {
    op.attrs.set("changed", int64_t{1});
  }
  const std::string text = fmt::format("{}: {}", spot->name(), op.op);
  spot->at().program = static_cast<int32_t>(role.programs.size());
  role.programs.push_back(std::move(program));
  return text;
}

// A sum, or a cast of a later microbatch, rounds once more, to 16 bits on the way. (What updates
// and the first microbatch compute is trusted, and how one device plays replicas.)
Done round_once_more(PlanSet& set, Random& random) {
  if (set.world() == 1) return std::nullopt;
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return of_later_microbatch(i) || !i.combines.empty();
  });
  if (!spot) return std::nullopt;
  RoleProgram& role = *spot->role;
  Program program = role.programs[static_cast<size_t>(spot->at().program)];
  const auto type = [&](int32_t v) { return program.values[static_cast<size_t>(v)].dtype; };
  std::vector<ProgramOp*> ops;
  for (ProgramOp& op : program.ops) {
    const bool known = op.op == "Add" || op.op == "Cast";
    const bool floats = std::all_of(op.inputs.begin(), op.inputs.end(),
                                    [&](int32_t v) { return v >= 0 && info(type(v)).is_float; });
    if (known && floats && op.outputs.size() == 1 && info(type(op.outputs[0])).is_float)
      ops.push_back(&op);
  }
  if (ops.empty()) return std::nullopt;
  ProgramOp& op = *ops[below(random, ops.size())];
  const DType from = type(op.inputs[0]), to = type(op.outputs[0]);
  // Sums may be rounded to what a result of their program has.
  const auto has = [&](DType dtype) {
    bool found = from == dtype || to == dtype;
    for (int32_t arg = 0; arg < program.num_args; ++arg)
      found = found || (program.arg_written[static_cast<size_t>(arg)] && type(arg) == dtype);
    return found;
  };
  const DType narrow = has(DType::kBF16) ? DType::kF16 : DType::kBF16;
  if (has(narrow)) return std::nullopt;
  const std::string text = fmt::format("{}: {} through {}", spot->name(), op.op, info(narrow).name);
  // The op makes a local; that is rounded, and converted back into what it made.
  const auto local = [&](DType dtype) {
    TensorType made = program.values[static_cast<size_t>(op.outputs[0])];
    made.dtype = dtype;
    program.values.push_back(std::move(made));
    return static_cast<int32_t>(program.values.size()) - 1;
  };
  const int32_t result = op.outputs[0], wide = local(to), rounded = local(narrow);
  const auto cast = [](int32_t value, int32_t into, DType dtype) {
    return ProgramOp{"Cast", {{"to", std::string(info(dtype).name)}}, {value}, {into}};
  };
  op.outputs[0] = wide;
  const ProgramOp more[] = {cast(wide, rounded, narrow), cast(rounded, result, to)};
  program.ops.insert(program.ops.begin() + (&op - program.ops.data()) + 1, std::begin(more),
                     std::end(more));
  spot->at().program = static_cast<int32_t>(role.programs.size());
  role.programs.push_back(std::move(program));
  return text;
}

// The copy of a parameter is made of another one, or before the update.
Done round_wrongly(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_update);
  if (!spot) return std::nullopt;
  RoleProgram& role = *spot->role;
  Program program = role.programs[static_cast<size_t>(spot->at().program)];
  std::vector<size_t> copies;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const ProgramOp& op = program.ops[i];
    if (op.op == "Cast" && op.inputs[0] < program.num_args && op.outputs[0] < program.num_args &&
        info(program.values[static_cast<size_t>(op.outputs[0])].dtype).bytes == 2)
      copies.push_back(i);
  }
  if (copies.empty()) return std::nullopt;
  const size_t one = copies[below(random, copies.size())],
               other = copies[below(random, copies.size())];
  int32_t &from = program.ops[one].inputs[0], &instead = program.ops[other].inputs[0];
  const auto type = [&](int32_t v) { return program.values[static_cast<size_t>(v)]; };
  std::string text = fmt::format("{}: {} and {} change places", spot->name(), one, other);
  if (from != instead && type(from) == type(instead)) {
    std::swap(from, instead);
  } else {
    text = fmt::format("{}: {} comes first", spot->name(), one);
    const auto at = program.ops.begin() + static_cast<std::ptrdiff_t>(one);
    std::rotate(program.ops.begin(), at, at + 1);
  }
  spot->at().program = static_cast<int32_t>(role.programs.size());
  role.programs.push_back(std::move(program));
  return text;
}

// The copies of two parameters change places in all updates.
Done swap_copies(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  std::vector<std::pair<int32_t, int32_t>> pairs;
  const auto count = static_cast<int32_t>(role.buffers.size());
  for (int32_t a = 0; a < count; ++a)
    for (int32_t b = a + 1; b < count && role.tensor(a).copy_of >= 0; ++b)
      if (role.tensor(b).copy_of >= 0 && role.tensor(a).type == role.tensor(b).type)
        pairs.emplace_back(a, b);
  if (pairs.empty()) return std::nullopt;
  const auto [a, b] = pairs[below(random, pairs.size())];
  bool changed = false;
  for (auto* list : {&role.body, &role.epilogue})
    for (Instruction& one : *list) {
      if (one.pass != TaskPass::kU) continue;
      for (int32_t& arg : one.args)
        if (arg == a || arg == b) arg = arg == a ? b : a, changed = true;
    }
  if (!changed) return std::nullopt;
  return fmt::format("'{}' and '{}'", role.tensor(a).name, role.tensor(b).name);
}

Done change_start(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  std::vector<std::pair<Tensor*, const Tensor*>> pairs;
  for (Tensor& tensor : role.tensors)
    for (const Tensor& other : role.tensors)
      if (!tensor.param.empty() && tensor.kind == BufferKind::kState && !other.init.empty() &&
          other.init != tensor.init && other.type == tensor.type && other.whole == tensor.whole)
        pairs.emplace_back(&tensor, &other);
  if (pairs.empty()) return std::nullopt;
  const auto [tensor, other] = pairs[below(random, pairs.size())];
  tensor->init = other->init;
  return fmt::format("'{}' from '{}'", tensor->name, other->init);
}

// The learning rate changes places with a number that comes from the step's sums.
Done swap_reports(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  const auto rate = std::find_if(role.reports.begin(), role.reports.end(),
                                 [](const Report& each) { return each.name == "learning_rate"; });
  if (rate == role.reports.end() || role.reports.size() < 2) return std::nullopt;
  Report& other = role.reports[below(random, role.reports.size())];
  if (other.name == rate->name || other.name == "loss_scale") return std::nullopt;
  std::swap(rate->buffer, other.buffer);
  return fmt::format("'{}' and '{}'", rate->name, other.name);
}

// ---- Parts --------------------------------------------------------------------------------------
// In all roles the instructions of this label are followed (behind = 1) or preceded by what `make`
// makes of them; it says how many they are.
template <class Make>
void insert_beside(PlanSet& set, std::string label, size_t behind, Make make) {
  for (RoleProgram& role : set.roles)
    for (size_t i = 0; i < role.body.size(); ++i) {
      if (role.body[i].label != label) continue;
      std::vector<Instruction> more = make(role, role.body[i]);
      const size_t count = more.size(), at = i + behind;
      role.body.insert(role.body.begin() + static_cast<std::ptrdiff_t>(at), more.begin(),
                       more.end());
      for (Instruction& one : role.body)
        for (int32_t& wait : one.waits)
          if (static_cast<size_t>(wait) >= at) wait += static_cast<int32_t>(count);
      i += count;
    }
}
int32_t add_behind(RoleProgram& role, const char* name, const TensorType& type) {
  const int32_t buffer = role.add_buffer({.name = name, .type = type});
  role.buffers[static_cast<size_t>(buffer)].offset = role.arena_bytes;
  role.arena_bytes += align_up(type.bytes());
  return buffer;
}
Instruction communicate(InstructionKind kind, std::vector<int32_t> args, const Instruction& like,
                        int32_t group) {
  Instruction made;
  made.kind = kind;
  made.pass = TaskPass::kMove;
  made.args = std::move(args);
  made.stream = like.stream;
  made.group = group;
  made.label = "detour";
  return made;
}

// Each rank has the part of the one before.
Done give_part_before(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return i.kind == InstructionKind::kReduceScatter && i.args.size() == 2;
  });
  if (!spot || members_of(*spot->role, spot->at().group) == 1) return std::nullopt;
  const std::string name = spot->name();
  insert_beside(set, spot->at().label, 1, [](RoleProgram& role, const Instruction& one) {
    const TensorType type = tensor_of(role, one, 1).type;
    const int32_t moved = add_behind(role, "moved", type);
    Instruction rotate =
        communicate(InstructionKind::kRotate, {one.args[1], moved}, one, one.group);
    rotate.turn = 1;
    return std::vector{rotate, communicate(InstructionKind::kCopy, {moved, one.args[1]}, one, -1)};
  });
  return name;
}

// A value that is computed with is put together from the parts that replicas have of their own.
Done gather_from_replicas(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, of_later_microbatch);
  if (!spot || spot->role->groups.empty()) return std::nullopt;
  const auto group = static_cast<int32_t>(below(random, spot->role->groups.size()));
  const size_t arg = below(random, spot->at().args.size());
  const std::string label = spot->at().label, name = spot->name();
  const TensorType type = tensor_of(*spot->role, spot->at(), arg).type;
  const int64_t members = members_of(*spot->role, group), elements = num_elements(type.shape);
  if (members == 1 || elements % members != 0) return std::nullopt;
  for (const RoleProgram& role : set.roles)
    for (const Instruction& one : role.body)
      if (one.label == label &&
          (static_cast<size_t>(group) >= role.groups.size() || members_of(role, group) != members ||
           arg >= one.args.size() || tensor_of(role, one, arg).type != type))
        return std::nullopt;
  insert_beside(set, label, 0, [&](RoleProgram& role, Instruction& one) {
    const int32_t whole = one.args[arg],
                  part = add_behind(role, "part", {type.dtype, {elements / members}}),
                  again = add_behind(role, "again", type);
    one.args[arg] = again;
    return std::vector{communicate(InstructionKind::kOwnPart, {whole, part}, one, group),
                       communicate(InstructionKind::kAllGather, {part, again}, one, group)};
  });
  return fmt::format("{}: arg {} by group {}", name, arg, group);
}

// What goes from stage to stage goes to the next replica, each rank having a role of its own. (Not
// sums: they would be the same ones in another order.)
Done cross_replicas(PlanSet& set, Random& random) {
  const auto spot =
      any_spot(set, random, [](const Instruction& i) { return is_send(i) && i.micro >= 0; });
  if (!spot) return std::nullopt;
  const std::string what = spot->at().label.substr(spot->at().label.find(' ') + 1);
  const size_t axis = below(random, spot->role->mesh.size());
  const int64_t size = spot->role->mesh[axis].second;
  if (size == 1 || spot->at().peer[axis] >= 0) return std::nullopt;
  std::vector<RoleProgram> roles;
  for (size_t rank = 0; rank < set.role_of_rank.size(); ++rank) {
    RoleProgram& role = roles.emplace_back(set.roles[static_cast<size_t>(set.role_of_rank[rank])]);
    const int64_t own = coordinates_of(role.mesh, static_cast<int64_t>(rank))[axis];
    for (Instruction& one : role.body) {
      const bool sends = is_send(one), receives = one.kind == InstructionKind::kRecv;
      if ((sends || receives) && one.label.substr(one.label.find(' ') + 1) == what)
        one.peer[axis] = static_cast<int32_t>((own + (sends ? 1 : size - 1)) % size);
    }
  }
  set.roles = std::move(roles);
  std::iota(set.role_of_rank.begin(), set.role_of_rank.end(), 0);
  return fmt::format("'{}' along axis {}", what, axis);
}

constexpr Mutation kTargeted[] = {
    {"swap messages", swap_messages},
    {"swap collectives", swap_collectives},
    {"update twice", update_twice},
    {"gather early", gather_early},
    {"swap pairs", swap_pairs},
    {"change an end", change_end},
    {"drop all waits", drop_waits},
    {"change a computation", change_computation},
    {"round once more", round_once_more},
    {"change initial values", change_start},
    {"swap reports", swap_reports},
    {"give the part before", give_part_before},
    {"gather from replicas", gather_from_replicas},
    {"cross replicas", cross_replicas},
};

constexpr Mutation kOfCopies[] = {
    {"round wrongly", round_wrongly},
    {"swap copies", swap_copies},
};

}  // namespace

std::span<const Mutation> targeted_mutations() { return kTargeted; }
std::span<const Mutation> copy_mutations() { return kOfCopies; }

}  // namespace piper::mutation
