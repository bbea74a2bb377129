// Work on things that know nothing of each other, on as many threads as there are cores.
#pragma once

#include <cstddef>
#include <functional>

namespace piper {

// Calls work(i) once for each i below `count`, the lowest first where threads are fewer. The calls
// write to different places, so that the result is the same whichever runs first. `work` throws
// nothing. `most`: threads at most; 0: as many as there are cores. Inside of a call that is one of
// several threads' all work is done by that thread: the others have the cores.
void in_parallel(size_t count, const std::function<void(size_t)>& work, size_t most = 0);

// Calls work(i) as in_parallel does, before(i) ahead of it, and after(i) when work has ended for i
// and all below. No two calls of `before` and `after` overlap, so they may change what they share,
// and calls of `after` come in the order of i.
void in_parallel_in_order(size_t count, const std::function<void(size_t)>& before,
                          const std::function<void(size_t)>& work,
                          const std::function<void(size_t)>& after, size_t most = 0);

}  // namespace piper
