// A device that computations share, as those of an overlapped pair do. Private to the room.
#pragma once

#include <cstdint>
#include <vector>

namespace piper::timeline {

// Shares a device among computations. Each progresses by its weight's part of the weights of those
// that run; the only one has all of it.
class Device {
 public:
  struct Ended {
    int32_t step = 0;
    double start = 0;
  };

  bool is_idle() const { return running_.empty(); }
  // Returns how often the speeds have changed: what next_end() said before is void.
  int32_t changes() const { return changes_; }
  // Times never go back. `work` and `weight` are above 0.
  void begin(int32_t step, double work, double weight, double time);
  // From `time` on all of them run at this speed, above 0; 1 is the usual one.
  void set_speed(double speed, double time);
  // Returns when the first of them ends, if nothing changes before. Requires that one runs.
  double next_end() const;
  // Takes out what has ended at `time`, which is that of next_end().
  std::vector<Ended> end(double time);

 private:
  struct Running {
    int32_t step = 0;
    double left = 0, weight = 0, start = 0;  // `left`: work
  };

  double weights() const;
  double end_of(const Running& one, double all) const;  // `all`: weights()
  void progress_to(double time);

  std::vector<Running> running_;
  double time_ = 0;  // at which what is left is so much
  double speed_ = 1;
  int32_t changes_ = 0;
};

}  // namespace piper::timeline
