// Sections about where and when: placement, order.
#include <algorithm>
#include <map>

#include "match.h"
#include "piper/base/counted.h"

namespace piper {
namespace {

// ---- Placement ----
std::string mesh_text(const Summary& set, const SetMatch* match) {
  std::string text;
  for (const auto& [name, size] : set.mesh)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", match ? match->old_axes(name) : name,
                        size);
  return text.empty() ? "one device" : "{" + text + "}";
}

std::string devices_text(const SetMatch& match, const StageSummary* stage, bool is_new) {
  std::vector<std::string> names;
  if (!stage) return "none";
  for (int32_t device : stage->devices)
    for (const DevicePair& pair : match.devices)
      if ((is_new ? pair.after : pair.before) == device) names.push_back(match.where(pair));
  std::sort(names.begin(), names.end());
  return list_text(names, 60);
}

void compare_places(const SetMatch& match, SectionChanges& section) {
  for (const DevicePair& pair : match.devices) {
    if (pair.before < 0 || pair.after < 0) {
      const std::string where = match.where(pair);
      add_text(section, where, pair.before < 0 ? "added" : "gone",
               pair.before < 0 ? DiffValue() : DiffValue(where),
               pair.after < 0 ? DiffValue() : DiffValue(where));
      continue;
    }
    const DeviceSummary& was = match.before.devices[index_of(pair.before)];
    const DeviceSummary& is = match.after.devices[index_of(pair.after)];
    add_number(section, was.where, "ranks that do the same", double(was.ranks), double(is.ranks),
               DiffUnit::kCount);
    if (pair.moved) add_text(section, was.where, "its work is on", was.where, is.where);
  }
}

// ---- Order ----
struct Step {
  int32_t stage, micro;
  TaskPass pass;
  bool paired;
  int32_t ahead;
  bool operator==(const Step&) const = default;
};
std::vector<Step> steps_of(const RoleSummary& role, const std::vector<int32_t>& stages) {
  std::vector<Step> steps;
  for (const OrderedTask& item : role.order)
    steps.push_back({stages[index_of(item.stage)], item.micro, item.pass, item.paired, item.ahead});
  return steps;
}

// Returns how many forwards are kept at most whose backward has not ended; a forward without a
// backward keeps nothing.
int64_t most_in_flight(const RoleSummary& role) {
  std::map<std::pair<int32_t, int32_t>, size_t> end;  // of the backward, by stage and microbatch
  for (size_t i = 0; i < role.order.size(); ++i)
    if (role.order[i].pass != TaskPass::kF) end[{role.order[i].stage, role.order[i].micro}] = i;
  const auto has_backward = [&](const OrderedTask& item) {
    return item.pass == TaskPass::kF && end.contains({item.stage, item.micro});
  };
  // Those of later steps were begun in as many steps before.
  int64_t now = 0;
  for (const OrderedTask& item : role.order) now += has_backward(item) ? item.ahead : 0;
  int64_t most = now;
  for (size_t i = 0; i < role.order.size(); ++i) {
    const OrderedTask& item = role.order[i];
    if (has_backward(item)) most = std::max(most, ++now);
    if (item.pass != TaskPass::kF && end[{item.stage, item.micro}] == i) --now;
  }
  return most;
}

std::string around(const RoleSummary& role, size_t place, bool with_stages) {
  constexpr size_t kBefore = 2, kBehind = 6;
  const size_t first = place > kBefore ? place - kBefore : 0, end = place + kBehind;
  return fmt::format("{}{}{}", first > 0 ? "… " : "", order_text(role, first, end, with_stages),
                     end < role.order.size() ? " …" : "");
}

std::string counts_text(const RoleSummary& role) {
  std::string text;
  for (const TaskPass pass :
       {TaskPass::kF, TaskPass::kR, TaskPass::kB, TaskPass::kBI, TaskPass::kBW}) {
    const auto count = std::count_if(role.order.begin(), role.order.end(),
                                     [&](const OrderedTask& item) { return item.pass == pass; });
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name_of(pass));
  }
  return text;
}

// Where what is no computation is issued: by kind, axes and microbatch, the n-th of these.
using IssueKey = std::tuple<InstructionKind, std::string, int32_t, int32_t>;
std::map<IssueKey, int32_t> issues_of(const SetMatch& match, const RoleSummary& role, bool is_new) {
  std::map<IssueKey, int32_t> issues;
  std::map<std::tuple<InstructionKind, std::string, int32_t>, int32_t> counts;
  for (const IssueSummary& issue : role.issues) {
    const std::string over = is_new ? match.old_axes(issue.over) : issue.over;
    const int32_t n = counts[{issue.kind, over, issue.micro}]++;
    issues[{issue.kind, over, issue.micro, n}] = issue.behind;
  }
  return issues;
}

std::string issue_text(InstructionKind kind, const std::string& over) {
  const char* of = kind == InstructionKind::kInput ? " of " : " over ";
  return to_string(kind) + (over.empty() ? "" : of + over);
}

void compare_issues(const SetMatch& match, const DevicePair& pair, SectionChanges& section) {
  const auto was = issues_of(match, *match.role_before(pair), false);
  const auto is = issues_of(match, *match.role_after(pair), true);
  struct Moved {
    int64_t all = 0, earlier = 0, later = 0, missing = 0;
  };
  std::map<std::string, Moved> moved;
  for (const auto& [key, behind] : was) {
    const auto found = is.find(key);
    Moved& here = moved[issue_text(std::get<0>(key), std::get<1>(key))];
    ++here.all;
    here.missing += found == is.end();
    if (found == is.end() || found->second == behind) continue;
    ++(found->second < behind ? here.earlier : here.later);
  }
  for (const auto& [key, behind] : is)
    moved[issue_text(std::get<0>(key), std::get<1>(key))].missing += !was.contains(key);
  for (const auto& [what, count] : moved) {
    // Where messages came or went, nothing says which of them is which.
    if (count.missing > 0 || count.earlier + count.later == 0) continue;
    std::string text;
    for (const auto& [some, when] : {std::pair(count.earlier, "earlier"), {count.later, "later"}})
      if (some > 0)
        text += fmt::format("{}{} of them issued {}", text.empty() ? "" : ", ", some, when);
    add_text(section, match.where(pair), what, fmt::format("{} at their places", count.all), text);
  }
}

}  // namespace

namespace {

// "4 → 8 ranks", "2 devices are permuted: …", or how many changes there are.
std::string placement_summary(const SetMatch& match, size_t changes) {
  if (match.before.ranks() != match.after.ranks())
    return fmt::format("{} → {} ranks", match.before.ranks(), match.after.ranks());
  std::multiset<std::string> from, to;
  for (const DevicePair& pair : match.devices) {
    if (!pair.moved) continue;
    from.insert(match.before.devices[index_of(pair.before)].where);
    to.insert(match.after.devices[index_of(pair.after)].where);
  }
  if (from.size() > 1 && from == to)
    return fmt::format("{} devices are permuted: each does what another did", from.size());
  return counted(static_cast<int64_t>(changes), "change");
}

}  // namespace

void compare_placement(const SetMatch& match, SectionChanges& section) {
  add_text(section, "", "mesh", mesh_text(match.before, nullptr), mesh_text(match.after, &match));
  add_number(section, "", "ranks", double(match.before.ranks()), double(match.after.ranks()),
             DiffUnit::kCount);
  compare_places(match, section);
  for (const SetMatch::StagePair& pair : match.stages())
    add_text(section, pair.name(), "runs on", devices_text(match, pair.before, false),
             devices_text(match, pair.after, true));
  section.summary = placement_summary(match, section.changes.size());
}

void compare_order(const SetMatch& match, SectionChanges& section) {
  size_t differ = 0, first = SIZE_MAX;
  for (const DevicePair& pair : match.devices) {
    const RoleSummary *was = match.role_before(pair), *is = match.role_after(pair);
    if (!was || !is) continue;
    const std::string where = match.where(pair);
    const auto old_steps = steps_of(*was, match.stages_before(*was));
    const auto new_steps = steps_of(*is, match.stages_after(*is));
    if (old_steps == new_steps) {
      compare_issues(match, pair, section);
      continue;
    }
    const auto place = static_cast<size_t>(
        std::mismatch(old_steps.begin(), old_steps.end(), new_steps.begin(), new_steps.end())
            .first -
        old_steps.begin());
    ++differ;
    first = std::min(first, place);
    const bool with_stages = was->stages.size() > 1 || is->stages.size() > 1;
    Change change{{where},
                  fmt::format("from task {} on", place + 1),
                  around(*was, place, with_stages),
                  around(*is, place, with_stages),
                  DiffUnit::kCount,
                  true};
    add_change(section, std::move(change));
    add_text(section, where, "tasks", counts_text(*was), counts_text(*is));
    add_number(section, where, "forwards in flight, at most", double(most_in_flight(*was)),
               double(most_in_flight(*is)), DiffUnit::kCount);
  }
  section.summary = differ > 0
                        ? fmt::format("{} of {} devices, the first from task {} on", differ,
                                      match.devices.size(), first + 1)
                        : "computations as before; other work is issued elsewhere among them";
}

}  // namespace piper
