// Reads, maps and atomically writes files; the bytes that keep their owner alive.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "mapped.h"
#include "piper/base/base.h"
#include "piper/base/digester.h"
#include "piper/base/folders.h"
#include "written.h"

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

Error cannot(std::string_view verb, const std::string& path, int problem) {
  return fail("cannot {} '{}': {}", verb, path, std::strerror(problem))
      .with_code(code_of_system(problem));
}

struct OpenFile {
  File file;
  struct stat about = {};
};

Result<OpenFile> open_regular(const std::string& path) {
  // The file is opened without blocking: opening a pipe would otherwise wait for its writer.
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return cannot("read", path, errno);
  struct stat about = {};
  if (fstat(file.get(), &about) != 0) return cannot("read", path, errno);
  if (S_ISDIR(about.st_mode)) return cannot("read", path, EISDIR);
  if (!S_ISREG(about.st_mode)) return fail("cannot read '{}': not a regular file", path);
  return OpenFile{std::move(file), about};
}

Status write_each(int handle, std::span<const Bytes> parts, const std::string& path) {
  for (const Bytes& part : parts) {
    const Bytes made = part.made();
    PIPER_TRY(write_all(handle, as_text(made.span()), path));
  }
  return ok_status();
}

void* allocate(size_t size) {
  constexpr size_t kLine = 64;  // vector loads want whole cache lines
  void* memory = std::aligned_alloc(kLine, (size + kLine - 1) / kLine * kLine);
  if (memory == nullptr && size > 0) throw std::bad_alloc();
  return memory;
}

Bytes own(void* memory, size_t size) {
  return {std::shared_ptr<const void>(memory, [](void* m) { std::free(m); }),
          static_cast<const std::byte*>(memory), size};
}

}  // namespace

Status write_all(int handle, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t count = write(handle, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return cannot_store("write", path, errno);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return ok_status();
}

// A name that does not fit is the user's slip; anything else is the machine's.
ExitCode code_of_system(int problem) {
  const bool by_name = problem == ENOENT || problem == ENOTDIR || problem == EISDIR ||
                       problem == EACCES || problem == ELOOP || problem == ENAMETOOLONG;
  return by_name ? ExitCode::kInput : ExitCode::kStorage;
}

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
  text.reserve(static_cast<size_t>(std::clamp<int64_t>(file.about.st_size, 0, limit_bytes)));
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
  if (file.about.st_size == 0) return Bytes();
  const auto size = static_cast<size_t>(file.about.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.file.get(), 0);
  if (memory == MAP_FAILED) return cannot("map", path, errno);
  note_mapping(memory, size, path, file.about);
  const std::shared_ptr<const void> owner(memory, [size](const void* m) {
    forget_mapping(m);
    munmap(const_cast<void*>(m), size);
  });
  return Bytes{owner, static_cast<const std::byte*>(memory), size};
}

namespace {

// A device or a pipe takes what is written to it; a file renamed to its place would destroy it.
Status write_in_place(const std::string& path, std::span<const Bytes> parts) {
  const File file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) return cannot_store("write", path, errno);
  return write_each(file.get(), parts, path);
}

}  // namespace

namespace {

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string room_for(size_t bytes, const std::string& path) {
  std::error_code problem;
  const auto space = std::filesystem::space(folder_of(path), problem);
  const std::string wanted = human_bytes(static_cast<int64_t>(bytes));
  if (problem) return fmt::format("help: {} are needed", wanted);
  return fmt::format("help: {} are needed, {} are free", wanted,
                     human_bytes(static_cast<int64_t>(space.available)));
}

// Writes a file under a name of its own beside the target, and keeps it locked as long as its
// writer lives.
struct Beside {
  File file;
  std::string name;
};

constexpr int kNamesBeside = 100;

// Exclusive creation keeps writers of one path apart.
Result<Beside> create_beside(const std::string& path) {
  for (int attempt = 0; attempt < kNamesBeside; ++attempt) {
    std::string name = fmt::format("{}.new-{}-{}", path, getpid(), attempt);
    File file(open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file.get() < 0 && errno == EEXIST) continue;
    if (file.get() < 0) break;
    struct stat about = {};
    const bool locked = flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    // Between creation and lock, somebody may have taken it for a file without a writer.
    if (locked && fstat(file.get(), &about) == 0 && about.st_nlink > 0)
      return Beside{std::move(file), std::move(name)};
    errno = EEXIST;
  }
  return cannot_store("write", path, errno);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// Removes what writers of `path` that are gone have left beside it: nobody holds its lock, and none
// of this system's processes has its number.
void sweep(const std::string& path) {
  const std::string prefix = std::filesystem::path(path).filename().string() + ".new-";
  std::error_code problem;
  for (std::filesystem::directory_iterator it(folder_of(path), problem), end; !problem && it != end;
       it.increment(problem)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const std::vector<std::string> numbers = split_text(name.substr(prefix.size()), '-');
    if (numbers.size() != 2 || !is_number(numbers[0]) || !is_number(numbers[1])) continue;
    const pid_t writer = static_cast<pid_t>(std::strtol(numbers[0].c_str(), nullptr, 10));
    if (writer <= 0 || kill(writer, 0) == 0 || errno != ESRCH) continue;
    const File file(open(it->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file.get() >= 0 && flock(file.get(), LOCK_EX | LOCK_NB) == 0) unlink(it->path().c_str());
  }
}

// Returns the file that a link leads to, which is replaced in its place, also if it is not there.
std::string behind_links(const std::string& path) {
  std::error_code problem;
  std::filesystem::path target = path;
  for (int links = 0; links < 40 && std::filesystem::is_symlink(target, problem); ++links) {
    const std::filesystem::path next = std::filesystem::read_symlink(target, problem);
    if (problem) return path;
    target = next.is_absolute() ? next : target.parent_path() / next;
  }
  return target.string();
}

}  // namespace

Status check_output(const std::string& path) {
  if (path.empty()) return ok_status();
  std::error_code ignored;
  const std::filesystem::file_status about = std::filesystem::status(path, ignored);
  if (std::filesystem::is_directory(about))
    return fail("{} is a directory", path).with_code(ExitCode::kStorage);
  if (std::filesystem::exists(about) && !std::filesystem::is_regular_file(about)) {
    if (access(path.c_str(), W_OK) == 0) return ok_status();
    return fail("cannot write {}: {}", path, std::strerror(errno)).with_code(ExitCode::kStorage);
  }
  const std::string folder = folder_of(behind_links(path));
  if (std::filesystem::is_directory(folder, ignored) && access(folder.c_str(), W_OK) == 0)
    return ok_status();
  return fail("cannot write {}: {} is not a directory one can write to", path, folder)
      .with_code(ExitCode::kStorage);
}

Status check_room(const std::string& path, int64_t bytes, std::string_view what) {
  std::error_code problem;
  const std::filesystem::file_status about = std::filesystem::status(path, problem);
  if (std::filesystem::exists(about) && !std::filesystem::is_regular_file(about) &&
      !std::filesystem::is_directory(about))
    return ok_status();  // a device
  const std::string folder =
      std::filesystem::is_directory(about) ? path : folder_of(behind_links(path));
  const std::filesystem::space_info space = std::filesystem::space(folder, problem);
  if (problem || space.available >= static_cast<uint64_t>(bytes)) return ok_status();
  return fail("{} takes {}, and the disk of '{}' has room for {}", what, human_bytes(bytes), folder,
              human_bytes(static_cast<int64_t>(space.available)))
      .with_code(ExitCode::kStorage);
}

Status write_file(const std::string& path, std::string_view bytes) {
  const Bytes whole{nullptr, reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
  return write_parts(path, std::span(&whole, 1));
}

Result<UnseenFile> UnseenFile::write(const std::string& link, std::span<const Bytes> parts) {
  UnseenFile made;
  std::error_code ignored;
  const std::filesystem::file_status about = std::filesystem::status(link, ignored);
  if (std::filesystem::exists(about) && !std::filesystem::is_regular_file(about)) {
    made.path_ = link;
    for (const Bytes& part : parts) made.kept_.push_back(part.made());
    return made;
  }
  made.path_ = behind_links(link);
  sweep(made.path_);
  for (const Bytes& part : parts) made.bytes_ += part.size;
  PIPER_ASSIGN(Beside beside, create_beside(made.path_));
  made.name_ = std::move(beside.name);
  made.handle_ = beside.file.release();
  Status written = write_each(made.handle_, parts, made.path_);
  if (!written) return made.broken(std::move(written).error());
  return made;
}

UnseenFile::UnseenFile(UnseenFile&& other) noexcept
    : path_(std::move(other.path_)),
      name_(std::move(other.name_)),
      handle_(std::exchange(other.handle_, -1)),
      bytes_(other.bytes_),
      kept_(std::move(other.kept_)) {}

UnseenFile::~UnseenFile() {
  if (handle_ < 0) return;
  close(handle_);
  unlink(name_.c_str());
}

Error UnseenFile::broken(Error error) const {
  return std::move(error).with_note(room_for(bytes_, path_)).with_code(ExitCode::kStorage);
}

Status UnseenFile::publish() {
  if (handle_ < 0) return write_in_place(path_, kept_);
  if (fsync(handle_) != 0) return broken(cannot("write", path_, errno));
  // Some file systems report a full disk only where it is closed, which also gives up the lock.
  const int handle = std::exchange(handle_, -1);
  if (close(handle) != 0 || rename(name_.c_str(), path_.c_str()) != 0) {
    Error error = broken(cannot("write", path_, errno));
    unlink(name_.c_str());
    return error;
  }
  const std::string folder = folder_of(path_);
  const File directory(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() >= 0) fsync(directory.get());  // some file systems cannot: the data is safe
  return ok_status();
}

Status write_parts(const std::string& path, std::span<const Bytes> parts) {
  PIPER_ASSIGN(UnseenFile file, UnseenFile::write(path, parts));
  return file.publish();
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
