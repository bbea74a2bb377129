// Opens the sources that a run names, and matches them with the inputs that the plan needs.
#include <algorithm>
#include <charconv>

#include "mix_file.h"
#include "piper/base/digester.h"

namespace piper {
namespace {

bool is_integer(const InputNeed& need) {
  return need.type.dtype == DType::kI64 || need.type.dtype == DType::kI32;
}

// Describes a file with samples of one input, or with batches of several.
struct ArraySource {
  std::string name;  // as the job was told
  DataFile file;
  std::string input;  // of samples
};
// Holds what the texts of a job name.
struct Sources {
  std::vector<ArraySource> arrays;
  std::vector<std::string> token_names, mixtures;
  TokenSpec tokens;

  std::vector<std::string> all_tokens() const {
    std::vector<std::string> all = mixtures;
    all.insert(all.end(), token_names.begin(), token_names.end());
    return all;
  }
};

std::optional<int64_t> parse_token(std::string_view text) {
  int64_t token = -1;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, token);
  return error == std::errc() && at == end && token >= 0 ? std::optional(token) : std::nullopt;
}

// Cuts off the text after the last ':' if it says something of tokens.
Result<bool> take_suffix(const std::string& whole, TokenFiles& files) {
  constexpr std::string_view kSeparator = "separator=";
  const size_t colon = files.pattern.rfind(':');
  if (colon == files.pattern.npos) return false;
  const std::string suffix = files.pattern.substr(colon + 1);
  if (const auto type = parse_token_type(suffix); type && !files.type) {
    files.type = type;
  } else if (suffix.starts_with(kSeparator)) {
    const auto token = parse_token(std::string_view(suffix).substr(kSeparator.size()));
    if (!token || files.separator)
      return fail("data source '{}' needs one token as its separator: FILE:separator=50256", whole);
    files.separator = token;
  } else if (suffix == "pack" && !files.pack) {
    files.pack = true;
  } else {
    return false;
  }
  files.pattern.resize(colon);
  return true;
}

Result<TokenFiles> parse_tokens(const std::string& text) {
  TokenFiles files{text, {}, {}};
  for (bool more = true; more;) {
    PIPER_ASSIGN(more, take_suffix(text, files));
  }
  return files;
}

// Returns whether the text names one file of arrays, which is no list of tokens: then a safetensors
// file has batches, and a .npy file lacks the name of its input.
Result<bool> has_batches(const std::string& text) {
  PIPER_ASSIGN(const std::vector<std::string> files, find_data_files(text));
  if (files.size() != 1 || files[0] != text) return false;
  if (text.ends_with(".npy")) {
    PIPER_ASSIGN(const auto list, read_npy_list(text));
    if (!list) return fail("data source '{}' must say which input it feeds: NAME={}", text, text);
  }
  if (!text.ends_with(".safetensors")) return false;
  PIPER_ASSIGN(const auto list, read_safetensors_list(text));
  return !list;
}

Status add_source(const std::string& text, Sources& sources) {
  const size_t equals = text.find('=');
  if (text.ends_with(".npy") && equals != text.npos && equals > 0) {
    PIPER_ASSIGN(DataFile file, DataFile::open(text.substr(equals + 1)));
    sources.arrays.push_back({text, std::move(file), text.substr(0, equals)});
    return ok_status();
  }
  if (text.ends_with(".yaml") || text.ends_with(".yml")) {
    PIPER_ASSIGN(sources.tokens, read_mix(text));
    sources.mixtures.push_back(text);
    return ok_status();
  }
  PIPER_ASSIGN(TokenFiles files, parse_tokens(text));
  PIPER_ASSIGN(const bool batches, has_batches(files.pattern));
  if (batches) {
    PIPER_ASSIGN(DataFile file, DataFile::open(files.pattern));
    sources.arrays.push_back({text, std::move(file), ""});
    return ok_status();
  }
  sources.token_names.push_back(text);
  sources.tokens.sources.resize(1);
  sources.tokens.phases = {{0, {1}}};
  TokenSourceSpec& tokens = sources.tokens.sources[0];
  tokens.files.push_back(std::move(files));
  tokens.name = join(sources.token_names, " ");
  return ok_status();
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

// Opens one source of arrays into the inputs that it feeds.
Status open_arrays(const ArraySource& source, const DataOptions& options,
                   std::span<const InputNeed> needs, int64_t batch,
                   std::vector<std::unique_ptr<Feed>>& feeds) {
  const SourceSpan at{source.file.path()};
  const std::vector<std::string> names = names_of(needs);
  std::vector<std::unique_ptr<Feed>> opened(needs.size());
  if (source.input.empty()) {
    PIPER_ASSIGN(opened, open_batches(source.file, needs, batch));
    if (std::none_of(opened.begin(), opened.end(),
                     [](const auto& feed) { return feed != nullptr; }))
      return fail(at, "the file has no tensor batch/0/{}", join(names, " or batch/0/"))
          .with_note(
              "help: each batch K has a tensor 'batch/K/INPUT' for each input, from K = 0 on");
  } else {
    const auto found = std::find(names.begin(), names.end(), source.input);
    if (found == names.end())
      return fail("the plan has no input '{}'{}; it has {}", source.input,
                  did_you_mean(source.input, names), join(names, ", "));
    const size_t index = static_cast<size_t>(found - names.begin());
    PIPER_ASSIGN(opened[index], open_rows(source.file, needs[index], batch, options));
  }
  for (size_t i = 0; i < needs.size(); ++i) {
    if (!opened[i]) continue;
    if (feeds[i]) return fail(at, "input '{}' already has another source", needs[i].name);
    feeds[i] = std::move(opened[i]);
  }
  return ok_status();
}

// Token files take the integer inputs that nothing else feeds.
Result<std::shared_ptr<const TokenSet>> open_tokens_of(const Sources& sources,
                                                       const DataOptions& options,
                                                       std::span<const InputNeed> needs,
                                                       int64_t batch,
                                                       std::vector<std::unique_ptr<Feed>>& feeds) {
  std::vector<int> inputs;
  for (size_t i = 0; i < needs.size(); ++i)
    if (!feeds[i] && is_integer(needs[i]) && needs[i].type.shape.size() == 2 &&
        needs[i].batch_dim == 0)
      inputs.push_back(static_cast<int>(i));
  if (inputs.empty()) {
    std::vector<std::string> all;
    for (const InputNeed& need : needs)
      all.push_back(fmt::format("{} {}", need.name, to_string(need.type)));
    return fail("no integer input [batch, length] is left for the tokens of {}",
                join(sources.all_tokens(), ", "))
        .with_note(fmt::format("the plans read {}", join(all, ", ")))
        .with_note("help: NAME=FILE.npy names the input that a file is for");
  }
  PIPER_ASSIGN(TokenFeeds opened, open_tokens(sources.tokens, needs, inputs, batch, options));
  for (size_t i = 0; i < inputs.size(); ++i)
    feeds[static_cast<size_t>(inputs[i])] = std::move(opened.feeds[i]);
  return std::move(opened.set);
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
    if (other.mixed != extent->mixed)
      return fail(
          "of the samples of '{}' and '{}' one is of a mixture; they do not belong together",
          needs[*first].name, needs[i].name);
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

// Says how the samples of a job fall on its steps.
struct Pace {
  int64_t batch = 1;
  bool fills = false;  // DataOptions::fills, where that can be
  int64_t first_step = 0, first_sample = 0;
  int64_t sample_of(int64_t step) const { return first_sample + (step - first_step) * batch; }
  // Returns the first step that needs more than `samples`.
  int64_t steps_of(int64_t samples) const {
    if (samples == INT64_MAX) return samples;
    const int64_t left = std::max<int64_t>(samples - first_sample, 0);
    return first_step + left / batch + (fills && left % batch > 0 ? 1 : 0);
  }
};

bool ignores_labels(const InputNeed& need) {
  return need.ignore != INT64_MIN && need.batch_dim >= 0 && is_integer(need);
}

// Lets the loss ignore all labels from this sample on. `to` has `count` samples.
void ignore_from(const InputNeed& need, int64_t sample, int64_t count, std::byte* to) {
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < static_cast<int>(need.type.shape.size()); ++d) {
    const int64_t size = need.type.shape[static_cast<size_t>(d)];
    if (d != need.batch_dim) (d < need.batch_dim ? outer : inner) *= size;
  }
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t at = (o * count + sample) * inner; at < (o + 1) * count * inner; ++at)
      if (need.type.dtype == DType::kI64)
        reinterpret_cast<int64_t*>(to)[at] = need.ignore;
      else
        reinterpret_cast<int32_t*>(to)[at] = static_cast<int32_t>(need.ignore);
}

class Batches final : public BatchSource {
 public:
  Batches(std::span<const InputNeed> needs, std::vector<std::unique_ptr<Feed>> feeds,
          std::shared_ptr<const TokenSet> tokens, std::vector<ArraySource> arrays, int64_t samples,
          int64_t tokens_per_step, Pace pace)
      : needs_(needs.begin(), needs.end()),
        feeds_(std::move(feeds)),
        tokens_(std::move(tokens)),
        arrays_(std::move(arrays)),
        samples_(samples),
        tokens_per_step_(tokens_per_step),
        pace_(pace) {
    for (const ArraySource& source : arrays_) files_.push_back(&source.file);
    if (tokens_) tokens_->add_files(files_);
  }
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    PIPER_CHECK(step >= pace_.first_step);
    const Feed& feed = *feeds_[static_cast<size_t>(input)];
    const InputNeed& need = needs_[static_cast<size_t>(input)];
    const int64_t sample = pace_.sample_of(step) + first;
    Status read = feed.read({sample, count, step, first}, to);
    PIPER_TRY(check_losses());  // the graver one
    if (pace_.fills && ignores_labels(need) && sample + count > samples_)
      ignore_from(need, std::max<int64_t>(samples_ - sample, 0), count, to);
    return read;
  }
  int64_t steps() const override { return pace_.steps_of(samples_); }
  int64_t samples() const override { return samples_; }
  std::vector<std::pair<std::string, int64_t>> consumed(int64_t step) const override {
    const int64_t samples = pace_.sample_of(step);
    std::vector<std::pair<std::string, int64_t>> counts;
    if (tokens_) counts = tokens_->consumed(samples);
    for (const ArraySource& source : arrays_) counts.emplace_back(source.name, samples);
    return counts;
  }
  std::vector<SourceEpoch> epochs() const override {
    std::vector<SourceEpoch> all;
    if (tokens_) all = tokens_->epochs();
    const bool shuffled = std::ranges::any_of(feeds_, [](const auto& feed) {
      const auto extent = feed->extent();
      return extent && extent->shuffled;
    });
    for (const ArraySource& source : arrays_) all.push_back({source.name, samples_, shuffled});
    return all;
  }
  int64_t tokens_per_step() const override { return tokens_per_step_; }
  std::string describe() const override { return tokens_ ? tokens_->describe() : ""; }
  std::string digest() const override {
    Digester digester;
    for (const ArraySource& source : arrays_)
      digester.add(fmt::format("array {}\n{}\n", source.input, source.file.content()));
    if (tokens_) digester.add(tokens_->print_content());
    return digester.digest().substr(0, 16);
  }
  std::vector<std::pair<std::string, std::string>> contents() const override {
    std::vector<std::pair<std::string, std::string>> all;
    for (const ArraySource& source : arrays_)
      all.emplace_back(source.file.path(), source.file.content());
    if (tokens_) tokens_->add_contents(all);
    return all;
  }
  Status begin_at(int64_t first_step, int64_t first_sample) override {
    if (first_step < 0 || first_sample < 0)
      return fail("data cannot begin with step {} at sample {}", first_step, first_sample);
    for (const ArraySource& source : arrays_)
      if (source.input.empty() && first_sample % pace_.batch != 0)
        return fail(SourceSpan{source.file.path()},
                    "the file holds whole batches of {} samples; the job cannot go on within one, "
                    "at sample {}",
                    pace_.batch, first_sample);
    pace_.first_step = first_step;
    pace_.first_sample = first_sample;
    return ok_status();
  }
  int64_t num_files() const override { return std::ssize(files_); }
  Status check(int64_t first, int64_t count) const override {
    PIPER_TRY(check_losses());
    for (int64_t i = first; i < num_files() && i - first < count; ++i)
      PIPER_TRY(files_[static_cast<size_t>(i)]->check());
    return ok_status();
  }

 private:
  std::vector<InputNeed> needs_;
  std::vector<std::unique_ptr<Feed>> feeds_;
  std::shared_ptr<const TokenSet> tokens_;
  std::vector<ArraySource> arrays_;
  std::vector<const DataFile*> files_;  // of both
  int64_t samples_;                     // before they repeat
  int64_t tokens_per_step_;
  Pace pace_;
};

}  // namespace

Result<std::unique_ptr<BatchSource>> open_data(const DataOptions& options,
                                               std::span<const InputNeed> needs, int64_t batch) {
  watch_for_losses();
  if (batch <= 0) return fail("a batch of {} samples cannot be read", batch);
  for (const InputNeed& need : needs) PIPER_TRY(check_need(need, batch));
  Sources sources;
  for (const std::string& text : options.sources) PIPER_TRY(add_source(text, sources));
  DataOptions own = options;
  own.fills &= std::ranges::any_of(needs, ignores_labels);
  if (sources.mixtures.size() + (sources.token_names.empty() ? 0 : 1) > 1)
    return fail("tokens come from one mixture or from files, not from {}",
                list_with_and(sources.all_tokens()));
  std::vector<std::unique_ptr<Feed>> feeds(needs.size());
  for (const ArraySource& source : sources.arrays)
    PIPER_TRY(open_arrays(source, own, needs, batch, feeds));
  std::shared_ptr<const TokenSet> tokens;
  if (!sources.all_tokens().empty()) {
    PIPER_ASSIGN(tokens, open_tokens_of(sources, own, needs, batch, feeds));
  }
  for (size_t i = 0; i < needs.size(); ++i)
    if (!feeds[i])
      return fail("no data source feeds input '{}' ({})", needs[i].name, to_string(needs[i].type))
          .with_note("help: give --data TOKENS.bin, --data " + needs[i].name +
                     "=FILE.npy or --data FILE.safetensors");
  PIPER_ASSIGN(const int64_t samples, count_samples(needs, feeds));
  std::unique_ptr<BatchSource> opened = std::make_unique<Batches>(
      needs, std::move(feeds), std::move(tokens), std::move(sources.arrays), samples,
      tokens_per_step(needs, batch), Pace{batch, own.fills});
  PIPER_TRY(opened->begin_at(options.first_step, options.first_sample));
  return opened;
}

}  // namespace piper
