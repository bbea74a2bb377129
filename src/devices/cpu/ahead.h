// Memory that will be needed soon is fetched little by little, while products are computed.
#pragma once

#include <cstdint>

#include "gemm.h"

namespace piper::cpu {

template <class T>
constexpr int64_t kLine = 64 / sizeof(T);  // elements of a line of the caches

template <class T>
class Ahead {
 public:
  Ahead() = default;
  Ahead(const T* at, int64_t rows, int64_t length, int64_t step)
      : at_(at), rows_(rows), length_(length), step_(step) {}
  // Fetches a part of b, before it is packed.
  Ahead(const Gemm& g, const T* b, int64_t k0, int64_t depth, int64_t n0, int64_t columns)
      : Ahead(b + (g.trans_b ? n0 * g.row_of_b() + k0 : k0 * g.row_of_b() + n0),
              g.trans_b ? columns : depth, g.trans_b ? depth : columns, g.row_of_b()) {}
  int64_t lines() const { return rows_ * ((length_ + kLine<T> - 1) / kLine<T>); }
  [[gnu::always_inline]] void fetch(int64_t lines) {
    for (; lines > 0 && rows_ > 0; --lines) {
      __builtin_prefetch(at_ + column_);
      column_ += kLine<T>;
      if (column_ >= length_) column_ = 0, at_ += step_, --rows_;
    }
  }

 private:
  const T* at_ = nullptr;
  int64_t rows_ = 0, length_ = 0, step_ = 0, column_ = 0;
};

}  // namespace piper::cpu
