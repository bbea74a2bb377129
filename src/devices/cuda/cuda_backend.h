// The backend of NVIDIA's devices: a program is a module of kernels and a list of steps, a binding
// what each step is called with. The first call of those that queue that does not succeed is
// remembered, nothing is queued after it, and finish says it. Private to the cuda room.
#pragma once

#include "attention.h"
#include "device.h"
#include "mover.h"
#include "needs.h"
#include "piper/devices/cuda.h"
#include "product.h"

namespace piper::cuda {

struct LoadedProgram {
  std::string label;
  DeviceProgram program;
  CuModule* module = nullptr;          // null: there are no kernels
  std::vector<CuFunction*> functions;  // by kernel
  std::byte* literals = nullptr;
};

struct Call {
  const DeviceStep* step = nullptr;
  size_t first = 0;      // of its operands' addresses
  int32_t product = -1;  // of Products or Attentions, where it is one
};
struct Binding {
  const LoadedProgram* program = nullptr;
  std::vector<Call> calls;
  std::vector<std::byte*> addresses;
  std::byte* scratch = nullptr;  // of products
};

// Says what went wrong first; nothing is allocated to remember it.
struct Failure {
  const char* call = nullptr;  // null: nothing
  int code = 0;
  enum Owner : uint8_t { kDriver, kProducts, kAttentions } owner = kDriver;  // of the code
  const LoadedProgram* program = nullptr;                                    // null: none
  int32_t op = 0;
};

inline CuAddress address_of(const std::byte* at) { return reinterpret_cast<CuAddress>(at); }

class Cuda final : public Backend {
 public:
  Cuda(std::unique_ptr<Device> device, CudaOptions options, AlgorithmTable algorithms)
      : device_(std::move(device)),
        driver_(device_->driver()),
        options_(std::move(options)),
        algorithms_(std::move(algorithms)) {}
  ~Cuda() override {
    device_->enter();
    driver_.cuCtxSynchronize();
    device_->end_graphs();
    products_.reset();
    mover_.reset();
    attentions_.reset();
    for (const auto& program : programs_)
      if (program->module) driver_.cuModuleUnload(program->module);
  }

  std::string_view name() const override { return "cuda"; }
  bool is_asynchronous() const override { return true; }
  bool shares_memory() const override { return false; }

  std::string device() const override { return device_->facts().name; }
  Status reserve(int64_t bytes) override { return device_->reserve(bytes); }
  Taken taken() const override { return device_->taken(); }
  std::optional<int64_t> free_bytes() const override { return device_->free_bytes(); }
  Result<std::byte*> allocate(int64_t bytes, Space space) override {
    return device_->allocate(bytes, space == Space::kHost);
  }
  RoleProgram prepare(RoleProgram role) const override {
    return prepared_for_cuda(std::move(role));
  }
  Result<int32_t> load(const Program& program) override {
    PIPER_ASSIGN(const std::vector<int32_t> loaded, load_all({&program, 1}));
    return loaded[0];
  }
  Result<std::vector<int32_t>> load_all(std::span<const Program> programs) override;
  int64_t workspace_bytes(int32_t program) const override {
    return workspace_of(programs_[static_cast<size_t>(program)]->program);
  }
  Result<int32_t> bind(int32_t program, std::span<std::byte* const> args,
                       std::byte* workspace) override;

  void launch(int32_t binding, int32_t stream) override {
    if (!can_go_on()) return;
    const Binding& bound = bindings_[static_cast<size_t>(binding)];
    for (const Call& call : bound.calls)
      if (!run(bound, call, device_->stream(stream))) return;
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes, int32_t stream) override {
    if (to == from || bytes <= 0 || !can_go_on()) return;
    note("cuMemcpyAsync",
         driver_.cuMemcpyAsync(address_of(to), address_of(from), static_cast<size_t>(bytes),
                               device_->stream(stream)));
  }
  Status meet(const Backend& other) override { return device_->meet(device_of(other)); }
  void copy_from(const Backend& other, std::byte* to, const std::byte* from, int64_t bytes,
                 int32_t stream) override {
    const Device& owner = device_of(other);
    if (device_->is_same_as(owner)) return copy(to, from, bytes, stream);
    if (bytes <= 0 || !can_go_on()) return;
    // This call does without access to the other device's memory, which plain copies need.
    note("cuMemcpyPeerAsync",
         driver_.cuMemcpyPeerAsync(address_of(to), device_->context(), address_of(from),
                                   owner.context(), static_cast<size_t>(bytes),
                                   device_->stream(stream)));
  }
  void fill(std::byte* to, const TensorType& type, double value, int32_t stream) override;
  void move(const StridedMove& move, int32_t stream) override {
    if (!can_go_on()) return;
    if (!mover_) return Backend::move(move, stream);
    note("cuLaunchKernel", mover_->run(move, device_->stream(stream)));
  }

  Result<int32_t> add_stream(const Stream& wanted) override;
  Result<int32_t> add_event() override { return device_->add_event(); }
  void record(int32_t event, int32_t stream) override {
    if (!can_go_on()) return;
    note("cuEventRecord", driver_.cuEventRecord(device_->event(event), device_->stream(stream)));
  }
  void wait(int32_t event, int32_t stream) override {
    if (!can_go_on()) return;
    note("cuStreamWaitEvent",
         driver_.cuStreamWaitEvent(device_->stream(stream), device_->event(event), 0));
  }
  void wait_for(const Backend& other, int32_t event, int32_t stream) override {
    if (!can_go_on()) return;
    note("cuStreamWaitEvent",
         driver_.cuStreamWaitEvent(device_->stream(stream), device_of(other).event(event), 0));
  }
  Result<bool> is_done(int32_t event) override {
    if (!can_go_on()) return told_or(true);
    const int code = driver_.cuEventQuery(device_->event(event));
    if (code != kErrorNotReady) note("cuEventQuery", code);
    return told_or(code == 0);
  }
  Result<std::unique_ptr<Fabric>> make_fabric(const FabricSource& source) override;
  Status finish(int32_t event) override {
    if (can_go_on()) note("cuEventSynchronize", driver_.cuEventSynchronize(device_->event(event)));
    return told();
  }

  bool keeps_times() const override { return true; }
  Result<int32_t> add_timed_event() override { return device_->add_event(true); }
  double microseconds(int32_t from, int32_t to) override {
    if (!can_go_on()) return 0;
    float milliseconds = 0;
    note("cuEventElapsedTime",
         driver_.cuEventElapsedTime(&milliseconds, device_->event(from), device_->event(to)));
    return 1e3 * static_cast<double>(milliseconds);
  }

  bool can_capture() const override { return !device_->without().graphs; }
  Status begin_capture(int32_t stream) override {
    device_->enter();
    PIPER_TRY(told());
    is_capturing_ = note("cuStreamBeginCapture",
                         driver_.cuStreamBeginCapture_v2(device_->stream(stream), kCaptureThread));
    return ok_status();
  }
  Result<int32_t> end_capture(int32_t stream) override;
  void launch_graph(int32_t graph, int32_t stream) override {
    if (!can_go_on()) return;
    note("cuGraphLaunch", driver_.cuGraphLaunch(device_->graph(graph), device_->stream(stream)));
  }

 private:
  static const Device& device_of(const Backend& other) {
    return *static_cast<const Cuda&>(other).device_;
  }
  Status load_code(LoadedProgram& loaded, const std::string& code);
  Status store_literals(LoadedProgram& loaded);
  Status find_functions(LoadedProgram& loaded);
  Result<std::byte*> scratch_for(std::byte* workspace);
  static std::byte* place_of(const LoadedProgram& loaded, const DeviceOperand& operand,
                             std::span<std::byte* const> args, std::byte* workspace);
  Status bind_product(const LoadedProgram& loaded, const Binding& binding, Call& call);
  bool bind_attention(const LoadedProgram& loaded, const Binding& binding, std::byte* workspace,
                      Call& call);
  void add_calls(const LoadedProgram& loaded, std::span<std::byte* const> args,
                 std::byte* workspace, Binding& binding);
  bool run(const Binding& bound, const Call& call, CuStream* stream);
  // Nothing is queued after what has failed.
  bool can_go_on() const {
    device_->enter();
    return !device_->has_failed;
  }
  bool note(const char* call, int code, const LoadedProgram* program = nullptr, int32_t op = 0,
            Failure::Owner owner = Failure::kDriver) {
    if (code != 0 && !failure_.call) failure_ = {call, code, owner, program, op};
    device_->has_failed = failure_.call;
    return code == 0;
  }
  Status told();
  Result<bool> told_or(bool answer) {
    PIPER_TRY(told());
    return answer;
  }

  const std::unique_ptr<Device> device_;
  const Driver& driver_;
  const CudaOptions options_;
  const AlgorithmTable algorithms_;
  bool has_said_no_limits_ = false, is_capturing_ = false;
  std::unique_ptr<Products> products_;  // null: no program has any
  // Nothing before the first is bound; an error where no cuDNN can be had.
  std::optional<Result<std::unique_ptr<Attentions>>> attentions_;
  bool has_said_kernels_ = false;
  std::vector<std::unique_ptr<LoadedProgram>> programs_;
  std::vector<Binding> bindings_;
  std::map<std::byte*, std::byte*> scratch_;  // by workspace: who has that runs one after the other
  std::unique_ptr<Mover> mover_;              // null: there is no fabric
  Failure failure_;
};

}  // namespace piper::cuda
