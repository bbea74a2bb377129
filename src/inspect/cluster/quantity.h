// Quantities with units, as cluster files write them. Private to the room.
#pragma once

#include "piper/base/yaml.h"

namespace piper::cluster {

enum class Quantity : uint8_t { kFlops, kBytes, kRate, kTime, kPower, kShare, kNumber };

// Reads "989 TFLOPS", "80 GB", "3.35 TB/s", "5 us", "700 W", "0.8" or "80 %", as FLOPs or bytes per
// second, bytes, seconds, watts or plain numbers. Errors, at the value: another unit, a negative
// number, a share of more than 1.
Result<double> read_quantity(const yaml::Node& node, std::string_view key, Quantity what);

}  // namespace piper::cluster
