// Numbers in 8 bits, in blocks of which each has one scale: how tensors may travel. A number is its
// code times the scale of its block:
//
//   int8     codes are integers from -127 to 127; the scale is the largest size in the block / 127.
//            A number changes by at most half a scale.
//   float8   codes are floats with 4 bits of exponent and 3 of mantissa (e4m3); the scale is the
//            largest size / 448. A number changes by at most 1/16 of itself, or 2^-10 of the scale.
//
// A block with a number that is not finite becomes NaN throughout, so that nothing hides it. One
// whose numbers are all below 2^-100 becomes zeros.
#pragma once

#include <bit>
#include <cmath>

#include "piper/base/base.h"

namespace piper {

enum class Scaled : uint8_t { kNone, kInt8, kFloat8 };
inline constexpr std::array<const char*, 3> kScaledNames = {"none", "int8", "float8"};
constexpr const auto& names_of(Scaled) { return kScaledNames; }
Scaled parse_scaled(std::string_view name);  // kNone of any other name

// A block has a power of two of elements in this range.
inline constexpr int64_t kLeastBlock = 32, kMostBlock = 1024;
inline bool is_block(int64_t elements) {
  return elements >= kLeastBlock && elements <= kMostBlock && (elements & (elements - 1)) == 0;
}

// Says how elements lie in blocks of `block`, the last of which may have fewer; each takes
// block + 4 bytes: codes, then the scale (f32).
struct InBlocks {
  Scaled type = Scaled::kNone;
  int64_t block = 0;
  bool operator==(const InBlocks&) const = default;
  bool any() const { return type != Scaled::kNone; }
  int64_t block_bytes() const { return block + 4; }
  int64_t count(int64_t elements) const { return (elements + block - 1) / block; }
  int64_t bytes(int64_t elements) const { return count(elements) * block_bytes(); }
};

// Says where the elements of blocks are in a tensor: of pieces of so many elements of each dim (the
// last ones of a dim may have fewer) first all of one, then of the next; in a piece, whose elements
// are flat, blocks begin anew at each multiple of `run`.
class BlockPlaces {
 public:
  BlockPlaces(int64_t block, Shape shape, Shape piece, int64_t run);
  int64_t blocks() const { return pieces_ * runs_ * per_run_; }
  // Visits the elements of a block that are there: visit(position in the block, index).
  template <class Visit>
  void for_each(int64_t b, Visit visit) const {
    const int64_t piece = b / (runs_ * per_run_), run = b / per_run_ % runs_,
                  first = b % per_run_ * block_;
    for (int64_t i = 0; i < block_ && first + i < run_; ++i)
      if (const int64_t at = index_of(piece, run * run_ + first + i); at >= 0) visit(i, at);
  }
  const Shape& shape() const { return shape_; }
  const Shape& piece() const { return piece_; }
  int64_t run() const { return run_; }
  int64_t runs() const { return runs_; }
  int64_t per_run() const { return per_run_; }

 private:
  int64_t index_of(int64_t piece, int64_t element) const;  // -1: past the end of a dim, or of all

  int64_t block_;
  Shape shape_, piece_;
  int64_t pieces_ = 1, run_, runs_, per_run_;
};

// These handle floats of any type. Each has the same bits on every device.
void put_in_blocks(const InBlocks& in, DType dtype, const std::byte* from, int64_t count,
                   std::byte* to);
void take_from_blocks(const InBlocks& in, DType dtype, const std::byte* from, int64_t count,
                      std::byte* to);
// Rounds as both after one another. `to` may be `from`.
void round_in_blocks(const InBlocks& in, DType dtype, const std::byte* from, int64_t count,
                     std::byte* to);
// These add up terms in their order, each rounded so: of f64 in f64, of others in f32. The sum is
// rounded to `dtype` once. The second ones take terms that are in blocks.
void add_in_blocks(const InBlocks& in, DType dtype, std::span<const std::byte* const> terms,
                   int64_t count, std::byte* to);
void add_blocks(const InBlocks& in, DType dtype, std::span<const std::byte* const> terms,
                int64_t count, std::byte* to);

// ---- One block ----------------------------------------------------------------------------------

float scale_of(Scaled type, const float* numbers, int64_t count);
uint8_t code_of(Scaled type, float number, float scale);
float number_of(Scaled type, uint8_t code, float scale);

}  // namespace piper
