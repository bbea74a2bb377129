// Loads a rank's plan: memory, programs, communicators, instructions with everything resolved.
#include <fmt/format.h>

#include <algorithm>

#include "piper/plan/outer_updates.h"
#include "replay.h"

namespace piper {
namespace {

using State = Executor::State;

Error wrong_plan(const State& state, const Op& op, const std::string& what) {
  return fail("rank {}, {}: {}", state.source.rank, op.label, what).with_code(ExitCode::kPlan);
}

// ---- Instructions -------------------------------------------------------------------------------

// Returns bytes of the k-th argument.
int64_t bytes_of(const State& state, const Instruction& from, size_t k) {
  return state.type(from.args[k]).bytes();
}

Status bind_compute(State& state, const Instruction& from, std::span<const int32_t> programs,
                    Op& op) {
  std::vector<std::byte*> args;
  for (int32_t id : from.args) args.push_back(state.at(id));
  std::byte* workspace = nullptr;
  if (static_cast<size_t>(from.stream) < state.workspaces.size()) {
    workspace = state.workspaces[static_cast<size_t>(from.stream)];
  }
  auto binding = state.backend.bind(programs[static_cast<size_t>(from.program)], args, workspace);
  if (!binding && binding.error().code == ExitCode::kStorage) return std::move(binding).error();
  if (!binding) return wrong_plan(state, op, binding.error().message);
  op.handle = *binding;
  return ok_status();
}

int64_t first_sample(const State& state, const SampleRange& samples) {
  int64_t first = samples.first;
  for (size_t axis = 0; axis < samples.stride.size(); ++axis) {
    first += samples.stride[axis] * state.coordinates[axis];
  }
  return first;
}

Status bind_input(State& state, const Instruction& from, std::span<const InputNeed> needs, Op& op) {
  if (from.input.empty()) {
    op.size = first_sample(state, from.samples);
    op.count = from.samples.count;
    if (state.type(from.args[0]) == TensorType{DType::kI64, {op.count}}) return ok_status();
    return wrong_plan(state, op, fmt::format("the numbers of {} samples do not fit", op.count));
  }
  const std::vector<DataInput>& inputs = state.role->inputs;
  const auto input =
      std::find_if(inputs.begin(), inputs.end(), [&](auto& n) { return n.name == from.input; });
  if (input == inputs.end()) return wrong_plan(state, op, fmt::format("no input '{}'", from.input));
  const auto need = std::find_if(needs.begin(), needs.end(),
                                 [&](auto& n) { return n.name == input->data_name(); });
  if (state.source.data == nullptr) {
    return fail("the plan reads the input '{}', and there are no data for it", need->name)
        .with_code(ExitCode::kUsage);
  }
  op.handle = static_cast<int32_t>(need - needs.begin());
  op.size = first_sample(state, from.samples) + input->share * state.role->batch;
  op.count = from.samples.count;
  int64_t whole = need->type.bytes();
  bool cut = need->batch_dim >= 0;
  int64_t batch = cut ? need->type.shape[static_cast<size_t>(need->batch_dim)] : 1;
  int64_t wanted = cut ? whole / std::max<int64_t>(batch, 1) * op.count : whole;
  bool inside = !cut || (op.size >= 0 && op.count >= 0 && op.size + op.count <= batch);
  if (!inside || wanted != bytes_of(state, from, 0)) {
    return wrong_plan(
        state, op,
        fmt::format("samples [{}, {}) of input '{}' do not fit {}", op.size, op.size + op.count,
                    need->name, to_string(state.type(from.args[0]))));
  }
  return ok_status();
}

// Returns how many messages of a section the communicator carries: what may be under way at once.
int64_t messages_on(const RoleProgram& role, int32_t communicator) {
  int64_t most = 1;
  for (const auto* section : role.sections())
    most = std::max<int64_t>(
        most, std::count_if(section->begin(), section->end(), [&](const Instruction& one) {
          return one.kind == InstructionKind::kSend && one.communicator == communicator;
        }));
  return most;
}

// Returns the backend's stream for one of the plan.
int32_t stream_of(const State& state, int32_t stream) {
  return state.backend.is_asynchronous() ? state.queues.streams[static_cast<size_t>(stream)] : 0;
}
Result<int32_t> add_hidden(State& state) {
  if (!state.backend.is_asynchronous()) return 0;
  PIPER_ASSIGN(const int32_t stream, state.backend.add_stream({}));
  state.queues.all.push_back(stream);
  return stream;
}

void add_peers(State& state, std::span<const int64_t> ranks) {
  for (const int64_t rank : ranks)
    if (rank != state.source.rank && std::ranges::find(state.peers, rank) == state.peers.end())
      state.peers.push_back(rank);
}

Result<int32_t> open_group(State& state, const Communicator& one, int32_t number) {
  const std::vector<int64_t> ranks = group_ranks(*state.role, {"", one.axes}, state.coordinates);
  add_peers(state, ranks);
  return state.fabric.add_group(ranks, number, stream_of(state, one.streams[0]));
}

// Returns its own end of a communicator; -1 where the rank is no member. What is sent leaves on a
// stream of its own.
Result<int32_t> open_communicator(State& state, int32_t number) {
  const RoleProgram& role = *state.role;
  const Communicator& one = role.communicators[static_cast<size_t>(number)];
  if (!one.is_pair()) return open_group(state, one, number);
  const auto is_own = [&](const std::vector<int32_t>& place) {
    return std::equal(place.begin(), place.end(), state.coordinates.begin(),
                      [](int32_t wanted, int64_t own) { return wanted < 0 || wanted == own; });
  };
  const int64_t peer = peer_rank(role, is_own(one.from) ? one.to : one.from, state.coordinates);
  if (is_own(one.from) || is_own(one.to)) add_peers(state, {&peer, 1});
  if (is_own(one.from)) {
    PIPER_ASSIGN(const int32_t stream, add_hidden(state));
    PIPER_ASSIGN(const int32_t end,
                 state.fabric.add_send(peer, number, messages_on(role, number), stream));
    state.queues.stream_of_route[end] = stream;
    return end;
  }
  if (!is_own(one.to)) return -1;
  return state.fabric.add_recv(peer, number, stream_of(state, one.streams[1]));
}

Status bind_message(State& state, const Instruction& from, Op& op) {
  op.size = bytes_of(state, from, 0);
  if (from.args.size() == 1) return ok_status();
  std::vector<MessagePart>& parts = state.messages.emplace_back();
  for (size_t k = 0; k < from.args.size(); ++k)
    parts.push_back({state.at(from.args[k]), bytes_of(state, from, k)});
  op.parts = parts.data();
  op.count = static_cast<int64_t>(parts.size());
  return state.fabric.add_message(parts);
}

Status bind_all_reduce(State& state, const Instruction& from, Op& op) {
  std::vector<Piece>& pieces = state.pieces.emplace_back();
  for (int32_t id : from.args) {
    const TensorType& type = state.type(id);
    if (!is_summable(type.dtype)) {
      return wrong_plan(state, op, fmt::format("no sum of {}", info(type.dtype).name));
    }
    Piece piece{state.at(id), type.dtype, num_elements(type.shape), from.reduction};
    if (from.count > 0) piece.data += from.first * info(type.dtype).bytes, piece.count = from.count;
    pieces.push_back(piece);
  }
  op.collective = &state.collectives.emplace_back(
      Collective{.kind = from.kind, .fast = from.fast, .pieces = pieces});
  return ok_status();
}

// Returns the loops over the elements of a block that is cut along two dims. Where every second
// stretch of a dim is counted from its end (zigzag), one exchange moves these stretches, and
// another one the rest: `turned` says which, for the dim that is joined and for the one that is
// cut.
Exchange exchange_of(const Instruction& from, const TensorType& type, const Shape& to,
                     int64_t members, std::pair<bool, bool> turned, const std::byte* from_begin,
                     std::byte* to_begin) {
  Exchange made;
  int64_t from_step = info(type.dtype).bytes, to_step = from_step, source = 0, target = 0;
  made.run = from_step;
  const auto add = [&](int64_t count, int64_t from_turn, int64_t to_turn) {
    if (made.loops.empty() && from_turn == made.run && to_turn == made.run)
      made.run *= count;
    else if (!made.loops.empty() && made.loops[0].count * made.loops[0].from == from_turn &&
             made.loops[0].count * made.loops[0].to == to_turn)
      made.loops[0].count *= count;
    else if (count != 1)
      made.loops.insert(made.loops.begin(), {count, from_turn, to_turn});
  };
  for (size_t d = type.shape.size(); d-- > 0;) {
    const bool joined = static_cast<int32_t>(d) == from.dim,
               cut = static_cast<int32_t>(d) == from.to_dim;
    const int64_t blocks = joined ? from.outer
                           : cut  ? from.to_outer
                                  : 1,
                  block = std::min(type.shape[d], to[d]) / blocks;
    add(block, from_step, to_step);
    if (joined) made.to_block = block * to_step;
    if (cut) made.from_block = block * from_step;
    const bool halves = (joined && from.mirrored) || (cut && from.to_mirrored),
               odd = halves && (joined ? turned.first : turned.second);
    const int64_t from_turn = type.shape[d] / blocks * from_step,
                  to_turn = to[d] / blocks * to_step, step = halves ? 2 : 1;
    add(blocks / step, from_turn * step, to_turn * step);
    if (odd) source += from_turn, target += to_turn;
    if (odd && joined) target += (members - 1) * std::exchange(made.to_block, -made.to_block);
    if (odd && cut) source += (members - 1) * std::exchange(made.from_block, -made.from_block);
    from_step *= type.shape[d];
    to_step *= to[d];
  }
  made.from = from_begin + source;
  made.to = to_begin + target;
  return made;
}

// Runs of values are blocks of dim 1.
Status bind_exchanges(State& state, Instruction from, std::span<const int64_t> group_sizes,
                      Op& op) {
  for (int32_t* dim : {&from.dim, &from.to_dim})
    if (*dim < 0) *dim = 1;
  const auto group = static_cast<size_t>(from.group);
  std::vector<Exchange>& exchanges = state.exchanges.emplace_back();
  for (size_t k = 0; k + 1 < from.args.size(); k += 2) {
    const TensorType &type = state.type(from.args[k]), &to = state.type(from.args[k + 1]);
    Shape whole = type.shape, wanted = to.shape;
    const auto rank = static_cast<int32_t>(whole.size());
    const bool has_dims = from.dim >= 0 && from.dim < rank && from.to_dim >= 0 &&
                          from.to_dim < rank && wanted.size() == whole.size();
    if (has_dims) whole[static_cast<size_t>(from.dim)] *= group_sizes[group];
    if (has_dims) wanted[static_cast<size_t>(from.to_dim)] *= group_sizes[group];
    if (!has_dims || whole != wanted || type.dtype != to.dtype)
      return wrong_plan(state, op,
                        fmt::format("{} and {} do not fit {} members", to_string(type),
                                    to_string(to), group_sizes[group]));
    for (const bool joined : {false, true})
      for (const bool cut : {false, true})
        if (joined <= from.mirrored && cut <= from.to_mirrored)
          exchanges.push_back(exchange_of(from, type, to.shape, group_sizes[group], {joined, cut},
                                          state.at(from.args[k]), state.at(from.args[k + 1])));
  }
  op.collective =
      &state.collectives.emplace_back(Collective{.kind = from.kind, .exchanges = exchanges});
  return ok_status();
}

Status bind_shards(State& state, const Instruction& from, std::span<const int64_t> group_sizes,
                   Op& op) {
  const auto group = static_cast<size_t>(from.group);
  if (from.kind == InstructionKind::kOwnPart)
    op.member = static_cast<int32_t>(
        group_position(*state.role, state.role->groups[group], state.coordinates));
  std::vector<Shard>& shards = state.shards.emplace_back();
  const auto whole_first = static_cast<size_t>(info(from.kind).whole);
  for (size_t k = 0; k + 1 < from.args.size(); k += 2) {
    const int32_t whole = from.args[k + whole_first], part = from.args[k + 1 - whole_first];
    const DType dtype = state.type(whole).dtype;
    Shard shard{state.at(whole),
                state.at(part),
                dtype,
                num_elements(state.type(whole).shape),
                num_elements(state.type(part).shape),
                stretches_of(state.type(whole).shape, from),
                from.mirrored,
                from.in_blocks(),
                from.first,
                from.count};
    if (info(from.kind).adds && !is_summable(dtype))
      return wrong_plan(state, op, fmt::format("no sum of {}", info(dtype).name));
    const int64_t together = shard.part_count * group_sizes[group];
    if (dtype != state.type(part).dtype || together < shard.count ||
        (from.dim >= 0 && (together > shard.count || shard.part_count % shard.stretches != 0)))
      return wrong_plan(state, op,
                        fmt::format("{} and {} do not fit {} members", to_string(state.type(whole)),
                                    to_string(state.type(part)), group_sizes[group]));
    shards.push_back(shard);
  }
  op.collective = &state.collectives.emplace_back(
      Collective{.kind = from.kind, .fast = from.fast, .shards = shards});
  return ok_status();
}

Status bind_rows(State& state, const Instruction& from, std::span<const int64_t> group_sizes,
                 Op& op) {
  const auto group = static_cast<size_t>(from.group);
  const auto whole = static_cast<size_t>(info(from.kind).whole);
  const TensorType &type = state.type(from.args[whole]), &part = state.type(from.args[1 - whole]),
                   &index = state.type(from.args[2]);
  Rows rows;
  rows.whole = state.at(from.args[whole]), rows.part = state.at(from.args[1 - whole]);
  rows.index = state.at(from.args[2]);
  rows.wide = index.dtype == DType::kI64;
  rows.count = num_elements(index.shape);
  rows.members = group_sizes[group], rows.owned = from.owned;
  rows.stretches = stretches_of(type.shape, from);
  rows.mirrored = from.mirrored;
  rows.row_bytes = rows.count > 0 ? type.bytes() / rows.count : 0;
  const bool fits = (rows.wide || index.dtype == DType::kI32) && rows.owned > 0 &&
                    type.dtype == part.dtype && part.bytes() * rows.members == type.bytes() &&
                    rows.row_bytes * rows.count == type.bytes() &&
                    rows.count % (rows.stretches * rows.members) == 0;
  if (!fits)
    return wrong_plan(state, op,
                      fmt::format("{}, {} and the index {} do not fit {} members", to_string(type),
                                  to_string(part), to_string(index), rows.members));
  const std::vector<Rows>& kept = state.rows.emplace_back(1, rows);
  op.collective = &state.collectives.emplace_back(Collective{.kind = from.kind, .rows = kept});
  return ok_status();
}

// Returns how many arguments an instruction must have before anything is read from them.
size_t least_args(InstructionKind kind) {
  switch (info(kind).args) {
    case ArgForm::kPieces:
      return 0;
    case ArgForm::kShards:
    case ArgForm::kExchanges:
    case ArgForm::kTurns:
      return 2;
    case ArgForm::kRows:
      return 3;
    case ArgForm::kOwn:
      break;
  }
  switch (kind) {
    case InstructionKind::kCompute:
      return 0;
    case InstructionKind::kInput:
    case InstructionKind::kSend:
    case InstructionKind::kRecv:
    case InstructionKind::kPosition:
      return 1;
    case InstructionKind::kCopy:
      return 2;
    default:
      PIPER_CHECK(false, "{} has args of a form of its own", to_string(kind));
  }
}

struct Bound {
  std::vector<int32_t> programs, communicators;
  std::vector<int64_t> group_sizes;
  std::vector<InputNeed> needs;
};

// Returns the position of the member `turn` before its own; -1: there is none.
int64_t member_before(const State& state, const Instruction& from, const Bound& bound) {
  const auto group = static_cast<size_t>(from.group);
  const int64_t own = group_position(*state.role, state.role->groups[group], state.coordinates),
                members = bound.group_sizes[group];
  return from.turn < 0 || from.turn >= members ? -1 : (own + members - from.turn) % members;
}

Status bind_turn(State& state, const Instruction& from, const Bound& bound, Op& op) {
  const int64_t bytes = bytes_of(state, from, 0);
  if (bytes != bytes_of(state, from, 1) || member_before(state, from, bound) < 0)
    return wrong_plan(state, op, "no such turn");
  const std::vector<Turn>& turns = state.turns.emplace_back(1, Turn{op.a, op.b, bytes, from.turn});
  op.collective = &state.collectives.emplace_back(Collective{.kind = from.kind, .turns = turns});
  return ok_status();
}

// Binds the numbers that say where the blocks begin, one for each stretch.
Status bind_position(State& state, const Instruction& from, const Bound& bound, Op& op) {
  const int64_t members = bound.group_sizes[static_cast<size_t>(from.group)],
                own = member_before(state, from, bound);
  if (own < 0 || state.type(from.args[0]).dtype != DType::kI64)
    return wrong_plan(state, op, "no such position");
  std::vector<int64_t>& numbers = state.positions.emplace_back();
  for (int64_t s = 0; s < num_elements(state.type(from.args[0]).shape); ++s) {
    const int64_t at = from.mirrored && s % 2 != 0 ? members - 1 - own : own;
    numbers.push_back((s * members + at) * from.outer);
  }
  op.b = reinterpret_cast<std::byte*>(numbers.data());
  op.size = static_cast<int64_t>(numbers.size()) * info(DType::kI64).bytes;
  return ok_status();
}

// Binds what moves between args as a group says, by the form of its operands.
Status bind_operands(State& state, const Instruction& from, const Bound& bound, Op& op) {
  switch (info(from.kind).args) {
    case ArgForm::kPieces:
      return bind_all_reduce(state, from, op);
    case ArgForm::kShards:
      return bind_shards(state, from, bound.group_sizes, op);
    case ArgForm::kExchanges:
      return bind_exchanges(state, from, bound.group_sizes, op);
    case ArgForm::kTurns:
      return bind_turn(state, from, bound, op);
    case ArgForm::kRows:
      return bind_rows(state, from, bound.group_sizes, op);
    case ArgForm::kOwn:
      break;
  }
  PIPER_CHECK(false, "no instruction is of kind {}", static_cast<int>(from.kind));
}

Status bind_instruction(State& state, const Instruction& from, Bound& bound, Op& op) {
  op.kind = from.kind;
  op.ahead = from.ahead;
  if (from.args.size() < least_args(from.kind)) return wrong_plan(state, op, "too few arguments");
  if (from.communicator >= 0) {
    op.handle = bound.communicators[static_cast<size_t>(from.communicator)];
    if (op.handle < 0) return wrong_plan(state, op, "its communicator is of other ranks");
  }
  if (!from.args.empty()) op.a = state.at(from.args[0]);
  if (from.args.size() > 1) op.b = state.at(from.args[1]);
  switch (from.kind) {
    case InstructionKind::kCompute:
      return bind_compute(state, from, bound.programs, op);
    case InstructionKind::kInput:
      return bind_input(state, from, bound.needs, op);
    case InstructionKind::kSend:
    case InstructionKind::kRecv:
      return bind_message(state, from, op);
    case InstructionKind::kCopy:
      op.size = bytes_of(state, from, 0);
      if (op.size != bytes_of(state, from, 1))
        return wrong_plan(state, op, "copies between buffers of different sizes");
      return ok_status();
    case InstructionKind::kPosition:
      return bind_position(state, from, bound, op);
    default:
      return bind_operands(state, from, bound, op);
  }
}

Status bind_section(State& state, const char* name, const std::vector<Instruction>& instructions,
                    Bound& bound, BoundSection& section) {
  section.name = name;
  section.instructions = &instructions;
  section.ops.resize(instructions.size());
  // Positions are those of the plan: what the backend has added is in front.
  const size_t added = name ? 0 : instructions.size() - state.plan->body.size();
  for (size_t i = 0; i < instructions.size(); ++i) {
    const Instruction& from = instructions[i];
    const std::string number = i < added ? "" : fmt::format(" {}", i - added);
    state.labels.push_back(
        fmt::format("{}instruction{} ({}{}{})", name ? fmt::format("{}, ", name) : "", number,
                    to_string(from.kind), from.label.empty() ? "" : " ", from.label));
    section.ops[i].label = state.labels.back().c_str();
    section.ops[i].spent = spent_on(from);
    if (state.tool) section.ranges.push_back(range_for(*state.tool, from));
    PIPER_TRY(bind_instruction(state, from, bound, section.ops[i]));
  }
  draw_lines(state, section);
  return state.backend.is_asynchronous() ? prepare_section(state, section) : ok_status();
}

Status prepare_collectives(State& state) {
  return state.fabric.prepare([&]() -> Status {
    for (const BoundSection* section : state.all_sections())
      for (const Op& op : section->ops) {
        if (!is_collective(op.kind)) continue;
        if (Status prepared = run_op(state, op); !prepared) {
          Error error = std::move(prepared).error();
          error.message =
              fmt::format("rank {}, {}: {}", state.source.rank, op.label, error.message);
          return error;
        }
      }
    return ok_status();
  });
}

Status load_programs(State& state, Bound& bound) {
  std::vector<int64_t> bytes;
  PIPER_ASSIGN(bound.programs, state.backend.load_all(state.role->programs));
  for (const int32_t program : bound.programs)
    bytes.push_back(state.backend.workspace_bytes(program));
  PIPER_TRY(allocate_workspaces(state, workspaces_of(*state.role, bytes)));
  for (const Group& group : state.role->groups)
    bound.group_sizes.push_back(std::ssize(group_ranks(*state.role, group, state.coordinates)));
  for (size_t c = 0; c < state.role->communicators.size(); ++c) {
    PIPER_ASSIGN(const int32_t end, open_communicator(state, static_cast<int32_t>(c)));
    bound.communicators.push_back(end);
  }
  return ok_status();
}

}  // namespace

Result<std::vector<InputNeed>> data_needs(const PlanSet& set) {
  std::vector<InputNeed> needs;
  for (const RoleProgram& role : set.roles) {
    for (const DataInput& input : role.inputs) {
      const std::string& name = input.data_name();
      TensorType type = input.type;  // of all shares
      if (input.batch_dim >= 0) type.shape[static_cast<size_t>(input.batch_dim)] *= input.shares;
      auto same = std::find_if(needs.begin(), needs.end(), [&](auto& n) { return n.name == name; });
      if (same == needs.end()) {
        needs.push_back(
            {name, type, input.batch_dim, input.low, input.high, input.ignore, input.ranges});
      } else if (same->type != type || same->batch_dim != input.batch_dim) {
        return fail("two roles read the input '{}' with types {} and {}", name,
                    to_string(same->type), to_string(type))
            .with_code(ExitCode::kPlan);
      }
    }
  }
  return needs;
}

namespace {

// Checks that the backend runs the plan, and that the fabric moves what it queues.
Status check_backend_fits(const State& state) {
  const Backend& backend = state.backend;
  const Fabric& fabric = state.fabric;
  if (!backend.runs(state.plan->target))
    return fail("the plan is made for the target '{}', which the {} backend does not run",
                quote_control(state.plan->target), backend.name())
        .with_code(ExitCode::kPlan);
  if (!state.plan->communicators.empty() && backend.is_asynchronous() != fabric.is_asynchronous())
    return fail("the {} backend and the {} fabric do not work together: only one of them queues",
                backend.name(), fabric.name())
        .with_code(ExitCode::kUsage);
  return ok_status();
}

// Lets the backend prepare the role. Error (kPlan): that takes more memory than the plan states.
Status prepare_role(State& state) {
  state.role = std::make_shared<const RoleProgram>(state.backend.prepare(*state.plan));
  const RoleProgram& role = *state.role;
  const int64_t packed = role.arena_bytes - state.plan->arena_bytes;
  if (state.backend.keeps_within(role.target) && packed > role.packed_bytes)
    return fail(
               "rank {} takes {} bytes for packed weights and gaps between rows, the plan states "
               "{}",
               state.source.rank, packed, role.packed_bytes)
        .with_code(ExitCode::kPlan);
  state.coordinates = coordinates_of(role.mesh, state.source.rank);
  return ok_status();
}

// Lists the instructions of windows, then those of bodies that have an outer update beside them.
void take_instructions(State& state) {
  const RoleProgram& role = *state.role;
  state.windows = windows_of(role.steps_ahead);
  for (size_t w = kWindowsInLists; w < state.windows.size(); ++w)
    state.taken.push_back(instructions_of(role, state.windows[w]));
  for (const OuterUpdate& update : role.outer_updates)
    state.taken.push_back(runs_beside(role, update) ? instructions_beside(role, update)
                                                    : std::vector<Instruction>());
}

// Reserves what instructions point into, which stays where it is.
void reserve_operands(State& state) {
  size_t instructions = 0;
  for (const auto* section : state.role->sections()) instructions += section->size();
  for (const std::vector<Instruction>& section : state.taken) instructions += section.size();
  state.labels.reserve(instructions);
  state.pieces.reserve(instructions);
  state.shards.reserve(instructions);
  state.messages.reserve(instructions);
}

Status bind_sections(State& state, Bound& bound) {
  const RoleProgram& role = *state.role;
  PIPER_TRY(bind_section(state, "prologue", role.prologue, bound, state.prologue));
  PIPER_TRY(bind_section(state, nullptr, role.body, bound, state.body));
  PIPER_TRY(bind_section(state, "epilogue", role.epilogue, bound, state.epilogue));
  PIPER_TRY(bind_section(state, "evaluation", role.evaluation, bound, state.evaluation));
  for (const OuterUpdate& update : role.outer_updates)
    PIPER_TRY(bind_section(state, "outer update", update.instructions, bound,
                           state.outer_updates.emplace_back()));
  state.body.is_traced = true;
  state.body.body_count = static_cast<int32_t>(role.body.size());
  const size_t windows = state.taken.size() - role.outer_updates.size();
  for (size_t t = 0; t < state.taken.size(); ++t)
    PIPER_TRY(bind_section(state, t < windows ? "window" : "beside an outer update", state.taken[t],
                           bound,
                           (t < windows ? state.others : state.bodies_beside).emplace_back()));
  const auto is_of_body = [&](const Instruction& one) {
    return role.streams[static_cast<size_t>(one.stream)].name != kBesideStream;
  };
  state.events_of_step = role.body.size();
  for (size_t u = 0; u < role.outer_updates.size(); ++u) {
    state.events_of_step += role.outer_updates[u].instructions.size();
    BoundSection &alone = state.outer_updates[u], &beside = state.bodies_beside[u];
    alone.is_traced = beside.is_traced = true;
    alone.update = beside.update = static_cast<int32_t>(u);
    beside.body_first = static_cast<int32_t>(
        std::ranges::find_if(*beside.instructions, is_of_body) - beside.instructions->begin());
    beside.body_count = state.body.body_count;
  }
  return ok_status();
}

// Prepares what an asynchronous backend records: times and graphs, where they are kept, and the
// ends of sections.
Status prepare_recordings(State& state) {
  const RankSource& source = state.source;
  Backend& backend = state.backend;
  if (backend.keeps_times() && (source.trace_steps > 0 || source.time_every > 0))
    PIPER_TRY(prepare_times(state));
  if (source.graphs && source.trace_steps == 0 && backend.can_capture())
    PIPER_TRY(prepare_graphs(state));
  for (size_t s = 0; s < state.queues.all.size(); ++s) {
    PIPER_ASSIGN(const int32_t event, backend.add_event());
    state.queues.joins.push_back(event);
  }
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Executor>> Executor::load(const RankSource& source, Backend& backend,
                                                 Control& control, Fabric& fabric) {
  auto state = std::make_unique<State>(source, backend, control, fabric);
  const PlanSet& set = *source.set;
  state->plan = &set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(source.rank)])];
  PIPER_TRY(check_backend_fits(*state));
  PIPER_TRY(prepare_role(*state));
  PIPER_TRY(allocate(*state));
  if (backend.is_asynchronous()) PIPER_TRY(prepare_queues(*state));
  PIPER_TRY(fill_buffers(*state));
  PIPER_TRY(start_helper(*state));
  Bound bound;
  PIPER_ASSIGN(bound.needs, data_needs(set));
  PIPER_TRY(load_programs(*state, bound));
  take_instructions(*state);
  reserve_operands(*state);
  find_tool(*state);
  PIPER_TRY(bind_sections(*state, bound));
  PIPER_TRY(prepare_collectives(*state));
  PIPER_TRY(stage_inputs(*state));
  PIPER_TRY(prepare_recordings(*state));
  list_numbers(*state);
  if (source.replay > 0) {
    PIPER_ASSIGN(state->replay, Replay::open(*state, source.replay));
  }
  state->reports.resize(state->role->reports.size());
  state->trace.resize(state->events_of_step * static_cast<size_t>(source.trace_steps));
  state->traced.resize(static_cast<size_t>(source.trace_steps));
  return std::unique_ptr<Executor>(new Executor(std::move(state)));
}

}  // namespace piper
