// The CPU backend: a program is a list of kernels, a binding the list of their operands' addresses.
#include "piper/backend.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "dtypes.h"
#include "families.h"
#include "gemm.h"
#include "loop.h"
#include "team.h"

namespace piper {
namespace {

using cpu::Kernel;
using cpu::KernelPtr;
using cpu::Use;

constexpr size_t kAlignment = 64;
// Programs come from files: no shape may make sizes overflow.
constexpr int64_t kMaxElements = int64_t{1} << 48;

struct AlignedFree {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBlock = std::unique_ptr<std::byte[], AlignedFree>;

// Large blocks lie in large pages where the system grants them: a step walks through all of them,
// and looking up small pages takes some hundredths of its time.
AlignedBlock aligned_block(int64_t bytes) {
  constexpr size_t kLargePage = size_t{2} << 20, kWorthAPage = kLargePage / 8;
  size_t size = (static_cast<size_t>(bytes) + kAlignment) / kAlignment * kAlignment;
  const size_t alignment = size < kWorthAPage ? kAlignment : kLargePage;
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
  // Where each operand lies: in an argument, the workspace, the literals, or nowhere.
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

Status check_type(const TensorType& type) {
  PIPER_WANT(type.shape.size() <= cpu::kMaxRank, "{} has more than {} dims", to_string(type.shape),
             cpu::kMaxRank);
  int64_t elements = 1;
  for (int64_t extent : type.shape) {
    const int64_t size = std::max<int64_t>(extent, 1);  // no product of them overflows
    PIPER_WANT(extent >= 0 && elements <= kMaxElements / size, "{} is no size",
               to_string(type.shape));
    elements *= size;
  }
  return ok_status();
}

// Of bases that are arguments or in the workspace; marks the views.
Status check_views(const Program& program, std::vector<bool>& placed) {
  const size_t count = program.values.size();
  for (const ProgramView& view : program.views) {
    PIPER_WANT(view.value >= program.num_args && static_cast<size_t>(view.value) < count &&
                   !placed[view.value],
               "value {} is no view", view.value);
    placed[view.value] = true;
  }
  for (const ProgramView& view : program.views) {
    PIPER_WANT(view.base >= 0 && static_cast<size_t>(view.base) < count &&
                   (view.base < program.num_args || !placed[view.base]),
               "a view of value {}", view.base);
    const TensorType& type = program.values[view.value];
    const int64_t beyond = program.values[view.base].bytes() - type.bytes();
    PIPER_WANT(
        view.offset >= 0 && view.offset <= beyond && view.offset % info(type.dtype).bytes == 0,
        "view {} lies outside value {}", view.value, view.base);
  }
  return ok_status();
}

Status check_values(const Program& program) {
  const size_t count = program.values.size();
  PIPER_WANT(program.num_args >= 0 && static_cast<size_t>(program.num_args) <= count &&
                 program.offsets.size() == count,
             "lists of values of different lengths");
  std::vector<bool> placed(count, false);
  std::fill_n(placed.begin(), program.num_args, true);
  for (size_t v = 0; v < count; ++v) PIPER_TRY(check_type(program.values[v]));
  for (const auto& [value, bytes] : program.literals) {
    PIPER_WANT(value >= program.num_args && static_cast<size_t>(value) < count && !placed[value] &&
                   static_cast<int64_t>(bytes.size()) == program.values[value].bytes(),
               "literal {} does not match its value", value);
    placed[value] = true;
  }
  PIPER_TRY(check_views(program, placed));
  for (size_t v = 0; v < count; ++v) {
    if (placed[v]) continue;
    const int64_t offset = program.offsets[v];
    const int64_t bytes = program.values[v].bytes();
    PIPER_WANT(offset >= 0 && offset % info(program.values[v].dtype).bytes == 0 &&
                   bytes <= program.workspace_bytes && offset <= program.workspace_bytes - bytes,
               "value {} lies outside the workspace", v);
  }
  return ok_status();
}

Result<Use> make_use(const Program& program, const ProgramOp& op) {
  Use use{op.op, op.attrs, {}, {}, {}, {}, nullptr};
  const auto count = static_cast<int32_t>(program.values.size());
  auto add = [&](const std::vector<int32_t>& ids, std::vector<TensorType>& types,
                 std::vector<bool>& there) -> Status {
    for (int32_t id : ids) {
      PIPER_WANT(id >= -1 && id < count, "names value {} of {}", id, count);
      types.push_back(id < 0 ? TensorType{} : program.values[id]);
      there.push_back(id >= 0);
    }
    return ok_status();
  };
  PIPER_TRY(add(op.inputs, use.inputs, use.present));
  PIPER_TRY(add(op.outputs, use.outputs, use.wanted));
  return use;
}

// An output may share memory with an input only as a whole, and only where the kernel says so.
Status check_overlap(const Program& program, const ProgramOp& op, uint32_t in_place) {
  // Of a local or a view of one, else -1.
  auto place = [&](int32_t v) -> int64_t {
    if (v < program.num_args) return -1;
    for (const ProgramView& view : program.views) {
      if (view.value != v) continue;
      return view.base < program.num_args ? -1 : program.offsets[view.base] + view.offset;
    }
    return program.offsets[v];
  };
  for (int32_t out : op.outputs) {
    const int64_t begin = place(out);
    if (begin < 0) continue;
    const int64_t bytes = program.values[out].bytes();
    for (size_t i = 0; i < op.inputs.size(); ++i) {
      const int32_t in = op.inputs[i];
      const int64_t at = place(in);
      if (at < 0) continue;
      const TensorType& type = program.values[in];
      if (at >= begin + bytes || begin >= at + type.bytes()) continue;
      const bool same = at == begin && type.bytes() == bytes &&
                        info(type.dtype).bytes == info(program.values[out].dtype).bytes;
      PIPER_WANT(same && i < 32 && (in_place >> i & 1),
                 "output {} overlaps input {} in the workspace", out, in);
    }
  }
  return ok_status();
}

Error refused(int64_t bytes) {
  return fail("cannot allocate {}", human_bytes(bytes)).with_code(ExitCode::kStorage);
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(const CpuOptions& options)
      : products_(options.products ? *options.products : cpu_products()),
        team_(options.threads, options.cores) {}
  std::string_view name() const override { return "cpu"; }

  Result<std::byte*> allocate(int64_t bytes, Space) override {
    AlignedBlock block = bytes < 0 || bytes > kMaxElements ? nullptr : aligned_block(bytes);
    if (!block) return refused(bytes);
    blocks_.push_back(std::move(block));
    return blocks_.back().get();
  }

  Result<int32_t> load(const Program& program) override {
    auto loaded = std::make_unique<LoadedProgram>();
    if (Status ok = prepare(program, *loaded); !ok) {
      Error error = std::move(ok).error();
      error.message = fmt::format("program '{}': {}", quote_control(program.label), error.message);
      if (error.code != ExitCode::kStorage) error.code = ExitCode::kPlan;
      return error;
    }
    programs_.push_back(std::move(loaded));
    return static_cast<int32_t>(programs_.size()) - 1;
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

  Status prepare(const Program& program, LoadedProgram& loaded) {
    PIPER_TRY(check_values(program));
    loaded.num_args = program.num_args;
    loaded.workspace_bytes = program.workspace_bytes;
    loaded.arg_types.assign(program.values.begin(), program.values.begin() + program.num_args);
    std::vector<LoadedProgram::Operand> places(program.values.size());
    for (size_t v = 0; v < places.size(); ++v) {
      const bool arg = static_cast<int32_t>(v) < program.num_args;
      places[v] =
          arg ? LoadedProgram::Operand{LoadedProgram::Operand::kArg, static_cast<int32_t>(v), 0}
              : LoadedProgram::Operand{LoadedProgram::Operand::kWorkspace, 0, program.offsets[v]};
    }
    for (const ProgramView& view : program.views) {
      places[view.value] = places[view.base];
      places[view.value].at += view.offset;
    }
    PIPER_TRY(store_literals(program, loaded, places));
    int64_t scratch_bytes = 0;
    for (size_t i = 0; i < program.ops.size(); ++i) {
      const ProgramOp& op = program.ops[i];
      Result<KernelPtr> kernel = prepare_op(program, op);
      if (!kernel) {
        Error error = std::move(kernel).error();
        error.message = fmt::format("op {} {}: {}", i, quote_control(op.op), error.message);
        return error;
      }
      scratch_bytes = std::max(scratch_bytes, (*kernel)->scratch_bytes);
      loaded.ops.push_back({*std::move(kernel), static_cast<int32_t>(loaded.operands.size())});
      for (int32_t v : op.inputs) loaded.operands.push_back(place(places, v));
      for (int32_t v : op.outputs) loaded.operands.push_back(place(places, v));
    }
    return reserve_scratch(scratch_bytes);
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
      bytes += (static_cast<int64_t>(text.size()) + 63) / 64 * 64;
    }
    loaded.literals = aligned_block(bytes);
    if (!loaded.literals) return refused(bytes);
    for (const auto& [value, text] : program.literals) {
      std::memcpy(loaded.literals.get() + places[value].at, text.data(), text.size());
    }
    return ok_status();
  }

  Result<KernelPtr> prepare_op(const Program& program, const ProgramOp& op) const {
    PIPER_ASSIGN(Use use, make_use(program, op));
    use.products = &products_;
    const cpu::Maker make = cpu::find_kernel(op.op);
    if (!make) {
      const std::vector<std::string> ops = cpu_ops();
      return fail("the cpu backend has no such op{}", did_you_mean(op.op, ops));
    }
    PIPER_ASSIGN(KernelPtr kernel, make(use));
    PIPER_TRY(check_overlap(program, op, kernel->in_place));
    return kernel;
  }

  Status reserve_scratch(int64_t bytes) {
    if (bytes <= scratch_bytes_) return ok_status();
    PIPER_WANT(bytes <= kKernelScratchBytes, "a kernel needs {} for itself, more than {}",
               human_bytes(bytes), human_bytes(kKernelScratchBytes));
    bytes = (bytes + 63) / 64 * 64;
    scratch_ = aligned_block(bytes * team_.size());
    if (!scratch_) return refused(bytes * team_.size());
    scratch_bytes_ = bytes;
    return ok_status();
  }

  const ProductTable& products_;
  std::vector<AlignedBlock> blocks_;
  std::vector<std::unique_ptr<LoadedProgram>> programs_;
  std::vector<Binding> bindings_;
  AlignedBlock scratch_;       // of the op that runs: ops run one after the other
  int64_t scratch_bytes_ = 0;  // for each thread
  cpu::Team team_;
};

}  // namespace

std::string_view cpu_kernels() { return cpu::gemm_target(); }

bool pin_to_core(int core) { return cpu::pin_thread(core); }

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<CpuBackend>(options);
}

}  // namespace piper
