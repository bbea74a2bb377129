// Maps the files beside a model that hold its tensors, and nothing outside its folder.
#include "external_data.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "piper/frontend/onnx.h"

namespace piper::onnx_import {
namespace {

class Handle {
 public:
  explicit Handle(int handle) : handle_(handle) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (handle_ >= 0) ::close(handle_);
  }
  int get() const { return handle_; }
  void replace(int handle) {
    if (handle_ >= 0) ::close(handle_);
    handle_ = handle;
  }

 private:
  int handle_;
};

Error refuse(const std::string& location, std::string_view why) {
  return fail("external data '{}': {}", quote_control(location), why);
}

Error refuse(const std::string& location, int problem) {
  Error error = refuse(location, std::strerror(problem)).with_code(code_of_system(problem));
  if (problem != ENOENT) return error;
  return std::move(error).with_note(
      "help: put the file beside the model; 'piperc --dry-run' says what would be done without it");
}

Status check_location(const std::string& location) {
  if (location.empty()) return refuse(location, "the location is empty");
  if (location.find('\0') != std::string::npos) return refuse(location, "not a file name");
  if (location.front() == '/') return refuse(location, "an absolute path is not allowed");
  for (const std::string& part : split_text(location, '/')) {
    if (part == "..") return refuse(location, "'..' is not allowed");
    if (part.empty() || part == ".") return refuse(location, "not a plain relative path");
  }
  return ok_status();
}

Result<Bytes> map_whole(int handle, const std::string& location) {
  struct stat about = {};
  if (fstat(handle, &about) != 0) return refuse(location, errno);
  if (!S_ISREG(about.st_mode)) return refuse(location, "not a regular file");
  if (about.st_nlink != 1) return refuse(location, "the file has further hard links");
  const size_t size = static_cast<size_t>(about.st_size);
  if (size == 0) return Bytes{};
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, handle, 0);
  if (data == MAP_FAILED) return refuse(location, errno);
  std::shared_ptr<const void> owner(data,
                                    [size](const void* p) { munmap(const_cast<void*>(p), size); });
  return Bytes{std::move(owner), static_cast<const std::byte*>(data), size};
}

}  // namespace

void release(const Bytes& window) {
  static const uintptr_t kPage = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(window.data) / kPage * kPage;
  const auto end = reinterpret_cast<uintptr_t>(window.data) + window.size;
  constexpr size_t kWorthwhile = 1 << 16;  // less gives back less than the call costs
  if (window.size >= kWorthwhile)
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

bool ExternalData::holds(const Bytes& window) const {
  return std::any_of(open_files_.begin(), open_files_.end(), [&](const auto& file) {
    return window.size > 0 && window.owner == file.second.owner;
  });
}

bool ExternalData::is_absent(const Bytes& bytes) const { return zeros_.count(bytes.data) > 0; }

ExternalData::ExternalData(const std::string& model_path, bool may_be_absent)
    : directory_(std::filesystem::path(model_path).parent_path().string()),
      may_be_absent_(may_be_absent) {
  if (directory_.empty()) directory_.push_back('.');
}

namespace {

// Opens one component after the other, none of which may be a link: nothing outside the folder can
// be reached, and nothing can change between a check and the opening.
Status open_within(const std::string& directory, const std::string& location, Handle& handle) {
  handle.replace(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.get() < 0) return refuse(location, errno);
  const std::vector<std::string> parts = split_text(location, '/');
  for (size_t i = 0; i < parts.size(); ++i) {
    const int kind = i + 1 < parts.size() ? O_DIRECTORY : O_NONBLOCK;
    const int next =
        openat(handle.get(), parts[i].c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | kind);
    if (next < 0) {
      const bool link = errno == ELOOP || (errno == ENOTDIR && i + 1 < parts.size());
      return link ? refuse(location, "a symbolic link is not allowed") : refuse(location, errno);
    }
    handle.replace(next);
  }
  return ok_status();
}

}  // namespace

Result<Bytes> ExternalData::open(const std::string& location) {
  for (const auto& [name, bytes] : open_files_)
    if (name == location) return bytes;
  Handle handle(-1);
  PIPER_TRY(open_within(directory_, location, handle));
  Result<Bytes> bytes = map_whole(handle.get(), location);
  if (bytes.ok()) open_files_.emplace_back(location, *bytes);
  return bytes;
}

bool ExternalData::is_absent(const std::string& location) const {
  std::error_code error;
  const auto path = std::filesystem::path(directory_) / location;
  return may_be_absent_ && std::filesystem::symlink_status(path, error).type() ==
                               std::filesystem::file_type::not_found;
}

// Integers say what is computed: zeros in their place would make another model.
Result<Bytes> ExternalData::zeros(const std::string& location, const TensorType& type) {
  if (!info(type.dtype).is_float)
    return refuse(location,
                  "the file is not there, and zeros cannot stand for the integers that it holds; "
                  "keep them in the model file");
  const auto size = static_cast<size_t>(type.bytes());
  if (size == 0) return Bytes{};
  // No memory is behind these pages until somebody writes them, which nobody can.
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return refuse(location, errno);
  std::shared_ptr<const void> owner(data,
                                    [size](const void* p) { munmap(const_cast<void*>(p), size); });
  absent_bytes_ += static_cast<int64_t>(size);
  zeros_.insert(data);
  return Bytes{owner, static_cast<const std::byte*>(data), size};
}

Result<Bytes> ExternalData::read(const std::string& location, int64_t offset, int64_t length,
                                 const TensorType& type) {
  PIPER_TRY(check_location(location));
  if (is_absent(location)) return zeros(location, type);
  PIPER_ASSIGN(const Bytes file, open(location));
  const int64_t size = static_cast<int64_t>(file.size);
  if (offset < 0 || offset > size) {
    return fail("external data '{}': offset {} is outside the file of {} bytes",
                quote_control(location), offset, size);
  }
  if (length < 0) length = size - offset;
  if (length > size - offset) {
    return fail(
        "external data '{}': {} bytes at offset {} are more than the file of {} bytes holds",
        quote_control(location), length, offset, size);
  }
  Bytes window = file.window(static_cast<size_t>(offset), static_cast<size_t>(length));
  // Elements are read in place later: what is not on their boundary is copied.
  const bool aligned = reinterpret_cast<uintptr_t>(window.data) % 8 == 0;
  return aligned ? window : Bytes::copy_of(window.data, window.size);
}

}  // namespace piper::onnx_import
