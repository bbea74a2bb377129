// Lists the products of plans that have no algorithm in the table yet, for the tuner.
#include "wanted.h"

#include <algorithm>

#include "piper/devices/cuda.h"

namespace piper::cuda {

std::string to_string(const Wanted& one) {
  return cuda::to_string(one.product, one.is_present[kC], one.is_present[kBias],
                         one.is_present[kPre]);
}

double flops_of(const DeviceProduct& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) *
         static_cast<double>(p.batch);
}

int64_t extent_of(const DeviceProduct& p, Operand operand) {
  const auto extent = [&](int64_t rows, int64_t columns, int64_t line, int64_t step) {
    return (p.batch - 1) * step + (rows - 1) * line + columns;
  };
  switch (operand) {
    case kA:
      return p.trans_a ? extent(p.k, p.m, p.lda, p.a_step) : extent(p.m, p.k, p.lda, p.a_step);
    case kB:
      return p.trans_b ? extent(p.n, p.k, p.ldb, p.b_step) : extent(p.k, p.n, p.ldb, p.b_step);
    case kBias:
      return p.n;
    case kC:
    case kD:
    case kPre:
      return extent(p.m, p.n, p.ldd, p.d_step);
    case kOperands:
      break;
  }
  PIPER_CHECK(false, "a product has no operand {}", static_cast<int>(operand));
}
DType type_of(const DeviceProduct& p, Operand operand) {
  return operand == kA || operand == kB ? p.type : p.result;
}

namespace {

// Returns whether it is the last few rows or columns of a product that is made in parts: nothing is
// gained by measuring them.
bool is_tail(const DeviceProduct& p) {
  constexpr int64_t kLeast = 8, kLarge = 256;
  return std::min(p.m, p.n) < kLeast && std::max(p.m, p.n) >= kLarge;
}

}  // namespace

Result<std::vector<Wanted>> products_of(std::span<const Program> programs) {
  std::vector<std::pair<std::string, Wanted>> all;
  for (const Program& program : programs) {
    PIPER_ASSIGN(const DeviceProgram made, cuda_program(program));
    for (const DeviceStep& step : made.steps) {
      if (step.kind != DeviceStep::kProduct) continue;
      Wanted one{.product = made.products[static_cast<size_t>(step.index)]};
      if (is_tail(one.product)) continue;
      for (size_t o = 0; o < kOperands; ++o) {
        one.is_present[o] = step.operands[o].kind != DeviceOperand::kAbsent;
        one.offset[o] = step.operands[o].offset % kOperandAlignment;
      }
      std::string name = to_string(one);
      int64_t aligned = kOperandAlignment;  // to the lowest bit that is set
      for (const Operand o : {kA, kB, kC, kD})
        if (one.offset[o] != 0) aligned = std::min(aligned, one.offset[o] & -one.offset[o]);
      name += fmt::format(" aligned {}", aligned);
      all.emplace_back(std::move(name), one);
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& x, const auto& y) {
    const double a = flops_of(x.second.product), b = flops_of(y.second.product);
    return a != b ? a > b : x.first < y.first;
  });
  all.erase(std::unique(all.begin(), all.end(),
                        [](const auto& x, const auto& y) { return x.first == y.first; }),
            all.end());
  std::vector<Wanted> wanted;
  for (auto& [name, one] : all) wanted.push_back(one);
  return wanted;
}

}  // namespace piper::cuda
