// Models as compilations of one process have read them. Private to the compile room.
#pragma once

#include <list>
#include <memory>
#include <mutex>
#include <optional>

#include "piper/frontend/patterns.h"
#include "piper/planner/compile.h"

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
    constexpr size_t kMost = 4;  // values of parameters may be copied for each
    if (made_.size() == kMost) made_.pop_front();
    return made_.emplace_back(key, std::make_shared<Made>()).second;
  }
  std::mutex mutex_;
  std::list<std::pair<std::string, std::shared_ptr<Made>>> made_;  // oldest first
};

struct KnownModels {
  Memo<Imported> imported;
  Memo<Recognised> recognised;  // with the loss
};

// Returns all that the model's graph depends on before `annotate` changes it.
std::string key_of_model(const Strategy& strategy, const CompileOptions& options);

}  // namespace piper
