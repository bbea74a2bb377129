// What messages carry from their sends to their receives. Private to the verify room.
#pragma once

#include <unordered_map>
#include <utility>

#include "model.h"

namespace piper {

template <class T>
class Mail {
 public:
  // Posts the next of what a send gives.
  void post(Spot send, T what) { letters_[key_of(send)].push_back(std::move(what)); }
  // Calls take(argument, what) for all that comes from the send.
  template <class Take>
  void fetch(Spot send, const Take& take) {
    auto sent = letters_.extract(key_of(send));
    for (size_t a = 0; !sent.empty() && a < sent.mapped().size(); ++a)
      take(a, std::move(sent.mapped()[a]));
  }

 private:
  static uint64_t key_of(Spot send) {
    return static_cast<uint64_t>(send.cell) << 32 | static_cast<uint32_t>(send.index);
  }
  std::unordered_map<uint64_t, std::vector<T>> letters_;  // by send
};

}  // namespace piper
