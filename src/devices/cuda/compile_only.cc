// CudaCompiler: what ranks load, noted by backends that run nothing, and then compiled into the
// folder that keeps code. piper-run --compile-only calls it.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "compile.h"
#include "mover.h"
#include "needs.h"
#include "piper/base/parallel.h"
#include "piper/devices/collectives.h"
#include "piper/devices/cuda.h"

namespace piper {

// ---- What is noted ------------------------------------------------------------------------------

namespace cuda {

// Holds the programs that were loaded, each once, and their sources.
class NotedPrograms {
 public:
  Status add(std::span<const Program> programs) {
    std::vector<const Program*> fresh;
    for (const Program& program : programs)
      if (numbers_.try_emplace(program_digest(program), std::ssize(numbers_)).second)
        fresh.push_back(&program);
    std::vector<Result<DeviceProgram>> made(fresh.size(), Result<DeviceProgram>(DeviceProgram()));
    in_parallel(fresh.size(), [&](size_t p) { made[p] = cuda_program(*fresh[p]); });
    for (size_t p = 0; p < fresh.size(); ++p) {
      PIPER_ASSIGN(DeviceProgram program, std::move(made[p]));
      workspaces_.push_back(workspace_of(program));
      if (!program.source.empty()) sources_.push_back({fresh[p]->label, std::move(program.source)});
    }
    return ok_status();
  }
  void add(CompileSource source) { sources_.push_back(std::move(source)); }
  // Both require that the program was added.
  int32_t number_of(const Program& program) const {
    return static_cast<int32_t>(numbers_.at(program_digest(program)));
  }
  int64_t workspace_bytes(int32_t program) const {
    return workspaces_[static_cast<size_t>(program)];
  }
  std::span<const CompileSource> sources() const { return sources_; }

 private:
  std::map<std::string, int64_t> numbers_;  // by digest
  std::vector<int64_t> workspaces_;         // by number
  std::vector<CompileSource> sources_;
};

}  // namespace cuda

namespace {

using namespace cuda;  // NOLINT: this room's own

// ---- Backends that run nothing ------------------------------------------------------------------

// These links move nothing and add up nothing, so that fabrics load their own sums.
class NoLinks final : public Links {
 public:
  std::string_view name() const override { return "none"; }
  Result<int32_t> add_pair(int64_t, int64_t, int32_t, int32_t, int64_t) override {
    return links_++;
  }
  Result<int32_t> add_group(std::span<const int64_t>, int32_t, int32_t) override {
    return links_++;
  }
  Status send(int32_t, std::span<const MessagePart>) override { return ok_status(); }
  Status recv(int32_t, std::span<const MessagePart>) override { return ok_status(); }
  Status exchange(int32_t, std::span<const Block>, std::span<const Block>) override {
    return ok_status();
  }
  Status wait_sends() override { return ok_status(); }

 private:
  int32_t links_ = 0;
};

// Looks like the backend of a device to whoever loads a plan. Its memory has addresses, and
// takes no pages until somebody writes there.
class NotingBackend final : public Backend {
 public:
  explicit NotingBackend(NotedPrograms& noted) : noted_(noted) {}
  ~NotingBackend() override {
    for (const auto& [at, bytes] : blocks_) munmap(at, bytes);
  }

  std::string_view name() const override { return "cuda"; }
  bool is_asynchronous() const override { return true; }
  bool shares_memory() const override { return false; }
  Result<std::byte*> allocate(int64_t bytes, Space) override {
    const size_t size = std::max<size_t>(static_cast<size_t>(bytes), 1);
    void* const at = bytes < 0 ? MAP_FAILED
                               : mmap(nullptr, size, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
      return fail("there are no addresses for {}", human_bytes(bytes))
          .with_code(ExitCode::kStorage);
    blocks_.emplace_back(at, size);
    return static_cast<std::byte*>(at);
  }
  Result<int32_t> load(const Program& program) override {
    PIPER_ASSIGN(const std::vector<int32_t> loaded, load_all({&program, 1}));
    return loaded[0];
  }
  Result<std::vector<int32_t>> load_all(std::span<const Program> programs) override {
    PIPER_TRY(noted_.add(programs));
    std::vector<int32_t> loaded;
    for (const Program& program : programs) loaded.push_back(noted_.number_of(program));
    return loaded;
  }
  int64_t workspace_bytes(int32_t program) const override {
    return noted_.workspace_bytes(program);
  }
  Result<int32_t> bind(int32_t, std::span<std::byte* const>, std::byte*) override { return 0; }
  Result<int32_t> add_stream(const Stream&) override { return ++streams_; }
  Result<std::unique_ptr<Fabric>> make_fabric(const FabricSource& source) override {
    if (source.control.world() == 1) return std::unique_ptr<Fabric>();
    noted_.add({kMoverLabel, strided_source()});
    return make_device_fabric(*this, source.control, std::make_unique<NoLinks>());
  }

  void launch(int32_t, int32_t) override {}
  void copy(std::byte*, const std::byte*, int64_t, int32_t) override {}
  void fill(std::byte*, const TensorType&, double, int32_t) override {}

 private:
  NotedPrograms& noted_;
  std::vector<std::pair<void*, size_t>> blocks_;
  int32_t streams_ = 0;
};

// ---- Architectures ------------------------------------------------------------------------------

// "sm_90", "90", "sm_90a" → 90, which a device of that kind asks for; none where it is none.
std::optional<int> capability_of(std::string_view architecture) {
  constexpr std::string_view kCode = "sm_";
  if (architecture.starts_with(kCode)) architecture.remove_prefix(kCode.size());
  if (architecture.ends_with('a') || architecture.ends_with('f')) architecture.remove_suffix(1);
  const bool is_number = architecture.size() >= 2 && architecture.size() <= 4 &&
                         architecture.find_first_not_of("0123456789") == std::string_view::npos;
  if (!is_number) return std::nullopt;
  return std::atoi(std::string(architecture).c_str());
}

Result<int> check_architecture(const std::string& architecture, const Opened<Nvrtc>& nvrtc) {
  PIPER_ASSIGN(std::vector<int> supported, known_architectures(nvrtc.functions));
  std::erase_if(supported, [](int each) { return each < 10 * kLeastMajor; });
  const std::optional<int> capability = capability_of(architecture);
  if (capability && std::ranges::find(supported, *capability) != supported.end())
    return *capability;
  std::vector<std::string> names;
  for (const int each : supported) names.push_back(fmt::format("sm_{}", each));
  return fail("there are no kernels for the architecture '{}'{}; NVRTC {} and Piper know {}",
              quote_control(architecture), did_you_mean(architecture, names), nvrtc.version,
              join(names, ", "))
      .with_code(ExitCode::kUsage);
}

}  // namespace

struct CudaCompiler::State {
  const Opened<Nvrtc>* nvrtc = nullptr;
  std::vector<std::string> capabilities;
  std::string folder;
  std::function<void(const std::string&)> note;
  NotedPrograms noted;
};

CudaCompiler::CudaCompiler(std::unique_ptr<State> state) : state_(std::move(state)) {}
CudaCompiler::CudaCompiler(CudaCompiler&&) noexcept = default;
CudaCompiler::~CudaCompiler() = default;

Result<CudaCompiler> CudaCompiler::open(std::span<const std::string> architectures,
                                        std::function<void(const std::string&)> note) {
  auto state = std::make_unique<State>();
  PIPER_ASSIGN(state->nvrtc, opened<Nvrtc>());
  for (const std::string& architecture : architectures) {
    PIPER_ASSIGN(const int capability, check_architecture(architecture, *state->nvrtc));
    state->capabilities.push_back(std::to_string(capability));
  }
  state->folder = cache_folder();
  if (state->folder.empty())
    return fail("there is no folder to keep kernels in")
        .with_note("help: HOME or XDG_CACHE_HOME is to name one, from the root on")
        .with_code(ExitCode::kUsage);
  state->note = std::move(note);
  return CudaCompiler(std::move(state));
}

std::unique_ptr<Backend> CudaCompiler::make_backend() {
  return std::make_unique<NotingBackend>(state_->noted);
}

Result<std::vector<CudaCompiled>> CudaCompiler::compile() const {
  std::vector<CudaCompiled> all;
  for (const std::string& capability : state_->capabilities) {
    CompileReport report;
    PIPER_TRY(cuda::compile(*state_->nvrtc, state_->noted.sources(), capability, state_->folder,
                            state_->note, &report));
    if (report.unwritten > 0)
      return fail("the code of {} of {} programs cannot be written to {}", report.unwritten,
                  report.programs, state_->folder)
          .with_code(ExitCode::kStorage);
    all.push_back({"sm_" + capability, state_->nvrtc->version, state_->folder, report.programs,
                   report.found, report.bytes});
  }
  return all;
}

std::string to_string(const CudaCompiled& one) {
  return fmt::format("{} by NVRTC {}: kernels of {} program{}, {} of them found there, {} in {}\n",
                     one.architecture, one.nvrtc, one.programs, one.programs == 1 ? "" : "s",
                     one.found, human_bytes(one.bytes), one.folder);
}

}  // namespace piper
