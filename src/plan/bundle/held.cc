// What a rank holds of a tensor.
#include <algorithm>
#include <charconv>
#include <span>

#include "files.h"
#include "piper/ir/optimizers.h"
#include "piper/plan/cuts.h"
#include "piper/plan/outer_updates.h"
#include "piper/plan/sites.h"
#include "piper/plan/trained_parts.h"
#include "piper/plan/windows.h"

namespace piper {
namespace {

// Says where element `at` of what is held of a dim is in all of it, or -1 past its end, and how
// many follow it there.
struct DimPlace {
  int64_t at = 0, run = 0;
};

// Returns the extent of a dim that the first `count` blocks leave.
int64_t extent_of(const Held& held, int32_t dim, size_t count) {
  int64_t extent = held.whole.shape[static_cast<size_t>(dim)];
  for (size_t b = 0; b < count; ++b)
    if (held.blocks[b].dim == dim) extent = held.blocks[b].outer * held.blocks[b].size;
  return extent;
}

DimPlace place_in(const Held& held, int32_t dim, int64_t extent, int64_t at) {
  DimPlace place{at, extent - at};
  for (size_t b = held.blocks.size(); b-- > 0;) {
    const auto& [of, outer, size, index] = held.blocks[b];
    if (of != dim) continue;
    const int64_t stretch = extent_of(held, dim, b) / outer, inside = place.at % size,
                  at = index * size + inside;
    place.run = std::min(place.run, size - inside);
    if (at >= stretch) return {-1, place.run};
    place = {place.at / size * stretch + at, std::min(place.run, stretch - at)};
  }
  return place;
}

}  // namespace

Held::Run Held::run_at(int64_t held) const {
  int32_t last = -1;  // dim that is cut: what lies behind it stays together
  for (const Block& block : blocks) last = std::max(last, block.dim);
  int64_t stride = 1;
  for (size_t d = static_cast<size_t>(last + 1); d < whole.shape.size(); ++d)
    stride *= whole.shape[d];
  int64_t rest = first + held;
  if (last < 0) return {rest, held, count - held};
  const int64_t inside = rest % stride;
  Run run{inside, held, count - held};
  rest /= stride;
  bool is_there = true;
  for (int32_t d = last; d >= 0; --d) {
    const int64_t extent = extent_of(*this, d, blocks.size());
    const DimPlace place = place_in(*this, d, extent, rest % extent);
    if (d == last) run.count = std::min(run.count, place.run * stride - inside);
    is_there = is_there && place.at >= 0;
    run.whole += place.at * stride;
    rest /= extent;
    stride *= whole.shape[static_cast<size_t>(d)];
  }
  if (!is_there) run.whole = -1;
  return run;
}

Held held_of(const RoleProgram& role, const Tensor& tensor,
             const std::vector<int64_t>& coordinates) {
  Held held{tensor.whole_type(), {}, 0, num_elements(tensor.type.shape)};
  for (const TensorCut& cut : tensor.cuts) {
    if (cut.axis < 0) {
      if (cut.block < held.whole.shape[static_cast<size_t>(cut.dim)])
        held.blocks.push_back({cut.dim, 1, cut.block, cut.outer});
      continue;
    }
    const auto axis = static_cast<size_t>(cut.axis);
    const int64_t extent = extent_of(held, cut.dim, held.blocks.size()),
                  own = cut_extent(extent, cut, role.mesh[axis].second) / cut.outer;
    if (role.mesh[axis].second > 1)
      held.blocks.push_back({cut.dim, cut.outer, own, coordinates[axis]});
  }
  if (tensor.part_of < 0) return held;
  int64_t left = 1;
  for (size_t d = 0; d < held.whole.shape.size(); ++d)
    left *= extent_of(held, static_cast<int32_t>(d), held.blocks.size());
  const Group& group = role.groups[static_cast<size_t>(tensor.part_of)];
  held.first = std::min(group_position(role, group, coordinates) * held.count, left);
  held.count = std::min(held.count, left - held.first);
  return held;
}

std::string to_string(const Held& held) {
  std::string text = to_string(held.whole);
  for (const auto& [dim, outer, size, index] : held.blocks)
    text += fmt::format(" block {} of {} elements of dim {}{},", index, size, dim,
                        outer == 1 ? "" : fmt::format("/{}", outer));
  return text + fmt::format(" elements [{}, {})", held.first, held.first + held.count);
}

bool is_stored(const Tensor& tensor) {
  return tensor.kind == BufferKind::kState && (tensor.copy_of < 0 || tensor.previous_of >= 0);
}

std::vector<std::string> names_of_state(const RoleProgram& role, const Tensor& tensor) {
  const Tensor& original = role.original(tensor);
  std::vector<std::string> names;
  const std::string param = original.param.empty() ? "" : name_of_whole(original, original.param);
  if (original.param.empty()) names.push_back(name_of_whole(tensor, tensor.name));
  // What a checkpoint lacks begins as the next newer version that it has.
  for (int32_t age = original.param.empty() ? 0 : role.age(tensor); age > 0; --age)
    names.push_back(fmt::format(
        "{}{}.previous{}", param,
        role.newest(tensor).copy_of < 0 ? "" : fmt::format(".{}", info(tensor.type.dtype).name),
        age == 1 ? "" : std::to_string(age)));
  if (!original.param.empty()) names.push_back(param);
  for (const std::string& alias : original.aliases) names.push_back(name_of_whole(original, alias));
  // A site of which there is nothing begins with what all sites have come to.
  const bool has_sites = !role.outer_updates.empty() && !original.init.empty();
  for (size_t n = 0, all = names.size(); has_sites && n < all; ++n)
    if (const auto of = site_of(names[n]); of && age_of_state(of->name) == 0)
      names.push_back(std::string(of->name));
  // An average begins as its parameter does.
  if (original.init.empty() && names[0].ends_with(kAverage))
    names.push_back(names[0].substr(0, names[0].size() - kAverage.size()));
  return names;
}

int64_t age_of_state(std::string_view name) {
  const size_t digits = name.find_last_not_of("0123456789") + 1;
  if (!name.substr(0, digits).ends_with(".previous")) return 0;
  int64_t age = 1;
  std::from_chars(name.data() + digits, name.data() + name.size(), age);
  return age;
}

int64_t staging_of(const RoleProgram& role) {
  int64_t bytes = 2 * kStagedReportBytes *
                  std::max(std::ssize(role.reports), std::ssize(role.evaluation_reports));
  const auto add = [&](const Instruction& one) {
    const bool input = one.kind == InstructionKind::kInput;
    if (!input && one.kind != InstructionKind::kPosition) return;
    // Numbers are always the same.
    bytes += role.tensor(one.args[0]).type.bytes() * (input && !one.input.empty() ? 2 : 1);
  };
  for (const auto* section : role.sections()) std::ranges::for_each(*section, add);
  const std::vector<Window> windows = windows_of(role.steps_ahead);
  for (const Window& window : std::span(windows).subspan(kWindowsInLists))
    for (const Instruction& one : role.body)
      if (one.ahead >= window.first && one.ahead < window.end) add(one);
  for (const OuterUpdate& update : role.outer_updates)
    if (runs_beside(role, update)) std::ranges::for_each(role.body, add);
  return bytes;
}

bool cuts_dims(const RoleProgram& role) {
  const auto ranks_on = [&](int32_t axis) { return role.mesh[static_cast<size_t>(axis)].second; };
  for (const Tensor& tensor : role.tensors)
    for (const TensorCut& cut : tensor.cuts)
      if (cut.axis >= 0 && ranks_on(cut.axis) > 1) return true;
  for (const auto* list : role.sections())
    for (const Instruction& one : *list) {
      if (one.dim < 0 || one.exchanges_runs()) continue;
      for (int32_t axis : role.groups[static_cast<size_t>(one.group)].axes)
        if (ranks_on(axis) > 1) return true;
    }
  return false;
}

}  // namespace piper
