#include <algorithm>

#include "feed.h"

namespace piper {
namespace {

bool is_integer(const InputNeed& need) {
  return need.type.dtype == DType::kI64 || need.type.dtype == DType::kI32;
}

struct Source {
  enum class Kind { kTokens, kRows, kBatches } kind = Kind::kTokens;
  std::string path;
  TokenType type = TokenType::kU16;
  std::string input;  // kRows
};

Result<Source> parse_source(const std::string& text) {
  Source source{Source::Kind::kTokens, text};
  if (text.ends_with(".safetensors")) {
    source.kind = Source::Kind::kBatches;
    return source;
  }
  if (text.ends_with(".npy")) {
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0)
      return fail("data source '{}' must say which input it feeds: NAME={}", text, text);
    source.kind = Source::Kind::kRows;
    source.input = text.substr(0, equals);
    source.path = text.substr(equals + 1);
    return source;
  }
  constexpr std::pair<std::string_view, TokenType> kSuffixes[] = {
      {":u8", TokenType::kU8}, {":u16", TokenType::kU16}, {":u32", TokenType::kU32}};
  for (const auto& [suffix, type] : kSuffixes)
    if (text.ends_with(suffix)) {
      source.path = text.substr(0, text.size() - suffix.size());
      source.type = type;
      return source;
    }
  if (!text.ends_with(".bin"))
    return fail(
               "data source '{}' needs a form: FILE.bin, FILE:u8, FILE:u16, FILE:u32, "
               "NAME=FILE.npy or FILE.safetensors",
               text)
        .with_note("help: write a file of bytes (plain text) as " + text + ":u8");
  return source;
}

Status check_need(const InputNeed& need, int64_t batch) {
  const auto rank = static_cast<int>(need.type.shape.size());
  if (need.batch_dim >= rank || (need.batch_dim >= 0 && need.type.shape[need.batch_dim] != batch))
    return fail("input '{}' is {}; its dim {} should be the batch of {}", need.name,
                to_string(need.type), need.batch_dim, batch);
  return ok_status();
}

std::vector<std::string> names_of(std::span<const InputNeed> needs) {
  std::vector<std::string> names;
  for (const InputNeed& need : needs) names.push_back(need.name);
  return names;
}

// Opens one source into the inputs that it feeds. Token files take the integer inputs that nothing
// else feeds, so they come last.
Status open_source(const Source& source, const DataOptions& options,
                   std::span<const InputNeed> needs, int64_t batch,
                   std::vector<std::unique_ptr<Feed>>& feeds) {
  if (source.kind == Source::Kind::kTokens) {
    std::vector<int> inputs;
    for (size_t i = 0; i < needs.size(); ++i)
      if (!feeds[i] && is_integer(needs[i]) && needs[i].type.shape.size() == 2 &&
          needs[i].batch_dim == 0)
        inputs.push_back(static_cast<int>(i));
    if (inputs.empty())
      return fail(SourceSpan{source.path},
                  "no integer input [batch, length] is left for this token file");
    PIPER_ASSIGN(auto opened,
                 open_tokens({source.path, source.type}, needs, inputs, batch, options));
    for (size_t i = 0; i < inputs.size(); ++i) feeds[inputs[i]] = std::move(opened[i]);
    return ok_status();
  }
  std::vector<std::unique_ptr<Feed>> opened(needs.size());
  if (source.kind == Source::Kind::kBatches) {
    PIPER_ASSIGN(opened, open_batches(source.path, needs));
    if (std::none_of(opened.begin(), opened.end(),
                     [](const auto& feed) { return feed != nullptr; }))
      return fail(SourceSpan{source.path}, "the file has no tensor batch/0/{}",
                  join(names_of(needs), " or batch/0/"));
  } else {
    const std::vector<std::string> names = names_of(needs);
    const auto found = std::find(names.begin(), names.end(), source.input);
    if (found == names.end())
      return fail("the plan has no input '{}'{}; it has {}", source.input,
                  did_you_mean(source.input, names), join(names, ", "));
    const size_t index = static_cast<size_t>(found - names.begin());
    PIPER_ASSIGN(opened[index], open_rows(source.path, needs[index], batch, options));
  }
  for (size_t i = 0; i < needs.size(); ++i) {
    if (!opened[i]) continue;
    if (feeds[i])
      return fail(SourceSpan{source.path}, "input '{}' already has another source", needs[i].name);
    feeds[i] = std::move(opened[i]);
  }
  return ok_status();
}

Status check_extents(std::span<const InputNeed> needs,
                     const std::vector<std::unique_ptr<Feed>>& feeds) {
  std::optional<size_t> first;
  for (size_t i = 0; i < needs.size(); ++i) {
    const std::optional<Extent> extent = feeds[i]->extent();
    if (!extent || needs[i].batch_dim < 0) continue;
    if (!first) first = i;
    const Extent other = *feeds[*first]->extent();
    if (other.rows != extent->rows)
      return fail("the sources hold {} samples of input '{}' but {} of '{}'", other.rows,
                  needs[*first].name, extent->rows, needs[i].name);
    if (other.shuffled != extent->shuffled)
      return fail(
          "the samples of '{}' and '{}' would be shuffled apart: batches of a safetensors file "
          "keep their order",
          needs[*first].name, needs[i].name);
  }
  return ok_status();
}

int64_t tokens_per_step(std::span<const InputNeed> needs, int64_t batch) {
  for (const InputNeed& need : needs)
    if (is_integer(need)) return num_elements(need.type.shape);
  return batch;
}

void add_content(Digester& digester, const Bytes& file) {
  constexpr size_t kWhole = size_t{64} << 20, kBlock = size_t{64} << 10;
  const std::string_view text = as_text(file.span());
  digester.add(fmt::format("{}\n", text.size()));
  if (text.size() <= kWhole) return digester.add(text);
  constexpr size_t kBlocks = kWhole / kBlock;
  for (size_t i = 0; i < kBlocks; ++i)
    digester.add(text.substr((text.size() - kBlock) / (kBlocks - 1) * i, kBlock));
}

class Batches final : public BatchSource {
 public:
  Batches(std::vector<std::unique_ptr<Feed>> feeds, int64_t tokens, std::vector<Source> sources)
      : feeds_(std::move(feeds)), tokens_(tokens), sources_(std::move(sources)) {}
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    return feeds_[static_cast<size_t>(input)]->read(step, first, count, to);
  }
  int64_t steps() const override {
    int64_t steps = INT64_MAX;
    for (const auto& feed : feeds_) steps = std::min(steps, feed->steps());
    return steps;
  }
  int64_t tokens_per_step() const override { return tokens_; }
  Result<std::string> digest() const override {
    Digester digester;
    for (const Source& source : sources_) {
      PIPER_ASSIGN(const Bytes file, map_file(source.path));
      digester.add(fmt::format("{} {} {}\n", static_cast<int>(source.kind),
                               static_cast<int>(source.type), source.input));
      add_content(digester, file);
    }
    return digester.digest().substr(0, 16);
  }

 private:
  std::vector<std::unique_ptr<Feed>> feeds_;
  int64_t tokens_;
  std::vector<Source> sources_;
};

}  // namespace

Result<std::unique_ptr<BatchSource>> open_data(const DataOptions& options,
                                               std::span<const InputNeed> needs, int64_t batch) {
  if (batch <= 0) return fail("a batch of {} samples cannot be read", batch);
  for (const InputNeed& need : needs) PIPER_TRY(check_need(need, batch));
  std::vector<Source> sources;
  for (const std::string& text : options.sources) {
    PIPER_ASSIGN(Source source, parse_source(text));
    sources.push_back(std::move(source));
  }
  std::stable_sort(sources.begin(), sources.end(), [](const Source& a, const Source& b) {
    return (a.kind == Source::Kind::kTokens) < (b.kind == Source::Kind::kTokens);
  });
  std::vector<std::unique_ptr<Feed>> feeds(needs.size());
  for (const Source& source : sources) PIPER_TRY(open_source(source, options, needs, batch, feeds));
  for (size_t i = 0; i < needs.size(); ++i)
    if (!feeds[i])
      return fail("no data source feeds input '{}' ({})", needs[i].name, to_string(needs[i].type))
          .with_note("help: give --data TOKENS.bin, --data " + needs[i].name +
                     "=FILE.npy or --data FILE.safetensors");
  PIPER_TRY(check_extents(needs, feeds));
  return std::unique_ptr<BatchSource>(std::make_unique<Batches>(
      std::move(feeds), tokens_per_step(needs, batch), std::move(sources)));
}

}  // namespace piper
