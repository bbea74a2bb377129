// Every sample of every row of the op table, with drawn inputs: what the conformance tests walk.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "evaluate.h"
#include "piper/ir/ops.h"

namespace piper::test {

inline constexpr uint64_t kSeed = 20240607;

inline bool is_float(const TensorType& type) { return info(type.dtype).is_float; }

// One sample of one op, with drawn inputs.
struct Use {
  const OpDef* def;
  const OpSample* sample;
  OpTypes types;
  Operands inputs;
  std::string label;

  std::vector<Tensor> run() const { return run(inputs); }
  std::vector<Tensor> run(const Operands& operands) const {
    return evaluate(def->name, types.attrs, operands, types.outputs);
  }
};

inline Use make_use(const OpDef& def, size_t index, std::mt19937_64& random) {
  Use use{&def, &def.samples[index], {}, {}, fmt::format("{} sample {}", def.name, index)};
  const OpSample& sample = *use.sample;
  use.types.inputs = sample.inputs;
  use.types.present.assign(sample.inputs.size(), true);
  for (int i : sample.absent) {
    use.types.present[i] = false;
    use.types.inputs[i] = {};
  }
  use.types.attrs = sample.attrs;
  for (size_t i = 0; i < sample.inputs.size(); ++i) {
    if (!use.types.present[i]) {
      use.inputs.emplace_back();
      continue;
    }
    use.inputs.push_back(draw(sample.inputs[i], random, sample.low, sample.high, sample.int_high));
  }
  use.types.outputs = must(def.types(use.types));
  return use;
}

template <class F>
void for_each_use(F f) {
  for (const OpDef* def : all_ops()) {
    if (def->collective) continue;
    for (size_t i = 0; i < def->samples.size(); ++i) {
      std::mt19937_64 random(kSeed + i);
      Use use = make_use(*def, i, random);
      SCOPED_TRACE(fmt::format("{} (seed {})", use.label, kSeed));
      f(use, random);
    }
  }
}

inline double scale_of(const Tensor& tensor) {
  double scale = 1;
  for (double value : tensor.values) scale = std::max(scale, std::abs(value));
  return scale;
}

// Largest difference relative to the largest element, or to 1.
inline void expect_near(const Tensor& actual, const Tensor& expected, double bound) {
  ASSERT_EQ(actual.values.size(), expected.values.size());
  const double scale = scale_of(expected);
  for (size_t i = 0; i < expected.values.size(); ++i) {
    ASSERT_LE(std::abs(actual.values[i] - expected.values[i]) / scale, bound)
        << "element " << i << ": " << actual.values[i] << " instead of " << expected.values[i];
  }
}

}  // namespace piper::test
