// What a launcher leaves in the environment.
#include <algorithm>
#include <cstdlib>

#include "piper/transport.h"
#include "sockets.h"

namespace piper {
namespace {

std::string text_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

std::optional<int64_t> variable(const char* name) {
  const std::string text = text_of(name);
  if (text.empty()) return std::nullopt;
  char* end = nullptr;
  int64_t value = std::strtoll(text.c_str(), &end, 10);
  if (*end != '\0' || value < 0) return std::nullopt;
  return value;
}

using Variables = std::pair<const char*, const char*>;  // of a process's rank and their number

std::optional<Launch> first_of(std::span<const Variables> launchers) {
  for (auto [rank_name, world_name] : launchers) {
    auto rank = variable(rank_name);
    auto world = variable(world_name);
    if (rank && world) return Launch{*rank, *world, true, ""};
  }
  return std::nullopt;
}

std::string join_host(const std::string& host, int64_t port) {
  if (host.empty()) return "";
  return process::host_and_port(host, port);
}

// The agent of torchrun may listen at MASTER_PORT itself, and says so.
std::string rendezvous_of_torch() {
  const auto port = variable("MASTER_PORT");
  if (!port || *port < 1 || *port > 65535) return "";
  const bool is_taken = text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return join_host(text_of("MASTER_ADDR"), !is_taken ? *port : *port < 65535 ? *port + 1 : 65534);
}

// Task 0 runs on the first node of a step. Jobs and steps that share a node differ in their port.
std::string rendezvous_of_slurm() {
  constexpr int64_t kFirst = 20000, kCount = 12000;  // below what systems give away by themselves
  std::string host;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (host.empty()) host = first_host(text_of(name));
  if (host.empty()) host = text_of("SLURM_LAUNCH_NODE_IPADDR");
  const int64_t job = variable("SLURM_JOB_ID").value_or(0);
  const int64_t step = variable("SLURM_STEP_ID").value_or(0);
  return join_host(host, kFirst + (job % kCount * 8 + step % 8) % kCount);
}

}  // namespace

std::string first_host(std::string_view nodes) {
  const size_t open = nodes.find_first_of("[,");
  if (open == std::string_view::npos || nodes[open] == ',')
    return std::string(nodes.substr(0, open));
  const size_t close = nodes.find(']', open);
  if (close == std::string_view::npos) return "";
  const std::string_view numbers = nodes.substr(open + 1, close - open - 1);
  const std::string_view behind = nodes.substr(close + 1, nodes.find(',', close) - close - 1);
  const std::string rest = first_host(behind);
  return fmt::format("{}{}{}", nodes.substr(0, open),
                     numbers.substr(0, numbers.find_first_of("-,")), rest);
}

std::optional<Launch> launched() {
  constexpr Variables kMpi[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"PMIX_RANK", "SLURM_NTASKS"},
  };
  constexpr Variables kTorch[] = {{"RANK", "WORLD_SIZE"}},
                      kTorchHere[] = {{"LOCAL_RANK", "WORLD_SIZE"}},
                      kSlurm[] = {{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  if (const auto launch = first_of(kMpi)) return launch;
  if (const auto launch = first_of(kTorch))
    return Launch{launch->rank, launch->world, false, rendezvous_of_torch()};
  if (const auto launch = first_of(kTorchHere))
    return Launch{launch->rank, launch->world, false, ""};
  if (const auto launch = first_of(kSlurm)) {
    const std::string torch = rendezvous_of_torch();  // where a script of the job sets it
    return Launch{launch->rank, launch->world, false,
                  torch.empty() ? rendezvous_of_slurm() : torch};
  }
  return std::nullopt;
}

std::string_view mpi_environment_help() {
  return "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 (as root) "
         "OMPI_MCA_rmaps_base_oversubscribe=1 (more ranks than cores)";
}

}  // namespace piper
