#include "host_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace piper::mpi {
namespace {

constexpr const char* kBootFile = "/proc/sys/kernel/random/boot_id";

HostBlock* map_block(int file) {
  void* memory = mmap(nullptr, sizeof(HostBlock), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<HostBlock*>(memory);
}

// Another block of the same process number, say of another container, has another token.
uint64_t make_token(int64_t rank) {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) << 32 ^ static_cast<uint64_t>(now.tv_nsec) << 2 ^
         static_cast<uint64_t>(getpid()) << 16 ^ static_cast<uint64_t>(rank);
}

HostBlock* open_block(const HostAddress& at) {
  const std::string path = fmt::format("/proc/{}/fd/{}", at.process, at.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return nullptr;
  const bool fits = lseek(file, 0, SEEK_END) == static_cast<off_t>(sizeof(HostBlock));
  HostBlock* block = fits ? map_block(file) : nullptr;
  close(file);
  if (block == nullptr || block->token.load() == at.token) return block;
  munmap(block, sizeof(HostBlock));
  return nullptr;
}

}  // namespace

HostMemory::HostMemory(int64_t rank) {
  file_ = memfd_create("piper", MFD_CLOEXEC);
  const bool sized = file_ >= 0 && ftruncate(file_, sizeof(HostBlock)) == 0;
  if (sized) own_ = map_block(file_);
  if (own_ == nullptr) {
    private_ = std::make_unique_for_overwrite<HostBlock>();
    own_ = private_.get();
    return;
  }
  new (own_) HostBlock;  // its slots stay untouched: no memory is taken until they are used
  const auto host = read_text_file(kBootFile, 1 << 10);
  if (!host) return;
  std::memcpy(address_.host, host->data(), std::min(host->size(), sizeof address_.host - 1));
  address_.process = getpid();
  address_.file = file_;
  address_.token = make_token(rank);
  own_->token.store(address_.token);
  // Neighbours read where a stopped rank stands, also where only debuggers may by default.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

HostMemory::~HostMemory() {
  for (HostBlock* block : blocks_)
    if (block != nullptr && block != own_) munmap(block, sizeof(HostBlock));
  if (!private_) munmap(own_, sizeof(HostBlock));
  all_have_mapped();
}

std::vector<char> HostMemory::map(std::span<const HostAddress> addresses, int64_t own) {
  std::vector<char> mapped;
  for (size_t i = 0; i < addresses.size(); ++i) {
    const HostAddress& at = addresses[i];
    const bool here =
        address_.host[0] != 0 && std::memcmp(at.host, address_.host, sizeof at.host) == 0;
    const bool self = static_cast<int64_t>(i) == own;
    blocks_.push_back(self ? own_ : here ? open_block(at) : nullptr);
    processes_.push_back(at.process);
    mapped.push_back(blocks_.back() != nullptr ? 1 : 0);
  }
  return mapped;
}

void HostMemory::all_have_mapped() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

std::string HostMemory::read_text(int64_t rank, const char* text) const {
  char bytes[256] = {};
  if (text == nullptr || block(rank) == nullptr) return {};
  // Page by page: the text may end just before memory that is not there.
  const auto at = reinterpret_cast<uintptr_t>(text);
  const size_t first = std::min(sizeof bytes - 1, 4096 - at % 4096);
  const auto process = static_cast<pid_t>(processes_[static_cast<size_t>(rank)]);
  const auto read = [&](size_t from, size_t count) {
    iovec to{bytes + from, count};
    iovec there{reinterpret_cast<void*>(at + from), count};
    return process_vm_readv(process, &to, 1, &there, 1, 0) == static_cast<ssize_t>(count);
  };
  if (read(0, first) && std::memchr(bytes, 0, first) == nullptr)
    read(first, sizeof bytes - 1 - first);
  return bytes;
}

}  // namespace piper::mpi
