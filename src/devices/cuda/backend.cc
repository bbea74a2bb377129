// The backend of NVIDIA's devices: a program is a module of kernels and a list of steps, a binding
// what each step is called with. The first call of those that queue that does not succeed is
// remembered, nothing is queued after it, and finish says it.
#include <cstring>
#include <limits>

#include "attention.h"
#include "compile.h"
#include "device.h"
#include "mover.h"
#include "nccl_links.h"
#include "needs.h"
#include "piper/base/float16.h"
#include "piper/base/parallel.h"
#include "piper/devices/collectives.h"
#include "piper/devices/cuda.h"
#include "product.h"

namespace piper {
namespace {

using namespace cuda;  // NOLINT: this room's own

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

// Returns the bits of one element.
uint64_t element_of(DType dtype, double value) {
  const auto bits_of = [](auto number) {
    uint64_t bits = 0;
    std::memcpy(&bits, &number, sizeof number);
    return bits;
  };
  switch (dtype) {
    case DType::kF64:
      return bits_of(value);
    case DType::kF32:
      return bits_of(static_cast<float>(value));
    case DType::kI64:
      return bits_of(static_cast<int64_t>(value));
    case DType::kI32:
      return bits_of(static_cast<int32_t>(value));
    case DType::kBool:
      return value != 0 ? 1 : 0;
    default:
      break;
  }
  const auto wide = static_cast<float>(value);
  uint16_t half = 0;
  round_to_halves(dtype, &wide, reinterpret_cast<std::byte*>(&half), 1);
  return half;
}

CuAddress address_of(const std::byte* at) { return reinterpret_cast<CuAddress>(at); }

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
    PIPER_CU(driver_, cuStreamBeginCapture_v2, device_->stream(stream), kCaptureThread);
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
  bool has_said_no_limits_ = false;
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

// ---- Programs -----------------------------------------------------------------------------------

Error of_program(const std::string& label, Error error) {
  error.message = fmt::format("program '{}': {}", quote_control(label), error.message);
  return error;
}

Result<std::vector<int32_t>> Cuda::load_all(std::span<const Program> programs) {
  device_->enter();
  std::vector<std::unique_ptr<LoadedProgram>> loaded(programs.size());
  std::vector<Status> made(programs.size(), ok_status());
  in_parallel(programs.size(), [&](size_t p) {
    Result<DeviceProgram> program = cuda_program(programs[p]);
    if (program)
      loaded[p] = std::make_unique<LoadedProgram>(programs[p].label, *std::move(program));
    else
      made[p] = std::move(program).error();
  });
  for (Status& status : made) PIPER_TRY(std::move(status));
  std::vector<CompileSource> sources;
  for (const auto& each : loaded)
    if (!each->program.source.empty()) sources.push_back({each->label, each->program.source});
  std::vector<std::string> codes;
  if (!sources.empty()) {
    PIPER_ASSIGN(const Opened<Nvrtc>* nvrtc, opened<Nvrtc>());
    const Facts& facts = device_->facts();
    PIPER_ASSIGN(codes, compile(*nvrtc, sources, fmt::format("{}{}", facts.major, facts.minor),
                                cache_folder(), options_.note));
  }
  std::vector<int32_t> numbers;
  size_t next = 0;
  for (auto& each : loaded) {
    LoadedProgram& one = *each;
    numbers.push_back(static_cast<int32_t>(programs_.size()));
    programs_.push_back(std::move(each));
    const auto prepare = [&]() -> Status {
      if (!one.program.source.empty()) PIPER_TRY(load_code(one, codes[next++]));
      return store_literals(one);
    };
    if (Status status = prepare(); !status) return of_program(one.label, std::move(status).error());
  }
  return numbers;
}

Status Cuda::load_code(LoadedProgram& loaded, const std::string& code) {
  PIPER_CU(driver_, cuModuleLoadDataEx, &loaded.module, code.data(), 0, nullptr, nullptr);
  return find_functions(loaded);
}

Status Cuda::find_functions(LoadedProgram& loaded) {
  constexpr int64_t kAlwaysAllowed = 48 << 10;
  struct Found {
    CuFunction* function = nullptr;
    int fixed = 0;        // bytes of shared memory that its text declares
    int64_t allowed = 0;  // bytes beside these that a launch may ask for
  };
  std::map<std::string, Found> by_name;
  for (const DeviceKernel& kernel : loaded.program.kernels) {
    if (kernel.blocks > std::numeric_limits<int32_t>::max())
      return fail("not supported: a kernel of {} blocks", kernel.blocks);
    auto& [function, fixed, allowed] = by_name[kernel.name];
    if (!function) {
      PIPER_CU(driver_, cuModuleGetFunction, &function, loaded.module, kernel.name.c_str());
      PIPER_CU(driver_, cuFuncGetAttribute, &fixed, kFunctionFixedShared, function);
      allowed = kAlwaysAllowed - fixed;
    }
    if (fixed + kernel.shared_bytes > device_->facts().most_shared)
      return fail("a kernel takes {} of shared memory, and a block of the {} has {}",
                  human_bytes(fixed + kernel.shared_bytes), device_->facts().name,
                  human_bytes(device_->facts().most_shared));
    if (kernel.shared_bytes > allowed) {
      allowed = kernel.shared_bytes;
      PIPER_CU(driver_, cuFuncSetAttribute, function, kFunctionShared, static_cast<int>(allowed));
    }
    loaded.functions.push_back(function);
  }
  return ok_status();
}

Status Cuda::store_literals(LoadedProgram& loaded) {
  const std::string& bytes = loaded.program.literals;
  if (bytes.empty()) return ok_status();
  PIPER_ASSIGN(loaded.literals, allocate(std::ssize(bytes), Space::kDevice));
  PIPER_CU(driver_, cuMemcpyAsync, address_of(loaded.literals),
           reinterpret_cast<CuAddress>(bytes.data()), bytes.size(), device_->stream(0));
  PIPER_CU(driver_, cuStreamSynchronize, device_->stream(0));
  return ok_status();
}

// ---- Bindings -----------------------------------------------------------------------------------

std::byte* Cuda::place_of(const LoadedProgram& loaded, const DeviceOperand& operand,
                          std::span<std::byte* const> args, std::byte* workspace) {
  switch (operand.kind) {
    case DeviceOperand::kAbsent:
      return nullptr;
    case DeviceOperand::kArgument:
      return args[static_cast<size_t>(operand.argument)] + operand.offset;
    case DeviceOperand::kWorkspace:
      return workspace + operand.offset;
    case DeviceOperand::kLiteral:
      break;
  }
  return loaded.literals + operand.offset;
}

// Products on one workspace run one after the other, and have one scratch.
Result<std::byte*> Cuda::scratch_for(std::byte* workspace) {
  if (const auto known = scratch_.find(workspace); workspace && known != scratch_.end())
    return known->second;
  PIPER_ASSIGN(std::byte* const made, allocate(kProductScratch, Space::kDevice));
  scratch_[workspace] = made;
  return made;
}

Status Cuda::bind_product(const LoadedProgram& loaded, const Binding& binding, Call& call) {
  const DeviceStep& step = *call.step;
  if (!products_) {
    PIPER_ASSIGN(products_, Products::open(*device_, algorithms_));
  }
  const std::span operands(binding.addresses.data() + call.first, step.operands.size());
  PIPER_ASSIGN(call.product,
               products_->bind(loaded.program.products[static_cast<size_t>(step.index)], operands));
  return ok_status();
}

// Returns whether cuDNN does it; if not, the steps after it do.
bool Cuda::bind_attention(const LoadedProgram& loaded, const Binding& binding, std::byte* workspace,
                          Call& call) {
  const DeviceStep& step = *call.step;
  if (!attentions_) attentions_ = Attentions::open(*device_);
  const auto bound = [&]() -> Result<int32_t> {
    if (!*attentions_) return attentions_->error();
    return (**attentions_)
        ->bind(loaded.program.attentions[static_cast<size_t>(step.index)],
               std::span(binding.addresses.data() + call.first, step.operands.size()),
               place_of(loaded, step.workspace, {}, workspace));
  }();
  if (bound) call.product = *bound;
  if (!bound && !std::exchange(has_said_kernels_, true) && options_.note)
    options_.note("attention by slower kernels, without cuDNN: " + bound.error().message);
  return bound.ok();
}

// Adds the steps that are run: of an attention, those with cuDNN or those instead.
void Cuda::add_calls(const LoadedProgram& loaded, std::span<std::byte* const> args,
                     std::byte* workspace, Binding& binding) {
  const std::vector<DeviceStep>& steps = loaded.program.steps;
  const auto placed = [&](const DeviceStep& step) {
    const Call call{&step, binding.addresses.size()};
    for (const DeviceOperand& operand : step.operands)
      binding.addresses.push_back(place_of(loaded, operand, args, workspace));
    return call;
  };
  for (size_t s = 0; s < steps.size(); ++s) {
    const DeviceStep& step = steps[s];
    Call call = placed(step);
    if (step.kind != DeviceStep::kAttention) {
      binding.calls.push_back(call);
      continue;
    }
    const size_t after = s + 1 + static_cast<size_t>(step.before),
                 instead = after + static_cast<size_t>(step.after);
    if (!bind_attention(loaded, binding, workspace, call)) {
      s = instead - 1;
      continue;
    }
    for (++s; s < after; ++s) binding.calls.push_back(placed(steps[s]));
    binding.calls.push_back(call);
    for (; s < instead; ++s) binding.calls.push_back(placed(steps[s]));
    s += static_cast<size_t>(step.instead) - 1;
  }
}

Result<int32_t> Cuda::bind(int32_t program, std::span<std::byte* const> args,
                           std::byte* workspace) {
  if (program < 0 || static_cast<size_t>(program) >= programs_.size())
    return fail("no program {}", program);
  const LoadedProgram& loaded = *programs_[static_cast<size_t>(program)];
  if (args.size() != static_cast<size_t>(loaded.program.fused.num_args))
    return fail("{} arguments for {}", args.size(), loaded.program.fused.num_args);
  for (size_t i = 0; i < args.size(); ++i)
    if (!args[i] || address_of(args[i]) % 16 != 0) return fail("argument {} is not aligned", i);
  if (!workspace && loaded.program.workspace_bytes > 0) return fail("no workspace");
  device_->enter();
  Binding binding{&loaded, {}, {}, nullptr};
  add_calls(loaded, args, workspace, binding);
  for (Call& call : binding.calls) {
    if (call.step->kind != DeviceStep::kProduct) continue;
    if (Status bound = bind_product(loaded, binding, call); !bound)
      return of_program(loaded.label, std::move(bound).error());
  }
  if (!loaded.program.products.empty()) {
    PIPER_ASSIGN(binding.scratch, scratch_for(workspace));
  }
  bindings_.push_back(std::move(binding));
  return static_cast<int32_t>(bindings_.size()) - 1;
}

// ---- What is queued -----------------------------------------------------------------------------

bool Cuda::run(const Binding& bound, const Call& call, CuStream* stream) {
  const LoadedProgram& loaded = *bound.program;
  const DeviceStep& step = *call.step;
  std::byte* const* operands = bound.addresses.data() + call.first;
  switch (step.kind) {
    case DeviceStep::kKernel: {
      const DeviceKernel& kernel = loaded.program.kernels[static_cast<size_t>(step.index)];
      void* parameter = const_cast<std::byte**>(operands);  // the one that a kernel has, read here
      return note("cuLaunchKernel",
                  driver_.cuLaunchKernel(loaded.functions[static_cast<size_t>(step.index)],
                                         static_cast<unsigned>(kernel.blocks), 1, 1,
                                         static_cast<unsigned>(kernel.threads), 1, 1,
                                         static_cast<unsigned>(kernel.shared_bytes), stream,
                                         &parameter, nullptr),
                  &loaded, step.op);
    }
    case DeviceStep::kProduct:
      return note("cublasLtMatmul", products_->run(call.product, bound.scratch, stream), &loaded,
                  step.op, Failure::kProducts);
    case DeviceStep::kAttention:
      return note("cudnnBackendExecute", (**attentions_)->run(call.product, stream), &loaded,
                  step.op, Failure::kAttentions);
    case DeviceStep::kCopy:
      return note("cuMemcpyAsync",
                  driver_.cuMemcpyAsync(address_of(operands[1]), address_of(operands[0]),
                                        static_cast<size_t>(step.bytes), stream),
                  &loaded, step.op);
    case DeviceStep::kZero:
      return note("cuMemsetD8Async",
                  driver_.cuMemsetD8Async(address_of(operands[0]), 0,
                                          static_cast<size_t>(step.bytes), stream),
                  &loaded, step.op);
  }
  return false;
}

void Cuda::fill(std::byte* to, const TensorType& type, double value, int32_t stream) {
  const auto count = static_cast<size_t>(num_elements(type.shape));
  if (count == 0 || !can_go_on()) return;
  const uint64_t bits = element_of(type.dtype, value);
  const auto low = static_cast<unsigned>(bits), high = static_cast<unsigned>(bits >> 32);
  const CuAddress at = address_of(to);
  CuStream* on = device_->stream(stream);
  switch (info(type.dtype).bytes) {
    case 1:
      note("cuMemsetD8Async",
           driver_.cuMemsetD8Async(at, static_cast<unsigned char>(bits), count, on));
      return;
    case 2:
      note("cuMemsetD16Async",
           driver_.cuMemsetD16Async(at, static_cast<unsigned short>(bits), count, on));
      return;
    case 4:
      note("cuMemsetD32Async", driver_.cuMemsetD32Async(at, low, count, on));
      return;
    default:  // the halves of each element are columns of two
      note("cuMemsetD2D32Async", driver_.cuMemsetD2D32Async(at, 8, low, 1, count, on));
      note("cuMemsetD2D32Async", driver_.cuMemsetD2D32Async(at + 4, 8, high, 1, count, on));
  }
}

Result<int32_t> Cuda::add_stream(const Stream& wanted) {
  if (wanted.sms > 0 && !device_->keeps_limits() && !std::exchange(has_said_no_limits_, true) &&
      options_.note)
    options_.note("the driver sets no multiprocessors apart: SM limits of streams have no effect");
  return device_->add_stream(wanted, options_.note);
}

Result<std::unique_ptr<Fabric>> Cuda::make_fabric(const FabricSource& source) {
  if (source.control.world() == 1) return std::unique_ptr<Fabric>();
  PIPER_ASSIGN(mover_, Mover::open(*device_, options_.note));
  std::unique_ptr<Links> links;
  if (source.local.empty()) {
    PIPER_ASSIGN(links, make_nccl_links(*device_, source, options_.note));
  } else {
    if (options_.note && has_fast_sums(source.role))
      options_.note(
          "sums that the plans call fast are formed in rank order: NCCL has no two ranks of one "
          "process");
    links = make_local_links(*this, source);
  }
  PIPER_ASSIGN(FabricNeeds needs, fabric_needs(source.role));
  return make_device_fabric(*this, source.control, std::move(links), std::move(needs.blocks),
                            kMostSlotBytes, std::move(needs.workspaces), needs.connect_scratch);
}

Result<int32_t> Cuda::end_capture(int32_t stream) {
  device_->enter();
  CuGraph* graph = nullptr;
  note("cuStreamEndCapture", driver_.cuStreamEndCapture(device_->stream(stream), &graph));
  Status captured = told();
  CuGraphExec* made = nullptr;
  if (captured)
    captured = checked(driver_, "cuGraphInstantiateWithFlags",
                       driver_.cuGraphInstantiateWithFlags(&made, graph, 0));
  if (graph) driver_.cuGraphDestroy(graph);
  PIPER_TRY(std::move(captured));
  return device_->add_graph(made);
}

Status Cuda::told() {
  const Failure failure = std::exchange(failure_, {});
  device_->has_failed = false;
  if (!failure.call) return ok_status();
  const auto status_of_library = [&] {
    const char* name = failure.owner == Failure::kProducts ? products_->name_of(failure.code)
                                                           : (**attentions_)->name_of(failure.code);
    return fail("{}: {} ({})", failure.call, name ? name : "an unknown status", failure.code);
  };
  Error error = failure.owner != Failure::kDriver
                    ? status_of_library()
                    : failed_call(driver_, failure.call, failure.code);
  if (failure.program) {
    const auto& ops = failure.program->program.fused.ops;
    error.message = fmt::format("program '{}': op {} {}: {}", quote_control(failure.program->label),
                                failure.op, ops[static_cast<size_t>(failure.op)].op, error.message);
  }
  return std::move(error).with_code(ExitCode::kStorage);
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cuda_backend(CudaOptions options) {
  AlgorithmTable algorithms = algorithms_here();
  if (!options.products.empty()) {
    Result<AlgorithmTable> read = read_algorithms(options.products);
    if (!read) return fail("the table of products: {}", read.error().message);
    algorithms = *std::move(read);
  }
  PIPER_ASSIGN(std::unique_ptr<Device> device, Device::open(options.device));
  return std::unique_ptr<Backend>(
      std::make_unique<Cuda>(std::move(device), std::move(options), std::move(algorithms)));
}

}  // namespace piper
