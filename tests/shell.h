// Commands of a shell, and what programs under mpirun need around them.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <utility>

namespace piper {

// What stands before a command that starts mpirun: leave to start as root and more ranks than
// cores. Open MPI keeps its memory until the end, which is no leak of ours.
inline constexpr const char kMpi[] =
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
    "OMPI_MCA_rmaps_base_oversubscribe=1 ASAN_OPTIONS=detect_leaks=0; ";

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

}  // namespace piper
