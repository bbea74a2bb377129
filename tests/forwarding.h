// Fabrics and Controls that others stand behind: tests change a call of it, or count.
#pragma once

#include "piper/devices/fabric.h"

namespace piper {

class Forwarding : public Fabric {
 public:
  explicit Forwarding(Fabric& inner) : inner_(inner) {}
  std::string_view name() const override { return inner_.name(); }
  int64_t rank() const override { return inner_.rank(); }
  int64_t world() const override { return inner_.world(); }
  bool is_asynchronous() const override { return inner_.is_asynchronous(); }
  bool is_capturable() const override { return inner_.is_capturable(); }
  Status prepare(const std::function<Status()>& calls) override { return inner_.prepare(calls); }
  Status poll() override { return inner_.poll(); }
  void abort() override { inner_.abort(); }
  Result<int32_t> add_send(int64_t peer, int32_t communicator, int64_t most,
                           int32_t stream) override {
    return inner_.add_send(peer, communicator, most, stream);
  }
  Result<int32_t> add_recv(int64_t peer, int32_t communicator, int32_t stream) override {
    return inner_.add_recv(peer, communicator, stream);
  }
  Status add_message(std::span<const MessagePart> parts) override {
    return inner_.add_message(parts);
  }
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator,
                            int32_t stream) override {
    return inner_.add_group(ranks, communicator, stream);
  }
  Status send(int32_t route, const std::byte* data, int64_t bytes) override {
    return inner_.send(route, data, bytes);
  }
  Status recv(int32_t route, std::byte* to, int64_t bytes) override {
    return inner_.recv(route, to, bytes);
  }
  Status send(int32_t route, std::span<const MessagePart> parts) override {
    return inner_.send(route, parts);
  }
  Status recv(int32_t route, std::span<const MessagePart> parts) override {
    return inner_.recv(route, parts);
  }
  Status run(int32_t group, const Collective& collective) override {
    return inner_.run(group, collective);
  }
  Status wait_sends() override { return inner_.wait_sends(); }

 protected:
  Fabric& inner_;
};

// Counts what a rank tells and hears.
class Counting final : public Control {
 public:
  explicit Counting(Control& inner) : inner_(inner) {}
  int64_t rank() const override { return inner_.rank(); }
  int64_t world() const override { return inner_.world(); }
  Status tell(int64_t rank, std::span<const std::byte> bytes) override {
    ++messages;
    told += std::ssize(bytes);
    return inner_.tell(rank, bytes);
  }
  Status hear(int64_t rank, std::span<std::byte> bytes, const char* what) override {
    ++messages;
    told += std::ssize(bytes);
    return inner_.hear(rank, bytes, what);
  }
  void abort(const Error& reason) override { inner_.abort(reason); }
  void set_timeout(double seconds) override { inner_.set_timeout(seconds); }
  double timeout() const override { return inner_.timeout(); }
  Status check_stopped() override { return inner_.check_stopped(); }
  Seat& seat() override { return inner_.seat(); }
  int64_t messages = 0, told = 0;

 private:
  Control& inner_;
};

}  // namespace piper
