// Helpers for messages: the nearest of several names, lists, sizes, names without control
// characters.
#include <algorithm>
#include <array>
#include <cmath>

#include "piper/base/counted.h"

namespace piper {
namespace {

// Returns how many insertions, deletions, substitutions and swaps of neighbours turn a into b,
// where each place is edited at most once.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    before.swap(above);
    above.swap(row);
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substituted = above[j - 1] + (a[i - 1] != b[j - 1]);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, substituted});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

// Returns the length of the well-formed UTF-8 character at `at`, or 0. C1 controls count as not
// well-formed: some terminals obey them.
size_t utf8_length(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  const unsigned first = byte(0);
  const size_t length = first < 0x80   ? 1
                        : first < 0xC2 ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  if (first == 0xC2 && byte(1) < 0xA0) return 0;
  if (first == 0xE0 && byte(1) < 0xA0) return 0;
  if (first == 0xED && byte(1) >= 0xA0) return 0;  // surrogates
  if (first == 0xF0 && byte(1) < 0x90) return 0;
  if (first == 0xF4 && byte(1) >= 0x90) return 0;
  return length;
}

}  // namespace

std::string counted(int64_t count, std::string_view what, std::string_view ending) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : ending);
}

std::optional<std::string> nearest(std::string_view name, std::span<const std::string> candidates) {
  std::optional<std::string> best;
  size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    const size_t longer = std::max(name.size(), candidate.size());
    const size_t shorter = std::min(name.size(), candidate.size());
    const size_t limit = std::max<size_t>(1, longer / 3);
    if (longer - shorter > limit) continue;
    const bool same_letters = lower(name) == lower(candidate);
    const size_t distance = same_letters ? 0 : edit_distance(name, candidate);
    if (distance > limit || (distance >= longer && !same_letters)) continue;
    if (best && distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string did_you_mean(std::string_view name, std::span<const std::string> candidates) {
  const std::optional<std::string> candidate = nearest(name, candidates);
  return candidate && *candidate != name ? fmt::format(" (did you mean '{}'?)", *candidate)
                                         : std::string();
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) text += separator;
    text += parts[i];
  }
  return text;
}

std::string list_with_and(std::span<const std::string> parts) {
  if (parts.size() < 2) return join(parts, "");
  return join(parts.first(parts.size() - 1), ", ") + " and " + parts.back();
}

std::vector<std::string> split_text(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string human_bytes(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes > -1024 && bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would print as "1024.0": that is one of the next unit.
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string quote_control(std::string_view text) {
  std::string quoted;
  for (size_t at = 0; at < text.size();) {
    const size_t length = utf8_length(text, at);
    const auto first = static_cast<unsigned char>(text[at]);
    if (length == 0 || first < 0x20 || first == 0x7F) {
      quoted += fmt::format("\\x{:02X}", first);
      ++at;
      continue;
    }
    quoted += text.substr(at, length);
    at += length;
  }
  return quoted;
}

}  // namespace piper
