// Rules order and memory, per cell: every access in issue order, against what is known to be
// complete by then.
//
// A buffer has several lives: a write that does not read begins a new one. A life owns its bytes
// until another buffer's life begins there; from then on the first may not be touched. A send reads
// until its receive is complete.
#include <algorithm>
#include <map>

#include "model.h"

namespace piper {
namespace {

struct Life {
  int32_t buffer = -1;
  std::vector<Spot> reads, writes;  // last per stream; for sends the receive, in its own cell
  std::vector<Spot> reader;         // by read: the instruction that a person would name
  Spot evicted_by;
  int32_t evicted_for = -1;  // the buffer that took the bytes
  bool permanent = false;
};

struct Access {
  bool read = false, write = false;
};

Access access_of(const RoleProgram& role, const Instruction& one, size_t arg) {
  switch (one.kind) {
    case InstructionKind::kCompute: {
      const Program& program = role.programs[one.program];
      return {program.arg_read[arg], program.arg_written[arg]};
    }
    case InstructionKind::kInput:
    case InstructionKind::kRecv:
      return {false, true};
    case InstructionKind::kSend:
      return {true, false};
    case InstructionKind::kAllReduce:
    case InstructionKind::kBroadcast:
      return {true, true};
    default:  // one after the other, or pairs
      return {arg % 2 == 0, arg % 2 == 1};
  }
}

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
        life_of_(role_.buffers.size(), -1) {}

  void run() {
    for (size_t b = 0; b < role_.buffers.size(); ++b)
      if (role_.buffers[b].kind != BufferKind::kStep) begin_permanent(static_cast<int32_t>(b));
    const auto& list = *section_.lists[cell_];
    for (size_t i = 0; i < list.size(); ++i) visit({cell_, static_cast<int32_t>(i)}, list[i]);
    if (std::string_view(section_.name) == "body") check_reports();
  }

 private:
  std::string buffer_name(int32_t b) const {
    return fmt::format("'{}'", quote_control(role_.buffers[b].name));
  }
  std::string name(Spot place) const { return name_of(model_, section_, place); }

  void visit(Spot place, const Instruction& one) {
    if (one.kind == InstructionKind::kCompute) check_same_buffer(place, one);
    for (size_t a = 0; a < one.args.size(); ++a)
      if (access_of(role_, one, a).read) read(place, one, one.args[a]);
    for (size_t a = 0; a < one.args.size(); ++a) {
      const Access access = access_of(role_, one, a);
      if (access.write) write(place, one.args[a], access.read);
    }
  }

  // One buffer bound twice: once written, it must not be read any more by the other name.
  void check_same_buffer(Spot place, const Instruction& one) {
    const Program& program = role_.programs[one.program];
    std::map<int32_t, std::vector<size_t>> bound;
    for (size_t a = 0; a < one.args.size(); ++a) bound[one.args[a]].push_back(a);
    for (const auto& [buffer, args] : bound)
      for (size_t w : args)
        for (size_t other : args)
          if (w != other && program.arg_written[w] && touched_after(program, w, other))
            findings_.add("memory", "{} writes {} as arg {} while it still needs it as arg {}",
                          name(place), buffer_name(buffer), w, other);
  }
  // Whether arg `other` is read or written after the op that first writes arg `w`, or both are
  // written.
  static bool touched_after(const Program& program, size_t w, size_t other) {
    if (program.arg_written[other]) return true;
    bool written = false;
    const std::vector<int32_t> base = program.bases();
    for (const ProgramOp& op : program.ops) {
      const auto has = [&](const std::vector<int32_t>& ids, size_t arg) {
        return std::any_of(ids.begin(), ids.end(), [&](int32_t id) {
          return id >= 0 && base[static_cast<size_t>(id)] == static_cast<int32_t>(arg);
        });
      };
      if (written && has(op.inputs, other)) return true;
      written = written || has(op.outputs, w);
    }
    return false;
  }

  // ---- One access ----
  void read(Spot place, const Instruction& one, int32_t buffer) {
    Life* life = current(buffer);
    if (!life) return unwritten(place, buffer);
    if (life->evicted_by.valid()) return overwritten(place, *life);
    for (Spot write : life->writes)
      if (!clocks_.before(section_, write, place))
        unordered(place, "reads", *life, write, "writes");
    const Spot end =
        one.kind == InstructionKind::kSend ? section_.partner[place.cell][place.index] : place;
    note(life->reads, life->reader, end, place);
  }
  void write(Spot place, int32_t buffer, bool reads_too) {
    Life* life = current(buffer);
    if (reads_too || (life && life->permanent)) {
      if (!life) return;  // said by read()
      if (life->evicted_by.valid()) return;
      after_all(place, *life, "writes");
      note_write(*life, place);
      return;
    }
    // A new life: after all accesses of the old one and of whatever lies in these bytes.
    if (life && !life->evicted_by.valid()) after_all(place, *life, "writes");
    begin(place, buffer);
  }

  Life* current(int32_t buffer) {
    return life_of_[buffer] < 0 ? nullptr : &lives_[life_of_[buffer]];
  }

  void unwritten(Spot place, int32_t buffer) {
    std::string later;
    const auto& list = *section_.lists[cell_];
    for (size_t i = static_cast<size_t>(place.index) + 1; i < list.size() && later.empty(); ++i)
      for (size_t a = 0; a < list[i].args.size(); ++a)
        if (list[i].args[a] == buffer && access_of(role_, list[i], a).write)
          later = "; later " + name_of(list[i]) + " writes it";
    findings_.add("order", "{} reads {} before anything writes it{}", name(place),
                  buffer_name(buffer), later);
  }
  void overwritten(Spot place, const Life& life) {
    findings_.add("memory", "{} needs {}, whose memory {} has given to {}", name(place),
                  buffer_name(life.buffer), name_of(section_.at(life.evicted_by)),
                  buffer_name(life.evicted_for));
  }
  void unordered(Spot place, const char* does, const Life& life, Spot other, const char* did) {
    findings_.add("order", "{} {} {}, which {} {} without being waited for", name(place), does,
                  buffer_name(life.buffer), name(other), did);
  }

  // All earlier accesses of a life are complete when `place` runs.
  void after_all(Spot place, const Life& life, const char* does) {
    for (Spot write : life.writes)
      if (write != place && !clocks_.before(section_, write, place))
        unordered(place, does, life, write, "writes");
    for (size_t r = 0; r < life.reads.size(); ++r)
      if (life.reads[r] != place && !clocks_.before(section_, life.reads[r], place))
        unordered(place, does, life, life.reader[r],
                  life.reads[r] == life.reader[r] ? "reads" : "may still be sending");
  }

  // ---- Lives and the bytes they own ----
  void begin(Spot place, int32_t buffer) {
    lives_.push_back({});
    const auto id = static_cast<int32_t>(lives_.size() - 1);
    lives_[id].buffer = buffer;
    take_bytes(place, id);
    life_of_[buffer] = id;
    note_write(lives_[id], place);
  }
  void begin_permanent(int32_t buffer) {
    lives_.push_back({});
    const auto id = static_cast<int32_t>(lives_.size() - 1);
    lives_[id].buffer = buffer;
    lives_[id].permanent = true;
    take_bytes({}, id);
    life_of_[buffer] = id;
  }
  void take_bytes(Spot place, int32_t id) {
    const Buffer& buffer = role_.buffers[lives_[id].buffer];
    const int64_t begin = buffer.offset, end = begin + buffer.type.bytes();
    if (begin == end) return;
    auto it = owner_.upper_bound(begin);
    if (it != owner_.begin()) --it;
    while (it != owner_.end() && it->first < end) {
      const auto [first, range] = *it;
      if (range.end <= begin) {
        ++it;
        continue;
      }
      evict(place, range.life, id);
      it = owner_.erase(it);
      if (first < begin) owner_[first] = {begin, range.life};
      if (range.end > end) it = owner_.insert_or_assign(end, Range{range.end, range.life}).first;
    }
    owner_[begin] = {end, id};
  }
  void evict(Spot place, int32_t old_id, int32_t new_id) {
    Life& old = lives_[old_id];
    const int32_t buffer = lives_[new_id].buffer;
    if (old.buffer == buffer && old_id != new_id)
      return;  // the same buffer again: checked by write()
    if (old.permanent) {
      findings_.add("memory", "{} shares bytes with {} on {}, which is kept for ever",
                    buffer_name(buffer), buffer_name(old.buffer), model_.who(cell_));
      return;
    }
    for (Spot write : old.writes) gives_way(place, old, write, "writes", buffer);
    for (size_t r = 0; r < old.reads.size(); ++r)
      gives_way(place, old, old.reads[r],
                old.reads[r] == old.reader[r] ? "uses" : "may still be sending", buffer,
                old.reader[r]);
    old.evicted_by = place;
    old.evicted_for = buffer;
  }
  void gives_way(Spot place, const Life& old, Spot access, const char* did, int32_t buffer,
                 Spot who = {}) {
    if (access != place && clocks_.before(section_, access, place)) return;
    findings_.add("memory", "{} puts {} where {} {} {}", name(place), buffer_name(buffer),
                  access == place ? "it" : name(who.valid() ? who : access), did,
                  buffer_name(old.buffer));
  }

  // Keeps the last access per stream: earlier ones on the same stream are complete when it is.
  bool replaces(Spot later, Spot earlier) const {
    return later.cell == earlier.cell && section_.at(later).stream == section_.at(earlier).stream;
  }
  void note(std::vector<Spot>& ends, std::vector<Spot>& readers, Spot end, Spot reader) {
    for (size_t k = 0; k < ends.size(); ++k)
      if (replaces(end, ends[k])) {
        if (end.index < ends[k].index) return;
        ends[k] = end;
        readers[k] = reader;
        return;
      }
    ends.push_back(end);
    readers.push_back(reader);
  }
  void note_write(Life& life, Spot place) {
    for (Spot& write : life.writes)
      if (replaces(place, write)) {
        write = place;
        return;
      }
    life.writes.push_back(place);
  }

  // What is reported must still be there when the step ends; that waits for all streams.
  void check_reports() {
    for (const Report& report : role_.reports) {
      const Life* life = current(report.buffer);
      if (!life)
        findings_.add("order", "report '{}' of {}: nothing writes {}", quote_control(report.name),
                      model_.who(cell_), buffer_name(report.buffer));
      else if (life->evicted_by.valid())
        findings_.add("memory", "report '{}' needs {}, whose memory {} has given to {}",
                      quote_control(report.name), buffer_name(report.buffer),
                      name(life->evicted_by), buffer_name(life->evicted_for));
    }
  }

  struct Range {
    int64_t end = 0;
    int32_t life = -1;
  };
  const Model& model_;
  const Section& section_;
  const Clocks& clocks_;
  Findings& findings_;
  int32_t cell_;
  const RoleProgram& role_;
  std::vector<int32_t> life_of_;  // by buffer: its current life
  std::vector<Life> lives_;
  std::map<int64_t, Range> owner_;  // by first byte
};

}  // namespace

void check_memory(const Model& model, const Section& section, const Clocks& clocks,
                  Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c)
    CellCheck(model, section, clocks, c, findings).run();
}

}  // namespace piper
