// What a role takes, and what its bits depend on.
#include "needs.h"

#include <algorithm>
#include <numeric>

#include "libraries.h"
#include "piper/base/memory.h"
#include "piper/devices/collectives.h"
#include "piper/devices/cuda.h"
#include "product.h"

namespace piper {

Status cuda_available() {
  // A misspelt switch is said by the backend; it is no reason to run on the CPU.
  if (!cuda::switched_off()) return ok_status();
  PIPER_ASSIGN([[maybe_unused]] const int count, cuda::count_devices());
  return ok_status();
}

Result<DeviceProgram> cuda_program(const Program& program) {
  Result<DeviceProgram> made = device_program(program);
  if (made) return made;
  Error error = std::move(made).error();
  error.message = fmt::format("program '{}': {}", quote_control(program.label), error.message);
  return error;
}

int64_t cuda::workspace_of(const DeviceProgram& program) {
  constexpr int64_t kLeast = 256;
  return align_up(std::max(program.workspace_bytes, program.products.empty() ? 0 : kLeast));
}

Result<cuda::FabricNeeds> cuda::fabric_needs(const RoleProgram& role) {
  FabricNeeds needs{device_fabric_bytes(role), std::vector<int64_t>(role.streams.size())};
  needs.connect_scratch = connect_scratch_bytes(role);
  for (const FabricProgram& each : device_fabric_programs(role)) {
    PIPER_ASSIGN(const DeviceProgram made, cuda_program(each.program));
    int64_t& most = needs.workspaces[static_cast<size_t>(each.stream)];
    most = std::max(most, workspace_of(made));
    needs.literals += align_up(std::ssize(made.literals));
  }
  return needs;
}

namespace {

int64_t streams_of_products(const RoleProgram& role, const std::vector<bool>& has_products) {
  std::vector<bool> multiplies(role.streams.size());
  for (const auto* section : role.sections())
    for (const Instruction& each : *section)
      if (each.kind == InstructionKind::kCompute && has_products[static_cast<size_t>(each.program)])
        multiplies[static_cast<size_t>(each.stream)] = true;
  return std::ranges::count(multiplies, true);
}

}  // namespace

// Streams that multiply have a scratch each, programs their literals.
Result<Needs> cuda_needs(const RoleProgram& role) {
  const RoleProgram prepared = prepared_for_cuda(role);
  std::vector<int64_t> bytes;  // by program
  std::vector<bool> has_products;
  int64_t literals = 0;
  for (const Program& program : prepared.programs) {
    PIPER_ASSIGN(const DeviceProgram made, cuda_program(program));
    bytes.push_back(cuda::workspace_of(made));
    has_products.push_back(!made.products.empty());
    literals += align_up(std::ssize(made.literals));
  }
  PIPER_ASSIGN(const cuda::FabricNeeds fabric, cuda::fabric_needs(role));
  int64_t transport = fabric.literals + fabric.connect_scratch;
  for (const auto* by_stream : {&fabric.blocks, &fabric.workspaces})
    transport += std::accumulate(by_stream->begin(), by_stream->end(), int64_t{0});
  return Needs{workspaces_of(role, bytes), prepared.arena_bytes - role.arena_bytes, transport,
               streams_of_products(role, has_products) * cuda::kProductScratch + literals};
}

namespace {

std::string versions_here() {
  std::string text = "cuda";
  const auto add = [&]<class Table>(const Result<const cuda::Opened<Table>*>& library) {
    if (library) text += fmt::format(", {} {}", cuda::About<Table>::kName, (*library)->version);
  };
  const CudaMachine machine = find_cuda();
  if (!machine.devices.empty())
    text += fmt::format(" on {} ({} multiprocessors)", machine.devices[0].name,
                        machine.devices[0].multiprocessors);
  add(cuda::opened<cuda::Nvrtc>());
  add(cuda::opened<cuda::CublasLt>());
  add(cuda::opened<cuda::Cudnn>());
  return text;
}

}  // namespace

std::string cuda_table() { return cuda::algorithms_here().digest; }

std::string cuda_versions() {
  static const std::string versions = versions_here();  // libraries stay what they are
  return fmt::format("{}, table of products {:.8}", versions, cuda_table());
}

}  // namespace piper
