// What all rules share: cells (classes of SPMD peers) and where instructions meet.
#pragma once

#include "piper/verify.h"

namespace piper::verify {

// One instruction of one cell's body.
struct Place {
  int32_t cell = -1, at = -1;
  bool operator==(const Place&) const = default;
  auto operator<=>(const Place&) const = default;
};

struct Cell {
  const RoleProgram* role = nullptr;
  int64_t rank = 0;                  // its lowest rank
  std::vector<int64_t> coordinates;  // of that rank
  std::vector<Place> partner;        // by instruction: the send of a receive, and back
  std::vector<int32_t>
      meeting;  // by instruction: index of Model::meetings for collectives between cells, -1 else
};

// A collective that joins several cells.
struct Meeting {
  std::vector<Place> members;
};

struct Model {
  std::vector<std::pair<std::string, int64_t>> mesh;
  std::vector<bool> shared_axis;  // SPMD peers differ along it
  std::vector<Cell> cells;
  std::vector<Meeting> meetings;
  std::vector<Place> order;  // a topological order of all instructions, when there is no deadlock
  // clock[cell][at][other]: how many instructions of `other` are known complete once this one has
  // run.
  std::vector<std::vector<std::vector<int32_t>>> clock;

  const Instruction& at(Place place) const {
    return cells[static_cast<size_t>(place.cell)].role->body[static_cast<size_t>(place.at)];
  }
  // "rank 2 'recv h@0'"
  std::string name(Place place) const;
};

class Report {
 public:
  explicit Report(VerifyReport& report) : report_(report) {}
  template <class... Args>
  void find(std::string rule, fmt::format_string<Args...> text, Args&&... args) {
    // A broken plan breaks many rules at once; the first findings are the ones to read.
    if (report_.findings.size() < 100)
      report_.findings.push_back({std::move(rule), fmt::format(text, std::forward<Args>(args)...)});
  }
  bool clean() const { return report_.findings.empty(); }
  VerifyReport& counts() { return report_; }

 private:
  VerifyReport& report_;
};

Result<Model> make_model(const PlanSet& set);
void check_structure(const Model& model, Report& report);
// Pairs sends with receives and collectives with each other; fills partner and meeting.
void check_transfers(Model& model, Report& report);
void check_collectives(Model& model, Report& report);
// Fills order and clock, or reports the cycle.
void check_deadlock(Model& model, Report& report);
void check_order(const Model& model, Report& report);
void check_memory(const Model& model, Report& report);
void check_sums(const Model& model, Report& report);

}  // namespace piper::verify
