// Results that threads share by their keys.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "piper/base/base.h"

namespace piper {

// Keeps what was made for the last few keys. Threads may share it; one that asks for what another
// is making waits for it.
template <class T>
class Memo {
 public:
  // Returns a copy of what `make` returned when the key was asked for first.
  template <class Make>
  Result<T> get(const std::string& key, const Make& make) {
    const std::shared_ptr<Made> made = find(key);
    std::call_once(made->once, [&] { made->result.emplace(make()); });
    return *made->result;
  }

 private:
  struct Made {
    std::once_flag once;
    std::optional<Result<T>> result;
  };
  std::shared_ptr<Made> find(const std::string& key) {
    const std::scoped_lock lock(mutex_);
    for (auto& [known, made] : made_)
      if (known == key) return made;
    constexpr size_t kMost = 4;  // results may be large
    if (made_.size() == kMost) made_.pop_front();
    return made_.emplace_back(key, std::make_shared<Made>()).second;
  }
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<Made>>> made_;  // oldest first
};

}  // namespace piper
