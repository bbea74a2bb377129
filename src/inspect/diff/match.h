// Which axis, stage, device and stream of one set is which of the other, whatever their names.
// Private to the diff room.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "piper/inspect/diff.h"

namespace piper {

inline bool is_close(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max(std::abs(a), std::abs(b));
}

struct DevicePair {
  int32_t before = -1, after = -1;  // index of devices; -1: none
  bool moved = false;               // the work is elsewhere than it was
};

// Maps names and ids of `after` to those of `before`.
struct SetMatch {
  SetMatch(const Summary& before, const Summary& after);

  const Summary &before, &after;
  std::map<std::string, std::string> axis;               // new name -> old name, where they differ
  std::map<std::string, std::string> parameter, stream;  // likewise
  // The i-th is the stage of `before` that matches stage i of `after`, or a new number.
  std::vector<int32_t> stage;
  std::vector<DevicePair> devices;  // in order of `before`
  std::vector<std::string> notes;

  std::string old_axes(const std::string& over) const;  // "dp+node" in the old names
  std::string old_parameter(const std::string& name) const;
  std::string old_stream(const std::string& name) const;
  std::string new_stream(const std::string& name) const;
  std::string where(const DevicePair& pair) const;
  const RoleSummary* role_before(const DevicePair& pair) const;
  const RoleSummary* role_after(const DevicePair& pair) const;
  // Returns a role's stages, by position, in the numbers of `before`.
  std::vector<int32_t> stages_before(const RoleSummary& role) const;
  std::vector<int32_t> stages_after(const RoleSummary& role) const;
  // Pairs stages of `before` and `after` by number; null where one of them has none.
  struct StagePair {
    const StageSummary *before = nullptr, *after = nullptr;
    std::string name() const;
  };
  std::vector<StagePair> stages() const;
  bool same_roles() const;    // equal programs
  bool same_values() const;   // equal initial values, as far as both are known
  bool same_tensors() const;  // parameters of equal names and types
  bool same_model() const;    // whatever its file; false where that is not known

 private:
  void note_model();
  void match_axes();
  void match_parameters();
  void match_stages();
  void note_stages();
  void match_devices();
  void match_streams();
};

// Says what a stream is for, by name: limits and kinds of work.
struct StreamUse {
  std::set<std::string> kinds;
  std::string limits;
  bool operator==(const StreamUse&) const = default;
};
std::map<std::string, StreamUse> stream_uses(const Summary& set);

// Holds a section while it is filled: its changes that are of places, by what changes and its
// values.
struct SectionChanges : DiffSection {
  std::map<std::tuple<std::string, DiffValue, DiffValue>, size_t> by_value;
  bool known = true;  // false: there is nothing to compare
};

// Appends a change, or joins it with one that changes alike elsewhere.
void add_change(SectionChanges& section, Change change);
// Adds a difference; nothing where both are equal.
void add_number(SectionChanges& section, std::string where, std::string what, double before,
                double after, DiffUnit unit);
// Compares numbers of which one may be missing: a device that is gone costs nothing.
void add_numbers(SectionChanges& section, std::string where, std::string what,
                 std::optional<double> before, std::optional<double> after, DiffUnit unit);
void add_text(SectionChanges& section, std::string where, std::string what, DiffValue before,
              DiffValue after);
std::string value_text(const DiffValue& value, DiffUnit unit);
// Returns whether a change is too small for a percentage of one decimal.
bool is_slight(double before, double after);
// "+5.1 %"; "+64 B" where that is slight; "" where it is none.
std::string growth_text(double before, double after, DiffUnit unit);
std::string verb_of(const std::string& section);  // " differs", of several " differ"
// "the largest peak 1 MiB → 2 MiB (+100.0 %)"
std::string measure_text(const char* what, const DiffSection::Measure& measure);
// Names, as many as `width` columns hold.
std::string list_text(const std::vector<std::string>& names, size_t most);

// Each fills the changes of one section.
void compare_model(const SetMatch& match, SectionChanges& section);
void compare_train(const SetMatch& match, SectionChanges& section);
void compare_parameters(const SetMatch& match, SectionChanges& section);
void compare_target(const SetMatch& match, SectionChanges& section);
void compare_memory(const SetMatch& match, SectionChanges& section);
void compare_flops(const SetMatch& match, SectionChanges& section);
void compare_time(const SetMatch& match, SectionChanges& section);
void compare_placement(const SetMatch& match, SectionChanges& section);
void compare_stages(const SetMatch& match, SectionChanges& section);
void compare_order(const SetMatch& match, SectionChanges& section);
void compare_recompute(const SetMatch& match, SectionChanges& section);
void compare_offload(const SetMatch& match, SectionChanges& section);
void compare_versions(const SetMatch& match, SectionChanges& section);
void compare_collectives(const SetMatch& match, SectionChanges& section);
void compare_messages(const SetMatch& match, SectionChanges& section);
void compare_streams(const SetMatch& match, SectionChanges& section);

}  // namespace piper
