// The walk of all rules that follow what buffers hold: what an instruction of each kind moves from
// which arg to which. Private to the verify room.
#pragma once

#include <unordered_map>
#include <utility>

#include "model.h"

namespace piper {

// Holds what messages carry from their sends to their receives.
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

// Calls visit(read, written) for the positions of args between which a collective or own_part moves
// elements. (An index is after the only pair.)
template <class Visit>
void for_each_moved(const Instruction& one, const Visit& visit) {
  const size_t written = takes_pairs(one.kind) ? 1 : 0;
  for (size_t a = 0; a + written < one.args.size(); a += written + 1) visit(a, a + written);
}

// Follows instructions in their order. A rule derives from it, says what a buffer holds as a T, and
// defines what programs and collectives make of that.
template <class T>
class BufferWalk {
 public:
  explicit BufferWalk(const Section& section) : section_(section) {}
  virtual ~BufferWalk() = default;

  // Follows an instruction; of a collective, all members at once.
  void follow(Spot place) {
    const Step& step = section_.step(place);
    const auto args = section_.args_of(place.cell, step);
    if (moves_by_group(step.kind)) {
      // The slices of a tensor follow one another (rule structure): the last completes the sum.
      if (step.completes) collective(section_.members(place));
      return;
    }
    switch (step.kind) {
      case InstructionKind::kCompute:
        return compute(place);
      case InstructionKind::kInput:
        return put(place, args[0], input(place));
      case InstructionKind::kPosition:
        return put(place, args[0], position(place));
      case InstructionKind::kSend:
        for (const int32_t arg : args) sent_.post(place, get(place, arg));
        return;
      case InstructionKind::kRecv: {
        const Spot send = section_.partner[place.cell][place.index];
        return sent_.fetch(send, [&](size_t a, T&& what) {
          put(place, args[a], arrived(place, send, a, std::move(what)));
        });
      }
      case InstructionKind::kCopy:
        return put(place, args[1], copied(place));
      default:
        PIPER_CHECK(false, "no instruction is of kind {}", static_cast<int>(step.kind));
    }
  }

 protected:
  virtual T get(Spot place, int32_t buffer) = 0;
  virtual void put(Spot place, int32_t buffer, T what) = 0;
  virtual void compute(Spot place) = 0;
  virtual T input(Spot) { return {}; }
  virtual T position(Spot) { return {}; }
  // Returns what arg `a` of a receive holds, of what the send gave.
  virtual T arrived(Spot, Spot /*send*/, size_t /*a*/, T&& what) { return std::move(what); }
  virtual T copied(Spot place) { return get(place, section_.at(place).args[0]); }
  // Follows a collective, or one's own part, with for_each_moved().
  virtual void collective(std::span<const Spot> members) = 0;
  // Lets all members hold what joined(position of an arg) returns.
  template <class Joined>
  void join(std::span<const Spot> members, const Joined& joined) {
    for_each_moved(section_.at(members[0]), [&](size_t read, size_t written) {
      const T all = joined(read);
      for (const Spot member : members) put(member, section_.at(member).args[written], all);
    });
  }

  const Section& section_;

 private:
  Mail<T> sent_;
};

}  // namespace piper
