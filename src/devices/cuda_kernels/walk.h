// How elements are laid out, as the texts of kernels state it: extents and strides, words,
// constants.
#pragma once

#include "emitter.h"

namespace piper::cuda_kernels {

// Returns the most bytes, up to 16 and a power of two, of which each of these numbers is a
// multiple.
int64_t common_bytes(std::initializer_list<int64_t> numbers);
// Returns what moves so many bytes at once: "uint16_t", "Pack<uint32_t, 4>".
std::string word_name(int64_t bytes);
// Returns a word all of whose elements are `value`: "Pack<uint32_t, 4>{{…}}".
std::string word_of(double value, DType dtype, int64_t bytes);

// "int32_t" where numbers up to these, and of a block of threads more, fit; else "int64_t".
std::string_view index_name(std::initializer_list<int64_t> most);
// Returns the largest distance of a place from the first.
int64_t reach(const Shape& extents, const std::vector<int64_t>& strides);
std::string list(const std::vector<int64_t>& numbers);  // "{4, 2}"
// "Strides<int32_t, 2>" and "{{4, 2}, {1, 4}}"
std::string strides_type(std::string_view index, const Shape& extents);
std::string strides_value(const Shape& extents, const std::vector<int64_t>& strides);

// A block has so many threads, as the texts of kernels state them, too.
inline constexpr int32_t kThreads = 256, kMmaThreads = 128;
inline constexpr int64_t kWarp = 32;
// Launches a thread for each of `count`.
void launch(Emitter& emit, std::string_view family, std::string body, int64_t count,
            std::vector<DeviceOperand> extra = {});

// ---- What makers of several families do ---------------------------------------------------------
// Operand 1, of this type, has the elements of operand 0 that begin at `first` and are walked
// through by these strides, one for each dim.
void take(const TensorType& to, const std::vector<int64_t>& strides, int64_t first, Emitter& emit);
// All elements of an operand of this type are `value`.
void fill(const TensorType& to, size_t operand, double value, Emitter& emit);

}  // namespace piper::cuda_kernels
