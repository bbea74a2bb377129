// Tensors of doubles and the evaluation of ops and graphs on them, node by node, on the CPU
// backend.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "piper/devices/cpu.h"
#include "piper/ir/graph.h"

namespace piper::test {

struct Tensor {
  TensorType type;
  std::vector<double> values;  // of every element type; integers below 2^53
};

template <class T>
T must(Result<T> result) {
  if (!result.ok()) {
    ADD_FAILURE() << print_error(result.error());
    std::abort();
  }
  return *std::move(result);
}

template <class F>
void with_element(DType dtype, F f) {
  if (dtype == DType::kF64) return f(double{});
  if (dtype == DType::kF32) return f(float{});
  if (dtype == DType::kI64) return f(int64_t{});
  if (dtype == DType::kI32) return f(int32_t{});
  if (dtype == DType::kBool) return f(uint8_t{});
  ADD_FAILURE() << "tensors of " << info(dtype).name << " are not for tests";
}

inline bool is_16_bit(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }
inline Bytes cast_bytes(const TensorType& from, const Bytes& bytes, DType to) {
  const TensorType type{to, from.shape};
  return must(evaluate_op("Cast", {{"to", info(to).name}}, {&from, 1}, {&bytes, 1}, {&type, 1}))[0];
}

inline Bytes to_bytes(const Tensor& tensor) {
  if (is_16_bit(tensor.type.dtype)) {
    const Tensor wide{{DType::kF32, tensor.type.shape}, tensor.values};
    return cast_bytes(wide.type, to_bytes(wide), tensor.type.dtype);
  }
  std::string bytes(static_cast<size_t>(tensor.type.bytes()), '\0');
  with_element(tensor.type.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      const T element = static_cast<T>(tensor.values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return Bytes::copy_of(bytes.data(), bytes.size());
}

inline Tensor to_tensor(const TensorType& type, const Bytes& bytes) {
  if (is_16_bit(type.dtype)) {
    const TensorType wide{DType::kF32, type.shape};
    return {type, to_tensor(wide, cast_bytes(type, bytes, DType::kF32)).values};
  }
  Tensor tensor{type, std::vector<double>(static_cast<size_t>(num_elements(type.shape)))};
  EXPECT_EQ(static_cast<int64_t>(bytes.size), type.bytes());
  with_element(type.dtype, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < tensor.values.size(); ++i) {
      T element;
      std::memcpy(&element, bytes.data + i * sizeof(T), sizeof(T));
      tensor.values[i] = static_cast<double>(element);
    }
  });
  return tensor;
}

using Operands = std::vector<std::optional<Tensor>>;  // none: an absent optional input

inline std::vector<Tensor> evaluate(std::string_view op, const Attrs& attrs, const Operands& inputs,
                                    const std::vector<TensorType>& output_types) {
  if (op == "StepSum") {  // which the Dag expands and no backend has
    Tensor sum = *inputs[0];
    for (size_t k = 1; k < inputs.size(); ++k) {
      for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += inputs[k]->values[i];
    }
    return {sum};
  }
  std::vector<TensorType> types;
  std::vector<Bytes> data;
  for (const std::optional<Tensor>& input : inputs) {
    types.push_back(input ? input->type : TensorType{});
    data.push_back(input ? to_bytes(*input) : Bytes{});
  }
  Result<std::vector<Bytes>> made = evaluate_op(op, attrs, types, data, output_types);
  if (!made) {
    ADD_FAILURE() << op << ": " << print_error(made.error());
    std::abort();
  }
  std::vector<Tensor> outputs;
  for (size_t i = 0; i < output_types.size(); ++i) {
    outputs.push_back(to_tensor(output_types[i], (*made)[i]));
  }
  return outputs;
}

// Every value of the graph, given its inputs; state has its initial value unless given.
using Values = std::vector<std::optional<Tensor>>;
inline Values evaluate(const Graph& graph, Values values) {
  values.resize(graph.values.size());
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (values[i] || value.kind == ValueKind::kNode || value.kind == ValueKind::kInput) continue;
    if (value.data.size > 0 || value.type.bytes() == 0) {
      values[i] = to_tensor(value.type, value.data.made());
    } else {
      const size_t count = static_cast<size_t>(num_elements(value.type.shape));
      values[i] = Tensor{value.type, std::vector<double>(count, value.fill)};
    }
  }
  for (const Node& node : graph.nodes) {
    Operands inputs;
    for (ValueId id : node.inputs) {
      inputs.push_back(id.valid() ? values[id.index()] : std::nullopt);
      EXPECT_TRUE(!id.valid() || values[id.index()]) << node.op << " reads a value without data";
    }
    std::vector<TensorType> types;
    for (ValueId id : node.outputs) types.push_back(graph.value(id).type);
    const std::vector<Tensor> outputs = evaluate(node.op, node.attrs, inputs, types);
    for (size_t i = 0; i < outputs.size(); ++i) values[node.outputs[i].index()] = outputs[i];
  }
  return values;
}

// The same on the elements' bytes, of any element type. `values` holds the inputs.
inline Result<std::vector<Bytes>> evaluate_bytes(const Graph& graph, std::vector<Bytes> values) {
  values.resize(graph.values.size());
  for (size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.kind != ValueKind::kConstant && value.kind != ValueKind::kState) continue;
    if (!values[i].data) values[i] = value.data;
    if (!values[i].data) values[i] = Bytes::zeros(static_cast<size_t>(value.type.bytes()));
  }
  for (const Node& node : graph.nodes) {
    std::vector<TensorType> in, out;
    std::vector<Bytes> data;
    for (ValueId id : node.inputs) {
      in.push_back(id.valid() ? graph.value(id).type : TensorType{});
      data.push_back(id.valid() ? values[id.index()] : Bytes{});
    }
    for (ValueId id : node.outputs) out.push_back(graph.value(id).type);
    PIPER_ASSIGN(std::vector<Bytes> made, evaluate_op(node.op, node.attrs, in, data, out));
    for (size_t i = 0; i < made.size(); ++i) values[node.outputs[i].index()] = std::move(made[i]);
  }
  return values;
}

// Floats in [low, high), integers in [0, int_high), booleans.
inline Tensor draw(const TensorType& type, std::mt19937_64& random, double low, double high,
                   int64_t int_high) {
  Tensor tensor{type, {}};
  std::uniform_real_distribution<double> real(low, high);
  for (int64_t i = 0; i < num_elements(type.shape); ++i) {
    double value = real(random);
    if (!info(type.dtype).is_float) {
      const int64_t most = type.dtype == DType::kBool ? 2 : int_high;
      value = static_cast<double>(random() % static_cast<uint64_t>(most));
    }
    if (type.dtype == DType::kF32) value = static_cast<float>(value);
    tensor.values.push_back(value);
  }
  return tensor;
}

}  // namespace piper::test
