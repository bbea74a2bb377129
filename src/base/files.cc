#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "piper/base.h"

namespace piper {
namespace {

class File {
 public:
  explicit File(int handle) : handle_(handle) {}
  File(File&& other) noexcept : handle_(std::exchange(other.handle_, -1)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (handle_ >= 0) close(handle_);
  }
  int get() const { return handle_; }
  int release() { return std::exchange(handle_, -1); }

 private:
  int handle_;
};

// A name that does not fit is the user's slip; anything else is the machine's.
ExitCode code_of(int problem) {
  const bool by_name = problem == ENOENT || problem == ENOTDIR || problem == EISDIR ||
                       problem == EACCES || problem == ELOOP || problem == ENAMETOOLONG;
  return by_name ? ExitCode::kInput : ExitCode::kStorage;
}

Error cannot(std::string_view verb, const std::string& path, int problem) {
  return fail("cannot {} '{}': {}", verb, path, std::strerror(problem)).with_code(code_of(problem));
}

struct OpenFile {
  File file;
  int64_t size = 0;
};

Result<OpenFile> open_regular(const std::string& path) {
  // Not blocking: opening a pipe would otherwise wait for its writer.
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return cannot("read", path, errno);
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) return cannot("read", path, errno);
  if (S_ISDIR(about.st_mode)) return cannot("read", path, EISDIR);
  if (!S_ISREG(about.st_mode)) return fail("cannot read '{}': not a regular file", path);
  return OpenFile{std::move(file), about.st_size};
}

Status write_all(int handle, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = write(handle, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return cannot("write", path, errno);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return ok_status();
}

Status write_and_flush(File file, std::string_view bytes, const std::string& path) {
  PIPER_TRY(write_all(file.get(), bytes, path));
  if (fsync(file.get()) != 0) return cannot("write", path, errno);
  // Some file systems report a full disk only here.
  if (close(file.release()) != 0) return cannot("write", path, errno);
  return ok_status();
}

void* allocate(size_t size) {
  constexpr size_t kLine = 64;  // vector loads want whole cache lines
  void* memory = std::aligned_alloc(kLine, (size + kLine - 1) / kLine * kLine);
  PIPER_CHECK(memory || size == 0, "out of memory for {} bytes", size);
  return memory;
}

Bytes own(void* memory, size_t size) {
  return {std::shared_ptr<const void>(memory, [](void* m) { std::free(m); }),
          static_cast<const std::byte*>(memory), size};
}

}  // namespace

Bytes Bytes::copy_of(const void* data, size_t size) {
  void* memory = allocate(size);
  if (size > 0) std::memcpy(memory, data, size);
  return own(memory, size);
}

Bytes Bytes::zeros(size_t size) {
  void* memory = allocate(size);
  if (size > 0) std::memset(memory, 0, size);
  return own(memory, size);
}

Bytes Bytes::deferred(size_t size, std::function<Bytes()> make) {
  if (size == 0) return {};
  return {std::make_shared<std::function<Bytes()>>(std::move(make)), nullptr, size};
}

Bytes Bytes::made() const {
  if (data != nullptr || size == 0) return *this;
  Bytes bytes = (*static_cast<const std::function<Bytes()>*>(owner.get()))();
  PIPER_CHECK(bytes.size == size && bytes.data != nullptr, "{} of {} bytes", bytes.size, size);
  return bytes;
}

Bytes Bytes::window(size_t offset, size_t count) const {
  PIPER_CHECK(offset <= size && count <= size - offset, "{} + {} of {} bytes", offset, count, size);
  return {owner, data + offset, count};
}

Result<std::string> read_text_file(const std::string& path, int64_t limit_bytes) {
  PIPER_ASSIGN(const OpenFile file, open_regular(path));
  std::string text;
  // The size is only a hint: files under /proc say 0, and a file may grow while it is read.
  text.reserve(static_cast<size_t>(std::clamp<int64_t>(file.size, 0, limit_bytes)));
  char buffer[1 << 14];
  for (;;) {
    const ssize_t count = read(file.file.get(), buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return cannot("read", path, errno);
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
    if (static_cast<int64_t>(text.size()) > limit_bytes)
      return fail("'{}' is larger than the {} that are allowed for it", path,
                  human_bytes(limit_bytes));
  }
}

Result<Bytes> map_file(const std::string& path) {
  PIPER_ASSIGN(const OpenFile file, open_regular(path));
  if (file.size == 0) return Bytes();
  const auto size = static_cast<size_t>(file.size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.file.get(), 0);
  if (memory == MAP_FAILED) return cannot("map", path, errno);
  const std::shared_ptr<const void> owner(
      memory, [size](const void* m) { munmap(const_cast<void*>(m), size); });
  return Bytes{owner, static_cast<const std::byte*>(memory), size};
}

namespace {

// A device or a pipe takes what is written to it; a file renamed to its place would destroy it.
Status write_in_place(const std::string& path, std::string_view bytes) {
  const File file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) return cannot("write", path, errno).with_code(ExitCode::kStorage);
  Status written = write_all(file.get(), bytes, path);
  if (!written) return std::move(written).error().with_code(ExitCode::kStorage);
  return ok_status();
}

}  // namespace

Status write_file(const std::string& link, std::string_view bytes) {
  std::error_code ignored;
  const std::filesystem::file_status about = std::filesystem::status(link, ignored);
  if (std::filesystem::exists(about) && !std::filesystem::is_regular_file(about))
    return write_in_place(link, bytes);
  // Not the link is replaced, but what it leads to.
  const std::string path =
      std::filesystem::exists(about) && std::filesystem::is_symlink(link, ignored)
          ? std::filesystem::canonical(link, ignored).string()
          : link;
  std::string beside;
  int handle = -1;
  // Exclusive creation keeps writers of one path apart, and skips what a killed one left behind.
  for (int attempt = 0; attempt < 100 && handle < 0; ++attempt) {
    beside = fmt::format("{}.new-{}-{}", path, getpid(), attempt);
    handle = open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (handle < 0 && errno != EEXIST) break;
  }
  if (handle < 0) return cannot("write", path, errno).with_code(ExitCode::kStorage);
  Status written = write_and_flush(File(handle), bytes, path);
  if (written && rename(beside.c_str(), path.c_str()) != 0)
    written = cannot("write", path, errno).with_code(ExitCode::kStorage);
  if (!written) {
    unlink(beside.c_str());
    return std::move(written).error().with_code(ExitCode::kStorage);
  }
  std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (folder.empty()) folder = ".";
  const File directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) fsync(directory.get());  // some file systems cannot: the data is safe
  return ok_status();
}

namespace {

std::string print_hash(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace

std::string digest(std::string_view bytes) {
  return print_hash(XXH3_128bits(bytes.data(), bytes.size()));
}

struct Digester::State {
  XXH3_state_t* xxh = XXH3_createState();
};

Digester::Digester() : state_(std::make_unique<State>()) { XXH3_128bits_reset(state_->xxh); }
Digester::~Digester() { XXH3_freeState(state_->xxh); }
void Digester::add(std::string_view bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}
std::string Digester::digest() const { return print_hash(XXH3_128bits_digest(state_->xxh)); }

}  // namespace piper
