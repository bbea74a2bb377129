// Writes the profile of a job as a file.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "piper/devices/registry.h"
#include "profile.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;

// Rounds to a nanosecond.
double rounded(double us) { return std::round(us * 1e3) / 1e3; }

void add_times(const Times& times, Json& to) {
  to["count"] = times.count();
  if (times.count() == 0) return;
  to["median_us"] = rounded(times.quantile(0.5));
  to["min_us"] = rounded(times.least());
  to["p90_us"] = rounded(times.quantile(0.9));
  to["total_us"] = rounded(times.total());
}

Json entry_of(const ProfileKey& key, const ProfileEntry& entry) {
  Json made;
  std::vector<int64_t> ranks{entry.first_rank};
  for (const int64_t other : key.others) ranks.push_back(entry.first_rank + other);
  switch (key.table) {
    case ProfileKey::kPrograms:
      made = {{"program", key.name}, {"label", entry.label}, {"pass", entry.passes}};
      break;
    case ProfileKey::kCommunication:
      made = {{"kind", key.name},
              {"bytes", key.bytes},
              {"ranks", ranks},
              {"link", key.where},
              {"sum", key.fast ? "fast" : "ordered"}};
      if (const auto* kind = find_instruction_by_word(key.name); !kind || !kind->adds)
        made.erase("sum");
      break;
    case ProfileKey::kLocal:
      made = {{"kind", key.name}, {"bytes", key.bytes}, {"where", key.where}};
      break;
    case ProfileKey::kHost:
      made = {{"kind", key.name}};
      if (!key.where.empty()) made["program"] = key.where;
      break;
  }
  add_times(entry.times, made);
  if (key.table == ProfileKey::kPrograms) made["work"] = entry.work;
  return made;
}

Json table_of(const Profile& profile, ProfileKey::Table table) {
  std::vector<std::pair<const ProfileKey*, const ProfileEntry*>> entries;
  for (const auto& [key, entry] : profile.entries)
    if (key.table == table) entries.emplace_back(&key, &entry);
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return a.second->label < b.second->label; });
  Json made = Json::array();
  for (const auto& [key, entry] : entries) made.push_back(entry_of(*key, *entry));
  return made;
}

// Returns the share of the steps' time in which devices run programs: 0 where hosts run them.
double share_at_work(const Profile& profile, const Times& steps) {
  double ranks = 0, programs = 0;
  for (const auto& [digest, role] : profile.roles) ranks += static_cast<double>(role.ranks);
  for (const auto& [key, entry] : profile.entries)
    if (key.table == ProfileKey::kPrograms) programs += entry.times.total();
  return profile.has_device_times ? programs / (ranks * steps.total()) : 0;
}

// The host's own time is not known where devices are at work all the time: their queue fills up,
// and then holds the host back. Elsewhere the least time of each kind counts.
Json host_of(const Profile& profile, const Times& steps) {
  constexpr double kBusy = 0.9;
  int64_t count = 0;
  double total = 0;
  for (const auto& [key, entry] : profile.entries)
    if (key.table == ProfileKey::kHost && entry.times.count() > 0) {
      count += entry.times.count();
      total += entry.times.least() * static_cast<double>(entry.times.count());
    }
  const double each = count > 0 ? total / static_cast<double>(count) : 0;
  Json made;
  if (share_at_work(profile, steps) < kBusy) made["us_per_instruction"] = rounded(each);
  made["kinds"] = table_of(profile, ProfileKey::kHost);
  return made;
}

Json roles_of(const Profile& profile) {
  Json made = Json::array();
  for (const auto& [digest, role] : profile.roles) {
    Json stated;
    for (const auto& [what, bytes] : role.stated) stated[what] = bytes;
    made.push_back({{"role", digest},
                    {"first_rank", role.first_rank},
                    {"ranks", role.ranks},
                    {"instructions", role.instructions},
                    {"stated_bytes", std::move(stated)},
                    {"taken_bytes", {{"device", role.taken.device}, {"host", role.taken.host}}}});
  }
  return made;
}

// Lists have a line for each entry, all else a line for each key.
std::string print(const Json& file) {
  const auto text = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::vector<std::string> lines;
  for (const auto& [key, value] : file.items()) {
    std::vector<std::string> entries;
    if (value.is_array())
      for (const Json& entry : value) entries.push_back("\n    " + text(entry));
    lines.push_back(
        fmt::format("\n  {}: {}", text(key),
                    entries.empty() ? text(value) : "[" + join(entries, ",") + "\n  ]"));
  }
  return "{" + join(lines, ",") + "\n}\n";
}

}  // namespace

// Times of programs of some microseconds are those of clocks and caches as well.
std::optional<std::string> busy_note(const Profile& profile) {
  constexpr double kBusy = 1.25, kLeastUs = 20;
  double median = 0, least = 0;
  for (const auto& [key, entry] : profile.entries) {
    const Times& times = entry.times;
    if (key.table != ProfileKey::kPrograms || times.least() < kLeastUs) continue;
    median += times.quantile(0.5) * static_cast<double>(times.count());
    least += times.least() * static_cast<double>(times.count());
  }
  if (median <= kBusy * least) return std::nullopt;
  return fmt::format(
      "half of all programs took {:.2f} times their least time or more while they were measured: "
      "the machine was busy with something else, or its clock changed",
      median / least);
}

std::string print_profile(const Profile& profile, const PlanSet& set, const JobOptions& options,
                          std::span<const StepMetrics> steps) {
  Times times;
  double tokens = 0;  // of a step
  for (const StepMetrics& one : steps) {
    if (one.step < profile.first_step || one.step > profile.last_step) continue;
    times.add(one.step_ms * 1e3);
    tokens = one.tokens_per_s * one.step_ms / 1e3;
  }
  if (times.count() == 0) return "";
  Json file, mesh = Json::object(), step;
  for (const auto& [axis, size] : set.manifest.mesh) mesh[axis] = size;
  add_times(times, step);
  file["piper_profile"] = 3;
  file["plan_set"] = set.manifest.set_id;
  file["target"] = set.roles[0].target;
  file["device"] = {{"backend", options.backend},
                    {"name", profile.device},
                    {"kernels", kernels_of(options)},
                    {"threads", profile.threads},
                    {"helpers", profile.helpers}};
  file["notes"] = Json::array();
  if (const auto note = busy_note(profile)) file["notes"].push_back(*note);
  file["clock"] = profile.has_device_times ? "device" : "host";
  file["world"] = set.world();
  file["mesh"] = std::move(mesh);
  file["first_step"] = profile.first_step + 1;
  file["step"] = std::move(step);
  file["tokens_per_s"] = rounded(tokens * 1e6 / times.quantile(0.5));
  file["host"] = host_of(profile, times);
  file["roles"] = roles_of(profile);
  file["programs"] = table_of(profile, ProfileKey::kPrograms);
  file["communication"] = table_of(profile, ProfileKey::kCommunication);
  file["local"] = table_of(profile, ProfileKey::kLocal);
  return print(file);
}

}  // namespace piper
