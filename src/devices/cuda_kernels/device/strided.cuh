// Runs of bytes that fabrics take apart and put together, by nested loops around them. Unlike all
// other kernels these have their sizes at run time, in place of addresses: after `from` and `to`
// the elements of a run, the number of loops, and for each, the outermost first, its turns and the
// bytes from one turn to the next on both sides.

constexpr int kStridedLoops = 16, kStridedPointers = 4 + 3 * kStridedLoops;

template <class T>
DEVICE void move_strided(const Pointers<kStridedPointers>& p) {
  const auto number = [&](int i) { return reinterpret_cast<int64_t>(p.address[i]); };
  const int64_t run = number(2);
  const int loops = static_cast<int>(number(3));
  int64_t count = run;
  for (int loop = 0; loop < loops; ++loop) count *= number(4 + 3 * loop);
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    int64_t turn = i / run, from = i % run * static_cast<int64_t>(sizeof(T)), to = from;
    for (int loop = loops; loop-- > 0;) {
      const int64_t turns = number(4 + 3 * loop), at = turn % turns;
      turn /= turns;
      from += at * number(5 + 3 * loop);
      to += at * number(6 + 3 * loop);
    }
    *reinterpret_cast<T*>(p.address[1] + to) = *reinterpret_cast<const T*>(p.address[0] + from);
  }
}

KERNEL(move_16, kStridedPointers, 256) { move_strided<Pack<uint64_t, 2>>(p); }
KERNEL(move_8, kStridedPointers, 256) { move_strided<uint64_t>(p); }
KERNEL(move_4, kStridedPointers, 256) { move_strided<uint32_t>(p); }
KERNEL(move_2, kStridedPointers, 256) { move_strided<uint16_t>(p); }
KERNEL(move_1, kStridedPointers, 256) { move_strided<uint8_t>(p); }
