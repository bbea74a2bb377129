// Sections about what moves: collectives, messages, streams.
#include <algorithm>
#include <set>

#include "match.h"
#include "piper/base/counted.h"

namespace piper {
namespace {

struct Count {
  int64_t messages = 0, bytes = 0;
};
// Counts traffic by what it is, in the old names of axes.
std::map<std::string, Count> counts_of(const SetMatch& match, const RoleSummary* role, bool is_new,
                                       bool collectives) {
  std::map<std::string, Count> counts;
  if (!role) return counts;
  for (const TrafficSummary& traffic : role->traffic) {
    if (is_collective(traffic.kind) != collectives) continue;
    const std::string over = is_new ? match.old_axes(traffic.over) : traffic.over;
    Count& count =
        counts[fmt::format("{}, {}", traffic_text(traffic, over), info(traffic.dtype).name)];
    count.messages += traffic.messages;
    count.bytes += traffic.bytes;
  }
  return counts;
}
DiffValue count_text(const std::map<std::string, Count>& counts, const std::string& what) {
  const auto found = counts.find(what);
  if (found == counts.end()) return {};
  return fmt::format("{}, {}", counted(found->second.messages, "message"),
                     human_bytes(found->second.bytes));
}
double bytes_of(const std::map<std::string, Count>& counts) {
  double bytes = 0;
  for (const auto& [what, count] : counts) bytes += static_cast<double>(count.bytes);
  return bytes;
}

void compare_traffic(const SetMatch& match, bool collectives, SectionChanges& section) {
  DiffSection::Measure measure{0, 0, DiffUnit::kBytes};
  for (const DevicePair& pair : match.devices) {
    const auto was = counts_of(match, match.role_before(pair), false, collectives);
    const auto is = counts_of(match, match.role_after(pair), true, collectives);
    std::set<std::string> names;
    for (const auto* counts : {&was, &is})
      for (const auto& [name, count] : *counts) names.insert(name);
    for (const std::string& name : names)
      add_text(section, match.where(pair), name, count_text(was, name), count_text(is, name));
    measure.before = std::max(measure.before, bytes_of(was));
    measure.after = std::max(measure.after, bytes_of(is));
  }
  section.measure = measure;
  section.summary = measure_text("of the device with most, a step:", measure);
}

// Returns by kind of work the streams that it is on, in the old names.
std::map<std::string, std::set<std::string>> streams_by_kind(
    const SetMatch& match, const std::map<std::string, StreamUse>& uses, bool is_new) {
  std::map<std::string, std::set<std::string>> streams;
  for (const auto& [name, use] : uses)
    for (const std::string& kind : use.kinds)
      streams[kind].insert(is_new ? match.old_stream(name) : name);
  return streams;
}
DiffValue streams_text(const std::set<std::string>& names) {
  if (names.empty()) return {};
  std::string text;
  for (const std::string& name : names)
    text += fmt::format("{}'{}'", text.empty() ? "on " : ", ", name);
  return text;
}

std::string limits_text(int32_t priority, int64_t sms) {
  return fmt::format("priority {}{}", priority, sms > 0 ? fmt::format(", {} SMs", sms) : "");
}

// Returns the limits of a stream, or none if it is missing.
DiffValue limits_of(const std::map<std::string, StreamUse>& uses, const std::string& name) {
  const auto found = uses.find(name);
  return found == uses.end() ? DiffValue() : DiffValue(found->second.limits);
}

}  // namespace

void compare_collectives(const SetMatch& match, SectionChanges& section) {
  compare_traffic(match, true, section);
}
void compare_messages(const SetMatch& match, SectionChanges& section) {
  compare_traffic(match, false, section);
}

std::map<std::string, StreamUse> stream_uses(const Summary& set) {
  std::map<std::string, StreamUse> uses;
  for (const RoleSummary& role : set.roles)
    for (const StreamSummary& stream : role.streams) {
      StreamUse& use = uses[stream.name];
      for (const auto& [what, count] : stream.work) {
        const bool pass = what.size() <= 2;
        use.kinds.insert(pass ? "compute" : what);
      }
      use.limits = limits_text(stream.priority, stream.sms);
    }
  return uses;
}

void compare_streams(const SetMatch& match, SectionChanges& section) {
  const auto was = stream_uses(match.before), is = stream_uses(match.after);
  auto old_streams = streams_by_kind(match, was, false);
  auto new_streams = streams_by_kind(match, is, true);
  std::set<std::string> kinds;
  for (const auto* streams : {&old_streams, &new_streams})
    for (const auto& [kind, names] : *streams) kinds.insert(kind);
  for (const std::string& kind : kinds) {
    const auto &a = old_streams[kind], &b = new_streams[kind];
    const auto known = [](const std::set<std::string>& names, const auto& uses) {
      return std::all_of(names.begin(), names.end(),
                         [&](const std::string& name) { return uses.contains(name); });
    };
    // What is new, or gone, on streams that both have is no matter of streams.
    if ((a.empty() && known(b, was)) || (b.empty() && known(a, is))) continue;
    add_text(section, "", kind, streams_text(a), streams_text(b));
  }
  std::set<std::string> names;
  for (const auto& [name, use] : was) names.insert(name);
  for (const auto& [name, use] : is) names.insert(match.old_stream(name));
  for (const std::string& name : names) {
    const DiffValue before = limits_of(was, name), after = limits_of(is, match.new_stream(name));
    // That a stream without limits comes or goes is said by what runs on it.
    const DiffValue none, usual = limits_text(0, 0);
    if ((before == none && after == usual) || (before == usual && after == none)) continue;
    add_text(section, "", fmt::format("'{}' has", quote_control(name)), before, after);
  }
  section.summary = counted(std::ssize(section.changes), "change");
}

}  // namespace piper
