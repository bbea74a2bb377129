// Rule copies: a parameter that several devices keep has the same bits on all of them. Equal
// symbols mean equal bits: of equal initial values, sums of the same contributions in the same
// order, and the same ops on equal operands. Declared contributions are trusted, as in rule sum.
#include <algorithm>
#include <map>

#include "model.h"
#include "values.h"
#include "walk.h"

namespace piper {
namespace {

class Copies : public BufferWalk<uint64_t> {
 public:
  Copies(const Model& model, const Section& section, Findings& findings)
      : BufferWalk(section), model_(model), findings_(findings) {}

  void run() {
    find_holders();
    if (std::find(holds_copy_.begin(), holds_copy_.end(), true) == holds_copy_.end()) return;
    for (size_t t = 0; t < model_.targets.size(); ++t)
      target_.push_back(symbol_of(model_.targets[static_cast<int32_t>(t)]));
    for (size_t c = 0; c < model_.cells.size(); ++c) {
      const Cell& cell = model_.cells[c];
      held_.emplace_back(cell.facts->buffers.size());
      for (int32_t b : cell.facts->kept) held_.back()[b] = initial(cell.role->tensor(b));
    }
    for (Spot place : section_.order) follow(place);
    compare();
  }

 private:
  const RoleProgram& role(int32_t cell) const { return *model_.cells[cell].role; }
  uint64_t get(Spot place, int32_t buffer) override { return held_[place.cell][buffer]; }
  void put(Spot place, int32_t buffer, uint64_t symbol) override {
    held_[place.cell][buffer] = symbol;
  }
  uint64_t& held(Spot place, size_t arg) { return held_[place.cell][section_.at(place).args[arg]]; }

  // Finds cells that keep a trained parameter that another cell also keeps.
  void find_holders() {
    holds_copy_.resize(model_.cells.size());
    std::vector<int32_t> first(model_.params.size(), -1);  // by parameter: a cell
    for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c)
      for (int32_t b : model_.cells[c].facts->kept) {
        const BufferFacts& buffer = model_.cells[c].facts->buffers[b];
        if (buffer.kind != BufferKind::kState || buffer.param < 0) continue;
        if (model_.gradient_of[buffer.param] < 0) continue;
        int32_t& other = first[buffer.param];
        if (other < 0) other = c;
        if (other != c) holds_copy_[other] = holds_copy_[c] = true;
      }
  }

  static uint64_t initial(const Tensor& tensor) {
    const std::string text = fmt::format("{} {} {} {} {}", tensor.name, tensor.init, tensor.fill,
                                         to_string(tensor.type), tensor.part_of >= 0 ? "part" : "");
    return symbol_of(text);
  }

  void add_combines(Spot place, const Instruction& one) {
    for (const SumCombine& combine : one.combines) {
      uint64_t sum = 0;
      for (size_t i = 0; i < combine.from.size(); ++i) {
        const uint64_t term = held(place, static_cast<size_t>(combine.from[i]));
        sum = i == 0 ? term : added(sum, term);
      }
      sums_.emplace_back(combine.arg, sum);
    }
  }

  void add_contribution(Spot place, const Instruction& one, const Contribution& part) {
    const uint64_t made = contribution(place, one, part);
    const auto known = std::find_if(sums_.begin(), sums_.end(),
                                    [&](const auto& sum) { return sum.first == part.arg; });
    if (known != sums_.end())
      known->second = added(known->second, made);
    else
      sums_.emplace_back(part.arg, part.accumulates
                                       ? added(held(place, static_cast<size_t>(part.arg)), made)
                                       : made);
  }

  // Values of samples count only as declared contributions.
  void compute(Spot place) override {
    const Step& step = section_.step(place);
    if (!step.sums && (step.micro >= 0 || !holds_copy_[place.cell]))
      return set_written(place, step);
    const Instruction& one = section_.at(place);
    sums_.clear();
    add_combines(place, one);
    for (const Contribution& part : one.contributions) {
      add_contribution(place, one, part);
    }
    if (one.micro < 0 && holds_copy_[place.cell])
      evaluate(place, one);
    else
      set_written(place, step);
    for (const auto& [arg, symbol] : sums_) held(place, static_cast<size_t>(arg)) = symbol;
  }
  uint64_t contribution(Spot place, const Instruction& one, const Contribution& part) const {
    uint64_t symbol = target_[model_.cells[place.cell].facts->targets[part.target]];
    for (const int64_t number : {int64_t{part.use}, one.samples.first, one.samples.count})
      symbol = join_symbols(symbol, static_cast<uint64_t>(number));
    for (const int64_t stride : one.samples.stride)
      symbol = join_symbols(symbol, static_cast<uint64_t>(stride));
    return symbol;
  }
  // The symbol does not depend on the order of operands, as a + b and b + a have the same bits.
  static uint64_t added(uint64_t a, uint64_t b) {
    return join_symbols(std::min(a, b), std::max(a, b));
  }
  // Gives results new symbols, which equal no others.
  void set_written(Spot place, const Step& step) {
    const uint64_t own =
        join_symbols(static_cast<uint64_t>(place.cell) + 1, static_cast<uint64_t>(place.index));
    const std::span<const int32_t> args = section_.args_of(place.cell, step);
    std::vector<uint64_t>& held = held_[place.cell];
    for (int32_t arg : model_.cells[place.cell].facts->programs[step.program].written)
      held[args[arg]] = own + static_cast<uint64_t>(arg);
  }
  void evaluate(Spot place, const Instruction& one) {
    const Program& program = role(place.cell).programs[one.program];
    std::vector<uint64_t> args;
    for (size_t a = 0; a < one.args.size(); ++a) args.push_back(held(place, a));
    const std::vector<uint64_t> after = values_.run(program, args);
    for (int32_t arg : model_.cells[place.cell].facts->programs[one.program].written)
      held(place, static_cast<size_t>(arg)) = after[static_cast<size_t>(arg)];
  }

  // Returns the symbol after a collective over the group: equal for equal operands and axes.
  void collective(std::span<const Spot> members) override {
    join(members, [&](size_t a) { return joined(members, a); });
  }
  uint64_t joined(std::span<const Spot> members, size_t a) {
    const Instruction& one = section_.at(members[0]);
    uint64_t all = 0;
    for (Spot member : members) all = join_symbols(all, held(member, a));
    for (const int64_t how :
         {static_cast<int64_t>(one.kind), static_cast<int64_t>(one.reduction), int64_t{one.dim},
          int64_t{one.outer}, int64_t{one.to_dim}, int64_t{one.to_outer}, int64_t{one.turn},
          static_cast<int64_t>(one.scaled), int64_t{one.block}, int64_t{one.first},
          int64_t{one.count}})
      all = join_symbols(all, static_cast<uint64_t>(how));
    // Where the device's library adds, the order is that of the communicator.
    if (one.fast)
      for (Spot member : members) all = join_symbols(all, static_cast<uint64_t>(member.cell));
    for (int32_t axis : role(members[0].cell).groups[one.group].axes)
      all = join_symbols(all, static_cast<uint64_t>(axis));
    return all;
  }

  void compare() {
    std::map<std::string_view, std::pair<int32_t, uint64_t>>
        known;  // by name of a state: cell and symbol
    for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c) {
      if (!holds_copy_[c]) continue;
      for (int32_t b : model_.cells[c].facts->kept) {
        const Tensor& tensor = role(c).tensor(b);
        if (tensor.kind != BufferKind::kState) continue;
        const auto [first, is_new] = known.try_emplace(tensor.name, c, held_[c][b]);
        if (!is_new && first->second.second != held_[c][b])
          findings_.add("copies", "'{}' is updated in different ways on {} and on {}",
                        quote_control(tensor.name), model_.who(first->second.first), model_.who(c));
      }
    }
  }

  const Model& model_;
  Findings& findings_;
  Values values_;
  std::vector<bool> holds_copy_;                    // by cell
  std::vector<uint64_t> target_;                    // by sum: the symbol of its name
  std::vector<std::vector<uint64_t>> held_;         // by cell and buffer
  std::vector<std::pair<int32_t, uint64_t>> sums_;  // sums of the current instruction, by argument
};

}  // namespace

void check_equal_copies(const Model& model, const Section& section, Findings& findings) {
  Copies(model, section, findings).run();
}

}  // namespace piper
