// What a rank did last, for whoever looks for the fault of a job: a ring of its instructions, which
// is written to a file when the rank fails, crashes or stands still. Private to the executor room.
#pragma once

#include <pthread.h>

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "piper/devices/control.h"
#include "piper/plan/instruction.h"

namespace piper {

// Says what a rank spends its time with.
enum class Spent : uint8_t { kForward, kBackward, kUpdate, kOther, kCommunication, kData };
inline constexpr size_t kSpentKinds = 6;
inline constexpr std::array<const char*, kSpentKinds> kSpentNames = {
    "F", "B", "U", "other", "communication", "data"};
Spent spent_on(const Instruction& one);

// Records what one rank does. Noting takes three stores: it neither allocates nor locks.
class Recorder {
 public:
  static constexpr uint64_t kKept = 64;
  // Keeps what one thread of the rank does.
  class alignas(64) Line {
   public:
    void note(const char* label, int64_t step, double now_us) {
      const uint64_t number = count_.load(std::memory_order_relaxed);
      Entry& entry = entries_[number % kKept];
      entry.label.store(label, std::memory_order_relaxed);
      entry.step.store(step, std::memory_order_relaxed);
      entry.began_us.store(now_us, std::memory_order_relaxed);
      count_.store(number + 1, std::memory_order_release);
    }
    void spend(Spent on, double us) { spent_us_[static_cast<size_t>(on)] += us; }
    double spent_us(size_t kind) const { return spent_us_[kind]; }  // by the rank's own thread

   private:
    friend class Recorder;
    struct Entry {
      std::atomic<const char*> label{nullptr};
      std::atomic<int64_t> step{0};
      std::atomic<double> began_us{0};
    };
    std::atomic<uint64_t> count_{0};
    std::array<Entry, kKept> entries_;
    std::array<double, kSpentKinds> spent_us_ = {};
  };

  // Requires the rank's own thread. `folder`: where files go; "": nowhere.
  Recorder(int64_t rank, Seat& seat, const std::string& folder);
  ~Recorder();
  Recorder(const Recorder&) = delete;

  Line lines[2];  // the rank's own thread, and its helper
  // So long may the rank stand still before others give it up, in seconds.
  void set_patience(double seconds) { patience_s_.store(seconds, std::memory_order_relaxed); }
  // Writes the file, with the stack of the calling thread or of the rank's own. May be called by a
  // handler of signals. Nothing without a folder.
  enum class Stack { kNone, kOfCaller, kOfRank };
  void write(const char* why, Stack stack);
  const char* path() const { return path_.data(); }  // "": none

 private:
  friend class Watchman;
  uint64_t done() const;
  void write_line(int file, const Line& line, const char* name, double now_us) const;
  bool stands_still(double now_us);

  const int64_t rank_;
  Seat& seat_;
  const pthread_t thread_;
  std::array<char, 1024> path_ = {};
  std::atomic<double> patience_s_{0};
  std::atomic<bool> is_written_{false};
  // The watchman's: what it saw last, and since when.
  uint64_t seen_done_ = 0;
  int64_t seen_look_ = 0;
  double since_us_ = 0;
  bool was_written_ = false;
};

// Watches the ranks of this process while it lives: writes what they did when one stands still or
// the process crashes.
class Watchman {
 public:
  Watchman();
  ~Watchman();
  Watchman(const Watchman&) = delete;
  // Writes the files of all ranks here that have none, each with its stack.
  static void write_all(const char* why);

 private:
  struct Thread;
  std::unique_ptr<Thread> thread_;
};

}  // namespace piper
