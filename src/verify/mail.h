// What messages carry from their sends to their receives. Private to the verify room.
#pragma once

#include <utility>

#include "model.h"

namespace piper {

template <class T>
class Mail {
 public:
  explicit Mail(const Section& section) : section_(section), first_(section.steps.size()) {}

  // The next of what a send gives.
  void post(Spot send, T what) {
    std::vector<int32_t>& first = first_[send.cell];
    if (first.empty()) first.assign(section_.steps[send.cell].size(), -1);
    if (unused_ < 0) {
      unused_ = static_cast<int32_t>(letters_.size());
      letters_.emplace_back();
    }
    const int32_t letter = unused_;
    unused_ = letters_[letter].next;
    letters_[letter] = {std::move(what), -1};
    int32_t* at = &first[send.index];
    while (*at >= 0) at = &letters_[*at].next;
    *at = letter;
  }
  // Calls take(argument, what) for all that comes from the send.
  template <class Take>
  void fetch(Spot send, const Take& take) {
    int32_t& first = first_[send.cell][send.index];
    for (size_t a = 0; first >= 0; ++a) {
      Letter& letter = letters_[first];
      take(a, std::move(letter.what));
      const int32_t read = std::exchange(first, letter.next);
      letter.next = std::exchange(unused_, read);
    }
  }

 private:
  struct Letter {
    T what;
    int32_t next = -1;
  };
  const Section& section_;
  std::vector<std::vector<int32_t>> first_;  // by cell and send: its first letter
  std::vector<Letter> letters_;
  int32_t unused_ = -1;  // the first letter that has been read
};

}  // namespace piper
