// One file of tokens, whatever form it has.
#pragma once

#include "files.h"
#include "pack.h"

namespace piper {

enum class TokenType : uint8_t { kU8, kI8, kU16, kI16, kU32, kI32, kI64 };
struct TokenTypeInfo {
  TokenType type;
  const char* name;  // "u16"
  int bytes;
};
const TokenTypeInfo& info(TokenType type);
std::optional<TokenType> parse_token_type(std::string_view name);

// Says where documents begin, from a file of index that lies beside the tokens.
class DocumentIndex {
 public:
  DocumentIndex(DataFile file, Bytes bytes, int64_t sequences, int64_t documents, int token_bytes)
      : file_(std::move(file)),
        bytes_(std::move(bytes)),
        sequences_(sequences),
        documents_(documents),
        token_bytes_(token_bytes) {}
  const DataFile& file() const { return file_; }
  int64_t documents() const { return documents_; }
  int64_t begin(int64_t document) const;    // its first token; INT64_MAX past the last
  int64_t first_from(int64_t token) const;  // the first document that begins there or later

 private:
  DataFile file_;
  Bytes bytes_;
  int64_t sequences_, documents_;
  int token_bytes_;
};

struct TokenShard {
  DataFile file;
  std::string form;  // "raw", ".npy"
  TokenType type = TokenType::kU16;
  int64_t tokens = 0;
  Bytes data;  // of the tokens
  std::optional<DocumentIndex> index;
  std::optional<int64_t> separator;  // the last token of each document
  std::optional<DataFile> mask_file;
  Bytes mask;                      // a byte for each token, or nothing
  std::optional<Packing> packing;  // whose sequences are the windows
  int64_t first_window = 0, windows = 0;

  int64_t token(int64_t i) const;
  bool has_documents() const { return index || separator; }
  // Returns the first token of each document and how many it has. Requires has_documents.
  std::vector<std::pair<int64_t, int64_t>> list_documents() const;
  bool is_masked(int64_t i) const;  // the mask says that this token is not to be learned
};

// Opens a file whose form its first bytes tell: .npy or safetensors of one list of integers, tokens
// behind a header of 256 integers, tokens with an index beside them; else raw tokens of `type`, or
// u16 where the name ends in .bin. A `type` that is not the file's is an error.
Result<TokenShard> open_shard(const std::string& path, std::optional<TokenType> type,
                              size_t compared);

}  // namespace piper
