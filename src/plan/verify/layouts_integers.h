// Rule layout: which integers are the same, of those that are made, moved and cut into blocks.
// Private to the verify room.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace piper {

// Along axes with so many members, each has its block of each of `stretches` equal stretches of the
// elements. Where `mirrored`, the blocks of every second stretch are counted from its end.
struct Blocks {
  uint32_t axes = 0;
  int64_t members = 1;
  int64_t stretches = 1;
  bool mirrored = false;
};

class Integers {
 public:
  // Returns equal numbers, from 1 on, for equal words.
  int32_t number_of(std::vector<int64_t> words);
  // These return the number of a rank's own blocks of integers, and of what such blocks are
  // together. It is the same whatever has been cut and put together in between. Nothing: such
  // blocks are not followed.
  std::optional<int32_t> part_of(int32_t whole, const Blocks& blocks);
  std::optional<int32_t> whole_of(int32_t part, const Blocks& blocks);
  // Returns whether the integers are known to be blocks along these axes.
  bool are_blocks(int32_t number, uint32_t axes) const;

 private:
  // Describes, from the outside in, stretches, or axes that have one block each of what is further
  // in, as it is `members` times there. After the last are as many elements as are left.
  struct Factor {
    uint32_t axes = 0;  // 0: stretches
    int64_t count = 1;
    bool mirrored = false;
  };
  struct Part {
    int32_t of = 0;
    std::vector<Factor> factors;
  };
  Part description_of(int32_t number) const;
  static std::optional<size_t> split_at(std::vector<Factor>& factors, int64_t stretches);
  static std::vector<int64_t> reduce(Part& part);
  int32_t number_of(Part part);
  void describe(int32_t number, Part part);

  std::map<std::vector<int64_t>, int32_t> numbers_;  // by words
  std::map<int32_t, Part> parts_;                    // by number
};

}  // namespace piper
