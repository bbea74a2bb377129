// Rows that say in which type something travels: `dtype`, whether it may be rounded for it
// (`lossy`), and how many elements have one scale (`block`).
#pragma once

#include "members.h"

namespace piper::fields {

// Types of 16 bits and more, and after these of 8 bits, in blocks with a scale.
inline constexpr int64_t kOfBlocks = 1000;
inline constexpr Word kInt8 = word("int8", kOfBlocks + static_cast<int64_t>(Scaled::kInt8)),
                      kFloat8 = word("float8", kOfBlocks + static_cast<int64_t>(Scaled::kFloat8));
inline constexpr Word kNarrowTypes[] = {word("bf16", DType::kBF16), word("f16", DType::kF16), kInt8,
                                        kFloat8};
inline constexpr Word kSentTypes[] = {kGradientTypes[0], kGradientTypes[1], kGradientTypes[2], kInt8,
                                      kFloat8};

template <auto Type, auto In, auto At>
Status read_sent(const Field& field, const yaml::Entry& entry, const Reading& reading,
                 decltype(class_of(In))& out) {
  out.*At = entry.value.at;
  int64_t type = 0;
  PIPER_TRY(read_value(field, entry.value, reading, type));
  if (type > kOfBlocks)
    (out.*In).type = static_cast<Scaled>(type - kOfBlocks);
  else
    out.*Type = static_cast<DType>(type);
  return ok_status();
}
// A type that `precision` gives to all is said there.
template <auto Type, auto In, auto At>
std::string print_sent(const Field& field, const decltype(class_of(In))& from) {
  if ((from.*In).any())
    return print_value(field, kOfBlocks + static_cast<int64_t>((from.*In).type));
  return (from.*At).file.empty() || !(from.*Type) ? "" : print_value(field, from.*Type);
}
template <auto Type, auto In, auto At>
inline constexpr Member kSentIn = custom<read_sent<Type, In, At>, print_sent<Type, In, At>>;

template <auto In>
Status read_block(const Field& field, const yaml::Entry& entry, const Reading& reading,
                  decltype(class_of(In))& out) {
  int64_t& block = (out.*In).block;
  PIPER_TRY(read_value(field, entry.value, reading, block));
  if (is_block(block)) return ok_status();
  return fail(entry.value.at, "a block is a power of two of elements from {} to {}, not {}",
              kLeastBlock, kMostBlock, block);
}
template <auto In>
std::string print_block(const Field& field, const decltype(class_of(In))& from) {
  const bool is_usual = (from.*In).block == (decltype(class_of(In))().*In).block;
  return is_usual ? "" : print_value(field, (from.*In).block);
}
template <auto In>
inline constexpr Member kBlocksOf = custom<read_block<In>, print_block<In>>;

// Checks what may travel rounded to 8 bits; check_rounded, also what may be to 16.
inline Status check_sent(const Fields& map, const InBlocks& in, bool lossy,
                         const SourceSpan& dtype_at, const char* what) {
  if (map["lossy"] && !map["dtype"])
    return fail(map.key_at("lossy"), "'lossy' without 'dtype' allows nothing");
  if (in.any() && !lossy)
    return fail(dtype_at, "{} that travel in {} are rounded", what,
                kScaledNames[static_cast<size_t>(in.type)])
        .with_note("help: 'lossy: true' beside 'dtype' allows that");
  if (map["block"] && !in.any())
    return fail(map.key_at("block"), "'block' needs a 'dtype' of 8 bits")
        .with_note("help: 'dtype: int8' or 'dtype: float8'");
  return ok_status();
}
inline Status check_rounded(const Fields& map, const InBlocks& in, std::optional<DType> type,
                            bool lossy, const SourceSpan& dtype_at, const char* what) {
  PIPER_TRY(check_sent(map, in, lossy, dtype_at, what));
  if (!type || type == DType::kF32 || lossy) return ok_status();
  return fail(dtype_at, "{} that travel in {} are rounded", what, info(*type).name)
      .with_note("help: 'lossy: true' beside 'dtype' allows that");
}

}  // namespace piper::fields
