// Programs of ops whose operands are all arguments of their own, for tests of the cuda backend's
// kernels on the host.
#pragma once

#include <fmt/format.h>

#include <cstring>

#include "fake_cuda/run_program.h"
#include "unit/op_uses.h"

namespace piper::test {

struct Written {
  Program program;
  std::vector<Bytes> arguments;

  int32_t given(const TensorType& type, Bytes data) {
    add(type, true);
    arguments.back() = std::move(data);
    return program.num_args - 1;
  }
  int32_t made(const TensorType& type) {
    add(type, false);
    return program.num_args - 1;
  }
  void op(std::string name, Attrs attrs, std::vector<int32_t> inputs,
          std::vector<int32_t> outputs) {
    for (const int32_t output : outputs) program.arg_written[static_cast<size_t>(output)] = true;
    program.ops.push_back(
        {std::move(name), std::move(attrs), std::move(inputs), std::move(outputs)});
  }

 private:
  void add(const TensorType& type, bool is_read) {
    program.values.push_back(type);
    program.arg_read.push_back(is_read);
    program.arg_written.push_back(!is_read);
    arguments.emplace_back();
    ++program.num_args;
  }
};

inline DeviceProgram steps_of(const Written& written) {
  return must(device_program(written.program));
}
inline std::vector<Bytes> run(const Written& written) {
  return must(
      emulator::run_on_host(written.program, written.arguments, {emulator::Order::kRandom, kSeed}));
}
inline bool same(const Bytes& a, const Bytes& b) {
  return a.size == b.size && (a.size == 0 || std::memcmp(a.data, b.data, a.size) == 0);
}
template <class T>
Bytes scalar(T value) {
  return Bytes::copy_of(&value, sizeof value);
}
inline double real_of(const Bytes& bytes) { return to_tensor({DType::kF64, {}}, bytes).values[0]; }

// What the CPU makes of the last op.
inline std::vector<Bytes> on_cpu(const Written& written) {
  const ProgramOp& op = written.program.ops.back();
  std::vector<TensorType> in, out;
  std::vector<Bytes> data;
  for (const int32_t input : op.inputs) {
    in.push_back(input < 0 ? TensorType{} : written.program.values[static_cast<size_t>(input)]);
    data.push_back(input < 0 ? Bytes{} : written.arguments[static_cast<size_t>(input)]);
  }
  for (const int32_t output : op.outputs)
    out.push_back(written.program.values[static_cast<size_t>(output)]);
  return must(evaluate_op(op.op, op.attrs, in, data, out));
}

}  // namespace piper::test
