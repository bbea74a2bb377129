// The backend of NVIDIA's devices: its parts, and the work that it queues.
#include <cstring>

#include "compile.h"
#include "cuda_backend.h"
#include "nccl_links.h"
#include "piper/base/float16.h"
#include "piper/devices/collectives.h"

namespace piper::cuda {
namespace {

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

}  // namespace

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
    default:
      if (low == high) {
        note("cuMemsetD32Async", driver_.cuMemsetD32Async(at, low, 2 * count, on));
        return;
      }
      // The halves of each element are columns of two.
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
  if (std::exchange(is_capturing_, false))
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

}  // namespace piper::cuda

namespace piper {

Result<std::unique_ptr<Backend>> make_cuda_backend(CudaOptions options) {
  cuda::AlgorithmTable algorithms = cuda::algorithms_here();
  if (!options.products.empty()) {
    Result<cuda::AlgorithmTable> read = cuda::read_algorithms(options.products);
    if (!read) return fail("the table of products: {}", read.error().message);
    algorithms = *std::move(read);
  }
  PIPER_ASSIGN(std::unique_ptr<cuda::Device> device, cuda::Device::open(options.device));
  return std::unique_ptr<Backend>(
      std::make_unique<cuda::Cuda>(std::move(device), std::move(options), std::move(algorithms)));
}

}  // namespace piper
