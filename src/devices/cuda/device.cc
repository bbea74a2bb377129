// A device: its context, memory, streams and events, by the driver's interface.
#include "device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>

namespace piper::cuda {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 48;
constexpr const char* kPinned = "host's pinned";  // memory

Error out_of(const char* whose, int64_t bytes, const Error& why) {
  return fail("cannot allocate {} of the {} memory: {}", human_bytes(bytes), whose, why.message)
      .with_code(ExitCode::kStorage);
}

CuMemProperties pages_of(int device, bool shares_files, bool is_for_rdma) {
  CuMemProperties wanted;
  wanted.type = kMemoryPinned;
  wanted.place = kMemoryOnDevice;
  wanted.device = device;
  wanted.handle = shares_files ? kMemoryFileHandle : kMemoryNoHandle;
  wanted.rdma = is_for_rdma ? 1 : 0;
  return wanted;
}

}  // namespace

thread_local uint64_t Device::current_ = 0;

const std::string& set_connections() {
  static const std::string before = [] {
    const char* const said = std::getenv(kConnections);
    const std::string value = said ? said : "";
    setenv(kConnections, kMostConnections, 1);
    return value;
  }();
  return before;
}

Status start_driver(const Driver& driver) {
  set_connections();
  PIPER_CU(driver, cuInit, 0);
  return ok_status();
}

Result<int> count_devices() {
  PIPER_ASSIGN(const Opened<Driver>* library, opened<Driver>());
  const Driver& driver = library->functions;
  PIPER_TRY(start_driver(driver));
  int count = 0;
  PIPER_CU(driver, cuDeviceGetCount, &count);
  if (count <= 0) return fail("NVIDIA's driver ({}) knows no device", library->path);
  return count;
}

Result<std::unique_ptr<Device>> Device::open(int64_t ordinal) {
  PIPER_ASSIGN(const Without without, switched_off());
  PIPER_ASSIGN(const int count, count_devices());
  PIPER_ASSIGN(const Opened<Driver>* library, opened<Driver>());
  std::unique_ptr<Device> device(
      new Device(library->functions, without, static_cast<int>(ordinal % count)));
  PIPER_TRY(device->start());
  return device;
}

Status Device::start() {
  static std::atomic<uint64_t> opened_so_far{0};
  id_ = ++opened_so_far;
  PIPER_CU(driver_, cuDeviceGet, &handle_, ordinal_);
  std::array<char, 256> name{};
  PIPER_CU(driver_, cuDeviceGetName, name.data(), name.size() - 1, handle_);
  facts_.name = name.data();
  for (const auto& [attribute, to] : {std::pair(kMultiprocessors, &facts_.multiprocessors),
                                      {kMajor, &facts_.major},
                                      {kMinor, &facts_.minor},
                                      {kMostShared, &facts_.most_shared},
                                      {kMapsMemory, &facts_.maps_memory},
                                      {kSharesFiles, &facts_.shares_files},
                                      {kMapsForRdma, &facts_.maps_for_rdma}})
    PIPER_CU(driver_, cuDeviceGetAttribute, to, attribute, handle_);
  if (without_.vmm) facts_.maps_memory = 0;
  if (facts_.major < kLeastMajor)
    return fail(
               "cuda:{}, {}, has compute capability {}.{}: Piper needs {}.0 or later, whose tensor "
               "cores multiply bf16",
               ordinal_, facts_.name, facts_.major, facts_.minor, kLeastMajor)
        .with_note("help: --backend cpu runs the same plans on the CPU");
  PIPER_CU(driver_, cuDevicePrimaryCtxRetain, &context_, handle_);
  PIPER_CU(driver_, cuCtxSetCurrent, context_);
  current_ = id_;
  if (facts_.maps_memory != 0) {
    const CuMemProperties wanted =
        pages_of(handle_, facts_.shares_files != 0, facts_.maps_for_rdma != 0);
    PIPER_CU(driver_, cuMemGetAllocationGranularity, &page_, &wanted, kGranularityLeast);
  }
  PIPER_CU(driver_, cuCtxGetStreamPriorityRange, &least_, &greatest_);
  green_ = green_of_driver();
  PIPER_ASSIGN([[maybe_unused]] const int32_t first, add_stream({}));
  return ok_status();
}

// This ends everything whatever the calls say: nothing can be done about it.
Device::~Device() {
  if (!context_) return;
  enter();
  driver_.cuCtxSynchronize();
  for (CuEvent* event : events_) driver_.cuEventDestroy_v2(event);
  for (CuStream* stream : streams_) driver_.cuStreamDestroy_v2(stream);
  for (CuGreenContext* part : parts_) green_->cuGreenCtxDestroy(part);
  for (const Mapping& one : mappings_) {
    if (one.is_mapped) driver_.cuMemUnmap(one.at, one.bytes);
    if (one.pages != 0) driver_.cuMemRelease(one.pages);
    driver_.cuMemAddressFree(one.at, one.bytes);
  }
  for (const CuAddress block : blocks_) driver_.cuMemFree_v2(block);
  for (void* block : host_blocks_) driver_.cuMemFreeHost(block);
  driver_.cuCtxSetCurrent(nullptr);
  current_ = 0;
  driver_.cuDevicePrimaryCtxRelease_v2(handle_);
}

void Device::enter_anew() const {
  // Where this fails, so does whatever comes next, and that is said.
  if (driver_.cuCtxSetCurrent(context_) == 0) current_ = id_;
}

// ---- Memory -------------------------------------------------------------------------------------

// Not every machine that could let adapters reach memory, or share it as a file, is allowed to:
// each property is left out where it is refused, and from then on.
Result<CuMemory> Device::create_pages(size_t bytes) {
  std::vector<std::pair<int, int>> properties = {{facts_.shares_files, facts_.maps_for_rdma},
                                                 {facts_.shares_files, 0},
                                                 {0, facts_.maps_for_rdma},
                                                 {0, 0}};
  properties.erase(std::unique(properties.begin(), properties.end()), properties.end());
  int code = 0;
  for (const auto& [shares_files, is_for_rdma] : properties) {
    const CuMemProperties wanted = pages_of(handle_, shares_files != 0, is_for_rdma != 0);
    CuMemory pages = 0;
    code = driver_.cuMemCreate(&pages, bytes, &wanted, 0);
    if (code == 0) {
      facts_.shares_files = shares_files;
      facts_.maps_for_rdma = is_for_rdma;
      return pages;
    }
    if (code == kErrorOutOfMemory) break;
  }
  return failed_call(driver_, "cuMemCreate", code);
}

Result<CuAddress> Device::map_pages(size_t bytes) {
  Mapping& made = mappings_.emplace_back();
  const size_t size = (bytes + page_ - 1) / page_ * page_;
  if (Status reserved = checked(driver_, "cuMemAddressReserve",
                                driver_.cuMemAddressReserve(&made.at, size, 0, 0, 0));
      !reserved) {
    mappings_.pop_back();
    return std::move(reserved).error();
  }
  made.bytes = size;
  PIPER_ASSIGN(made.pages, create_pages(size));
  PIPER_CU(driver_, cuMemMap, made.at, size, 0, made.pages, 0);
  made.is_mapped = true;
  taken_.device += static_cast<int64_t>(size);
  PIPER_TRY(checked(driver_, "cuMemSetAccess", allow(handle_, made)));
  for (const int reader : readers_) allow(reader, made);
  return made.at;
}

// Returns the driver's result. Without access of other devices copies are right, but slower.
int Device::allow(int device, const Mapping& mapping) const {
  const CuMemAccess access{kMemoryOnDevice, device, kMemoryReadWrite};
  return driver_.cuMemSetAccess(mapping.at, mapping.bytes, &access, 1);
}

Status Device::meet(const Device& other) {
  if (is_same_as(other) || !met_.insert(other.handle_).second) return ok_status();
  enter();
  int reads = 0, is_read = 0;
  PIPER_CU(driver_, cuDeviceCanAccessPeer, &reads, handle_, other.handle_);
  PIPER_CU(driver_, cuDeviceCanAccessPeer, &is_read, other.handle_, handle_);
  // This is for blocks that are not mapped. Another rank of this device may have done it before,
  // and where it fails copies are slower.
  if (reads != 0) driver_.cuCtxEnablePeerAccess(other.context_, 0);
  if (is_read == 0) return ok_status();
  readers_.push_back(other.handle_);
  for (const Mapping& mapping : mappings_)
    if (mapping.is_mapped) allow(other.handle_, mapping);
  return ok_status();
}

Result<CuAddress> Device::take_pages(size_t bytes) {
  if (page_ != 0 && bytes >= page_) return map_pages(bytes);
  CuAddress at = 0;
  PIPER_CU(driver_, cuMemAlloc_v2, &at, std::max<size_t>(bytes, 1));
  blocks_.push_back(at);
  taken_.device += static_cast<int64_t>(bytes);
  return at;
}

Result<CuAddress> Device::take_reserved(size_t bytes) {
  constexpr size_t kAlign = 256;
  Reserved& from = *reserved_;
  const size_t size = (bytes + kAlign - 1) / kAlign * kAlign;
  if (size > from.bytes - from.used)
    return fail("a block of {} after {} bytes of the device's memory: the plan states {} bytes",
                bytes, from.used, from.bytes)
        .with_code(ExitCode::kPlan);
  return from.at + std::exchange(from.used, from.used + size);
}

Status Device::reserve(int64_t bytes) {
  enter();
  if (bytes < 0 || bytes > kMostBytes) return out_of("device's", bytes, fail("no such size"));
  const auto size = static_cast<size_t>(bytes);
  Result<CuAddress> at = page_ != 0 ? map_pages(std::max<size_t>(size, 1)) : take_pages(size);
  if (!at) return no_more(bytes, std::move(at).error());
  reserved_ = {*at, size};
  return ok_status();
}

std::optional<int64_t> Device::free_bytes() const {
  enter();
  size_t left = 0, all = 0;
  if (driver_.cuMemGetInfo_v2(&left, &all) != 0) return std::nullopt;
  return static_cast<int64_t>(left);
}

// What is left is said, too.
Error Device::no_more(int64_t bytes, Error why) {
  size_t left = 0, all = 0;
  if (driver_.cuMemGetInfo_v2(&left, &all) == 0)
    why.message += fmt::format("; {} of {} are free", human_bytes(static_cast<int64_t>(left)),
                               human_bytes(static_cast<int64_t>(all)));
  return out_of("device's", bytes, why);
}

Result<std::byte*> Device::allocate_on_host(int64_t bytes) {
  void* at = nullptr;
  const auto size = static_cast<size_t>(bytes);
  const int code = driver_.cuMemHostAlloc(&at, std::max<size_t>(size, 1), kHostPortable);
  if (code != 0) return out_of(kPinned, bytes, failed_call(driver_, "cuMemHostAlloc", code));
  host_blocks_.push_back(at);
  taken_.host += bytes;
  std::fill_n(static_cast<std::byte*>(at), size, std::byte{0});
  return static_cast<std::byte*>(at);
}

Result<std::byte*> Device::allocate(int64_t bytes, bool on_host) {
  enter();
  if (bytes < 0 || bytes > kMostBytes)
    return out_of(on_host ? kPinned : "device's", bytes, fail("no such size"));
  if (on_host) return allocate_on_host(bytes);
  const auto size = static_cast<size_t>(bytes);
  Result<CuAddress> at = reserved_ ? take_reserved(size) : take_pages(size);
  if (!at && at.error().code == ExitCode::kPlan) return std::move(at).error();
  if (!at) return no_more(bytes, std::move(at).error());
  if (size > 0) PIPER_CU(driver_, cuMemsetD8Async, *at, 0, size, stream(0));
  PIPER_CU(driver_, cuStreamSynchronize, stream(0));
  return reinterpret_cast<std::byte*>(*at);
}

Device::Block Device::mapped_block(const std::byte* at) const {
  const auto address = reinterpret_cast<CuAddress>(at);
  for (const Mapping& one : mappings_)
    if (one.is_mapped && address >= one.at && address - one.at < one.bytes)
      return {reinterpret_cast<std::byte*>(one.at), one.bytes};
  return {};
}

// ---- Streams ------------------------------------------------------------------------------------

// Takes at least so many multiprocessors from a resource. Returns nothing where it has too few.
Result<std::optional<Device::Split>> Device::split(const CuResource& from,
                                                   int64_t multiprocessors) const {
  if (multiprocessors > from.multiprocessors) return std::optional<Split>();
  Split made;
  unsigned parts = 1;
  const int code = green_->cuDevSmResourceSplitByCount(&made.part, &parts, &from, &made.rest, 0,
                                                       static_cast<unsigned>(multiprocessors));
  if (code == kErrorInvalidResource || (code == 0 && parts == 0)) return std::optional<Split>();
  PIPER_TRY(checked(driver_, "cuDevSmResourceSplitByCount", code));
  return std::optional(made);
}

Result<CuGreenContext*> Device::add_part(CuResource resource) {
  CuResourceDesc* description = nullptr;
  PIPER_TRY(checked(driver_, "cuDevResourceGenerateDesc",
                    green_->cuDevResourceGenerateDesc(&description, &resource, 1)));
  CuGreenContext* context = nullptr;
  PIPER_TRY(checked(driver_, "cuGreenCtxCreate",
                    green_->cuGreenCtxCreate(&context, description, handle_, kGreenDefaultStream)));
  parts_.push_back(context);
  return context;
}

// Splits the rest. What a split leaves can be split again only as the resource of a green context.
Result<std::optional<Device::Split>> Device::split_rest(int64_t multiprocessors) {
  if (multiprocessors > rest_->multiprocessors) return std::optional<Split>();
  PIPER_ASSIGN(CuGreenContext* const owner, add_part(*rest_));
  CuResource rest;
  PIPER_TRY(checked(driver_, "cuGreenCtxGetDevResource",
                    green_->cuGreenCtxGetDevResource(owner, &rest, kResourceOfMultiprocessors)));
  return split(rest, multiprocessors);
}

// Returns so many multiprocessors, or the next number that the device can set apart, which no other
// stream with a limit has if enough are left. Returns nothing where it can set none apart.
Result<std::optional<CuResource>> Device::set_apart(const Stream& wanted, const Note& note) {
  std::optional<Split> made;
  if (rest_) {
    PIPER_ASSIGN(made, split_rest(wanted.sms));
    if (!made && note)
      note(
          fmt::format("stream '{}' asks for {} multiprocessors, and {} are left by the streams "
                      "before it: it shares theirs",
                      quote_control(wanted.name), wanted.sms, rest_->multiprocessors));
  }
  const bool is_shared = rest_ && !made;
  if (!made) {
    CuResource all;
    PIPER_TRY(checked(driver_, "cuDeviceGetDevResource",
                      green_->cuDeviceGetDevResource(handle_, &all, kResourceOfMultiprocessors)));
    PIPER_ASSIGN(made, split(all, wanted.sms));
  }
  if (!made) return std::optional<CuResource>();
  if (!is_shared) rest_ = made->rest;
  return std::optional(made->part);
}

Result<CuStream*> Device::make_stream(const Stream& wanted, const Note& note) {
  const int priority =
      static_cast<int>(std::clamp<int64_t>(int64_t{0} - wanted.priority, greatest_, least_));
  CuStream* made = nullptr;
  std::optional<CuResource> part;
  const bool is_limited = wanted.sms > 0 && wanted.sms < facts_.multiprocessors && green_;
  if (is_limited) {
    PIPER_ASSIGN(part, set_apart(wanted, note));
  }
  if (!part) {
    if (is_limited && note)
      note(fmt::format(
          "stream '{}' takes all multiprocessors: of the {} of this device {} cannot be "
          "set apart",
          quote_control(wanted.name), facts_.multiprocessors, wanted.sms));
    PIPER_CU(driver_, cuStreamCreateWithPriority, &made, kStreamNonBlocking, priority);
    return made;
  }
  PIPER_ASSIGN(CuGreenContext* const context, add_part(*part));
  PIPER_TRY(checked(driver_, "cuGreenCtxStreamCreate",
                    green_->cuGreenCtxStreamCreate(&made, context, kStreamNonBlocking, priority)));
  return made;
}

Result<int32_t> Device::add_stream(const Stream& wanted, const Note& note) {
  enter();
  PIPER_ASSIGN(CuStream* const made, make_stream(wanted, note));
  streams_.push_back(made);
  return static_cast<int32_t>(streams_.size() - 1);
}

Result<int32_t> Device::add_event(bool timed) {
  enter();
  CuEvent* made = nullptr;
  PIPER_CU(driver_, cuEventCreate, &made, timed ? 0 : kEventNoTiming);
  events_.push_back(made);
  return static_cast<int32_t>(events_.size() - 1);
}

int32_t Device::add_graph(CuGraphExec* made) {
  graphs_.push_back(made);
  return static_cast<int32_t>(graphs_.size() - 1);
}

void Device::end_graphs() {
  enter();
  for (CuGraphExec* graph : graphs_) driver_.cuGraphExecDestroy(graph);
  graphs_.clear();
}

}  // namespace piper::cuda
