// What NVIDIA publishes of products on a multiprocessor, for the share of it that a job uses.
#include <algorithm>
#include <array>

#include "device.h"
#include "libraries.h"
#include "piper/devices/cuda.h"

namespace piper {
namespace {

using namespace cuda;  // NOLINT: this room's own

// Holds FLOPs of a multiprocessor in a cycle. Tensor cores of 16 and 64 bits: "NVIDIA A100 Tensor
// Core GPU Architecture" (2020), table 1 (312, 19.5 TFLOPS by 108 at 1.41 GHz); "NVIDIA H100 Tensor
// Core GPU Architecture" (2022), table 1 (989.4 by 132 at 1.83 GHz, 66.9 at 1.98 GHz); "NVIDIA
// Blackwell Architecture Technical Brief" (2024, 2.25 PFLOPS by 148 at 1.85 GHz). f32 is not
// rounded to TF32, so it has the rate of multiply-adds in the CUDA C++ Programming Guide's table
// "Throughput of Native Arithmetic Instructions". Capabilities 8.6 and 8.9 are not here: products
// of one have twice the rate of others.
struct PeakRow {
  int major, minor;
  double half, single, double_;  // 0: not published
};
constexpr std::array kPeaks = {PeakRow{8, 0, 2048, 128, 128}, PeakRow{9, 0, 4096, 256, 256},
                               PeakRow{10, 0, 8192, 256, 0}};

Result<CudaPeak> find_peak(int64_t device, DType dtype) {
  CudaPeak peak;
  PIPER_ASSIGN(const Opened<Driver>* library, opened<Driver>());
  const Driver& driver = library->functions;
  PIPER_ASSIGN(const int count, count_devices());
  peak.devices = count;
  int handle = 0, kilohertz = 0, multiprocessors = 0, major = 0, minor = 0;
  PIPER_CU(driver, cuDeviceGet, &handle, static_cast<int>(device % count));
  for (const auto& [attribute, to] : {std::pair(kClockKilohertz, &kilohertz),
                                      {kMultiprocessors, &multiprocessors},
                                      {kMajor, &major},
                                      {kMinor, &minor}})
    PIPER_CU(driver, cuDeviceGetAttribute, to, attribute, handle);
  const auto row = std::ranges::find_if(
      kPeaks, [&](const PeakRow& one) { return one.major == major && one.minor == minor; });
  if (row == kPeaks.end()) return peak;
  const int64_t bytes = info(dtype).bytes;
  const double of_one = bytes == 2 ? row->half : bytes == 4 ? row->single : row->double_;
  peak.flops = of_one * multiprocessors * kilohertz * 1e3;
  return peak;
}

}  // namespace

CudaPeak cuda_peak(int64_t device, DType dtype) {
  const Result<CudaPeak> found = find_peak(device, dtype);
  return found ? *found : CudaPeak();
}

}  // namespace piper
