// Writes TensorBoard's events: TFRecords (length, checksum, data, checksum) of messages of
// tensorflow/core/util/event.proto, of which three fields are needed. Called by the run's watcher.
#include "tensorboard.h"

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

namespace piper {
namespace {

constexpr uint32_t kCastagnoli = 0x82f63b78;  // reflected
constexpr uint32_t kMaskDelta = 0xa282ead8;

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ (value & 1 ? kCastagnoli : 0);
    table[i] = value;
  }
  return table;
}

// ---- The wire form of Protocol Buffers, as far as an event needs it -----------------------------

void put_varint(std::string& to, uint64_t value) {
  for (; value >= 128; value >>= 7) to += static_cast<char>(value | 128);
  to += static_cast<char>(value);
}
template <class T>
void put_raw(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
enum Wire { kVarint = 0, kDouble = 1, kBytes = 2, kFloat = 5 };
void put_key(std::string& to, int field, Wire wire) {
  put_varint(to, static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire));
}
void put_bytes(std::string& to, int field, const std::string& bytes) {
  put_key(to, field, kBytes);
  put_varint(to, bytes.size());
  to += bytes;
}

// Begins a message Event, whose fields are wall_time = 1, step = 2, file_version = 3, summary = 5
// and session_log = 7.
std::string begin_event(int64_t step) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  put_key(event, 1, kDouble);
  put_raw(event, std::chrono::duration<double>(now).count());
  put_key(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

uint32_t masked_crc(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<uint8_t>(byte)) & 255] ^ (crc >> 8);
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + kMaskDelta;
}

TensorBoardFile::~TensorBoardFile() {
  if (file_ != nullptr) std::fclose(file_);
}

Status TensorBoardFile::open(const std::string& folder, int64_t time, int64_t number,
                             std::optional<int64_t> first_step) {
  if (file_ != nullptr) std::fclose(file_);
  path_ = fmt::format("{}/events.out.tfevents.{:010}.piper.{}", folder, time, number);
  file_ = std::fopen(path_.c_str(), "ab");
  if (file_ == nullptr)
    return fail("cannot write {}: {}", path_, std::strerror(errno)).with_code(ExitCode::kStorage);
  std::string version = begin_event(0);
  put_bytes(version, 3, "brain.Event:2");
  PIPER_TRY(append(version));
  if (!first_step) return ok_status();
  std::string start = begin_event(*first_step + 1), log;
  put_key(log, 1, kVarint);  // SessionLog: status = 1, START
  put_varint(log, 1);
  put_bytes(start, 7, log);
  return append(start);
}

Status TensorBoardFile::add(int64_t step, std::span<const std::pair<std::string, double>> scalars) {
  std::string summary;
  for (const auto& [tag, number] :
       scalars) {  // Summary: value = 1; Value: tag = 1, simple_value = 2
    std::string value;
    put_bytes(value, 1, tag);
    put_key(value, 2, kFloat);
    put_raw(value, static_cast<float>(number));
    put_bytes(summary, 1, value);
  }
  std::string event = begin_event(step);
  put_bytes(event, 5, summary);
  return append(event);
}

Status TensorBoardFile::append(const std::string& event) {
  if (file_ == nullptr) return ok_status();
  std::string length, record;
  put_raw(length, static_cast<uint64_t>(event.size()));
  record = length;
  put_raw(record, masked_crc(length));
  record += event;
  put_raw(record, masked_crc(event));
  if (std::fwrite(record.data(), 1, record.size(), file_) == record.size() &&
      std::fflush(file_) == 0)
    return ok_status();
  Error error = fail("cannot write {}: {}", path_, std::strerror(errno))
                    .with_code(ExitCode::kStorage)
                    .with_note("the run goes on without it");
  std::fclose(file_);
  file_ = nullptr;
  return error;
}

}  // namespace piper
