// Memory that the processes of a host share: seats, counters and slots.
#include "host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace piper::process {
namespace {

template <class T>
T* map_file(int file, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<T*>(memory);
}

// Another block of the same process number, say of another container, has another token.
uint64_t make_token(int64_t rank) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return (static_cast<uint64_t>(now.tv_sec) << 32 ^ static_cast<uint64_t>(now.tv_nsec) << 2 ^
          static_cast<uint64_t>(getpid()) << 16 ^ static_cast<uint64_t>(rank)) |
         1;
}

HostBlock* open_block(const HostEntry& at) {
  const std::string path = fmt::format("/proc/{}/fd/{}", at.process.load(), at.file.load());
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  const bool fits = lseek(file, 0, SEEK_END) == static_cast<off_t>(sizeof(HostBlock));
  HostBlock* block = fits ? map_file<HostBlock>(file, sizeof(HostBlock)) : nullptr;
  close(file);
  if (block == nullptr || block->token.load() == at.token.load()) return block;
  munmap(block, sizeof(HostBlock));
  return nullptr;
}

}  // namespace

HostMemory::HostMemory(uint64_t job, int64_t rank, int64_t world)
    : rank_(rank), world_(world), blocks_(static_cast<size_t>(world)) {
  make_block();
  if (own_ != nullptr && own_->token.load() != 0) open_entries(job);
}

void HostMemory::make_block() {
  file_ = memfd_create("piper", MFD_CLOEXEC);
  const bool sized = file_ >= 0 && ftruncate(file_, sizeof(HostBlock)) == 0;
  if (sized) own_ = map_file<HostBlock>(file_, sizeof(HostBlock));
  if (own_ == nullptr) {
    private_ = std::make_unique_for_overwrite<HostBlock>();
    own_ = private_.get();
    own_->token.store(0);
    return;
  }
  new (own_) HostBlock;  // its slots stay untouched: no memory is taken until they are used
  own_->token.store(make_token(rank_));
  // Neighbours may then read the stack of a stopped rank, also where by default only debuggers may.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

// Opens the entries of all ranks of the host; the first rank makes them. Their memory is allocated
// at once: where the file system is full, ranks share nothing, as a write to a page that is not to
// be had would end them.
void HostMemory::open_entries(uint64_t job) {
  const std::string name = fmt::format("/piper-{:016x}", job);
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  name_ = name;
  const size_t bytes = static_cast<size_t>(world_) * sizeof(HostEntry);
  if (posix_fallocate(file, 0, static_cast<off_t>(bytes)) == 0)
    entries_ = map_file<HostEntry>(file, bytes);
  close(file);
  if (entries_ == nullptr) return;
  HostEntry& own = entries_[rank_];
  own.process.store(getpid());
  own.file.store(file_);
  own.token.store(own_->token.load());
}

int64_t HostMemory::all_have_come() {
  if (!name_.empty()) shm_unlink(name_.c_str());
  name_.clear();
  int64_t count = 0;
  for (int64_t rank = 0; rank < world_; ++rank) count += is_here(rank) ? 1 : 0;
  return count;
}

HostMemory::~HostMemory() {
  for (HostBlock* block : blocks_)
    if (block != nullptr) munmap(block, sizeof(HostBlock));
  if (entries_ != nullptr) munmap(entries_, static_cast<size_t>(world_) * sizeof(HostEntry));
  if (!name_.empty()) shm_unlink(name_.c_str());
  if (!private_) munmap(own_, sizeof(HostBlock));
  if (file_ >= 0) close(file_);
}

bool HostMemory::is_here(int64_t rank) const {
  return entries_ != nullptr && entries_[rank].token.load() != 0;
}

HostBlock* HostMemory::block(int64_t rank) const {
  if (rank == rank_) return own_;
  HostBlock*& block = blocks_[static_cast<size_t>(rank)];
  if (block == nullptr && is_here(rank)) block = open_block(entries_[rank]);
  return block;
}

std::string HostMemory::read_text(int64_t rank, const char* text) const {
  char bytes[256] = {};
  if (text == nullptr || block(rank) == nullptr) return {};
  // Page by page: the text may end just before memory that is not there.
  const auto at = reinterpret_cast<uintptr_t>(text);
  const size_t first = std::min(sizeof bytes - 1, 4096 - at % 4096);
  const auto process = static_cast<pid_t>(entries_[rank].process.load());
  const auto read = [&](size_t from, size_t count) {
    iovec to{bytes + from, count};
    iovec there{reinterpret_cast<void*>(at + from), count};
    return process_vm_readv(process, &to, 1, &there, 1, 0) == static_cast<ssize_t>(count);
  };
  if (read(0, first) && std::memchr(bytes, 0, first) == nullptr)
    read(first, sizeof bytes - 1 - first);
  return bytes;
}

}  // namespace piper::process
