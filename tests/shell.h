// Commands of a shell, and what programs under mpirun need around them.
#pragma once

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

namespace piper {

// What stands before a command that starts mpirun: leave to start as root and more ranks than
// cores. Open MPI keeps its memory until the end, which is no leak of ours. Its session has a
// folder of its own: of two that make the folder they share at once, Open MPI 4.1 ends one with
// "File exists".
inline constexpr const char kMpi[] =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_orte_tmpdir_base=/tmp/piper-mpi.$$ "
    "ASAN_OPTIONS=detect_leaks=0; "
    "trap 'rm -rf /tmp/piper-mpi.'$$ EXIT; mkdir -p /tmp/piper-mpi.$$; ";

// Exit code (-1: ended by a signal) and what the command wrote to its standard output.
inline std::pair<int, std::string> run_shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, "no shell could be started"};
  std::string output;
  char buffer[4096];
  while (const size_t got = fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, got);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

// A TCP port that was free a moment ago. It lies below those that systems give to connections, and
// tests that run beside each other look for theirs from different ones on.
inline int free_port() {
  constexpr int kFirst = 10000, kCount = 22000;
  static int next = static_cast<int>(getpid()) % kCount * 7919 % kCount;
  for (int i = 0; i < kCount; ++i) {
    next = (next + 1) % kCount;
    const int file = socket(AF_INET6, SOCK_STREAM, 0);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(kFirst + next));
    const bool bound = bind(file, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(file);
    if (bound) return kFirst + next;
  }
  return -1;
}

// A shell's commands that start `command` as so many processes, each with the variables of a
// launcher without MPI, in which $RANK is its rank ("pid0", "pid1" … hold their numbers where
// `folder` is given), and end with the code of the last one that did not end with 0.
inline std::string as_processes(int count, const std::string& variables, const std::string& command,
                                const std::string& folder = "") {
  const std::string note = folder.empty() ? "" : fmt::format("echo $! > {}/pid$RANK; ", folder);
  return fmt::format(
      "P=; for RANK in $(seq 0 {}); do env {} {} & P=\"$P $!\"; {}done; C=0; for p in $P; do "
      "wait $p || C=$?; done; exit $C",
      count - 1, variables, command, note);
}
inline std::string torch_variables(int count, int port) {
  return fmt::format(
      "RANK=$RANK LOCAL_RANK=$RANK WORLD_SIZE={} MASTER_ADDR=127.0.0.1 MASTER_PORT={}", count,
      port);
}

}  // namespace piper
