// Chooses how many blocks the kernels of each communicator have, so that all that run at once fit.
#include <map>

#include "nccl_links.h"

namespace piper::cuda {
namespace {

constexpr int kMostChannels = 32;
constexpr int kMostOfPair = 8;  // blocks that bring two devices to the speed of what connects them

// Describes what runs one kernel after the other: how many multiprocessors the plan lets it have at
// most, or 0 where it says nothing, and whether groups are among its users.
struct Queue {
  int64_t sms = 0;
  bool has_group = false;
};
// Limits the blocks of communicators of which the plan says nothing.
struct Shares {
  int64_t pair = kMostOfPair, group = kMostChannels;
};

// Queues of which the plan says nothing share what the others leave: those of pairs only get as
// many blocks as pairs use, and groups the rest.
Shares shares_of(const std::map<int64_t, Queue>& queues, int64_t multiprocessors,
                 bool& are_too_many) {
  int64_t rest = multiprocessors, pairs = 0, groups = 0;
  for (const auto& [number, queue] : queues)
    queue.sms > 0 ? rest -= std::min<int64_t>(queue.sms, kMostChannels)
                  : ++(queue.has_group ? groups : pairs);
  are_too_many |= rest < pairs + groups;
  Shares made;
  if (pairs + groups > 0) made.pair = std::min<int64_t>(kMostOfPair, rest / (pairs + groups));
  if (groups > 0)
    made.group = std::min<int64_t>(kMostChannels, (rest - pairs * made.pair) / groups);
  return made;
}

}  // namespace

BlocksOf blocks_of(std::span<const Communicator> all, int multiprocessors) {
  // These are the queues of each place of a mesh. A queue runs one kernel at a time, and sends have
  // a queue of their own.
  std::map<std::vector<int32_t>, std::map<int64_t, Queue>> places;
  const auto use = [](std::map<int64_t, Queue>& queues, int64_t queue, const Communicator& user) {
    const auto [known, is_new] = queues.try_emplace(queue, Queue{user.sms, !user.is_pair()});
    if (is_new) return;
    auto& [sms, has_group] = known->second;
    sms = std::min(sms, user.sms) > 0 ? std::max(sms, user.sms) : 0;
    has_group |= !user.is_pair();
  };
  for (size_t c = 0; c < all.size(); ++c) {
    if (!all[c].is_pair()) continue;
    use(places[all[c].from], -1 - static_cast<int64_t>(c), all[c]);
    use(places[all[c].to], all[c].streams[1], all[c]);
  }
  if (places.empty()) places[{}];
  BlocksOf made;
  Shares least{kMostOfPair, kMostChannels};
  for (auto& [place, queues] : places) {
    for (const Communicator& each : all)
      if (!each.is_pair()) use(queues, each.streams[0], each);
    const Shares here = shares_of(queues, multiprocessors - 1, made.are_too_many);
    least = {std::min(least.pair, here.pair), std::min(least.group, here.group)};
  }
  for (const Communicator& each : all) {
    const int64_t share = each.is_pair() ? least.pair : least.group;
    made.most.push_back(
        static_cast<int>(std::clamp<int64_t>(each.sms > 0 ? each.sms : share, 1, kMostChannels)));
  }
  return made;
}

}  // namespace piper::cuda
