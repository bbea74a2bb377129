// Recognises the forms of token files and checks them.
#include "token_shard.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "piper/base/data.h"

namespace piper {
namespace {

constexpr std::array<TokenTypeInfo, 7> kTypes = {{{TokenType::kU8, "u8", 1},
                                                  {TokenType::kI8, "i8", 1},
                                                  {TokenType::kU16, "u16", 2},
                                                  {TokenType::kI16, "i16", 2},
                                                  {TokenType::kU32, "u32", 4},
                                                  {TokenType::kI32, "i32", 4},
                                                  {TokenType::kI64, "i64", 8}}};

template <class T>
T load_at(const std::byte* from, int64_t i) {
  T value;
  std::memcpy(&value, from + i * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

TokenType type_of(const IntegerList& list) {
  const std::string name = fmt::format("{}{}", list.is_signed ? 'i' : 'u', list.bytes * 8);
  return *parse_token_type(name);
}

Error no_list(const std::string& path) {
  return fail(SourceSpan{path}, "the file is no list of tokens: one array of one dim of integers")
      .with_note("help: samples of one input are NAME=" + path);
}

// ---- A header of 256 integers -------------------------------------------------------------------

struct HeaderForm {
  int32_t magic, version;
  TokenType type;
};
constexpr HeaderForm kHeaders[] = {{20240520, 1, TokenType::kU16}, {20240801, 7, TokenType::kU32}};
constexpr size_t kHeaderBytes = 256 * 4;

const HeaderForm* header_of(const Bytes& data) {
  if (data.size < 4) return nullptr;
  const auto magic = load_at<int32_t>(data.data, 0);
  for (const HeaderForm& form : kHeaders)
    if (form.magic == magic) return &form;
  return nullptr;
}

Status read_header_form(const HeaderForm& form, const Bytes& data, TokenShard& shard) {
  const SourceSpan at{shard.file.path()};
  shard.form = fmt::format("header {}", form.magic);
  shard.type = form.type;
  if (data.size < kHeaderBytes)
    return fail(at,
                "the file begins with {}, the header of a token file, and has {} of its {} bytes",
                form.magic, data.size, kHeaderBytes);
  const auto version = load_at<int32_t>(data.data, 1);
  const auto tokens = load_at<int32_t>(data.data, 2);
  if (version != form.version)
    return fail(at, "header {} of a token file has version {}; {} can be read", form.magic, version,
                form.version);
  const size_t rest = data.size - kHeaderBytes;
  if (tokens < 0 ||
      static_cast<uint64_t>(tokens) * static_cast<uint64_t>(info(form.type).bytes) != rest)
    return fail(at, "the header says {} tokens of {}, but {} bytes follow it", tokens,
                info(form.type).name, rest);
  shard.tokens = tokens;
  shard.data = data.window(kHeaderBytes, rest);
  return ok_status();
}

// ---- An index beside the tokens -----------------------------------------------------------------

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr size_t kIndexHeader = 34;  // magic, version, type, sequences, documents

// "FILE.idx" for "FILE.bin", if it is an index.
std::optional<std::string> index_beside(const std::string& path) {
  std::filesystem::path index(path);
  if (index.extension() != ".bin") return std::nullopt;
  index.replace_extension(".idx");
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(index, ignored)) return std::nullopt;
  return index.string();
}

std::optional<TokenType> type_of_code(uint8_t code) {
  constexpr std::pair<int, TokenType> kCodes[] = {{1, TokenType::kU8},  {2, TokenType::kI8},
                                                  {3, TokenType::kI16}, {4, TokenType::kI32},
                                                  {5, TokenType::kI64}, {8, TokenType::kU16}};
  for (const auto& [known, type] : kCodes)
    if (known == code) return type;
  return std::nullopt;
}

// Checks that sequences follow each other in the file of tokens, and that documents are runs of
// them.
Status check_index(const SourceSpan& at, const Bytes& bytes, int64_t sequences, int64_t entries,
                   int width, size_t token_bytes) {
  const std::byte* const lengths = bytes.data + kIndexHeader;
  const std::byte* const pointers = lengths + 4 * sequences;
  const std::byte* const documents = pointers + 8 * sequences;
  int64_t end = 0;
  for (int64_t i = 0; i < sequences; ++i) {
    const auto length = load_at<int32_t>(lengths, i);
    if (length < 0 || load_at<int64_t>(pointers, i) != end)
      return fail(at, "sequence {} of the index has {} tokens at byte {}; byte {} was expected", i,
                  length, load_at<int64_t>(pointers, i), end);
    end += int64_t{length} * width;
  }
  if (static_cast<uint64_t>(end) != token_bytes)
    return fail(at, "the index ends at byte {} of a file of {} bytes", end, token_bytes);
  for (int64_t i = 0, before = 0; i < entries; ++i) {
    const auto sequence = load_at<int64_t>(documents, i);
    const bool last = i + 1 == entries;
    if ((i == 0 && sequence != 0) || sequence < before ||
        (last ? sequence != sequences : sequence > sequences))
      return fail(at, "document {} of the index begins at sequence {} of {}", i, sequence,
                  sequences);
    before = sequence;
  }
  return ok_status();
}

Status read_index(const std::string& path, const Bytes& data, size_t compared, TokenShard& shard) {
  const SourceSpan at{path};
  PIPER_ASSIGN(const Bytes bytes, map_file(path));
  const MappedRead reading(path);
  if (bytes.size < kIndexHeader || !as_text(bytes.span()).starts_with(kIndexMagic))
    return fail(at, "the file beside {} is no index of tokens: it does not begin with MMIDIDX",
                shard.file.path())
        .with_note("help: without an index beside them, the tokens are read as raw ones");
  const auto version = load_at<uint64_t>(bytes.data + 9, 0);
  const auto code = load_at<uint8_t>(bytes.data + 17, 0);
  const auto sequences = load_at<uint64_t>(bytes.data + 18, 0);
  const auto entries = load_at<uint64_t>(bytes.data + 26, 0);
  if (version != 1) return fail(at, "version {} of an index cannot be read; 1 can", version);
  const auto type = type_of_code(code);
  if (!type) return fail(at, "the index says element type {}, which is no integer", code);
  const uint64_t most = bytes.size;
  if (sequences > most || entries > most || entries == 0 ||
      kIndexHeader + sequences * 12 + entries * 8 != bytes.size)
    return fail(at, "an index of {} sequences and {} documents does not have {} bytes", sequences,
                entries, bytes.size)
        .with_note("an index of sequences of several modes cannot be read");
  const int width = info(*type).bytes;
  const auto count = static_cast<int64_t>(sequences), documents = static_cast<int64_t>(entries);
  PIPER_TRY(check_index(at, bytes, count, documents, width, data.size));
  shard.form = ".bin and .idx";
  shard.type = *type;
  shard.tokens = static_cast<int64_t>(data.size) / width;
  shard.data = data;
  PIPER_ASSIGN(DataFile file, DataFile::open(path, compared));
  shard.index.emplace(std::move(file), bytes, count, documents - 1, width);
  return ok_status();
}

// ---- Which form a file has ----------------------------------------------------------------------

bool looks_like_safetensors(const Bytes& data) {
  if (data.size < 9 || static_cast<char>(data.data[8]) != '{') return false;
  return load_at<uint64_t>(data.data, 0) <= data.size - 8;
}

Status take_list(const std::string& form, Result<std::optional<IntegerList>> read,
                 TokenShard& shard) {
  PIPER_ASSIGN(const std::optional<IntegerList> list, std::move(read));
  if (!list) return no_list(shard.file.path());
  shard.form = form;
  shard.type = type_of(*list);
  shard.tokens = list->count;
  shard.data = list->data;
  return ok_status();
}

Status read_raw(const Bytes& data, std::optional<TokenType> type, TokenShard& shard) {
  const std::string& path = shard.file.path();
  if (!type && !path.ends_with(".bin"))
    return fail("data source '{}' needs a form: it has none of its own, and is no .bin file", path)
        .with_note("help: write a file of bytes (plain text) as " + path + ":u8");
  shard.form = "raw";
  shard.type = type.value_or(TokenType::kU16);
  const auto width = static_cast<size_t>(info(shard.type).bytes);
  if (data.size % width != 0)
    return fail(SourceSpan{path}, "{} bytes are no whole number of {}-byte tokens", data.size,
                width)
        .with_note("help: " + path + ":u8 says that each byte is a token; there are :u16 and :u32");
  shard.tokens = static_cast<int64_t>(data.size / width);
  shard.data = data;
  return ok_status();
}

Status read_tokens(const std::string& path, const Bytes& data, std::optional<TokenType> type,
                   size_t compared, TokenShard& shard) {
  if (as_text(data.span()).starts_with("\x93NUMPY"))
    return take_list(".npy", read_npy_list(path), shard);
  if (looks_like_safetensors(data))
    return take_list("safetensors", read_safetensors_list(path), shard);
  if (const HeaderForm* const form = header_of(data)) return read_header_form(*form, data, shard);
  if (const auto index = index_beside(path)) return read_index(*index, data, compared, shard);
  return read_raw(data, type, shard);
}

}  // namespace

const TokenTypeInfo& info(TokenType type) { return kTypes[static_cast<size_t>(type)]; }
std::optional<TokenType> parse_token_type(std::string_view name) {
  for (const TokenTypeInfo& row : kTypes)
    if (name == row.name) return row.type;
  return std::nullopt;
}

// A file that is written to while it is mapped may say anything, so numbers are checked again.
int64_t DocumentIndex::begin(int64_t document) const {
  if (document >= documents_) return INT64_MAX;
  const MappedRead reading(file_.path());
  const std::byte* const pointers = bytes_.data + kIndexHeader + 4 * sequences_;
  const auto sequence = load_at<int64_t>(pointers + 8 * sequences_, document);
  if (sequence < 0 || sequence >= sequences_) return INT64_MAX;
  return load_at<int64_t>(pointers, sequence) / token_bytes_;
}

int64_t DocumentIndex::first_from(int64_t token) const {
  int64_t low = 0, high = documents_;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (begin(middle) < token)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

bool TokenShard::is_masked(int64_t i) const {
  if (!mask_file) return false;
  const MappedRead reading(mask_file->path());
  return load_at<uint8_t>(mask.data, i) == 0;
}

std::vector<std::pair<int64_t, int64_t>> TokenShard::list_documents() const {
  std::vector<std::pair<int64_t, int64_t>> documents;
  const auto add = [&](int64_t begin, int64_t end) {
    if (end > begin) documents.emplace_back(begin, end - begin);
  };
  int64_t begin = 0;
  if (index) {
    for (int64_t d = 1; d < index->documents(); ++d) {
      const int64_t next = std::min(index->begin(d), tokens);
      add(begin, next);
      begin = std::max(begin, next);
    }
  } else {
    for (int64_t i = 0; i < tokens; ++i)
      if (token(i) == *separator) {
        add(begin, i + 1);
        begin = i + 1;
      }
  }
  add(begin, tokens);
  return documents;
}

int64_t TokenShard::token(int64_t i) const {
  switch (type) {
    case TokenType::kU8:
      return load_at<uint8_t>(data.data, i);
    case TokenType::kI8:
      return load_at<int8_t>(data.data, i);
    case TokenType::kU16:
      return load_at<uint16_t>(data.data, i);
    case TokenType::kI16:
      return load_at<int16_t>(data.data, i);
    case TokenType::kU32:
      return load_at<uint32_t>(data.data, i);
    case TokenType::kI32:
      return load_at<int32_t>(data.data, i);
    case TokenType::kI64:
      return load_at<int64_t>(data.data, i);
  }
  return 0;
}

Result<TokenShard> open_shard(const std::string& path, std::optional<TokenType> type,
                              size_t compared) {
  TokenShard shard;
  PIPER_ASSIGN(shard.file, DataFile::open(path, compared));
  PIPER_ASSIGN(const Bytes data, map_file(path));
  if (as_text(data.span()).starts_with(kIndexMagic))
    return fail(SourceSpan{path},
                "the file is an index of tokens; the tokens are in the .bin file beside it");
  PIPER_TRY(read_tokens(path, data, type, compared, shard));
  if (type && *type != shard.type)
    return fail(SourceSpan{path}, "the file has tokens of {} ({}), not of {}",
                info(shard.type).name, shard.form, info(*type).name);
  return shard;
}

}  // namespace piper
