// The driver's streams, events, copies and graphs.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "fake.h"

using namespace piper;        // NOLINT: what is called is all outside of namespaces
using namespace piper::fake;  // NOLINT

namespace {

CuStream* make_stream(State& state, CuContext* context) {
  CuStream* stream = state.make<CuStream>();
  stream->context = context;
  state.streams.push_back(stream);
  return stream;
}

// What the fake knows of a resource lies where the vendor's has bytes of its own.
void write_part(const CuPart& part, CuResource* resource) {
  static_assert(sizeof part <= sizeof resource->unused);
  *resource = {};
  resource->type = kResourceOfMultiprocessors;
  resource->multiprocessors = part.count;
  std::memcpy(resource->unused, &part, sizeof part);
}
CuPart part_of(const CuResource& resource) {
  CuPart part;
  std::memcpy(&part, resource.unused, sizeof part);
  return part;
}

int run_stream(State& state, const CuStream* stream) {
  return state.run_until([&] { return stream->queue.empty(); });
}

// Sets lines of `width` elements that begin `pitch` bytes apart.
template <class T>
int set(Call& call, CuAddress at, size_t pitch, T value, size_t width, size_t height,
        CuStream* stream) {
  if (at % sizeof(T) != 0) {
    call.state.misuse(call.name, "an address that is not aligned");
    return kInvalidValue;
  }
  State& state = call.state;
  if (!state.check(call.name, stream)) return kInvalidHandle;
  return state.queue(call.name, stream, [=, &state, device = stream->context->device]() -> Status {
    if (const std::string wrong = state.reach(at, device); !wrong.empty())
      return fail("a memset: {}", wrong);
    for (size_t line = 0; line < height; ++line) {
      const std::string wrong =
          state.range_of(at)
              ? state.touch(at + line * pitch, width * sizeof(T), emulator::Access::kWrite)
              : "no memory of a device";
      if (!wrong.empty()) return fail("a memset: {}", wrong);
      std::fill_n(reinterpret_cast<T*>(at + line * pitch), width, value);
    }
    return ok_status();
  });
}

// By a device's own engine, which reaches what the device has access to; none: by way of the host.
Status copy(State& state, std::optional<int> device, CuAddress to, CuAddress from, size_t bytes) {
  for (const auto& [at, access] :
       {std::pair{from, emulator::Access::kRead}, {to, emulator::Access::kWrite}}) {
    std::string wrong = device ? state.reach(at, *device) : "";
    if (wrong.empty()) wrong = state.touch(at, bytes, access);
    if (!wrong.empty()) return fail("a copy: {}", wrong);
  }
  if (from < to + bytes && to < from + bytes) return fail("a copy: both places overlap");
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
  return ok_status();
}

// All nodes before these, and themselves.
std::set<size_t> ancestors(const CuGraph& graph, std::set<size_t> nodes) {
  std::vector<size_t> open(nodes.begin(), nodes.end());
  while (!open.empty()) {
    const size_t node = open.back();
    open.pop_back();
    for (const size_t before : graph.nodes[node].after)
      if (nodes.insert(before).second) open.push_back(before);
  }
  return nodes;
}

}  // namespace

extern "C" {

int cuStreamCreateWithPriority(CuStream** stream, unsigned flags, int priority) {
  FAKE_CALL(cuStreamCreateWithPriority);
  FAKE_CONTEXT();
  if (flags > kStreamNonBlocking || priority > 0 || priority < -5) return kInvalidValue;
  *stream = make_stream(call.state, current_context());
  return kOk;
}
int cuStreamDestroy_v2(CuStream* stream) {
  FAKE_RELEASE(cuStreamDestroy_v2);
  FAKE_CHECK(stream);
  if (!stream->context->is_alive) {
    call.state.misuse(call.name, "the stream's context is gone");
    return kContextDestroyed;
  }
  if (stream->capture) call.state.misuse(call.name, "the stream is captured");
  stream->is_alive = false;  // what is queued still runs
  return call.code;
}
int cuStreamSynchronize(CuStream* stream) {
  FAKE_CALL(cuStreamSynchronize);
  FAKE_CHECK(stream);
  FAKE_NO_CAPTURE();
  if (stream->capture) return kCaptureUnsupported;
  return run_stream(call.state, stream);
}
int cuStreamWaitEvent(CuStream* stream, CuEvent* event, unsigned) {
  FAKE_CALL(cuStreamWaitEvent);
  FAKE_CHECK(stream);
  FAKE_CHECK(event);
  if (event->capture) {  // the stream's work becomes a part of that graph
    if (!event->capture->is_open) {
      call.state.misuse(call.name, "the event was recorded in a capture that has ended");
      return kCapturedEvent;
    }
    if (stream->capture && stream->capture != event->capture) return kCaptureIsolation;
    stream->capture = event->capture;
    stream->last.insert(event->nodes.begin(), event->nodes.end());
    return kOk;
  }
  if (stream->capture) {
    if (!event->recorded) return kOk;
    call.state.misuse(call.name, "a captured stream waits for what is not in the graph");
    stream->capture->is_broken = true;
    return kCaptureIsolation;
  }
  if (event->recorded) stream->queue.push_back({nullptr, event->recorded, nullptr});
  return call.state.failure();
}

// ---- Events -------------------------------------------------------------------------------------

int cuEventCreate(CuEvent** event, unsigned flags) {
  FAKE_CALL(cuEventCreate);
  FAKE_CONTEXT();
  *event = call.state.make<CuEvent>();
  (*event)->context = current_context();
  (*event)->is_timed = (flags & kEventNoTiming) == 0;
  return kOk;
}
int cuEventRecord(CuEvent* event, CuStream* stream) {
  FAKE_CALL(cuEventRecord);
  FAKE_CHECK(event);
  FAKE_CHECK(stream);
  if (event->context->root() != stream->context->root()) {
    call.state.misuse(call.name, "event and stream have two contexts");
    return kInvalidHandle;
  }
  event->capture = stream->capture;
  event->nodes = stream->last;
  event->recorded = nullptr;
  if (stream->capture) return kOk;
  event->recorded = std::make_shared<Point>();
  stream->queue.push_back({nullptr, nullptr, event->recorded});
  return call.state.failure();
}
int cuEventQuery(CuEvent* event) {
  FAKE_CALL(cuEventQuery);
  FAKE_CHECK(event);
  if (event->capture) return kCapturedEvent;
  FAKE_NO_CAPTURE();
  // A device goes on meanwhile: some of what is queued runs, so that not every piece of work costs
  // its waiter a rest.
  constexpr uint64_t kMost = 64;
  for (uint64_t left = call.state.random() % kMost; left-- > 0;) {
    if (!event->recorded || event->recorded->is_done) break;
    if (!call.state.run_one()) break;
  }
  return !event->recorded || event->recorded->is_done ? call.state.failure()
                                                      : static_cast<int>(kNotReady);
}
int cuEventSynchronize(CuEvent* event) {
  FAKE_CALL(cuEventSynchronize);
  FAKE_CHECK(event);
  FAKE_NO_CAPTURE();
  if (event->capture) return kCapturedEvent;
  const auto recorded = event->recorded;
  return call.state.run_until([&] { return !recorded || recorded->is_done; });
}
int cuEventElapsedTime(float* milliseconds, CuEvent* start, CuEvent* end) {
  FAKE_CALL(cuEventElapsedTime);
  FAKE_CHECK(start);
  FAKE_CHECK(end);
  if (!start->is_timed || !end->is_timed || !start->recorded || !end->recorded)
    return kInvalidHandle;
  if (!start->recorded->is_done || !end->recorded->is_done) return kNotReady;
  // FAKE_CUDA_SLOW=D: device D takes eight times as long.
  static const char* const slow = std::getenv("FAKE_CUDA_SLOW");
  const int factor = slow && std::atoi(slow) == start->context->device ? 8 : 1;
  const double took = end->recorded->milliseconds - start->recorded->milliseconds;
  *milliseconds = static_cast<float>(took * factor);
  return kOk;
}
int cuEventDestroy_v2(CuEvent* event) {
  FAKE_RELEASE(cuEventDestroy_v2);
  FAKE_CHECK(event);
  event->is_alive = false;
  return call.code;
}

// ---- Copies -------------------------------------------------------------------------------------

int cuMemcpyAsync(CuAddress to, CuAddress from, size_t bytes, CuStream* stream) {
  FAKE_CALL(cuMemcpyAsync);
  State& state = call.state;
  if (bytes == 0) return kOk;
  const bool from_pageable = !state.range_of(from), to_pageable = !state.range_of(to);
  if (!state.check(call.name, stream)) return kInvalidHandle;
  if (stream->capture && (from_pageable || to_pageable))
    state.misuse(call.name, "a graph copies pageable memory, which may be gone when it runs");
  const int device = stream->context->device;
  if (from_pageable && !stream->capture) {  // read before the call returns
    const auto* bytes_from = reinterpret_cast<const char*>(from);
    return state.queue(
        call.name, stream,
        [&state, device, to, held = std::vector<char>(bytes_from, bytes_from + bytes)]() -> Status {
          return copy(state, device, to, reinterpret_cast<uintptr_t>(held.data()), held.size());
        });
  }
  const int code =
      state.queue(call.name, stream, [=, &state] { return copy(state, device, to, from, bytes); });
  if (code != kOk || !to_pageable || stream->capture) return code;
  return run_stream(state, stream);  // written before the call returns
}
// The contexts are those of the memory's devices.
int cuMemcpyPeerAsync(CuAddress to, CuContext* to_context, CuAddress from, CuContext* from_context,
                      size_t bytes, CuStream* stream) {
  FAKE_CALL(cuMemcpyPeerAsync);
  State& state = call.state;
  for (const auto& [at, context] : {std::pair(to, to_context), {from, from_context}}) {
    FAKE_CHECK(context);
    const Range* range = state.range_of(at);
    if (range && !range->is_host && range->device == context->device) continue;
    state.misuse(call.name, "memory that the context's device does not have");
    return kInvalidValue;
  }
  return state.queue(call.name, stream,
                     [=, &state] { return copy(state, std::nullopt, to, from, bytes); });
}
int cuMemsetD8Async(CuAddress at, unsigned char value, size_t count, CuStream* stream) {
  FAKE_CALL(cuMemsetD8Async);
  return set(call, at, 0, value, count, 1, stream);
}
int cuMemsetD16Async(CuAddress at, unsigned short value, size_t count, CuStream* stream) {
  FAKE_CALL(cuMemsetD16Async);
  return set(call, at, 0, value, count, 1, stream);
}
int cuMemsetD32Async(CuAddress at, unsigned value, size_t count, CuStream* stream) {
  FAKE_CALL(cuMemsetD32Async);
  return set(call, at, 0, value, count, 1, stream);
}
int cuMemsetD2D32Async(CuAddress at, size_t pitch, unsigned value, size_t width, size_t height,
                       CuStream* stream) {
  FAKE_CALL(cuMemsetD2D32Async);
  if (pitch % sizeof value != 0 || pitch < width * sizeof value) {
    call.state.misuse(call.name, "lines that are not aligned, or overlap");
    return kInvalidValue;
  }
  return set(call, at, pitch, value, width, height, stream);
}

// ---- Graphs -------------------------------------------------------------------------------------

int cuStreamBeginCapture_v2(CuStream* stream, int mode) {
  FAKE_CALL(cuStreamBeginCapture_v2);
  FAKE_CHECK(stream);
  if (stream->capture || mode != kCaptureThread) return kInvalidValue;
  stream->capture = call.state.make<CuGraph>();
  stream->is_origin = true;
  stream->last.clear();
  call.state.set_capturing(stream->capture, true);
  return kOk;
}
int cuStreamEndCapture(CuStream* stream, CuGraph** graph) {
  FAKE_RELEASE(cuStreamEndCapture);
  FAKE_CHECK(stream);
  *graph = nullptr;
  if (!stream->capture || !stream->is_origin) return kCaptureUnmatched;
  CuGraph* made = stream->capture;
  made->is_open = false;
  const std::set<size_t> joined = ancestors(*made, stream->last);
  for (CuStream* one : call.state.streams) {
    if (one->capture != made) continue;
    one->capture = nullptr;
    one->is_origin = false;
    one->last.clear();
  }
  call.state.set_capturing(made, false);
  const bool is_joined = joined.size() == made->nodes.size();
  if (!is_joined && !call.state.has_failed)
    call.state.misuse(call.name,
                      fmt::format("{} of {} nodes are not joined to the stream",
                                  made->nodes.size() - joined.size(), made->nodes.size()));
  if (is_joined && !made->is_broken && call.code == kOk) {
    *graph = made;
    return kOk;
  }
  made->is_alive = false;
  if (call.code != kOk) return call.code;
  return is_joined ? kCaptureInvalidated : kCaptureUnjoined;
}
int cuGraphInstantiateWithFlags(CuGraphExec** made, CuGraph* graph, unsigned long long) {
  FAKE_CALL(cuGraphInstantiateWithFlags);
  FAKE_CHECK(graph);
  *made = call.state.make<CuGraphExec>();
  (*made)->nodes = std::make_shared<const std::vector<CuGraph::Node>>(graph->nodes);
  (*made)->calls = graph->calls;
  return kOk;
}
int cuGraphLaunch(CuGraphExec* graph, CuStream* stream) {
  FAKE_CALL(cuGraphLaunch);
  FAKE_CHECK(graph);
  FAKE_CHECK(stream);
  if (stream->capture) return kCaptureUnsupported;
  State& state = call.state;
  state.expect(*graph);
  ++graph->queued;
  return state.begin(call.name, stream, [&state, graph]() -> Result<std::shared_ptr<Point>> {
    --graph->queued;
    return graph->launched = state.launch(*graph);
  });
}
// Waits while the graph runs, as the driver does (seen with 580.159 on an H200).
int cuGraphExecDestroy(CuGraphExec* graph) {
  FAKE_RELEASE(cuGraphExecDestroy);
  FAKE_CHECK(graph);
  call.state.run_until([&] {
    return (graph->queued == 0 && (!graph->launched || graph->launched->is_done)) ||
           call.state.failure() != kOk;
  });
  graph->is_alive = false;
  return call.code;
}
int cuGraphDestroy(CuGraph* graph) {
  FAKE_RELEASE(cuGraphDestroy);
  FAKE_CHECK(graph);
  graph->is_alive = false;
  return call.code;
}

// ---- Streams on a part of the multiprocessors ---------------------------------------------------

int cuDeviceGetDevResource(int device, CuResource* resource, int type) {
  FAKE_CALL(cuDeviceGetDevResource);
  if (type != kResourceOfMultiprocessors) return kInvalidValue;
  write_part({0, 132, false}, resource);
  return device >= 0 ? kOk : kInvalidDevice;
}
// What a split has given is not split again.
int cuDevSmResourceSplitByCount(CuResource* parts, unsigned* count, const CuResource* from,
                                CuResource* rest, unsigned, unsigned least) {
  FAKE_CALL(cuDevSmResourceSplitByCount);
  constexpr unsigned kStep = 8;
  const CuPart whole = part_of(*from);
  if (from->type != kResourceOfMultiprocessors || least > whole.count) return kInvalidValue;
  if (whole.is_split) {
    call.state.misuse(call.name, "what a split has given is no input");
    return kInvalidResource;
  }
  const unsigned each = std::max(kStep, (least + kStep - 1) / kStep * kStep);
  *count = std::min(*count, whole.count / each);
  if (*count == 0) return kInvalidResource;
  for (unsigned i = 0; i < *count; ++i) write_part({whole.first + i * each, each, true}, &parts[i]);
  write_part({whole.first + *count * each, whole.count - *count * each, true}, rest);
  return kOk;
}
int cuDevResourceGenerateDesc(CuResourceDesc** description, CuResource* resources, unsigned count) {
  FAKE_CALL(cuDevResourceGenerateDesc);
  if (count != 1) return kInvalidValue;
  const CuPart part = part_of(*resources);
  if (part.count == 0) return kInvalidResource;
  *description = call.state.make<CuResourceDesc>();
  (*description)->part = part;
  return kOk;
}
int cuGreenCtxCreate(CuGreenContext** context, CuResourceDesc* description, int device,
                     unsigned flags) {
  FAKE_CALL(cuGreenCtxCreate);
  FAKE_CHECK(description);
  if (flags != kGreenDefaultStream) return kInvalidValue;
  CuContext* const primary = primary_context(call.state, device);
  ++primary->users;
  *context = call.state.make<CuGreenContext>();
  (*context)->part = description->part;
  (*context)->context = call.state.make<CuContext>();
  (*context)->context->device = device;
  (*context)->context->primary = primary;
  return kOk;
}
int cuGreenCtxGetDevResource(CuGreenContext* context, CuResource* resource, int type) {
  FAKE_CALL(cuGreenCtxGetDevResource);
  FAKE_CHECK(context);
  if (type != kResourceOfMultiprocessors) return kInvalidValue;
  write_part({context->part.first, context->part.count, false}, resource);
  return kOk;
}
// Its streams are to be destroyed before.
int cuGreenCtxDestroy(CuGreenContext* context) {
  FAKE_RELEASE(cuGreenCtxDestroy);
  FAKE_CHECK(context);
  for (const CuStream* stream : call.state.streams)
    if (stream->is_alive && stream->context == context->context)
      call.state.misuse(call.name, "it still has a stream");
  context->is_alive = context->context->is_alive = false;
  CuContext* const primary = context->context->primary;
  if (--primary->users <= 0) primary->is_alive = false;
  return call.code;
}
// The context that is current has no part in it.
int cuGreenCtxStreamCreate(CuStream** stream, CuGreenContext* context, unsigned flags, int) {
  FAKE_CALL(cuGreenCtxStreamCreate);
  FAKE_CHECK(context);
  if (flags != kStreamNonBlocking) return kInvalidValue;
  *stream = make_stream(call.state, context->context);
  (*stream)->part = context->part;
  return kOk;
}

}  // extern "C"
