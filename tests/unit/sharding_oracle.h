// Runs a graph whole and cut, op by op on host data, and compares every value: the meaning of
// layouts, spelled out.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "piper/devices/cpu.h"
#include "piper/ir/ops.h"
#include "piper/planner/sharding.h"

namespace piper::oracle {

// Elements as doubles, whatever the type.
inline std::vector<double> elements(const TensorType& type, const Bytes& data) {
  std::vector<double> result;
  auto read = [&](auto zero) {
    for (size_t i = 0; i < data.size / sizeof(zero); ++i) {
      std::memcpy(&zero, data.data + i * sizeof(zero), sizeof(zero));
      result.push_back(static_cast<double>(zero));
    }
  };
  switch (type.dtype) {
    case DType::kF32:
      read(float{});
      break;
    case DType::kF64:
      read(double{});
      break;
    case DType::kI64:
      read(int64_t{});
      break;
    case DType::kI32:
      read(int32_t{});
      break;
    default:
      read(uint8_t{});
  }
  return result;
}

inline Bytes encode(const TensorType& type, const std::vector<double>& values) {
  std::string bytes;
  auto put = [&](auto element) {
    bytes.append(reinterpret_cast<const char*>(&element), sizeof(element));
  };
  for (double value : values) {
    switch (type.dtype) {
      case DType::kF32:
        put(static_cast<float>(value));
        break;
      case DType::kF64:
        put(value);
        break;
      case DType::kI64:
        put(static_cast<int64_t>(value));
        break;
      case DType::kI32:
        put(static_cast<int32_t>(value));
        break;
      default:
        put(static_cast<uint8_t>(value));
    }
  }
  return Bytes::copy_of(bytes.data(), bytes.size());
}

// [before, after) elements of a dim that is cut: the dims to its left times the outer part, and the
// rest.
struct Blocks {
  size_t outer = 1, inner = 1;  // the whole is [outer, shards, inner]
  Blocks(const Shape& local, const Layout& layout) : outer(static_cast<size_t>(layout.outer)) {
    size_t total = static_cast<size_t>(num_elements(local));
    for (int d = 0; d < layout.dim; ++d)
      outer *= static_cast<size_t>(local[static_cast<size_t>(d)]);
    inner = total / outer;
  }
};

using Values = std::vector<std::vector<double>>;  // by shard

// The whole value of what the shards hold.
inline std::vector<double> combine(const Value& value, const Values& shards) {
  if (value.layout.kind == LayoutKind::kReplicated) {
    for (const auto& shard : shards) EXPECT_EQ(shard, shards[0]) << value.name;
    return shards[0];
  }
  if (value.layout.kind == LayoutKind::kPartial) {
    std::vector<double> sum(shards[0].size());
    for (const auto& shard : shards) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += shard[i];
    }
    return sum;
  }
  Blocks blocks(value.type.shape, value.layout);
  std::vector<double> whole;
  for (size_t o = 0; o < blocks.outer; ++o) {
    for (const auto& shard : shards) {
      auto from = shard.begin() + static_cast<int64_t>(o * blocks.inner);
      whole.insert(whole.end(), from, from + static_cast<int64_t>(blocks.inner));
    }
  }
  return whole;
}

inline std::vector<double> block_of(const Value& value, const std::vector<double>& whole,
                                    size_t shard, size_t shards) {
  if (value.layout.kind != LayoutKind::kSharded) return whole;
  Blocks blocks(value.type.shape, value.layout);
  std::vector<double> block;
  for (size_t o = 0; o < blocks.outer; ++o) {
    auto from = whole.begin() + static_cast<int64_t>((o * shards + shard) * blocks.inner);
    block.insert(block.end(), from, from + static_cast<int64_t>(blocks.inner));
  }
  return block;
}

// What a step starts with, by the name of the value; made of the whole graph.
using Sources = std::map<std::string, std::vector<double>>;

inline Sources random_sources(const Graph& graph, unsigned seed, int64_t int_high) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> real(-1, 1);
  Sources sources;
  for (const Value& value : graph.values) {
    if (value.kind == ValueKind::kNode) continue;
    std::vector<double>& data = sources[value.name];
    if (value.data.size > 0) {
      data = elements(value.type, value.data.made());
      continue;
    }
    bool is_state = value.kind == ValueKind::kState;  // positive: an optimizer takes its root
    for (int64_t i = 0; i < num_elements(value.type.shape); ++i) {
      double element = real(random);
      if (is_state) element = 0.25 + std::abs(element);
      if (!info(value.type.dtype).is_float) {
        element = static_cast<double>(random() % static_cast<unsigned>(int_high));
      }
      data.push_back(element);
    }
  }
  return sources;
}

// Every value of every shard of a graph that shard_batch returned.
class Run {
 public:
  Run(const Graph& graph, const Sources& sources)
      : graph_(graph), values_(graph.values.size(), Values(static_cast<size_t>(graph.shards))) {
    for (size_t i = 0; i < graph.values.size(); ++i) {
      if (graph.values[i].kind != ValueKind::kNode) start(graph.values[i], values_[i], sources);
    }
    if (graph.sample.valid()) number_samples(values_[graph.sample.index()]);
    for (const Node& node : graph.nodes) {
      if (node.op == "StepSum") {
        sum(node);
      } else {
        for (size_t s = 0; s < static_cast<size_t>(graph.shards); ++s) evaluate(node, s);
      }
    }
  }

  std::vector<double> whole(ValueId id) const {
    return combine(graph_.value(id), values_[id.index()]);
  }

 private:
  void start(const Value& value, Values& shards, const Sources& sources) {
    auto whole = sources.find(value.name);
    for (size_t s = 0; s < shards.size(); ++s) {
      shards[s] = whole == sources.end() || value.kind == ValueKind::kConstant
                      ? elements(value.type, value.data)
                      : block_of(value, whole->second, s, shards.size());
    }
  }

  void number_samples(Values& shards) const {
    const int64_t count = graph_.batch / graph_.shards;
    for (size_t s = 0; s < shards.size(); ++s) {
      shards[s].clear();
      for (int64_t i = 0; i < count; ++i)
        shards[s].push_back(static_cast<double>(static_cast<int64_t>(s) * count + i));
    }
  }

  void sum(const Node& node) {
    std::vector<double> total(
        static_cast<size_t>(num_elements(graph_.value(node.outputs[0]).type.shape)));
    for (ValueId id : node.inputs) {
      for (const auto& shard : values_[id.index()]) {
        for (size_t i = 0; i < total.size(); ++i) total[i] += shard[i];
      }
    }
    for (auto& shard : values_[node.outputs[0].index()]) shard = total;
  }

  void evaluate(const Node& node, size_t shard) {
    std::vector<TensorType> input_types, output_types;
    std::vector<Bytes> inputs;
    for (ValueId id : node.inputs) {
      input_types.push_back(id.valid() ? graph_.value(id).type : TensorType{});
      inputs.push_back(id.valid() ? encode(input_types.back(), values_[id.index()][shard])
                                  : Bytes{});
    }
    for (ValueId id : node.outputs) output_types.push_back(graph_.value(id).type);
    auto outputs = evaluate_op(node.op, node.attrs, input_types, inputs, output_types);
    ASSERT_TRUE(outputs.ok()) << node.op << ": " << print_error(outputs.error());
    for (size_t o = 0; o < output_types.size(); ++o) {
      values_[node.outputs[o].index()][shard] = elements(output_types[o], (*outputs)[o]);
    }
  }

  const Graph& graph_;
  std::vector<Values> values_;
};

// Every value of the cut graph, put together, is that of the uncut one.
inline void expect_same(const Graph& cut, const Graph& uncut, const Sources& sources,
                        double bound) {
  Run cut_run(cut, sources), uncut_run(uncut, sources);
  for (size_t i = 0; i < cut.values.size(); ++i) {
    ValueId other = uncut.find_value(cut.values[i].name);
    if (!other.valid()) {  // of the cut alone: numbers of samples, constants, what is made of them
      EXPECT_TRUE(cut.values[i].kind == ValueKind::kConstant || ValueId(i) == cut.sample ||
                  cut.values[i].name.find('/') != std::string::npos)
          << cut.values[i].name;
      continue;
    }
    std::vector<double> actual = cut_run.whole(ValueId(i)), wanted = uncut_run.whole(other);
    ASSERT_EQ(actual.size(), wanted.size()) << cut.values[i].name;
    double scale = 1, error = 0;
    for (double element : wanted) scale = std::max(scale, std::abs(element));
    for (size_t e = 0; e < wanted.size(); ++e) {
      if (actual[e] == wanted[e]) continue;  // infinities too
      error = std::max(error, std::abs(actual[e] - wanted[e]) / scale);
    }
    EXPECT_LE(error, bound) << cut.values[i].name << " lies as " << to_string(cut.values[i].layout);
  }
}

}  // namespace piper::oracle
