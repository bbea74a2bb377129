// What all rules look at: the plan set as cells, and how their instructions belong together.
// Private to the verify room.
#pragma once

#include <algorithm>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <span>
#include <unordered_map>

#include "piper/plan/verify.h"

namespace piper {

// Equal names have equal ids, in all roles. The names are the plan set's own.
class NameIds {
 public:
  int32_t id_of(std::string_view name) {
    const auto [known, is_new] = ids_.try_emplace(name, static_cast<int32_t>(names_.size()));
    if (is_new) names_.push_back(name);
    return known->second;
  }
  int32_t find(std::string_view name) const {  // -1: unknown
    const auto known = ids_.find(name);
    return known == ids_.end() ? -1 : known->second;
  }
  std::string_view operator[](int32_t id) const { return names_[id]; }
  size_t size() const { return names_.size(); }
  int32_t add(std::string_view name) {  // an id of its own, by which alone it is found
    names_.push_back(name);
    return static_cast<int32_t>(names_.size()) - 1;
  }

 private:
  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<std::string_view> names_;
};

// Keeps side by side what the rules ask of a role again and again.
struct BufferFacts {
  int64_t begin = 0, end = 0;  // bytes of the arena, behind which the host's lie
  int32_t param = -1;          // the name's id
  BufferKind kind = BufferKind::kStep;
};
struct ProgramFacts {
  std::vector<uint8_t> access;   // by argument: kReads, kWrites
  std::vector<int32_t> written;  // the arguments that it writes, ascending
  // By position in `written`: the arguments that the new content was computed from, ascending.
  std::vector<std::vector<int32_t>> sources;
  // Arguments that are, when it has run, what another one is then, rounded to their type.
  std::vector<std::pair<int32_t, int32_t>> rounded;
};
struct RoleFacts {
  std::vector<BufferFacts> buffers;
  std::vector<int32_t> kept;  // buffers that outlive a step, ascending
  std::vector<ProgramFacts> programs;
  std::vector<int32_t> targets;  // by sum: its name's id
  std::vector<bool> has_target;  // by that id
};
inline constexpr uint8_t kReads = 1, kWrites = 2;

// Groups ranks that differ only along free axes: those on which neither roles nor the peers of any
// instruction depend. Each of them meets the peers of the same free coordinates, so what holds for
// one of them holds for all.
struct Cell {
  const RoleProgram* role = nullptr;
  const RoleFacts* facts = nullptr;
  int64_t rank = 0;                  // the first: free coordinates 0
  int64_t peers = 1;                 // how many
  std::vector<int64_t> coordinates;  // of that rank
};

struct Spot {
  int32_t cell = -1, index = -1;  // an instruction
  bool valid() const { return cell >= 0; }
  bool operator==(const Spot&) const = default;
};

struct Model {
  std::vector<std::pair<std::string, int64_t>> mesh;
  std::vector<bool> alike_axis, free_axis;  // ranks along it have one role; see Cell
  // Mesh axes along which ranks have blocks of values, a bit each: rule layout follows these, and
  // what it lets add up over them is one sum. Others repeat work, or share its sums only.
  uint32_t followed = 0;
  std::vector<Cell> cells;
  std::vector<int32_t> cell_of_rank;
  std::vector<RoleFacts> facts;  // by role
  NameIds params, targets;
  // Copies of parameters are parameters of their own: by the parameter and the type, and back; -1:
  // it is none.
  std::map<std::pair<int32_t, DType>, int32_t> copies;
  std::vector<int32_t> master_of;
  std::list<std::string> copy_names;
  std::vector<int32_t> gradient_of;  // by parameter: its gradient, or the statistic of the batch
                                     // that it follows, or -1
  std::vector<bool> is_gradient;     // by sum
  std::vector<int32_t> uses;         // by sum: of the role that states most
  std::vector<int32_t> norm_order;   // gradients, as one device adds their squares
  int32_t loss = -1;                 // the sum that one device reports as it; -1: not known

  std::string who(int32_t cell) const;  // "rank 2", "ranks 2 and 3 more"
};
Result<Model> make_model(const PlanSet& set);

// Keeps side by side what most rules ask of an instruction.
struct Step {
  InstructionKind kind = InstructionKind::kCompute;
  bool sums = false;          // it declares some
  int16_t training_step = 0;  // that it belongs to; 0 where there is but one part
  int32_t slot = 0;           // its stream, counted over all cells
  int32_t program = -1, micro = -1;
  int32_t first_arg = 0, num_args = 0;    // in Section::args of the cell
  int32_t first_wait = 0, num_waits = 0;  // in Section::waits of the cell
};
// Returns what it does with an argument, and whether it writes a buffer.
uint8_t access_of(const RoleFacts& facts, const Step& step, size_t arg);
bool writes(const RoleFacts& facts, const Step& step, std::span<const int32_t> args,
            int32_t buffer);

// Says what a section is made of: one of the role's lists, and the training step under way in it.
struct SectionPart {
  std::vector<Instruction> RoleProgram::*list = nullptr;
  int32_t step = 0;
  bool ends_step = false;
};

// Is one of prologue, body and epilogue, in all cells; or, where training steps overlap, all of
// them one after the other, with two bodies.
struct Section {
  const char* name = "";
  std::vector<std::vector<const Instruction*>> lists;  // by cell: of all parts
  std::vector<SectionPart> parts;
  std::vector<std::vector<int32_t>> ends;  // by cell and part: the first instruction behind it
  std::vector<std::vector<Step>> steps;    // by cell and instruction
  std::vector<std::vector<int32_t>> args;  // by cell: those of one after the other
  // By cell, too: the instructions of the cell that are awaited.
  std::vector<std::vector<int32_t>> waits;
  int32_t slots = 0;
  std::vector<std::vector<Spot>> partner;  // of a send its receive, of a receive its send
  std::vector<std::vector<int32_t>>
      joint;  // index in `joints`, -1 for what is no collective across cells
  std::vector<std::vector<Spot>> joints;  // members, by cell
  std::vector<Spot> order;  // a possible run; of a joint its first member stands for all

  const Instruction& at(Spot place) const { return *lists[place.cell][place.index]; }
  const Step& step(Spot place) const { return steps[place.cell][place.index]; }
  std::span<const int32_t> args_of(int32_t cell, const Step& step) const {
    return {args[cell].data() + step.first_arg, static_cast<size_t>(step.num_args)};
  }
  std::span<const int32_t> waits_of(Spot place) const {
    const Step& waiting = step(place);
    return {waits[place.cell].data() + waiting.first_wait, static_cast<size_t>(waiting.num_waits)};
  }
  size_t part_of(Spot place) const {
    const auto& own = ends[place.cell];
    return parts.size() == 1
               ? 0
               : static_cast<size_t>(std::upper_bound(own.begin(), own.end(), place.index) -
                                     own.begin());
  }
  // Returns all that take part in a collective.
  std::span<const Spot> members(const Spot& place) const {
    const int32_t of = joint[place.cell][place.index];
    return of < 0 ? std::span(&place, 1) : std::span(joints[of]);
  }
  // Returns the begin of its part: all before it in its cell is complete, messages included.
  int32_t part_begin(Spot place) const {
    if (parts.size() == 1) return 0;
    const size_t part = part_of(place);
    return part == 0 ? 0 : ends[place.cell][part - 1];
  }
  int32_t training_step(Spot place) const { return step(place).training_step; }
  int32_t training_steps() const { return parts.back().step + 1; }
  // Returns whether a training step ends after it.
  bool ends_step(Spot place) const {
    const size_t part = part_of(place);
    return parts[part].ends_step && place.index + 1 == ends[place.cell][part];
  }
};
Section make_section(const Model& model, const char* name, std::vector<SectionPart> parts);

// "'F stage=1 mb=3'", or what it does where it has no label.
std::string name_of(const Instruction& instruction);
// "'F stage=1 mb=3' on rank 2"
std::string name_of(const Model& model, const Section& section, Spot place);

// Collects findings; of each rule the first few.
class Findings {
 public:
  explicit Findings(VerifyReport& report) : report_(report) {}
  template <class... Args>
  void add(const char* rule, fmt::format_string<Args...> text, Args&&... args) {
    push(rule, fmt::format(text, std::forward<Args>(args)...));
  }
  void add(const Finding& finding) { push(finding.rule.c_str(), finding.text); }
  size_t made() const { return made_; }  // those that were left out, too

 private:
  void push(const char* rule, std::string text);
  VerifyReport& report_;
  size_t made_ = 0;
};

// Says by argument, of a sum of arguments the sum of their symbols; nothing where it holds
// something else when the program has run. Which roundings to another float leave a sum what it is:
// those to a type of the program's results are of sums that are kept or travel so; a device that
// plays all replicas rounds what they send.
enum class Roundings { kToResults, kAny };
std::vector<std::optional<uint64_t>> sums_of(const Program& program, Roundings roundings);
uint64_t initial_symbol(size_t arg);
uint64_t symbol_of(std::string_view text);
// Returns whether a float type has all numbers of another.
inline bool holds_all(DType type, DType other) {
  if (!info(type).is_float || !info(other).is_float) return false;
  return type == other || type == DType::kF64 || (type == DType::kF32 && other != DType::kF64);
}
// Returns the finaliser of SplitMix64 (Steele, Lea, Flood, 2014) of both.
inline uint64_t join_symbols(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x2545f4914f6cdd1d + b + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}
ProgramFacts facts_of(const Program& program);
// Does work(0 … count - 1) at once, where such a role has enough to do.
void for_each(const RoleProgram& role, size_t count, const std::function<void(size_t)>& work);
uint32_t find_followed_axes(const PlanSet& set);
uint32_t axes_of(const Group& group);  // a bit each
// Fills facts, names and gradients, of roles that are what check_role() wants.
Status find_facts(const PlanSet& set, Model& model);

// ---- The rules ----------------------------------------------------------------------------------
void check_structure(const Model& model, std::span<const Section> sections, Findings& findings);
// All ranks list the same, and take part in theirs only. (That an instruction's fits its peer or
// group, and its stream, is checked where plans are read.)
void check_communicators(const Model& model, Findings& findings);
// Fills section.partner and counts transfers.
void check_transfers(const Model& model, Section& section, Findings& findings,
                     VerifyReport& report);
// Fills section.joint and section.joints and counts collectives.
void check_collectives(const Model& model, Section& section, Findings& findings,
                       VerifyReport& report);
// Runs the section; fills section.order.
void check_deadlock(const Model& model, Section& section, Findings& findings);

// Says what is known to be complete when an instruction is: of streams that are asked for (the
// cell's own ones, and those that receive what the cell sends) the last instruction, or -1. Kept
// where it changes.
class Clocks {
 public:
  // Returns whether instruction `earlier` of the slot is complete when `later` is.
  bool before(const Section& section, int32_t slot, int32_t earlier, Spot later) const {
    if (section.step(later).slot == slot) return earlier <= later.index;
    const Cell& cell = cells_[later.cell];
    const int32_t row = cell.row_of[later.index];
    return row >= 0 && cell.known[static_cast<size_t>(row) * cell.asked.size() +
                                  static_cast<size_t>(cell.column_of[slot])] >= earlier;
  }

 private:
  friend class Clockwork;
  struct Cell {
    std::vector<int32_t> column_of;  // by slot; -1: nobody asks
    std::vector<int32_t> asked;      // by column: its slot
    std::vector<int32_t> row_of;     // by instruction; -1: it knows of no other slot
    std::vector<int32_t> known;      // rows
  };
  std::vector<Cell> cells_;
};
Clocks make_clocks(const Section& section);

// Checks rule memory: what plans state of the host beside its arena is what they take.
void check_staging(const Model& model, Findings& findings);
// Checks rules order and memory; over the body: a state is read before its update.
void check_memory(const Model& model, const Section& section, const Clocks& clocks,
                  Findings& findings);
// Says, for an axis along which ranks have blocks of a value, which dim is cut, or one of which, a
// bit each.
struct CutDim {
  uint32_t dims = 0;
  int64_t ranks = 0;  // 0: that is not known
  auto operator<=>(const CutDim&) const = default;
};
using CutDims = std::vector<std::vector<CutDim>>;  // by value of a program
struct LayoutsFound {
  std::set<CutDims> all;
  std::vector<std::vector<const CutDims*>> cuts;  // by cell and instruction; null: not known
};
// Checks rule layout, over the body, or all parts. Returns what rule single asks.
LayoutsFound check_layouts(const Model& model, const Section& section, Findings& findings);
// copies, over the body, or all parts
void check_equal_copies(const Model& model, const Section& section, Findings& findings);
// Checks rule microbatch, where training steps overlap: bodies do what prologue and epilogue do.
void check_bodies(const Model& model, Findings& findings);
// Checks rule sum, over the body, or all parts.
void check_sums(const Model& model, const Section& section, Findings& findings,
                VerifyReport& report);

}  // namespace piper
