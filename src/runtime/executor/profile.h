// Times of what a rank does, by what it is: of one rank, and of several put together.
#pragma once

#include <map>

#include "cores.h"

namespace piper {

// Keeps times of one thing, in microseconds. Beyond a number of times, some stand for as many as
// are near them, so that what a rank reports grows neither with its steps nor with the ranks below
// it.
class Times {
 public:
  void add(double us) { add(us, 1, us, us); }
  void add(const Times& others);
  int64_t count() const { return count_; }
  double total() const { return total_; }
  double least() const { return least_; }
  // The least time that at least this share of all is not above.
  double quantile(double share) const;

  void write(std::vector<std::string>& fields) const;
  static Times read(std::span<const std::string>& fields);

 private:
  static constexpr size_t kMostPoints = 512, kPoints = 128;
  using Point = std::pair<double, int64_t>;  // a time, and how many it stands for
  void add(double total, int64_t count, double least, double point);
  void thin();
  double at(int64_t place) const;  // of sorted points

  int64_t count_ = 0;
  double total_ = 0, least_ = 0;
  std::vector<Point> points_;
};

// Tells apart what is timed.
struct ProfileKey {
  enum Table : uint8_t { kPrograms, kCommunication, kLocal, kHost } table = kPrograms;
  std::string name;   // the digest of a program; else the kind of instruction
  std::string where;  // kCommunication: the link; kLocal: between what; kHost: the program's digest
  int64_t bytes = 0;
  bool fast = false;
  // kCommunication: how far the other members are from the one with the lowest rank. Groups that
  // are alike in this are one.
  std::vector<int64_t> others;
  auto operator<=>(const ProfileKey&) const = default;
};
struct ProfileEntry {
  // Of programs; `work` as print_passes has it, where the backend says how it runs them.
  std::string label, passes;
  std::vector<std::string> work;
  int64_t first_rank = -1;  // kCommunication: of all such groups; -1: of none
  Times times;
};
// Describes the ranks of one role.
struct ProfileRole {
  int64_t first_rank = 0, ranks = 0, instructions = 0;
  std::vector<std::pair<std::string, int64_t>> stated;  // bytes, by what for
  Taken taken;                                          // the most of any
};
struct Profile {
  std::map<ProfileKey, ProfileEntry> entries;
  std::map<std::string, ProfileRole> roles;  // by digest
  std::string device;                        // of the lowest rank, as all that follows
  bool has_device_times = false;
  int64_t first_step = 0, last_step = -1, threads = 0, helpers = 0;

  void add(const Profile& others);
};

// Makes a profile of the last steps that the executor keeps times of, without the first ones of the
// run.
Profile make_profile(const Executor& executor, int64_t rank, const Cores& cores,
                     const JobOptions& options);
// Collective: rank 0 has all.
Status gather_profiles(Control& control, Profile& own);
// Returns what to say of a machine that was busy with something else, as programs took much longer
// than they can; nothing: it was not.
std::optional<std::string> busy_note(const Profile& profile);
// Returns the file of formats/profile.md. Empty: no step was timed.
std::string print_profile(const Profile& profile, const PlanSet& set, const JobOptions& options,
                          std::span<const StepMetrics> steps);

}  // namespace piper
