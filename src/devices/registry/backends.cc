// The table of kinds of devices.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "piper/devices/cpu.h"
#include "piper/devices/cuda.h"
#include "piper/devices/null.h"
#include "piper/devices/registry.h"

namespace piper {
namespace {

Result<std::unique_ptr<Backend>> make_cpu(const BackendOptions& options) {
  return std::unique_ptr<Backend>(
      make_cpu_backend({options.threads, options.cores, nullptr, options.fuse}));
}
std::string kernels_of_cpu() {
  return fmt::format("cpu kernels for {}, table of products {}", cpu_kernels(),
                     std::string_view(cpu_products().digest).substr(0, 8));
}
std::string note_on_cpu() { return fmt::format("entry '{}'", cpu_products().entry); }
RoleProgram prepared_for_cpu(RoleProgram role) {
  return make_cpu_backend()->prepare(std::move(role));
}
Result<std::unique_ptr<Backend>> make_null(const BackendOptions&) {
  return std::unique_ptr<Backend>(make_null_backend());
}

// Returns the value of an environment variable if it is a whole number, at least 0, and nothing but
// `rest` follows.
std::optional<int64_t> variable(const char* name, bool (*rest)(std::string_view) = nullptr) {
  const char* const text = std::getenv(name);
  if (!text || *text < '0' || *text > '9') return std::nullopt;
  char* end = nullptr;
  const int64_t number = std::strtoll(text, &end, 10);
  return *end == '\0' || (rest != nullptr && rest(end)) ? std::optional(number) : std::nullopt;
}
// Returns whether all hosts have as many. Slurm writes "8(x2)" where two hosts have 8 tasks each,
// and a list where their numbers differ.
bool is_of_each_host(std::string_view rest) {
  return rest.starts_with("(x") && rest.find(',') == rest.npos;
}

Result<std::unique_ptr<Backend>> make_cuda(const BackendOptions& options) {
  if (!options.fuse)
    return fail("not supported: the cuda backend runs no op on its own (--no-fuse)");
  const auto note = [](const std::string& text) {
    std::fputs(fmt::format("cuda: {}\n", text).c_str(), stderr);
  };
  return make_cuda_backend({device_number(options), "", note});
}

double peak_of_cuda(const BackendOptions& options, DType dtype) {
  const int64_t number = device_number(options);
  const CudaPeak peak = cuda_peak(number, dtype);
  if (peak.devices == 0) return 0;
  const int64_t own = number % peak.devices;
  const int64_t sharing = (std::max<int64_t>(options.ranks, 1) - 1 - own) / peak.devices + 1;
  return peak.flops / static_cast<double>(options.is_process ? 1 : std::max<int64_t>(sharing, 1));
}

constexpr std::array kKinds = {
    BackendKind{.name = "cpu",
                .make = make_cpu,
                .kernels = kernels_of_cpu,
                .note = note_on_cpu,
                .table = [] { return cpu_products().digest; },
                .needs = cpu_needs,
                .prepare = prepared_for_cpu,
                .join = joined_for_cpu},
    BackendKind{.name = "cuda",
                .make = make_cuda,
                .available = cuda_available,
                .begin = set_cuda_environment,
                .ranks_streams = true,
                .sums_fast = true,
                .kernels = cuda_versions,
                .table = cuda_table,
                .peak = peak_of_cuda,
                .needs = cuda_needs,
                .prepare = prepared_for_cuda,
                .join = joined_for_cuda},
    BackendKind{.name = "null", .make = make_null, .computes = false, .kernels = [] {
                  return std::string("backend null");
                }}};

template <class Has>
std::vector<std::string> names_of(Has has) {
  std::vector<std::string> names;
  for (const BackendKind& kind : kKinds)
    if (has(kind)) names.emplace_back(kind.name);
  return names;
}
template <class Has>
Result<const BackendKind*> find(std::string_view name, std::string_view what, Has has) {
  for (const BackendKind& kind : kKinds)
    if (kind.name == name && has(kind)) return &kind;
  const std::vector<std::string> all = names_of(has);
  return fail("there is no {} '{}'{}; there are {}", what, quote_control(name),
              did_you_mean(name, all), join(all, " and "))
      .with_code(ExitCode::kUsage);
}

bool runs(const BackendKind& kind) { return kind.make != nullptr; }
bool is_target(const BackendKind& kind) { return kind.needs != nullptr; }

}  // namespace

// Asks launchers in the order in which piper/runtime/transport.h asks them for ranks. A launcher
// that another one has started comes first: scripts of Slurm give SLURM_LOCALID=0 to all that their
// mpirun or torchrun starts.
std::optional<HostPlace> place_on_host() {
  struct Variables {
    const char *place, *ranks;
  };
  for (const Variables& names :
       {Variables{"OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
        Variables{"MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
        Variables{"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
        Variables{"SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"}})
    if (const auto place = variable(names.place)) {
      const int64_t ranks = variable(names.ranks, is_of_each_host).value_or(0);
      return HostPlace{*place, ranks > *place ? ranks : 0};
    }
  return std::nullopt;
}

int64_t device_number(const BackendOptions& options) {
  if (!options.is_process) return options.place;
  const auto here = place_on_host();
  return here ? here->place : options.place;
}

std::vector<std::string> backend_names() { return names_of(runs); }
std::vector<std::string> target_names() { return names_of(is_target); }
Result<const BackendKind*> find_backend(std::string_view name) {
  return find(name, "backend", runs);
}
Result<const BackendKind*> find_target(std::string_view name) {
  return find(name, "target", is_target);
}
TargetRole for_its_target(const RoleProgram& role) {
  const Result<const BackendKind*> target = find_target(role.target);
  PIPER_CHECK(target.ok(), "a role is made for a target of the table");
  TargetRole result{(*target)->prepare(role), {}};
  for (const Program& program : result.role.programs)
    result.programs.push_back((*target)->join(program));
  return result;
}
std::string_view backend_for(std::string_view target) {
  const auto kind = find_backend(target);
  const bool is_here = kind && (!(*kind)->available || (*kind)->available());
  return is_here ? (*kind)->name : "cpu";
}

}  // namespace piper
