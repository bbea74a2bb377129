// The costs of ops and messages on the devices of a job. Steps of the compiler choose by them; a
// room that knows a machine implements them.
#pragma once

#include "piper/plan/bundle.h"

namespace piper {

class DeviceCosts {
 public:
  virtual ~DeviceCosts() = default;
  // Error: there are fewer devices.
  virtual Status check_world(int64_t ranks) const = 0;
  // Returns equal numbers for ranks whose devices are alike.
  virtual int32_t kind_of(int64_t rank) const = 0;
  virtual std::string name_of(int32_t kind) const = 0;
  virtual double memory_of(int32_t kind) const = 0;  // bytes that plans may take; 0: not stated
  // Returns the seconds of a program of one op. Error: the device cannot run it.
  virtual Result<double> seconds_of(int32_t kind, const Program& op) const = 0;
  virtual double message_seconds(int64_t from, int64_t to, double bytes) const = 0;
};

}  // namespace piper
