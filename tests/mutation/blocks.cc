// Mutations of blocks along mesh axes.
#include <array>

#include "mutation/mutations.h"
#include "mutation/places.h"

namespace piper::mutation {
namespace {

bool of_blocks(const Instruction& i) { return takes_pairs(i.kind) && i.dim >= 0; }
bool reduces(const Instruction& i) { return i.kind == InstructionKind::kAllReduce; }
bool of_values(const Instruction& i) {  // not of sums over the step
  return of_blocks(i) || i.kind == InstructionKind::kRotate || (reduces(i) && i.micro >= 0);
}

// Another number of stretches into which the dim can be cut.
std::optional<int64_t> other_outer(Random& random, int64_t extent, int64_t members, int64_t known) {
  std::vector<int64_t> others;
  for (int64_t outer = 1; outer * members <= extent; ++outer)
    if (outer != known && extent % (outer * members) == 0) others.push_back(outer);
  if (others.empty()) return std::nullopt;
  return others[below(random, others.size())];
}

Done drop_value_collective(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, of_values);
  if (!spot) return std::nullopt;
  const std::string name = spot->name();
  auto order = positions(*spot->role);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(spot->index));
  reorder(*spot->role, order);
  return name;
}
Done repeat_value_collective(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, of_values);
  if (!spot) return std::nullopt;
  const std::string name = spot->name();
  auto order = positions(*spot->role);
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(spot->index), spot->index);
  reorder(*spot->role, order);
  return name;
}
Done change_value_group(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, of_values);
  if (!spot || spot->role->groups.size() < 2) return std::nullopt;
  int32_t& group = spot->at().group;
  group = static_cast<int32_t>(
      (static_cast<size_t>(group) + 1 + below(random, spot->role->groups.size() - 1)) %
      spot->role->groups.size());
  return fmt::format("{} over group {}", spot->name(), group);
}
// A sum over the step that leaves out one of its axes.
Done narrow_sum(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, reduces);
  if (!spot) return std::nullopt;
  RoleProgram& role = *spot->role;
  Group group = role.groups[static_cast<size_t>(spot->at().group)];
  if (group.axes.size() < 2) return std::nullopt;
  const size_t out = below(random, group.axes.size());
  if (role.mesh[static_cast<size_t>(group.axes[out])].second == 1) return std::nullopt;
  group.axes.erase(group.axes.begin() + static_cast<std::ptrdiff_t>(out));
  spot->at().group = static_cast<int32_t>(role.groups.size());
  role.groups.push_back(std::move(group));
  return fmt::format("{} without one of its axes", spot->name());
}
// A sum over one axis more.
Done widen_sum(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, reduces);
  if (!spot) return std::nullopt;
  RoleProgram& role = *spot->role;
  Group group = role.groups[static_cast<size_t>(spot->at().group)];
  const auto axis = static_cast<int32_t>(below(random, role.mesh.size()));
  if (role.mesh[static_cast<size_t>(axis)].second == 1 ||
      std::find(group.axes.begin(), group.axes.end(), axis) != group.axes.end())
    return std::nullopt;
  group.axes.push_back(axis);
  std::sort(group.axes.begin(), group.axes.end());
  spot->at().group = static_cast<int32_t>(role.groups.size());
  role.groups.push_back(std::move(group));
  return fmt::format("{} also over axis {}", spot->name(), axis);
}
// Not where labels are counted: their number is the same in whatever blocks.
Done change_blocks(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return of_blocks(i) && !i.label.starts_with("count");
  });
  if (!spot) return std::nullopt;
  Instruction& one = spot->at();
  const bool joins = one.kind == InstructionKind::kAllGather ||
                     one.kind == InstructionKind::kAllToAll ||
                     one.kind == InstructionKind::kDispatch;
  const bool other = one.to_dim >= 0 && below(random, 2) == 0;
  const Shape& whole = spot->role->tensor(one.args[joins && !other ? 1 : 0]).type.shape;
  int64_t& known = other ? one.to_outer : one.outer;
  const auto outer = other_outer(random, whole[static_cast<size_t>(other ? one.to_dim : one.dim)],
                                 members_of(*spot->role, one.group), known);
  if (!outer) return std::nullopt;
  known = *outer;
  return fmt::format("{}: {} {}", spot->name(), other ? "to_outer" : "outer", *outer);
}
bool exchanges(const Instruction& i) { return i.kind == InstructionKind::kAllToAll; }
void forget_group(Instruction& one) {
  one.group = one.dim = one.to_dim = -1;
  one.outer = one.to_outer = 1;
  one.mirrored = one.to_mirrored = false;
}
// Each keeps its own blocks, as if they were those of the other dim.
Done keep_own_blocks(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, exchanges);
  if (!spot) return std::nullopt;
  const std::string name = spot->name();
  forget_group(spot->at());
  spot->at().kind = InstructionKind::kCopy;
  return fmt::format("{} is a copy", name);
}
// Of the blocks that all should exchange each takes its own, in the other shape, in all
// microbatches.
Done skip_exchange(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, exchanges);
  if (!spot) return std::nullopt;
  const std::string name = spot->name();
  RoleProgram& role = *spot->role;
  const auto tensors = [&](const Instruction& one) {
    const auto tensor = [&](size_t arg) {
      return role.buffers[static_cast<size_t>(one.args[arg])].tensor;
    };
    return std::pair(tensor(0), tensor(1));
  };
  const auto skipped = tensors(spot->at());
  const TensorType from = role.tensor(spot->at().args[0]).type,
                   to = role.tensor(spot->at().args[1]).type;
  const auto program = static_cast<int32_t>(role.programs.size());
  role.programs.push_back({.label = "own blocks",
                           .values = {from, to},
                           .num_args = 2,
                           .ops = {{"Reshape", {{"shape", to.shape}}, {0}, {1}}},
                           .arg_written = {false, true},
                           .arg_read = {true, false}});
  for (Instruction& one : role.body) {
    if (!exchanges(one) || tensors(one) != skipped) continue;
    forget_group(one);
    one.kind = InstructionKind::kCompute;
    one.program = program;
  }
  return name;
}
// Every second stretch from its other end, of blocks or of the numbers where they begin.
Done mirror(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return i.mirrored || i.to_mirrored || (of_blocks(i) && i.outer % 2 == 0);
  });
  if (!spot || spot->at().label.starts_with("count")) return std::nullopt;
  Instruction& one = spot->at();
  bool& mirrored = one.to_mirrored ? one.to_mirrored : one.mirrored;
  mirrored = !mirrored;
  return fmt::format("{} is {}", spot->name(), mirrored ? "mirrored" : "not mirrored");
}
// To the ranks that own other numbers.
Done change_owned(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) { return takes_index(i.kind); });
  if (!spot) return std::nullopt;
  int64_t& owned = spot->at().owned;
  owned = below(random, 2) == 0 ? owned + 1 : 2 * owned;
  return fmt::format("{}: a rank owns {}", spot->name(), owned);
}
// By the numbers of another layer, or of another microbatch.
Done change_index(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) { return takes_index(i.kind); });
  if (!spot) return std::nullopt;
  Instruction& one = spot->at();
  std::vector<int32_t> others;
  for (const Instruction& other : spot->role->body)
    if (takes_index(other.kind) && other.args[2] != one.args[2] &&
        spot->role->tensor(other.args[2]).type == spot->role->tensor(one.args[2]).type)
      others.push_back(other.args[2]);
  if (others.empty()) return std::nullopt;
  one.args[2] = others[below(random, others.size())];
  return fmt::format("{} by '{}'", spot->name(), spot->role->name(one.args[2]));
}
// Of how many the numbers are that a part looks up. (Of fewer the last blocks may be filled up; a
// gradient has no part that shows whether these are blocks of blocks.)
Done change_whole(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  std::vector<ProgramOp*> ops;
  for (Program& program : role.programs)
    for (ProgramOp& op : program.ops)
      if (op.attrs.find("whole") && !op.op.ends_with("Grad")) ops.push_back(&op);
  if (ops.empty()) return std::nullopt;
  ProgramOp& op = *ops[below(random, ops.size())];
  op.attrs.set("whole", 2 * op.attrs.integer("whole"));
  return fmt::format("{} of {}", op.op, op.attrs.integer("whole"));
}
Done take_greatest(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, reduces);
  if (!spot) return std::nullopt;
  Reduction& reduction = spot->at().reduction;
  reduction = reduction == Reduction::kSum ? Reduction::kMax : Reduction::kSum;
  return fmt::format("{} takes another reduction", spot->name());
}
Done change_pairs(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return i.kind == InstructionKind::kOwnPart || i.kind == InstructionKind::kReduceScatter;
  });
  if (!spot) return std::nullopt;
  InstructionKind& kind = spot->at().kind;
  kind = kind == InstructionKind::kOwnPart ? InstructionKind::kReduceScatter
                                           : InstructionKind::kOwnPart;
  return fmt::format("{} is a {}", spot->name(), to_string(kind));
}

Done change_position(PlanSet& set, Random& random) {
  const auto spot = any_spot(
      set, random, [](const Instruction& i) { return i.kind == InstructionKind::kPosition; });
  if (!spot) return std::nullopt;
  Instruction& one = spot->at();
  const auto groups = static_cast<int32_t>(spot->role->groups.size());
  if (groups > 1 && below(random, 2) == 0)
    one.group = (one.group + 1) % groups;
  else
    one.outer = below(random, 2) == 0 ? 2 * one.outer : 0;
  return fmt::format("{}: {} times the position in group {}", spot->name(), one.outer, one.group);
}

bool rotates(const Instruction& i) { return i.kind == InstructionKind::kRotate; }
// The keys of another rank, or of an own position that another has.
Done change_turn(PlanSet& set, Random& random) {
  const auto spot =
      any_spot(set, random, [](const Instruction& i) { return rotates(i) || i.turn != 0; });
  if (!spot) return std::nullopt;
  Instruction& one = spot->at();
  const int64_t members = members_of(*spot->role, one.group), least = rotates(one) ? 1 : 0;
  const auto turn = static_cast<int32_t>(
      least + static_cast<int64_t>(below(random, static_cast<size_t>(members - least))));
  if (turn == one.turn) return std::nullopt;
  one.turn = turn;
  return fmt::format("{} of the rank {} before", spot->name(), turn);
}
Done keep_own_turn(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, rotates);
  if (!spot) return std::nullopt;
  const std::string name = spot->name();
  Instruction& one = spot->at();
  one.kind = InstructionKind::kCopy;
  one.group = -1;
  one.turn = 0;
  return fmt::format("{} is a copy", name);
}

// What a ring hands on comes into the buffer from which it is taken.
Done rotate_in_place(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, rotates);
  if (!spot) return std::nullopt;
  const std::vector<int32_t> args = spot->at().args;
  for (Instruction& one : spot->role->body)
    for (int32_t& arg : one.args)
      if (arg == args[1]) arg = args[0];
  return spot->name();
}

// ---- States -------------------------------------------------------------------------------------
Tensor* any_cut(PlanSet& set, Random& random, RoleProgram*& role) {
  role = &any_role(set, random);
  std::vector<Tensor*> cut;
  for (Tensor& tensor : role->tensors)
    if (tensor.cuts.size() == 1 && tensor.part_of < 0) cut.push_back(&tensor);
  return cut.empty() ? nullptr : cut[below(random, cut.size())];
}
Done change_cut_outer(PlanSet& set, Random& random) {
  RoleProgram* role = nullptr;
  Tensor* tensor = any_cut(set, random, role);
  if (!tensor) return std::nullopt;
  TensorCut& cut = tensor->cuts[0];
  const auto outer = other_outer(random, tensor->whole[static_cast<size_t>(cut.dim)],
                                 role->mesh[static_cast<size_t>(cut.axis)].second, cut.outer);
  if (!outer || cut.block * cut.outer % *outer != 0) return std::nullopt;
  cut.block = cut.block * cut.outer / *outer;
  cut.outer = *outer;
  return fmt::format("'{}' cut with outer {}", tensor->name, *outer);
}
Done change_cut_dim(PlanSet& set, Random& random) {
  RoleProgram* role = nullptr;
  Tensor* tensor = any_cut(set, random, role);
  if (!tensor || tensor->whole.size() < 2) return std::nullopt;
  TensorCut& cut = tensor->cuts[0];
  cut.dim = static_cast<int32_t>((static_cast<size_t>(cut.dim) + 1) % tensor->whole.size());
  cut.outer = 1;
  tensor->whole = tensor->type.shape;
  tensor->whole[static_cast<size_t>(cut.dim)] *= role->mesh[static_cast<size_t>(cut.axis)].second;
  return fmt::format("'{}' cut at dim {}", tensor->name, cut.dim);
}
Done change_cut_axis(PlanSet& set, Random& random) {
  RoleProgram* role = nullptr;
  Tensor* tensor = any_cut(set, random, role);
  if (!tensor) return std::nullopt;
  TensorCut& cut = tensor->cuts[0];
  for (size_t axis = 0; axis < role->mesh.size(); ++axis)
    if (static_cast<int32_t>(axis) != cut.axis &&
        role->mesh[axis].second == role->mesh[static_cast<size_t>(cut.axis)].second) {
      cut.axis = static_cast<int32_t>(axis);
      return fmt::format("'{}' cut over axis {}", tensor->name, axis);
    }
  return std::nullopt;
}
Done keep_whole(PlanSet& set, Random& random) {
  RoleProgram* role = nullptr;
  Tensor* tensor = any_cut(set, random, role);
  if (!tensor) return std::nullopt;
  tensor->cuts.clear();
  tensor->whole.clear();
  return fmt::format("'{}' is kept whole", tensor->name);
}

constexpr Mutation kExchanges[] = {
    {"keep own blocks", keep_own_blocks},
    {"skip an exchange", skip_exchange},
};
constexpr auto kOfBlocks = std::to_array<Mutation>({
    {"drop value collective", drop_value_collective},
    {"repeat value collective", repeat_value_collective},
    {"change value group", change_value_group},
    {"narrow a sum", narrow_sum},
    {"widen a sum", widen_sum},
    {"change blocks", change_blocks},
    {"keep own blocks", keep_own_blocks},
    {"skip an exchange", skip_exchange},
    {"mirror", mirror},
    {"change owned", change_owned},
    {"change index", change_index},
    {"change whole", change_whole},
    {"take the greatest", take_greatest},
    {"change pairs", change_pairs},
    {"change position", change_position},
    {"change turn", change_turn},
    {"keep own turn", keep_own_turn},
    {"rotate in place", rotate_in_place},
    {"change cut outer", change_cut_outer},
    {"change cut dim", change_cut_dim},
    {"change cut axis", change_cut_axis},
    {"keep whole", keep_whole},
});

}  // namespace

std::span<const Mutation> block_mutations() { return kOfBlocks; }
std::span<const Mutation> exchange_mutations() { return kExchanges; }

}  // namespace piper::mutation
