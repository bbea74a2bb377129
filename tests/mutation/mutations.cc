#include "mutation/mutations.h"

#include <array>

#include "mutation/places.h"
#include "piper/base/memory.h"

namespace piper::mutation {
namespace {

bool any(const Instruction&) { return true; }
bool is_transfer(const Instruction& i) {
  return i.kind == InstructionKind::kSend || i.kind == InstructionKind::kRecv;
}
bool is_input(const Instruction& i) { return i.kind == InstructionKind::kInput; }
bool waits(const Instruction& i) { return !i.waits.empty(); }
bool contributes(const Instruction& i) { return !i.contributions.empty(); }
// Of one microbatch: another does the same otherwise.
bool of_microbatch(const Instruction& i) { return is_compute(i) && i.micro >= 0; }

// ---- Instructions -------------------------------------------------------------------------------
Done drop_instruction(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, any);
  if (!spot) return std::nullopt;
  const std::string name = spot->name();
  auto order = positions(*spot->role);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(spot->index));
  reorder(*spot->role, order);
  return name;
}
Done repeat_instruction(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, any);
  if (!spot) return std::nullopt;
  const std::string name = spot->name();
  auto order = positions(*spot->role);
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(spot->index), spot->index);
  reorder(*spot->role, order);
  return name;
}
Done move_instruction(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, any);
  if (!spot || spot->role->body.size() < 2) return std::nullopt;
  auto order = positions(*spot->role);
  const size_t to = below(random, order.size());
  const std::string text = fmt::format("{} to {}", spot->name(), to);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(spot->index));
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(std::min(to, order.size())),
               spot->index);
  reorder(*spot->role, order);
  return text;
}
Done swap_neighbours(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, any);
  if (!spot || spot->index + 1 >= spot->role->body.size()) return std::nullopt;
  const std::string text = fmt::format("{} and the next", spot->name());
  auto order = positions(*spot->role);
  std::swap(order[spot->index], order[spot->index + 1]);
  reorder(*spot->role, order);
  return text;
}
Done change_stream(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, any);
  if (!spot || spot->role->streams.size() < 2) return std::nullopt;
  int32_t& stream = spot->at().stream;
  stream = (stream + 1) % static_cast<int32_t>(spot->role->streams.size());
  return fmt::format("{} to stream {}", spot->name(), stream);
}

// ---- Waits --------------------------------------------------------------------------------------
Done drop_wait(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, waits);
  if (!spot) return std::nullopt;
  auto& list = spot->at().waits;
  const size_t k = below(random, list.size());
  const std::string text = fmt::format("{} waits no longer for {}", spot->name(), list[k]);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(k));
  return text;
}
Done earlier_wait(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, waits);
  if (!spot) return std::nullopt;
  auto& list = spot->at().waits;
  int32_t& wait = list[below(random, list.size())];
  if (wait == 0) return std::nullopt;
  const int32_t before = wait;
  wait = static_cast<int32_t>(below(random, static_cast<size_t>(wait)));
  std::sort(list.begin(), list.end());
  if (std::adjacent_find(list.begin(), list.end()) != list.end()) return std::nullopt;
  return fmt::format("{} waits for another than {}", spot->name(), before);
}

// ---- Operands -----------------------------------------------------------------------------------
Done change_arg(PlanSet& set, Random& random) {
  return take_another(set, random, [](const Instruction& i) {
    return !i.args.empty() && (i.kind != InstructionKind::kCompute || i.micro >= 0);
  });
}
template <Filter kFilter>
Done swap_two_args(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, kFilter);
  if (!spot) return std::nullopt;
  auto& args = spot->at().args;
  std::vector<std::pair<size_t, size_t>> pairs;
  for (size_t i = 0; i < args.size(); ++i)
    for (size_t j = i + 1; j < args.size(); ++j)
      if (args[i] != args[j] &&
          spot->role->tensor(args[i]).type == spot->role->tensor(args[j]).type)
        pairs.emplace_back(i, j);
  if (pairs.empty()) return std::nullopt;
  const auto [i, j] = pairs[below(random, pairs.size())];
  std::swap(args[i], args[j]);
  return fmt::format("{}: args {} and {}", spot->name(), i, j);
}
Done change_program(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, of_microbatch);
  if (!spot) return std::nullopt;
  const RoleProgram& role = *spot->role;
  int32_t& program = spot->at().program;
  const auto signature = [&](size_t p) {
    const Program& of = role.programs[p];
    return std::make_tuple(
        std::vector<TensorType>(of.values.begin(), of.values.begin() + of.num_args),
        of.arg_written);
  };
  std::vector<int32_t> others;
  for (size_t p = 0; p < role.programs.size(); ++p) {
    const auto mine = signature(static_cast<size_t>(program)), other = signature(p);
    if (static_cast<int32_t>(p) != program && std::get<1>(mine) == std::get<1>(other) &&
        std::get<0>(mine) == std::get<0>(other))
      others.push_back(static_cast<int32_t>(p));
  }
  if (others.empty()) return std::nullopt;
  const int32_t other = others[below(random, others.size())];
  const std::string text =
      fmt::format("{}: program {} instead of {}", spot->name(), other, program);
  program = other;
  return text;
}
Done shift_samples(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_input);
  if (!spot) return std::nullopt;
  SampleRange& samples = spot->at().samples;
  const int64_t blocks = spot->role->batch / std::max<int64_t>(samples.count, 1);
  if (samples.count == 0 || blocks < 2) return std::nullopt;
  const int64_t shift = 1 + static_cast<int64_t>(below(random, static_cast<size_t>(blocks - 1)));
  samples.first = (samples.first + shift * samples.count) % spot->role->batch;
  return fmt::format("{} from {}", spot->name(), samples.first);
}
Done change_stride(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_input);
  if (!spot) return std::nullopt;
  for (int64_t& stride : spot->at().samples.stride)
    if (stride != 0) {
      stride = random() % 2 ? 0 : stride / 2;
      return fmt::format("{} stride {}", spot->name(), stride);
    }
  return std::nullopt;
}

// ---- Communication ------------------------------------------------------------------------------
Done change_communicator(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_transfer);
  if (!spot) return std::nullopt;
  std::vector<int32_t> others;
  for (const Instruction& one : spot->role->body)
    if (is_transfer(one) && one.communicator != spot->at().communicator)
      others.push_back(one.communicator);
  others.push_back(spot->at().communicator + 1000);
  spot->at().communicator = others[below(random, others.size())];
  return fmt::format("{} on communicator {}", spot->name(), spot->at().communicator);
}
Done change_peer(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_transfer);
  if (!spot) return std::nullopt;
  auto& peer = spot->at().peer;
  const size_t d = below(random, peer.size());
  const int64_t size = spot->role->mesh[d].second;
  const auto other = static_cast<int32_t>(below(random, static_cast<size_t>(size)));
  if (other == peer[d] || (peer[d] < 0 && size == 1)) return std::nullopt;
  peer[d] = other;
  return fmt::format("{}: coordinate {} on axis {}", spot->name(), other, d);
}
Done change_group(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_collective);
  if (!spot || spot->role->groups.size() < 2) return std::nullopt;
  int32_t& group = spot->at().group;
  group = (group + 1) % static_cast<int32_t>(spot->role->groups.size());
  return fmt::format("{} over group {}", spot->name(), group);
}
Done shorten_message(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return (i.kind == InstructionKind::kAllReduce && i.args.size() > 1) ||
           (takes_pairs(i.kind) && i.args.size() > 3);
  });
  if (!spot) return std::nullopt;
  auto& args = spot->at().args;
  const size_t k = below(random, args.size());
  const std::string text = fmt::format("{} without arg {}", spot->name(), k);
  const bool pairs = takes_pairs(spot->at().kind);
  const auto first = args.begin() + static_cast<std::ptrdiff_t>(pairs ? k / 2 * 2 : k);
  args.erase(first, first + (pairs ? 2 : 1));
  return text;
}

// ---- Memory -------------------------------------------------------------------------------------
int64_t arena_of(const RoleProgram& role, const Buffer& buffer) {
  return role.tensor(buffer).host ? role.host_bytes : role.arena_bytes;
}
Done move_buffer(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  if (role.buffers.size() < 2) return std::nullopt;
  Buffer& buffer = role.buffers[below(random, role.buffers.size())];
  const int64_t to = role.buffers[below(random, role.buffers.size())].offset;
  if (to == buffer.offset || to + role.tensor(buffer).type.bytes() > arena_of(role, buffer))
    return std::nullopt;
  buffer.offset = to;
  return fmt::format("'{}' to {}", role.name(buffer), to);
}
Done shift_buffer(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  Buffer& buffer = role.buffers[below(random, role.buffers.size())];
  const int64_t to = buffer.offset + (random() % 2 ? 64 : -64);
  if (to < 0 || to + role.tensor(buffer).type.bytes() > arena_of(role, buffer)) return std::nullopt;
  buffer.offset = to;
  return fmt::format("'{}' to {}", role.name(buffer), to);
}
Done shrink_memory(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  if (random() % 2 && role.host_bytes >= 64) {
    role.host_bytes -= kAlignment;
    return "the host's arena";
  }
  role.arena_bytes -= kAlignment;
  return "the arena";
}
Done forget_state(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  Tensor& tensor = role.tensor(static_cast<int32_t>(below(random, role.buffers.size())));
  if (tensor.kind == BufferKind::kStep) return std::nullopt;
  tensor.kind = BufferKind::kStep;
  tensor.init.clear(), tensor.param.clear(), tensor.fill = 0;
  return fmt::format("'{}' lives for a step", tensor.name);
}

// ---- Sums ---------------------------------------------------------------------------------------
// An accumulation that begins anew, or one that begins with what lay there.
Done change_first(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, contributes);
  if (!spot) return std::nullopt;
  const RoleProgram& role = *spot->role;
  std::vector<size_t> others;  // of the same pass, stage and length: another microbatch's
  for (size_t i = 0; i < role.body.size(); ++i) {
    const Instruction& other = role.body[i];
    if (contributes(other) && other.pass == spot->at().pass && other.stage == spot->at().stage &&
        other.args.size() == spot->at().args.size() && other.program != spot->at().program &&
        other.contributions.size() == spot->at().contributions.size() &&
        role.programs[static_cast<size_t>(other.program)].label ==
            role.programs[static_cast<size_t>(spot->at().program)].label)
      others.push_back(i);
  }
  if (others.empty()) return std::nullopt;
  const Instruction& other = role.body[others[below(random, others.size())]];
  const std::string text = fmt::format("{} runs what '{}' runs", spot->name(), other.label);
  spot->at().program = other.program;
  for (size_t c = 0; c < other.contributions.size(); ++c)
    spot->at().contributions[c].accumulates = other.contributions[c].accumulates;
  return text;
}
Done read_early(PlanSet& set, Random& random) {
  const auto spot =
      any_spot(set, random, [](const Instruction& i) { return i.pass == TaskPass::kU; });
  if (!spot) return std::nullopt;
  const std::string name = spot->name();
  auto order = positions(*spot->role);
  const size_t to = below(random, spot->index + 1);
  order.erase(order.begin() + static_cast<std::ptrdiff_t>(spot->index));
  order.insert(order.begin() + static_cast<std::ptrdiff_t>(to), spot->index);
  reorder(*spot->role, order);
  return fmt::format("{} at {}", name, to);
}

// ---- Versions and steps -------------------------------------------------------------------------
// The lists in which a step of the plan stands.
std::array<std::vector<Instruction>*, 3> lists_of(RoleProgram& role) {
  return {&role.prologue, &role.body, &role.epilogue};
}
// A task of a microbatch, or a gather for it, takes the other version of a parameter, wherever it
// stands.
Done other_version(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  std::vector<std::pair<int32_t, int32_t>> versions;  // previous, newest
  for (size_t b = 0; b < role.buffers.size(); ++b)
    if (role.tensor(b).previous_of >= 0)
      versions.emplace_back(static_cast<int32_t>(b), role.tensor(b).previous_of);
  if (versions.empty()) return std::nullopt;
  const auto [previous, newest] = versions[below(random, versions.size())];
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return of_microbatch(i) || i.kind == InstructionKind::kAllGather;
  });
  if (!spot || spot->role != &role) return std::nullopt;
  const std::string label = spot->at().label;
  bool changed = false;
  for (std::vector<Instruction>* list : lists_of(role))
    for (Instruction& one : *list)
      for (int32_t& arg : one.args)
        if (one.label == label && (arg == previous || arg == newest)) {
          arg = arg == previous ? newest : previous;
          changed = true;
        }
  if (!changed) return std::nullopt;
  return fmt::format("'{}' takes the other version of '{}'", label, role.tensor(newest).param);
}
// What belongs to the next step belongs to this one, or the other way round.
Done other_step(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, [](const Instruction& i) {
    return i.kind == InstructionKind::kInput || contributes(i);
  });
  if (!spot || spot->role->steps_ahead == 0) return std::nullopt;
  spot->at().ahead = 1 - spot->at().ahead;
  return fmt::format("{} {} steps ahead", spot->name(), spot->at().ahead);
}
// A task that runs ahead does so with the step's other tasks, in all parts of the plan.
Done other_part(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  if (role.prologue.empty()) return std::nullopt;
  const size_t from = below(random, role.prologue.size());
  Instruction one = role.prologue[from];
  one.waits.clear();
  const std::string label = one.label;
  role.prologue.erase(role.prologue.begin() + static_cast<std::ptrdiff_t>(from));
  for (Instruction& other : role.prologue) other.waits.clear();
  for (Instruction& other : role.epilogue) other.waits.clear();
  for (Instruction& other : role.body)
    if (other.label == label && other.args == one.args) other.ahead = 0;
  role.epilogue.insert(role.epilogue.begin(), std::move(one));
  return fmt::format("'{}' in the epilogue", label);
}
Done drop_in_other_part(PlanSet& set, Random& random) {
  RoleProgram& role = any_role(set, random);
  std::vector<Instruction>& list = random() % 2 ? role.prologue : role.epilogue;
  if (list.empty()) return std::nullopt;
  const std::string label = list.back().label;
  list.pop_back();
  return fmt::format("without '{}'", label);
}

// ---- Messages of several tensors ----------------------------------------------------------------
bool is_joined(const Instruction& i) { return is_transfer(i) && i.args.size() > 1; }
Done shorten_one_end(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_joined);
  if (!spot) return std::nullopt;
  auto& args = spot->at().args;
  const size_t k = below(random, args.size());
  args.erase(args.begin() + static_cast<std::ptrdiff_t>(k));
  return fmt::format("{} without arg {}", spot->name(), k);
}
Done move_tensor_twice(PlanSet& set, Random& random) {
  const auto spot = any_spot(set, random, is_joined);
  if (!spot) return std::nullopt;
  auto& args = spot->at().args;
  const size_t from = below(random, args.size()), to = below(random, args.size());
  if (from == to) return std::nullopt;
  args[to] = args[from];
  return fmt::format("{}: arg {} as arg {}", spot->name(), from, to);
}

constexpr Mutation kMutations[] = {
    {"drop an instruction", drop_instruction},
    {"repeat an instruction", repeat_instruction},
    {"move an instruction", move_instruction},
    {"swap neighbours", swap_neighbours},
    {"change a stream", change_stream},
    {"drop a wait", drop_wait},
    {"wait for an earlier one", earlier_wait},
    {"change an argument", change_arg},
    {"swap arguments", swap_two_args<of_microbatch>},
    {"change a program", change_program},
    {"load other samples", shift_samples},
    {"change a stride of samples", change_stride},
    {"change a communicator", change_communicator},
    {"change a peer", change_peer},
    {"change a group", change_group},
    {"shorten a message", shorten_message},
    {"move a buffer", move_buffer},
    {"shift a buffer", shift_buffer},
    {"shrink the stated memory", shrink_memory},
    {"forget a state", forget_state},
    {"begin a sum anew", change_first},
    {"update early", read_early},
};
constexpr Mutation kJoinMutations[] = {
    {"swap tensors of a message", swap_two_args<is_joined>},
    {"shorten one end", shorten_one_end},
    {"move a tensor twice", move_tensor_twice},
};
constexpr Mutation kVersionMutations[] = {
    {"read the other version", other_version},
    {"work for the other step", other_step},
    {"begin in the other part", other_part},
    {"drop in the other part", drop_in_other_part},
};

}  // namespace

std::span<const Mutation> version_mutations() { return kVersionMutations; }
std::span<const Mutation> join_mutations() { return kJoinMutations; }

std::vector<Mutation> mutations() {
  std::vector<Mutation> all(std::begin(kMutations), std::end(kMutations));
  for (const auto more : {targeted_mutations(), agreement_mutations()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace piper::mutation
