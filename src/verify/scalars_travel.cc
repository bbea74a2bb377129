// Rule update: how the numbers of a step travel, and what is reported and kept of them.
#include <algorithm>

#include "scalars.h"

namespace piper {

using enum NumberKind;

void StepScalars::set(Spot place, int32_t buffer, const Number& number) {
  if (number.kind == kNone || number.kind == kGradient)
    held_[place.cell].erase(buffer);
  else
    held_[place.cell][buffer] = number;
}

bool StepScalars::holds(Spot place) const {
  const Held& held = held_[place.cell];
  const std::vector<int32_t>& args = section_.at(place).args;
  return std::any_of(args.begin(), args.end(), [&](int32_t arg) { return held.contains(arg); });
}

void StepScalars::move(Spot place, const Instruction& one) {
  Held& held = held_[place.cell];
  const auto get = [&](int32_t buffer) {
    const auto known = held.find(buffer);
    return known == held.end() ? Number{} : known->second;
  };
  if (one.kind == InstructionKind::kCopy) return set(place, one.args[1], get(one.args[0]));
  if (one.kind == InstructionKind::kSend) {
    const Spot to = section_.partner[place.cell][place.index];
    if (!holds(place)) return;
    for (int32_t arg : one.args) sent_[{to.cell, to.index}].push_back(get(arg));
    return;
  }
  const auto message = sent_.find({place.cell, place.index});
  for (size_t a = 0; a < one.args.size(); ++a)
    set(place, one.args[a],
        message == sent_.end() || a >= message->second.size() ? Number{} : message->second[a]);
}

void StepScalars::collective(const std::vector<Spot>& members) {
  if (std::none_of(members.begin(), members.end(), [&](Spot member) { return holds(member); }))
    return;
  const Instruction& one = section_.at(members[0]);
  const bool pairs = takes_pairs(one.kind);
  for (size_t a = 0; a + pairs < one.args.size(); a += pairs ? 2 : 1) {
    const Number made = one.kind == InstructionKind::kAllReduce ? reduced(members, a) : Number{};
    for (const Spot member : members)
      set(member, section_.at(member).args[pairs ? a + 1 : a], made);
  }
}

Number StepScalars::reduced(const std::vector<Spot>& members, size_t arg) const {
  Number sum;
  for (Spot member : members) {
    const auto known = held_[member.cell].find(section_.at(member).args[arg]);
    if (known == held_[member.cell].end() || known->second.kind != kTerms) return {};
    if (sum.kind == kNone)
      sum = known->second;
    else
      sum.terms = added(sum.terms, known->second.terms);
  }
  const Group& group = role(members[0]).groups[section_.at(members[0]).group];
  for (int32_t axis : group.axes)
    if (model_.free_axis[static_cast<size_t>(axis)] && !(model_.followed >> axis & 1))
      sum_along(sum.terms, axis, model_.mesh[static_cast<size_t>(axis)].second);
  return sum;
}

// The loss is a sum over the step, once; the norm is the one that clips; and all ranks report the
// same. (See check_maker() of rule sum for others.)
void StepScalars::check_reports(int32_t cell, int32_t step) {
  for (const Report& report : model_.cells[cell].role->reports) {
    const auto known = held_[cell].find(report.buffer);
    const Number number = known == held_[cell].end() ? Number{} : known->second;
    const bool terms = number.kind == kTerms;
    const auto what = [&] {
      return fmt::format("{} reports '{}'", model_.who(cell), quote_control(report.name));
    };
    if (report.name == "loss" && number.kind != kNone) {
      const Term sum = terms && number.terms.size() == 1 ? number.terms.spans[0] : Term();
      const bool other = model_.loss >= 0 && sum.target != model_.loss;
      if (sum.target < 0 || model_.is_gradient[sum.target] || other || sum.times != 1)
        findings_.add("update", "{}, which is not the sum of the loss, once", what());
    }
    const auto clipped = clipped_.find(step);
    if (report.name == "grad_norm" &&
        ((number.kind != kNorm && number.kind != kUnscaledNorm) ||
         (clipped != clipped_.end() && clipped->second != number.symbol)))
      findings_.add("update", "{}, which is not the norm of the gradients", what());
    if (number.kind == kNone) continue;
    std::string first;
    const uint64_t symbol = terms ? number.terms.symbol() : number.symbol;
    if (is_other(
            reports_, step, report.name, [&] { return model_.who(cell); }, symbol, first))
      findings_.add("update", "{}, which is another number than on {}", what(), first);
  }
}

void StepScalars::check_end() {
  std::map<std::string_view, std::pair<int32_t, uint64_t>> known;  // of a state: cell and symbol
  for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c)
    for (int32_t b : model_.cells[c].facts->kept) {
      const auto held = held_[c].find(b);
      const Tensor& tensor = model_.cells[c].role->tensor(b);
      const BufferFacts& facts = model_.cells[c].facts->buffers[b];
      if (facts.kind != BufferKind::kState || facts.param >= 0) continue;
      const uint64_t symbol = held == held_[c].end() ? 0 : held->second.symbol;
      if (!tensor.type.shape.empty()) {
        if (symbol != 0 && symbol != symbol_of(tensor.name))
          findings_.add("update", "'{}' on {} holds another state at the end of the step",
                        quote_control(tensor.name), model_.who(c));
        continue;
      }
      const auto [first, is_new] = known.try_emplace(tensor.name, c, symbol);
      if (!is_new && first->second.second != symbol)
        findings_.add("update", "'{}' on {} and on {} does not start or advance alike",
                      quote_control(tensor.name), model_.who(first->second.first), model_.who(c));
    }
}

}  // namespace piper
