// The form of a plan set that all rules read: cells, sections, and which instructions communicate.
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

// Gives names ids: equal names have equal ids in all roles. The strings belong to the plan set.
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
  int32_t add(std::string_view name) {  // a new id, which find() does not return
    names_.push_back(name);
    return static_cast<int32_t>(names_.size()) - 1;
  }

 private:
  std::unordered_map<std::string_view, int32_t> ids_;
  std::vector<std::string_view> names_;
};

// Holds facts of a role that the rules often ask, kept close together in memory.
struct BufferFacts {
  int64_t begin = 0, end = 0;  // bytes in the arena; those of the host's arena follow
  int32_t param = -1;          // the name's id
  BufferKind kind = BufferKind::kStep;
  uint32_t same = 0;  // of a constant: a bit for each dim along which elements are equal
};
struct ProgramFacts {
  std::vector<uint8_t> access;   // by argument: kReads, kWrites
  std::vector<int32_t> written;  // the arguments that it writes, ascending
  // The i-th lists, ascending, the arguments that the new content of written[i] depends on.
  std::vector<std::vector<int32_t>> sources;
  // Pairs (to, from): after the program, `to` holds what `from` holds, rounded to its type.
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
  int64_t rank = 0;                  // the first rank: its free coordinates are 0
  int64_t peers = 1;                 // number of ranks
  std::vector<int64_t> coordinates;  // of that rank
};

// Names an instruction of a section.
struct Spot {
  int32_t cell = -1, index = -1;
  bool valid() const { return cell >= 0; }
  bool operator==(const Spot&) const = default;
};

struct Model {
  std::vector<std::pair<std::string, int64_t>> mesh;
  std::vector<bool> alike_axis, free_axis;  // ranks along it have one role; see Cell
  // A bit for each mesh axis along which ranks have blocks of values. Rule layout follows these
  // axes, and proves that sums over them are of terms. Along other axes ranks are replicas, or
  // stages.
  uint32_t followed = 0;
  std::vector<Cell> cells;
  std::vector<int32_t> cell_of_rank;
  std::vector<RoleFacts> facts;  // by role
  // Where training steps overlap, by role and number in windows_of(): the window's instructions.
  std::vector<std::vector<std::vector<Instruction>>> windows;
  NameIds params, targets;
  // 16-bit copies of parameters have ids as parameters have: `copies` has them by parameter and
  // type, `master_of` the parameter of a copy, or -1.
  std::map<std::pair<int32_t, DType>, int32_t> copies;
  std::vector<int32_t> master_of;
  std::list<std::string> copy_names;
  std::vector<int32_t> gradient_of;  // by parameter: its gradient, or the statistic of the batch
                                     // that it follows, or -1
  std::vector<bool> is_gradient;     // by sum
  std::vector<int32_t> site_of;      // by sum: of gradients of several sites, which; else -1
  std::vector<int32_t> uses;         // by sum: the largest number that a role states
  int64_t norm_runs = 0;             // of each gradient on one device; 0: not known
  std::vector<int32_t> norm_order;   // gradients, in the order in which one device sums squares
  std::map<std::string, int32_t> shown;  // sums that one device reports, by report; if known
  bool is_apart = false;                 // another section changes some of the states
  bool trains = true;                    // false: of an evaluation, in which no state changes

  std::string who(int32_t cell) const;  // "rank 2", "ranks 2 and 3 more"
};
// `has_sites`: an outer update brings sites together, so "site.K.NAME" is site K's NAME.
Result<Model> make_model(const PlanSet& set, bool has_sites);
// Returns whether a report of this name shows a sum over the step as it is.
inline bool is_shown_sum(std::string_view report) { return report == "loss" || report == "weight"; }

// Holds facts of an instruction that the rules often ask, kept close together in memory.
struct Step {
  InstructionKind kind = InstructionKind::kCompute;
  bool sums = false;          // it declares contributions to sums
  bool completes = true;      // no slice of a tensor, or its last one
  int16_t training_step = 0;  // 0 if the section has one part only
  int32_t slot = 0;           // its stream, counted over all cells
  int32_t program = -1, micro = -1;
  int32_t first_arg = 0, num_args = 0;    // in Section::args of the cell
  int32_t first_wait = 0, num_waits = 0;  // in Section::waits of the cell
};
// These return how a step accesses an argument (kReads, kWrites), and whether it writes a buffer.
uint8_t access_of(const RoleFacts& facts, const Step& step, size_t arg);
bool writes(const RoleFacts& facts, const Step& step, std::span<const int32_t> args,
            int32_t buffer);

// Names a part of a section: one of the role's lists of instructions, or where steps overlap a
// window, by its number in Model::windows; and its current training step.
struct SectionPart {
  std::vector<Instruction> RoleProgram::*list = nullptr;
  size_t window = 0;  // where there is no list
  int32_t step = 0;
  bool ends_step = false;
};

// Holds the instructions that are checked together, in all cells: the prologue, body or epilogue.
// Or, where training steps overlap, the windows of some steps in a row.
struct Section {
  const char* name = "";
  std::vector<std::vector<const Instruction*>> lists;  // by cell, over all parts
  std::vector<SectionPart> parts;
  std::vector<std::vector<int32_t>> ends;  // by cell and part: the index after its last instruction
  std::vector<std::vector<Step>> steps;    // by cell and instruction
  std::vector<std::vector<int32_t>> args;  // by cell: arguments of all steps, concatenated
  // By cell: the instructions that steps wait for, concatenated.
  std::vector<std::vector<int32_t>> waits;
  int32_t slots = 0;
  std::vector<std::vector<Spot>> partner;  // the receive of a send, and the send of a receive
  std::vector<std::vector<int32_t>>
      joint;  // index in `joints`, -1 for what is no collective across cells
  std::vector<std::vector<Spot>> joints;  // members, by cell
  std::vector<Spot> order;  // a possible order of execution; a collective is listed once

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
  // Returns the members of a collective; of other instructions only themselves.
  std::span<const Spot> members(const Spot& place) const {
    const int32_t of = joint[place.cell][place.index];
    return of < 0 ? std::span(&place, 1) : std::span(joints[of]);
  }
  // Returns the first instruction of the part: all before it in this cell is complete, with
  // messages.
  int32_t part_begin(Spot place) const {
    if (parts.size() == 1) return 0;
    const size_t part = part_of(place);
    return part == 0 ? 0 : ends[place.cell][part - 1];
  }
  int32_t training_step(Spot place) const { return step(place).training_step; }
  int32_t training_steps() const { return parts.back().step + 1; }
  // Returns whether this instruction is the last one of a training step.
  bool ends_step(Spot place) const {
    const size_t part = part_of(place);
    return parts[part].ends_step && place.index + 1 == ends[place.cell][part];
  }
};
Section make_section(const Model& model, const char* name, std::vector<SectionPart> parts);

// Returns "'F stage=1 mb=3'", or the kind of an instruction that has no label.
std::string name_of(const Instruction& instruction);
// Returns "'F stage=1 mb=3' on rank 2".
std::string name_of(const Model& model, const Section& section, Spot place);

// Collects findings, of each rule only the first few.
class Findings {
 public:
  explicit Findings(VerifyReport& report) : report_(report) {}
  template <class... Args>
  void add(const char* rule, fmt::format_string<Args...> text, Args&&... args) {
    push(rule, fmt::format(text, std::forward<Args>(args)...));
  }
  void add(const Finding& finding) { push(finding.rule.c_str(), finding.text); }
  size_t made() const { return made_; }  // counts those that were left out, too
  // Returns whether the next finding of the rule is printed; of many, only the first are.
  bool takes(std::string_view rule) const;

 private:
  void push(const char* rule, std::string text);
  VerifyReport& report_;
  size_t made_ = 0;
};

// Returns for each argument, if it holds a sum of arguments after the program, the sum of their
// symbols, else nothing. A cast to another float counts as the same sum if it is to a type of the
// program's results (kToResults): the sum is kept or sent in that type. On one device that plays
// all replicas, casts and blocks stand for what replicas send, so all count (kAny).
enum class Roundings { kToResults, kAny };
std::vector<std::optional<uint64_t>> sums_of(const Program& program, Roundings roundings);
uint64_t initial_symbol(size_t arg);
uint64_t symbol_of(std::string_view text);
// Returns whether a float type can represent all numbers of another.
inline bool holds_all(DType type, DType other) {
  if (!info(type).is_float || !info(other).is_float) return false;
  return type == other || type == DType::kF64 || (type == DType::kF32 && other != DType::kF64);
}
// Returns a hash of both, by the finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
inline uint64_t join_symbols(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x2545f4914f6cdd1d + b + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}
ProgramFacts facts_of(const Program& program);
// Calls work(0 … count - 1), in parallel if the role is large enough for that to pay.
void for_each(const RoleProgram& role, size_t count, const std::function<void(size_t)>& work);
// Returns the axes that rule layout must follow; see Model::followed.
uint32_t find_followed_axes(const PlanSet& set);
uint32_t axes_of(const Group& group);  // a bit each
// Notes along which dims the elements of constants are equal, as far as the set has their values.
void note_equal_elements(const PlanSet& set, Model& model);
// Fills facts, names and gradients. Roles must have passed check_role().
Status find_facts(const PlanSet& set, bool has_sites, Model& model);
// Returns in how many runs a plan for one device sums the squares of each gradient; 0: it does not.
int64_t runs_of_norm(const RoleProgram& role);

// ---- The rules ----------------------------------------------------------------------------------
void check_structure(const Model& model, std::span<const Section> sections, Findings& findings);
// All ranks list the same communicators, and use only those that they belong to. (Whether a
// communicator fits an instruction's peer, group and stream is checked when plans are read.)
void check_communicators(const Model& model, Findings& findings);
// Fills section.partner and counts transfers.
void check_transfers(const Model& model, Section& section, Findings& findings,
                     VerifyReport& report);
// Fills section.joint and section.joints and counts collectives.
void check_collectives(const Model& model, Section& section, Findings& findings,
                       VerifyReport& report);
// Runs the section; fills section.order.
void check_deadlock(const Model& model, Section& section, Findings& findings);

// Holds vector clocks: for each instruction, the last instruction of other streams that is complete
// when it is, or -1. Columns are kept only for streams that a cell asks about (its own ones, and
// those that receive what it sends), and rows only where a clock changes.
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
    std::vector<int32_t> column_of;  // by slot; -1: not asked about
    std::vector<int32_t> asked;      // by column: its slot
    std::vector<int32_t> row_of;     // by instruction; -1: it knows of no other slot
    std::vector<int32_t> known;      // rows
  };
  std::vector<Cell> cells_;
};
Clocks make_clocks(const Model& model, const Section& section);

// Checks rule memory: the `staging` that plans state for the host is what they take.
void check_staging(const Model& model, Findings& findings);
// Checks rules order and memory; over the body: a state is read before its update.
void check_memory(const Model& model, const Section& section, const Clocks& clocks,
                  Findings& findings);
// Describes a cut of a value over one axis: a bit for each dim that may be the cut one.
struct CutDim {
  uint32_t dims = 0;
  int64_t ranks = 0;  // 0: unknown
  // Of no cut: `dims` count packed rows; the value has the places of such; it is a partial result,
  // of some of the blocks that go through a ring.
  static constexpr int64_t kPacked = -1, kPlaces = -2, kPartial = -3;
  auto operator<=>(const CutDim&) const = default;
};
using CutDims = std::vector<std::vector<CutDim>>;  // by value of a program
struct LayoutsFound {
  std::set<CutDims> all;
  std::vector<std::vector<const CutDims*>> cuts;  // by cell and instruction; null: not known
};
// Checks rule layout, over the body, or all parts. Returns the cuts of values for rule single.
LayoutsFound check_layouts(const Model& model, const Section& section, Findings& findings);
// Checks rule copies, over the body, or all parts.
void check_equal_copies(const Model& model, const Section& section, Findings& findings);
// Checks rule microbatch, where training steps overlap: bodies do what prologue and epilogue do.
void check_bodies(const Model& model, Findings& findings);
// Checks rule sum, over the body, or all parts.
void check_sums(const Model& model, const Section& section, Findings& findings,
                VerifyReport& report);

}  // namespace piper
