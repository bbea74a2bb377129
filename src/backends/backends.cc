#include "piper/backends.h"

#include <algorithm>
#include <array>

#include "piper/backend_cpu.h"
#include "piper/backend_null.h"
#include "piper/halves.h"
#include "piper/ops.h"

namespace piper {
namespace {

std::unique_ptr<Backend> make_cpu(const BackendOptions& options) {
  return make_cpu_backend({options.threads, options.cores, nullptr, options.fuse});
}
std::string kernels_of_cpu() {
  return fmt::format("cpu kernels for {}, table of products {}", cpu_kernels(),
                     std::string_view(cpu_products().digest).substr(0, 8));
}
std::string note_on_cpu() { return fmt::format("entry '{}'", cpu_products().entry); }
RoleProgram prepared_for_cpu(RoleProgram role) {
  return make_cpu_backend()->prepare(std::move(role));
}

// 16-bit ops stay what they are, but those that go element by element, which become one kernel with
// their neighbours. Matrix products have 32 MiB for themselves, as the vendor of cuBLASLt advises.
FusedProgram joined_for_cuda(const Program& program) {
  const auto stays = [](std::string_view op) {
    const OpDef* def = find_op(op);
    return !def || !def->pointwise;
  };
  FuseCounts counts;
  return join_rows(fuse(widened(program, stays), counts));
}
Result<Needs> cuda_needs(const RoleProgram& role) {
  std::vector<int64_t> bytes;  // by program
  for (const Program& program : role.programs)
    bytes.push_back(place_locals(joined_for_cuda(program)).bytes);
  return Needs{workspaces_of(role, bytes), 0, reduction_slot_bytes(role), int64_t{32} << 20};
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
                .sums_fast = true,
                .needs = cuda_needs,
                .prepare = [](RoleProgram role) { return role; },
                .join = joined_for_cuda},
    BackendKind{.name = "null",
                .make = [](const BackendOptions&) { return make_null_backend(); },
                .computes = false,
                .kernels = [] { return std::string("backend null"); }}};

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

std::span<const BackendKind> backend_kinds() { return kKinds; }
std::vector<std::string> backend_names() { return names_of(runs); }
std::vector<std::string> target_names() { return names_of(is_target); }
Result<const BackendKind*> find_backend(std::string_view name) {
  return find(name, "backend", runs);
}
Result<const BackendKind*> find_target(std::string_view name) {
  return find(name, "target", is_target);
}

}  // namespace piper
