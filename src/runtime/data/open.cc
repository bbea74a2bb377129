// Opens the sources that a run names, and matches them with the inputs that the plan needs.
#include <sys/stat.h>

#include <algorithm>

#include "feed.h"
#include "lost.h"
#include "piper/base/digester.h"

namespace piper {
namespace {

bool is_integer(const InputNeed& need) {
  return need.type.dtype == DType::kI64 || need.type.dtype == DType::kI32;
}

struct Source {
  enum class Kind { kTokens, kRows, kBatches } kind = Kind::kTokens;
  std::string name;  // as the job was told
  std::string path;
  TokenType type = TokenType::kU16;
  std::string input;  // kRows
};

Result<Source> parse_source(const std::string& text) {
  Source source{Source::Kind::kTokens, text, text};
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
    PIPER_ASSIGN(opened, open_batches(source.path, needs, batch, options));
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

// Returns how many samples there are before they repeat; all feeds must agree.
Result<int64_t> count_samples(std::span<const InputNeed> needs,
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
  if (first) return feeds[*first]->extent()->rows;
  int64_t samples = INT64_MAX;  // of inputs without samples, files of batches have several values
  for (const auto& feed : feeds)
    if (const auto extent = feed->extent()) samples = std::min(samples, extent->rows);
  return samples;
}

int64_t tokens_per_step(std::span<const InputNeed> needs, int64_t batch) {
  for (const InputNeed& need : needs)
    if (is_integer(need)) return num_elements(need.type.shape);
  return batch;
}

constexpr size_t kWhole = size_t{64} << 20;  // bytes: of larger files, blocks

void add_content(Digester& digester, const Bytes& file) {
  constexpr size_t kBlock = size_t{64} << 10;
  const std::string_view text = as_text(file.span());
  digester.add(fmt::format("{}\n", text.size()));
  if (text.size() <= kWhole) return digester.add(text);
  constexpr size_t kBlocks = kWhole / kBlock;
  for (size_t i = 0; i < kBlocks; ++i)
    digester.add(text.substr((text.size() - kBlock) / (kBlocks - 1) * i, kBlock));
}

// Keeps a source with what it was when it was opened.
struct Opened {
  Source source;
  struct stat about = {};
  std::string content;  // digest
};

Result<std::string> content_of(const std::string& path) {
  PIPER_ASSIGN(const Bytes file, map_file(path));
  Digester digester;
  add_content(digester, file);
  return digester.digest();
}

Result<Opened> look_at(Source source) {
  Opened opened;
  PIPER_ASSIGN(opened.content, content_of(source.path));
  stat(source.path.c_str(), &opened.about);
  opened.source = std::move(source);
  return opened;
}

std::optional<struct stat> look_again(const Opened& opened) {
  struct stat now = {};
  const bool is_there = stat(opened.source.path.c_str(), &now) == 0 &&
                        now.st_dev == opened.about.st_dev && now.st_ino == opened.about.st_ino;
  return is_there ? std::optional(now) : std::nullopt;  // replaced: the job has the old one
}

// Returns whether the file is cut: past the end that it has now, its last page has zeros, which no
// signal tells.
bool is_cut(const Opened& opened) {
  const auto now = look_again(opened);
  return now && now->st_size < opened.about.st_size;
}

// Returns whether somebody has written to the file, whatever its times say: they can be set, all
// except the one of the last change of anything. Of a file that is not read as a whole, such a
// change is taken for a write unless something else of it has changed.
bool is_written_to(const Opened& opened) {
  const struct stat& then = opened.about;
  const auto now = look_again(opened);
  if (!now ||
      (now->st_ctim.tv_sec == then.st_ctim.tv_sec && now->st_ctim.tv_nsec == then.st_ctim.tv_nsec))
    return false;
  const Result<std::string> content = content_of(opened.source.path);
  if (!content || *content != opened.content) return true;
  const bool has_other = now->st_mode != then.st_mode || now->st_uid != then.st_uid ||
                         now->st_gid != then.st_gid || now->st_nlink != then.st_nlink;
  return static_cast<size_t>(now->st_size) > kWhole && !has_other;
}

// Says how the samples of a job fall on its steps.
struct Pace {
  int64_t batch = 1, first_step = 0, first_sample = 0;
  int64_t sample_of(int64_t step) const { return first_sample + (step - first_step) * batch; }
  // Returns the first step that needs more than `samples`.
  int64_t steps_of(int64_t samples) const {
    if (samples == INT64_MAX) return samples;
    return first_step + std::max<int64_t>(samples - first_sample, 0) / batch;
  }
};

class Batches final : public BatchSource {
 public:
  Batches(std::vector<std::unique_ptr<Feed>> feeds, int64_t samples, int64_t tokens, Pace pace,
          std::vector<Opened> sources)
      : feeds_(std::move(feeds)),
        samples_(samples),
        tokens_(tokens),
        pace_(pace),
        sources_(std::move(sources)) {
    for (const auto& feed : feeds_)
      source_of_.push_back(
          &*std::find_if(sources_.begin(), sources_.end(),
                         [&](const Opened& opened) { return opened.source.path == feed->path(); }));
  }
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    PIPER_CHECK(step >= pace_.first_step);
    const Feed& feed = *feeds_[static_cast<size_t>(input)];
    const MappedRead reading(feed.path());
    Status read = feed.read({pace_.sample_of(step) + first, count, step, first}, to);
    PIPER_TRY(check_losses());  // the graver one
    const Opened& opened = *source_of_[static_cast<size_t>(input)];
    return is_cut(opened) ? Status(loss_of(opened.source.path)) : read;
  }
  int64_t steps() const override { return pace_.steps_of(samples_); }
  std::vector<std::pair<std::string, int64_t>> consumed(int64_t step) const override {
    std::vector<std::pair<std::string, int64_t>> counts;
    for (const Opened& opened : sources_)
      counts.emplace_back(opened.source.name, pace_.sample_of(step));
    return counts;
  }
  int64_t tokens_per_step() const override { return tokens_; }
  std::string digest() const override {
    Digester digester;
    for (const auto& [source, about, content] : sources_)
      digester.add(fmt::format("{} {} {}\n{}\n", static_cast<int>(source.kind),
                               static_cast<int>(source.type), source.input, content));
    return digester.digest().substr(0, 16);
  }
  Status check() const override {
    PIPER_TRY(check_losses());
    for (const Opened& opened : sources_)
      if (is_cut(opened)) return loss_of(opened.source.path);
    for (const Opened& opened : sources_)
      if (is_written_to(opened))
        return fail(
                   "'{}' was written to while it was in use: what was read before and after does "
                   "not belong together",
                   opened.source.path)
            .with_code(ExitCode::kStorage)
            .with_note(
                "help: write beside it and rename; a job keeps to the file that it has opened");
    return ok_status();
  }

 private:
  std::vector<std::unique_ptr<Feed>> feeds_;
  int64_t samples_;  // before they repeat
  int64_t tokens_;
  Pace pace_;
  std::vector<Opened> sources_;
  std::vector<const Opened*> source_of_;  // by feed
};

}  // namespace

Result<std::unique_ptr<BatchSource>> open_data(const DataOptions& options,
                                               std::span<const InputNeed> needs, int64_t batch) {
  watch_for_losses();
  if (batch <= 0) return fail("a batch of {} samples cannot be read", batch);
  const Pace pace{batch, options.first_step, options.first_sample};
  if (pace.first_step < 0 || pace.first_sample < 0)
    return fail("data cannot begin with step {} at sample {}", pace.first_step, pace.first_sample);
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
  PIPER_ASSIGN(const int64_t samples, count_samples(needs, feeds));
  std::vector<Opened> opened;
  for (Source& source : sources) {
    PIPER_ASSIGN(Opened one, look_at(std::move(source)));
    opened.push_back(std::move(one));
  }
  return std::unique_ptr<BatchSource>(std::make_unique<Batches>(
      std::move(feeds), samples, tokens_per_step(needs, batch), pace, std::move(opened)));
}

}  // namespace piper
