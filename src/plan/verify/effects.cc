// Follows a plan and records its effects as symbols of values.
#include "effects.h"

#include <map>
#include <numeric>

#include "piper/base/float16.h"
#include "piper/plan/cuts.h"
#include "values.h"
#include "walk.h"

namespace piper {
namespace {

class EffectsWalk : public BufferWalk<uint64_t> {
 public:
  EffectsWalk(const Model& model, const Section& section, bool whole, const Effects* known,
              const LayoutsFound* layouts)
      : BufferWalk(section),
        model_(model),
        whole_(whole),
        known_(known),
        layouts_(layouts),
        values_(whole) {
    for (const Cell& cell : model.cells) {
      auto& held = effects_.held.emplace_back(cell.facts->buffers.size());
      for (const int32_t b : cell.facts->kept) held[b] = initial(*cell.role, cell.role->tensor(b));
    }
    if (!known) values_.made = &effects_.made, values_.shapes = &effects_.shapes;
    if (known) values_.whole_shapes = &known->shapes;
    for (size_t axis = 0; axis < model.mesh.size(); ++axis)
      if (model.followed >> axis & 1) cut_along(model.mesh[axis].second);
    for (const Cell& cell : model.cells)
      for (const Tensor& tensor : cell.role->tensors) add_padding(tensor);
  }

  Effects run(int32_t steps) {
    for (first_step_ = 0; first_step_ < steps; ++first_step_) {
      for (const Spot place : section_.order) {
        follow(place);
        if (section_.parts.size() == 1) continue;
        for (const Spot member : section_.members(place))
          if (section_.ends_step(member))
            report(member.cell, section_.parts[section_.part_of(member)].step);
      }
      for (size_t c = 0; section_.parts.size() == 1 && c < model_.cells.size(); ++c)
        report(static_cast<int32_t>(c), first_step_);
    }
    return std::move(effects_);
  }

 private:
  uint64_t get(Spot place, int32_t buffer) override { return held(place, buffer); }
  void put(Spot place, int32_t buffer, uint64_t symbol) override { held(place, buffer) = symbol; }
  uint64_t& held(Spot place, int32_t buffer) { return effects_.held[place.cell][buffer]; }
  const RoleFacts& facts(Spot place) const { return *model_.cells[place.cell].facts; }
  void cut_along(int64_t ranks) {
    values_.ranks *= ranks;
    for (const int64_t parts : std::set(values_.parts)) values_.parts.insert(parts * ranks);
  }
  // Records by how much the cuts of a state pad its dims: some of them, as one that follows may cut
  // what only those before it have padded.
  void add_padding(const Tensor& tensor) {
    Shape whole = tensor.whole, all = whole, left = whole;  // `all`: of the parts together
    for (const TensorCut& cut : tensor.cuts) {
      const auto d = static_cast<size_t>(cut.dim);
      if (cut.axis < 0) {
        whole[d] = all[d] = left[d] = cut.block;
        continue;
      }
      const int64_t ranks = model_.mesh[static_cast<size_t>(cut.axis)].second,
                    own = cut_extent(left[d], cut, ranks);
      // A dim without elements is not padded, and no memory has as many as overflow.
      if (left[d] == 0 || __builtin_mul_overflow(all[d] / left[d] * ranks, own, &all[d])) return;
      left[d] = own;
      const int64_t common = std::gcd(whole[d], all[d]);
      if (all[d] != whole[d]) values_.padded.emplace(whole[d] / common, all[d] / common);
    }
  }
  int32_t step_of(Spot place) const { return first_step_ + section_.training_step(place); }

  // Initial values of states are not part of the symbol: check_names() compares them.
  uint64_t initial(const RoleProgram& role, const Tensor& tensor) {
    if (tensor.kind == BufferKind::kState) {
      const uint64_t symbol =
          join_symbols(symbol_of("state"), symbol_of(identity_of(role, tensor)));
      const bool rounded = role.original(tensor).type.dtype != tensor.type.dtype;
      return rounded ? values_.cast(symbol, info(tensor.type.dtype).name) : symbol;
    }
    const std::string what =
        fmt::format("{} {} {}", tensor.init, tensor.fill, info(tensor.type.dtype).name);
    return join_symbols(symbol_of("constant"), symbol_of(what));
  }
  uint64_t sum_of(Spot place, int32_t target) {
    const int32_t id = facts(place).targets[target];
    const size_t at =
        static_cast<size_t>(step_of(place)) * model_.targets.size() + static_cast<size_t>(id);
    if (at >= sum_symbols_.size()) sum_symbols_.resize(at + 1);
    if (sum_symbols_[at] == 0) {
      sum_symbols_[at] = sum_symbol(step_of(place), model_.targets[id]);
      sums_.insert(sum_symbols_[at]);
    }
    return sum_symbols_[at];
  }

  void report(int32_t cell, int32_t step) {
    for (const Report& one : model_.cells[cell].role->reports)
      effects_.reported.push_back({step, cell, one.name, effects_.held[cell][one.buffer]});
  }

  uint64_t position(Spot place) override {
    if (whole_ && (spread_axes(place) & ~model_.followed) == 0) return position_symbol();
    const Instruction& one = section_.at(place);
    uint64_t symbol = join_symbols(symbol_of("position"), static_cast<uint64_t>(one.outer));
    symbol = join_symbols(symbol, static_cast<uint64_t>(one.turn) * 2 + one.mirrored);
    for (int32_t axis : model_.cells[place.cell].role->groups[one.group].axes)
      symbol = join_symbols(symbol, static_cast<uint64_t>(axis));
    return symbol;
  }

  uint64_t input(Spot place) override {
    const Instruction& one = section_.at(place);
    const TensorType& type = model_.cells[place.cell].role->tensor(one.args[0]).type;
    return join_symbols(
        join_symbols(symbol_of("input"), symbol_of(one.input)),
        join_symbols(symbol_of(to_string(type)), static_cast<uint64_t>(step_of(place))));
  }

  void compute(Spot place) override {
    const Step& step = section_.step(place);
    const auto args = section_.args_of(place.cell, step);
    const Instruction& one = section_.at(place);
    const ProgramFacts& program = facts(place).programs[step.program];
    before_.assign(args.size(), 0);
    added_.clear();
    for (size_t a = 0; a < args.size(); ++a)
      before_[a] = program.access[a] & kReads ? held(place, args[a]) : initial_symbol(a);
    if (step.sums) {
      for (const SumRead& read : one.sum_reads) before_[read.arg] = sum_of(place, read.target);
      for (const Contribution& part : one.contributions) {
        if (part.accumulates) before_[part.arg] = initial_symbol(static_cast<size_t>(part.arg));
        added_.push_back(part.arg);
      }
    }
    const std::vector<uint64_t>& after = results(place, step);
    // A sum keeps its symbol when partial sums are added.
    combined_.clear();
    for (const SumCombine& combine : one.combines) {
      uint64_t all = 0;
      for (const int32_t from : combine.from) {
        const uint64_t term = held(place, args[from]);
        all = all == 0 || all == term ? term : join_symbols(all, term);
      }
      combined_.emplace_back(combine.arg, all);
    }
    if (!combined_.empty() && !effects_.rounds)
      effects_.rounds = rounds_terms(model_.cells[place.cell].role->programs[step.program]);
    for (const int32_t arg : program.written) held(place, args[arg]) = after[arg];
    for (const auto& [arg, symbol] : combined_) held(place, args[arg]) = symbol;
    add(place, one, args, after);
  }
  // Returns whether a program that adds up terms rounds some of them.
  static bool rounds_terms(const Program& program) {
    return std::ranges::any_of(program.ops, [&](const ProgramOp& op) {
      return op.op == "ToBlocks" ||
             (op.op == "Cast" && is_half(program.values[op.outputs[0]].dtype));
    });
  }
  // Returns whether another rank along a followed axis adds its part or term of the same
  // contribution, so that this one is not counted again.
  bool adds_again(Spot place, const SampleRange& samples) const {
    const std::vector<int64_t>& at = model_.cells[place.cell].coordinates;
    bool again = false;
    for (size_t axis = 0; whole_ && axis < at.size(); ++axis)
      again = again || ((model_.followed >> axis & 1) != 0 && at[axis] != 0 &&
                        (axis >= samples.stride.size() || samples.stride[axis] == 0));
    return again;
  }
  void add(Spot place, const Instruction& one, std::span<const int32_t> args,
           const std::vector<uint64_t>& after) {
    const bool again = adds_again(place, one.samples);
    for (size_t i = 0; i < one.contributions.size(); ++i) {
      const Contribution& part = one.contributions[i];
      if (again) {
        held(place, args[part.arg]) = sum_of(place, part.target);
        continue;
      }
      Effects::Added& sum = block_of(place, one.samples, facts(place).targets[part.target]);
      sum.last = place;
      // One argument may be the sum of several uses.
      const bool known = std::any_of(one.contributions.begin(), one.contributions.begin() + i,
                                     [&](const Contribution& c) { return c.arg == part.arg; });
      if (known) continue;
      sum.symbol +=
          after[part.arg] - (part.accumulates ? initial_symbol(static_cast<size_t>(part.arg)) : 0);
      held(place, args[part.arg]) = sum_of(place, part.target);
    }
  }
  Effects::Added& block_of(Spot place, const SampleRange& samples, int32_t target) {
    const size_t id = block_id(place, samples);
    const size_t at =
        static_cast<size_t>(step_of(place)) * model_.targets.size() + static_cast<size_t>(target);
    if (id >= blocks_.size()) blocks_.resize(id + 1);
    std::vector<int32_t>& of_sums = blocks_[id];
    if (at >= of_sums.size()) of_sums.resize(at + model_.targets.size(), -1);
    if (of_sums[at] < 0) {
      of_sums[at] = static_cast<int32_t>(effects_.added.size());
      effects_.added.push_back({step_of(place), target, samples.count, 0, place});
    }
    return effects_.added[static_cast<size_t>(of_sums[at])];
  }
  size_t block_id(Spot place, const SampleRange& samples) {
    int64_t first = samples.first;
    uint64_t key = 0;
    for (size_t a = 0; a < samples.stride.size(); ++a) {
      first += samples.stride[a] * model_.cells[place.cell].coordinates[a];
      key = join_symbols(key, model_.free_axis[a] ? static_cast<uint64_t>(samples.stride[a]) : 0);
    }
    key = join_symbols(join_symbols(key, static_cast<uint64_t>(first)),
                       static_cast<uint64_t>(samples.count));
    return block_ids_.try_emplace(key, block_ids_.size()).first->second;
  }

  // Tells what a program is given: its results are the same where this is.
  uint64_t key_of(Spot place, const Program& program, const CutDims* cuts) const {
    uint64_t key = reinterpret_cast<uintptr_t>(&program);
    key = join_symbols(key, static_cast<uint64_t>(step_of(place)));
    for (const uint64_t symbol : before_) key = join_symbols(key, symbol);
    for (const int32_t arg : added_) key = join_symbols(key, static_cast<uint64_t>(arg));
    return join_symbols(key, reinterpret_cast<uintptr_t>(cuts));
  }

  // Returns the symbols of arguments after the program, from before_.
  const std::vector<uint64_t>& results(Spot place, const Step& step) {
    const Program& program = model_.cells[place.cell].role->programs[step.program];
    const CutDims* cuts = layouts_ ? layouts_->cuts[place.cell][place.index] : nullptr;
    const auto [known, is_new] = results_.try_emplace(key_of(place, program, cuts));
    if (!is_new) return known->second;
    values_.norm = join_symbols(symbol_of("norm"), static_cast<uint64_t>(step_of(place)));
    known->second = run(program, cuts);
    for (const uint64_t square : values_.squared) {
      effects_.squared.insert(square);
      if (known_ && !known_->squared.contains(square) && !effects_.strange_square.valid())
        effects_.strange_square = place;
    }
    values_.squared.clear();
    if (effects_.normed.empty()) effects_.normed = values_.normed;
    values_.normed.clear();
    if (known_ && !effects_.strange.valid() && section_.at(place).pass != TaskPass::kU)
      look(place, step, known->second);
    return known->second;
  }
  // Follows a program that reads values which ranks have each of its own once for each of them.
  std::vector<uint64_t> run(const Program& program, const CutDims* cuts) {
    const std::vector<uint64_t>* own = nullptr;  // those of the first argument that is such a value
    for (const uint64_t symbol : before_)
      if (const auto known = values_.spreads.find(symbol); !own && known != values_.spreads.end())
        own = &known->second;
    if (own == nullptr) return values_.run(program, before_, added_, cuts);
    std::vector<std::vector<uint64_t>> made;
    for (size_t rank = 0; rank < own->size(); ++rank) {
      std::vector<uint64_t> args = before_;
      for (uint64_t& symbol : args)
        if (const auto known = values_.spreads.find(symbol); known != values_.spreads.end())
          symbol = rank < known->second.size() ? known->second[rank] : 0;
      made.push_back(values_.run(program, args, added_, cuts));
    }
    return spread(made);
  }
  // Returns by argument what all ranks made, or what each did. Takes these by rank.
  std::vector<uint64_t> spread(const std::vector<std::vector<uint64_t>>& made) {
    std::vector<uint64_t> after;
    for (size_t arg = 0; arg < before_.size(); ++arg) {
      std::vector<uint64_t> all;
      for (const std::vector<uint64_t>& one : made) all.push_back(one[arg]);
      const bool same = std::ranges::count(all, all[0]) == std::ssize(all);
      after.push_back(same ? all[0] : values_.spread(all));
    }
    return after;
  }
  // Rows that mask padding, and positions, exist only where ranks have parts.
  bool is_known(uint64_t symbol) const {
    return symbol == position_symbol() ||
           known_->made.contains(values_.of_turn(symbol).value_or(symbol)) ||
           values_.rows.contains(symbol);
  }
  void look(Spot place, const Step& step, const std::vector<uint64_t>& after) {
    const Instruction& one = section_.at(place);
    for (const int32_t arg : facts(place).programs[step.program].written) {
      const bool sum = std::any_of(one.contributions.begin(), one.contributions.end(),
                                   [&](const Contribution& part) { return part.arg == arg; });
      if (sum || is_known(after[arg])) continue;
      effects_.strange = place;
      effects_.strange_arg = static_cast<size_t>(arg);
      return;
    }
  }

  // Returns whether a collective of what has one symbol on all members keeps it. `is_sum`: ranks
  // have terms of it.
  static bool keeps_symbol(InstructionKind kind, bool is_sum) {
    if (info(kind).adds) return is_sum;
    return kind == InstructionKind::kAllGather || kind == InstructionKind::kOwnPart;
  }
  // Where whole values are followed, all collectives along axes over which ranks have parts or
  // terms keep symbols.
  void collective(std::span<const Spot> members) override {
    join(members, [&](size_t a) { return joined(members, a); });
  }
  // Returns the axes of the instruction's group along which there are several ranks.
  uint32_t spread_axes(Spot place) const {
    uint32_t axes = axes_of(model_.cells[place.cell].role->groups[section_.at(place).group]);
    for (size_t axis = 0; axis < model_.mesh.size(); ++axis)
      if (model_.mesh[axis].second == 1) axes &= ~(uint32_t{1} << axis);
    return axes;
  }
  uint64_t joined(std::span<const Spot> members, size_t a) {
    const Instruction& one = section_.at(members[0]);
    const auto read = [&](Spot member) { return held(member, section_.at(member).args[a]); };
    uint64_t made = read(members[0]);
    bool same = true;
    for (const Spot member : members) same = same && read(member) == made;
    // A sum along a further axis is another value: ranks along it hold no terms.
    const uint32_t over = spread_axes(members[0]);
    const bool adds_further = info(one.kind).adds && (over & ~model_.followed) != 0;
    const bool parts = whole_ && (over & model_.followed) != 0 && !adds_further;
    const bool keeps = same && (parts || keeps_symbol(one.kind, sums_.contains(made)));
    if (!keeps) {
      for (const Spot member : members) made = join_symbols(made, read(member));
      made = join_symbols(made, static_cast<uint64_t>(one.kind) + 1);
      if (takes_index(one.kind)) made = join_symbols(made, held(members[0], one.args[2]));
    }
    if (parts && info(one.kind).args == ArgForm::kTurns) made = values_.in_turn(made);
    const TensorType& type = model_.cells[members[0].cell].role->tensor(one.args[a]).type;
    if (one.exchanges_runs())
      made = one.dim < 0 ? values_.taken_apart(made, type.shape) : values_.put_in_rows(made);
    const bool is_rounded = one.scaled != Scaled::kNone || is_half(type.dtype);
    if (info(one.kind).adds && is_rounded && sums_.contains(made)) effects_.rounds = true;
    return one.scaled == Scaled::kNone ? made : in_blocks(members[0], a, made);
  }
  // Returns the symbol of what travels in blocks. A sum keeps its own:
  // check_travel() compares how its terms are rounded.
  uint64_t in_blocks(Spot place, size_t arg, uint64_t symbol) {
    const Instruction& one = section_.at(place);
    const RoleProgram& role = *model_.cells[place.cell].role;
    const size_t adds = info(one.kind).adds ? 1 : 0;  // whole and part, or part and whole
    const TensorType& whole = role.tensor(one.args[arg + 1 - adds]).type;
    const int64_t run = num_elements(role.tensor(one.args[arg + adds]).type.shape);
    if (adds && sums_.contains(symbol)) return symbol;
    const uint64_t made = round_in_blocks(symbol, one.in_blocks(), whole.shape, run);
    return whole_ && is_half(whole.dtype) ? values_.rounded(made, info(whole.dtype).name) : made;
  }

  const Model& model_;
  const bool whole_;
  const Effects* known_;
  const LayoutsFound* layouts_;
  Effects effects_;
  Values values_;
  Mail<uint64_t> sent_;
  int32_t first_step_ = 0;
  std::vector<uint64_t> sum_symbols_;  // by training step and sum; 0: not computed yet
  std::unordered_set<uint64_t> sums_;  // the values of sum_symbols_
  std::unordered_map<uint64_t, size_t> block_ids_;
  // By block, and by training step and sum: index in effects_.added, or -1.
  std::vector<std::vector<int32_t>> blocks_;
  std::unordered_map<uint64_t, std::vector<uint64_t>> results_;
  // Of the current instruction, by argument.
  std::vector<uint64_t> before_;
  std::vector<int32_t> added_;  // the arguments to which it contributes
  std::vector<std::pair<int32_t, uint64_t>> combined_;
};

}  // namespace

uint64_t sum_symbol(int32_t step, std::string_view name) {
  return join_symbols(join_symbols(symbol_of("sum"), static_cast<uint64_t>(step)), symbol_of(name));
}

std::string identity_of(const RoleProgram& role, const Tensor& tensor) {
  if (tensor.previous_of >= 0)
    return fmt::format("previous {}", identity_of(role, role.tensor(tensor.previous_of)));
  if (tensor.copy_of >= 0) return identity_of(role, role.tensor(tensor.copy_of));
  return fmt::format("{} {}", tensor.param.empty() ? "state" : "parameter",
                     tensor.param.empty() ? tensor.name : tensor.param);
}

Effects follow(const Model& model, const Section& section, int32_t steps, bool whole,
               const Effects* known, const LayoutsFound* layouts) {
  return EffectsWalk(model, section, whole, known, layouts).run(steps);
}

}  // namespace piper
