// Rule sum: what collectives leave.
#include "sum.h"

namespace piper {

void SumCheck::collective(const std::vector<Spot>& members) {
  const Instruction& one = section_.at(members[0]);
  switch (one.kind) {
    case InstructionKind::kAllReduce:
      return reduce(members, false);
    case InstructionKind::kReduceScatter:
      return reduce(members, true);
    case InstructionKind::kAllGather:
      return gather(members);
    case InstructionKind::kBroadcast:
      return broadcast(members);
    default:  // all_to_all: parts of sums are not followed through it
      for (Spot member : members) {
        const Instruction& own = section_.at(member);
        Content content = held(member, own.args[0]);
        content.foreign = content.is_part();
        held(member, own.args[1]) = std::move(content);
      }
  }
}

const std::vector<int32_t>& SumCheck::axes(Spot place) const {
  return role(place).groups[section_.at(place).group].axes;
}

void SumCheck::reduce(const std::vector<Spot>& members, bool scatter) {
  const size_t args = section_.at(members[0]).args.size();
  for (size_t a = 0; a < args; a += scatter ? 2 : 1) {
    Content sum;
    bool some_part = false, all_part = true;
    for (Spot member : members) {
      Content content = held(member, section_.at(member).args[a]);
      rename_targets(member, members[0], content);
      some_part = some_part || content.is_part();
      all_part = all_part && content.is_part();
      sum.add(content);
      for (int32_t target : content.finished) add_unique(sum.finished, target);
    }
    sum.foreign = sum.foreign || (some_part && !all_part);
    for (auto& [key, sets] : sum.parts)
      for (SampleSet& set : sets)
        for (int32_t axis : axes(members[0]))
          if (model_.free_axis[axis])
            sum_over_axis(set, static_cast<size_t>(axis), model_.mesh[axis].second);
    // Ranks that hold different runs of the elements cannot be added to one another.
    const bool mixes = std::any_of(sum.cut.begin(), sum.cut.end(), [&](int32_t axis) {
      return std::count(axes(members[0]).begin(), axes(members[0]).end(), axis) > 0;
    });
    if (mixes || (scatter && !sum.cut.empty())) sum.foreign = sum.foreign || sum.is_part();
    if (mixes) sum.cut.clear();
    if (scatter) sum.cut = axes(members[0]);
    for (Spot member : members) {
      Content own = sum;
      rename_targets(members[0], member, own);
      held(member, section_.at(member).args[scatter ? a + 1 : a]) = std::move(own);
    }
  }
}

void SumCheck::gather(const std::vector<Spot>& members) {
  const size_t args = section_.at(members[0]).args.size();
  for (size_t a = 0; a < args; a += 2) {
    const Content& first = held(members[0], section_.at(members[0]).args[a]);
    const bool alike = std::all_of(members.begin(), members.end(), [&](Spot member) {
      const Content& other = held(member, section_.at(member).args[a]);
      return other.cut == axes(member) && other.param == first.param &&
             other.updated_by.valid() == first.updated_by.valid();
    });
    for (Spot member : members) {
      const int32_t to = section_.at(member).args[a + 1];
      Content content = held(member, section_.at(member).args[a]);
      if (!alike) {
        content.foreign = content.is_part();
        content.param = {};
      }
      content.cut.clear();
      content.computed_from.clear();
      check_gathered(member, to, content);
      held(member, to) = std::move(content);
    }
  }
}

void SumCheck::check_gathered(Spot place, int32_t to, const Content& content) {
  const Buffer& buffer = role(place).buffers[to];
  if (buffer.param.empty()) return;
  const std::string shown = quote_control(buffer.param);
  if (content.param != buffer.param)
    findings_.add("sum", "{} does not gather the parts of '{}' into {}", name(place), shown,
                  buffer_name(place, to));
  else if (buffer.kind == BufferKind::kState && gradients_[place.cell].contains(buffer.param) &&
           !content.updated_by.valid())
    findings_.add("sum", "{} gathers parameter '{}' before its update", name(place), shown);
}

void SumCheck::take_part(Spot place, int32_t from, int32_t to) {
  Content content = held(place, from);
  if (!content.cut.empty()) {
    content.foreign = content.is_part();
    content.param = {};
  }
  content.cut = axes(place);
  held(place, to) = std::move(content);
}

void SumCheck::broadcast(const std::vector<Spot>& members) {
  const Instruction& one = section_.at(members[0]);
  const auto ranks = group_ranks(role(members[0]), role(members[0]).groups[one.group],
                                 model_.cells[members[0].cell].coordinates);
  const int64_t root = ranks[one.root];
  const std::vector<int64_t> coordinates = coordinates_of(model_.mesh, root);
  const auto from = std::find_if(members.begin(), members.end(), [&](Spot member) {
    return member.cell == model_.cell_of_rank[root];
  });
  Content content = held(*from, section_.at(*from).args[0]);
  for (int32_t axis : axes(members[0])) {
    if (!model_.free_axis[axis]) continue;
    for (auto& [key, sets] : content.parts)
      for (SampleSet& set : sets) take_from(set, static_cast<size_t>(axis), coordinates[axis]);
    for (SampleSet& set : content.computed_from)
      take_from(set, static_cast<size_t>(axis), coordinates[axis]);
  }
  for (Spot member : members) {
    Content own = content;
    rename_targets(*from, member, own);
    held(member, section_.at(member).args[0]) = std::move(own);
  }
}

}  // namespace piper
