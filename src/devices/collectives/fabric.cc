// The fabric: prepares each collective before the first step, or when it is first called, and
// queues its stages.
#include <algorithm>
#include <map>

#include "stages.h"

namespace piper {
namespace device_fabric {

Result<std::byte*> Slots::at_least(int32_t stream, int64_t bytes) {
  auto region = std::find_if(regions_.begin(), regions_.end(),
                             [&](const Region& each) { return each.stream == stream; });
  if (region == regions_.end()) region = regions_.insert(regions_.end(), {stream, 0, nullptr});
  if (bytes > region->bytes || region->at == nullptr) {
    if (const auto s = static_cast<size_t>(stream); s < reserved_.size()) {
      if (bytes > reserved_[s])
        return fail("a collective on stream {} takes {} bytes for its blocks, the plan states {}",
                    stream, bytes, reserved_[s])
            .with_code(ExitCode::kPlan);
      bytes = reserved_[s];
    }
    PIPER_ASSIGN(region->at, backend_.allocate(bytes));
    region->bytes = bytes;
  }
  return region->at;
}

Result<std::span<std::byte>> Slots::reserve(int32_t stream) {
  const auto s = static_cast<size_t>(stream);
  if (s >= reserved_.size() || reserved_[s] == 0 ||
      std::ranges::any_of(regions_, [&](const Region& each) { return each.stream == stream; }))
    return std::span<std::byte>();
  PIPER_ASSIGN(std::byte* const at, at_least(stream, reserved_[s]));
  return std::span(at, static_cast<size_t>(reserved_[s]));
}

namespace {

// Keeps what a collective was prepared of; a plan's is the same in every step.
class Call {
 public:
  explicit Call(const Collective& of)
      : kind_(of.kind),
        fast_(of.fast),
        pieces_(of.pieces.begin(), of.pieces.end()),
        shards_(of.shards.begin(), of.shards.end()),
        exchanges_(of.exchanges.begin(), of.exchanges.end()),
        turns_(of.turns.begin(), of.turns.end()),
        rows_(of.rows.begin(), of.rows.end()) {}
  Collective collective() const {
    return {kind_, fast_, pieces_, shards_, exchanges_, turns_, rows_};
  }
  bool is(const Collective& other) const {
    return kind_ == other.kind && fast_ == other.fast &&
           std::ranges::equal(pieces_, other.pieces) && std::ranges::equal(shards_, other.shards) &&
           std::ranges::equal(exchanges_, other.exchanges) &&
           std::ranges::equal(turns_, other.turns) && std::ranges::equal(rows_, other.rows);
  }

 private:
  InstructionKind kind_;
  bool fast_;
  std::vector<Piece> pieces_;
  std::vector<Shard> shards_;
  std::vector<Exchange> exchanges_;
  std::vector<Turn> turns_;
  std::vector<Rows> rows_;
};
struct Prepared {
  Call call;
  Stages stages;
};

// Returns where the first operand is: calls of a plan differ in it.
const void* operands_of(const Collective& of) {
  if (!of.pieces.empty()) return of.pieces.data();
  if (!of.shards.empty()) return of.shards.data();
  if (!of.exchanges.empty()) return of.exchanges.data();
  if (!of.turns.empty()) return of.turns.data();
  return of.rows.data();
}

class DeviceFabric final : public Fabric {
 public:
  DeviceFabric(Backend& backend, Control& control, std::unique_ptr<Links> links,
               std::vector<int64_t> reserved, int64_t limit, std::vector<int64_t> workspaces,
               int64_t scratch_bytes)
      : backend_(backend),
        rank_(control.rank()),
        world_(control.world()),
        links_(std::move(links)),
        slots_(backend, std::move(reserved), limit),
        arithmetic_(backend, std::move(workspaces)),
        scratch_bytes_(scratch_bytes) {}

  std::string_view name() const override { return links_->name(); }
  int64_t rank() const override { return rank_; }
  int64_t world() const override { return world_; }
  bool is_asynchronous() const override { return backend_.is_asynchronous(); }
  bool is_capturable() const override { return links_->is_capturable(); }
  Links& links() { return *links_; }

  Status add_memory(std::byte* at, int64_t bytes, std::string_view layout) override {
    return links_->add_memory(at, bytes, layout);
  }
  Result<int32_t> add_send(int64_t peer, int32_t communicator, int64_t in_flight,
                           int32_t stream) override {
    PIPER_TRY(check_peer(rank_, world_, peer));
    PIPER_TRY(give_scratch());
    return links_->add_pair(rank_, peer, communicator, stream, in_flight);
  }
  Result<int32_t> add_recv(int64_t peer, int32_t communicator, int32_t stream) override {
    PIPER_TRY(check_peer(rank_, world_, peer));
    PIPER_TRY(give_scratch());
    return links_->add_pair(peer, rank_, communicator, stream, 0);
  }
  Status add_message(std::span<const MessagePart>) override { return ok_status(); }
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator,
                            int32_t stream) override {
    PIPER_TRY(check_group(rank_, world_, ranks));
    PIPER_TRY(give_scratch());
    Seated seated{{ranks.begin(), ranks.end()}, 0, -1, stream};
    seated.own = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    PIPER_ASSIGN(const std::span<std::byte> slot, slots_.reserve(stream));
    if (!slot.empty()) PIPER_TRY(links_->add_memory(slot.data(), std::ssize(slot), "blocks"));
    PIPER_ASSIGN(seated.link, links_->add_group(ranks, communicator, stream));
    groups_.push_back(std::move(seated));
    return static_cast<int32_t>(groups_.size()) - 1;
  }

  Status prepare(const std::function<Status()>& calls) override {
    queues_ = false;
    Status prepared = calls();
    queues_ = true;
    return prepared;
  }

  Status send(int32_t route, std::span<const MessagePart> parts) override {
    return links_->send(route, parts);
  }
  Status recv(int32_t route, std::span<const MessagePart> parts) override {
    return links_->recv(route, parts);
  }

  Status run(int32_t group, const Collective& collective) override {
    const Seated& seated = groups_[static_cast<size_t>(group)];
    std::unique_ptr<Prepared>& prepared =
        prepared_[{operands_of(collective), collective.kind, group}];
    if (!prepared || !prepared->call.is(collective)) {
      auto fresh = std::make_unique<Prepared>(Prepared{Call(collective), {}});
      arithmetic_.use(seated.stream);
      Preparer preparer{seated, slots_, arithmetic_, links_->adds(), links_->gathers()};
      PIPER_ASSIGN(fresh->stages, preparer.prepare(fresh->call.collective()));
      prepared = std::move(fresh);
    }
    return queues_ ? queue(seated, prepared->stages) : ok_status();
  }
  Status wait_sends() override { return links_->wait_sends(); }
  Status poll() override { return links_->poll(); }
  void abort() override { links_->abort(); }

 private:
  // Gives the links their scratch before they open the first communicator.
  Status give_scratch() {
    if (scratch_bytes_ == 0) return ok_status();
    const auto bytes = static_cast<size_t>(std::exchange(scratch_bytes_, 0));
    PIPER_ASSIGN(std::byte* const at, backend_.allocate(static_cast<int64_t>(bytes)));
    links_->use_scratch({at, bytes});
    return ok_status();
  }
  Status queue(const Seated& seated, const Stages& stages) {
    for (const Stage& stage : stages) {
      switch (stage.kind) {
        case Stage::kExchange:
          PIPER_TRY(links_->exchange(seated.link, stage.outgoing, stage.incoming));
          break;
        case Stage::kMove:
          backend_.move(stage.move, seated.stream);
          break;
        case Stage::kLaunch:
          backend_.launch(stage.binding, seated.stream);
          break;
        case Stage::kAdd:
          PIPER_TRY(links_->add_up(seated.link, stage.sums));
          break;
        case Stage::kGather:
          PIPER_TRY(links_->gather(seated.link, stage.gathers));
          break;
        case Stage::kFill:
          backend_.fill(stage.to, stage.type, 0, seated.stream);
          break;
      }
    }
    return ok_status();
  }

  Backend& backend_;
  const int64_t rank_, world_;
  std::unique_ptr<Links> links_;
  Slots slots_;
  Arithmetic arithmetic_;
  int64_t scratch_bytes_ = 0;  // that the links are still to be given
  bool queues_ = true;
  std::vector<Seated> groups_;
  std::map<std::tuple<const void*, InstructionKind, int32_t>, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace

Links& links_of(Fabric& fabric) { return static_cast<DeviceFabric&>(fabric).links(); }

}  // namespace device_fabric

std::unique_ptr<Fabric> make_device_fabric(Backend& backend, Control& control,
                                           std::unique_ptr<Links> links,
                                           std::vector<int64_t> reserved, int64_t limit,
                                           std::vector<int64_t> workspaces, int64_t scratch_bytes) {
  return std::make_unique<device_fabric::DeviceFabric>(backend, control, std::move(links),
                                                       std::move(reserved), limit,
                                                       std::move(workspaces), scratch_bytes);
}

}  // namespace piper
