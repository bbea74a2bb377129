#include "replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "raw.h"

namespace piper {
namespace {

constexpr int32_t kChannel = kOwnChannels + 6;

// The same where two ranks hold the same elements of the same state.
std::string key_of(const ParameterView& view) {
  return fmt::format("{}\t{}", view.name, to_string(view.held));
}

std::string name_of(const std::string& key) { return key.substr(0, key.find('\t')); }

uint64_t digest_of(const ParameterView& view) {
  const std::string text = digest(as_text({view.data, static_cast<size_t>(view.bytes())}));
  return std::strtoull(text.substr(0, 16).c_str(), nullptr, 16);
}

std::string list(std::span<const int64_t> ranks) {
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

}  // namespace

Result<std::unique_ptr<Replicas>> Replicas::open(Transport& transport, const Executor& executor) {
  auto replicas = std::make_unique<Replicas>();
  replicas->transport_ = &transport;
  replicas->own_ = executor.states();
  if (transport.rank() == 0) {
    for (int64_t rank = 0; rank < transport.world(); ++rank) PIPER_TRY(replicas->listen(rank));
    return replicas;
  }
  PIPER_ASSIGN(replicas->to_zero_, transport.add_send(0, kChannel, 2));
  std::string keys;
  for (const ParameterView& view : replicas->own_) keys += key_of(view) + "\n";
  auto size = static_cast<int64_t>(keys.size());
  PIPER_TRY(transport.send(replicas->to_zero_, raw(&size), sizeof size));
  PIPER_TRY(transport.send(replicas->to_zero_, raw(keys.data()), size));
  PIPER_TRY(transport.wait_sends());
  return replicas;
}

Status Replicas::listen(int64_t rank) {
  std::vector<std::string> keys;
  if (rank == 0) {
    from_.push_back(-1);
    for (const ParameterView& view : own_) keys.push_back(key_of(view));
  } else {
    PIPER_ASSIGN(const int32_t route, transport_->add_recv(rank, kChannel));
    from_.push_back(route);
    int64_t size = 0;
    PIPER_TRY(transport_->recv(route, raw(&size), sizeof size));
    std::string text(static_cast<size_t>(size), ' ');
    PIPER_TRY(transport_->recv(route, raw(text.data()), size));
    keys = split_text(text, '\n');
    keys.pop_back();  // what follows the last line's end
  }
  for (size_t i = 0; i < keys.size(); ++i) holders_[keys[i]].push_back({rank, i});
  digests_.emplace_back(keys.size());
  return ok_status();
}

Status Replicas::check(int64_t step) {
  std::vector<uint64_t> own;
  for (const ParameterView& view : own_) own.push_back(digest_of(view));
  if (transport_->rank() != 0) {
    PIPER_TRY(transport_->send(to_zero_, raw(own.data()),
                               static_cast<int64_t>(own.size() * sizeof(uint64_t))));
    return transport_->wait_sends();
  }
  digests_[0] = own;
  for (size_t rank = 1; rank < from_.size(); ++rank)
    PIPER_TRY(transport_->recv(from_[rank], raw(digests_[rank].data()),
                               static_cast<int64_t>(digests_[rank].size() * sizeof(uint64_t))));
  for (const auto& [key, holders] : holders_) PIPER_TRY(compare(step, key, holders));
  return ok_status();
}

// What most have is taken for right, where there is such a thing.
Status Replicas::compare(int64_t step, const std::string& key,
                         std::span<const Holder> holders) const {
  std::map<uint64_t, std::vector<int64_t>> by_value;
  for (const auto& [rank, position] : holders)
    by_value[digests_[static_cast<size_t>(rank)][position]].push_back(rank);
  if (by_value.size() == 1) return ok_status();
  const auto fewer = [](const auto& a, const auto& b) {
    return std::pair(a.second.size(), b.second[0]) < std::pair(b.second.size(), a.second[0]);
  };
  const auto most = std::max_element(by_value.begin(), by_value.end(), fewer);
  std::vector<int64_t> others;
  for (const auto& [rank, position] : holders)
    if (std::find(most->second.begin(), most->second.end(), rank) == most->second.end())
      others.push_back(rank);
  const bool majority = 2 * most->second.size() > holders.size();
  Error error = fail("step {}: '{}' on {} differs from its replica on {}", step + 1, name_of(key),
                     list(others), list(most->second))
                    .with_code(ExitCode::kNumeric);
  error.notes.push_back(majority
                            ? "what most ranks hold is taken for right"
                            : "which of them is wrong cannot be told: no value has a majority");
  return error;
}

}  // namespace piper
