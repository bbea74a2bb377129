// Compares where terms of sums are rounded. A term has a number: that of a sample is a power of one
// base, that of terms which are added up is their sum, whatever their order. So terms for later
// samples are a multiple of those for earlier ones, and those of all ranks along an axis are a
// geometric series. What is rounded is a new term, which no other sum of terms is.
#include "travel.h"

#include "piper/base/float16.h"
#include "values.h"
#include "walk.h"

namespace piper {
namespace {

constexpr uint64_t kBase = 0x9e3779b97f4a7c15;  // odd, so that its powers have inverses

constexpr uint64_t power(uint64_t of, uint64_t times) {
  uint64_t made = 1;
  for (; times != 0; times >>= 1, of *= of)
    if (times & 1) made *= of;
  return made;
}
// Returns the inverse modulo 2^64: five steps of Newton's method from a guess with 5 right bits.
constexpr uint64_t inverse(uint64_t odd) {
  uint64_t made = odd * 3 ^ 2;
  for (int step = 0; step < 5; ++step) made *= 2 - odd * made;
  return made;
}
static_assert(kBase * inverse(kBase) == 1);
uint64_t later(int64_t samples) {
  return samples >= 0 ? power(kBase, static_cast<uint64_t>(samples))
                      : power(inverse(kBase), -static_cast<uint64_t>(samples));
}
// Returns the sum of the first `count` powers.
uint64_t series(uint64_t of, int64_t count) {
  if (count <= 0) return 0;
  const uint64_t half = series(of, count / 2) * (1 + power(of, static_cast<uint64_t>(count / 2)));
  return count % 2 == 0 ? half : half * of + 1;
}

// Says what a buffer holds of a sum over the step.
struct TravelTerm {
  int32_t sum = -1;  // its name; -1: no part of a sum
  uint64_t number = 0;
  int64_t first = 0, samples = 0;  // the lowest sample; how many, for each use
  int32_t strides = -1;            // index in TravelWalk::strides_
  DType exact = DType::kF64;       // a 16-bit type that holds it as it is; else f64
  bool rounded = false;            // some of it has been rounded
  int64_t whole = 0;               // it is a flat run of what has so many elements; 0: it is no run
  bool is_part() const { return sum >= 0; }
};

// Says of a sum how its terms are rounded, each way once, and with what it ends.
struct SumTravel {
  struct Rounding {
    uint64_t number = 0;
    Spot place;
    std::string to;
    int64_t samples = 0;
    bool is_first = false;  // no part of the term was rounded before
  };
  std::vector<Rounding> roundings;  // in the order of the run
  std::unordered_map<uint64_t, Spot> ends;
  int64_t samples = 0;  // of what it ends with

  const Rounding* find(uint64_t number) const {
    const auto known = std::ranges::find(roundings, number, &Rounding::number);
    return known == roundings.end() ? nullptr : &*known;
  }
};

class TravelWalk : public BufferWalk<TravelTerm> {
 public:
  TravelWalk(const Model& model, const Section& section) : BufferWalk(section), model_(model) {
    for (const Cell& cell : model.cells) held_.emplace_back(cell.role->buffers.size());
    sums_.resize(model.targets.size());
  }
  std::vector<SumTravel> run() {
    for (const Spot place : section_.order) follow(place);
    return std::move(sums_);
  }

 private:
  const RoleProgram& role(Spot place) const { return *model_.cells[place.cell].role; }
  TravelTerm& held(Spot place, int32_t buffer) { return held_[place.cell][buffer]; }
  TravelTerm get(Spot place, int32_t buffer) override { return held(place, buffer); }
  void put(Spot place, int32_t buffer, TravelTerm term) override { held(place, buffer) = term; }

  int32_t strides_id(const std::vector<int64_t>& strides) {
    const auto known = std::ranges::find(strides_, strides);
    if (known != strides_.end()) return static_cast<int32_t>(known - strides_.begin());
    strides_.push_back(strides);
    return static_cast<int32_t>(strides_.size() - 1);
  }
  // Adds a term; of other sums, or of ranks that go on otherwise, it becomes a number of its own.
  static void add(TravelTerm& to, const TravelTerm& term) {
    if (!to.is_part()) {
      to = term;
      return;
    }
    const bool fits = to.sum == term.sum && to.strides == term.strides;
    to.number = fits ? to.number + term.number : join_symbols(to.number, term.number);
    to.first = std::min(to.first, term.first);
    to.samples += term.samples;
    to.rounded = to.rounded || term.rounded;
    to.exact = DType::kF64;
  }
  void round(TravelTerm& term, Spot place, uint64_t how, std::string_view to) {
    if (!term.is_part()) return;
    const uint64_t number = join_symbols(how, term.number * later(-term.first));
    SumTravel& sum = sums_[static_cast<size_t>(term.sum)];
    if (seen_.insert(join_symbols(number, static_cast<uint64_t>(term.sum))).second)
      sum.roundings.push_back({number, place, std::string(to), term.samples, !term.rounded});
    term.number = number * later(term.first);
    term.rounded = true;
    term.exact = DType::kF64;
  }
  void round_to(TravelTerm& term, Spot place, DType type) {
    if (term.exact == type) return;
    round(term, place, symbol_of(info(type).name), info(type).name);
    term.exact = type;
  }

  TravelTerm contributed(Spot place, const Contribution& part) {
    const Instruction& one = section_.at(place);
    const std::vector<int64_t>& at = model_.cells[place.cell].coordinates;
    TravelTerm term;
    term.sum = model_.cells[place.cell].facts->targets[part.target];
    term.first = one.samples.first;
    for (size_t a = 0; a < at.size(); ++a) term.first += one.samples.stride[a] * at[a];
    term.samples = one.samples.count;
    term.strides = strides_id(one.samples.stride);
    term.number = join_symbols(symbol_of("use"), static_cast<uint64_t>(part.use)) *
                  later(term.first) * series(kBase, term.samples);
    return term;
  }

  void add_contributions(Spot place, const Instruction& one) {
    const std::vector<int32_t>& args = one.args;
    begun_.assign(args.size(), false);
    for (const Contribution& part : one.contributions) {
      TravelTerm& into = made_[part.arg];
      if (!begun_[part.arg]) into = part.accumulates ? held(place, args[part.arg]) : TravelTerm{};
      begun_[part.arg] = true;
      add(into, contributed(place, part));
    }
  }

  void compute(Spot place) override {
    const Instruction& one = section_.at(place);
    const std::vector<int32_t>& args = one.args;
    for (const SumRead& read : one.sum_reads) end(place, held(place, args[read.arg]));
    made_.assign(args.size(), {});
    if (!one.combines.empty()) {
      const std::vector<TravelTerm> after = results(place, one);
      for (const SumCombine& combine : one.combines) made_[combine.arg] = after[combine.arg];
    }
    add_contributions(place, one);
    for (const int32_t arg : model_.cells[place.cell].facts->programs[one.program].written) {
      const DType type = role(place).tensor(args[arg]).type.dtype;
      if (is_half(type)) made_[arg].exact = type;
      held(place, args[arg]) = made_[arg];
    }
  }
  void end(Spot place, const TravelTerm& term) {
    if (!term.is_part()) return;
    SumTravel& sum = sums_[static_cast<size_t>(term.sum)];
    sum.ends.try_emplace(term.number, place);
    sum.samples = std::max(sum.samples, term.samples);
  }
  TravelTerm result_of(Spot place, const Program& program, const ProgramOp& op,
                       const std::vector<TravelTerm>& values) {
    const auto load = [&](int32_t value) { return value < 0 ? TravelTerm{} : values[value]; };
    TravelTerm term = op.inputs.empty() ? TravelTerm{} : load(op.inputs[0]);
    const TensorType& type = program.values[op.outputs[0]];
    if (op.op == "Add" && op.inputs.size() == 2) {
      add(term, load(op.inputs[1]));
      if (is_half(type.dtype)) term.exact = type.dtype;
    } else if (op.op == "ToBlocks") {
      const TensorType& from = program.values[op.inputs[0]];
      round(term, place, places_symbol(op.attrs, from.shape), op.attrs.text("to"));
    } else if (op.op == "Cast" && is_half(type.dtype)) {
      round_to(term, place, type.dtype);
    } else if (op.op != "Cast" && op.op != "FromBlocks" && !renames(program, op)) {
      term = {};
    }
    return term;
  }

  // Returns what a program that adds terms leaves in its arguments.
  std::vector<TravelTerm> results(Spot place, const Instruction& one) {
    const Program& program = role(place).programs[one.program];
    std::vector<TravelTerm> values(program.values.size());
    for (size_t a = 0; a < one.args.size(); ++a) values[a] = held(place, one.args[a]);
    for (const ProgramOp& op : program.ops) {
      values[op.outputs[0]] = result_of(place, program, op, values);
      for (size_t i = 1; i < op.outputs.size(); ++i)
        if (op.outputs[i] >= 0) values[op.outputs[i]] = {};
    }
    return values;
  }

  void collective(std::span<const Spot> members) override {
    const Instruction& first = section_.at(members[0]);
    for_each_moved(first, [&](size_t read, size_t written) {
      std::optional<TravelTerm> sum;
      if (info(first.kind).adds && held(members[0], first.args[read]).is_part())
        sum = added(members, read, written);
      for (const Spot member : members) {
        const std::vector<int32_t>& args = section_.at(member).args;
        put(member, args[written], sum ? *sum : held(member, args[read]));
      }
    });
  }
  // Ranks along an axis that rule layout follows may have terms for the same samples, which are
  // those of one device together.
  bool is_together(const TravelTerm& term, size_t axis) const {
    return (model_.followed >> axis & 1) != 0 && strides_[term.strides][axis] == 0;
  }
  TravelTerm added(std::span<const Spot> members, size_t read, size_t written) {
    const Instruction& one = section_.at(members[0]);
    const RoleProgram& plan = role(members[0]);
    const Group& group = plan.groups[one.group];
    const bool scatters = one.kind == InstructionKind::kReduceScatter && one.dim < 0;
    TravelTerm all;
    int64_t terms = 0;
    for (const Spot member : members) {
      TravelTerm term = held(member, section_.at(member).args[read]);
      const std::vector<int64_t>& at = model_.cells[member.cell].coordinates;
      const auto again = [&](int32_t axis) { return at[axis] != 0 && is_together(term, axis); };
      if (!term.is_part() || std::ranges::any_of(group.axes, again)) continue;
      if (scatters) {
        const int64_t taken = num_elements(plan.tensor(one.args[read]).type.shape);
        const int64_t run = num_elements(plan.tensor(one.args[written]).type.shape);
        // Runs of a run are those of the whole where they fill it.
        if (term.whole == 0 || taken % run != 0) term.whole = taken;
        if (one.scaled != Scaled::kNone)
          round(term, member, places_symbol(one.in_blocks(), {term.whole}, run),
                kScaledNames[static_cast<size_t>(one.scaled)]);
      }
      const DType exact = term.exact;
      add(all, term);
      if (++terms == 1) all.exact = exact;
    }
    if (!all.is_part()) return all;  // the rank that counts has none
    std::vector<int64_t> strides = strides_[all.strides];
    for (const int32_t axis : group.axes) {
      const int64_t ranks = model_.mesh[axis].second, stride = strides[axis];
      strides[axis] = 0;
      if (!model_.free_axis[axis] || ranks == 1 || is_together(all, axis)) continue;
      all.number *= series(later(stride), ranks);
      all.first += std::min<int64_t>(0, stride * (ranks - 1));
      all.samples *= ranks;
      all.exact = DType::kF64;
    }
    all.strides = strides_id(strides);
    const DType type = plan.tensor(one.args[read]).type.dtype;
    if (is_half(type)) round_to(all, members[0], type);
    return all;
  }

  const Model& model_;
  std::vector<std::vector<TravelTerm>> held_;  // by cell and buffer
  std::vector<SumTravel> sums_;                // by name
  std::vector<std::vector<int64_t>> strides_;  // of samples, by mesh axis
  std::unordered_set<uint64_t> seen_;          // roundings, and of which sum
  // Of the current instruction, by argument.
  std::vector<TravelTerm> made_;
  std::vector<bool> begun_;
};

}  // namespace

void check_travel(const Model& model, const Section& section, const Single& single,
                  Findings& findings) {
  const std::vector<SumTravel> own = TravelWalk(model, section).run(),
                               others = TravelWalk(single.model, single.section).run();
  for (size_t t = 0; t < own.size(); ++t) {
    const std::string_view name = model.targets[static_cast<int32_t>(t)];
    const int32_t there = single.model.targets.find(name);
    if (there < 0) continue;  // reported by check_names()
    const SumTravel &mine = own[t], &wanted = others[static_cast<size_t>(there)];
    if (mine.roundings.empty() && wanted.roundings.empty()) continue;
    const bool all = wanted.samples >= mine.samples;
    const auto known = [&](const SumTravel::Rounding& one) {
      return !all && (!one.is_first || one.samples > wanted.samples);
    };
    const auto lacks = [&](const SumTravel& some, const SumTravel& other) {
      return std::ranges::find_if(some.roundings, [&](const SumTravel::Rounding& one) {
        return !known(one) && other.find(one.number) == nullptr;
      });
    };
    const std::string sum = quote_control(name);
    if (const auto one = lacks(mine, wanted); one != mine.roundings.end()) {
      findings.add("single",
                   "{} rounds terms of '{}' for {} samples to {}, where one device does not",
                   name_of(model, section, one->place), sum, one->samples, one->to);
    } else if (const auto none = lacks(wanted, mine); none != wanted.roundings.end()) {
      findings.add("single",
                   "one device rounds terms of '{}' for {} samples to {}, in {}; no rank does", sum,
                   none->samples, none->to, name_of(single.model, single.section, none->place));
    } else if (all) {
      for (const auto& [number, place] : mine.ends)
        if (!wanted.ends.contains(number)) {
          findings.add("single", "{} reads '{}', of which other terms are rounded on one device",
                       name_of(model, section, place), sum);
          break;
        }
    }
  }
}

}  // namespace piper
