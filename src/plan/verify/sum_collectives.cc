// Rule sum: what buffers hold after collectives.
#include "sum.h"

namespace piper {

void SumCheck::collective(std::span<const Spot> members) {
  const InstructionKind kind = section_.at(members[0]).kind;
  for_each_moved(section_.at(members[0]), [&](size_t read, size_t written) {
    if (kind == InstructionKind::kAllGather) return gather(members, read);
    std::optional<Content> sum;
    if (info(kind).adds) sum = reduced(members, read, written);
    for (const Spot member : members) {
      const std::vector<int32_t>& args = section_.at(member).args;
      const bool own = kind == InstructionKind::kOwnPart;
      if (kind == InstructionKind::kAllToAll) check_exchanged(member, args[read]);
      put(member, args[written],
          sum   ? *sum
          : own ? part_of(member, args[read], args[written])
                : moved(member, args[read]));
    }
  });
}

// Checks that what becomes values of the ranks' own, or was such, is in runs over their group.
void SumCheck::check_exchanged(Spot place, int32_t from) {
  const Instruction& one = section_.at(place);
  if ((one.dim < 0 || one.to_dim < 0) && held(place, from).cut != RunAxes(group(place)))
    findings_.add("sum", "{} exchanges {}, which is not cut into runs over its group", name(place),
                  buffer_name(place, from));
}

// Partial sums whose blocks or rows move between ranks are not followed.
Content SumCheck::moved(Spot place, int32_t from) {
  Content content = held(place, from);
  const Instruction& one = section_.at(place);
  const bool in_rows = one.kind == InstructionKind::kAllToAll && one.to_dim < 0;
  content.rows = in_rows ? role(place).tensor(one.args[1]).type.shape[0] : 1;
  content.foreign = content.is_part();
  return content;
}

Content SumCheck::reduced(std::span<const Spot> members, size_t a, size_t written) {
  const bool scatters = written != a;
  const uint32_t over = axes_of(group(members[0]));
  Content sum;
  bool some_part = false, all_part = true;
  for (Spot member : members) {
    const Content& content = held(member, section_.at(member).args[a]);
    some_part = some_part || content.is_part();
    all_part = all_part && content.is_part();
    sum.add(content);
    sum.finished = sets_.unite(sum.finished, content.finished);
    sum.from = sets_.unite(sum.from, known_to_all(over, content.from));
  }
  if (!some_part && sum.from != IdSets::kEmpty) check_added(members[0], a, over);
  sum.foreign = sum.foreign || (some_part && !all_part);
  for (SumPart& part : sum.parts)
    for (SampleRun& run : part.runs) run = summed_over(over, run);
  // A sum over ranks that hold different shards mixes elements.
  const bool mixes = (sum.cut.mask() & over) != 0, in_runs = section_.at(members[0]).dim < 0;
  const std::vector<int32_t>& own = section_.at(members[0]).args;
  const bool fits =
      !scatters || !sum.cut.any() || (in_runs && fill(members[0], own[a], own[written]));
  if (mixes || !fits) sum.foreign = sum.foreign || sum.is_part();
  if (mixes) sum.cut = {};
  if (scatters && in_runs) sum.cut = sum.cut.then(RunAxes(group(members[0])));
  return sum;
}

// A value that is no partial sum of the step may be summed only over axes that rule layout follows,
// which proves that ranks hold terms of it.
void SumCheck::check_added(Spot place, size_t arg, uint32_t over) {
  for (size_t axis = 0; axis < model_.mesh.size(); ++axis)
    if ((over & ~model_.followed) >> axis & 1 && model_.mesh[axis].second > 1)
      return findings_.add("sum", "{} sums {} along '{}', where ranks hold no terms of a sum",
                           name(place), buffer_name(place, section_.at(place).args[arg]),
                           quote_control(model_.mesh[axis].first));
}

SampleRun SumCheck::summed_over(uint32_t axes, const SampleRun& run) {
  SampleSet set = samples_.set_of(run);
  for (size_t axis = 0; axis < model_.mesh.size(); ++axis) {
    const bool of_all = model_.followed >> axis & 1 && set.stride[axis] == 0;
    if (axes >> axis & 1 && model_.free_axis[axis] && !of_all)
      sum_over_axis(set, axis, model_.mesh[axis].second);
  }
  return samples_.run_of(set);
}

int32_t SumCheck::known_to_all(uint32_t axes, int32_t sets) {
  int32_t known = IdSets::kEmpty;
  for (const int32_t set : sets_.at(sets)) {
    SampleRun run = summed_over(axes, samples_.run(set));
    run.times = samples_.run(set).times;
    known = sets_.unite(known, sets_.single(samples_.id_of(run)));
  }
  return known;
}

// Returns whether the members of an all-gather hold partial sums of different samples: then the
// joined value is no sum.
bool SumCheck::has_own_terms(Spot place, const Content& content, const Content& first) {
  if (content.parts != first.parts) return true;
  const uint32_t over = axes_of(group(place));
  for (const SumPart& part : content.parts)
    for (const SampleRun& run : part.runs) {
      const SampleSet set = samples_.set_of(run);
      for (size_t axis = 0; axis < model_.mesh.size(); ++axis)
        if (over >> axis & 1 && model_.free_axis[axis] && set.stride[axis] != 0) return true;
    }
  return false;
}

void SumCheck::gather(std::span<const Spot> members, size_t a) {
  const bool in_runs = section_.at(members[0]).dim < 0;
  const Content first = held(members[0], section_.at(members[0]).args[a]);
  const std::vector<int32_t>& own = section_.at(members[0]).args;
  const std::optional<RunAxes> left = first.cut.without(RunAxes(group(members[0])));
  const bool joins = !in_runs || (left && (!left->any() || fill(members[0], own[a + 1], own[a])));
  int32_t from = IdSets::kEmpty;
  for (Spot member : members)
    from = sets_.unite(
        from, known_to_all(axes_of(group(member)), held(member, section_.at(member).args[a]).from));
  const bool alike = std::all_of(members.begin(), members.end(), [&](Spot member) {
    const Content& other = held(member, section_.at(member).args[a]);
    return joins && other.cut == first.cut && other.param == first.param &&
           other.of_param == first.of_param && (other.updated_by < 0) == (first.updated_by < 0);
  });
  for (Spot member : members) {
    const int32_t to = section_.at(member).args[a + 1];
    Content content = held(member, section_.at(member).args[a]);
    if (!alike) content.scramble();
    content.foreign =
        content.foreign || (!alike && in_runs) || has_own_terms(member, content, first);
    if (in_runs) content.cut = alike ? *left : RunAxes();
    content.from = from;
    name_next_value(member, to, content);
    check_gathered(member, to, content);
    held(member, to) = std::move(content);
  }
}

void SumCheck::name_next_value(Spot place, int32_t to, Content& content) {
  if (content.param >= 0 || !is_next_value(place, to, content)) return;
  content.param = facts(place).buffers[to].param;
  content.updated_by = static_cast<int32_t>(updates_.size());
  updates_.push_back(place);
}

// Returns whether `content` is the next value of a parameter that is kept whole, or in other
// blocks: ranks computed it in blocks from their part of the parameter and its finished gradient or
// statistic, or from the latter only.
bool SumCheck::is_next_value(Spot place, int32_t to, const Content& content) const {
  const BufferFacts& buffer = facts(place).buffers[to];
  const int32_t step = section_.training_step(place);
  if (buffer.kind != BufferKind::kState || buffer.param < 0 || is_copy(buffer.param) ||
      !trained(place.cell, buffer.param) || content.is_part() || content.cut.any() ||
      content.version != step + 1 || held_[place.cell][to].version != step)
    return false;
  const int32_t sum = model_.gradient_of[buffer.param] + step * sum_names();
  if (content.of_param == Content::kNone)
    return sets_.at(content.finished) == std::vector<int32_t>{sum};
  return content.of_param == buffer.param && sets_.contains(content.finished, sum);
}

void SumCheck::check_gathered(Spot place, int32_t to, const Content& content) {
  const BufferFacts& buffer = facts(place).buffers[to];
  if (buffer.param < 0) return;
  if (content.param != buffer.param)
    findings_.add("sum", "{} does not gather the parts of '{}' into {}", name(place),
                  param_name(buffer.param), buffer_name(place, to));
  else if (buffer.kind == BufferKind::kState && trained(place.cell, buffer.param) &&
           content.version != section_.training_step(place) + 1)
    findings_.add("sum", "{} gathers parameter '{}' before its update", name(place),
                  param_name(buffer.param));
}

bool SumCheck::fill(Spot place, int32_t whole, int32_t part) const {
  int64_t members = 1;
  for (const int32_t axis : group(place).axes) members *= model_.mesh[axis].second;
  const auto elements = [&](int32_t buffer) {
    return num_elements(role(place).tensor(buffer).type.shape);
  };
  return elements(part) * members == elements(whole);
}

Content SumCheck::part_of(Spot place, int32_t from, int32_t to) {
  Content content = held(place, from);
  const bool in_runs = section_.at(place).dim < 0;
  const bool again = in_runs && content.cut.any();
  if (again && ((content.cut.mask() & axes_of(group(place))) != 0 || !fill(place, from, to)))
    content.scramble();
  if (in_runs) content.cut = content.cut.then(RunAxes(group(place)));
  name_next_value(place, to, content);
  return content;
}

}  // namespace piper
