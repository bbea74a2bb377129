// A short vector in the size of a pointer, for lists of which there are many.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace piper {

// Tasks are many, and most of their lists hold nothing or one thing.
template <class T>
class SmallVector {
 public:
  SmallVector() = default;
  SmallVector(std::initializer_list<T> items) { append(items); }
  explicit SmallVector(const std::vector<T>& items) { append(items); }
  SmallVector(const SmallVector& other) { append(other); }
  SmallVector(SmallVector&& other) noexcept : head_(std::exchange(other.head_, nullptr)) {}
  SmallVector& operator=(SmallVector other) noexcept {
    std::swap(head_, other.head_);
    return *this;
  }
  ~SmallVector() {
    std::destroy(begin(), end());
    operator delete(head_);
  }

  operator std::vector<T>() const { return std::vector<T>(begin(), end()); }

  size_t size() const { return head_ ? head_->size : 0; }
  bool empty() const { return size() == 0; }
  T* begin() { return head_ ? reinterpret_cast<T*>(head_ + 1) : nullptr; }
  T* end() { return begin() + size(); }
  const T* begin() const { return head_ ? reinterpret_cast<const T*>(head_ + 1) : nullptr; }
  const T* end() const { return begin() + size(); }
  T& operator[](size_t i) { return begin()[i]; }
  const T& operator[](size_t i) const { return begin()[i]; }
  T& back() { return end()[-1]; }

  void reserve(size_t capacity) {
    static_assert(alignof(T) <= alignof(Head));
    if (capacity <= (head_ ? head_->capacity : 0)) return;
    auto* head = static_cast<Head*>(operator new(sizeof(Head) + capacity * sizeof(T)));
    *head = {static_cast<uint32_t>(size()), static_cast<uint32_t>(capacity)};
    std::uninitialized_move(begin(), end(), reinterpret_cast<T*>(head + 1));
    std::destroy(begin(), end());
    operator delete(std::exchange(head_, head));
  }
  void push_back(T item) {
    if (!head_ || head_->size == head_->capacity) reserve(std::max<size_t>(1, 2 * size()));
    new (end()) T(std::move(item));
    ++head_->size;
  }
  template <class Items>
  void append(const Items& items) {
    reserve(size() + static_cast<size_t>(items.end() - items.begin()));
    for (const T& item : items) push_back(item);
  }

 private:
  struct alignas(8) Head {
    uint32_t size, capacity;
  };
  Head* head_ = nullptr;  // and the items behind it
};

}  // namespace piper
