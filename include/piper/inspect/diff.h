// What differs between two plan sets, in the words of --explain; tools/piper_diff.cc is its command
// line, formats/diff.md the page. Renamed tags, axes and streams, axes of one rank and whatever a
// strategy's text says otherwise are no difference in what runs: notes at most.
#pragma once

#include "piper/inspect/summary.h"

namespace piper {

enum class DiffUnit : uint8_t { kCount, kBytes, kFlops, kSeconds };
// Nothing: it is not there; a number has the Change's unit.
using DiffValue = std::variant<std::monostate, double, std::string>;

struct Change {
  // Devices ("pp=0"), stages ("stage=1") or parameters that change alike; empty: of the whole.
  std::vector<std::string> where;
  std::string what;  // "peak", "lr", "all_reduce over dp"
  DiffValue before, after;
  DiffUnit unit = DiffUnit::kCount;
  bool is_run = false;  // before and after are runs of tasks, for one below the other
};

struct DiffSection {
  std::string name;     // of diff_sections()
  std::string summary;  // "2 of 4 devices, from task 3 on"
  // Holds what --fail-on compares with a limit: the largest value of any device, and, where a
  // device may run out of it, that of each one.
  struct Measure {
    double before = 0, after = 0;
    DiffUnit unit = DiffUnit::kCount;
  };
  std::optional<Measure> measure;
  std::vector<std::pair<std::string, Measure>> each;  // "pp=1"; devices that came or went too
  std::vector<Change> changes;                        // none: nothing differs
};

struct Diff {
  std::string before, after;          // names, for people
  std::vector<std::string> notes;     // differences that are none in what runs
  std::vector<DiffSection> sections;  // that differ, the most important first
  std::vector<std::string> failed;    // what --fail-on found: "memory grew by 7.1 %, more than 5 %"
  std::vector<std::string> only;      // sections that were kept; empty: all
  std::vector<std::string> unknown;   // sections that nothing is known of, on one side or both
  bool same() const { return sections.empty(); }
  const DiffSection* find(std::string_view section) const;
};

Diff compare(const Summary& before, const Summary& after);

std::span<const std::string_view> diff_sections();
// "order,memory". Error (kUsage): an unknown section, with the nearest.
Result<std::vector<std::string>> parse_sections(std::string_view text);
void keep_sections(Diff& diff, const std::vector<std::string>& names);

// "memory:+5%,collectives,order": a section that must not differ, or whose measure must not grow by
// more than so many percent.
struct DiffGate {
  std::string section;
  std::optional<double> percent;
};
// Error (kUsage): no number, or a limit of a section that has no measure.
Result<std::vector<DiffGate>> parse_gates(std::string_view text);
// A gate on what is not known fails.
void apply_gates(const std::vector<DiffGate>& gates, Diff& diff);

std::string headline(const Diff& diff);  // one line
std::string print_diff(const Diff& diff, bool colour);
// Prints a diff for a comment: folded sections, at most 60 kB; what does not fit is counted.
std::string print_diff_markdown(const Diff& diff);
std::string print_diff_json(const Diff& diff);  // formats/diff.md

}  // namespace piper
