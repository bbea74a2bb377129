// The table of algorithms: products_cuda.txt, whose head says its form.
#include <algorithm>
#include <array>
#include <charconv>

#include "piper/devices/cuda.h"
#include "product.h"

namespace piper::cuda {

extern const char kProductsText[];

namespace {

constexpr auto kNames =
    std::to_array<std::pair<std::string_view, int>>({{"id", kLtAlgorithmId},
                                                     {"tile", kLtTile},
                                                     {"split", kLtSplit},
                                                     {"reduction", kLtReduction},
                                                     {"swizzle", kLtSwizzle},
                                                     {"custom", kLtCustom},
                                                     {"stages", kLtStages},
                                                     {"inner", kLtInner},
                                                     {"cluster", kLtCluster}});

constexpr std::string_view kHead = "products-cuda 1";

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(' ') - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    if (const std::string_view part = trimmed(text.substr(begin, end - begin)); !part.empty())
      parts.push_back(part);
    begin = end + 1;
  }
  return parts;
}

Result<std::pair<int, int64_t>> read_number(std::string_view word) {
  const size_t equal = word.find('=');
  const auto* name = std::find_if(kNames.begin(), kNames.end(), [&](const auto& each) {
    return each.first == word.substr(0, equal);
  });
  int64_t number = -1;
  if (name != kNames.end() && equal != std::string_view::npos) {
    const std::string_view digits = word.substr(equal + 1);
    const auto [end, problem] =
        std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (problem != std::errc() || end != digits.data() + digits.size()) number = -1;
  }
  if (number < 0 || number > UINT16_MAX) return fail("'{}' is no NAME=NUMBER", word);
  return std::pair(name->second, number);
}

Status read_line(std::string_view line, AlgorithmTable& table) {
  const std::vector<std::string_view> parts = split(line, '|');
  if (parts.size() != 4) return fail("it is not DEVICE | VERSION | PRODUCT | NAME=NUMBER…");
  AlgorithmNumbers numbers;
  for (const std::string_view word : split(parts[3], ' ')) {
    PIPER_ASSIGN(numbers.emplace_back(), read_number(word));
  }
  if (numbers.empty() || numbers[0].first != kLtAlgorithmId) return fail("id=NUMBER comes first");
  PIPER_TRY(check_reduction(numbers));
  const std::string key = fmt::format("{} | {} | {}", parts[0], parts[1], parts[2]);
  if (!table.entries.try_emplace(key, std::move(numbers)).second)
    return fail("a line before it is for the same product");
  return ok_status();
}

}  // namespace

Result<AlgorithmTable> read_algorithms(std::string_view text) {
  AlgorithmTable table;
  std::string meant;
  int number = 0;
  bool has_head = false;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line =
        trimmed(text.substr(begin, std::min(text.find('#', begin), end) - begin));
    begin = end + 1;
    ++number;
    if (line.empty()) continue;
    meant += fmt::format("{}\n", line);
    const bool is_head = !has_head;
    has_head = true;
    if (is_head && line != kHead)
      return fail("line {}: it does not begin with '{}'", number, kHead);
    if (is_head) continue;
    if (Status read = read_line(line, table); !read)
      return fail("line {}: {}", number, read.error().message);
  }
  if (!has_head) return fail("it is empty");
  table.digest = digest(meant);
  return table;
}

Status check_reduction(const AlgorithmNumbers& numbers) {
  int64_t split = 1, reduction = kLtReductionNone;
  for (const auto& [attribute, number] : numbers) {
    if (attribute == kLtSplit) split = number;
    if (attribute == kLtReduction) reduction = number;
  }
  if (reduction != kLtReductionNone && reduction != kLtReductionStored)
    return fail(
        "'reduction={}': expected {}, no partial sums, or {}, which are stored and added in a "
        "separate step; the order of others may vary",
        reduction, int{kLtReductionNone}, int{kLtReductionStored});
  if (split > 1 && reduction == kLtReductionNone)
    return fail(
        "'split={}' needs 'reduction={}': partial sums are stored and added in a separate step",
        split, int{kLtReductionStored});
  return ok_status();
}

std::string to_string(const AlgorithmNumbers& numbers) {
  std::vector<std::string> words;
  for (const auto& [attribute, number] : numbers)
    for (const auto& [name, named] : kNames)
      if (named == attribute) words.push_back(fmt::format("{}={}", name, number));
  return join(words, " ");
}

std::string print_algorithms(const AlgorithmTable& table, std::string_view comments) {
  std::string text(comments);
  text += fmt::format("{}\n", kHead);
  for (const auto& [key, numbers] : table.entries)
    text += fmt::format("{} | {}\n", key, to_string(numbers));
  return text;
}

namespace {

AlgorithmTable& table_here() {
  static AlgorithmTable table = [] {
    Result<AlgorithmTable> read = read_algorithms(kProductsText);
    PIPER_CHECK(read.ok(), "products_cuda.txt: {}", read.error().message);
    return *std::move(read);
  }();
  return table;
}

}  // namespace

const AlgorithmTable& algorithms_here() { return table_here(); }

}  // namespace piper::cuda

namespace piper {

Status take_cuda_products(const std::string& file) {
  PIPER_ASSIGN(const std::string text, read_text_file(file, cuda::kMostTableBytes));
  Result<cuda::AlgorithmTable> read = cuda::read_algorithms(text);
  if (!read) return fail("{}: {}", file, read.error().message);
  cuda::table_here() = *std::move(read);
  return ok_status();
}

}  // namespace piper
