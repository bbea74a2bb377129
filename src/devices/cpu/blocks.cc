// Loops of pointwise ops over one block of elements, by op and element type.
#include "blocks.h"

#include <algorithm>
#include <array>

#include "dtypes.h"

// An operand may be the output, element for element: no loop carries anything from one to the next.
// clang checks at run time.
#if defined(__clang__)
#define PIPER_INDEPENDENT
#else
#define PIPER_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace piper::cpu {
namespace {

template <class A, class B, class R, class F>
void loop2(const std::byte* const* in, const bool* step, std::byte* out, int64_t n, F f) {
  const A* a = reinterpret_cast<const A*>(in[0]);
  const B* b = reinterpret_cast<const B*>(in[1]);
  R* r = reinterpret_cast<R*>(out);
  if (step[0] && step[1]) {
    PIPER_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) r[i] = f(a[i], b[i]);
  } else if (step[0]) {
    const B b0 = *b;
    PIPER_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) r[i] = f(a[i], b0);
  } else if (step[1]) {
    const A a0 = *a;
    PIPER_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) r[i] = f(a0, b[i]);
  } else {
    std::fill_n(r, n, f(*a, *b));
  }
}

template <class A, class R, class F>
void loop1(const std::byte* const* in, const bool* step, std::byte* out, int64_t n, F f) {
  const A* a = reinterpret_cast<const A*>(in[0]);
  R* r = reinterpret_cast<R*>(out);
  if (!step[0]) {
    std::fill_n(r, n, f(*a));
    return;
  }
  PIPER_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) r[i] = f(a[i]);
}

// Integers wrap around; dividing by zero gives 0, and dividing the smallest by -1 gives itself.
template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
T wrap(Unsigned<T> x) {
  return static_cast<T>(x);
}
template <class T>
T safe_div(T a, T b) {
  if (b == 0) return 0;
  if (b == -1) return wrap<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
  return a / b;
}
template <class T>
T safe_rem(T a, T b) {
  return b == 0 || b == -1 ? 0 : a % b;
}

struct Add {
  template <class T>
  static T of(T a, T b) {
    return wrap<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
  }
};
struct Sub {
  template <class T>
  static T of(T a, T b) {
    return wrap<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
  }
};
struct Mul {
  template <class T>
  static T of(T a, T b) {
    return wrap<T>(static_cast<Unsigned<T>>(a) * static_cast<Unsigned<T>>(b));
  }
};
struct Div {
  template <class T>
  static T of(T a, T b) {
    return safe_div(a, b);
  }
};
struct Pow {
  template <class T>
  static T of(T a, T b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 == 0 ? 1 : -1) : 0;
    Unsigned<T> result = 1, base = static_cast<Unsigned<T>>(a);
    for (; b > 0; b >>= 1, base *= base) {
      if (b & 1) result *= base;
    }
    return wrap<T>(result);
  }
};
struct Max {
  template <class T>
  static T of(T a, T b) {
    return a > b ? a : b;
  }
};
struct Min {
  template <class T>
  static T of(T a, T b) {
    return a < b ? a : b;
  }
};
struct Mod {  // takes the sign of the divisor
  template <class T>
  static T of(T a, T b) {
    const T r = safe_rem(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }
};
struct Fmod {  // takes the sign of the dividend
  template <class T>
  static T of(T a, T b) {
    return safe_rem(a, b);
  }
};

struct BitwiseAnd {
  template <class T>
  static T of(T a, T b) {
    return a & b;
  }
};
struct BitwiseOr {
  template <class T>
  static T of(T a, T b) {
    return a | b;
  }
};
struct BitwiseXor {
  template <class T>
  static T of(T a, T b) {
    return a ^ b;
  }
};

struct Equal {
  template <class T>
  static bool of(T a, T b) {
    return a == b;
  }
};
struct Less {
  template <class T>
  static bool of(T a, T b) {
    return a < b;
  }
};
struct LessOrEqual {
  template <class T>
  static bool of(T a, T b) {
    return a <= b;
  }
};
struct Greater {
  template <class T>
  static bool of(T a, T b) {
    return a > b;
  }
};
struct GreaterOrEqual {
  template <class T>
  static bool of(T a, T b) {
    return a >= b;
  }
};
struct And {
  static bool of(bool a, bool b) { return a & b; }
};
struct Or {
  static bool of(bool a, bool b) { return a | b; }
};
struct Xor {
  static bool of(bool a, bool b) { return a != b; }
};

template <class Op, class T>
void integer_binary(const std::byte* const* in, const bool* step, std::byte* out, int64_t n) {
  loop2<T, T, T>(in, step, out, n, [](T a, T b) { return Op::of(a, b); });
}
template <class Op>
BlockFn integer_binary_of(DType type) {
  if (type == DType::kI64) return integer_binary<Op, int64_t>;
  return type == DType::kI32 ? integer_binary<Op, int32_t> : nullptr;
}

// Returns what two elements are compared as.
template <class T>
auto comparable(T x) {
  if constexpr (std::is_same_v<T, Bool>) {
    return static_cast<uint8_t>(x.byte != 0);
  } else if constexpr (std::is_same_v<T, Bf16> || std::is_same_v<T, F16>) {
    return to_float(x);
  } else {
    return x;
  }
}
template <class Op, class T>
void compare(const std::byte* const* in, const bool* step, std::byte* out, int64_t n) {
  loop2<T, T, uint8_t>(in, step, out, n, [](T a, T b) {
    return static_cast<uint8_t>(Op::of(comparable(a), comparable(b)));
  });
}
template <class Op>
BlockFn compare_of(DType type) {
  return for_dtype(type, [](auto zero) -> BlockFn { return compare<Op, decltype(zero)>; });
}

template <class Op>
void logic(const std::byte* const* in, const bool* step, std::byte* out, int64_t n) {
  loop2<uint8_t, uint8_t, uint8_t>(in, step, out, n, [](uint8_t a, uint8_t b) {
    return static_cast<uint8_t>(Op::of(a != 0, b != 0));
  });
}
template <class Op>
BlockFn logic_of(DType type) {
  return type == DType::kBool ? logic<Op> : nullptr;
}

void logic_not(const std::byte* const* in, const bool* step, std::byte* out, int64_t n) {
  loop1<uint8_t, uint8_t>(in, step, out, n, [](uint8_t a) { return uint8_t(a == 0); });
}
template <class T>
void is_nan(const std::byte* const* in, const bool* step, std::byte* out, int64_t n) {
  loop1<T, uint8_t>(in, step, out, n, [](T a) { return uint8_t(comparable(a) != comparable(a)); });
}

struct Neg {
  template <class T>
  static T of(T a) {
    return wrap<T>(Unsigned<T>{0} - static_cast<Unsigned<T>>(a));
  }
};
struct Abs {
  template <class T>
  static T of(T a) {
    return a < 0 ? Neg::of(a) : a;
  }
};
struct Sign {
  template <class T>
  static T of(T a) {
    return (a > 0) - (a < 0);
  }
};
struct Relu {
  template <class T>
  static T of(T a) {
    return a < 0 ? 0 : a;
  }
};
template <class Op, class T>
void integer_unary(const std::byte* const* in, const bool* step, std::byte* out, int64_t n) {
  loop1<T, T>(in, step, out, n, [](T a) { return Op::of(a); });
}
template <class Op>
BlockFn integer_unary_of(DType type) {
  if (type == DType::kI64) return integer_unary<Op, int64_t>;
  return type == DType::kI32 ? integer_unary<Op, int32_t> : nullptr;
}

template <class From, class To>
void cast(const std::byte* const* in, const bool* step, std::byte* out, int64_t n) {
  loop1<From, To>(in, step, out, n, [](From a) { return convert<To>(a); });
}

// Chooses elements of one or two bytes; wider ones are vectorised.
template <class T>
void where(const std::byte* const* in, const bool* step, std::byte* out, int64_t n) {
  const auto* c = reinterpret_cast<const uint8_t*>(in[0]);
  const T* a = reinterpret_cast<const T*>(in[1]);
  const T* b = reinterpret_cast<const T*>(in[2]);
  T* r = reinterpret_cast<T*>(out);
  const int64_t by_c = step[0] ? 1 : 0, by_a = step[1] ? 1 : 0, by_b = step[2] ? 1 : 0;
  const T a0 = *a, b0 = *b;
  for (int64_t i = 0; i < n; ++i) {
    r[i] = c[i * by_c] ? (by_a ? a[i] : a0) : (by_b ? b[i] : b0);
  }
}
// Returns the vectorised one; null when there is none.
BlockFn find_simd_block(std::string_view op, std::string_view option, DType type) {
  if (type != DType::kF32 && type != DType::kF64) return nullptr;
  for (const SimdBlock& block : simd_blocks())
    if (block.op == op && block.option == option)
      return type == DType::kF64 ? block.f64 : block.f32;
  return nullptr;
}
BlockFn where_of(DType type) {
  switch (info(type).bytes) {
    case 1:
      return where<uint8_t>;
    case 2:
      return where<uint16_t>;
    case 4:
      return find_simd_block("Where", "", DType::kF32);
    default:
      return find_simd_block("Where", "", DType::kF64);
  }
}

BlockFn cast_of(DType from, DType to) {
  if (const BlockFn vectorised = find_simd_cast(from, to)) return vectorised;
  return for_dtype(from, [&](auto a) {
    return for_dtype(to, [&](auto b) -> BlockFn { return cast<decltype(a), decltype(b)>; });
  });
}

BlockFn not_of(DType type) { return type == DType::kBool ? logic_not : nullptr; }
BlockFn is_nan_of(DType type) {
  if (!info(type).is_float) return nullptr;
  return for_dtype(type, [](auto zero) -> BlockFn { return is_nan<decltype(zero)>; });
}

enum class Kind { kArithmetic, kToBool };
struct Row {
  std::string_view op;
  size_t operands;
  Kind kind;
  BlockFn (*plain)(DType);  // for what simd_blocks() do not have
};
constexpr std::array kRows = std::to_array<Row>({
    {"Abs", 1, Kind::kArithmetic, integer_unary_of<Abs>},
    {"Add", 2, Kind::kArithmetic, integer_binary_of<Add>},
    {"And", 2, Kind::kToBool, logic_of<And>},
    {"BitwiseAnd", 2, Kind::kArithmetic, integer_binary_of<BitwiseAnd>},
    {"BitwiseOr", 2, Kind::kArithmetic, integer_binary_of<BitwiseOr>},
    {"BitwiseXor", 2, Kind::kArithmetic, integer_binary_of<BitwiseXor>},
    {"Div", 2, Kind::kArithmetic, integer_binary_of<Div>},
    {"Equal", 2, Kind::kToBool, compare_of<Equal>},
    {"Greater", 2, Kind::kToBool, compare_of<Greater>},
    {"GreaterOrEqual", 2, Kind::kToBool, compare_of<GreaterOrEqual>},
    {"IsNaN", 1, Kind::kToBool, is_nan_of},
    {"Less", 2, Kind::kToBool, compare_of<Less>},
    {"LessOrEqual", 2, Kind::kToBool, compare_of<LessOrEqual>},
    {"Max", 2, Kind::kArithmetic, integer_binary_of<Max>},
    {"Min", 2, Kind::kArithmetic, integer_binary_of<Min>},
    {"Mod", 2, Kind::kArithmetic, integer_binary_of<Mod>},
    {"Mul", 2, Kind::kArithmetic, integer_binary_of<Mul>},
    {"Neg", 1, Kind::kArithmetic, integer_unary_of<Neg>},
    {"Not", 1, Kind::kToBool, not_of},
    {"Or", 2, Kind::kToBool, logic_of<Or>},
    {"Pow", 2, Kind::kArithmetic, integer_binary_of<Pow>},
    {"Relu", 1, Kind::kArithmetic, integer_unary_of<Relu>},
    {"Sign", 1, Kind::kArithmetic, integer_unary_of<Sign>},
    {"Sub", 2, Kind::kArithmetic, integer_binary_of<Sub>},
    {"Xor", 2, Kind::kToBool, logic_of<Xor>},
});

const Row* find_row(std::string_view op) {
  const auto* row = std::find_if(kRows.begin(), kRows.end(),
                                 [&](const Row& candidate) { return candidate.op == op; });
  return row == kRows.end() ? nullptr : row;
}

}  // namespace

size_t block_operands(std::string_view op) {
  if (op == "Where") return 3;
  if (op == "Cast") return 1;
  if (const Row* row = find_row(op)) return row->operands;
  const auto known = std::ranges::find(simd_blocks(), op, &SimdBlock::op);
  return known == simd_blocks().end() ? 0 : known->operands;
}

std::vector<std::string_view> block_ops() {
  std::vector<std::string_view> ops = {"Cast", "Where"};
  for (const Row& row : kRows) ops.push_back(row.op);
  for (const SimdBlock& block : simd_blocks())
    if (std::ranges::find(ops, block.op) == ops.end()) ops.push_back(block.op);
  return ops;
}

Result<Block> find_block(std::string_view op, std::string_view option,
                         std::span<const DType> operands) {
  if (operands.size() != block_operands(op)) {
    return fail("takes {} operands, not {}", block_operands(op), operands.size());
  }
  if (op == "Cast") {
    const std::optional<DType> to = parse_dtype(option);
    if (!to) return fail("casts to '{}', which is no element type", option);
    return Block{cast_of(operands[0], *to), *to};
  }
  const DType type = operands.back();
  for (size_t i = op == "Where" ? 1 : 0; i < operands.size(); ++i) {
    if (operands[i] != type) {
      return fail("operands of types {} and {}", info(operands[i]).name, info(type).name);
    }
  }
  if (op == "Where") {
    if (operands[0] != DType::kBool) return fail("a condition of {}", info(operands[0]).name);
    return Block{where_of(type), type};
  }
  const Row* row = find_row(op);
  BlockFn run = find_simd_block(op, option, type);
  if (!run && op == "Mod" && option == "fmod") run = integer_binary_of<Fmod>(type);
  if (!run && row) run = row->plain(type);
  if (!run) return fail("not supported on {}", info(type).name);
  return Block{run, row && row->kind == Kind::kToBool ? DType::kBool : type};
}

}  // namespace piper::cpu
