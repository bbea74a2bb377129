// A transport between processes: its Control over a wire, beside the fabric.
#include <chrono>
#include <deque>

#include "process_fabric.h"

namespace piper::process {
namespace {

class ProcessControl final : public Control {
 public:
  explicit ProcessControl(Peers& peers) : peers_(peers) {}
  // What was told leaves before the end, unless an error has ended the job.
  ~ProcessControl() override {
    constexpr std::chrono::seconds kParting{1};
    constexpr double kRest = 0.05;  // seconds
    const auto until = std::chrono::steady_clock::now() + kParting;
    while (!peers_.has_ended() && forget_sent() && !told_.empty() &&
           std::chrono::steady_clock::now() < until)
      peers_.wire().rest(kRest);
  }

  int64_t rank() const override { return peers_.rank(); }
  int64_t world() const override { return peers_.world(); }
  void set_timeout(double seconds) override { peers_.set_timeout(seconds); }
  double timeout() const override { return peers_.timeout(); }
  Seat& seat() override { return peers_.memory().own().seat; }
  std::vector<int64_t> find_stuck(std::span<const int64_t> ranks) override {
    return peers_.find_stuck(ranks);
  }
  void abort(const Error& reason) override { peers_.abort(reason); }
  Status check_stopped() override {
    peers_.wire().rest(0);  // what has come is heard
    return peers_.wire().check_stopped();
  }

  Status agree(const PlanIdentity& own) override {
    PIPER_TRY(Control::agree(own));
    peers_.note_all_have_come();
    return ok_status();
  }

  Status tell(int64_t rank, std::span<const std::byte> bytes) override {
    PIPER_TRY(forget_sent());
    Told& told = told_.emplace_back();
    told.bytes.assign(bytes.begin(), bytes.end());
    told.transfer.peer = rank;
    const MessagePart part{told.bytes.data(), std::ssize(told.bytes)};
    return peers_.wire().send(told.transfer, {rank, Lane::kControl, 0}, std::span(&part, 1));
  }

  Status hear(int64_t rank, std::span<std::byte> bytes, const char* what) override {
    const MessagePart part{bytes.data(), std::ssize(bytes)};
    Transfer transfer{.peer = rank, .bytes = part.bytes};
    PIPER_TRY(peers_.wire().receive(transfer, {rank, Lane::kControl, 0}, std::span(&part, 1)));
    return peers_.wait(std::span(&transfer, 1), what);
  }

 private:
  // Holds bytes that were told and may not have left yet.
  struct Told {
    Transfer transfer;
    std::vector<std::byte> bytes;
  };
  Status forget_sent() {
    Status status = ok_status();
    while (!told_.empty() && status && peers_.is_done(told_.front().transfer, status, "message"))
      told_.pop_front();
    return status;
  }

  Peers& peers_;
  std::deque<Told> told_;
};

class ProcessTransport final : public Transport {
 public:
  ProcessTransport(std::unique_ptr<Wire> wire, const TransportOptions& options)
      : peers_(std::move(wire), options.timeout_s),
        fabric_(peers_, options.shared_memory),
        control_(peers_) {}
  Control& control() override { return control_; }
  Fabric& fabric() override { return fabric_; }

 private:
  Peers peers_;
  ProcessFabric fabric_;
  ProcessControl control_;  // what it tells at the end leaves while the fabric's memory is there
};

}  // namespace

std::unique_ptr<Transport> make_process_transport(std::unique_ptr<Wire> wire,
                                                  const TransportOptions& options) {
  return std::make_unique<ProcessTransport>(std::move(wire), options);
}

}  // namespace piper::process
