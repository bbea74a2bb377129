// Rule layout: numbers for the contents of integer tensors, so that an index is recognized after it
// was cut into blocks, moved and joined again. Private to the verify room.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace piper {

// Describes a cut into blocks over `axes`, which have `members` ranks: each rank has its block of
// each of `stretches` equal stretches of the elements. If `mirrored`, the blocks of every second
// stretch are counted from its end.
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
  // These return the number of a rank's blocks of a whole, and of the whole that such blocks are
  // part of. The number does not depend on cuts that were joined again in between. Nothing: the cut
  // crosses blocks of another one.
  std::optional<int32_t> part_of(int32_t whole, const Blocks& blocks);
  std::optional<int32_t> whole_of(int32_t part, const Blocks& blocks);
  // Returns whether the integers are known to be blocks along these axes.
  bool are_blocks(int32_t number, uint32_t axes) const;

 private:
  // Is a factor of the elements' number, from the outside in: stretches, or the ranks of axes, each
  // of which has one block. The elements that the factors leave come after the last.
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
