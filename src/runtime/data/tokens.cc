// What inputs take of windows of tokens: ids are the first T tokens of a window's T + 1, labels its
// last T; positions and numbers of documents follow from where documents begin.
#include <algorithm>
#include <cstring>

#include "token_set.h"

namespace piper {
namespace {

enum class Take { kIds, kLabels, kPositions, kDocuments };

class TokenFeed final : public Feed {
 public:
  TokenFeed(std::shared_ptr<const TokenSet> set, InputNeed need, Take take)
      : set_(std::move(set)), need_(std::move(need)), take_(take) {}

  std::optional<Extent> extent() const override { return set_->extent(); }

  Status read(const SampleCut& cut, std::byte* to) const override {
    const int64_t length = need_.type.shape[1];
    for (int64_t i = 0; i < cut.count; ++i) {
      const TokenSet::Window window = set_->window(cut.sample + i);
      std::byte* const row = to + i * length * info(need_.type.dtype).bytes;
      PIPER_TRY(read_mapped(window.shard->file, [&] {
        if (window.shard->packing)
          return copy_packed(window, {cut.sample, 1, cut.step, cut.first + i}, row);
        return take_ == Take::kIds || take_ == Take::kLabels
                   ? copy_tokens(window, {cut.sample, 1, cut.step, cut.first + i}, row)
                   : count_documents(window, row);
      }));
      PIPER_TRY(check_companions(*window.shard));
    }
    return ok_status();
  }

 private:
  Status copy_tokens(const TokenSet::Window& window, const SampleCut& cut, std::byte* to) const {
    const TokenShard& shard = *window.shard;
    const int64_t length = need_.type.shape[1];
    const int64_t first = window.start + (take_ == Take::kLabels ? 1 : 0);
    const bool may_ignore = take_ == Take::kLabels && need_.ignore != INT64_MIN;
    std::optional<DocumentWalk> walk;
    if (may_ignore && shard.has_documents()) walk.emplace(shard, first);
    for (int64_t t = 0; t < length; ++t) {
      const int64_t token = shard.token(first + t);
      if ((walk && walk->begins(first + t)) || (may_ignore && shard.is_masked(first + t))) {
        store(to, t, need_.ignore);
        continue;
      }
      if (!is_legal(token)) return outside(shard, token, first + t, cut);
      store(to, t, token);
    }
    return ok_status();
  }
  // Copies the segments one after the other, then padding, which is a document of its own: its ids
  // are the least legal one, and no label of it is learned.
  Status copy_packed(const TokenSet::Window& window, const SampleCut& cut, std::byte* to) const {
    const TokenShard& shard = *window.shard;
    const int64_t length = need_.type.shape[1];
    int64_t t = 0, document = 0;
    for (const PackedPart& segment : shard.packing->sequence(window.sequence)) {
      for (int64_t k = 0; k < segment.count; ++k, ++t) {
        if (take_ == Take::kPositions || take_ == Take::kDocuments) {
          store(to, t, take_ == Take::kPositions ? k : document);
          continue;
        }
        const int64_t at = segment.start + k + (take_ == Take::kLabels ? 1 : 0);
        const int64_t token = shard.token(at);
        if (take_ == Take::kLabels && shard.is_masked(at))
          store(to, t, need_.ignore);
        else if (is_legal(token))
          store(to, t, token);
        else
          return outside(shard, token, at, cut);
      }
      ++document;
    }
    const int64_t padding = take_ == Take::kLabels      ? need_.ignore
                            : take_ == Take::kDocuments ? document
                            : need_.low <= need_.high   ? std::max<int64_t>(need_.low, 0)
                                                        : 0;
    for (int64_t k = 0; t < length; ++k, ++t) store(to, t, take_ == Take::kPositions ? k : padding);
    return ok_status();
  }
  bool is_legal(int64_t token) const {
    return token >= 0 && (need_.low > need_.high || (token >= need_.low && token <= need_.high));
  }
  Status count_documents(const TokenSet::Window& window, std::byte* to) const {
    const TokenShard& shard = *window.shard;
    std::optional<DocumentWalk> walk;
    if (shard.has_documents()) walk.emplace(shard, window.start);
    int64_t document = 0, begin = 0;
    for (int64_t t = 0; t < need_.type.shape[1]; ++t) {
      if (walk && walk->begins(window.start + t) && t > 0) ++document, begin = t;
      store(to, t, take_ == Take::kPositions ? t - begin : document);
    }
    return ok_status();
  }
  static Status check_companions(const TokenShard& shard) {
    if (shard.index && shard.index->file().is_cut()) return loss_of(shard.index->file().path());
    if (shard.mask_file && shard.mask_file->is_cut()) return loss_of(shard.mask_file->path());
    return ok_status();
  }
  Error outside(const TokenShard& shard, int64_t token, int64_t position,
                const SampleCut& cut) const {
    Error error =
        fail(SourceSpan{shard.file.path()},
             "token {} at position {} of the file (input '{}', step {}, sample {}) is outside {}",
             token, position, need_.name, cut.step + 1, cut.first, print_range(need_));
    if (shard.form != "raw" || shard.type == TokenType::kU8) return error;
    return std::move(error).with_note(
        fmt::format("help: {} bytes are read as a token; {}:u8 reads each byte",
                    info(shard.type).bytes, shard.file.path()));
  }
  void store(std::byte* to, int64_t index, int64_t token) const {
    const auto narrow = static_cast<int32_t>(token);
    if (need_.type.dtype == DType::kI64)
      std::memcpy(to + index * 8, &token, 8);
    else
      std::memcpy(to + index * 4, &narrow, 4);
  }

  std::shared_ptr<const TokenSet> set_;
  InputNeed need_;
  Take take_;
};

bool takes_next(const InputNeed& need) {
  return need.name.find("label") != std::string::npos ||
         need.name.find("target") != std::string::npos;
}

// Returns what each of the inputs takes.
Result<std::vector<Take>> find_takes(std::span<const InputNeed> needs,
                                     const std::vector<int>& inputs) {
  std::vector<Take> takes;
  std::vector<std::string> names;
  int labels = 0;
  for (const int input : inputs) {
    const InputNeed& need = needs[static_cast<size_t>(input)];
    const bool positions = need.name == "position_ids" || need.name == "positions";
    const bool documents = need.name == "document_ids" || need.name == "segment_ids";
    takes.push_back(positions          ? Take::kPositions
                    : documents        ? Take::kDocuments
                    : takes_next(need) ? Take::kLabels
                                       : Take::kIds);
    if (positions || documents) continue;
    names.push_back(fmt::format("'{}'", need.name));
    if (takes.back() == Take::kLabels) ++labels;
  }
  if (names.size() > 2)
    return fail("a token file feeds one or two integer inputs [batch, length]; here are {}: {}",
                names.size(), join(names, ", "));
  if (names.size() == 2 && labels != 1)
    return fail(
        "of {}, exactly one name must contain \"label\" or \"target\": that input takes the next "
        "tokens",
        join(names, " and "));
  if (names.size() == 1) std::replace(takes.begin(), takes.end(), Take::kLabels, Take::kIds);
  return takes;
}

// Fails where something is asked for that no input takes, or an input asks for what is not known.
Status check_documents(const TokenSet& set, std::span<const InputNeed> needs,
                       const std::vector<int>& inputs, const std::vector<Take>& takes) {
  bool ignores = false, takes_any = false;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const InputNeed& need = needs[static_cast<size_t>(inputs[i])];
    ignores |= takes[i] == Take::kLabels && need.ignore != INT64_MIN;
    takes_any |= takes[i] == Take::kPositions || takes[i] == Take::kDocuments;
    const int64_t most = need.type.shape[1] - 1;
    if (takes[i] == Take::kPositions && need.low <= need.high && (need.low > 0 || need.high < most))
      return fail("input '{}' takes positions from 0 to {}, but {} are legal", need.name, most,
                  print_range(need));
    if (takes[i] != Take::kDocuments) continue;
    if (need.low <= need.high && (need.low > 0 || need.high < most))
      return fail("input '{}' takes numbers of documents from 0 to {}, but {} are legal", need.name,
                  most, print_range(need));
    for (const TokenShard* shard : set.shards())
      if (!shard->has_documents())
        return fail(SourceSpan{shard->file.path()},
                    "input '{}' takes numbers of documents; nothing says where those of this file "
                    "end",
                    need.name)
            .with_note("help: --data " + shard->file.path() + ":separator=TOKEN");
  }
  for (const TokenShard* shard : set.shards()) {
    if (shard->mask_file && !ignores)
      return fail(SourceSpan{shard->mask_file->path()},
                  "a mask needs labels with a value that the loss ignores; the model has none");
    if (shard->packing && !ignores)
      return fail(
          SourceSpan{shard->file.path()},
          "packed sequences end with padding, which needs labels with a value that the loss "
          "ignores; the model has none");
    if (shard->separator && !ignores && !takes_any)
      return fail(SourceSpan{shard->file.path()},
                  "no input takes what separator {} says: none is named position_ids, positions, "
                  "document_ids or segment_ids, and labels have no value that the loss ignores",
                  *shard->separator);
  }
  return ok_status();
}

Error at_file(Error error, const TokenSet& set) {
  if (error.at.file.empty()) error.at.file = set.shards()[0]->file.path();
  return error;
}

}  // namespace

Result<TokenFeeds> open_tokens(const TokenSpec& spec, std::span<const InputNeed> needs,
                               const std::vector<int>& inputs, int64_t batch,
                               const DataOptions& options) {
  const InputNeed& one = needs[static_cast<size_t>(inputs[0])];
  const int64_t length = one.type.shape[1];
  if (length <= 0) return fail("input '{}' is {}; no token fits", one.name, to_string(one.type));
  PIPER_ASSIGN(const auto set, TokenSet::open(spec, length, options));
  const SourceSpan at{set->shards()[0]->file.path()};
  for (const int input : inputs)
    if (const InputNeed& need = needs[static_cast<size_t>(input)]; need.type.shape[1] != length)
      return fail(
          at, "inputs '{}' and '{}' have the lengths {} and {}; one token file cannot feed both",
          one.name, need.name, length, need.type.shape[1]);
  const auto takes = find_takes(needs, inputs);
  if (!takes) return at_file(takes.error(), *set);
  if (set->windows() < least_samples(options, batch))
    return fail(at, "{} tokens make {} {} of {}; a batch needs {}", set->tokens(), set->windows(),
                set->shards()[0]->packing ? "packed sequences" : "windows",
                set->shards()[0]->packing ? std::to_string(length) : fmt::format("{} + 1", length),
                batch);
  if (Status fits = check_documents(*set, needs, inputs, *takes); !fits)
    return at_file(fits.error(), *set);
  TokenFeeds opened{set, {}};
  for (size_t i = 0; i < inputs.size(); ++i)
    opened.feeds.push_back(
        std::make_unique<TokenFeed>(set, needs[static_cast<size_t>(inputs[i])], (*takes)[i]));
  return opened;
}

}  // namespace piper
