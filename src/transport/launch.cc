// What a launcher leaves in the environment.
#include <cstdlib>

#include "piper/transport.h"

namespace piper {
namespace {

std::optional<int64_t> variable(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  char* end = nullptr;
  int64_t value = std::strtoll(text, &end, 10);
  if (*end != '\0' || value < 0) return std::nullopt;
  return value;
}

using Variables = std::pair<const char*, const char*>;  // of a process's rank and their number

std::optional<Launch> first_of(std::span<const Variables> launchers) {
  for (auto [rank_name, world_name] : launchers) {
    auto rank = variable(rank_name);
    auto world = variable(world_name);
    if (rank && world) return Launch{*rank, *world};
  }
  return std::nullopt;
}

}  // namespace

std::optional<Launch> launched() {
  constexpr Variables kLaunchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"PMIX_RANK", "SLURM_NTASKS"},
  };
  return first_of(kLaunchers);
}

std::optional<Launch> launched_without_mpi() {
  if (launched()) return std::nullopt;
  constexpr Variables kLaunchers[] = {
      {"LOCAL_RANK", "WORLD_SIZE"},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
  };
  return first_of(kLaunchers);
}

std::string_view mpi_environment_help() {
  return "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 (as root) "
         "OMPI_MCA_rmaps_base_oversubscribe=1 (more ranks than cores)";
}

}  // namespace piper
