// The token sources of a job, opened: which window of which file each sample is.
#pragma once

#include "feed.h"
#include "mix.h"
#include "token_shard.h"

namespace piper {

// Describes token files as a job names them: by file, folder or pattern, and the form of raw ones.
struct TokenFiles {
  std::string pattern;
  std::optional<TokenType> type;
  std::optional<int64_t> separator;  // the last token of each document
  bool pack = false;                 // samples are whole documents
};
struct TokenSourceSpec {
  std::string name;
  SourceSpan at;
  std::vector<TokenFiles> files;
  std::vector<std::string> masks;  // patterns, for as many files
};
struct TokenSpec {
  std::vector<TokenSourceSpec> sources;
  std::vector<MixPhase> phases;
};

// Walks over the tokens with which documents begin.
class DocumentWalk {
 public:
  DocumentWalk(const TokenShard& shard, int64_t from);
  bool begins(int64_t token);  // called with rising tokens, from `from` on

 private:
  const TokenShard& shard_;
  int64_t document_ = 0, begin_ = INT64_MAX;
};

class TokenSet {
 public:
  // Each file is cut into windows of length + 1 tokens, at stride `length`, or its documents are
  // packed into sequences of that length; none crosses its end.
  static Result<std::shared_ptr<const TokenSet>> open(const TokenSpec& spec, int64_t length,
                                                      const DataOptions& options);
  struct Window {
    const TokenShard* shard = nullptr;
    int64_t start = 0;     // its first token
    int64_t sequence = 0;  // of TokenShard::packing instead, if there is one
  };
  Window window(int64_t sample) const;
  Extent extent() const { return {samples_, shuffle_, sources_.size() > 1}; }
  int64_t windows() const;  // of all sources
  int64_t tokens() const;
  std::vector<std::pair<std::string, int64_t>> consumed(int64_t samples) const;
  std::vector<SourceEpoch> epochs() const;
  const std::vector<const TokenShard*>& shards() const { return shards_; }

  std::string describe() const;  // a line for each source
  // Adds the digest of each file by its path.
  void add_contents(std::vector<std::pair<std::string, std::string>>& all) const;
  std::string print_content() const;  // what makes the samples, without paths
  void add_files(std::vector<const DataFile*>& all) const;

 private:
  struct Source {
    std::string name;
    std::vector<TokenShard> shards;  // with one window at least
    std::vector<TokenShard> short_ones;
    int64_t windows = 0;
    uint64_t seed = 0;
  };
  TokenSet(std::vector<Source> sources, Mix mix, std::string phases, int64_t length, bool shuffle);
  static Result<Source> open_source(const TokenSourceSpec& spec, int64_t length, size_t compared);
  static std::string describe(const Source& source, int64_t length);
  static void add_content(const Source& source, std::string& text);
  int64_t samples_without_repeats() const;

  std::vector<Source> sources_;
  Mix mix_;
  std::string phases_;
  int64_t length_, samples_ = 0;
  bool shuffle_;
  std::vector<const TokenShard*> shards_;
};

}  // namespace piper
