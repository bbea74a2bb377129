// The vocabulary that every room shares: results and located errors, ids, element types, shapes,
// attributes, text and file helpers. Uses no other room.
#pragma once

#include <fmt/core.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace piper {

// ---- Errors -------------------------------------------------------------------------------------

// Programs end with one of these codes.
// tools/README.md explains them to users.
enum class ExitCode {
  kOk = 0,
  kInput = 1,     // model, strategy, data or flags are wrong, or ask for what is not supported
  kUsage = 2,     // the command line itself is wrong
  kRefused = 3,   // inputs were read, but the plan was refused: it is not proved
  kPlan = 4,      // plan files are corrupt, truncated, of another version or another compilation
  kPeer = 10,     // a peer failed or did not answer in time; restarting is sensible
  kNumeric = 11,  // the loss is not finite, or a comparison failed; do not restart
  kStorage = 12,  // the disk or the operating system refused
};

// Names a place in a file of the user. Line and column count from 1; line 0 is the whole file.
struct SourceSpan {
  std::string file;
  int line = 0;
  int column = 0;
  int length = 1;  // characters to underline, on one line
};

// Holds one located sentence for the user, and further lines that help; print_error prints it.
struct Error {
  ExitCode code = ExitCode::kInput;
  SourceSpan at;
  std::string message;
  // Printed as "  = note: …"; start with "help: " to print "  = help: …".
  std::vector<std::string> notes;

  Error&& with_note(std::string note) &&;
  Error&& with_code(ExitCode c) &&;
};

template <class... Args>
Error fail(SourceSpan at, fmt::format_string<Args...> text, Args&&... args) {
  return Error{ExitCode::kInput, std::move(at), fmt::format(text, std::forward<Args>(args)...), {}};
}
template <class... Args>
Error fail(fmt::format_string<Args...> text, Args&&... args) {
  return Error{ExitCode::kInput, {}, fmt::format(text, std::forward<Args>(args)...), {}};
}

// "file:line:column: error: message", the source line with a caret if it can be read, the notes.
std::string print_error(const Error& error);

// Holds a value or an Error, exactly one of them; reading the other one is our bug and aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT: implicit
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit
  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  Error& error() & { return std::get<1>(state_); }
  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

struct Unit {};
using Status = Result<Unit>;
inline Status ok_status() { return Unit{}; }

// Reports our own mistakes, which no input reaches: prints where and what, then aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& text);
#define PIPER_CHECK(condition, ...)                                                            \
  do {                                                                                         \
    if (!(condition))                                                                          \
      ::piper::check_failed(__FILE__, __LINE__, #condition, ::piper::check_text(__VA_ARGS__)); \
  } while (false)
inline std::string check_text() { return {}; }
template <class... Args>
std::string check_text(fmt::format_string<Args...> text, Args&&... args) {
  return fmt::format(text, std::forward<Args>(args)...);
}

#define PIPER_CONCAT_INNER(a, b) a##b
#define PIPER_CONCAT(a, b) PIPER_CONCAT_INNER(a, b)
// Returns the error of `expr` (a Result or Status) from the enclosing function, if it is one.
#define PIPER_TRY(expr)                                                                    \
  do {                                                                                     \
    if (auto piper_result = (expr); !piper_result) return std::move(piper_result).error(); \
  } while (false)
// Declares or assigns `target` from the value of `expr`, or returns its error.
#define PIPER_ASSIGN(target, expr) \
  PIPER_ASSIGN_INNER(PIPER_CONCAT(piper_result_, __LINE__), target, expr)
#define PIPER_ASSIGN_INNER(result, target, expr) \
  auto result = (expr);                          \
  if (!result) return std::move(result).error(); \
  target = *std::move(result)

// ---- Ids, element types and shapes --------------------------------------------------------------

// A typed index into one vector of one structure; never a pointer. Default is "none".
template <class Tag>
struct Id {
  int32_t value = -1;
  constexpr Id() = default;
  constexpr explicit Id(size_t v) : value(static_cast<int32_t>(v)) {}
  constexpr bool valid() const { return value >= 0; }
  constexpr size_t index() const { return static_cast<size_t>(value); }
  constexpr auto operator<=>(const Id&) const = default;
};

enum class DType : uint8_t { kF32, kF64, kBF16, kF16, kI64, kI32, kBool };
inline constexpr int kNumDTypes = 7, kMaxRank = 16;  // kMaxRank: dims of a tensor, at most

struct DTypeInfo {
  DType dtype;
  const char* name;         // as in text forms and strategies: "f32"
  const char* safetensors;  // "F32"
  int bytes;
  bool is_float;
};
const DTypeInfo& info(DType dtype);
std::optional<DType> parse_dtype(std::string_view name);  // by DTypeInfo::name

using Shape = std::vector<int64_t>;  // {} is a scalar
int64_t num_elements(const Shape& shape);
std::string to_string(const Shape& shape);  // "[8,128]"

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  int64_t bytes() const;
  bool operator==(const TensorType&) const = default;
};
std::string to_string(const TensorType& type);  // "f32[8,128]"

// ---- Attributes of an op ------------------------------------------------------------------------

using AttrValue = std::variant<int64_t, double, std::string, std::vector<int64_t>>;

// Holds a few named values, sorted by name so that equal attributes print and hash the same.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<std::string, AttrValue>> items);
  void set(std::string name, AttrValue value);
  const AttrValue* find(std::string_view name) const;
  // Returns the value, or `otherwise` when the attribute is absent. A wrong type is our bug.
  int64_t integer(std::string_view name, int64_t otherwise = 0) const;
  double real(std::string_view name, double otherwise = 0) const;
  std::string text(std::string_view name, std::string otherwise = {}) const;
  std::vector<int64_t> integers(std::string_view name) const;
  const std::vector<std::pair<std::string, AttrValue>>& items() const { return items_; }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<std::pair<std::string, AttrValue>> items_;
};
// "{axis=1, epsilon=1e-05, perm=[0,2,1]}", "" for none; parse_attrs reads it back exactly.
std::string print_attrs(const Attrs& attrs);
Result<Attrs> parse_attrs(std::string_view text);

// ---- Bytes and files ----------------------------------------------------------------------------

// Reads bytes and keeps their owner alive: a private copy, a window of a mapped file, or what makes
// them when they are first read.
struct Bytes {
  std::shared_ptr<const void> owner;
  const std::byte* data = nullptr;
  size_t size = 0;
  std::span<const std::byte> span() const { return {data, size}; }
  static Bytes copy_of(const void* data, size_t size);
  static Bytes zeros(size_t size);
  Bytes window(size_t offset, size_t count) const;  // must lie inside
  // Serves what is too large to be held for long: `make` makes it for each call of made().
  static Bytes deferred(size_t size, std::function<Bytes()> make);
  Bytes made() const;  // these bytes themselves, unless they are deferred
};

Result<std::string> read_text_file(const std::string& path, int64_t limit_bytes);
Result<Bytes> map_file(const std::string& path);  // read-only mapping of a regular file
// Writes a file beside the target, then renames it: readers see the old file or the new. Links and
// devices stay. What a killed writer of the same path left beside it goes.
Status write_file(const std::string& path, std::string_view bytes);
// Returns what an errno of opening, reading or mapping means: kInput where another name would help,
// kStorage where the system refused.
ExitCode code_of_system(int problem);

// Returns XXH3 of 128 bits as 32 hexadecimal digits. It finds accidents, not attackers.
std::string digest(std::string_view bytes);
inline std::string_view as_text(std::span<const std::byte> b) {
  return {reinterpret_cast<const char*>(b.data()), b.size()};
}

// ---- Text ---------------------------------------------------------------------------------------

// Returns the candidate closest to `name` by edit distance, if it is close enough to be a slip.
std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates);
// " (did you mean 'x'?)" or "" — for the end of an error message.
std::string did_you_mean(std::string_view name, std::span<const std::string> candidates);
std::string join(std::span<const std::string> parts, std::string_view separator);
std::string list_with_and(std::span<const std::string> parts);  // "a, b and c"
std::vector<std::string> split_text(std::string_view text, char separator);
std::string human_bytes(int64_t bytes);  // "1.5 MiB"
// Returns the text with control characters as \xNN, for printing foreign names.
std::string quote_control(std::string_view text);

// Matches globs over '/'-separated paths: '*' in a segment, '**' any segments, '?' a character,
// '{name}' an integer to capture, '{2..6}' and '{a,b}' one of these; in lists 'a, b, !c' those with
// '!' take out of the others, or of everything. Takes time linear in pattern × text.
struct GlobMatch {
  std::vector<std::pair<std::string, int64_t>> captures;  // in order of the pattern
};
class Glob {
 public:
  static Result<Glob> parse(std::string_view pattern, SourceSpan at);
  std::optional<GlobMatch> match(std::string_view path) const;
  const std::string& pattern() const { return pattern_; }
  std::vector<std::string> capture_names() const;
  Glob() = default;

 private:
  std::string pattern_;
};

}  // namespace piper
