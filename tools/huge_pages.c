// This library gives a compiler its memory in pages of 2 MB, where the system has them only for
// programs that ask. tools/test loads it into cc1plus, which walks hundreds of MB in no order.
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { kPage = 4096, kHuge = 2 << 20, kLeast = 64 << 10 };
static const size_t kReserved = (size_t)16 << 30;  // addresses; memory is taken as it is touched

static void* map(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  return (void*)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}

// What a compiler asks for in pieces is cut from one stretch, so that pieces fill whole pages.
void* mmap(void* at, size_t size, int protection, int flags, int file, off_t offset) {
  static uintptr_t next = 0, end = 0;
  if (file != -1 || !(flags & MAP_ANONYMOUS) ||
      (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE | MAP_SHARED)) ||
      protection != (PROT_READ | PROT_WRITE) || size < kLeast)
    return map(at, size, protection, flags, file, offset);
  if (end == 0) {
    void* const all =
        map(NULL, kReserved, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    end = 1;  // none
    if (all != MAP_FAILED) {
      next = ((uintptr_t)all + kHuge - 1) / kHuge * kHuge;
      end = (uintptr_t)all + kReserved;
      madvise((void*)next, end - next, MADV_HUGEPAGE);
    }
  }
  const size_t whole = (size + kPage - 1) / kPage * kPage;
  if (next >= end || whole > end - next) return map(at, size, protection, flags, file, offset);
  void* const piece = (void*)next;
  next += whole;
  return piece;
}
