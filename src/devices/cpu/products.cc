// The table of cuts of matrix products: its text form, and which of its entries a processor has.
#include <algorithm>
#include <charconv>

#include "gemm.h"
#include "piper/base/digester.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace piper {
namespace cpu {
extern const char kProductsText[];  // products.txt
}
namespace {

using Condition = ProductTable::Condition;
using Rule = ProductTable::Rule;
constexpr int64_t kVersion = 1;

// What follows a '#' is a comment.
std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  for (std::string& word : split_text(line.substr(0, line.find('#')), ' '))
    if (!word.empty()) words.push_back(std::move(word));
  return words;
}

std::optional<int64_t> number_of(std::string_view text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc() || stop != end || number <= 0) return {};
  return number;
}

Result<Condition> read_condition(const std::string& word) {
  const struct {
    std::string_view word;
    Condition condition;
  } flags[] = {{"f32", {Condition::kType, '=', static_cast<int64_t>(DType::kF32)}},
               {"f64", {Condition::kType, '=', static_cast<int64_t>(DType::kF64)}},
               {"a", {Condition::kTransA, '=', 0}},
               {"aT", {Condition::kTransA, '=', 1}},
               {"b", {Condition::kTransB, '=', 0}},
               {"bT", {Condition::kTransB, '=', 1}}};
  for (const auto& flag : flags)
    if (flag.word == word) return flag.condition;
  const struct {
    std::string_view name;
    Condition::Of of;
  } sizes[] = {{"rows", Condition::kRows},
               {"columns", Condition::kColumns},
               {"depth", Condition::kDepth},
               {"line", Condition::kLine}};
  for (const auto& size : sizes) {
    if (!word.starts_with(size.name)) continue;
    const std::string_view rest = std::string_view(word).substr(size.name.size());
    const bool bound = rest.starts_with("<=") || rest.starts_with(">=");
    if (!bound && !rest.starts_with("%")) break;
    if (const auto number = number_of(rest.substr(bound ? 2 : 1)))
      return Condition{size.of, rest[0], *number};
  }
  return fail("'{}' is no condition", quote_control(word))
      .with_note(
          "conditions are f32, f64, a, aT, b, bT, and rows, columns, depth or line with <=N, >=N "
          "or %N");
}

Status check_cut(const ProductCut& cut) {
  const struct {
    std::string_view name;
    int64_t value, step;
  } numbers[] = {{"depth", cut.depth, cpu::kGemmChain},
                 {"columns", cut.columns, cpu::kGemmColumnStep},
                 {"height", cut.height, cpu::kGemmHeightStep}};
  for (const auto& n : numbers)
    if (n.value % n.step != 0) return fail("{}={} is no multiple of {}", n.name, n.value, n.step);
  constexpr int64_t kMost = int64_t{1} << 20;  // no product of them overflows
  const bool small = std::max({cut.depth, cut.columns, cut.height}) <= kMost;
  if (small && cpu::gemm_scratch(cut) <= kKernelScratchBytes) return ok_status();
  return fail("depth={} columns={} height={} needs more than {}", cut.depth, cut.columns,
              cut.height, human_bytes(kKernelScratchBytes));
}

Result<ProductCut> read_cut(std::span<const std::string> words) {
  ProductCut cut;
  for (const std::string& word : words) {
    cut.pack_a |= word == "pack";
    if (word == "pack") continue;
    const std::vector<std::string> parts = split_text(word, '=');
    const std::optional<int64_t> value = number_of(parts.size() == 2 ? parts[1] : "");
    int64_t* const field = parts[0] == "depth"     ? &cut.depth
                           : parts[0] == "columns" ? &cut.columns
                           : parts[0] == "height"  ? &cut.height
                                                   : nullptr;
    if (!field || !value) {
      return fail("'{}' is no part of a cut", quote_control(word))
          .with_note("a cut is depth=N, columns=N, height=N and pack, or some of these");
    }
    *field = *value;
  }
  PIPER_TRY(check_cut(cut));
  return cut;
}

Result<Rule> read_rule(std::span<const std::string> words) {
  const auto colon = std::find(words.begin(), words.end(), ":");
  if (colon == words.end()) return fail("a rule is 'CONDITION… : CUT…'");
  Rule rule;
  for (auto word = words.begin(); word != colon; ++word) {
    PIPER_ASSIGN(const Condition condition, read_condition(*word));
    rule.conditions.push_back(condition);
  }
  PIPER_ASSIGN(rule.cut, read_cut({colon + 1, words.end()}));
  return rule;
}

// Reads line by line; keeps the entries that this processor could have.
class Reader {
 public:
  Reader(std::string_view processor, std::string_view kernels) {
    for (std::string name : {fmt::format("{} {}", processor, kernels),
                             fmt::format("any {}", kernels), std::string("any")})
      found_.push_back({std::move(name), std::string(kernels), {}, {}});
  }

  Status line(std::span<const std::string> words) {
    digester_.add(join(words, " ") + "\n");
    if (!versioned_) return version(words);
    if (words[0] == "processor") {
      PIPER_TRY(end());
      return processor(join(words.subspan(1), " "));
    }
    if (names_.empty()) return fail("a rule before the first processor");
    if (complete_) return fail("a rule after one without conditions");
    PIPER_ASSIGN(Rule rule, read_rule(words));
    complete_ = rule.conditions.empty();
    if (entry_) entry_->rules.push_back(std::move(rule));
    return ok_status();
  }

  Status end() const {
    if (!versioned_) return fail("holds nothing");
    if (names_.empty() || complete_) return ok_status();
    return fail("the last rule of processor '{}' has conditions", names_.back());
  }

  Result<ProductTable> result() && {
    for (ProductTable& entry : found_) {
      if (entry.rules.empty()) continue;
      entry.digest = digester_.digest();
      return std::move(entry);
    }
    return fail("has nothing for processor 'any'");
  }

 private:
  Status version(std::span<const std::string> words) {
    versioned_ = words.size() == 2 && words[0] == "products" && number_of(words[1]) == kVersion;
    if (versioned_) return ok_status();
    return fail("begins with '{}', not with 'products {}'", quote_control(join(words, " ")),
                kVersion);
  }

  Status processor(std::string name) {
    if (std::find(names_.begin(), names_.end(), name) != names_.end())
      return fail("processor '{}' is here twice", quote_control(name));
    const auto entry = std::find_if(found_.begin(), found_.end(),
                                    [&](const ProductTable& t) { return t.entry == name; });
    entry_ = entry == found_.end() ? nullptr : &*entry;
    complete_ = false;
    names_.push_back(std::move(name));
    return ok_status();
  }

  std::vector<ProductTable> found_;  // the best first
  std::vector<std::string> names_;
  ProductTable* entry_ = nullptr;  // that is read; null: of another processor
  bool versioned_ = false, complete_ = false;
  Digester digester_;
};

bool holds(const Condition& condition, const ProductShape& shape) {
  int64_t value = 0;
  switch (condition.of) {
    case Condition::kType:
      value = static_cast<int64_t>(shape.dtype);
      break;
    case Condition::kTransA:
      value = shape.trans_a;
      break;
    case Condition::kTransB:
      value = shape.trans_b;
      break;
    case Condition::kRows:
      value = shape.rows;
      break;
    case Condition::kColumns:
      value = shape.columns;
      break;
    case Condition::kDepth:
      value = shape.depth;
      break;
    case Condition::kLine:
      value = shape.trans_a ? shape.rows : shape.depth;
      break;
  }
  if (condition.is == '<') return value <= condition.number;
  if (condition.is == '>') return value >= condition.number;
  return condition.is == '%' ? value % condition.number == 0 : value == condition.number;
}

}  // namespace

Result<ProductTable> read_products(std::string_view text, std::string_view processor,
                                   std::string_view kernels) {
  Reader reader(processor, kernels);
  SourceSpan at{"products"};
  const auto located = [&](Error error) {
    error.at = at;
    return error;
  };
  for (const std::string& line : split_text(text, '\n')) {
    ++at.line;
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (Status ok = reader.line(words); !ok) return located(std::move(ok).error());
  }
  at.line = 0;
  if (Status ok = reader.end(); !ok) return located(std::move(ok).error());
  Result<ProductTable> table = std::move(reader).result();
  if (!table) return located(std::move(table).error());
  return table;
}

ProductCut cut_of(const ProductTable& table, const ProductShape& shape) {
  for (const Rule& rule : table.rules)
    if (std::all_of(rule.conditions.begin(), rule.conditions.end(),
                    [&](const Condition& c) { return holds(c, shape); }))
      return rule.cut;
  return {};
}

// Follows the rule of both vendors' manuals for CPUID's function 1: the extended family and model
// count where the family, or the model's family, is one of the last.
std::string cpu_processor() {
#if defined(__x86_64__)
  unsigned most = 0, name[3] = {}, version = 0, unused = 0;
  if (!__get_cpuid(0, &most, &name[0], &name[2], &name[1]) ||
      !__get_cpuid(1, &version, &unused, &unused, &unused))
    return "unknown";
  const unsigned family = version >> 8 & 15, model = version >> 4 & 15;
  const unsigned extended = version >> 16 & 15;
  return fmt::format("{} {} {}", std::string_view(reinterpret_cast<const char*>(name), sizeof name),
                     family == 15 ? family + (version >> 20 & 255) : family,
                     family == 15 || family == 6 ? model + (extended << 4) : model);
#else
  return "unknown";
#endif
}

const ProductTable& cpu_products() {
  static const ProductTable table =
      *read_products(cpu::kProductsText, cpu_processor(), cpu_kernels());
  return table;
}

}  // namespace piper
