// Pickles of PyTorch as plain values: nothing in them is executed or imported. Private to the
// checkpoint room.
#pragma once

#include <deque>

#include "piper/base/base.h"

namespace piper {

struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,       // its value is not kept
    kText,        // in the pickle's own bytes
    kTuple,       // items
    kList,        // items
    kDict,        // items: keys and values in turn
    kGlobal,      // text: "module.name"
    kCall,        // items: what would be called, and a tuple
    kObject,      // items: the class, and what its state was set to
    kPersistent,  // items: the tuple that names a storage
  };
  Kind kind = Kind::kNone;
  int64_t number = 0;
  std::string_view text;
  std::vector<uint32_t> items;  // values by number; they may be shared, and form circles
};

// Holds the values of one pickle. What is asked of a value that is something else is nothing, so
// that readers of foreign bytes need no checks before.
class Pickle {
 public:
  using Kind = PickleValue::Kind;
  uint32_t root() const { return root_; }
  const PickleValue& at(uint32_t value) const { return values_[value]; }
  bool is(uint32_t value, Kind kind) const { return at(value).kind == kind; }
  // Returns the value under a key of a dict, or of an object's state; the last, if it is there
  // twice.
  std::optional<uint32_t> field(uint32_t value, std::string_view key) const;
  // Returns the name of the class of an object, of what a call calls, or of a global.
  std::string_view name_of(uint32_t value) const;
  std::optional<std::string> text(std::optional<uint32_t> value) const;
  std::optional<int64_t> integer(std::optional<uint32_t> value) const;
  // Returns the sizes of a tuple of integers, or of torch.Size of one: not negative, at most 16.
  std::optional<Shape> sizes(std::optional<uint32_t> value) const;

 private:
  friend class PickleReader;
  std::vector<PickleValue> values_;
  std::deque<std::string> names_;  // of globals
  uint32_t root_ = 0;
};

// Reads a pickle of protocol 2 to 5. `bytes` outlive the result; `at` says where they begin in the
// file, for messages. Error: an opcode or a global that checkpoints of PyTorch do not have, bytes
// that lack or are left over.
Result<Pickle> read_pickle(std::span<const std::byte> bytes, const std::string& path, uint64_t at);

}  // namespace piper
