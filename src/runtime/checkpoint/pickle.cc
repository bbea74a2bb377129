// Reads pickles: only the opcodes that checkpoints of PyTorch have, and none of them runs anything.
#include "pickle.h"

#include <algorithm>
#include <cstring>

namespace piper {

using Kind = PickleValue::Kind;

namespace {

constexpr size_t kMaxDims = 16;

// All that a pickle may name. Nothing is imported: the names only say what the values beside them
// mean.
constexpr std::pair<std::string_view, std::string_view> kGlobals[] = {
    {"torch.distributed.checkpoint.metadata", "Metadata"},
    {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata"},
    {"torch.distributed.checkpoint.metadata", "BytesStorageMetadata"},
    {"torch.distributed.checkpoint.metadata", "TensorProperties"},
    {"torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"},
    {"torch.distributed.checkpoint.metadata", "MetadataIndex"},
    {"torch.distributed.checkpoint.metadata", "StorageMeta"},
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo"},
    {"torch.serialization", "_get_layout"},
    {"torch._utils", "_rebuild_tensor_v2"},
    {"collections", "OrderedDict"},
    {"pathlib", "PosixPath"},
    {"pathlib", "WindowsPath"},
    {"pathlib._local", "PosixPath"},
    {"pathlib._local", "WindowsPath"},
};

// Types of elements, storages of them and torch.Size are all in this module; no function is.
bool is_torch_type(std::string_view name) {
  constexpr std::string_view kNames[] = {"Size", "bool", "half", "float", "double", "bfloat16"};
  constexpr std::string_view kStems[] = {"float", "int", "uint", "complex"};
  if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames)) return true;
  const bool is_type = std::any_of(std::begin(kStems), std::end(kStems), [&](auto stem) {
    return name.starts_with(stem) && name.size() > stem.size() && name[stem.size()] >= '0' &&
           name[stem.size()] <= '9';
  });
  return is_type || (name.ends_with("Storage") && name.find('.') == name.npos);
}

bool is_known(std::string_view module, std::string_view name) {
  if (module == "torch") return is_torch_type(name);
  return std::find(std::begin(kGlobals), std::end(kGlobals), std::pair(module, name)) !=
         std::end(kGlobals);
}

}  // namespace

// ---- Values -------------------------------------------------------------------------------------

std::optional<uint32_t> Pickle::field(uint32_t value, std::string_view key) const {
  if (is(value, Kind::kObject)) {
    if (at(value).items.size() < 2) return {};
    value = at(value).items[1];
  }
  if (!is(value, Kind::kDict)) return {};
  const std::vector<uint32_t>& items = at(value).items;
  for (size_t k = items.size(); k >= 2; k -= 2)
    if (is(items[k - 2], Kind::kText) && at(items[k - 2]).text == key) return items[k - 1];
  return {};
}

std::string_view Pickle::name_of(uint32_t value) const {
  if (is(value, Kind::kObject) || is(value, Kind::kCall)) value = at(value).items[0];
  return is(value, Kind::kGlobal) ? at(value).text : std::string_view();
}

std::optional<std::string> Pickle::text(std::optional<uint32_t> value) const {
  if (!value || !is(*value, Kind::kText)) return {};
  return std::string(at(*value).text);
}

std::optional<int64_t> Pickle::integer(std::optional<uint32_t> value) const {
  if (!value || !is(*value, Kind::kInt)) return {};
  return at(*value).number;
}

std::optional<Shape> Pickle::sizes(std::optional<uint32_t> value) const {
  if (!value) return {};
  if (is(*value, Kind::kCall) && name_of(*value) == "torch.Size") {
    const PickleValue& arguments = at(at(*value).items[1]);
    if (arguments.items.size() != 1) return {};
    value = arguments.items[0];
  }
  if (!is(*value, Kind::kTuple) || at(*value).items.size() > kMaxDims) return {};
  Shape sizes;
  for (const uint32_t item : at(*value).items) {
    const auto size = integer(item);
    if (!size || *size < 0) return {};
    sizes.push_back(*size);
  }
  return sizes;
}

// ---- Opcodes ------------------------------------------------------------------------------------

// Runs a pickle's opcodes on a stack of values and marks, and a table of values that later opcodes
// may use again.
class PickleReader {
 public:
  PickleReader(std::span<const std::byte> bytes, const std::string& path, uint64_t at)
      : bytes_(as_text(bytes)), path_(path), at_(at) {}

  Result<Pickle> read() {
    while (!stopped_) {
      op_at_ = next_;
      PIPER_ASSIGN(const uint64_t op, number(1));
      PIPER_TRY(run(static_cast<uint8_t>(op)));
    }
    if (next_ != bytes_.size()) return error("bytes follow the end of the pickle");
    return std::move(pickle_);
  }

 private:
  Error error(const std::string& what) const {
    return fail(SourceSpan{path_}, "byte {}: {}", at_ + op_at_, what);
  }

  Result<std::string_view> take(uint64_t count) {
    if (count > bytes_.size() - next_)
      return error(
          fmt::format("{} bytes are needed, and {} are left", count, bytes_.size() - next_));
    next_ += count;
    return bytes_.substr(next_ - count, count);
  }
  Result<uint64_t> number(int count) {
    PIPER_ASSIGN(const std::string_view text, take(static_cast<uint64_t>(count)));
    uint64_t value = 0;
    for (int k = count - 1; k >= 0; --k)
      value = value << 8 | static_cast<uint8_t>(text[static_cast<size_t>(k)]);
    return value;
  }
  Result<std::string_view> line() {
    const size_t end = bytes_.find('\n', next_);
    if (end == bytes_.npos) return error("a name has no end");
    const std::string_view text = bytes_.substr(next_, end - next_);
    next_ = end + 1;
    return text;
  }

  Status push(PickleValue value) {
    pickle_.values_.push_back(std::move(value));
    stack_.push_back(static_cast<uint32_t>(pickle_.values_.size() - 1));
    return ok_status();
  }
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Result<std::vector<uint32_t>> pop(size_t count) {
    if (stack_.size() - floor() < count)
      return error(
          fmt::format("it takes {} values, and {} are there", count, stack_.size() - floor()));
    std::vector<uint32_t> values(stack_.end() - static_cast<std::ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    return values;
  }
  Result<std::vector<uint32_t>> pop_to_mark() {
    if (marks_.empty()) return error("it takes what follows a mark, and there is none");
    PIPER_ASSIGN(std::vector<uint32_t> values, pop(stack_.size() - marks_.back()));
    marks_.pop_back();
    return values;
  }
  Status push_of(Kind kind, Result<std::vector<uint32_t>> items) {
    if (!items) return std::move(items).error();
    return push({kind, 0, {}, *std::move(items)});
  }
  // Adds items to the list or dict below them.
  Status add_to(Kind kind, Result<std::vector<uint32_t>> items) {
    if (!items) return std::move(items).error();
    PickleValue* into = stack_.size() > floor() ? &pickle_.values_[stack_.back()] : nullptr;
    // An OrderedDict is a call that is filled after it was made; what it holds is not used.
    if (into != nullptr && kind == Kind::kDict && into->kind == Kind::kCall) return ok_status();
    if (into == nullptr || into->kind != kind || (kind == Kind::kDict && items->size() % 2 != 0))
      return error("items are added to what is no list or dict");
    into->items.insert(into->items.end(), items->begin(), items->end());
    return ok_status();
  }
  Status push_global(std::string_view module, std::string_view name) {
    if (!is_known(module, name))
      return error(fmt::format("it names '{}.{}', which no checkpoint of PyTorch needs",
                               quote_control(std::string(module)),
                               quote_control(std::string(name))))
          .with_note("nothing of the file was executed");
    pickle_.names_.push_back(fmt::format("{}.{}", module, name));
    return push({Kind::kGlobal, 0, pickle_.names_.back(), {}});
  }
  Status push_integer(int bytes, bool is_signed) {
    PIPER_ASSIGN(uint64_t value, number(bytes));
    if (is_signed && bytes > 0 && bytes < 8 && (value >> (8 * bytes - 1) & 1) != 0)
      value |= ~uint64_t{0} << (8 * bytes);
    return push({Kind::kInt, static_cast<int64_t>(value), {}, {}});
  }
  Status push_text(int length_bytes) {
    PIPER_ASSIGN(const uint64_t length, number(length_bytes));
    PIPER_ASSIGN(const std::string_view text, take(length));
    return push({Kind::kText, 0, text, {}});
  }
  Status memoize(uint64_t index) {
    if (stack_.size() == floor()) return error("there is no value to number");
    if (index > bytes_.size()) return error(fmt::format("{} is no number of a value", index));
    if (memo_.size() <= index) memo_.resize(index + 1, kNoValue);
    memo_[index] = stack_.back();
    return ok_status();
  }
  Status recall(uint64_t index) {
    if (index >= memo_.size() || memo_[index] == kNoValue)
      return error(fmt::format("no value has the number {}", index));
    stack_.push_back(memo_[index]);
    return ok_status();
  }
  Status call(bool is_object) {
    PIPER_ASSIGN(std::vector<uint32_t> items, pop(2));
    const Pickle& so_far = pickle_;
    if (!so_far.is(items[0], Kind::kGlobal) || !so_far.is(items[1], Kind::kTuple))
      return error("an object needs a class and a tuple of arguments, and finds others");
    if (is_object) items.pop_back();
    return push({is_object ? Kind::kObject : Kind::kCall, 0, {}, std::move(items)});
  }
  Status build() {
    PIPER_ASSIGN(const std::vector<uint32_t> state, pop(1));
    PickleValue* object = stack_.size() > floor() ? &pickle_.values_[stack_.back()] : nullptr;
    if (object == nullptr || object->kind != Kind::kObject || object->items.size() != 1)
      return error("a state needs a new object before it, and finds none");
    object->items.push_back(state[0]);
    return ok_status();
  }
  Status stack_global() {
    PIPER_ASSIGN(const std::vector<uint32_t> names, pop(2));
    if (!pickle_.is(names[0], Kind::kText) || !pickle_.is(names[1], Kind::kText))
      return error("a global is named by what is no text");
    return push_global(pickle_.at(names[0]).text, pickle_.at(names[1]).text);
  }
  Status stop() {
    PIPER_ASSIGN(const std::vector<uint32_t> last, pop(1));
    if (!stack_.empty() || !marks_.empty()) return error("values are left over");
    pickle_.root_ = last[0];
    stopped_ = true;
    return ok_status();
  }
  Status skip(Result<uint64_t> read) { return read ? ok_status() : Status(read.error()); }
  Status of_number(Result<uint64_t> read, Status (PickleReader::*what)(uint64_t)) {
    return read ? (this->*what)(*read) : Status(read.error());
  }

  Status run(uint8_t op) {
    if (stack_.size() > kMaxStack) return error("more values are open than any checkpoint has");
    switch (op) {
      case '(':
        marks_.push_back(stack_.size());
        return ok_status();
      case '.':
        return stop();
      case 'R':
        return call(false);
      case 0x81:
        return call(true);
      case 'b':
        return build();
      case 'Q':
        return push_of(Kind::kPersistent, pop(1));
      case ')':
        return push({Kind::kTuple, 0, {}, {}});
      case 't':
        return push_of(Kind::kTuple, pop_to_mark());
      case 0x85:
      case 0x86:
      case 0x87:
        return push_of(Kind::kTuple, pop(op - 0x84U));
      case ']':
        return push({Kind::kList, 0, {}, {}});
      case '}':
        return push({Kind::kDict, 0, {}, {}});
      case 'a':
        return add_to(Kind::kList, pop(1));
      case 'e':
        return add_to(Kind::kList, pop_to_mark());
      case 's':
        return add_to(Kind::kDict, pop(2));
      case 'u':
        return add_to(Kind::kDict, pop_to_mark());
      case 'h':
        return of_number(number(1), &PickleReader::recall);
      case 'j':
        return of_number(number(4), &PickleReader::recall);
      case 'q':
        return of_number(number(1), &PickleReader::memoize);
      case 'r':
        return of_number(number(4), &PickleReader::memoize);
      case 0x94:
        return memoize(memo_.size());
      default:
        return run_constant(op);
    }
  }
  Status run_constant(uint8_t op) {
    switch (op) {
      case 0x80: {
        PIPER_ASSIGN(const uint64_t version, number(1));
        if (version < 2 || version > 5)
          return error(fmt::format("protocol {} is not supported; 2 to 5 are", version));
        return ok_status();
      }
      case 0x95:
        return skip(number(8));  // how long the frame is: the bytes say where all ends
      case 'N':
        return push({});
      case 0x88:
      case 0x89:
        return push({Kind::kBool, op == 0x88, {}, {}});
      case 'J':
        return push_integer(4, true);
      case 'K':
        return push_integer(1, false);
      case 'M':
        return push_integer(2, false);
      case 0x8a: {
        PIPER_ASSIGN(const uint64_t bytes, number(1));
        if (bytes > 8) return error("an integer has more than 64 bits");
        return push_integer(static_cast<int>(bytes), true);
      }
      case 'G':
        PIPER_TRY(skip(number(8)));
        return push({Kind::kFloat, 0, {}, {}});
      case 0x8c:
        return push_text(1);
      case 'X':
        return push_text(4);
      case 0x93:
        return stack_global();
      case 'c': {
        PIPER_ASSIGN(const std::string_view module, line());
        PIPER_ASSIGN(const std::string_view name, line());
        return push_global(module, name);
      }
      default:
        return error(fmt::format("the opcode 0x{:02x} is none that a checkpoint needs", op))
            .with_note("nothing of the file was executed");
    }
  }

  static constexpr uint32_t kNoValue = ~uint32_t{0};
  static constexpr size_t kMaxStack = size_t{1} << 24;
  const std::string_view bytes_;
  const std::string& path_;
  const uint64_t at_;
  size_t next_ = 0, op_at_ = 0;
  bool stopped_ = false;
  std::vector<uint32_t> stack_, memo_;
  std::vector<size_t> marks_;
  Pickle pickle_;
};

Result<Pickle> read_pickle(std::span<const std::byte> bytes, const std::string& path, uint64_t at) {
  return PickleReader(bytes, path, at).read();
}

}  // namespace piper
