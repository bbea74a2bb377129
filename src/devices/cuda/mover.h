// The kernels by which fabrics take blocks apart and put them together.
#pragma once

#include "compile.h"
#include "device.h"
#include "piper/devices/backend.h"

namespace piper::cuda {

inline constexpr const char* kMoverLabel = "moves of blocks";

class Mover {
 public:
  static Result<std::unique_ptr<Mover>> open(Device& device,
                                             const std::function<void(const std::string&)>& note);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Returns the driver's result of the launch.
  int run(const StridedMove& move, CuStream* stream) const;

 private:
  explicit Mover(Device& device) : device_(device) {}
  static constexpr int kSizes = 5;  // of elements: 16, 8, 4, 2, 1 bytes

  Device& device_;
  CuModule* module_ = nullptr;
  CuFunction* functions_[kSizes] = {};
};

}  // namespace piper::cuda
