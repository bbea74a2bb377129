// What carries the bytes of ranks between hosts: ranks are threads of one process (inproc), or
// processes that MPI (mpi) or sockets (tcp) connect. Each transport has both
// interfaces, Control (piper/devices/control.h) and Fabric (piper/devices/fabric.h); its fabric
// moves what is in the host's memory, and returns when it is done.
#pragma once

#include <atomic>

#include "piper/devices/fabric.h"

namespace piper {

struct TransportOptions {
  double timeout_s = 60;        // for each wait, until set_timeout
  double start_timeout_s = 60;  // for all processes of a job to start
  // Whether processes of one host add in memory that they share; if not, as between hosts.
  bool shared_memory = true;
  // Set by whoever wants the process to end: over TCP it then waits no longer for others to start.
  const std::atomic<bool>* stop = nullptr;
};

class Transport {
 public:
  virtual ~Transport() = default;
  virtual Control& control() = 0;
  virtual Fabric& fabric() = 0;
};

// The part becomes member k's of what is in the whole, without communication.
void take_part(const Shard& shard, int64_t k);

// Element types that the reductions add.
bool is_summable(DType dtype);

// Returns whether two members bring the same, but for where it is.
bool are_alike(const Collective& a, const Collective& b);
// Does one member's share of a collective of members whose memory is all at hand: when each has
// done its own, in any order or at once, the collective is done. `members`: what each brings; they
// are alike. `scratch`: a pointer for each member, twice.
struct ShareScratch {
  std::vector<std::byte*> to;
  std::vector<const std::byte*> from;
};
void do_share(std::span<const Collective* const> members, size_t own, ShareScratch& scratch);

// Runs all ranks of a job as threads of this process. Destroy it after the last use of any rank's
// transport.
class InprocWorld {
 public:
  virtual ~InprocWorld() = default;
  virtual Transport& rank(int64_t rank) = 0;
};
std::unique_ptr<InprocWorld> make_inproc_world(int64_t world, const TransportOptions& options);

// Holds what a launcher says in the environment about this process.
struct Launch {
  int64_t rank = 0;
  int64_t world = 1;
  // Of launchers that do not speak MPI: where rank 0 listens, as HOST:PORT. "" where they do not
  // say.
  bool mpi = true;
  std::string rendezvous;
};
// Reads what mpirun or srun with PMI says; else torchrun (RANK, WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT) or srun without PMI (SLURM_PROCID, SLURM_STEP_NUM_TASKS, the first host of
// SLURM_STEP_NODELIST and a port that follows from the numbers of job and step). Errors (kUsage)
// name a variable that is no number, or of which its rank and number of ranks one is missing or too
// large.
Result<std::optional<Launch>> launched();
// Returns the first host of a Slurm node list, such as "node7" of "node[07-12,20],login"; "" of
// none.
std::string first_host(std::string_view nodes);

// Makes this process one rank of an MPI job, `rank` being its plan's, whatever the launcher
// counted; at most one per process. A process that ends or stops before all have come ends this one
// within start_timeout_s, with a message. Destroying it ends MPI; after an error of any rank that
// is MPI_Abort with its code, which ends the process.
std::unique_ptr<Transport> make_mpi_transport(const TransportOptions& options, int64_t rank);

// Makes this process one rank of a job over TCP. Rank 0 listens at `rendezvous` (HOST:PORT, an IPv6
// address in brackets), where the others find it: all come there once, and each is told where its
// parent in the tree listens. Two processes then connect when one first sends to the other. An
// error (kPeer) after start_timeout_s names who did not come, or where nobody answers; after
// `stop` was set, another one says so.
Result<std::unique_ptr<Transport>> make_tcp_transport(const TransportOptions& options, int64_t rank,
                                                      int64_t world, const std::string& rendezvous);

// Returns the variables that Open MPI wants as root or with more ranks than cores, as one line for
// --help.
std::string_view mpi_environment_help();

}  // namespace piper
