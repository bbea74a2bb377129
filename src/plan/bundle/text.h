// The text form of role programs: print_text.cc writes it, parse_text.cc reads it, both by the
// lists of fields. Private to the bundle room.
//
// A line is a keyword, words in fixed places, then key=value in any order; what is left out has its
// default. Numbers in front are positions in their table, there for people: they must be right.
#pragma once

#include "fields.h"
#include "piper/base/field_text.h"

namespace piper {

// Visits the tables of which each element is a line: its keyword, and whether its position follows
// that.
template <class Role, class Visit>
void each_table(Role& role, Visit&& visit) {
  visit("axis", role.mesh, false);
  visit("stream", role.streams, true);
  visit("group", role.groups, true);
  visit("communicator", role.communicators, true);
  visit("input", role.inputs, false);
  visit("sum", role.sum_targets, true);
  visit("report", role.reports, false);
  visit("evaluation_report", role.evaluation_reports, false);
}
template <class Role, class Visit>
void each_section(Role& role, Visit&& visit) {
  visit("prologue", role.prologue);
  visit("body", role.body);
  visit("epilogue", role.epilogue);
  visit("evaluation", role.evaluation);
}
// Visits what lines below an instruction declare.
template <class One, class Visit>
void each_sum(One& one, Visit&& visit) {
  visit("contribution", one.contributions);
  visit("combine", one.combines);
  visit("sum_read", one.sum_reads);
}

// "S1/3@0": blocks of dim 1 over axis 0, of each of 3 stretches.
struct PlanNames {
  std::string print(const TensorCut& cut) const;
  void read(LineReader& line, std::string_view text, TensorCut& to) const;
};

}  // namespace piper
