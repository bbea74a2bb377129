// What the picture's simulation of plans says: how long a step is; and, where two passes run as an
// overlapped pair, whether they lose the overlap as their collectives share a stream.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "idle.h"
#include "piper/inspect/picture.h"

namespace piper {
namespace {

constexpr std::string_view kSecondHalf = "overlap";  // the stream of computations

using Work = std::tuple<TaskPass, int32_t, int32_t>;  // pass, stage, microbatch
Work work_of(const Instruction& one) { return {one.pass, one.stage, one.micro}; }

std::string& name_of(RoleProgram& role, int32_t stream) {
  return role.streams[static_cast<size_t>(stream)].name;
}

// Gives the collectives of pairs' second passes a stream of their own where they share one with
// others. Returns the names of these shared streams.
std::set<std::string> take_apart(RoleProgram& role) {
  std::set<Work> second;
  std::set<int32_t> computes;
  for (const Instruction& one : role.body) {
    if (one.kind != InstructionKind::kCompute) continue;
    computes.insert(one.stream);
    if (name_of(role, one.stream) == kSecondHalf) second.insert(work_of(one));
  }
  std::map<int32_t, std::set<bool>> halves;  // by stream: whether of a second half
  const auto counts = [&](const Instruction& one) {
    return is_collective(one.kind) && !computes.contains(one.stream);
  };
  for (const Instruction& one : role.body)
    if (counts(one)) halves[one.stream].insert(second.contains(work_of(one)));
  std::map<int32_t, int32_t> apart;
  std::set<std::string> names;
  for (const auto& [stream, of] : halves) {
    if (of.size() < 2) continue;
    names.insert(name_of(role, stream));
    apart[stream] = static_cast<int32_t>(role.streams.size());
    role.streams.push_back(role.streams[static_cast<size_t>(stream)]);
  }
  for (auto* section : role.sections())
    for (Instruction& one : *section)
      if (const auto found = apart.find(one.stream);
          found != apart.end() && counts(one) && second.contains(work_of(one)))
        one.stream = found->second;
  return names;
}

}  // namespace

std::optional<Note> explain_pairs(const PlanSet& set, const Picture& with, const Strategy& strategy,
                                  Explanations& explain) {
  constexpr double kLeast = 0.005;  // of a step
  const auto has_pairs = [](const RoleProgram& role) {
    return std::any_of(role.streams.begin(), role.streams.end(),
                       [](const Stream& stream) { return stream.name == kSecondHalf; });
  };
  if (std::none_of(set.roles.begin(), set.roles.end(), has_pairs)) return {};
  PlanSet apart = set;
  std::set<std::string> names;
  for (RoleProgram& role : apart.roles) names.merge(take_apart(role));
  if (names.empty()) return {};
  const auto without = make_picture(apart, PictureCosts::kFlops);
  if (!without || without->length >= with.length * (1 - kLeast)) return {};
  const std::string text = fmt::format(
      "carries the collectives of both halves of overlapped pairs, where those of one half wait "
      "for "
      "the other: a step is {:.0f} % longer than with a stream for each half, idle for {:.0f} % of "
      "it, not {:.0f} %",
      100 * (with.length / without->length - 1), 100 * with.idle, 100 * without->idle);
  for (const StreamRule& rule : strategy.streams)
    if (names.contains(rule.name) && rule.where) {
      explain.push_back(
          {rule.at,
           "stream",
           {fmt::format("note: '{}' {}", rule.name, text),
            "help: '&&' in place of '&' gives those of each half a stream of their own, or another "
            "'stream' entry those of one half, which 'where' tells by pass, mb "
            "or a tag"}});
      break;
    }
  return Note{"stream '" + *names.begin() + "'", text};
}

std::optional<Picture> picture_of(const PlanSet& set) {
  constexpr size_t kMost = 1'000'000;
  size_t instructions = 0;
  for (const RoleProgram& role : set.roles) instructions += role.body.size();
  if (instructions > kMost) return {};
  auto picture = make_picture(set, PictureCosts::kFlops);
  return picture ? std::optional(*std::move(picture)) : std::nullopt;
}

void predict_time(const Picture& picture, PlanSet& set) {
  double flops = 0;  // of a step, on all rows
  for (const PictureRow& row : picture.rows)
    for (const PictureCell& cell : row.cells) flops += cell.work;
  const double simulated = picture.steady_idle.value_or(picture.idle),
               idle = std::abs(simulated) < 1e-9 ? 0 : simulated,  // less is rounding
      steps = picture.steady_idle ? 2 : 1;
  set.manifest.predictions["idle"] = idle;
  set.manifest.predictions["step_flops"] =
      flops / steps / static_cast<double>(picture.rows.size()) / std::max(1 - idle, 1e-9);
}

}  // namespace piper
