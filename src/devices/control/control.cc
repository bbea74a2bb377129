// The algorithms over the tree of ranks, the same in one process, over MPI and over TCP.
#include <algorithm>
#include <cstring>

#include "agreement.h"

namespace piper {
namespace {

constexpr int64_t kLongestText = int64_t{1} << 30;
constexpr const char* kAgreement = "comparison of plans";

std::string encode(const PlanIdentity& one) {
  std::vector<std::string> fields{one.set_id, std::to_string(one.rank), std::to_string(one.world),
                                  one.source, one.kernels};
  for (const auto& [name, value] : one.flags) fields.insert(fields.end(), {name, value});
  return pack(fields);
}
PlanIdentity decode_identity(std::string_view text) {
  std::vector<std::string> fields = unpack(text);
  fields.resize(std::max<size_t>(fields.size(), 5));
  PlanIdentity one{fields[0],
                   std::strtoll(fields[1].c_str(), nullptr, 10),
                   std::strtoll(fields[2].c_str(), nullptr, 10),
                   fields[3],
                   fields[4],
                   {}};
  for (size_t i = 5; i + 1 < fields.size(); i += 2)
    one.flags.emplace_back(fields[i], fields[i + 1]);
  return one;
}

std::string encode(const std::optional<Conflict>& conflict) {
  if (!conflict) return "";
  std::vector<std::string> fields{std::to_string(conflict->rule),
                                  std::to_string(static_cast<int>(conflict->error.code)),
                                  conflict->error.message};
  fields.insert(fields.end(), conflict->error.notes.begin(), conflict->error.notes.end());
  return pack(fields);
}
std::optional<Conflict> decode_conflict(std::string_view text) {
  std::vector<std::string> fields = unpack(text);
  if (fields.size() < 3) return std::nullopt;
  Error error = fail("{}", fields[2])
                    .with_code(static_cast<ExitCode>(std::strtol(fields[1].c_str(), nullptr, 10)));
  error.notes.assign(fields.begin() + 3, fields.end());
  return Conflict{static_cast<int>(std::strtol(fields[0].c_str(), nullptr, 10)), std::move(error)};
}

}  // namespace

Status tell_text(Control& control, int64_t rank, std::string_view text) {
  const auto size = static_cast<int64_t>(text.size());
  PIPER_TRY(control.tell(rank, std::as_bytes(std::span(&size, 1))));
  return control.tell(rank, std::as_bytes(std::span(text)));
}

Result<std::string> hear_text(Control& control, int64_t rank, const char* what) {
  int64_t size = 0;
  PIPER_TRY(control.hear(rank, std::as_writable_bytes(std::span(&size, 1)), what));
  if (size < 0 || size > kLongestText)
    return fail("rank {} hears a text of {} bytes from rank {}", control.rank(), size, rank)
        .with_code(ExitCode::kPeer);
  std::string text(static_cast<size_t>(size), '\0');
  PIPER_TRY(control.hear(rank, std::as_writable_bytes(std::span(text)), what));
  return text;
}

// Returns the texts one after the other, each preceded by its length.
std::string pack(std::span<const std::string> texts) {
  std::string text;
  for (const std::string& one : texts) text += fmt::format("{}:{}", one.size(), one);
  return text;
}
std::vector<std::string> unpack(std::string_view text) {
  std::vector<std::string> fields;
  while (!text.empty()) {
    const size_t colon = std::min(text.find(':'), text.size() - 1);
    const size_t size = std::strtoull(std::string(text.substr(0, colon)).c_str(), nullptr, 10);
    fields.emplace_back(text.substr(colon + 1, size));
    text.remove_prefix(std::min(colon + 1 + size, text.size()));
  }
  return fields;
}

std::optional<int64_t> Control::parent() const {
  if (rank() == 0) return std::nullopt;
  return (rank() - 1) / kFanOut;
}

std::vector<int64_t> Control::children() const {
  std::vector<int64_t> all;
  for (int64_t one = rank() * kFanOut + 1; one <= (rank() + 1) * kFanOut && one < world(); ++one)
    all.push_back(one);
  return all;
}

int64_t Control::depth() const {
  int64_t steps = 0;
  for (int64_t one = rank(); one > 0; one = (one - 1) / kFanOut) ++steps;
  return steps;
}

int64_t Control::height() const {
  int64_t steps = 0;
  for (int64_t one = world() - 1; one > 0; one = (one - 1) / kFanOut) ++steps;
  return steps;
}

// Each is compared with its parent: when all pairs are equal, all are. What differs goes up, the
// gravest first, and comes down to all.
Status Control::agree(const PlanIdentity& own) {
  std::optional<Conflict> found = check_own(own, rank(), world());
  const auto add = [&](std::optional<Conflict> one) {
    if (one && (!found || one->rule < found->rule)) found = std::move(one);
  };
  for (const int64_t child : children()) {
    PIPER_ASSIGN(const std::string theirs, hear_text(*this, child, kAgreement));
    PIPER_ASSIGN(const std::string below, hear_text(*this, child, kAgreement));
    add(decode_conflict(below));
    add(check_pair(own, decode_identity(theirs)));
  }
  if (const auto up = parent()) {
    PIPER_TRY(tell_text(*this, *up, encode(own)));
    PIPER_TRY(tell_text(*this, *up, encode(found)));
    PIPER_ASSIGN(const std::string result, hear_text(*this, *up, kAgreement));
    found = decode_conflict(result);
  }
  for (const int64_t child : children()) PIPER_TRY(tell_text(*this, child, encode(found)));
  if (found) return std::move(found->error);
  return ok_status();
}

Status Control::merge(std::span<std::byte> own, const char* what,
                      const std::function<void(std::span<const std::byte> theirs)>& fold) {
  std::vector<std::byte> theirs(own.size());
  for (const int64_t child : children()) {
    PIPER_TRY(hear(child, theirs, what));
    fold(theirs);
  }
  if (const auto up = parent()) {
    PIPER_TRY(tell(*up, own));
    PIPER_TRY(hear(*up, own, what));
  }
  for (const int64_t child : children()) PIPER_TRY(tell(child, own));
  return ok_status();
}

Status Control::barrier() {
  return merge({}, "barrier", [](std::span<const std::byte>) {});
}

}  // namespace piper
