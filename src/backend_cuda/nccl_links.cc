// Links between processes that each have a device: NCCL's sends and receives, a communicator for
// each of the plan's. All that a block of an exchange is goes into one group, so that nobody waits
// for an order among them.
//
// Communicators do not block: each call may come back before it is done, and the host asks until it
// is, for as long as it waits for anything. NCCL itself finds no peer that hangs.
#include "nccl_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>

namespace piper::cuda {
namespace {

int type_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return kNcclF64;
    case DType::kF32:
      return kNcclF32;
    case DType::kBF16:
      return kNcclBF16;
    case DType::kF16:
      return kNcclF16;
    case DType::kI64:
      return kNcclInt64;
    case DType::kI32:
      return kNcclInt32;
    case DType::kBool:
      break;
  }
  PIPER_CHECK(false, "nothing adds booleans");
  return kNcclInt8;
}

constexpr int kOldestForSeveral =
    22600;  // below, communicators of one device may wait for each other

class NcclLinks final : public Links {
 public:
  NcclLinks(const Nccl& nccl, Device& device, Control& control)
      : nccl_(nccl), device_(device), control_(control) {}
  ~NcclLinks() override {
    device_.end_graphs();
    for (const Communicator& each : communicators_) {
      if (is_broken_) {
        nccl_.ncclCommAbort(each.handle);
        continue;
      }
      const bool ends = !failed(nccl_.ncclCommFinalize(each.handle)) && settle(each).ok();
      ends ? nccl_.ncclCommDestroy(each.handle) : nccl_.ncclCommAbort(each.handle);
    }
  }
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  std::string_view name() const override { return "nccl"; }
  // Before this driver NCCL lets what is captured run one after the other, as the host has called
  // it: then a send that waits for its receiver keeps back what that one waits for.
  bool is_capturable() const override {
    constexpr int kCapturesInParallel = 12090;
    int version = 0;
    return device_.driver().cuDriverGetVersion(&version) == 0 && version >= kCapturesInParallel;
  }

  Result<int32_t> add_pair(int64_t from, int64_t to, int32_t communicator, int32_t stream,
                           int64_t) override {
    const int64_t ranks[] = {from, to};
    return open(ranks, communicator, stream);
  }
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator,
                            int32_t stream) override {
    return open(ranks, communicator, stream);
  }

  Status send(int32_t pair, std::span<const MessagePart> parts) override {
    constexpr int kReceiver = 1;
    return together(pair, [&](const Communicator& on) {
      int code = 0;
      for (const MessagePart& part : parts)
        if (part.bytes > 0 && !failed(code))
          code = nccl_.ncclSend(part.data, static_cast<size_t>(part.bytes), kNcclInt8, kReceiver,
                                on.handle, stream_of(on));
      return code;
    });
  }
  Status recv(int32_t pair, std::span<const MessagePart> parts) override {
    constexpr int kSender = 0;
    return together(pair, [&](const Communicator& on) {
      int code = 0;
      for (const MessagePart& part : parts)
        if (part.bytes > 0 && !failed(code))
          code = nccl_.ncclRecv(part.data, static_cast<size_t>(part.bytes), kNcclInt8, kSender,
                                on.handle, stream_of(on));
      return code;
    });
  }

  Status exchange(int32_t group, std::span<const Block> outgoing,
                  std::span<const Block> incoming) override {
    device_.enter();
    if (!device_.has_failed) PIPER_TRY(copy_own(group, outgoing, incoming));
    return together(group, [&](const Communicator& on) {
      int code = 0;
      for (const Block& block : outgoing)
        if (block.member != on.own && !failed(code))
          code = nccl_.ncclSend(block.data, static_cast<size_t>(block.bytes), kNcclInt8,
                                static_cast<int>(block.member), on.handle, stream_of(on));
      for (const Block& block : incoming)
        if (block.member != on.own && !failed(code))
          code = nccl_.ncclRecv(block.data, static_cast<size_t>(block.bytes), kNcclInt8,
                                static_cast<int>(block.member), on.handle, stream_of(on));
      return code;
    });
  }

  bool adds() const override { return true; }
  Status add_up(int32_t group, std::span<const Piece> pieces) override {
    return together(group, [&](const Communicator& on) {
      int code = 0;
      for (const Piece& piece : pieces)
        if (piece.count > 0 && !failed(code))
          code = nccl_.ncclAllReduce(
              piece.data, piece.data, static_cast<size_t>(piece.count), type_of(piece.dtype),
              piece.reduction == Reduction::kSum ? kNcclSum : kNcclMax, on.handle, stream_of(on));
      return code;
    });
  }

  // A send on its stream is done when its bytes have left.
  Status wait_sends() override { return ok_status(); }

  Status poll() override {
    for (const Communicator& each : communicators_) {
      int state = 0;
      const int code = nccl_.ncclCommGetAsyncError(each.handle, &state);
      if (failed(code) || failed(state)) return error_of(each, failed(code) ? code : state);
    }
    return ok_status();
  }
  void abort() override { is_broken_ = true; }

 private:
  struct Communicator {
    NcclComm* handle = nullptr;
    std::string label;  // "communicator 3 of ranks [0,2]"
    int64_t own = 0;    // position
    int32_t stream = 0;
  };

  static bool failed(int code) { return code != 0 && code != kNcclInProgress; }
  CuStream* stream_of(const Communicator& on) const { return device_.stream(on.stream); }

  Error error_of(const Communicator& on, int code) {
    is_broken_ = true;
    const char* const last = nccl_.ncclGetLastError(on.handle);
    Error error =
        fail("rank {}, {}: NCCL: {}", control_.rank(), on.label, nccl_.ncclGetErrorString(code))
            .with_code(ExitCode::kPeer);
    if (last && *last) error.notes.emplace_back(last);
    return error;
  }

  // Until what was called last on it is done.
  Status settle(const Communicator& on) {
    const auto start = std::chrono::steady_clock::now();
    for (;;) {
      int state = 0;
      if (const int code = nccl_.ncclCommGetAsyncError(on.handle, &state); failed(code))
        return error_of(on, code);
      if (failed(state)) return error_of(on, state);
      if (state == 0) return ok_status();
      PIPER_TRY(control_.check_stopped());
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
      if (waited.count() > control_.timeout()) {
        is_broken_ = true;
        return fail("rank {} waited {:.3g} s for the other ranks of {}", control_.rank(),
                    control_.timeout(), on.label)
            .with_code(ExitCode::kPeer);
      }
      std::this_thread::yield();
    }
  }

  template <class Calls>
  Status together(int32_t number, Calls calls) {
    const Communicator& on = communicators_[static_cast<size_t>(number)];
    if (device_.has_failed) return ok_status();
    device_.enter();
    int code = nccl_.ncclGroupStart();
    if (!failed(code)) code = calls(on);
    const int end = nccl_.ncclGroupEnd();
    if (failed(code) || failed(end)) return error_of(on, failed(code) ? code : end);
    return end == kNcclInProgress ? settle(on) : ok_status();
  }

  Status copy_own(int32_t number, std::span<const Block> outgoing,
                  std::span<const Block> incoming) {
    const Communicator& on = communicators_[static_cast<size_t>(number)];
    size_t from = 0;
    for (const Block& to : incoming) {
      if (to.member != on.own) continue;
      while (from < outgoing.size() && outgoing[from].member != on.own) ++from;
      PIPER_CHECK(from < outgoing.size() && outgoing[from].bytes == to.bytes,
                  "a member expects what it does not bring");
      if (outgoing[from].data != to.data)
        PIPER_CU(device_.driver(), cuMemcpyAsync, reinterpret_cast<CuAddress>(to.data),
                 reinterpret_cast<CuAddress>(outgoing[from].data), static_cast<size_t>(to.bytes),
                 stream_of(on));
      ++from;
    }
    return ok_status();
  }

  // The first of the ranks makes the name by which the others find the communicator.
  Result<NcclId> name_of(std::span<const int64_t> ranks) {
    NcclId id;
    const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(id.bytes), sizeof id.bytes);
    if (ranks[0] != control_.rank()) {
      PIPER_TRY(control_.hear(ranks[0], bytes, "name of a communicator"));
      return id;
    }
    if (const int code = nccl_.ncclGetUniqueId(&id); failed(code))
      return fail("NCCL: {}", nccl_.ncclGetErrorString(code)).with_code(ExitCode::kPeer);
    for (const int64_t rank : ranks.subspan(1)) PIPER_TRY(control_.tell(rank, bytes));
    return id;
  }

  Result<int32_t> open(std::span<const int64_t> ranks, int32_t communicator, int32_t stream) {
    Communicator made{
        nullptr, fmt::format("communicator {} of ranks [{}]", communicator, fmt::join(ranks, ",")),
        std::find(ranks.begin(), ranks.end(), control_.rank()) - ranks.begin(), stream};
    device_.enter();
    PIPER_ASSIGN(const NcclId id, name_of(ranks));
    NcclConfig config;
    config.blocking = 0;
    config.shares = 0;
    if (const int64_t limit = device_.limit_of(stream); limit > 0)
      config.most_blocks = static_cast<int>(std::min<int64_t>(limit, kMostBlocks));
    const int code = nccl_.ncclCommInitRankConfig(&made.handle, static_cast<int>(ranks.size()), id,
                                                  static_cast<int>(made.own), &config);
    communicators_.push_back(std::move(made));
    if (failed(code)) return error_of(communicators_.back(), code);
    PIPER_TRY(settle(communicators_.back()));
    return static_cast<int32_t>(communicators_.size()) - 1;
  }
  static constexpr int64_t kMostBlocks = 32;

  const Nccl& nccl_;
  Device& device_;
  Control& control_;
  std::vector<Communicator> communicators_;
  bool is_broken_ = false;
};

}  // namespace

Result<std::unique_ptr<Links>> make_nccl_links(Device& device, Control& control) {
  // Kernels of several communicators run in the order in which the host has launched them.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
  PIPER_ASSIGN(const Opened<Nccl>* const nccl, opened<Nccl>());
  int version = 0;
  nccl->functions.ncclGetVersion(&version);
  if (version < kOldestForSeveral)
    return fail("{} is NCCL {}; Piper needs 2.26 or later", nccl->path, nccl->version);
  return std::unique_ptr<Links>(std::make_unique<NcclLinks>(nccl->functions, device, control));
}

}  // namespace piper::cuda
