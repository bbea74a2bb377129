// Measures programs, messages and copies of a job.
#include "profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "piper/devices/registry.h"
#include "piper/devices/work.h"

namespace piper {

// ---- Times --------------------------------------------------------------------------------------

void Times::add(double total, int64_t count, double least, double point) {
  least_ = count_ == 0 ? least : std::min(least_, least);
  count_ += count;
  total_ += total;
  points_.emplace_back(point, count);
  if (points_.size() > kMostPoints) thin();
}

void Times::add(const Times& others) {
  if (others.count_ == 0) return;
  least_ = count_ == 0 ? others.least_ : std::min(least_, others.least_);
  count_ += others.count_;
  total_ += others.total_;
  points_.insert(points_.end(), others.points_.begin(), others.points_.end());
  if (points_.size() > kMostPoints) thin();
}

double Times::at(int64_t place) const {
  for (const auto& [time, count] : points_)
    if ((place -= count) < 0) return time;
  return points_.back().first;
}

void Times::thin() {
  std::sort(points_.begin(), points_.end());
  std::vector<Point> kept;
  for (size_t p = 0; p < kPoints; ++p) {
    const auto bound = [&](size_t part) {
      return count_ * static_cast<int64_t>(part) / static_cast<int64_t>(kPoints);
    };
    const int64_t from = bound(p), to = bound(p + 1);
    kept.emplace_back(at((from + to - 1) / 2), to - from);
  }
  points_ = std::move(kept);
}

double Times::quantile(double share) const {
  if (count_ == 0) return 0;
  Times sorted = *this;
  std::sort(sorted.points_.begin(), sorted.points_.end());
  const auto place = static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
  return sorted.at(std::max<int64_t>(place, 1) - 1);
}

// ---- Between ranks ------------------------------------------------------------------------------

namespace {

template <class Number>
void write(std::vector<std::string>& fields, Number number) {
  fields.push_back(fmt::format("{}", number));
}
std::string next(std::span<const std::string>& fields) {
  if (fields.empty()) return "";
  std::string field = fields.front();
  fields = fields.subspan(1);
  return field;
}
int64_t next_whole(std::span<const std::string>& fields) {
  return std::strtoll(next(fields).c_str(), nullptr, 10);
}
double next_number(std::span<const std::string>& fields) {
  return std::strtod(next(fields).c_str(), nullptr);
}

void write(std::vector<std::string>& fields, const ProfileRole& role) {
  for (const int64_t number : {role.first_rank, role.ranks, role.instructions, role.taken.device,
                               role.taken.host, std::ssize(role.stated)})
    write(fields, number);
  for (const auto& [what, bytes] : role.stated) {
    fields.push_back(what);
    write(fields, bytes);
  }
}

std::string encode(const Profile& profile) {
  std::vector<std::string> fields;
  write(fields, profile.entries.size());
  for (const auto& [key, entry] : profile.entries) {
    fields.insert(fields.end(),
                  {key.name, key.where, entry.label, entry.passes, join(entry.work, ";")});
    for (const int64_t number : {int64_t{key.table}, key.bytes, int64_t{key.fast}, entry.first_rank,
                                 std::ssize(key.others)})
      write(fields, number);
    for (const int64_t other : key.others) write(fields, other);
    entry.times.write(fields);
  }
  for (const auto& [digest, role] : profile.roles) {
    fields.push_back(digest);
    write(fields, role);
  }
  return pack(fields);
}

// What goes with the lowest rank is not told.
Profile decode_profile(std::string_view text) {
  const std::vector<std::string> all = unpack(text);
  std::span<const std::string> fields = all;
  Profile profile;
  for (int64_t count = next_whole(fields); count > 0 && !fields.empty(); --count) {
    ProfileKey key;
    ProfileEntry entry;
    for (std::string* text : {&key.name, &key.where, &entry.label, &entry.passes})
      *text = next(fields);
    if (const std::string work = next(fields); !work.empty()) entry.work = split_text(work, ';');
    key.table = static_cast<ProfileKey::Table>(next_whole(fields));
    key.bytes = next_whole(fields);
    key.fast = next_whole(fields) != 0;
    entry.first_rank = next_whole(fields);
    for (int64_t others = next_whole(fields); others > 0 && !fields.empty(); --others)
      key.others.push_back(next_whole(fields));
    entry.times = Times::read(fields);
    profile.entries[key] = std::move(entry);
  }
  while (!fields.empty()) {
    ProfileRole& role = profile.roles[next(fields)];
    for (int64_t* number :
         {&role.first_rank, &role.ranks, &role.instructions, &role.taken.device, &role.taken.host})
      *number = next_whole(fields);
    for (int64_t count = next_whole(fields); count > 0 && !fields.empty(); --count) {
      std::string what = next(fields);
      role.stated.emplace_back(std::move(what), next_whole(fields));
    }
  }
  return profile;
}

std::string joined(const std::string& a, const std::string& b) {
  std::set<char> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  return {all.begin(), all.end()};
}

}  // namespace

void Times::write(std::vector<std::string>& fields) const {
  piper::write(fields, count_);
  piper::write(fields, total_);
  piper::write(fields, least_);
  piper::write(fields, points_.size());
  for (const auto& [time, count] : points_) {
    piper::write(fields, time);
    piper::write(fields, count);
  }
}

Times Times::read(std::span<const std::string>& fields) {
  Times times;
  times.count_ = next_whole(fields);
  times.total_ = next_number(fields);
  times.least_ = next_number(fields);
  for (int64_t count = next_whole(fields); count > 0 && !fields.empty(); --count) {
    const double time = next_number(fields);
    times.points_.emplace_back(time, next_whole(fields));
  }
  return times;
}

void Profile::add(const Profile& others) {
  for (const auto& [key, theirs] : others.entries) {
    const auto [at, is_new] = entries.try_emplace(key, theirs);
    if (is_new) continue;
    ProfileEntry& own = at->second;
    own.times.add(theirs.times);
    own.label = std::min(own.label, theirs.label);
    own.first_rank = std::min(own.first_rank, theirs.first_rank);
    own.passes = joined(own.passes, theirs.passes);
  }
  for (const auto& [digest, theirs] : others.roles) {
    const auto [at, is_new] = roles.try_emplace(digest, theirs);
    if (is_new) continue;
    ProfileRole& own = at->second;
    own.first_rank = std::min(own.first_rank, theirs.first_rank);
    own.ranks += theirs.ranks;
    own.taken.device = std::max(own.taken.device, theirs.taken.device);
    own.taken.host = std::max(own.taken.host, theirs.taken.host);
  }
}

Status gather_profiles(Control& control, Profile& own) {
  constexpr const char* kWhat = "exchange of profiles";
  for (const int64_t child : control.children()) {
    PIPER_ASSIGN(const std::string theirs, hear_text(control, child, kWhat));
    own.add(decode_profile(theirs));
  }
  const auto up = control.parent();
  return up ? tell_text(control, *up, encode(own)) : ok_status();
}

// ---- Of one rank --------------------------------------------------------------------------------

namespace {

constexpr int64_t kWarmUp = 3;  // steps, where there are more

std::string link_of(const Fabric& fabric) {
  return fabric.name() == "local" ? "device" : std::string(fabric.name());
}

struct Maker {
  const Executor& executor;
  const RoleProgram& role = executor.role();
  const std::shared_ptr<const RoleProgram> prepared = executor.prepared();
  int64_t rank = 0;
  std::vector<int64_t> coordinates;
  std::vector<std::string> digests;  // by program

  ProfileKey key_of(const Instruction& one) const {
    if (one.kind == InstructionKind::kCompute)
      return {ProfileKey::kPrograms, digests[static_cast<size_t>(one.program)], "", 0};
    ProfileKey key{ProfileKey::kLocal, to_string(one.kind), "", bytes_through(role, one)};
    const std::vector<int64_t> ranks = members_of(one);
    if (ranks.empty()) {
      key.where = way_of(role, one);
      return key;
    }
    key.table = ProfileKey::kCommunication;
    key.where = link_of(executor.fabric());
    for (size_t r = 1; r < ranks.size(); ++r) key.others.push_back(ranks[r] - ranks[0]);
    key.fast = one.fast;
    return key;
  }
  // Returns the ranks between which it communicates, from the lowest; none: it does not.
  std::vector<int64_t> members_of(const Instruction& one) const {
    std::vector<int64_t> ranks;
    if (is_collective(one.kind))
      ranks = group_ranks(role, role.groups[static_cast<size_t>(one.group)], coordinates);
    else if (one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv)
      ranks = {rank, peer_rank(role, one.peer, coordinates)};
    std::ranges::sort(ranks);
    return ranks;
  }
  // Returns the key of what the backend has put in front of the plan's instructions.
  ProfileKey key_of_added(const Instruction& one) const {
    return {ProfileKey::kLocal, "prepared", "device",
            prepared->tensor(one.args.back()).type.bytes()};
  }
};

// Returns by program what it does as the backend runs it; nothing where that is not known.
std::vector<std::vector<std::string>> works_of(const Maker& make) {
  std::vector<std::vector<std::string>> works(make.digests.size());
  const auto kind = find_backend(make.executor.backend().name());
  if (!kind || !(*kind)->join) return works;
  for (size_t p = 0; p < works.size(); ++p)
    if (const auto passes = passes_of((*kind)->join(make.prepared->programs[p])))
      works[p] = print_passes(*passes);
  return works;
}

// Adds an entry for each program. Those that no body runs have no times.
void list_programs(const Maker& make, Profile& profile) {
  const std::vector<std::vector<std::string>> works = works_of(make);
  for (size_t p = 0; p < make.digests.size(); ++p) {
    ProfileEntry& entry = profile.entries[{ProfileKey::kPrograms, make.digests[p], "", 0}];
    const std::string& label = make.role.programs[p].label;
    entry.label = entry.label.empty() ? label : std::min(entry.label, label);
    entry.work = works[p];
  }
  for (const auto* section : make.role.sections())
    for (const Instruction& one : *section)
      if (one.kind == InstructionKind::kCompute) {
        std::string& passes = profile.entries[make.key_of(one)].passes;
        passes = joined(passes, {static_cast<char>(one.pass)});
      }
}

void add_role(const Executor& executor, int64_t rank, Profile& profile) {
  const RoleProgram& role = executor.role();
  int64_t workspaces = 0;
  for (const int64_t bytes : role.workspace_bytes) workspaces += bytes;
  profile.roles[role_digest(role)] = {rank,
                                      1,
                                      std::ssize(role.body),
                                      {{"arena", role.arena_bytes},
                                       {"workspaces", workspaces},
                                       {"packed", role.packed_bytes},
                                       {"transport", role.transport_bytes},
                                       {"scratch", role.scratch_bytes},
                                       {"device", role.peak_bytes()},
                                       {"host", role.host_bytes + role.staging_bytes}},
                                      executor.backend().taken()};
}

}  // namespace

Profile make_profile(const Executor& executor, int64_t rank, const Cores& cores,
                     const JobOptions& options) {
  Profile profile;
  const std::vector<TraceEvent> events = executor.trace();
  profile.device = executor.backend().device();
  profile.has_device_times = executor.is_asynchronous();
  profile.threads = cores.threads;
  profile.helpers = cores.helper ? 1 : 0;
  Maker make{executor};
  make.rank = rank;
  make.coordinates = coordinates_of(make.role.mesh, rank);
  for (const Program& program : make.role.programs) make.digests.push_back(program_digest(program));
  list_programs(make, profile);
  add_role(executor, rank, profile);
  if (events.empty()) return profile;
  profile.last_step = events.back().step;
  profile.first_step = std::max({events.front().step, profile.last_step + 1 - options.profile_steps,
                                 std::min(options.first_step + kWarmUp, profile.last_step)});
  const size_t added = make.prepared->body.size() - make.role.body.size();
  std::vector<std::pair<ProfileEntry*, Times*>> targets;  // by instruction
  for (size_t i = 0; i < make.prepared->body.size(); ++i) {
    const Instruction& one = make.prepared->body[i];
    const ProfileKey key =
        i < added ? make.key_of_added(one) : make.key_of(make.role.body[i - added]);
    const ProfileKey host{ProfileKey::kHost, to_string(one.kind),
                          key.table == ProfileKey::kPrograms ? key.name : "", 0};
    ProfileEntry& entry = profile.entries[key];
    if (key.table == ProfileKey::kCommunication) {
      const int64_t first = make.members_of(make.role.body[i - added]).front();
      entry.first_rank = entry.first_rank < 0 ? first : std::min(entry.first_rank, first);
    }
    targets.emplace_back(&entry, &profile.entries[host].times);
  }
  for (const TraceEvent& event : events) {
    if (event.step < profile.first_step || event.update >= 0) continue;
    const auto& [entry, host] = targets[static_cast<size_t>(event.instruction)];
    entry->times.add(event.end_us - event.start_us);
    host->add(event.issue_us);
  }
  return profile;
}

}  // namespace piper
