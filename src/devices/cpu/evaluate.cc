// One op at once on host data: a program of one op, all of whose values are arguments.
#include <cstring>

#include "piper/devices/cpu.h"

namespace piper {
Result<std::vector<Bytes>> evaluate_op(std::string_view op, const Attrs& attrs,
                                       std::span<const TensorType> input_types,
                                       std::span<const Bytes> inputs,
                                       std::span<const TensorType> output_types) {
  if (inputs.size() != input_types.size()) {
    return fail("{}: {} inputs for {} types", op, inputs.size(), input_types.size());
  }
  Program program;
  program.label = "constant";
  program.ops.push_back({std::string(op), attrs, {}, {}});
  CpuOptions options;
  options.fuse = false;  // there is nothing to join
  static const ProductTable
      vectors;  // a plan's constants are the same whether a processor has tiles
  options.products = &vectors;
  const std::unique_ptr<Backend> backend = make_cpu_backend(options);
  std::vector<std::byte*> args;
  auto add = [&](const TensorType& type, const Bytes* data) -> Result<int32_t> {
    const int64_t bytes = type.bytes();
    if (data && static_cast<int64_t>(data->size) != bytes) {
      return fail("{}: {} bytes for {}", op, data->size, to_string(type));
    }
    PIPER_ASSIGN(std::byte* const block, backend->allocate(bytes));
    if (data && bytes > 0) std::memcpy(block, data->data, data->size);
    args.push_back(block);
    program.values.push_back(type);
    return program.num_args++;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool absent = !inputs[i].data && input_types[i].bytes() > 0;
    int32_t id = -1;
    if (!absent) {
      PIPER_ASSIGN(id, add(input_types[i], &inputs[i]));
    }
    program.ops[0].inputs.push_back(id);
  }
  for (const TensorType& type : output_types) {
    PIPER_ASSIGN(const int32_t id, add(type, nullptr));
    program.ops[0].outputs.push_back(id);
  }
  program.arg_read.assign(args.size(), true);
  program.arg_written.assign(args.size(), false);
  for (int32_t output : program.ops[0].outputs)
    program.arg_written[static_cast<size_t>(output)] = true;
  PIPER_ASSIGN(const int32_t loaded, backend->load(program));
  PIPER_ASSIGN(std::byte* const workspace, backend->allocate(backend->workspace_bytes(loaded)));
  PIPER_ASSIGN(const int32_t bound, backend->bind(loaded, args, workspace));
  backend->launch(bound);
  std::vector<Bytes> results;
  for (size_t i = args.size() - output_types.size(); i < args.size(); ++i) {
    results.push_back(Bytes::copy_of(args[i], static_cast<size_t>(program.values[i].bytes())));
  }
  return results;
}

}  // namespace piper
