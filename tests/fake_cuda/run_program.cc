#include "run_program.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "elements.h"

namespace piper::emulator {
namespace {

const std::string kFolder = std::string(PIPER_BINARY_DIR) + "/cuda_cache";

// Memory of its own, so that nothing lies beside it that an access could meet by mistake.
struct Block {
  explicit Block(int64_t bytes) : memory(static_cast<size_t>(bytes) + 2 * kAround, '\xff') {
    const size_t past = reinterpret_cast<uintptr_t>(memory.data()) % kAround;
    data = memory.data() + kAround - past;
  }
  static constexpr size_t kAround = 256;
  std::vector<char> memory;
  char* data = nullptr;
};

double activated(DeviceProduct::Activation activation, double x) {
  if (activation != DeviceProduct::kGeluTanh) return x;
  const double slope = std::sqrt(2 / M_PI);
  return 0.5 * x * (1 + std::tanh(slope * (x + 0.044715 * x * x * x)));
}

class ProgramRun {
 public:
  explicit ProgramRun(const DeviceProgram& program) : program_(program) {}
  Status start(std::span<const Bytes> arguments);
  Status run(Module* kernels, const Order& order);
  Result<std::vector<Bytes>> take();

 private:
  char* address(const DeviceOperand& operand) const;
  Status touch(const DeviceOperand& operand, int64_t bytes, Access access);
  Status run_product(const DeviceStep& step);
  Status run_step(const DeviceStep& step, Module* kernels, const Order& order);

  const DeviceProgram& program_;
  WatchedMemory memory_;
  std::vector<Block> arguments_, others_;  // others: workspace and literals
};

Status ProgramRun::start(std::span<const Bytes> arguments) {
  const auto count = static_cast<size_t>(program_.fused.num_args);
  if (arguments.size() != count)
    return fail("{} arguments for a program of {}", arguments.size(), count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t bytes = program_.fused.values[i].bytes();
    const Block& block = arguments_.emplace_back(bytes);
    const bool given = arguments[i].data != nullptr;
    if (given && arguments[i].size != static_cast<size_t>(bytes))
      return fail("argument {} has {} bytes, not {}", i, arguments[i].size, bytes);
    if (given && bytes > 0) std::memcpy(block.data, arguments[i].data, arguments[i].size);
    memory_.watch(fmt::format("argument {}", i), block.data, bytes, given);
  }
  memory_.watch("the workspace", others_.emplace_back(program_.workspace_bytes).data,
                program_.workspace_bytes, false);
  const auto literals = static_cast<int64_t>(program_.literals.size());
  memory_.watch("the literals", others_.emplace_back(literals).data, literals, true);
  std::copy(program_.literals.begin(), program_.literals.end(), others_[1].data);
  return ok_status();
}

char* ProgramRun::address(const DeviceOperand& operand) const {
  switch (operand.kind) {
    case DeviceOperand::kAbsent:
      return nullptr;
    case DeviceOperand::kArgument:
      return arguments_[static_cast<size_t>(operand.argument)].data + operand.offset;
    case DeviceOperand::kWorkspace:
      return others_[0].data + operand.offset;
    case DeviceOperand::kLiteral:
      return others_[1].data + operand.offset;
  }
  return nullptr;
}

Status ProgramRun::touch(const DeviceOperand& operand, int64_t bytes, Access access) {
  const std::string wrong = memory_.touch(address(operand), bytes, access);
  if (!wrong.empty()) return fail("{}", wrong);
  return ok_status();
}

Status ProgramRun::run_product(const DeviceStep& step) {
  const DeviceProduct& p = program_.products[static_cast<size_t>(step.index)];
  const int64_t of_input = info(p.type).bytes, of_result = info(p.result).bytes;
  const auto read = [&](size_t operand, int64_t batch, int64_t rows, int64_t columns,
                        int64_t step_of, int64_t ld, int64_t element) -> Status {
    DeviceOperand at = step.operands[operand];
    if (at.kind == DeviceOperand::kAbsent) return ok_status();
    at.offset += batch * step_of * element;
    const Access access = operand >= 4 ? Access::kWrite : Access::kRead;
    for (int64_t row = 0; row < rows; ++row, at.offset += ld * element)
      PIPER_TRY(touch(at, columns * element, access));
    return ok_status();
  };
  for (int64_t z = 0; z < p.batch; ++z) {
    PIPER_TRY(read(0, z, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.a_step, p.lda, of_input));
    PIPER_TRY(read(1, z, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.b_step, p.ldb, of_input));
    for (const size_t operand : {2, 4, 5})
      PIPER_TRY(read(operand, z, p.m, p.n, p.d_step, p.ldd, of_result));
  }
  PIPER_TRY(read(3, 0, 1, p.n, 0, 0, of_result));
  const auto at = [&](size_t operand) { return address(step.operands[operand]); };
  multiply(p, {at(0), at(1), at(2), at(3), at(4), at(5)});
  return ok_status();
}

Status ProgramRun::run_step(const DeviceStep& step, Module* kernels, const Order& order) {
  switch (step.kind) {
    case DeviceStep::kKernel: {
      const DeviceKernel& kernel = program_.kernels[static_cast<size_t>(step.index)];
      Grid grid{kernel.name, kernel.blocks, kernel.threads, kernel.shared_bytes, {}};
      for (const DeviceOperand& operand : step.operands) grid.pointers.push_back(address(operand));
      return kernels->run(grid, memory_, order);
    }
    case DeviceStep::kProduct:
      return run_product(step);
    case DeviceStep::kAttention:
      return ok_status();  // no library takes it: the kernels behind it do
    case DeviceStep::kCopy:
      PIPER_TRY(touch(step.operands[0], step.bytes, Access::kRead));
      PIPER_TRY(touch(step.operands[1], step.bytes, Access::kWrite));
      std::memmove(address(step.operands[1]), address(step.operands[0]),
                   static_cast<size_t>(step.bytes));
      return ok_status();
    case DeviceStep::kZero:
      PIPER_TRY(touch(step.operands[0], step.bytes, Access::kWrite));
      std::memset(address(step.operands[0]), 0, static_cast<size_t>(step.bytes));
      return ok_status();
  }
  return ok_status();
}

Status ProgramRun::run(Module* kernels, const Order& order) {
  for (size_t s = 0; s < program_.steps.size(); ++s) {
    const DeviceStep& step = program_.steps[s];
    s += static_cast<size_t>(step.before + step.after);  // what goes with a library
    Status ran = run_step(step, kernels, order);
    if (ran) continue;
    const std::string_view op = program_.fused.ops[static_cast<size_t>(step.op)].op;
    return fail("op {} {}: {}", step.op, op, ran.error().message);
  }
  return ok_status();
}

Result<std::vector<Bytes>> ProgramRun::take() {
  std::vector<Bytes> made;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const int64_t bytes = program_.fused.values[i].bytes();
    const int64_t missing = bytes > 0 ? memory_.first_unwritten(arguments_[i].data) : -1;
    if (program_.fused.arg_written[i] && missing >= 0)
      return fail("nobody wrote argument {}[byte {}]", i, missing);
    made.push_back(Bytes::copy_of(arguments_[i].data, static_cast<size_t>(bytes)));
  }
  return made;
}

}  // namespace

// Sums in the order of k, in f64: what a library adds up in f32 in an order of its own is near it.
// They become f32 before anything is added to them, as those of a library are: then it makes no
// difference whether C is added by the product or behind it.
void multiply(const DeviceProduct& p, const ProductPlaces& at) {
  const int64_t of_input = info(p.type).bytes, of_result = info(p.result).bytes;
  for (int64_t z = 0; z < p.batch; ++z)
    for (int64_t i = 0; i < p.m; ++i)
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          const int64_t a = z * p.a_step + (p.trans_a ? k * p.lda + i : i * p.lda + k);
          const int64_t b = z * p.b_step + (p.trans_b ? j * p.ldb + k : k * p.ldb + j);
          sum +=
              load_number(p.type, at.a + a * of_input) * load_number(p.type, at.b + b * of_input);
        }
        if (p.type != DType::kF64) sum = static_cast<float>(sum);
        const int64_t d = (z * p.d_step + i * p.ldd + j) * of_result;
        if (at.c) sum += load_number(p.result, at.c + d);
        if (at.bias) sum += load_number(p.result, at.bias + j * of_result);
        if (at.pre) store_number(p.result, sum, at.pre + d);
        store_number(p.result, activated(p.activation, sum), at.d + d);
      }
}

Status compile_on_host(const Program& program) {
  PIPER_ASSIGN(const DeviceProgram made, device_program(program));
  if (made.source.empty()) return ok_status();
  PIPER_ASSIGN(const std::string library, compile_for_host(made.source, kFolder));
  return ok_status();
}

Result<std::vector<Bytes>> run_on_host(const Program& program, std::span<const Bytes> arguments,
                                       const Order& order) {
  PIPER_ASSIGN(const DeviceProgram made, device_program(program));
  return run_on_host(made, arguments, order);
}

Result<std::vector<Bytes>> run_on_host(const DeviceProgram& made, std::span<const Bytes> arguments,
                                       const Order& order) {
  std::unique_ptr<Module> kernels;
  if (!made.source.empty()) {
    PIPER_ASSIGN(const std::string library, compile_for_host(made.source, kFolder));
    PIPER_ASSIGN(kernels, Module::open(library));
  }
  ProgramRun run(made);
  PIPER_TRY(run.start(arguments));
  PIPER_TRY(run.run(kernels.get(), order));
  return run.take();
}

}  // namespace piper::emulator
