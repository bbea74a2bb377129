// Rule sum: parameters and their parts, from the start of the step to its end.
#include "sum.h"

namespace piper {

void SumCheck::check_parameters_read(Spot place, const Instruction& one, const Program& program,
                                     const Content& source) {
  if (source.computed_from.empty() && one.contributions.empty()) return;
  for (size_t a = 0; a < one.args.size(); ++a) {
    if (!program.arg_read[a]) continue;
    const Content& content = held(place, one.args[a]);
    if (content.param.empty()) continue;
    if (content.updated_by.valid())
      findings_.add("sum", "{} computes with parameter '{}', which {} has already updated",
                    name(place), quote_control(content.param),
                    name_of(section_.at(content.updated_by)));
    if (!content.cut.empty())
      findings_.add("sum", "{} computes with parameter '{}', of which {} holds only a part",
                    name(place), quote_control(content.param), buffer_name(place, one.args[a]));
  }
}

void SumCheck::check_update(Spot place, const Instruction& one, const Program& program,
                            const Content& result, int32_t arg) {
  const Content& before = held(place, one.args[arg]);
  const std::string shown = quote_control(before.param);
  const auto gradient = gradients_[place.cell].find(before.param);
  if (gradient == gradients_[place.cell].end())
    return findings_.add("sum", "{} writes parameter '{}', which has no gradient", name(place),
                         shown);
  if (before.updated_by.valid())
    return findings_.add("sum", "{} updates parameter '{}', which {} has already updated",
                         name(place), shown, name_of(section_.at(before.updated_by)));
  const bool known =
      std::binary_search(result.finished.begin(), result.finished.end(), gradient->second);
  // A gradient read here must be the own one: that others went into a common factor says nothing.
  const std::string own_name = std::string(before.param) + ".grad";
  bool own = false, other = false;
  const std::vector<int32_t>& sources = flow(program)[arg];
  for (const SumRead& read : one.sum_reads) {
    if (!std::binary_search(sources.begin(), sources.end(), read.arg)) continue;
    const std::string& sum = role(place).sum_targets[read.target].name;
    own = own || sum == own_name;
    other = other || (sum.ends_with(".grad") && sum != own_name);
  }
  if (!known || (other && !own))
    findings_.add("sum", "{} updates parameter '{}' without its finished gradient", name(place),
                  shown);
  const auto elements = [&](int32_t a) {
    return num_elements(role(place).buffers[one.args[a]].type.shape);
  };
  for (int32_t a : sources) {
    const Content& content = held(place, one.args[a]);
    if (content.cut.empty()) continue;
    if (content.cut != before.cut || elements(a) != elements(arg))
      findings_.add("sum", "{} updates parameter '{}' with {}, which differs between ranks",
                    name(place), shown, buffer_name(place, one.args[a]));
  }
}

void SumCheck::check_end(int32_t c) {
  const RoleProgram& own = *model_.cells[c].role;
  for (size_t b = 0; b < own.buffers.size(); ++b) {
    const Buffer& buffer = own.buffers[b];
    if (buffer.kind != BufferKind::kState || buffer.param.empty()) continue;
    const Content& content = held_[c][b];
    const std::string shown = quote_control(buffer.param);
    if (content.param != buffer.param) {
      findings_.add("sum", "parameter '{}' on {} holds something else at the end of the step",
                    shown, model_.who(c));
      continue;
    }
    const bool trained = gradients_[c].contains(buffer.param);
    if (trained && !content.updated_by.valid())
      findings_.add("sum", "nothing updates parameter '{}' on {}", shown, model_.who(c));
    const std::vector<int32_t> kept =
        buffer.part_of < 0 ? std::vector<int32_t>() : own.groups[buffer.part_of].axes;
    if (content.cut != kept)
      findings_.add("sum",
                    "parameter '{}' on {} is cut otherwise at the end of the step than at "
                    "its start",
                    shown, model_.who(c));
  }
}

}  // namespace piper
