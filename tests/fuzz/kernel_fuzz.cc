// One use of an op on the CPU backend, as a hostile plan may name it: what the backend loads must
// run inside its operands, each of which is a block of its own.
//   Gather {axis=0} f32[4,3] i64[2] -> f32[2,3]      "_": an absent operand
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "piper/devices/cpu.h"
#include "piper/ir/ops.h"
#include "piper/ir/signatures.h"
#include "targets.h"

namespace piper::fuzz {
namespace {

constexpr int64_t kMostBytes = 1 << 16;  // of all operands: what runs is small
constexpr int64_t kMostDims = 20;

struct OpUse {
  std::string op;
  Attrs attrs;
  std::vector<std::optional<TensorType>> inputs, outputs;
};

std::optional<TensorType> parse_type(std::string_view word) {
  const size_t open = word.find('[');
  if (open == word.npos || word.back() != ']') return std::nullopt;
  const std::optional<DType> dtype = parse_dtype(word.substr(0, open));
  if (!dtype) return std::nullopt;
  TensorType type{*dtype, {}};
  const std::string_view inner = word.substr(open + 1, word.size() - open - 2);
  if (inner.empty()) return type;
  for (const std::string& part : split_text(inner, ',')) {
    if (part.empty() || part.size() > 20 || type.shape.size() > kMostDims) return std::nullopt;
    type.shape.push_back(std::strtoll(part.c_str(), nullptr, 10));
  }
  return type;
}

std::optional<OpUse> parse(std::string_view text) {
  OpUse use;
  const size_t space = text.find(' ');
  use.op = text.substr(0, space);
  text.remove_prefix(std::min(text.size(), use.op.size() + 1));
  if (text.starts_with('{')) {
    const size_t end = text.find('}');
    if (end == text.npos) return std::nullopt;
    Result<Attrs> attrs = parse_attrs(text.substr(0, end + 1));
    if (!attrs) return std::nullopt;
    use.attrs = *std::move(attrs);
    text.remove_prefix(end + 1);
  }
  auto* operands = &use.inputs;
  for (const std::string& word : split_text(text, ' ')) {
    if (word.empty()) continue;
    if (word == "->") {
      operands = &use.outputs;
    } else if (word == "_") {
      operands->emplace_back();
    } else {
      const std::optional<TensorType> type = parse_type(word);
      if (!type) return std::nullopt;
      operands->push_back(type);
    }
  }
  return use;
}

std::string print(const OpUse& use) {
  std::string text = use.op;
  if (const std::string attrs = print_attrs(use.attrs); !attrs.empty()) text += " " + attrs;
  const auto add = [&](const auto& operands) {
    for (const auto& type : operands) text += " " + (type ? to_string(*type) : "_");
  };
  add(use.inputs);
  text += " ->";
  add(use.outputs);
  return text;
}

// Bytes that end where a page begins that nobody may touch; another one stands before them. So
// harm is found without a sanitizer, too.
class Guarded {
 public:
  explicit Guarded(size_t size) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t inner = (size + page - 1) / page * page;
    whole_ = inner + 2 * page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, whole_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    PIPER_CHECK(base_ != MAP_FAILED);
    if (inner > 0) PIPER_CHECK(mprotect(base_ + page, inner, PROT_READ | PROT_WRITE) == 0);
    data_ = base_ + page + inner - size;
  }
  ~Guarded() {
    if (base_) munmap(base_, whole_);
  }
  Guarded(Guarded&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), data_(other.data_), whole_(other.whole_) {}
  Guarded& operator=(Guarded&&) = delete;
  std::byte* data() const { return data_; }

 private:
  std::byte* base_ = nullptr;
  std::byte* data_ = nullptr;
  size_t whole_ = 0;
};

// Operands in blocks of exactly their size: small numbers, indices in and out of range, extremes.
class Operands {
 public:
  explicit Operands(uint32_t seed) : random_(seed) {}
  bool add(const TensorType& type) {
    int64_t elements = 1;
    for (const int64_t extent : type.shape) {
      if (extent < 0 || (extent > 0 && elements > kMostBytes / extent)) return false;
      elements *= extent;
    }
    bytes_ += elements * info(type.dtype).bytes;
    if (bytes_ > kMostBytes) return false;
    const auto size = static_cast<size_t>(elements * info(type.dtype).bytes);
    blocks_.emplace_back(size);
    fill(blocks_.back().data(), type.dtype, elements);
    pointers_.push_back(blocks_.back().data());
    return true;
  }
  std::span<std::byte* const> pointers() const { return pointers_; }

 private:
  template <class T>
  void put(std::byte* to, int64_t i, double value) {
    const T element = static_cast<T>(value);
    std::memcpy(to + i * static_cast<int64_t>(sizeof(T)), &element, sizeof(T));
  }
  void fill(std::byte* to, DType dtype, int64_t elements) {
    constexpr double kEdges[] = {-1, -100, 1e9, -1e9, 4294967296.0, 9e18, -9e18};
    for (int64_t i = 0; i < elements; ++i) {
      double value = static_cast<double>(random_() % 8) - 1;
      if (random_() % 16 == 0) value = kEdges[random_() % std::size(kEdges)];
      if (dtype == DType::kF32) put<float>(to, i, value / 3);
      if (dtype == DType::kF64) put<double>(to, i, value / 3);
      if (dtype == DType::kI64) put<int64_t>(to, i, value);
      if (dtype == DType::kI32) put<int32_t>(to, i, std::clamp(value, -2e9, 2e9));
      if (dtype == DType::kBool) to[i] = static_cast<std::byte>(random_());
      if (dtype == DType::kBF16 || dtype == DType::kF16)
        put<uint16_t>(to, i, static_cast<double>(random_() % 65536));
    }
  }

  std::mt19937 random_;
  int64_t bytes_ = 0;
  std::vector<Guarded> blocks_;
  std::vector<std::byte*> pointers_;
};

// Whether a plan that has it would be read.
bool is_allowed(const OpUse& use) {
  for (const auto* types : {&use.inputs, &use.outputs})
    for (const std::optional<TensorType>& type : *types)
      if (type && std::any_of(type->shape.begin(), type->shape.end(),
                              [](int64_t extent) { return extent < 0; }))
        return false;  // refused before any op is looked at
  OpTypes types;
  for (const std::optional<TensorType>& input : use.inputs) {
    types.inputs.push_back(input.value_or(TensorType{}));
    types.present.push_back(input.has_value());
  }
  for (const std::optional<TensorType>& output : use.outputs) {
    if (!output) return false;
    types.outputs.push_back(*output);
  }
  types.attrs = use.attrs;
  const Status checked = check_use(use.op, types);
  PIPER_CHECK(checked || !checked.error().message.empty());
  return checked.ok();
}

}  // namespace

void run_kernel(std::string_view text) {
  const std::optional<OpUse> use = parse(text);
  if (!use || !is_allowed(*use)) return;
  Operands operands(static_cast<uint32_t>(text.size()));
  Program program;
  program.label = "use";
  program.ops.push_back({use->op, use->attrs, {}, {}});
  const auto add = [&](const auto& types, std::vector<int32_t>& ids) {
    for (const std::optional<TensorType>& type : types) {
      ids.push_back(type ? program.num_args : -1);
      if (!type) continue;
      if (!operands.add(*type)) return false;
      program.values.push_back(*type);
      ++program.num_args;
    }
    return true;
  };
  if (!add(use->inputs, program.ops[0].inputs) || !add(use->outputs, program.ops[0].outputs))
    return;
  program.arg_read.assign(operands.pointers().size(), true);
  program.arg_written.assign(operands.pointers().size(), false);
  for (const int32_t output : program.ops[0].outputs)
    program.arg_written[static_cast<size_t>(output)] = true;
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  const Result<int32_t> loaded = backend->load(program);
  if (!loaded) {
    PIPER_CHECK(!loaded.error().message.empty());
    return;
  }
  const int64_t bytes = backend->workspace_bytes(*loaded);
  std::byte* const workspace = bytes > kMostBytes ? nullptr : *backend->allocate(bytes);
  const Result<int32_t> bound = backend->bind(*loaded, operands.pointers(), workspace);
  if (bound) backend->launch(*bound);
}

// Numbers, element types, operands and attributes of a use exchanged.
std::string change_kernel(std::string_view text, std::mt19937& random) {
  std::optional<OpUse> use = parse(text);
  if (!use || random() % 8 == 0) return change_bytes(text, random);
  const auto number = [&](int64_t old) -> int64_t {
    constexpr int64_t kEdges[] = {0, 1, -1, 2, 3, 7, 64, 1 << 20, INT32_MAX, INT64_MAX, INT64_MIN};
    return random() % 3 == 0 ? kEdges[random() % std::size(kEdges)]
                             : static_cast<int64_t>(static_cast<uint64_t>(old) + random() % 3 - 1);
  };
  auto& operands = random() % 2 == 0 || use->outputs.empty() ? use->inputs : use->outputs;
  const size_t at = operands.empty() ? 0 : random() % operands.size();
  switch (random() % 6) {
    case 0:
      if (!operands.empty() && operands[at] && !operands[at]->shape.empty()) {
        int64_t& extent = operands[at]->shape[random() % operands[at]->shape.size()];
        extent = number(extent);
      }
      break;
    case 1:  // one extent wherever it stands
      if (!operands.empty() && operands[at] && !operands[at]->shape.empty()) {
        const int64_t old = operands[at]->shape[random() % operands[at]->shape.size()];
        const auto fresh = static_cast<int64_t>(random() % 9);
        for (auto* list : {&use->inputs, &use->outputs})
          for (auto& type : *list)
            if (type) std::replace(type->shape.begin(), type->shape.end(), old, fresh);
      }
      break;
    case 2:
      if (!operands.empty() && operands[at])
        operands[at]->dtype = static_cast<DType>(random() % kNumDTypes);
      break;
    case 3:
      if (operands.empty()) break;
      if (random() % 3 == 0)
        operands.erase(operands.begin() + static_cast<int64_t>(at));
      else if (random() % 2 == 0)
        operands[at].reset();
      else
        operands.push_back(operands[at]);
      break;
    case 4:
      if (!operands.empty() && operands[at]) {
        Shape& shape = operands[at]->shape;
        if (random() % 2 == 0 || shape.empty())
          shape.push_back(random() % 3);
        else
          shape.pop_back();
      }
      break;
    case 5:
      if (use->attrs.items().empty()) break;
      auto [name, value] = use->attrs.items()[random() % use->attrs.items().size()];
      if (auto* one = std::get_if<int64_t>(&value)) *one = number(*one);
      if (auto* real = std::get_if<double>(&value)) *real = *real * 2 - 1;
      if (auto* list = std::get_if<std::vector<int64_t>>(&value)) {
        if (list->empty() || random() % 4 == 0)
          list->push_back(number(0));
        else
          (*list)[random() % list->size()] = number(0);
      }
      use->attrs.set(name, value);
      break;
  }
  return print(*use);
}

// The samples of the op table, in double and in single precision.
std::vector<std::string> kernel_seeds() {
  std::vector<std::string> seeds;
  for (const OpDef* def : all_ops())
    for (const OpSample& sample : def->samples)
      for (const bool narrow : {false, true}) {
        OpTypes types;
        types.inputs = sample.inputs;
        types.present.assign(sample.inputs.size(), true);
        types.attrs = sample.attrs;
        for (const int i : sample.absent) types.present[static_cast<size_t>(i)] = false;
        for (TensorType& type : types.inputs)
          if (narrow && type.dtype == DType::kF64) type.dtype = DType::kF32;
        const auto outputs = def->types(types);
        if (!outputs) continue;
        OpUse use{std::string(def->name), sample.attrs, {}, {}};
        for (size_t i = 0; i < types.inputs.size(); ++i)
          use.inputs.push_back(types.present[i] ? std::optional(types.inputs[i]) : std::nullopt);
        for (const TensorType& type : *outputs) use.outputs.emplace_back(type);
        seeds.push_back(print(use));
      }
  seeds.push_back("MatMul {accumulate=1} f32[4,6] f32[6,3] f32[4,3] -> f32[4,3]");
  return seeds;
}

}  // namespace piper::fuzz
