// The CPU backend: a program is a list of kernels, a binding the list of their operands' addresses.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "dtypes.h"
#include "gemm.h"
#include "kernel.h"
#include "loop.h"
#include "pack.h"
#include "piper/base/memory.h"
#include "piper/devices/cpu.h"
#include "piper/devices/program.h"
#include "team.h"

namespace piper {
namespace {

using cpu::Kernel;
using cpu::KernelPtr;
using cpu::Use;

constexpr int64_t kMostBytes = int64_t{1} << 48;

struct AlignedFree {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBlock = std::unique_ptr<std::byte[], AlignedFree>;

// Large blocks are in large pages where the system grants them: a step walks through all of them,
// and looking up small pages takes some hundredths of its time.
AlignedBlock aligned_block(int64_t bytes) {
  constexpr size_t kLargePage = size_t{2} << 20, kWorthAPage = kLargePage / 8;
  auto size = static_cast<size_t>(align_up(bytes + 1));
  const size_t alignment = size < kWorthAPage ? size_t{kAlignment} : kLargePage;
  size = (size + alignment - 1) / alignment * alignment;
  std::byte* p = nullptr;
  void* block = nullptr;
  if (posix_memalign(&block, alignment, size) == 0) p = static_cast<std::byte*>(block);
  if (p && size >= kLargePage) madvise(p, size, MADV_HUGEPAGE);
  if (p) std::memset(p, 0, size);  // touched here, not in the first step
  return AlignedBlock(p);
}

struct LoadedProgram {
  int32_t num_args = 0;
  int64_t workspace_bytes = 0;
  std::vector<TensorType> arg_types;
  struct Op {
    KernelPtr kernel;
    int32_t first = 0;  // of its operands
  };
  std::vector<Op> ops;
  // Says where each operand is: in an argument, the workspace, the literals, or nowhere.
  struct Operand {
    enum Kind : uint8_t { kAbsent, kArg, kWorkspace, kLiteral } kind = kAbsent;
    int32_t arg = 0;
    int64_t at = 0;  // bytes
  };
  std::vector<Operand> operands;
  AlignedBlock literals;
};

struct Binding {
  const LoadedProgram* program = nullptr;
  std::vector<std::byte*> pointers;
};

// What the op table lets results be stored over, kernels must. What has no bytes is nowhere.
Status check_overlaps(const FusedProgram& program, const LocalPlaces& lie,
                      std::span<const KernelPtr> kernels) {
  const std::vector<int32_t> bases = program.bases();
  for (size_t i = 0; i < kernels.size(); ++i)
    for (int32_t out : program.ops[i].outputs)
      for (size_t k = 0; k < program.ops[i].inputs.size(); ++k) {
        const int32_t in = program.ops[i].inputs[k];
        const int64_t from = in < 0 ? -1 : lie.offsets[bases[in]];
        PIPER_WANT(out < 0 || from < 0 || from != lie.offsets[out] ||
                       (k < 32 && (kernels[i]->in_place >> k & 1)) ||
                       program.values[out].bytes() == 0 || program.values[in].bytes() == 0,
                   "op {} {}: output {} overwrites input {}", i, program.ops[i].op, out, in);
      }
  return ok_status();
}

Error refused(int64_t bytes) {
  return fail("cannot allocate {}", human_bytes(bytes)).with_code(ExitCode::kStorage);
}

// Returns the processor's name as the system gives it.
std::string processor() {
  std::ifstream about("/proc/cpuinfo");
  constexpr std::string_view kName = "model name";
  for (std::string line; std::getline(about, line);)
    if (const size_t colon = line.find(": "); line.starts_with(kName) && colon != line.npos)
      return line.substr(colon + 2);
  return "a processor without a name";
}

class Cpu final : public CpuBackend {
 public:
  explicit Cpu(const CpuOptions& options)
      : products_(options.products ? *options.products : cpu_products()),
        fuses_(options.fuse),
        team_(options.threads, options.cores) {}
  std::string_view name() const override { return "cpu"; }

  // A plan says what its ops mean, whatever the device: a plan for another can be tried here.
  bool runs(std::string_view target) const override { return target == "cpu" || target == "cuda"; }
  bool keeps_within(std::string_view target) const override { return fuses_ && target == "cpu"; }
  RoleProgram prepare(RoleProgram role) const override {
    return fuses_ ? cpu::pack_weights(std::move(role)) : role;
  }

  std::string device() const override { return processor(); }
  Taken taken() const override {
    return {taken_.device + scratch_bytes_ * team_.size(), taken_.host};
  }
  Result<std::byte*> allocate(int64_t bytes, Space space) override {
    AlignedBlock block = bytes < 0 || bytes > kMostBytes ? nullptr : aligned_block(bytes);
    if (!block) return refused(bytes);
    (space == Space::kHost ? taken_.host : taken_.device) += bytes;
    blocks_.push_back(std::move(block));
    return blocks_.back().get();
  }

  Result<int32_t> load(const Program& program) override {
    FusedProgram wide{widened(taken_apart(program), cpu::takes_halves), {}};
    FuseCounts counts;
    return load(fuses_ ? fuse(std::move(wide), counts) : wide);
  }
  Result<int32_t> load(const FusedProgram& program) override {
    auto loaded = std::make_unique<LoadedProgram>();
    if (Status ok = load_into(program, *loaded); !ok) {
      Error error = std::move(ok).error();
      error.message = fmt::format("program '{}': {}", quote_control(program.label), error.message);
      if (error.code != ExitCode::kStorage) error.code = ExitCode::kPlan;
      return error;
    }
    programs_.push_back(std::move(loaded));
    return static_cast<int32_t>(programs_.size()) - 1;
  }

  int64_t workspace_bytes(int32_t program) const override {
    return programs_[program]->workspace_bytes;
  }

  Result<int32_t> bind(int32_t program, std::span<std::byte* const> args,
                       std::byte* workspace) override {
    PIPER_WANT(program >= 0 && static_cast<size_t>(program) < programs_.size(), "no program {}",
               program);
    const LoadedProgram& loaded = *programs_[program];
    PIPER_WANT(args.size() == static_cast<size_t>(loaded.num_args), "{} arguments for {}",
               args.size(), loaded.num_args);
    for (size_t i = 0; i < args.size(); ++i) {
      const auto address = reinterpret_cast<uintptr_t>(args[i]);
      PIPER_WANT(address != 0 && address % info(loaded.arg_types[i].dtype).bytes == 0,
                 "argument {} is not aligned", i);
    }
    PIPER_WANT(workspace || loaded.workspace_bytes == 0, "no workspace");
    Binding binding{&loaded, {}};
    binding.pointers.reserve(loaded.operands.size());
    for (const LoadedProgram::Operand& operand : loaded.operands) {
      binding.pointers.push_back(address_of(loaded, operand, args, workspace));
    }
    bindings_.push_back(std::move(binding));
    return static_cast<int32_t>(bindings_.size()) - 1;
  }

  void launch(int32_t binding, int32_t) override {
    const Binding& bound = bindings_[binding];
    for (const LoadedProgram::Op& op : bound.program->ops) {
      team_.run(*op.kernel, bound.pointers.data() + op.first, scratch_.get(), scratch_bytes_);
    }
  }

  void copy(std::byte* to, const std::byte* from, int64_t bytes, int32_t) override {
    if (to != from) std::memmove(to, from, static_cast<size_t>(bytes));
  }

  void fill(std::byte* to, const TensorType& type, double value, int32_t) override {
    cpu::fill_elements(to, type.dtype, num_elements(type.shape), value);
  }

 private:
  static std::byte* address_of(const LoadedProgram& loaded, const LoadedProgram::Operand& operand,
                               std::span<std::byte* const> args, std::byte* workspace) {
    switch (operand.kind) {
      case LoadedProgram::Operand::kAbsent:
        return nullptr;
      case LoadedProgram::Operand::kArg:
        return args[operand.arg] + operand.at;
      case LoadedProgram::Operand::kWorkspace:
        return workspace + operand.at;
      case LoadedProgram::Operand::kLiteral:
        break;
    }
    return loaded.literals.get() + operand.at;
  }

  Status load_into(const FusedProgram& program, LoadedProgram& loaded) {
    PIPER_ASSIGN(std::vector<KernelPtr> kernels, make_kernels(program));
    const LocalPlaces lie = place_locals(program);
    PIPER_TRY(check_overlaps(program, lie, kernels));
    loaded.num_args = program.num_args;
    loaded.workspace_bytes = lie.bytes;
    loaded.arg_types.assign(program.values.begin(), program.values.begin() + program.num_args);
    std::vector<LoadedProgram::Operand> places(program.values.size());
    for (size_t v = 0; v < places.size(); ++v) {
      const bool arg = static_cast<int32_t>(v) < program.num_args;
      places[v] =
          arg ? LoadedProgram::Operand{LoadedProgram::Operand::kArg, static_cast<int32_t>(v), 0}
              : LoadedProgram::Operand{LoadedProgram::Operand::kWorkspace, 0, lie.offsets[v]};
    }
    for (const ProgramView& view : program.views) {
      places[view.value] = places[view.base];
      places[view.value].at += view.offset;
    }
    PIPER_TRY(store_literals(program, loaded, places));
    int64_t scratch_bytes = 0;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      scratch_bytes = std::max(scratch_bytes, kernels[i]->scratch_bytes);
      loaded.ops.push_back({std::move(kernels[i]), static_cast<int32_t>(loaded.operands.size())});
      for (int32_t v : program.ops[i].inputs) loaded.operands.push_back(place(places, v));
      for (int32_t v : program.ops[i].outputs) loaded.operands.push_back(place(places, v));
    }
    return reserve_scratch(scratch_bytes);
  }

  Result<std::vector<KernelPtr>> make_kernels(const Program& program) const {
    std::vector<KernelPtr> kernels;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      Result<KernelPtr> kernel = make_kernel(program, program.ops[i]);
      if (!kernel) {
        Error error = std::move(kernel).error();
        error.message =
            fmt::format("op {} {}: {}", i, quote_control(program.ops[i].op), error.message);
        return error;
      }
      kernels.push_back(*std::move(kernel));
    }
    return kernels;
  }

  static LoadedProgram::Operand place(const std::vector<LoadedProgram::Operand>& places,
                                      int32_t v) {
    return v < 0 ? LoadedProgram::Operand{} : places[v];
  }

  static Status store_literals(const Program& program, LoadedProgram& loaded,
                               std::vector<LoadedProgram::Operand>& places) {
    int64_t bytes = 0;
    for (const auto& [value, text] : program.literals) {
      places[value] = {LoadedProgram::Operand::kLiteral, 0, bytes};
      bytes += align_up(static_cast<int64_t>(text.size()));
    }
    loaded.literals = aligned_block(bytes);
    if (!loaded.literals) return refused(bytes);
    for (const auto& [value, text] : program.literals) {
      std::memcpy(loaded.literals.get() + places[value].at, text.data(), text.size());
    }
    return ok_status();
  }

  Result<KernelPtr> make_kernel(const Program& program, const ProgramOp& op) const {
    const Use use{kernel_use(program, op), &products_};
    const cpu::Maker make = cpu::find_kernel(op.op);
    if (!make) {
      const std::vector<std::string> ops = cpu_ops();
      return fail("the cpu backend has no such op{}", did_you_mean(op.op, ops));
    }
    return make(use);
  }

  Status reserve_scratch(int64_t bytes) {
    if (bytes <= scratch_bytes_) return ok_status();
    PIPER_WANT(bytes <= kKernelScratchBytes, "a kernel needs {} for itself, more than {}",
               human_bytes(bytes), human_bytes(kKernelScratchBytes));
    bytes = align_up(bytes);
    scratch_ = aligned_block(bytes * team_.size());
    if (!scratch_) return refused(bytes * team_.size());
    scratch_bytes_ = bytes;
    return ok_status();
  }

  const ProductTable& products_;
  const bool fuses_;
  std::vector<AlignedBlock> blocks_;
  Taken taken_;  // by allocate
  std::vector<std::unique_ptr<LoadedProgram>> programs_;
  std::vector<Binding> bindings_;
  AlignedBlock scratch_;       // of the op that runs: ops run one after the other
  int64_t scratch_bytes_ = 0;  // for each thread
  cpu::Team team_;
};

}  // namespace

std::string_view cpu_kernels() { return cpu::gemm_target(); }

bool pin_to_core(int core) { return cpu::pin_thread(core); }

FusedProgram joined_for_cpu(const Program& program) {
  FuseCounts counts;
  return fuse(widened(taken_apart(program), cpu::takes_halves), counts);
}

Result<Needs> cpu_needs(const RoleProgram& role) {
  const std::unique_ptr<CpuBackend> backend = make_cpu_backend();
  const RoleProgram prepared = backend->prepare(role);
  std::vector<int64_t> bytes;
  for (const Program& program : prepared.programs) {
    PIPER_ASSIGN(const int32_t loaded, backend->load(program));
    bytes.push_back(backend->workspace_bytes(loaded));
  }
  return Needs{workspaces_of(prepared, bytes), prepared.arena_bytes - role.arena_bytes,
               has_groups(role) ? kTransportSlotBytes : 0, kKernelScratchBytes};
}

std::unique_ptr<CpuBackend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<Cpu>(options);
}

}  // namespace piper
