#include "mutation/interpreter.h"

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "mutation/ranks.h"

namespace piper::mutation {
namespace {

class Interpreter {
 public:
  Interpreter(const PlanSet& set, const Run& run) : set_(set), run_(run), random_(run.seed) {
    for (int64_t r = 0; r < set.world(); ++r) {
      Rank rank;
      rank.role = &set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(r)])];
      rank.coordinates = coordinates_of(rank.role->mesh, r);
      rank.arena.cells = poison(rank.role->arena_bytes / 4);
      rank.host.cells = poison(rank.role->host_bytes / 4);
      ranks_.push_back(std::move(rank));
    }
    weights_.resize(64);
    for (uint64_t& weight : weights_) weight = random_();
  }

  Outcome run() {
    Outcome outcome;
    try {
      for (Rank& rank : ranks_) fill(rank);
      for (Rank& rank : ranks_) advance(rank);
      while (!all_ended()) step();
    } catch (const Fault& found) {
      outcome.fault = found.text;
    }
    for (const auto& [place, symbols] : left_behind_)
      outcome.symbols.insert(outcome.symbols.end(), symbols.begin(), symbols.end());
    return outcome;
  }

 private:
  // ---- Memory -----------------------------------------------------------------------------------
  Symbols poison(int64_t cells) {
    return spread(join(run_.seed, join(symbol_of("poison"), ++poisons_)),
                  std::max<int64_t>(cells, 0));
  }
  const Buffer& buffer(const Rank& rank, int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) >= rank.role->buffers.size()) fault("no buffer {}", id);
    return rank.role->buffers[static_cast<size_t>(id)];
  }
  const TensorType& type(const Rank& rank, int32_t id) const {
    return rank.role->tensor(buffer(rank, id)).type;
  }
  Symbols read(const Rank& rank, int32_t id) const {
    const Buffer& from = buffer(rank, id);
    return rank.memory(from).read(from.offset, cells_of(type(rank, id)));
  }
  void write(Rank& rank, int32_t id, const Symbols& symbols) {
    const Buffer& to = buffer(rank, id);
    if (static_cast<int64_t>(symbols.size()) != cells_of(type(rank, id)))
      fault("{} cells for '{}'", symbols.size(), rank.role->name(to));
    rank.memory(to).write(to.offset, symbols);
  }
  void fill(Rank& rank) {
    for (const Buffer& buffer : rank.role->buffers) {
      const Tensor& one = rank.role->tensor(buffer);
      if (one.kind == BufferKind::kStep) continue;
      Symbol from = one.init.empty()
                        ? join(symbol_of("fill"), symbol_of(fmt::format("{}", one.fill)))
                        : join(symbol_of("init"), symbol_of(one.init));
      if (rank.role->original(one).type.dtype != one.type.dtype)
        from = join(from, symbol_of("rounded"));
      rank.memory(buffer).write(buffer.offset, initial(rank, one, from));
    }
  }
  Symbols initial(const Rank& rank, const Tensor& one, Symbol from) const {
    Shape shape = one.whole.empty() ? one.type.shape : one.whole;
    Symbols cells = spread(from, cells_of({one.type.dtype, shape}));
    for (const TensorCut& cut : one.cuts) {
      const auto axis = static_cast<size_t>(cut.axis), dim = static_cast<size_t>(cut.dim);
      const auto ranks = static_cast<size_t>(rank.role->mesh[axis].second);
      const size_t count = stretches(shape, cut.dim, cut.outer);
      if (cut.block > 0) {
        const auto padded = ranks * static_cast<size_t>(cut.outer * cut.block);
        cells = with_zeros(cells, count, cells.size() / static_cast<size_t>(shape[dim]) * padded);
        shape[dim] = static_cast<int64_t>(padded);
      }
      cells = block_of(cells, count, ranks, static_cast<size_t>(rank.coordinates[axis]));
      shape[dim] /= static_cast<int64_t>(ranks);
    }
    return one.part_of < 0 ? cells : own_part(rank, one.part_of, cells, cells_of(one.type));
  }
  static size_t stretches(const Shape& shape, int32_t dim, int64_t outer) {
    for (int32_t d = 0; d < dim; ++d) outer *= shape[static_cast<size_t>(d)];
    return static_cast<size_t>(outer);
  }
  // So many cells, with zeros behind each stretch.
  static Symbols with_zeros(const Symbols& whole, size_t stretches, size_t cells) {
    Symbols padded;
    for (size_t s = 0; s < stretches; ++s) {
      const Symbols stretch = block_of(whole, 1, stretches, s);
      padded.insert(padded.end(), stretch.begin(), stretch.end());
      padded.resize((s + 1) * cells / stretches, symbol_of("zero"));
    }
    return padded;
  }
  // Of each stretch, the k-th of so many equal blocks, or of every second one the k-th last.
  static Symbols block_of(const Symbols& whole, size_t stretches, size_t blocks, size_t k,
                          bool mirrored = false) {
    const size_t size = whole.size() / (stretches * blocks);
    Symbols own;
    for (size_t s = 0; s < stretches; ++s) {
      const size_t at = mirrored && s % 2 != 0 ? blocks - 1 - k : k;
      const auto first = whole.begin() + static_cast<std::ptrdiff_t>((s * blocks + at) * size);
      own.insert(own.end(), first, first + static_cast<std::ptrdiff_t>(size));
    }
    return own;
  }
  static Symbols put_together(const std::vector<Symbols>& parts, size_t stretches, bool mirrored) {
    Symbols whole;
    for (size_t s = 0; s < stretches; ++s)
      for (size_t m = 0; m < parts.size(); ++m) {
        const Symbols& part = parts[mirrored && s % 2 != 0 ? parts.size() - 1 - m : m];
        const Symbols block = block_of(part, 1, stretches, s);
        whole.insert(whole.end(), block.begin(), block.end());
      }
    return whole;
  }
  Symbols own_block(const Rank& rank, const Instruction& one, int32_t from) const {
    const std::vector<int64_t> members = members_of(rank, one.group);
    const auto self = rank_of(rank.role->mesh, rank.coordinates);
    const auto k = std::find(members.begin(), members.end(), self) - members.begin();
    return block_of(read(rank, from), stretches(type(rank, from).shape, one.dim, one.outer),
                    members.size(), static_cast<size_t>(k), one.mirrored);
  }
  // The k-th run of `size` cells, zeros behind the end; k is the rank's position in the group.
  Symbols own_part(const Rank& rank, int32_t group, const Symbols& whole, int64_t size) const {
    const std::vector<int64_t> members = members_of(rank, group);
    const auto self = rank_of(rank.role->mesh, rank.coordinates);
    const auto k = std::find(members.begin(), members.end(), self) - members.begin();
    return part_of(whole, static_cast<size_t>(k * size), static_cast<size_t>(size));
  }
  static Symbols part_of(const Symbols& whole, size_t from, size_t size) {
    Symbols part(size);
    for (size_t i = 0; i < size && from + i < whole.size(); ++i) part[i] = whole[from + i];
    return part;
  }
  std::vector<int64_t> members_of(const Rank& rank, int32_t group) const {
    if (group < 0 || static_cast<size_t>(group) >= rank.role->groups.size())
      fault("no group {}", group);
    return group_ranks(*rank.role, rank.role->groups[static_cast<size_t>(group)], rank.coordinates);
  }
  void poison_step(Rank& rank) {
    for (const Buffer& one : rank.role->buffers)
      if (const Tensor& tensor = rank.role->tensor(one); tensor.kind == BufferKind::kStep)
        rank.memory(one).write(one.offset, poison(cells_of(tensor.type)));
  }

  // ---- Phases: prologue, the steps, epilogue ----------------------------------------------------
  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
  }
  // To the next phase, past empty ones, when this one is over.
  void advance(Rank& rank) {
    while (!rank.ended && rank.left == 0 && rank.unreceived == 0) {
      if (rank.phase > 0 && rank.phase <= run_.steps) look_back(rank);
      ++rank.phase;
      rank.step = std::max<int64_t>(rank.phase - 1, 0);
      // Where steps overlap, the epilogue is the last one's body.
      const int64_t bodies = run_.steps - (overlaps(rank) ? 1 : 0);
      rank.ended = rank.phase > bodies + 1;
      if (rank.ended) return;
      rank.section = rank.phase == 0        ? &rank.role->prologue
                     : rank.phase <= bodies ? &rank.role->body
                                            : &rank.role->epilogue;
      begin(rank);
    }
  }
  static bool overlaps(const Rank& rank) { return rank.role->steps_ahead > 0; }
  void begin(Rank& rank) {
    // What a body leaves for the next step is there when that begins.
    if (rank.phase > 0 && rank.phase <= run_.steps && !overlaps(rank)) poison_step(rank);
    rank.left = rank.section->size();
    rank.done.assign(rank.left, false);
    rank.arrived.assign(rank.left, false);
    rank.queues.assign(rank.role->streams.size(), {});
    for (size_t i = 0; i < rank.left; ++i) {
      const auto stream = static_cast<size_t>((*rank.section)[i].stream);
      if (stream >= rank.queues.size()) fault("no stream {}", stream);
      rank.queues[stream].push_back(static_cast<int32_t>(i));
    }
    rank.next.assign(rank.queues.size(), 0);
  }
  // What a step left in its state and reports.
  void look_back(const Rank& rank) {
    std::vector<Symbol>& left = left_behind_[{rank.step, &rank - ranks_.data()}];
    for (size_t b = 0; b < rank.role->buffers.size(); ++b)
      if (const Tensor& tensor = rank.role->tensor(static_cast<int32_t>(b));
          tensor.kind == BufferKind::kState)
        left.push_back(
            join(symbol_of(tensor.param), symbol_of(read(rank, static_cast<int32_t>(b)))));
    Symbol reported = 0;  // in whatever order
    for (const Report& report : rank.role->reports)
      reported += join(symbol_of(report.name), symbol_of(read(rank, report.buffer)));
    left.push_back(reported);
  }

  // ---- Which instruction is next
  // -----------------------------------------------------------------
  struct Choice {
    size_t rank = 0, stream = 0;
    int32_t index = -1;
  };
  void step() {
    std::vector<Choice> ready;
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (size_t s = 0; s < ranks_[r].queues.size(); ++s) {
        const int32_t index = head(ranks_[r], s);
        if (index >= 0 && may_run(ranks_[r], r, index)) ready.push_back({r, s, index});
      }
    if (ready.empty()) fault("deadlock: {}", waiting());
    const Choice choice = choose(ready);
    execute(choice);
  }
  int32_t head(const Rank& rank, size_t stream) const {
    if (rank.ended || rank.next[stream] == rank.queues[stream].size()) return -1;
    const int32_t index = rank.queues[stream][rank.next[stream]];
    if (run_.in_order) {
      const auto first = std::find(rank.done.begin(), rank.done.end(), false);
      if (first - rank.done.begin() != index) return -1;
    }
    return index;
  }
  bool may_run(const Rank& rank, size_t r, int32_t index) const {
    const Instruction& one = (*rank.section)[static_cast<size_t>(index)];
    if (rank.arrived[static_cast<size_t>(index)]) return false;
    for (int32_t wait : one.waits)
      if (wait < 0 || static_cast<size_t>(wait) >= rank.done.size() ||
          !rank.done[static_cast<size_t>(wait)])
        return false;
    if (is_collective(one.kind)) return is_next_collective(rank, index);
    if (one.kind != InstructionKind::kRecv) return true;
    const auto mail = mail_.find({peer(rank, one), static_cast<int64_t>(r), one.communicator});
    return mail != mail_.end() && !mail->second.empty();
  }
  // Collectives of one communicator begin in the order in which they stand.
  static bool is_next_collective(const Rank& rank, int32_t index) {
    const int32_t own = (*rank.section)[static_cast<size_t>(index)].communicator;
    for (size_t i = 0; i < static_cast<size_t>(index); ++i) {
      const Instruction& one = (*rank.section)[i];
      if (is_collective(one.kind) && one.communicator == own && !rank.arrived[i]) return false;
    }
    return true;
  }
  // Each seed prefers some streams over others, for long, and now and then takes any.
  Choice choose(const std::vector<Choice>& ready) {
    if (random_() % 8 == 0) return ready[random_() % ready.size()];
    return *std::max_element(ready.begin(), ready.end(), [&](const Choice& a, const Choice& b) {
      return weight(a) < weight(b);
    });
  }
  uint64_t weight(const Choice& c) const {
    return weights_[(c.rank * 4 + c.stream) % weights_.size()];
  }
  std::string waiting() const {
    std::string text;
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (size_t s = 0; s < ranks_[r].queues.size(); ++s)
        if (const int32_t index = head(ranks_[r], s); index >= 0)
          text += fmt::format(" rank {} at {} '{}'", r, index,
                              (*ranks_[r].section)[static_cast<size_t>(index)].label);
    return text.empty() ? "messages that nobody receives" : text;
  }
  int64_t peer(const Rank& rank, const Instruction& one) const {
    return peer_rank(*rank.role, one.peer, rank.coordinates);
  }

  // ---- Instructions
  // ------------------------------------------------------------------------------
  void execute(const Choice& c) {
    Rank& rank = ranks_[c.rank];
    const Instruction& one = (*rank.section)[static_cast<size_t>(c.index)];
    switch (one.kind) {
      case InstructionKind::kCompute:
        compute(rank, one);
        break;
      case InstructionKind::kInput:
        load(rank, one);
        break;
      case InstructionKind::kSend:
        if (!send(rank, c, one)) return;
        break;
      case InstructionKind::kRecv:
        receive(rank, c.rank, one);
        break;
      case InstructionKind::kOwnPart:
        for (size_t k = 0; k + 1 < one.args.size(); k += 2)
          write(rank, one.args[k + 1],
                one.dim >= 0 ? own_block(rank, one, one.args[k])
                             : own_part(rank, one.group, read(rank, one.args[k]),
                                        cells_of(type(rank, one.args[k + 1]))));
        break;
      case InstructionKind::kCopy:
        write(rank, arg(one, 1), read(rank, arg(one, 0)));
        break;
      case InstructionKind::kPosition: {
        const auto& group = rank.role->groups.at(static_cast<size_t>(one.group));
        const auto members = std::ssize(group_ranks(*rank.role, group, rank.coordinates));
        const int64_t own = group_position(*rank.role, group, rank.coordinates),
                      position = one.outer * ((own + members - one.turn) % members);
        write(rank, arg(one, 0),
              spread(join(symbol_of(one.mirrored ? "mirrored position" : "position"),
                          static_cast<Symbol>(position)),
                     cells_of(type(rank, arg(one, 0)))));
        break;
      }
      default:
        return arrive(c);
    }
    finish(c);
  }
  void finish(const Choice& c) {
    Rank& rank = ranks_[c.rank];
    rank.done[static_cast<size_t>(c.index)] = true;
    ++rank.next[c.stream];
    --rank.left;
    advance(rank);
  }
  static int32_t arg(const Instruction& one, size_t k) {
    return k < one.args.size() ? one.args[k] : -1;
  }

  void compute(Rank& rank, const Instruction& one) {
    if (one.program < 0 || static_cast<size_t>(one.program) >= rank.role->programs.size())
      fault("no program {}", one.program);
    const Program& program = rank.role->programs[static_cast<size_t>(one.program)];
    if (one.args.size() != static_cast<size_t>(program.num_args)) fault("{} args", one.args.size());
    std::vector<Symbols> locals(program.values.size());
    for (const auto& [value, bytes] : program.literals)
      locals[at(value)] = spread_bytes(bytes, cells_of(program.values[at(value)]));
    for (const ProgramOp& op : program.ops) {
      std::vector<Operand> inputs;
      std::vector<TensorType> outputs;
      for (int32_t v : op.inputs) inputs.push_back(operand(rank, one, program, v, locals));
      for (int32_t v : op.outputs) outputs.push_back(v < 0 ? TensorType{} : program.values[at(v)]);
      const std::vector<Symbols> made = apply(op, inputs, outputs);
      for (size_t i = 0; i < made.size(); ++i) {
        const int32_t v = op.outputs[i];
        if (v >= program.num_args)
          locals[at(v)] = made[i];
        else if (v >= 0)
          rank.arena.write(buffer(rank, one.args[at(v)]).offset, made[i]);
      }
    }
  }
  static size_t at(int32_t id) { return static_cast<size_t>(id); }
  Operand operand(const Rank& rank, const Instruction& one, const Program& program, int32_t v,
                  const std::vector<Symbols>& locals) const {
    if (v < 0) return {};
    const TensorType& type = program.values[at(v)];
    if (v >= program.num_args) return {type, locals[at(v)]};
    return {type, rank.arena.read(buffer(rank, one.args[at(v)]).offset, cells_of(type))};
  }

  // Samples have symbols of their own, so that who reads which of them matters.
  void load(Rank& rank, const Instruction& one) {
    const auto input = std::find_if(rank.role->inputs.begin(), rank.role->inputs.end(),
                                    [&](const DataInput& i) { return i.name == one.input; });
    const bool numbers = one.input.empty();  // of the samples
    if (!numbers && input == rank.role->inputs.end()) fault("no input '{}'", one.input);
    int64_t first = one.samples.first;
    for (size_t d = 0; d < one.samples.stride.size(); ++d)
      first += one.samples.stride[d] * rank.coordinates[d];
    const int64_t cells = cells_of(type(rank, arg(one, 0)));
    const Symbol from = join(symbol_of(one.input), static_cast<Symbol>(rank.step + one.ahead));
    if (!numbers && input->batch_dim < 0) return write(rank, arg(one, 0), spread(from, cells));
    const int64_t count = std::max<int64_t>(one.samples.count, 1);
    if (first < 0 || first + count > rank.role->batch || cells % count != 0)
      fault("samples [{}, {}) of {}", first, first + count, rank.role->batch);
    Symbols all;
    for (int64_t s = first; s < first + count; ++s) {
      const Symbols sample = spread(join(from, static_cast<Symbol>(s)), cells / count);
      all.insert(all.end(), sample.begin(), sample.end());
    }
    write(rank, arg(one, 0), all);
  }

  // Messages on a stream without computations may wait there for their receives; in a run of one
  // instruction after the other none does.
  bool may_wait(const Rank& rank, size_t stream) const {
    return !run_.in_order &&
           std::none_of(rank.queues[stream].begin(), rank.queues[stream].end(), [&](int32_t i) {
             return (*rank.section)[static_cast<size_t>(i)].kind == InstructionKind::kCompute;
           });
  }
  // Whether the send is done.
  bool send(Rank& rank, const Choice& c, const Instruction& one) {
    const size_t r = c.rank;
    Message message{static_cast<int64_t>(r), one.args, {}, std::nullopt};
    if (random_() % 2)
      for (int32_t buffer : one.args) message.copied.push_back(read(rank, buffer));
    const bool waits = may_wait(rank, c.stream);
    if (waits) message.waits = {c.stream, c.index};
    mail_[{static_cast<int64_t>(r), peer(rank, one), one.communicator}].push_back(
        std::move(message));
    ++rank.unreceived;
    rank.arrived[static_cast<size_t>(c.index)] = waits;
    return !waits;
  }
  void receive(Rank& rank, size_t r, const Instruction& one) {
    auto& queue = mail_[{peer(rank, one), static_cast<int64_t>(r), one.communicator}];
    const Message message = std::move(queue.front());
    queue.pop_front();
    Rank& sender = ranks_[static_cast<size_t>(message.sender)];
    if (message.buffers.size() != one.args.size()) fault("{} tensors", message.buffers.size());
    for (size_t k = 0; k < one.args.size(); ++k)
      write(rank, one.args[k],
            message.copied.empty() ? read(sender, message.buffers[k]) : message.copied[k]);
    --sender.unreceived;
    if (message.waits)
      finish({static_cast<size_t>(message.sender), message.waits->first, message.waits->second});
    else if (&sender != &rank)
      advance(sender);
  }

  // ---- Collectives
  // -------------------------------------------------------------------------------
  void arrive(const Choice& c) {
    Rank& rank = ranks_[c.rank];
    const Instruction& one = (*rank.section)[static_cast<size_t>(c.index)];
    const std::vector<int64_t> members = members_of(rank, one.group);
    rank.arrived[static_cast<size_t>(c.index)] = true;
    auto& waiting = joints_[{one.communicator, members}];  // by member
    waiting[static_cast<int64_t>(c.rank)].push_back(c);
    std::vector<Choice> all;
    for (int64_t member : members) {
      if (waiting[member].empty()) return;
      all.push_back(waiting[member].front());
    }
    for (int64_t member : members) waiting[member].pop_front();
    collect(all);
    for (const Choice& each : all) finish(each);
  }
  const Instruction& instruction(const Choice& c) const {
    return (*ranks_[c.rank].section)[static_cast<size_t>(c.index)];
  }
  void collect(const std::vector<Choice>& all) {
    const Instruction& first = instruction(all[0]);
    for (const Choice& each : all) {
      const Instruction& one = instruction(each);
      if (one.kind != first.kind || one.args.size() != first.args.size() ||
          one.fast != first.fast || one.dim != first.dim || one.outer != first.outer ||
          one.to_dim != first.to_dim || one.to_outer != first.to_outer ||
          one.reduction != first.reduction || one.turn != first.turn || one.owned != first.owned)
        fault("'{}' meets '{}'", first.label, one.label);
      for (size_t k = 0; k < one.args.size(); ++k)
        if (type(ranks_[each.rank], one.args[k]) != type(ranks_[all[0].rank], first.args[k]))
          fault("sizes of '{}'", one.label);
    }
    if (first.kind == InstructionKind::kAllReduce) {
      for (size_t k = 0; k < first.args.size(); ++k) {
        const Symbols total = sum(all, k);
        for (const Choice& each : all) write(ranks_[each.rank], instruction(each).args[k], total);
      }
      return;
    }
    for (size_t k = 0; k + 1 < first.args.size(); k += 2) {
      const std::vector<Symbols> results = moved(first, k, all);
      for (size_t i = 0; i < all.size(); ++i) {
        const int32_t to = instruction(all[i]).args[k + 1];
        // The last part of a whole that does not divide evenly is longer than what is left of it.
        const auto size = cells_of(type(ranks_[all[i].rank], to));
        write(ranks_[all[i].rank], to, part_of(results[i], 0, static_cast<size_t>(size)));
      }
    }
  }
  // Or the greatest, which is another symbol than the sum, and of one number that number.
  Symbols sum(const std::vector<Choice>& all, size_t k) const {
    const bool greatest = instruction(all[0]).reduction == Reduction::kMax && all.size() > 1;
    Symbols total;
    for (const Choice& each : all) {
      const Symbols part = read(ranks_[each.rank], instruction(each).args[k]);
      total.resize(part.size());
      for (size_t i = 0; i < part.size(); ++i) total[i] += greatest ? scramble(part[i]) : part[i];
    }
    return total;
  }
  // Which rows a member has nobody knows here: all of them, as its numbers say.
  std::vector<Symbols> moved_rows(const Instruction& one, const Shape& shape,
                                  const std::vector<Choice>& all,
                                  const std::vector<Symbols>& given) const {
    const bool sends = one.kind == InstructionKind::kDispatch;
    const size_t of_whole = stretches(shape, one.dim, one.outer);
    std::vector<Symbols> results;
    for (size_t i = 0; i < all.size(); ++i) {
      Symbol from = symbol_of(fmt::format("rows of {}", one.owned));
      for (const Choice& each : all)
        from = join(from, symbol_of(read(ranks_[each.rank], instruction(each).args[2])));
      Symbols total = sends ? put_together(given, of_whole, one.mirrored) : given[0];
      for (size_t m = 1; !sends && m < given.size(); ++m)
        for (size_t c = 0; c < total.size(); ++c) total[c] = join(total[c], given[m][c]);
      for (Symbol& cell : total) cell = join(sends ? join(from, i) : from, cell);
      results.push_back(sends ? total : block_of(total, of_whole, all.size(), i, one.mirrored));
    }
    return results;
  }
  std::vector<Symbols> moved_blocks(const Instruction& one, size_t k,
                                    const std::vector<Choice>& all,
                                    const std::vector<Symbols>& given) const {
    const Shape& shape = type(ranks_[all[0].rank], instruction(all[0]).args[k]).shape;
    const size_t of_whole = stretches(shape, one.dim, one.outer);
    if (takes_index(one.kind)) return moved_rows(one, shape, all, given);
    if (one.kind == InstructionKind::kAllGather)
      return std::vector<Symbols>(all.size(), put_together(given, of_whole, one.mirrored));
    std::vector<Symbols> results;
    if (one.kind == InstructionKind::kAllToAll) {
      Shape together = shape;
      together[static_cast<size_t>(one.dim)] *= static_cast<int64_t>(all.size());
      const Symbols total = put_together(given, of_whole, one.mirrored);
      for (size_t i = 0; i < all.size(); ++i)
        results.push_back(block_of(total, stretches(together, one.to_dim, one.to_outer), all.size(),
                                   i, one.to_mirrored));
      return results;
    }
    const Symbols total = sum(all, k);
    for (size_t i = 0; i < all.size(); ++i)
      results.push_back(block_of(total, of_whole, all.size(), i, one.mirrored));
    return results;
  }
  // By member what it receives.
  std::vector<Symbols> moved(Instruction one, size_t k, const std::vector<Choice>& all) const {
    for (int32_t* dim : {&one.dim, &one.to_dim})  // runs of all members' values are blocks of dim 1
      if (one.kind == InstructionKind::kAllToAll && *dim < 0) *dim = 1;
    std::vector<Symbols> given, results(all.size());
    for (const Choice& each : all)
      given.push_back(read(ranks_[each.rank], instruction(each).args[k]));
    if (one.dim >= 0) return moved_blocks(one, k, all, given);
    for (size_t i = 0; i < all.size(); ++i) {
      if (one.kind == InstructionKind::kReduceScatter) {
        const auto size = static_cast<size_t>(
            cells_of(type(ranks_[all[i].rank], instruction(all[i]).args[k + 1])));
        results[i] = part_of(sum(all, k), i * size, size);
        continue;
      }
      if (one.kind == InstructionKind::kRotate) {
        results[i] = given[(i + all.size() - static_cast<size_t>(one.turn)) % all.size()];
        continue;
      }
      for (size_t j = 0; j < all.size(); ++j) {
        Symbols piece;
        if (one.kind == InstructionKind::kAllGather) piece = given[j];
        results[i].insert(results[i].end(), piece.begin(), piece.end());
      }
    }
    return results;
  }

  const PlanSet& set_;
  Run run_;
  std::mt19937_64 random_;
  uint64_t poisons_ = 0;
  std::vector<Rank> ranks_;
  std::vector<uint64_t> weights_;
  std::map<std::tuple<int64_t, int64_t, int32_t>, std::deque<Message>> mail_;
  std::map<std::pair<int32_t, std::vector<int64_t>>, std::map<int64_t, std::deque<Choice>>> joints_;
  std::map<std::pair<int64_t, std::ptrdiff_t>, std::vector<Symbol>> left_behind_;  // step, rank
};

}  // namespace

Outcome interpret(const PlanSet& set, const Run& run) { return Interpreter(set, run).run(); }

}  // namespace piper::mutation
