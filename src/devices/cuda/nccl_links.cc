// Links between processes that each have a device: NCCL's sends and receives, with one of its
// communicators for each communicator of the plan. The sends and receives of one block of an
// exchange form one NCCL group, so that no order among them is waited for.
//
// The kernels of all communicators fit on the device at once (blocks_of), so that none waits for
// another one's end to begin. NCCL can also run kernels in the order of the host's calls. Then they
// would wait: a send that follows one not yet received holds back the receive for which its own
// peer waits (tests/cuda/communicator_orders_test.cc).
//
// Members are connected when a communicator is opened. NCCL would connect two members when one of
// them first sends to the other, and the host's call would wait until the other makes its first
// call on the same communicator: two ranks that begin two communicators in different orders would
// wait for each other for ever. All ranks open communicators in one order.
//
// Communicators do not block: a call may return before it is done, and the host asks until it is,
// but no longer than ranks wait for each other. NCCL itself does not notice a peer that hangs.
#include "nccl_links.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>
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
constexpr int kOldestWithWindows = 22700;
constexpr const char* kState = "ncclCommGetAsyncError";

// Return whether the plan leaves a sum to the library, and whether all get what each member has.
bool adds(const Instruction& one) { return one.fast; }
bool gathers(const Instruction& one) {
  return one.kind == InstructionKind::kAllGather || one.kind == InstructionKind::kDispatch;
}
std::set<int32_t> communicators_of(const RoleProgram& role, bool (*does)(const Instruction&)) {
  std::set<int32_t> found;
  for (const auto* section : role.sections())
    for (const Instruction& one : *section)
      if (does(one) && one.communicator >= 0) found.insert(one.communicator);
  return found;
}

class NcclLinks final : public Links {
 public:
  NcclLinks(const Nccl& nccl, const NcclWindows* windows, Device& device,
            const FabricSource& source)
      : nccl_(nccl),
        windows_(windows),
        device_(device),
        control_(source.control),
        listed_(source.role.communicators),
        adding_(communicators_of(source.role, cuda::adds)),
        gathering_(communicators_of(source.role, cuda::gathers)),
        most_blocks_(blocks_of(listed_, device.facts().multiprocessors).most) {}
  ~NcclLinks() override {
    device_.enter();
    if (!is_broken_) device_.end_graphs();
    if (is_broken_ || !finalize_all()) {
      abort_all();
      return;
    }
    for (const Joined& each : communicators_) nccl_.ncclCommDestroy(each.handle);
  }
  NcclLinks(const NcclLinks&) = delete;
  NcclLinks& operator=(const NcclLinks&) = delete;

  std::string_view name() const override { return "nccl"; }
  bool is_capturable() const override { return true; }

  Status add_memory(std::byte* at, int64_t bytes, std::string_view layout) override {
    const Device::Block block = device_.mapped_block(at);
    // What is not mapped, or may not be shown to other processes, is better not registered.
    if (block.bytes == 0 || device_.facts().shares_files == 0) return ok_status();
    const bool is_known = std::any_of(memory_.begin(), memory_.end(),
                                      [&](const auto& each) { return each.at == block.at; });
    if (!is_known) memory_.push_back(block);
    layout_ =
        digest(fmt::format("{} {} {} {} {}", layout_, layout, bytes, block.bytes, at - block.at));
    return ok_status();
  }

  void use_scratch(std::span<std::byte> scratch) override { scratch_ = scratch; }
  Result<int32_t> add_pair(int64_t from, int64_t to, int32_t communicator, int32_t stream,
                           int64_t) override {
    const int64_t ranks[] = {from, to};
    PIPER_ASSIGN(const int32_t pair, open(ranks, communicator, stream));
    PIPER_TRY(connect_pair(pair));
    return pair;
  }
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator,
                            int32_t stream) override {
    PIPER_ASSIGN(const int32_t group, open(ranks, communicator, stream));
    if (ranks.size() > 1) PIPER_TRY(connect_group(group, communicator));
    return group;
  }

  Status send(int32_t pair, std::span<const MessagePart> parts) override {
    constexpr int kReceiver = 1;
    return together("ncclSend", pair, [&](const Joined& on) {
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
    return together("ncclRecv", pair, [&](const Joined& on) {
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
    return together("ncclSend or ncclRecv", group, [&](const Joined& on) {
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
  Status add_up(int32_t group, std::span<const Sum> sums) override {
    return together("ncclAllReduce, ncclReduceScatter or ncclReduce", group, [&](const Joined& on) {
      int code = 0;
      for (const Sum& sum : sums)
        if (!failed(code)) code = add_up(on, sum);
      return code;
    });
  }

  bool gathers() const override { return true; }
  Status gather(int32_t group, std::span<const Gather> gathers) override {
    return together("ncclAllGather", group, [&](const Joined& on) {
      int code = 0;
      for (const Gather& each : gathers)
        if (!failed(code))
          code = nccl_.ncclAllGather(each.from, each.to, static_cast<size_t>(each.bytes), kNcclInt8,
                                     on.handle, stream_of(on));
      return code;
    });
  }

  // A send on its stream is done when its bytes have left.
  Status wait_sends() override { return ok_status(); }

  Status poll() override {
    for (const Joined& each : communicators_) {
      int state = 0;
      const int code = nccl_.ncclCommGetAsyncError(each.handle, &state);
      if (failed(code) || failed(state)) return error_of(each, kState, failed(code) ? code : state);
    }
    return ok_status();
  }
  void abort() override { is_broken_ = true; }

 private:
  struct Joined {
    NcclComm* handle = nullptr;
    std::string name, label;  // "communicator 3", "communicator 3 of ranks [0,2]"
    std::vector<int64_t> ranks;
    int64_t own = 0;  // position
    int32_t stream = 0;
    std::vector<NcclWindow*> windows;  // where NCCL writes them, which stay
    std::vector<void*> memories;
  };

  // Returns whether all communicators have ended what they do.
  bool finalize_all() {
    for (const Joined& each : communicators_) {
      for (NcclWindow* window : each.windows)
        windows_->ncclCommWindowDeregister(each.handle, window);
      for (void* memory : each.memories) nccl_.ncclCommDeregister(each.handle, memory);
      if (failed(nccl_.ncclCommFinalize(each.handle)) || !settle(each)) return false;
    }
    return true;
  }

  // Aborts all in one group: NCCL then tells the kernels of all to end before it waits for any. An
  // abort outside of a group waits for its communicator's streams at once, and there a kernel of
  // another communicator may wait for a peer that is gone. Graphs end in between: the driver waits
  // for a graph that runs, which such a kernel holds up until it is told, and at the group's end
  // NCCL waits until no graph has its kernels.
  void abort_all() {
    nccl_.ncclGroupStart();
    for (const Joined& each : communicators_)
      if (each.handle) nccl_.ncclCommAbort(each.handle);
    device_.end_graphs();
    nccl_.ncclGroupEnd();
  }

  static bool failed(int code) { return code != 0 && code != kNcclInProgress; }
  CuStream* stream_of(const Joined& on) const { return device_.stream(on.stream); }

  Error error_of(const Joined& on, const char* call, int code) {
    is_broken_ = true;
    const char* const last = nccl_.ncclGetLastError(on.handle);
    Error error =
        fail("rank {}, {}: {}: {}", control_.rank(), on.label, call, nccl_.ncclGetErrorString(code))
            .with_code(ExitCode::kPeer);
    if (last && *last) error.notes.emplace_back(last);
    return error;
  }

  int add_up(const Joined& on, const Sum& sum) const {
    const auto count = static_cast<size_t>(sum.count);
    const int type = type_of(sum.dtype),
              how = sum.reduction == Reduction::kSum ? kNcclSum : kNcclMax;
    CuStream* const stream = stream_of(on);
    switch (sum.member) {
      case Sum::kAll:
        return nccl_.ncclAllReduce(sum.from, sum.to, count, type, how, on.handle, stream);
      case Sum::kEach:
        return nccl_.ncclReduceScatter(sum.from, sum.to, count, type, how, on.handle, stream);
      default:
        return nccl_.ncclReduce(sum.from, sum.to, count, type, how, static_cast<int>(sum.member),
                                on.handle, stream);
    }
  }

  Error late(const Joined& on) {
    is_broken_ = true;
    std::string others;
    for (const int64_t rank : control_.find_stuck(on.ranks))
      others += fmt::format("; rank {} does not go on", rank);
    return fail("rank {} waited {:.3g} s for the other ranks of {}{}", control_.rank(),
                control_.timeout(), on.label, others)
        .with_code(ExitCode::kPeer);
  }

  // Asks whether the condition holds until it does, for as long as ranks wait for each other.
  template <class Condition>
  Status wait_until(const Joined& on, Condition holds) {
    Patience patience(control_.seat(), control_.timeout());
    for (;;) {
      PIPER_ASSIGN(const bool is_so, holds());
      if (is_so) return ok_status();
      PIPER_TRY(check_stopped());
      if (!patience.look()) return late(on);
      std::this_thread::yield();
    }
  }
  // Waits until what was called last on it is done.
  Status settle(const Joined& on) {
    return wait_until(on, [&]() -> Result<bool> {
      int state = 0;
      if (const int code = nccl_.ncclCommGetAsyncError(on.handle, &state); failed(code))
        return error_of(on, kState, code);
      if (failed(state)) return error_of(on, kState, state);
      return state == 0;
    });
  }
  Status check_stopped() {
    Status going_on = control_.check_stopped();
    is_broken_ |= !going_on;
    return going_on;
  }

  template <class Calls>
  Status together(const char* what, int32_t number, Calls calls) {
    const Joined& on = communicators_[static_cast<size_t>(number)];
    if (device_.has_failed) return ok_status();
    device_.enter();
    int code = nccl_.ncclGroupStart();
    if (!failed(code)) code = calls(on);
    const int end = nccl_.ncclGroupEnd();
    if (failed(code)) return error_of(on, what, code);
    if (failed(end)) return error_of(on, "ncclGroupEnd", end);
    return end == kNcclInProgress ? settle(on) : ok_status();
  }

  Status copy_own(int32_t number, std::span<const Block> outgoing,
                  std::span<const Block> incoming) {
    const Joined& on = communicators_[static_cast<size_t>(number)];
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

  // The first of the ranks makes the name by which the others find the communicator, and tells
  // whether buffers are alike in the memory of all.
  struct Name {
    NcclId id;
    bool is_alike = false;
  };
  Result<Name> name_of(std::span<const int64_t> ranks) {
    Name name;
    const std::span<std::byte> bytes(reinterpret_cast<std::byte*>(&name), sizeof name);
    const std::string own = windows_ && !memory_.empty() ? layout_ : std::string();
    if (ranks[0] != control_.rank()) {
      PIPER_TRY(tell_text(control_, ranks[0], own));
      PIPER_TRY(control_.hear(ranks[0], bytes, "name of a communicator"));
      return name;
    }
    if (const int code = nccl_.ncclGetUniqueId(&name.id); failed(code))
      return fail("ncclGetUniqueId: {}", nccl_.ncclGetErrorString(code)).with_code(ExitCode::kPeer);
    name.is_alike = windows_ && !memory_.empty();
    for (const int64_t rank : ranks.subspan(1)) {
      PIPER_ASSIGN(const std::string theirs, hear_text(control_, rank, "layout of its memory"));
      name.is_alike = name.is_alike && theirs == own;
    }
    for (const int64_t rank : ranks.subspan(1)) PIPER_TRY(control_.tell(rank, bytes));
    return name;
  }

  // Memory whose buffers are alike is a window of all, else each knows its own.
  Status register_memory(Joined& on, bool is_alike) {
    on.windows.resize(is_alike ? memory_.size() : 0);
    on.memories.resize(is_alike ? 0 : memory_.size());
    for (size_t m = 0; m < memory_.size(); ++m) {
      const auto [at, bytes] = memory_[m];
      const int code = is_alike ? windows_->ncclCommWindowRegister(on.handle, at, bytes,
                                                                   &on.windows[m], kNcclSymmetric)
                                : nccl_.ncclCommRegister(on.handle, at, bytes, &on.memories[m]);
      if (failed(code))
        return error_of(on, is_alike ? "ncclCommWindowRegister" : "ncclCommRegister", code);
      PIPER_TRY(settle(on));
    }
    return ok_status();
  }

  // Sends a byte from the one to the other.
  Status connect_pair(int32_t number) {
    const MessagePart byte{scratch_.data(), 1};
    const bool sends = communicators_[static_cast<size_t>(number)].own == 0;
    PIPER_TRY(sends ? send(number, {&byte, 1}) : recv(number, {&byte, 1}));
    return wait_for_stream(communicators_[static_cast<size_t>(number)]);
  }

  // Sends a byte from each member to each other one. Where the library adds up, or gathers, it does
  // so with a number or byte of each, too; what larger ones need was connected with the
  // communicator (make_nccl_links).
  Status connect_group(int32_t number, int32_t communicator) {
    constexpr size_t kResult = 8, kBytes = 16;  // in the scratch, after the number that is added
    const Joined& on = communicators_[static_cast<size_t>(number)];
    PIPER_CHECK(scratch_.size() >= kBytes + on.ranks.size(),
                "the scratch holds no byte of each member");
    std::vector<Block> outgoing, incoming;
    for (size_t k = 0; k < on.ranks.size(); ++k) {
      if (static_cast<int64_t>(k) == on.own) continue;
      outgoing.push_back({static_cast<int64_t>(k), scratch_.data(), 1});
      incoming.push_back({static_cast<int64_t>(k), scratch_.data() + kBytes + k, 1});
    }
    PIPER_TRY(exchange(number, outgoing, incoming));
    if (adding_.contains(communicator)) {
      const Sum one{scratch_.data(), scratch_.data() + kResult, DType::kF32, Reduction::kSum, 1};
      PIPER_TRY(add_up(number, {&one, 1}));
    }
    if (gathering_.contains(communicator)) {
      const Gather one{scratch_.data(), scratch_.data() + kBytes, 1};
      PIPER_TRY(gather(number, {&one, 1}));
    }
    return wait_for_stream(on);
  }

  // Waits until all that was queued for the communicator is done.
  Status wait_for_stream(const Joined& on) {
    if (event_ < 0) {
      PIPER_ASSIGN(event_, device_.add_event());
    }
    PIPER_CU(device_.driver(), cuEventRecord, device_.event(event_), stream_of(on));
    return wait_until(on, [&]() -> Result<bool> {
      const int code = device_.driver().cuEventQuery(device_.event(event_));
      if (code != 0 && code != kErrorNotReady)
        return failed_call(device_.driver(), "cuEventQuery", code);
      if (code != 0) PIPER_TRY(settle(on));
      return code == 0;
    });
  }

  // NCCL keeps the name's address.
  Result<int32_t> open(std::span<const int64_t> ranks, int32_t communicator, int32_t stream) {
    device_.enter();
    PIPER_ASSIGN(const Name name, name_of(ranks));
    Joined& made = communicators_.emplace_back();
    made.name = fmt::format("communicator {}", communicator);
    made.label = fmt::format("{} of ranks [{}]", made.name, fmt::join(ranks, ","));
    made.ranks.assign(ranks.begin(), ranks.end());
    made.own = std::find(ranks.begin(), ranks.end(), control_.rank()) - ranks.begin();
    made.stream = stream;
    NcclConfig config;
    config.blocking = 0;
    config.shares = 0;
    // A cluster begins where all of its blocks find room at once: blocks_of counts single ones.
    config.cluster = 1;
    config.name = made.name.c_str();
    if (const auto c = static_cast<size_t>(communicator); c < listed_.size()) {
      config.most_blocks = most_blocks_[c];
      if (listed_[c].sms > 0) config.least_blocks = config.most_blocks;
      // Beside what computes it takes no more than it needs.
      const bool is_beside =
          std::ranges::any_of(listed_[c].streams, [](int32_t s) { return s > 0; });
      if (is_beside) config.policy = kNcclEfficient;
    }
    const int code = nccl_.ncclCommInitRankConfig(&made.handle, static_cast<int>(ranks.size()),
                                                  name.id, static_cast<int>(made.own), &config);
    if (failed(code)) return error_of(made, "ncclCommInitRankConfig", code);
    PIPER_TRY(settle(made));
    if (ranks.size() > 1) PIPER_TRY(register_memory(made, name.is_alike));
    return static_cast<int32_t>(communicators_.size()) - 1;
  }

  const Nccl& nccl_;
  const NcclWindows* const windows_;  // null: NCCL has none
  Device& device_;
  Control& control_;
  const std::vector<Communicator>& listed_;  // by the plan
  const std::set<int32_t> adding_;           // of those: on which the library adds up
  const std::set<int32_t> gathering_;        // … and on which it gathers
  const std::vector<int> most_blocks_;       // of those
  std::span<std::byte> scratch_;             // lent
  int32_t event_ = -1;                       // of wait_for_stream; -1: not made yet
  std::vector<Device::Block> memory_;
  std::string layout_;  // of all of it
  std::deque<Joined> communicators_;
  bool is_broken_ = false;
};

}  // namespace

Result<std::unique_ptr<Links>> make_nccl_links(
    Device& device, const FabricSource& source,
    const std::function<void(const std::string&)>& note) {
  PIPER_ASSIGN(const Opened<Nccl>* const nccl, opened<Nccl>());
  int version = 0;
  nccl->functions.ncclGetVersion(&version);
  if (version < kOldestForSeveral)
    return fail("{} is NCCL {}; Piper needs 2.26 or later", nccl->path, nccl->version);
  const NcclWindows* const windows = version < kOldestWithWindows ? nullptr : windows_of_nccl();
  const int multiprocessors = device.facts().multiprocessors;
  if (note && !windows && !device.without().windows)
    note(fmt::format("NCCL {} shares no windows of memory: 2.27 or later does", nccl->version));
  if (note && blocks_of(source.role.communicators, multiprocessors).are_too_many)
    note(fmt::format(
        "communicators that may run at once take all {} multiprocessors: fewer streams, or smaller "
        "limits of these, leave some for what computes",
        multiprocessors));
  return std::unique_ptr<Links>(
      std::make_unique<NcclLinks>(nccl->functions, windows, device, source));
}

}  // namespace piper::cuda
