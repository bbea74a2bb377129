// What a role takes, and what its bits depend on.
#include <algorithm>
#include <numeric>

#include "libraries.h"
#include "piper/backend_cuda.h"
#include "piper/device_fabric.h"
#include "product.h"

namespace piper {

Status cuda_available() {
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

Result<Needs> cuda_needs(const RoleProgram& role) {
  std::vector<int64_t> bytes;  // by program
  std::vector<bool> has_products;
  for (const Program& program : role.programs) {
    PIPER_ASSIGN(const DeviceProgram made, cuda_program(program));
    bytes.push_back(made.workspace_bytes);
    has_products.push_back(!made.products.empty());
  }
  std::vector<bool> multiplies(role.streams.size());
  for (const auto* section : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& each : *section)
      if (each.kind == InstructionKind::kCompute && has_products[static_cast<size_t>(each.program)])
        multiplies[static_cast<size_t>(each.stream)] = true;
  const auto streams = std::count(multiplies.begin(), multiplies.end(), true);
  const std::vector<int64_t> blocks = device_fabric_bytes(role);
  return Needs{workspaces_of(role, bytes), 0,
               std::accumulate(blocks.begin(), blocks.end(), int64_t{0}),
               streams * cuda::kProductScratch};
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
