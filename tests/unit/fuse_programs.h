// Programs without places, for tests of what fusing makes of them.
#pragma once

#include "cpu_harness.h"
#include "piper/devices/cpu.h"
#include "piper/devices/program.h"
#include "piper/ir/ops.h"

namespace piper::test {

inline TensorType f32(Shape shape) { return {DType::kF32, std::move(shape)}; }

// A program without places: args, with those written, then the other values.
inline Program program_of(std::vector<TensorType> values, int32_t args,
                          const std::vector<int32_t>& written, std::vector<ProgramOp> ops) {
  Program program;
  program.values = std::move(values);
  program.num_args = args;
  program.arg_read.assign(static_cast<size_t>(args), true);
  program.arg_written.assign(static_cast<size_t>(args), false);
  for (int32_t a : written) {
    program.arg_written[static_cast<size_t>(a)] = true;
    program.arg_read[static_cast<size_t>(a)] = false;
  }
  program.ops = std::move(ops);
  return program;
}

// "Add 0,1>2; x4 is x3+8" of a program's ops and views.
inline std::string text_of(const FusedProgram& program) {
  std::string text;
  const auto ids = [](const std::vector<int32_t>& list) {
    std::string joined;
    for (int32_t id : list) joined += fmt::format("{}{}", joined.empty() ? "" : ",", id);
    return joined;
  };
  for (const ProgramOp& op : program.ops) {
    const std::string expr = op.attrs.text("expr") + op.attrs.text("then");
    text += fmt::format("{} {}>{}{}; ", op.op, ids(op.inputs), ids(op.outputs),
                        expr.empty() ? "" : " '" + expr + "'");
  }
  for (const ProgramView& view : program.views)
    text += fmt::format("x{} is x{}+{}; ", view.value, view.base, view.offset);
  return text;
}

inline std::string fused_text(const Program& program) {
  FuseCounts counts;
  return text_of(fuse(program, counts));
}

// One run on a CPU backend.
template <class Loaded>
std::vector<std::vector<float>> run_on(CpuBackend& backend, const Loaded& program,
                                       std::vector<std::vector<float>> args) {
  const auto loaded = backend.load(program);
  if (!loaded) {
    ADD_FAILURE() << loaded.error().message;
    return {};
  }
  std::vector<std::byte*> pointers;
  for (auto& arg : args) pointers.push_back(reinterpret_cast<std::byte*>(arg.data()));
  std::byte* const workspace = *backend.allocate(backend.workspace_bytes(*loaded));
  const auto bound = backend.bind(*loaded, pointers, workspace);
  if (!bound) {
    ADD_FAILURE() << bound.error().message;
    return {};
  }
  backend.launch(*bound);
  return args;
}
inline std::vector<std::vector<float>> run(const FusedProgram& program,
                                           std::vector<std::vector<float>> args) {
  return run_on(*make_cpu_backend(), program, std::move(args));
}
// As of a plan, its ops one by one.
inline std::vector<std::vector<float>> run_planned(const Program& program,
                                                   std::vector<std::vector<float>> args) {
  CpuOptions options;
  options.fuse = false;
  return run_on(*make_cpu_backend(options), program, std::move(args));
}
// Its ops one by one.
inline std::vector<std::vector<float>> run(const Program& program,
                                           std::vector<std::vector<float>> args) {
  return run(FusedProgram{program, {}}, std::move(args));
}

}  // namespace piper::test
