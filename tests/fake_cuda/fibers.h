// Threads of a block as fibers of one thread of the system: each has a stack, and runs until it
// stops itself.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace piper::emulator {

class Fibers {
 public:
  // What a fiber does when it is started, with its number; when that returns, it is idle.
  explicit Fibers(std::function<void(size_t)> body);
  ~Fibers();
  Fibers(const Fibers&) = delete;
  Fibers& operator=(const Fibers&) = delete;

  // Starts it where it is idle, or goes on where it stopped; returns when it stops or is idle.
  void resume(size_t fiber);
  // Called by the fiber that runs.
  void stop();
  bool is_idle(size_t fiber) const;
  // Whatever stopped is never resumed: all are idle.
  void abandon();
  std::pair<uintptr_t, size_t> stack(size_t fiber) const;

 private:
  struct Fiber;
  static void enter();
  void run(Fiber& fiber);
  void prepare(Fiber& fiber);
  void to_fiber(Fiber& fiber);
  void to_host(Fiber& fiber);
  Fiber& at(size_t fiber);

  std::function<void(size_t)> body_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  Fiber* running_ = nullptr;
  struct Host;
  std::unique_ptr<Host> host_;
};

}  // namespace piper::emulator
