// The attentions of a device's programs that cuDNN does.
#pragma once

#include <deque>

#include "attention_plan.h"
#include "device.h"

namespace piper::cuda {

class Attentions {
 public:
  // Error: there is no cuDNN that works on the device.
  static Result<std::unique_ptr<Attentions>> open(const Device& device);
  ~Attentions();

  // Returns an attention of these operands, as its DeviceStep has them. Error: cuDNN declines, and
  // why.
  Result<int32_t> bind(const DeviceAttention& attention, std::span<std::byte* const> operands,
                       std::byte* workspace);
  int run(int32_t bound, CuStream* stream) const;  // cuDNN's status
  const char* name_of(int status) const { return api_.cudnnGetErrorString(status); }

 private:
  Attentions(const Cudnn& api, const Device& device) : api_(api), device_(device) {}
  Result<const AttentionPlan*> plan_of(const DeviceAttention& attention);

  struct Bound {
    const AttentionPlan* plan = nullptr;
    AttentionPlan::Calls calls;
  };
  const Cudnn& api_;
  const Device& device_;
  DnnContext* handle_ = nullptr;
  std::deque<std::pair<DeviceAttention, Result<AttentionPlan>>> plans_;
  std::vector<Bound> bound_;
};

}  // namespace piper::cuda
