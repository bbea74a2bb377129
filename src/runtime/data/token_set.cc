// Opens the files of token sources, counts their windows, and finds the window of a sample.
#include "token_set.h"

#include <algorithm>

#include "piper/base/counted.h"

namespace piper {
namespace {

struct NamedFile {
  std::string path;
  TokenFiles files;
};

Result<std::vector<NamedFile>> find_files(const TokenSourceSpec& spec) {
  std::vector<NamedFile> found;
  for (const TokenFiles& files : spec.files) {
    auto paths = find_data_files(files.pattern);
    if (!paths) {
      if (spec.at.line > 0) paths.error().at = spec.at;
      return paths.error();
    }
    for (std::string& path : *paths) found.push_back({std::move(path), files});
  }
  return found;
}

// Of many files, less of each is compared.
size_t compared_of(int64_t files) {
  constexpr size_t kLeast = size_t{128} << 10;
  return std::max(kComparedBytes / static_cast<size_t>(std::max<int64_t>(files, 1)), kLeast);
}

Status take_separator(const NamedFile& named, TokenShard& shard) {
  if (!named.files.separator) return ok_status();
  if (shard.index)
    return fail(SourceSpan{named.path},
                "the index beside the file says where documents end, and so does separator {}",
                *named.files.separator);
  const int bits = 8 * static_cast<int>(info(shard.type).bytes);
  if (bits < 63 && (*named.files.separator >> bits) != 0)
    return fail(SourceSpan{named.path}, "no token of {} is the separator {}", info(shard.type).name,
                *named.files.separator);
  shard.separator = named.files.separator;
  return ok_status();
}

Status take_mask(const std::string& path, size_t compared, TokenShard& shard) {
  PIPER_ASSIGN(TokenShard mask, open_shard(path, TokenType::kU8, compared));
  if (mask.tokens != shard.tokens)
    return fail(SourceSpan{path}, "the mask has {} bytes for the {} tokens of {}", mask.tokens,
                shard.tokens, shard.file.path());
  shard.mask_file = std::move(mask.file);
  shard.mask = std::move(mask.data);
  return ok_status();
}

Status pack_documents(int64_t length, TokenShard& shard) {
  const std::string& path = shard.file.path();
  if (!shard.has_documents())
    return fail(SourceSpan{path}, "documents are to be packed, and nothing says where they end")
        .with_note("help: --data " + path + ":separator=TOKEN:pack");
  if (length > INT32_MAX)
    return fail(SourceSpan{path}, "sequences of {} tokens cannot be packed", length);
  std::vector<std::pair<int64_t, int64_t>> documents;
  PIPER_TRY(read_mapped(shard.file, [&] {
    documents = shard.list_documents();
    return ok_status();
  }));
  shard.packing = Packing::pack(documents, length);
  return ok_status();
}

std::string list_some(const std::vector<std::string>& names) {
  constexpr size_t kMost = 5;
  if (names.size() <= kMost) return list_with_and(names);
  return fmt::format("{} and {} others", join(std::span(names).first(kMost), ", "),
                     names.size() - kMost);
}

// Returns a seed of its own for each name, whatever other sources there are.
uint64_t seed_of(uint64_t seed, const std::string& name) {
  return seed ^ std::stoull(digest(name).substr(0, 16), nullptr, 16);
}

// Says where a separator does not occur, among the first tokens of each file: a slip would make one
// document of a whole file. "": it does, or there is none.
std::string missing_separator(std::span<const TokenShard> shards) {
  constexpr int64_t kLooked = int64_t{1} << 22;
  std::vector<std::string> without;
  int64_t looked = 0, token = 0;
  for (const TokenShard& shard : shards) {
    if (!shard.separator) continue;
    token = *shard.separator;
    const MappedRead reading(shard.file.path());
    const int64_t count = std::min(shard.tokens, kLooked);
    int64_t at = 0;
    while (at < count && shard.token(at) != token) ++at;
    if (at < count) continue;
    without.push_back(shard.file.path());
    looked = std::max(looked, count);
  }
  if (without.empty()) return "";
  return fmt::format("\nwarning: the separator {} is not among the first {} tokens of {}", token,
                     looked, list_some(without));
}

}  // namespace

DocumentWalk::DocumentWalk(const TokenShard& shard, int64_t from) : shard_(shard) {
  if (!shard.index) return;
  document_ = shard.index->first_from(from);
  begin_ = shard.index->begin(document_);
}

bool DocumentWalk::begins(int64_t token) {
  if (shard_.separator) return token > 0 && shard_.token(token - 1) == *shard_.separator;
  while (begin_ < token) begin_ = shard_.index->begin(++document_);
  return begin_ == token;
}

Result<TokenSet::Source> TokenSet::open_source(const TokenSourceSpec& spec, int64_t length,
                                               size_t compared) {
  Source source{spec.name, {}, {}, 0, 0};
  PIPER_ASSIGN(const std::vector<NamedFile> named, find_files(spec));
  TokenSourceSpec of_masks{spec.name, spec.at, {}, {}};
  for (const std::string& pattern : spec.masks) of_masks.files.push_back({pattern, {}, {}});
  PIPER_ASSIGN(const std::vector<NamedFile> masks, find_files(of_masks));
  if (!masks.empty() && masks.size() != named.size())
    return fail(spec.at, "source '{}' has {} files and {} masks", spec.name, named.size(),
                masks.size());
  for (const NamedFile& file : named)
    if (file.files.pack != named[0].files.pack)
      return fail(SourceSpan{file.path}, "source '{}' packs some of its files and not others",
                  spec.name);
  for (size_t i = 0; i < named.size(); ++i) {
    PIPER_ASSIGN(TokenShard shard, open_shard(named[i].path, named[i].files.type, compared));
    PIPER_TRY(take_separator(named[i], shard));
    if (!masks.empty()) PIPER_TRY(take_mask(masks[i].path, compared, shard));
    if (named[i].files.pack) PIPER_TRY(pack_documents(length, shard));
    shard.first_window = source.windows;
    shard.windows = shard.packing       ? shard.packing->sequences()
                    : shard.tokens == 0 ? 0
                                        : (shard.tokens - 1) / length;
    source.windows += shard.windows;
    (shard.windows > 0 ? source.shards : source.short_ones).push_back(std::move(shard));
  }
  return source;
}

TokenSet::TokenSet(std::vector<Source> sources, Mix mix, std::string phases, int64_t length,
                   bool shuffle)
    : sources_(std::move(sources)),
      mix_(std::move(mix)),
      phases_(std::move(phases)),
      length_(length),
      shuffle_(shuffle) {
  for (const Source& source : sources_)
    for (const TokenShard& shard : source.shards) shards_.push_back(&shard);
  samples_ = samples_without_repeats();
}

// Returns the greatest number of samples with which no source begins its second epoch.
int64_t TokenSet::samples_without_repeats() const {
  int64_t low = 0, high = INT64_MAX / 2;
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    bool repeats = false;
    for (size_t s = 0; s < sources_.size(); ++s)
      repeats |= mix_.count(static_cast<int>(s), middle) > sources_[s].windows;
    (repeats ? high : low) = repeats ? middle - 1 : middle;
  }
  return low;
}

Result<std::shared_ptr<const TokenSet>> TokenSet::open(const TokenSpec& spec, int64_t length,
                                                       const DataOptions& options) {
  int64_t files = 0;
  for (const TokenSourceSpec& each : spec.sources) {
    PIPER_ASSIGN(const std::vector<NamedFile> named, find_files(each));
    files += static_cast<int64_t>(named.size());
  }
  std::vector<Source> sources;
  std::string phases;
  for (const TokenSourceSpec& each : spec.sources) {
    PIPER_ASSIGN(Source source, open_source(each, length, compared_of(files)));
    const std::string& first =
        (source.shards.empty() ? source.short_ones : source.shards)[0].file.path();
    if (source.windows == 0)
      return fail(SourceSpan{first}, "no file of source '{}' has the {} + 1 tokens of a window",
                  each.name, length);
    source.seed = spec.sources.size() > 1 ? seed_of(options.seed, each.name) : options.seed;
    sources.push_back(std::move(source));
  }
  for (const MixPhase& phase : spec.phases) {
    phases += fmt::format("from {}", phase.from);
    for (const int64_t weight : phase.weights) phases += fmt::format(" {}", weight);
    phases += '\n';
  }
  std::vector<int64_t> sizes;
  for (const Source& source : sources) sizes.push_back(source.windows);
  Mix mix = options.each_once ? Mix::of_each_once(spec.phases, sizes) : Mix(spec.phases);
  return std::shared_ptr<const TokenSet>(
      new TokenSet(std::move(sources), std::move(mix), phases, length, options.shuffle));
}

TokenSet::Window TokenSet::window(int64_t sample) const {
  const Mix::Place place = mix_.at(sample);
  const Source& source = sources_[static_cast<size_t>(place.source)];
  const int64_t row = RowOrder(source.windows, shuffle_, source.seed).row(place.index);
  const auto behind = std::upper_bound(
      source.shards.begin(), source.shards.end(), row,
      [](int64_t value, const TokenShard& shard) { return value < shard.first_window; });
  const TokenShard& shard = *(behind - 1);
  const int64_t own = row - shard.first_window;
  return {&shard, own * length_, own};
}

int64_t TokenSet::windows() const {
  int64_t windows = 0;
  for (const Source& source : sources_) windows += source.windows;
  return windows;
}

int64_t TokenSet::tokens() const {
  int64_t tokens = 0;
  for (const TokenShard* shard : shards_) tokens += shard->tokens;
  return tokens;
}

std::vector<std::pair<std::string, int64_t>> TokenSet::consumed(int64_t samples) const {
  std::vector<std::pair<std::string, int64_t>> counts;
  for (size_t s = 0; s < sources_.size(); ++s)
    counts.emplace_back(sources_[s].name, mix_.count(static_cast<int>(s), samples));
  return counts;
}

std::vector<SourceEpoch> TokenSet::epochs() const {
  std::vector<SourceEpoch> epochs;
  for (const Source& source : sources_) epochs.push_back({source.name, source.windows, shuffle_});
  return epochs;
}

std::string TokenSet::describe(const Source& source, int64_t length) {
  std::vector<std::string> forms, too_short;
  int64_t tokens = 0, documents = 0, filled = 0, left_out = 0;
  for (const TokenShard& shard : source.shards) {
    const std::string form = fmt::format("{} of {}", shard.form, info(shard.type).name);
    if (std::find(forms.begin(), forms.end(), form) == forms.end()) forms.push_back(form);
    tokens += shard.tokens;
    if (shard.index) documents += shard.index->documents();
    if (shard.packing) filled += shard.packing->filled();
    if (shard.packing) left_out += shard.packing->left_out();
  }
  for (const TokenShard& shard : source.short_ones) too_short.push_back(shard.file.path());
  const bool packs = source.shards[0].packing.has_value();
  std::string text = fmt::format(
      "{}: {} ({}), {} tokens{}, {} of {}{}", source.name,
      counted(static_cast<int64_t>(source.shards.size()), "file"), join(forms, ", "), tokens,
      documents > 0 ? fmt::format(" in {}", counted(documents, "document")) : "",
      counted(source.windows, packs ? "packed sequence" : "window"), length, packs ? "" : " + 1");
  if (packs) {
    const double all = static_cast<double>(source.windows) * static_cast<double>(length);
    text += fmt::format(", {:.1f} % padding", 100 - 100 * static_cast<double>(filled) / all);
  }
  if (left_out > 0)
    text += fmt::format("; {} of one token left out", counted(left_out, "document"));
  if (!too_short.empty()) text += fmt::format("; too short for a window: {}", list_some(too_short));
  return text + missing_separator(source.shards) + "\n";
}

std::string TokenSet::describe() const {
  std::string text;
  for (const Source& source : sources_) text += describe(source, length_);
  return text;
}

void TokenSet::add_contents(std::vector<std::pair<std::string, std::string>>& all) const {
  const auto add = [&](const DataFile& file) { all.emplace_back(file.path(), file.content()); };
  for (const TokenShard* shard : shards_) {
    add(shard->file);
    if (shard->index) add(shard->index->file());
    if (shard->mask_file) add(*shard->mask_file);
  }
}

void TokenSet::add_content(const Source& source, std::string& text) {
  for (const TokenShard& shard : source.shards) {
    text += fmt::format("{} {} {} {}", shard.form, info(shard.type).name,
                        shard.separator.value_or(-1), shard.file.content());
    if (shard.index) text += ' ' + shard.index->file().content();
    if (shard.mask_file) text += " mask " + shard.mask_file->content();
    if (shard.packing) text += " packed";
    text += '\n';
  }
}

std::string TokenSet::print_content() const {
  std::string text = phases_;
  for (const Source& source : sources_) {
    if (sources_.size() > 1) text += source.name + '\n';
    add_content(source, text);
  }
  return text;
}

void TokenSet::add_files(std::vector<const DataFile*>& all) const {
  for (const TokenShard* shard : shards_) {
    all.push_back(&shard->file);
    if (shard->index) all.push_back(&shard->index->file());
    if (shard->mask_file) all.push_back(&*shard->mask_file);
  }
}

}  // namespace piper
