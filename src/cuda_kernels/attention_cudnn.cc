// What cuDNN is asked for.
#include "emitter.h"

namespace piper {

using cuda_kernels::ceil_div;

bool cudnn_takes(const DeviceAttention&) { return false; }
CudnnSlice cudnn_slice(const DeviceAttention&) { return {}; }

}  // namespace piper
