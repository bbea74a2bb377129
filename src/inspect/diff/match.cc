// Matches axes, stages, devices and parameters of two plan sets.
#include "match.h"

#include <algorithm>
#include <set>

namespace piper {
namespace {

std::vector<int32_t> numbered(const std::vector<StageSummary>& all, const std::vector<int32_t>& ids,
                              const RoleSummary& role) {
  std::vector<int32_t> out;
  for (const StageSummary& stage : role.stages) {
    const auto found = std::find_if(
        all.begin(), all.end(), [&](const StageSummary& one) { return one.name == stage.name; });
    out.push_back(ids[static_cast<size_t>(found - all.begin())]);
  }
  return out;
}

// What a device works on: stages and microbatches of its forwards.
using Share = std::vector<std::pair<int32_t, int32_t>>;
Share share_of(const RoleSummary& role, const std::vector<int32_t>& stages) {
  Share share;
  for (const OrderedTask& item : role.order)
    if (item.pass == TaskPass::kF) share.emplace_back(stages[index_of(item.stage)], item.micro);
  std::sort(share.begin(), share.end());
  return share;
}

// Coordinates by axis. Where axes came or went, nothing says what is elsewhere.
using Place = std::map<std::string, int64_t>;
bool is_elsewhere(const Place& before, const Place& after) {
  const auto same_axis = [](const auto& a, const auto& b) { return a.first == b.first; };
  return before != after &&
         std::equal(before.begin(), before.end(), after.begin(), after.end(), same_axis);
}

std::string stage_text(const std::string& stage) {
  return stage.empty() ? "the whole model" : fmt::format("stage '{}'", stage);
}
std::string tag_of(const std::string& stage) {
  return stage.find(' ') == stage.npos ? stage.substr(0, stage.find('=')) : "";
}
std::string rest_of(const std::string& stage) {
  return stage.find('=') == stage.npos ? "" : stage.substr(stage.find('='));
}

}  // namespace

SetMatch::SetMatch(const Summary& before_set, const Summary& after_set)
    : before(before_set), after(after_set) {
  match_axes();
  match_parameters();
  match_stages();
  note_stages();
  match_devices();
  match_streams();
  note_model();
}

// ---- The model: another file may say the same ----
bool SetMatch::same_roles() const {
  const auto digests_of = [](const Summary& set) {
    std::multiset<std::string> digests;
    for (const RoleSummary& role : set.roles) digests.insert(role.digest);
    return digests;
  };
  return digests_of(before) == digests_of(after);
}
bool SetMatch::same_values() const {
  const std::string &was = before.initial_values, &is = after.initial_values;
  return was.empty() || is.empty() || was == is;
}
bool SetMatch::same_tensors() const {
  const auto tensors_of = [](const Summary& set) {
    std::map<std::string, TensorType> tensors;
    for (const ParameterSummary& one : set.parameters) tensors.emplace(one.name, one.type);
    return tensors;
  };
  return tensors_of(before) == tensors_of(after);
}
bool SetMatch::same_model() const {
  const bool known = !before.initial_values.empty() && !after.initial_values.empty();
  return known && same_roles() && same_values();
}
void SetMatch::note_model() {
  const Manifest &was = before.manifest, &is = after.manifest;
  if (was.model_digest == is.model_digest || !same_model()) return;
  notes.push_back(fmt::format("the model is another file, '{}', which says the same", is.model));
}

// ---- Axes ----
void SetMatch::match_axes() {
  const auto has = [](const auto& mesh, const std::string& name) {
    return std::any_of(mesh.begin(), mesh.end(),
                       [&](const auto& one) { return one.first == name; });
  };
  for (size_t a = 0; a < std::min(before.mesh.size(), after.mesh.size()); ++a) {
    const auto& [old_name, old_size] = before.mesh[a];
    const auto& [new_name, new_size] = after.mesh[a];
    if (has(before.mesh, new_name) || has(after.mesh, old_name) || old_size != new_size) continue;
    axis[new_name] = old_name;
    notes.push_back(fmt::format("axis '{}' is now called '{}'", old_name, new_name));
  }
  const auto idle = [&](const Summary& one, const Summary& other, const char* verb) {
    for (const std::string& name : one.idle_axes)
      if (std::find(other.idle_axes.begin(), other.idle_axes.end(), name) ==
              other.idle_axes.end() &&
          !has(other.mesh, name))
        notes.push_back(fmt::format(
            "mesh axis '{}' {}; it has one rank, which is no difference in what runs", name, verb));
  };
  idle(after, before, "is new");
  idle(before, after, "is gone");
}

std::string SetMatch::old_axes(const std::string& over) const {
  std::vector<std::string> names = split_text(over, '+');
  for (std::string& name : names)
    if (const auto found = axis.find(name); found != axis.end()) name = found->second;
  return join(names, "+");
}

// ---- Parameters: renamed ones are used in the same order ----
void SetMatch::match_parameters() {
  const auto unknown = [](const Summary& of, const Summary& other) {
    std::set<std::string> names;
    for (const ParameterSummary& one : other.parameters) names.insert(one.name);
    std::vector<const ParameterSummary*> found;
    for (const ParameterSummary& one : of.parameters)
      if (!names.contains(one.name)) found.push_back(&one);
    return found;
  };
  const auto gone = unknown(before, after), added = unknown(after, before);
  const bool renamed = std::equal(gone.begin(), gone.end(), added.begin(), added.end(),
                                  [](const auto* a, const auto* b) { return a->type == b->type; });
  for (size_t i = 0; i < added.size() && renamed; ++i) parameter[added[i]->name] = gone[i]->name;
}

std::string SetMatch::old_parameter(const std::string& name) const {
  const auto found = parameter.find(name);
  return found == parameter.end() ? name : found->second;
}

// ---- Stages: first those of equal parameters and as many ops, then those of one name ----
void SetMatch::match_stages() {
  stage.assign(after.stages.size(), -1);
  std::vector<bool> taken(before.stages.size());
  const auto content = [&](const StageSummary& one, bool is_new) {
    std::vector<std::string> names = one.parameters;
    for (std::string& name : names)
      if (is_new) name = old_parameter(name);
    std::sort(names.begin(), names.end());
    return std::pair(std::move(names), one.ops);
  };
  const auto take = [&](auto fits) {
    for (size_t b = 0; b < after.stages.size(); ++b)
      for (size_t a = 0; a < before.stages.size() && stage[b] < 0; ++a)
        if (!taken[a] && fits(before.stages[a], after.stages[b])) {
          taken[a] = true;
          stage[b] = static_cast<int32_t>(a);
        }
  };
  const auto same_content = [&](const StageSummary& a, const StageSummary& b) {
    return !a.parameters.empty() && content(a, false) == content(b, true);
  };
  const auto same_name = [](const StageSummary& a, const StageSummary& b) {
    return a.name == b.name;
  };
  take([&](const auto& a, const auto& b) { return same_name(a, b) && same_content(a, b); });
  take(same_content);
  take(same_name);
  auto next = static_cast<int32_t>(before.stages.size());
  for (int32_t& number : stage)
    if (number < 0) number = next++;
}

void SetMatch::note_stages() {
  std::set<std::string> tags;
  for (size_t b = 0; b < stage.size(); ++b) {
    if (index_of(stage[b]) >= before.stages.size()) continue;
    const std::string &was = before.stages[index_of(stage[b])].name, &is = after.stages[b].name;
    if (was == is) continue;
    const bool of_tag = !tag_of(was).empty() && !tag_of(is).empty() && rest_of(was) == rest_of(is);
    const bool of_whole = was.empty() || is.empty();
    const std::string note =
        of_tag     ? fmt::format("tag '{}' is now called '{}'", tag_of(was), tag_of(is))
        : of_whole ? fmt::format("{} is now {}", stage_text(was), stage_text(is))
                   : fmt::format("stage '{}' is now called '{}'", was, is);
    if (tags.insert(note).second) notes.push_back(note);
  }
}

std::string SetMatch::StagePair::name() const {
  const std::string& text = before ? before->name : after->name;
  return text.empty() ? "the model" : text;
}

std::vector<SetMatch::StagePair> SetMatch::stages() const {
  std::vector<StagePair> pairs(before.stages.size());
  for (size_t a = 0; a < before.stages.size(); ++a) pairs[a].before = &before.stages[a];
  for (size_t b = 0; b < stage.size(); ++b) {
    if (index_of(stage[b]) >= pairs.size()) pairs.resize(index_of(stage[b]) + 1);
    pairs[index_of(stage[b])].after = &after.stages[b];
  }
  return pairs;
}

std::vector<int32_t> SetMatch::stages_before(const RoleSummary& role) const {
  std::vector<int32_t> ids;
  for (size_t a = 0; a < before.stages.size(); ++a) ids.push_back(static_cast<int32_t>(a));
  return numbered(before.stages, ids, role);
}
std::vector<int32_t> SetMatch::stages_after(const RoleSummary& role) const {
  return numbered(after.stages, stage, role);
}

// ---- Devices: the same place and work, then the same work elsewhere, then the same place ----
void SetMatch::match_devices() {
  const auto place = [&](const Summary& set, const DeviceSummary& device) {
    Place at;
    for (size_t a = 0; a < device.at.size(); ++a) at[old_axes(set.device_axes[a])] = device.at[a];
    return at;
  };
  std::vector<Share> old_share, new_share;
  for (const DeviceSummary& d : before.devices)
    old_share.push_back(share_of(before.role(d), stages_before(before.role(d))));
  for (const DeviceSummary& d : after.devices)
    new_share.push_back(share_of(after.role(d), stages_after(after.role(d))));
  std::vector<int32_t> of_old(before.devices.size(), -1);
  std::vector<bool> taken(after.devices.size());
  const auto take = [&](bool same_place, bool same_share) {
    std::multimap<Place, size_t> by_place;
    std::multimap<Share, size_t> by_share;
    for (size_t b = 0; b < after.devices.size(); ++b) {
      if (taken[b]) continue;
      if (same_place) by_place.emplace(place(after, after.devices[b]), b);
      if (!same_place) by_share.emplace(new_share[b], b);
    }
    for (size_t a = 0; a < before.devices.size(); ++a) {
      if (of_old[a] >= 0) continue;
      const auto try_device = [&](size_t b) {
        if (taken[b] || (same_share && old_share[a] != new_share[b]) || of_old[a] >= 0) return;
        taken[b] = true;
        of_old[a] = static_cast<int32_t>(b);
      };
      const auto places = by_place.equal_range(place(before, before.devices[a]));
      for (auto it = places.first; it != places.second; ++it) try_device(it->second);
      const auto shares = by_share.equal_range(old_share[a]);
      for (auto it = shares.first; it != shares.second; ++it) try_device(it->second);
    }
  };
  take(true, true);
  take(false, true);
  take(true, false);
  for (size_t a = 0; a < before.devices.size(); ++a) {
    const int32_t b = of_old[a];
    const bool moved = b >= 0 && is_elsewhere(place(before, before.devices[a]),
                                              place(after, after.devices[index_of(b)]));
    devices.push_back({static_cast<int32_t>(a), b, moved});
  }
  for (size_t b = 0; b < after.devices.size(); ++b)
    if (!taken[b]) devices.push_back({-1, static_cast<int32_t>(b)});
}

// ---- Streams: one that is gone, and one that does the same in its place ----
void SetMatch::match_streams() {
  const auto was = stream_uses(before), is = stream_uses(after);
  std::set<std::string> taken;
  for (const auto& [new_name, use] : is) {
    if (was.contains(new_name)) continue;
    const auto found = std::find_if(was.begin(), was.end(), [&](const auto& old) {
      return old.second == use && !is.contains(old.first) && !taken.contains(old.first);
    });
    if (found == was.end() || !stream.try_emplace(new_name, found->first).second) continue;
    taken.insert(found->first);
    notes.push_back(fmt::format("stream '{}' is now called '{}'", found->first, new_name));
  }
}
std::string SetMatch::old_stream(const std::string& name) const {
  const auto found = stream.find(name);
  return found == stream.end() ? name : found->second;
}

std::string SetMatch::new_stream(const std::string& name) const {
  for (const auto& [new_name, old_name] : stream)
    if (old_name == name) return new_name;
  return name;
}

std::string SetMatch::where(const DevicePair& pair) const {
  return pair.before >= 0 ? before.devices[index_of(pair.before)].where
                          : after.devices[index_of(pair.after)].where;
}
const RoleSummary* SetMatch::role_before(const DevicePair& pair) const {
  return pair.before < 0 ? nullptr : &before.role(before.devices[index_of(pair.before)]);
}
const RoleSummary* SetMatch::role_after(const DevicePair& pair) const {
  return pair.after < 0 ? nullptr : &after.role(after.devices[index_of(pair.after)]);
}

}  // namespace piper
