// The two faces of the engine that an executor sees: a backend and a transport for each rank.
#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "engine.h"
#include "piper/devices/cpu.h"
#include "support/sim.h"

namespace piper {
namespace {

using sim::Engine;
using sim::Range;
using sim::Work;

class Device final : public Backend {
 public:
  Device(Engine& engine, Control& control)
      : engine_(engine), rank_(control.rank()), label_(control.activity()) {
    streams_.push_back(engine.add_stream(rank_));
  }

  std::string_view name() const override { return "sim"; }
  bool is_asynchronous() const override { return true; }
  Result<std::byte*> allocate(int64_t bytes, Space) override {
    PIPER_ASSIGN(std::byte* const block, kernels_->allocate(bytes));
    engine_.shadow().add(block, bytes);
    return block;
  }
  Result<int32_t> load(const Program& program) override {
    PIPER_ASSIGN(const int32_t loaded, kernels_->load(program));
    programs_.push_back(program);
    return loaded;
  }
  bool runs(std::string_view target) const override { return kernels_->runs(target); }
  RoleProgram prepare(RoleProgram role) const override {
    return kernels_->prepare(std::move(role));
  }
  int64_t workspace_bytes(int32_t program) const override {
    return kernels_->workspace_bytes(program);
  }
  Result<int32_t> bind(int32_t program, std::span<std::byte* const> args,
                       std::byte* workspace) override {
    PIPER_ASSIGN(const int32_t bound, kernels_->bind(program, args, workspace));
    const Program& of = programs_[static_cast<size_t>(program)];
    std::vector<Range>& ranges = ranges_.emplace_back();
    for (size_t i = 0; i < args.size(); ++i)
      ranges.push_back({args[i], of.values[i].bytes(), of.arg_written[i]});
    ranges.push_back({workspace, kernels_->workspace_bytes(program), true});
    return bound;
  }

  Result<int32_t> add_stream(const Stream&) override {
    streams_.push_back(engine_.add_stream(rank_));
    return static_cast<int32_t>(streams_.size() - 1);
  }
  Result<int32_t> add_event() override { return engine_.add_event(); }
  void record(int32_t event, int32_t stream) override {
    engine_.record(line(stream), event, label_.load());
  }
  void wait(int32_t event, int32_t stream) override {
    engine_.wait(line(stream), event, label_.load());
  }
  Status finish(int32_t event) override { return engine_.finish(rank_, event); }
  // Whoever asks has nothing else to do.
  Result<bool> is_done(int32_t event) override {
    PIPER_TRY(engine_.finish(rank_, event));
    return true;
  }
  void host_uses(const std::byte* at, int64_t bytes, bool writes) override {
    engine_.host_uses(rank_, {at, bytes, writes}, label_.load());
  }

  void launch(int32_t binding, int32_t stream) override {
    queue(stream, ranges_[static_cast<size_t>(binding)],
          [this, binding] { kernels_->launch(binding); });
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes, int32_t stream) override {
    queue(stream, {{from, bytes, false}, {to, bytes, true}},
          [this, to, from, bytes] { kernels_->copy(to, from, bytes); });
  }
  void fill(std::byte* to, const TensorType& type, double value, int32_t stream) override {
    queue(stream, {{to, type.bytes(), true}},
          [this, to, type, value] { kernels_->fill(to, type, value); });
  }

  int32_t line(int32_t stream) const { return streams_[static_cast<size_t>(stream)]; }

 private:
  void queue(int32_t stream, std::vector<Range> ranges, std::function<void()> run) {
    Work work;
    work.label = label_.load();
    work.ranges = std::move(ranges);
    work.run = std::move(run);
    engine_.queue(line(stream), std::move(work));
  }

  Engine& engine_;
  const int64_t rank_;
  const std::atomic<const char*>& label_;
  std::unique_ptr<Backend> kernels_ = make_cpu_backend();
  std::vector<int32_t> streams_;  // of the engine
  std::vector<Program> programs_;
  std::vector<std::vector<Range>> ranges_;  // by binding
};

// Hosts that take turns on one thread have nothing to say to each other.
class Silence final : public Control {
 public:
  Silence(int64_t rank, int64_t world) : rank_(rank), world_(world) {
    seat_.activity.store("its start");
  }
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return world_; }
  Status tell(int64_t, std::span<const std::byte>) override { return nobody(); }
  Status hear(int64_t, std::span<std::byte>, const char*) override { return nobody(); }
  void abort(const Error&) override {}
  void set_timeout(double seconds) override { timeout_ = seconds; }
  double timeout() const override { return timeout_; }
  Status check_stopped() override { return ok_status(); }
  Seat& seat() override { return seat_; }

 private:
  static Error nobody() { return fail("no host of a simulated job hears another"); }
  const int64_t rank_, world_;
  double timeout_ = TransportOptions{}.timeout_s;
  Seat seat_;
};

class Ends final : public Transport, public Fabric {
 public:
  Ends(Engine& engine, Control& control, Device& device)
      : engine_(engine), rank_(control.rank()), control_(control), device_(device) {}

  Control& control() override { return control_; }
  Fabric& fabric() override { return *this; }

  std::string_view name() const override { return "sim"; }
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return control_.world(); }
  bool is_asynchronous() const override { return true; }
  Status add_message(std::span<const MessagePart>) override { return ok_status(); }
  Status wait_sends() override {
    for (Seat& seat : seats_) seat.sent = 0;
    return ok_status();
  }

  Result<int32_t> add_send(int64_t peer, int32_t communicator, int64_t in_flight,
                           int32_t stream) override {
    const int32_t made =
        seat(fmt::format("message {} {} {}", rank_, peer, communicator), {rank_, peer}, 0, stream);
    seats_.back().in_flight = in_flight;
    return made;
  }
  Result<int32_t> add_recv(int64_t peer, int32_t communicator, int32_t stream) override {
    return seat(fmt::format("message {} {} {}", peer, rank_, communicator), {peer, rank_}, 1,
                stream);
  }
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator,
                            int32_t stream) override {
    const auto own = std::find(ranks.begin(), ranks.end(), rank_);
    return seat(fmt::format("group {} [{}]", communicator, fmt::join(ranks, " ")),
                {ranks.begin(), ranks.end()}, static_cast<size_t>(own - ranks.begin()), stream);
  }

  Status send(int32_t route, const std::byte* data, int64_t bytes) override {
    const MessagePart whole{const_cast<std::byte*>(data), bytes};
    return send(route, {&whole, 1});
  }
  Status recv(int32_t route, std::byte* to, int64_t bytes) override {
    const MessagePart whole{to, bytes};
    return recv(route, {&whole, 1});
  }
  Status send(int32_t route, std::span<const MessagePart> parts) override {
    Seat& seat = seats_[static_cast<size_t>(route)];
    if (++seat.sent > seat.in_flight)
      return fail("rank {} sends more than {} messages between two wait_sends", rank_,
                  seat.in_flight);
    return message(route, InstructionKind::kSend, parts);
  }
  Status recv(int32_t route, std::span<const MessagePart> parts) override {
    return message(route, InstructionKind::kRecv, parts);
  }

  Status run(int32_t group, const Collective& collective) override {
    Work work = standing(group, collective.kind);
    work.brings = collective;
    work.ranges =
        ranges_of(collective, static_cast<int64_t>(seats_[static_cast<size_t>(group)].members));
    return queue(group, std::move(work));
  }

 private:
  struct Seat {
    int32_t communicator = 0;
    size_t member = 0, members = 0;
    int32_t stream = 0;
    int64_t in_flight = 0, sent = 0;  // messages between two wait_sends
  };

  int32_t seat(const std::string& key, std::vector<int64_t> ranks, size_t member, int32_t stream) {
    const size_t members = ranks.size();
    seats_.push_back({engine_.add_communicator(key, std::move(ranks)), member, members, stream});
    return static_cast<int32_t>(seats_.size() - 1);
  }

  static std::vector<Range> ranges_of(const Collective& of, int64_t members) {
    std::vector<Range> ranges;
    for (const Piece& piece : of.pieces)
      ranges.push_back({piece.data, piece.count * info(piece.dtype).bytes, true});
    const bool writes_whole =
        of.kind == InstructionKind::kAllGather || of.kind == InstructionKind::kDispatch;
    for (const Shard& one : of.shards) {
      const int64_t size = info(one.dtype).bytes;
      ranges.push_back({one.whole, one.count * size, writes_whole});
      ranges.push_back({one.part, one.part_count * size, !writes_whole});
    }
    // Blocks of several exchanges may be between each other: what each touches, run by run.
    for (const Exchange& one : of.exchanges)
      for (int64_t m = 0; m < members; ++m)
        one.for_each_run(0, one.block_bytes(), [&](int64_t f, int64_t t, int64_t, int64_t bytes) {
          ranges.push_back({one.from + m * one.from_block + f, bytes, false});
          ranges.push_back({one.to + m * one.to_block + t, bytes, true});
        });
    for (const Turn& turn : of.turns) {
      ranges.push_back({turn.from, turn.bytes, false});
      ranges.push_back({turn.to, turn.bytes, true});
    }
    for (const Rows& rows : of.rows) {
      const int64_t whole = rows.count * rows.row_bytes;
      ranges.push_back({rows.index, rows.count * (rows.wide ? 8 : 4), false});
      ranges.push_back({rows.whole, whole, writes_whole});
      ranges.push_back({rows.part, whole / rows.members, !writes_whole});
    }
    return ranges;
  }

  Status message(int32_t route, InstructionKind kind, std::span<const MessagePart> parts) {
    Work work = standing(route, kind);
    work.parts.assign(parts.begin(), parts.end());
    for (const MessagePart& part : parts) {
      work.ranges.push_back({part.data, part.bytes, kind == InstructionKind::kRecv});
    }
    return queue(route, std::move(work));
  }
  Work standing(int32_t handle, InstructionKind kind) const {
    const Seat& seat = seats_[static_cast<size_t>(handle)];
    Work work;
    work.kind = Work::kMeet;
    work.label = control_.activity().load();
    work.what = kind;
    work.communicator = seat.communicator;
    work.member = seat.member;
    return work;
  }
  Status queue(int32_t handle, Work work) {
    engine_.queue(device_.line(seats_[static_cast<size_t>(handle)].stream), std::move(work));
    return ok_status();
  }

  Engine& engine_;
  const int64_t rank_;
  Control& control_;
  Device& device_;
  std::vector<Seat> seats_;
};

class World final : public SimWorld {
 public:
  World(int64_t world, uint64_t seed) : engine_(world, seed) {
    for (int64_t rank = 0; rank < world; ++rank) {
      places_.emplace_back(engine_, rank, world);
    }
  }
  Backend& device(int64_t rank) override { return places_[static_cast<size_t>(rank)].device; }
  Transport& transport(int64_t rank) override { return places_[static_cast<size_t>(rank)].ends; }
  Status drain() override { return engine_.drain(); }

 private:
  struct Place {
    Place(Engine& engine, int64_t rank, int64_t world)
        : control(rank, world), device(engine, control), ends(engine, control, device) {}
    Silence control;
    Device device;
    Ends ends;
  };
  Engine engine_;
  std::deque<Place> places_;
};

}  // namespace

std::unique_ptr<SimWorld> make_sim_world(int64_t world, uint64_t seed) {
  PIPER_CHECK(world > 0, "a world of {} ranks", world);
  return std::make_unique<World>(world, seed);
}

}  // namespace piper
