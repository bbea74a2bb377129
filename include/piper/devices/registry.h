// The kinds of devices, in one table: what plans are made for, and what runs them. A new one is its
// room and a line in src/devices/registry/backends.cc.
#pragma once

#include <memory>
#include <optional>

#include "piper/devices/backend.h"
#include "piper/devices/program.h"

namespace piper {

// Says what a rank's backend may use of its machine.
struct BackendOptions {
  int threads = 1;
  std::vector<int> cores;  // by thread; empty: not pinned
  bool fuse = true;        // false: every op on its own, with the same bits
  int64_t place = 0;       // of the rank among those that share the machine's devices
  int64_t ranks = 1;       // so many share them, as threads of this process
  // Whether the rank is the only one of its process, so that what a launcher says of the process is
  // said of the rank.
  bool is_process = false;
};
// Holds what a launcher says of this process among those that it started on this host.
struct HostPlace {
  int64_t place = 0;  // 0 is the first
  int64_t ranks = 0;  // how many processes there are; 0: the launcher does not say
};
// Reads the variables of mpirun, torchrun and srun; nothing if none of them is set.
std::optional<HostPlace> place_on_host();

// Returns the number of the device that a rank takes, modulo as many as there are: of a process its
// number among those of its host, as mpirun, torchrun or srun says it; else the rank's place.
int64_t device_number(const BackendOptions& options);

struct BackendKind {
  std::string_view name;
  // One for a rank; null: this build has none.
  Result<std::unique_ptr<Backend>> (*make)(const BackendOptions& options) = nullptr;
  // Whether this machine has what it runs on. Error: what was looked for. Null: every machine has.
  Status (*available)() = nullptr;
  // Sets what its libraries read of the environment, for these roles: while a process has no other
  // thread that could read it. Returns the values that it replaced, as NAME=VALUE. Null: nothing.
  std::vector<std::string> (*begin)(std::span<const RoleProgram> roles) = nullptr;
  // Whether priorities and SM limits of a plan's streams have an effect.
  bool ranks_streams = false;
  // Whether what it leaves are results.
  bool computes = true;
  // Whether it has a library of its own for sums that plans call fast; else they are formed in rank
  // order.
  bool sums_fast = false;
  // What its bits depend on beside the plan: ranks of a job have the same. And what else a user may
  // want to know of it; null: nothing.
  std::string (*kernels)() = nullptr;
  std::string (*note)() = nullptr;
  // The digest of the table by which it chooses algorithms (RoleProgram::table); null: it has none.
  std::string (*table)() = nullptr;
  // Returns how many FLOPs a second the rank's device can do in products of this type, of which
  // ranks that share it have equal parts; 0: not known. Null: it is measured, on a backend of the
  // host.
  double (*peak)(const BackendOptions& options, DType dtype) = nullptr;

  // Of kinds that plans are made for; null for others. What a role takes beside its arenas, and how
  // a role and a program of it run.
  Result<Needs> (*needs)(const RoleProgram& role) = nullptr;
  RoleProgram (*prepare)(RoleProgram role) = nullptr;
  FusedProgram (*join)(const Program& program) = nullptr;
};

// Returns names of the kinds that run plans, and of those that plans are made for.
std::vector<std::string> backend_names();
std::vector<std::string> target_names();
// Errors (kUsage): there is none of that name that runs plans, or that they are made for.
Result<const BackendKind*> find_backend(std::string_view name);
Result<const BackendKind*> find_target(std::string_view name);
// Holds a role as its target runs it: its instructions, and their programs joined. Requires: the
// target is one of the table.
struct TargetRole {
  RoleProgram role;
  std::vector<FusedProgram> programs;
};
TargetRole for_its_target(const RoleProgram& role);
// What plans for this target run on here, where nobody says: what they are made for, if this
// machine has it, else the CPU.
std::string_view backend_for(std::string_view target);

}  // namespace piper
