// The sentences of errors that transports share.
#include "errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace piper {

Error timed_out(int64_t rank, double seconds, const std::string& what,
                std::span<const int64_t> chain,
                const std::function<std::string(int64_t rank)>& activity) {
  Error error = fail("rank {} waited {:.3g} s {} rank {}", rank, seconds, what, chain.front());
  error.code = ExitCode::kPeer;
  for (int64_t next : chain.subspan(1))
    error.message += fmt::format(", which waits for rank {}", next);
  const int64_t last = chain.back();
  const bool twice = std::find(chain.begin(), chain.end() - 1, last) != chain.end() - 1;
  const bool ring = twice || last == rank;
  if (ring) error.notes.push_back("they wait for each other");
  const auto shown = ring ? chain.first(chain.size() - (twice ? 1 : 0)) : chain.last(1);
  for (int64_t one : shown)
    if (const std::string at = activity(one); !at.empty())
      error.notes.push_back(fmt::format("rank {} is at {}", one, at));
  return error;
}

Error stopped_by(int64_t rank, int64_t peer, std::string_view reason) {
  return fail("rank {} stopped because rank {} failed: {}", rank, peer, reason)
      .with_code(ExitCode::kPeer);
}

Error size_mismatch(int64_t rank, int64_t peer, const std::string& what, int64_t got,
                    int64_t wanted) {
  std::string brings = got < 0 ? "more" : std::to_string(got);
  return fail("rank {} expects {} bytes {} rank {}, which brings {}", rank, wanted, what, peer,
              brings)
      .with_code(ExitCode::kPlan);
}

}  // namespace piper
