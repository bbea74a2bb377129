// Loads programs onto a device, and binds their steps to addresses.
#include <cstring>
#include <limits>

#include "compile.h"
#include "cuda_backend.h"
#include "piper/base/parallel.h"

namespace piper::cuda {
namespace {

Error of_program(const std::string& label, Error error) {
  error.message = fmt::format("program '{}': {}", quote_control(label), error.message);
  return error;
}

}  // namespace

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

namespace {

Status check_bound(const DeviceProgram& program, std::span<std::byte* const> args,
                   const std::byte* workspace) {
  if (std::ssize(args) != program.fused.num_args)
    return fail("{} arguments for {}", args.size(), program.fused.num_args);
  for (size_t i = 0; i < args.size(); ++i)
    if (!args[i] || address_of(args[i]) % 16 != 0) return fail("argument {} is not aligned", i);
  if (!workspace && program.workspace_bytes > 0) return fail("no workspace");
  return ok_status();
}

}  // namespace

Result<int32_t> Cuda::bind(int32_t program, std::span<std::byte* const> args,
                           std::byte* workspace) {
  if (program < 0 || static_cast<size_t>(program) >= programs_.size())
    return fail("no program {}", program);
  const LoadedProgram& loaded = *programs_[static_cast<size_t>(program)];
  PIPER_TRY(check_bound(loaded.program, args, workspace));
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

}  // namespace piper::cuda
