// A short life of the backend cuda, on whatever driver there is: programs on several streams,
// queued one by one and, where it can, as a graph, beside the same programs on the CPU. Says
// "right", or what it was told instead, and ends with 0 in both cases.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "piper/devices/cpu.h"
#include "piper/devices/cuda.h"

namespace piper {
namespace {

const TensorType kIn{DType::kF32, {48, 64}}, kOut{DType::kF32, {64, 48}}, kRow{DType::kF64, {3000}};

// y = x transposed, times 64 x 64 numbers where there is a kernel for that.
Program program(bool multiplies) {
  Program made;
  made.label = "a session";
  made.values = {kIn, {DType::kF32, {64, 64}}, kOut, {DType::kF32, {64, 48}}};
  made.num_args = 3;
  made.arg_read = {true, true, false};
  made.arg_written = {false, false, true};
  Attrs perm;
  perm.set("perm", std::vector<int64_t>{1, 0});
  made.ops = {{"Transpose", perm, {0}, {multiplies ? 3 : 2}}};
  if (multiplies) made.ops.push_back({"MatMul", {}, {1, 3}, {2}});
  if (!multiplies) made.values.pop_back();
  return made;
}

struct Data {
  std::vector<float> in, weights, out, narrow_out;  // on each of two streams
  std::vector<double> row;
  bool operator==(const Data&) const = default;
};
std::byte* bytes_of(auto& values) { return reinterpret_cast<std::byte*>(values.data()); }

Data begin() {
  std::mt19937 random(1);
  Data data{std::vector<float>(48 * 64), std::vector<float>(64 * 64), std::vector<float>(48 * 64),
            std::vector<float>(48 * 64), std::vector<double>(3000)};
  // Small whole numbers: sums of their products are the same in any order.
  for (std::vector<float>* each : {&data.in, &data.weights})
    for (float& x : *each) x = static_cast<float>(random() % 16) - 8;
  return data;
}

Result<Data> on_cpu(const Program& program) {
  Data data = begin();
  const auto backend = make_cpu_backend();
  PIPER_ASSIGN(const int32_t loaded, backend->load(program));
  PIPER_ASSIGN(std::byte * workspace, backend->allocate(backend->workspace_bytes(loaded)));
  std::byte* const args[] = {bytes_of(data.in), bytes_of(data.weights), bytes_of(data.out)};
  PIPER_ASSIGN(const int32_t bound, backend->bind(loaded, args, workspace));
  backend->launch(bound);
  data.narrow_out = data.out;
  backend->fill(bytes_of(data.row), kRow, 0.1);
  return data;
}

class Session {
 public:
  explicit Session(Backend& backend) : backend_(backend) {}

  Status prepare(const Program& program, Data& data) {
    PIPER_ASSIGN(arena_, backend_.allocate(3 << 20));
    PIPER_ASSIGN(host_, backend_.allocate(kBytes, Space::kHost));
    for (const Stream& one : {Stream{"wide", 1, 0}, Stream{"narrow", 0, 16}}) {
      PIPER_ASSIGN(streams_.emplace_back(), backend_.add_stream(one));
    }
    for (int32_t& event : events_) {
      PIPER_ASSIGN(event, backend_.add_event());
    }
    PIPER_ASSIGN(const int32_t loaded, backend_.load(program));
    for (size_t s = 0; s < 2; ++s) {
      PIPER_ASSIGN(std::byte * workspace, backend_.allocate(backend_.workspace_bytes(loaded)));
      std::byte* const args[] = {arena_, arena_ + kWeights, arena_ + (s == 0 ? kResult : kNarrow)};
      PIPER_ASSIGN(bound_[s], backend_.bind(loaded, args, workspace));
    }
    std::memcpy(host_, data.in.data(), kIn.bytes());
    std::memcpy(host_ + kWeights, data.weights.data(), 64 * 64 * sizeof(float));
    return ok_status();
  }

  // Both streams behind stream 0, and that behind both.
  void queue() {
    backend_.copy(arena_, host_, kResult);
    backend_.record(events_[0], 0);
    for (const int32_t stream : streams_) backend_.wait(events_[0], stream);
    for (size_t s = 0; s < 2; ++s) backend_.launch(bound_[s], streams_[s]);
    backend_.fill(arena_ + kFilled, kRow, 0.1, streams_[1]);
    for (size_t s = 0; s < 2; ++s) {
      backend_.record(events_[1 + s], streams_[s]);
      backend_.wait(events_[1 + s], 0);
    }
    backend_.copy(host_ + kResult, arena_ + kResult, kBytes - kResult);
  }
  Status finish() {
    backend_.record(events_[3], 0);
    return backend_.finish(events_[3]);
  }
  Status as_graph() {
    PIPER_TRY(backend_.begin_capture(0));
    queue();
    PIPER_ASSIGN(const int32_t graph, backend_.end_capture(0));
    for (int turn = 0; turn < 2; ++turn) backend_.launch_graph(graph, 0);
    return finish();
  }
  // What the host has been brought; it forgets it.
  void read(Data& data) {
    std::memcpy(data.out.data(), host_ + kResult, kOut.bytes());
    std::memcpy(data.narrow_out.data(), host_ + kNarrow, kOut.bytes());
    std::memcpy(data.row.data(), host_ + kFilled, kRow.bytes());
    std::memset(host_ + kResult, 0, kBytes - kResult);
  }

 private:
  static constexpr int64_t kWeights = 16384, kResult = 32768, kNarrow = 49152, kFilled = 65536,
                           kBytes = 98304;
  Backend& backend_;
  std::byte *arena_ = nullptr, *host_ = nullptr;
  std::vector<int32_t> streams_;
  int32_t events_[4] = {};
  int32_t bound_[2] = {};
};

Status run() {
  const std::vector<std::string> ops = cuda_ops();
  const Program made = program(std::count(ops.begin(), ops.end(), "MatMul") > 0);
  PIPER_ASSIGN(const Data expected, on_cpu(made));
  Data data = begin();
  CudaOptions options;
  if (const char* products = std::getenv("SESSION_PRODUCTS")) options.products = products;
  PIPER_ASSIGN(const std::unique_ptr<Backend> backend, make_cuda_backend(options));
  Session session(*backend);
  PIPER_TRY(session.prepare(made, data));
  session.queue();
  PIPER_TRY(session.finish());
  session.read(data);
  if (data != expected) return fail("queued one by one it is wrong");
  if (!backend->can_capture()) return ok_status();
  PIPER_TRY(session.as_graph());
  session.read(data);
  if (data != expected) return fail("as a graph it is wrong");
  return ok_status();
}

}  // namespace
}  // namespace piper

int main() {
  const piper::Status ran = piper::run();
  std::puts(ran ? "right" : ran.error().message.c_str());
  return 0;
}
