// The flags that say on which machine a step is predicted.
#pragma once

#include <CLI/CLI.hpp>

#include "piper/inspect/cluster.h"

namespace piper {

struct MachineFlags {
  std::string cluster, profile;
  std::vector<std::string> costs;

  // `stated`: also --costs NAME=MS.
  void add(CLI::App& app, bool stated);
  bool given() const { return !cluster.empty() || !costs.empty(); }
  // Returns the kind of device for which plans are made: that of the cluster's first device.
  Result<std::string> target(const std::vector<std::string>& library) const;
  // Returns what ops and messages take on the cluster, for the compiler; null: none is named.
  // Errors: as read_cluster and read_profile.
  Result<std::shared_ptr<const DeviceCosts>> devices(const std::vector<std::string>& library) const;
  // Returns the machine for these plans, and fills what reports say of it. `library`: folders in
  // which names of the library are looked for, too. Errors: as read_cluster, read_profile and
  // cluster_machine; --costs that cannot be read.
  Result<std::unique_ptr<Machine>> make(const PlanSet& set, const std::vector<std::string>& library,
                                        MachineFacts& facts) const;
};

// Prints the prediction of a step: piper-sim's report. `off`: with what happens if costs are 10 %
// off.
Status print_prediction(const PlanSet& set, const Machine& machine, const MachineFacts& facts,
                        bool json, bool off);
// Prints what a rank does at each of the times, as "3@12.5", and what it waits for. Errors: a text
// of another form; ranks and times that the timeline does not have.
Status print_why(std::span<const std::string> times, const PlanSet& set, const Timeline& timeline);
// Prints what the steps of a batch that grows take in all: of `stages`, each until the next one
// begins. `first_steps`: of these, and then of what follows them.
Status print_rampup(std::span<const PlanSet* const> stages, std::span<const int64_t> first_steps,
                    const MachineFlags& flags, const std::vector<std::string>& library, bool json);

}  // namespace piper
