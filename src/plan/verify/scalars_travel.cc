// Rule update: how the numbers of a step move between buffers and ranks, and which are reported.
#include <algorithm>

#include "scalars.h"

namespace piper {

using enum NumberKind;

void StepScalars::put(Spot place, int32_t buffer, Number number) {
  // What is made of a gradient, as by a cast, has a value of its own and counts as a direction.
  if (number.kind == kGradient && !number.in_blocks) number.kind = kDirection;
  check_kept_direction(place, buffer, number);
  const bool is_number = number.kind != kNone;
  NumberKind& kind = kinds_[place.cell][buffer];
  if (is_number)
    held_[place.cell][buffer] = std::move(number);
  else if (kind != kNone)
    held_[place.cell].erase(buffer);
  kind = is_number ? held_[place.cell][buffer].kind : kNone;
}

bool StepScalars::holds(Spot place) const {
  const std::vector<int32_t>& args = section_.at(place).args;
  return std::any_of(args.begin(), args.end(),
                     [&](int32_t arg) { return kinds_[place.cell][arg] != kNone; });
}

Number StepScalars::direction_in(Spot place, int32_t buffer) const {
  const Number number = number_in(place.cell, buffer);
  return number.kind == kDirection ? number : Number{};
}

void StepScalars::collective(std::span<const Spot> members) {
  if (std::any_of(members.begin(), members.end(), [&](Spot member) { return holds(member); }))
    join(members, [&](size_t a) { return joined(members, a); });
}

Number StepScalars::joined(std::span<const Spot> members, size_t a) const {
  const bool reduces = section_.at(members[0]).kind == InstructionKind::kAllReduce;
  const Number sum = reduces ? reduced(members, a) : Number{};
  return sum.kind == kNone ? direction_of(members, a) : sum;
}

// What all members make of one gradient still is made of that.
Number StepScalars::direction_of(std::span<const Spot> members, size_t arg) const {
  Number made;
  for (Spot member : members) {
    const Number own = direction_in(member, section_.at(member).args[arg]);
    const bool same = own.target == made.target && own.rows == made.rows;
    if (own.kind == kNone || (made.kind != kNone && !same)) return {};
    made = own;
  }
  return made;
}

// Returns the axis of the group whose ranks run programs of their own, and along which each has the
// squares of another run; -1: none.
int32_t StepScalars::axis_of_runs(const Group& group, const Terms& terms) const {
  for (const int32_t axis : group.axes)
    if (!model_.free_axis[static_cast<size_t>(axis)] &&
        std::ranges::any_of(terms, [&](const Term& term) { return term.cut >> axis & 1; }))
      return axis;
  return -1;
}

Number StepScalars::reduced(std::span<const Spot> members, size_t arg) const {
  const Group& group = role(members[0]).groups[section_.at(members[0]).group];
  int32_t axis_of_members = -1;
  for (Spot member : members)
    axis_of_members =
        std::max(axis_of_members,
                 axis_of_runs(group, number_in(member.cell, section_.at(member).args[arg]).terms));
  std::map<int64_t, Number> sums;  // by coordinate on that axis
  for (Spot member : members) {
    Number own = number_in(member.cell, section_.at(member).args[arg]);
    if (own.kind != kTerms || section_.at(member).reduction != Reduction::kSum) return {};
    const std::vector<int64_t>& at = model_.cells[member.cell].coordinates;
    Number& sum = sums[axis_of_members < 0 ? 0 : at[static_cast<size_t>(axis_of_members)]];
    if (sum.kind != kNone) own.terms = added(std::move(own.terms), sum.terms);
    sum = std::move(own);
  }
  std::vector<Terms> by_coordinate;
  for (auto& [coordinate, own] : sums) by_coordinate.push_back(std::move(own.terms));
  Number sum = std::move(sums.begin()->second);
  sum.terms = axis_of_members < 0
                  ? std::move(by_coordinate[0])
                  : sum_of_runs(by_coordinate, axis_of_members,
                                model_.mesh[static_cast<size_t>(axis_of_members)].second);
  for (int32_t axis : group.axes)
    if (model_.free_axis[static_cast<size_t>(axis)] && !(model_.followed >> axis & 1))
      sum_along(sum.terms, axis, model_.mesh[static_cast<size_t>(axis)].second);
  return sum;
}

namespace {

bool is_shown_as(const Model& model, std::string_view name, const Term& sum) {
  const auto shown = model.shown.find(std::string(name));
  const bool other = shown != model.shown.end() && sum.target != shown->second;
  return sum.target >= 0 && !model.is_gradient[sum.target] && !other && sum.times == 1;
}

}  // namespace

// Returns whether a number is what a report of this name must be. Loss and weight are sums over the
// step, and the norm is the one by which gradients are clipped.
bool StepScalars::is_known_as(std::string_view name, int32_t step, const Number& number) const {
  if (number.kind != kNone && number.step >= 0 && number.step != step) return false;
  const auto is_shown = [&](std::string_view as, const Term& sum) {
    return is_shown_as(model_, as, sum);
  };
  if (name == "loss" && number.kind == kMean)
    return is_shown("loss", number.terms[0]) && is_shown("weight", number.terms[1]) &&
           number.terms[0].target != number.terms[1].target;
  if (is_shown_sum(name))
    return number.kind == kTerms && number.terms.size() == 1 && is_shown(name, number.terms[0]);
  if (name == "grad_norm") {
    const auto clipped = clipped_.find({step, -1});
    return (number.kind == kNorm || number.kind == kUnscaledNorm) && number.site < 0 &&
           (clipped == clipped_.end() || clipped->second == number.symbol);
  }
  if (name == "learning_rate") return number.kind == kRate;
  if (name == "loss_scale") return number.kind == kScale;
  return name != "skipped" || number.kind == kSkip;
}

void StepScalars::check_report(int32_t cell, const std::string& name, int32_t step,
                               const Number& number) {
  if (!is_known_as(name, step, number))
    return findings_.add("update", "{} reports something else as '{}'", model_.who(cell),
                         quote_control(name));
  if (number.kind == kNone) return;
  const uint64_t symbol = number.terms.empty() ? number.symbol : symbol_of(number.terms);
  const auto& [first, known] =
      reports_.try_emplace({step, name, -1}, model_.who(cell), symbol).first->second;
  if (known != symbol)
    findings_.add("update", "{} reports '{}', which is another number than on {}", model_.who(cell),
                  quote_control(name), first);
}

void StepScalars::check_end() {
  for (const auto& [of, norm] : clipped_)
    if (const auto without = unclipped_.find(of.first); without != unclipped_.end())
      findings_.add("update", "{} is updated without the factor that clips gradients",
                    without->second);
  std::map<std::string_view, std::pair<int32_t, uint64_t>>
      known;  // by name of a state: cell and symbol
  for (int32_t c = 0; c < static_cast<int32_t>(model_.cells.size()); ++c)
    for (int32_t b : model_.cells[c].facts->kept) {
      const Number held = number_in(c, b);
      const Tensor& tensor = model_.cells[c].role->tensor(b);
      const BufferFacts& facts = model_.cells[c].facts->buffers[b];
      if (facts.kind != BufferKind::kState || facts.param >= 0) continue;
      const uint64_t own = symbol_of(tensor.name);
      const bool is_scalar = tensor.type.shape.empty(), is_moment = state_of_.contains(own);
      const bool is_number =
          is_scalar && (!info(tensor.type.dtype).is_float || of_step_.contains(own));
      const int32_t version = is_moment ? section_.training_steps() : 0;
      const bool is_kept = held.symbol == own && held.version == version;
      if (is_moment ? !is_kept : is_number ? held.kind != kState : !is_kept && held.symbol != 0)
        findings_.add("update", "'{}' on {} is not what updates have made of it when a step ends",
                      quote_control(tensor.name), model_.who(c));
      if (!is_scalar) continue;
      const auto [first, is_new] = known.try_emplace(tensor.name, c, held.symbol);
      if (!is_new && first->second.second != held.symbol)
        findings_.add("update", "'{}' starts or changes in different ways on {} and on {}",
                      quote_control(tensor.name), model_.who(first->second.first), model_.who(c));
    }
}

}  // namespace piper
