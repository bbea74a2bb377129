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

}  // namespace

std::optional<Launch> launched() {
  constexpr std::pair<const char*, const char*> kLaunchers[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"PMIX_RANK", "SLURM_NTASKS"},
  };
  for (auto [rank_name, world_name] : kLaunchers) {
    auto rank = variable(rank_name);
    auto world = variable(world_name);
    if (rank && world) return Launch{*rank, *world};
  }
  return std::nullopt;
}

std::string_view mpi_environment_help() {
  return "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 (as root) "
         "OMPI_MCA_rmaps_base_oversubscribe=1 (more ranks than cores)";
}

}  // namespace piper
