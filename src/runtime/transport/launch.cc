// What a launcher leaves in the environment.
#include <charconv>
#include <cstdlib>

#include "piper/runtime/transport.h"
#include "sockets.h"

namespace piper {
namespace {

std::string text_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

constexpr int64_t kMostRanks = INT32_MAX;

// Reads a variable of a launcher. One that is no number is an error: otherwise each process would
// train the whole job.
Result<std::optional<int64_t>> variable(const char* name, int64_t least = 0,
                                        int64_t most = INT64_MAX) {
  const std::string text = text_of(name);
  if (text.empty()) return std::optional<int64_t>();
  int64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || value < least || value > most)
    return fail("the environment says {}={}, which is no whole number from {}{}", name,
                quote_control(text), least, most == INT64_MAX ? " on" : fmt::format(" to {}", most))
        .with_code(ExitCode::kUsage)
        .with_note("help: correct what sets it, or unset it where no launcher starts this process");
  return std::optional(value);
}

// Names the variables of a process's rank and of their number.
struct Variables {
  const char *rank = nullptr, *world = nullptr;
  bool is_alone = false;  // one without the other says something, too, which is a mistake
};

Result<std::optional<Launch>> first_of(std::span<const Variables> launchers) {
  for (const Variables& names : launchers) {
    const bool has_rank = !text_of(names.rank).empty(), has_world = !text_of(names.world).empty();
    if (has_rank != has_world && names.is_alone)
      return fail("the environment says {}={}, but nothing of {}",
                  has_rank ? names.rank : names.world,
                  quote_control(text_of(has_rank ? names.rank : names.world)),
                  has_rank ? names.world : names.rank)
          .with_code(ExitCode::kUsage)
          .with_note("help: set both for a process of a job, or none");
    if (!has_rank || !has_world) continue;
    PIPER_ASSIGN(const auto world, variable(names.world, 1, kMostRanks));
    PIPER_ASSIGN(const auto rank, variable(names.rank, 0, *world - 1));
    return std::optional(Launch{*rank, *world, true, ""});
  }
  return std::optional<Launch>();
}

std::string join_host(const std::string& host, int64_t port) {
  if (host.empty()) return "";
  return process::host_and_port(host, port);
}

// The agent of torchrun may listen at MASTER_PORT itself, and says so.
Result<std::string> rendezvous_of_torch() {
  PIPER_ASSIGN(const auto port, variable("MASTER_PORT", 1, 65535));
  if (!port) return std::string();
  const bool is_taken = text_of("TORCHELASTIC_USE_AGENT_STORE") == "True";
  return join_host(text_of("MASTER_ADDR"), !is_taken ? *port : *port < 65535 ? *port + 1 : 65534);
}

// Task 0 runs on the first node of a step. Jobs and steps that share a node differ in their port.
Result<std::string> rendezvous_of_slurm() {
  constexpr int64_t kFirst = 20000, kCount = 12000;  // below what systems give away by themselves
  std::string host;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"})
    if (host.empty()) host = first_host(text_of(name));
  if (host.empty()) host = text_of("SLURM_LAUNCH_NODE_IPADDR");
  PIPER_ASSIGN(const auto job, variable("SLURM_JOB_ID"));
  PIPER_ASSIGN(const auto step, variable("SLURM_STEP_ID"));
  return join_host(host, kFirst + (job.value_or(0) % kCount * 8 + step.value_or(0) % 8) % kCount);
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

Result<std::optional<Launch>> launched() {
  constexpr Variables kMpi[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"PMIX_RANK", "SLURM_NTASKS"},
  };
  constexpr Variables kTorchHere[] = {{"LOCAL_RANK", "WORLD_SIZE"}},
                      kTorch[] = {{"RANK", "WORLD_SIZE", true}},
                      kSlurm[] = {{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};
  PIPER_ASSIGN(auto launch, first_of(kMpi));
  if (launch) return launch;
  if (text_of("RANK").empty()) {
    PIPER_ASSIGN(launch, first_of(kTorchHere));
  }
  if (!launch) {
    PIPER_ASSIGN(launch, first_of(kTorch));
    if (launch) {
      PIPER_ASSIGN(launch->rendezvous, rendezvous_of_torch());
    }
  }
  if (!launch) {
    PIPER_ASSIGN(launch, first_of(kSlurm));
    if (!launch) return launch;
    PIPER_ASSIGN(launch->rendezvous, rendezvous_of_torch());  // where a script of the job sets it
    if (launch->rendezvous.empty()) {
      PIPER_ASSIGN(launch->rendezvous, rendezvous_of_slurm());
    }
  }
  launch->mpi = false;
  return launch;
}

std::string_view mpi_environment_help() {
  return "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 (as root) "
         "OMPI_MCA_rmaps_base_oversubscribe=1 (more ranks than cores)";
}

}  // namespace piper
