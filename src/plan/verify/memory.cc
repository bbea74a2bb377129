// Rules order and memory, for each cell: checks every access against the accesses that are complete
// before it, by vector clocks. A state is read before its update.
//
// A buffer has several lives: a write that does not read begins a new one. A life owns its bytes
// until another buffer's life begins there; from then on the first may not be touched. A send reads
// until its receive is complete.
#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "model.h"
#include "owners.h"
#include "piper/ir/ops.h"

namespace piper {
namespace {

// Marks the last read or write of a buffer by one stream: earlier ones are complete when it is. A
// send reads its buffers until its receive, on another rank, is complete.
struct Mark {
  int32_t slot = 0, index = 0;  // of the instruction whose completion ends it
  int32_t by = 0;               // the instruction of this cell, for messages
};
using Marks = std::vector<Mark>;  // one for each slot

// Holds the accesses of a buffer since its current life began.
struct Life {
  Marks reads, writes;
  bool begun = false;
  int32_t evicted_by = -1, evicted_for = -1;  // who took its bytes: instruction and buffer
  int32_t seen_by = -1;                       // the last instruction that visited it
  int32_t updated_by = -1;                    // the first that computes a state's next value
  int32_t written_by = -1;                    // the last instruction that writes it

  bool evicted() const { return evicted_for >= 0; }
};

class CellCheck {
 public:
  CellCheck(const Model& model, const Section& section, const Clocks& clocks, int32_t cell,
            Findings& findings)
      : model_(model),
        section_(section),
        clocks_(clocks),
        findings_(findings),
        cell_(cell),
        role_(*model.cells[cell].role),
        facts_(*model.cells[cell].facts),
        lives_(facts_.buffers.size()),
        is_body_(section.parts.size() == 1) {}

  void run() {
    for (int32_t b : facts_.kept) begin({}, b);
    const auto& steps = section_.steps[cell_];
    for (int32_t i = 0; i < static_cast<int32_t>(steps.size()); ++i) {
      visit({cell_, i}, steps[i]);
      if (!is_body_ && section_.ends_step({cell_, i})) check_reports();
    }
    if (is_body_) check_reports();
  }

 private:
  std::string buffer_name(int32_t b) const {
    return fmt::format("'{}'", quote_control(role_.name(b)));
  }
  std::string name(Spot place) const { return name_of(model_, section_, place); }
  std::string name(const Mark& mark) const { return name(Spot{cell_, mark.by}); }
  bool permanent(int32_t buffer) const { return facts_.buffers[buffer].kind != BufferKind::kStep; }

  void write_args(Spot place, const Step& step, std::span<const int32_t> args, bool computes) {
    for (size_t a = 0; a < args.size(); ++a) {
      const uint8_t access = access_of(facts_, step, a);
      if (!(access & kWrites)) continue;
      write(place, step, args[a], access & kReads);
      lives_[args[a]].written_by = place.index;
      const bool is_state = facts_.buffers[args[a]].kind == BufferKind::kState;
      int32_t& by = lives_[args[a]].updated_by;
      if (is_body_ && computes && is_state && by < 0) by = place.index;
    }
  }

  void visit(Spot place, const Step& step) {
    const std::span<const int32_t> args = section_.args_of(cell_, step);
    const bool computes =
        step.kind == InstructionKind::kCompute || step.kind == InstructionKind::kCopy;
    bool twice = false;
    for (size_t a = 0; a < args.size(); ++a) {
      Life& life = lives_[args[a]];
      twice = twice || life.seen_by == place.index;
      life.seen_by = place.index;
      const uint8_t access = access_of(facts_, step, a);
      if (access & kReads) read(place, step, args[a]);
      if (computes && access == kReads && life.updated_by >= 0) updated(place, args[a]);
    }
    if (twice && step.kind == InstructionKind::kCompute)
      check_same_buffer(place, section_.at(place));
    if (step.kind == InstructionKind::kCompute) check_repeated(place, step, args);
    write_args(place, step, args, computes);
  }

  // Checks that no program that changes an argument in place is applied twice in a row to the same
  // arguments.
  void check_repeated(Spot place, const Step& step, std::span<const int32_t> args) {
    for (size_t a = 0; a < args.size(); ++a) {
      const int32_t by = lives_[args[a]].written_by;
      if (permanent(args[a])) continue;  // a state changes once a step
      if (access_of(facts_, step, a) != (kReads | kWrites) || by < section_.part_begin(place))
        continue;
      const Step& before = section_.step({cell_, by});
      const bool is_same = before.kind == step.kind && before.program == step.program &&
                           std::ranges::equal(section_.args_of(cell_, before), args);
      const auto is_new = [&](int32_t arg) { return lives_[arg].written_by > by; };
      if (!is_same || std::any_of(args.begin(), args.end(), is_new)) continue;
      findings_.add("order", "{} applies the same program to {} that {} has applied before",
                    name(place), buffer_name(args[a]), name(Spot{cell_, by}));
    }
  }

  // Checks programs that have one buffer as two arguments: after a write through one of these, the
  // other must not be used; an op may use it that writes element by element.
  void check_same_buffer(Spot place, const Instruction& one) {
    const Program& program = role_.programs[one.program];
    const auto buffer_of = [&](int32_t value) {
      return value >= 0 && value < program.num_args ? one.args[value] : -1;
    };
    std::unordered_map<int32_t, int32_t> writers;  // args, by buffer
    for (const ProgramOp& op : program.ops) {
      for (const int32_t input : op.inputs)
        if (const auto writer = writers.find(buffer_of(input));
            writer != writers.end() && writer->second != input)
          return needed(place, writer->second, input);
      for (size_t o = 0; o < op.outputs.size(); ++o) {
        const int32_t buffer = buffer_of(op.outputs[o]);
        if (buffer < 0) continue;
        if (const int32_t writer = writers.try_emplace(buffer, op.outputs[o]).first->second;
            writer != op.outputs[o])
          return needed(place, op.outputs[o], writer);
        const OpDef* def = find_op(op.op);
        for (size_t i = 0; i < op.inputs.size(); ++i) {
          const std::pair way(static_cast<int>(o), static_cast<int>(i));
          if (buffer_of(op.inputs[i]) == buffer && op.inputs[i] != op.outputs[o] &&
              (!def || std::ranges::count(def->in_place, way) == 0))
            return needed(place, op.outputs[o], op.inputs[i]);
        }
      }
    }
  }
  void needed(Spot place, int32_t writer, int32_t other) {
    findings_.add("memory", "{} writes {} as arg {} while it still needs it as arg {}", name(place),
                  buffer_name(section_.at(place).args[writer]), writer, other);
  }

  // ---- One access ----
  void read(Spot place, const Step& step, int32_t buffer) {
    Life& life = lives_[buffer];
    if (!life.begun) return unwritten(place, buffer);
    if (life.evicted())
      return findings_.add("memory", "{} needs {}, whose memory {} has given to {}", name(place),
                           buffer_name(buffer), name_of(section_.at({cell_, life.evicted_by})),
                           buffer_name(life.evicted_for));
    for (const Mark& mark : life.writes)
      if (!complete(mark, place)) unordered(place, "reads", buffer, mark, "writes");
    const bool sends = step.kind == InstructionKind::kSend;
    const Spot end = sends ? section_.partner[cell_][place.index] : place;
    note(life.reads, {section_.step(end).slot, end.index, place.index});
  }
  void write(Spot place, const Step& step, int32_t buffer, bool reads_too) {
    Life& life = lives_[buffer];
    const bool goes_on = reads_too || permanent(buffer);
    if (goes_on && (!life.begun || life.evicted())) return;  // reported by read()
    if (life.begun && !life.evicted()) after_all(place, buffer);
    // A new life begins after all accesses of the old one, and of other buffers in these bytes.
    if (!goes_on) begin(place, buffer);
    note(life.writes, {step.slot, place.index, place.index});
  }
  bool complete(const Mark& mark, Spot place) const {
    return mark.by < section_.part_begin(place) ||
           clocks_.before(section_, mark.slot, mark.index, place);
  }
  // Returns whether it is the read of a send, which continues after the instruction.
  bool sending(const Mark& mark) const {
    return section_.step({cell_, mark.by}).kind == InstructionKind::kSend;
  }

  void unwritten(Spot place, int32_t buffer) {
    std::string later;
    const auto& steps = section_.steps[cell_];
    const size_t end = findings_.takes("order") ? steps.size() : 0;
    for (size_t i = static_cast<size_t>(place.index) + 1; i < end && later.empty(); ++i)
      if (writes(*model_.cells[cell_].facts, steps[i], section_.args_of(cell_, steps[i]), buffer))
        later = "; later " + name_of(*section_.lists[cell_][i]) + " writes it";
    findings_.add("order", "{} reads {} before anything writes it{}", name(place),
                  buffer_name(buffer), later);
  }
  void updated(Spot place, int32_t buffer) {
    const Spot by{cell_, std::exchange(lives_[buffer].updated_by, -1)};
    findings_.add("order", "{} reads {}, which {} may have updated by then", name(place),
                  buffer_name(buffer), name_of(section_.at(by)));
  }
  void unordered(Spot place, const char* does, int32_t buffer, const Mark& other, const char* did) {
    findings_.add("order", "{} {} {}, which {} {} without being waited for", name(place), does,
                  buffer_name(buffer), name(other), did);
  }

  // Checks that all earlier accesses are complete when `place` writes.
  void after_all(Spot place, int32_t buffer) {
    const Life& life = lives_[buffer];
    for (const Mark& mark : life.writes)
      if (!complete(mark, place)) unordered(place, "writes", buffer, mark, "writes");
    for (const Mark& mark : life.reads)
      if (!complete(mark, place))
        unordered(place, "writes", buffer, mark, sending(mark) ? "may still be sending" : "reads");
  }

  // ---- Lives and the bytes they own ----
  void begin(Spot place, int32_t buffer) {
    const BufferFacts& bytes = facts_.buffers[buffer];
    if (bytes.begin < bytes.end)
      for (int32_t old : owners_.take(bytes.begin, bytes.end, buffer))
        if (old != buffer) evict(place, old, buffer);
    Life& life = lives_[buffer];
    life.reads.clear(), life.writes.clear();
    life.begun = true;
    life.evicted_by = life.evicted_for = -1;
  }
  void evict(Spot place, int32_t buffer, int32_t taker) {
    Life& old = lives_[buffer];
    if (permanent(buffer)) {
      findings_.add("memory",
                    "{} shares bytes with {} on {}, which keeps its bytes from step to step",
                    buffer_name(taker), buffer_name(buffer), model_.who(cell_));
      return;
    }
    for (const Mark& mark : old.writes) gives_way(place, buffer, mark, "writes", taker);
    for (const Mark& mark : old.reads)
      gives_way(place, buffer, mark, sending(mark) ? "may still be sending" : "uses", taker);
    old.evicted_by = place.index;
    old.evicted_for = taker;
  }
  void gives_way(Spot place, int32_t buffer, const Mark& mark, const char* did, int32_t taker) {
    const bool own = mark.by == place.index;
    if (!own && complete(mark, place)) return;
    findings_.add("memory", "{} puts {} where {} {} {}", name(place), buffer_name(taker),
                  own ? "it" : name(mark), did, buffer_name(buffer));
  }

  static void note(Marks& marks, const Mark& mark) {
    const auto known = std::find_if(marks.begin(), marks.end(),
                                    [&](const Mark& each) { return each.slot == mark.slot; });
    if (known == marks.end())
      marks.push_back(mark);
    else if (mark.index >= known->index)
      *known = mark;
  }

  // Checks that reported buffers still have their values at the end of the step, which waits for
  // all streams.
  void check_reports() {
    for (const Report& report : role_.reports) {
      const Life& life = lives_[report.buffer];
      if (!life.begun)
        findings_.add("order", "report '{}' of {}: nothing writes {}", quote_control(report.name),
                      model_.who(cell_), buffer_name(report.buffer));
      else if (life.evicted())
        findings_.add("memory", "report '{}' needs {}, whose memory {} has given to {}",
                      quote_control(report.name), buffer_name(report.buffer),
                      name(Spot{cell_, life.evicted_by}), buffer_name(life.evicted_for));
    }
  }

  const Model& model_;
  const Section& section_;
  const Clocks& clocks_;
  Findings& findings_;
  int32_t cell_;
  const RoleProgram& role_;
  const RoleFacts& facts_;
  std::vector<Life> lives_;  // by buffer
  const bool is_body_;       // where steps overlap, rule sum follows versions of states
  Owners owners_;
};

}  // namespace

void check_staging(const Model& model, Findings& findings) {
  std::vector<bool> seen(model.facts.size());
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const RoleProgram& role = *model.cells[c].role;
    const auto of_role = static_cast<size_t>(model.cells[c].facts - model.facts.data());
    if (seen[of_role]) continue;
    seen[of_role] = true;
    if (const int64_t taken = staging_of(role); role.staging_bytes != taken)
      findings.add("memory",
                   "{} states {} bytes to stage what the host brings; its inputs, positions and "
                   "reports take {}",
                   model.who(c), role.staging_bytes, taken);
  }
}

void check_memory(const Model& model, const Section& section, const Clocks& clocks,
                  Findings& findings) {
  const bool body = section.parts[0].ends_step;
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    if (body || !section.steps[c].empty()) CellCheck(model, section, clocks, c, findings).run();
}

}  // namespace piper
