// A token file of n tokens is cut into (n − 1) / T windows of T + 1 tokens, at stride T: ids are
// its first T tokens, labels its last T.
#include <cstring>

#include "feed.h"

namespace piper {
namespace {

int64_t token_bytes(TokenType type) {
  return type == TokenType::kU8 ? 1 : type == TokenType::kU16 ? 2 : 4;
}

uint64_t mix(uint64_t x) {  // splitmix64's finaliser
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

class TokenFeed final : public Feed {
 public:
  TokenFeed(Bytes data, TokenFile file, InputNeed need, int64_t shift, RowOrder order)
      : data_(std::move(data)),
        file_(std::move(file)),
        need_(std::move(need)),
        shift_(shift),
        order_(order) {}

  const std::string& path() const override { return file_.path; }
  std::optional<Extent> extent() const override { return order_.extent(); }

  Status read(const SampleCut& range, std::byte* to) const override {
    const int64_t length = need_.type.shape[1];
    for (int64_t i = 0; i < range.count; ++i) {
      const int64_t start = order_.row(range.sample + i) * length + shift_;
      for (int64_t t = 0; t < length; ++t) {
        const int64_t token = load(start + t);
        if (need_.low <= need_.high && (token < need_.low || token > need_.high))
          return outside(token, start + t, range.step, range.first + i);
        store(to, i * length + t, token);
      }
    }
    return ok_status();
  }

 private:
  Error outside(int64_t token, int64_t position, int64_t step, int64_t sample) const {
    Error error =
        fail(SourceSpan{file_.path},
             "token {} at position {} of the file (input '{}', step {}, sample {}) is outside {}",
             token, position, need_.name, step + 1, sample, print_range(need_));
    if (file_.type == TokenType::kU8) return error;
    return std::move(error).with_note(
        fmt::format("help: {} bytes are read as a token; {}:u8 reads each byte",
                    token_bytes(file_.type), file_.path));
  }
  int64_t load(int64_t index) const {
    const std::byte* at = data_.data + index * token_bytes(file_.type);
    if (file_.type == TokenType::kU8) return static_cast<uint8_t>(*at);
    uint16_t u16 = 0;
    uint32_t u32 = 0;
    if (file_.type == TokenType::kU16) return std::memcpy(&u16, at, 2), u16;
    return std::memcpy(&u32, at, 4), u32;
  }
  void store(std::byte* to, int64_t index, int64_t token) const {
    const auto narrow = static_cast<int32_t>(token);
    if (need_.type.dtype == DType::kI64)
      std::memcpy(to + index * 8, &token, 8);
    else
      std::memcpy(to + index * 4, &narrow, 4);
  }

  Bytes data_;
  TokenFile file_;
  InputNeed need_;
  int64_t shift_;
  RowOrder order_;
};

bool takes_next(const InputNeed& need) {
  return need.name.find("label") != std::string::npos ||
         need.name.find("target") != std::string::npos;
}

// Returns which input takes the tokens one further: -1 for none, else its position in `inputs`.
Result<int> find_labels(const SourceSpan& at, std::span<const InputNeed> needs,
                        const std::vector<int>& inputs) {
  if (inputs.size() == 1) return -1;
  std::vector<std::string> names;
  for (int input : inputs) names.push_back(fmt::format("'{}'", needs[input].name));
  if (inputs.size() != 2)
    return fail(at, "a token file feeds one or two integer inputs [batch, length]; here are {}{}{}",
                inputs.size(), inputs.empty() ? "" : ": ", join(names, ", "));
  const bool first = takes_next(needs[inputs[0]]), second = takes_next(needs[inputs[1]]);
  if (first == second)
    return fail(
        at,
        "which of {} takes the next tokens? Exactly one name must contain \"label\" or \"target\"",
        join(names, " and "));
  return first ? 0 : 1;
}

}  // namespace

int64_t permuted(uint64_t seed, int64_t epoch, int64_t index, int64_t n) {
  int half = 1;
  while (uint64_t{1} << (2 * half) < static_cast<uint64_t>(n)) ++half;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const uint64_t key = mix(mix(seed) ^ static_cast<uint64_t>(epoch));
  uint64_t x = static_cast<uint64_t>(index);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (mix(key + round * 0x2545f4914f6cdd1du + right) & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

Result<std::vector<std::unique_ptr<Feed>>> open_tokens(const TokenFile& file,
                                                       std::span<const InputNeed> needs,
                                                       const std::vector<int>& inputs,
                                                       int64_t batch, const DataOptions& options) {
  const SourceSpan at{file.path};
  PIPER_ASSIGN(const int labels, find_labels(at, needs, inputs));
  const int64_t length = needs[inputs[0]].type.shape[1];
  for (int input : inputs)
    if (needs[input].type.shape[1] != length)
      return fail(
          at, "inputs '{}' and '{}' have the lengths {} and {}; one token file cannot feed both",
          needs[inputs[0]].name, needs[input].name, length, needs[input].type.shape[1]);
  PIPER_ASSIGN(const Bytes data, map_file(file.path));
  const int64_t width = token_bytes(file.type);
  if (data.size % static_cast<size_t>(width) != 0)
    return fail(at, "{} bytes are no whole number of {}-byte tokens", data.size, width);
  const int64_t tokens = static_cast<int64_t>(data.size) / width;
  const int64_t windows = tokens == 0 || length == 0 ? 0 : (tokens - 1) / length;
  if (windows < batch)
    return fail(at, "{} tokens make {} windows of {} + 1; a batch needs {}", tokens, windows,
                length, batch);
  const RowOrder order(windows, options.shuffle, options.seed);
  std::vector<std::unique_ptr<Feed>> feeds;
  for (size_t i = 0; i < inputs.size(); ++i)
    feeds.push_back(std::make_unique<TokenFeed>(data, file, needs[inputs[i]],
                                                labels == static_cast<int>(i) ? 1 : 0, order));
  return feeds;
}

}  // namespace piper
