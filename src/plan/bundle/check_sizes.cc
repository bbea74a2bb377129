// What a plan states of memory is no more than what is in it takes: whoever allocates by it need
// not believe it.
#include <algorithm>

#include "bad.h"
#include "files.h"
#include "piper/base/memory.h"

namespace piper {
namespace {

Status check_uses(const RoleProgram& role) {
  std::vector<bool> used(role.buffers.size());
  for (const auto* section : role.sections())
    for (const Instruction& one : *section)
      for (const int32_t arg : one.args) used[arg] = true;
  for (const auto* reports : {&role.reports, &role.evaluation_reports})
    for (const Report& report : *reports) used[report.buffer] = true;
  for (size_t b = 0; b < used.size(); ++b)
    if (!used[b] && role.tensor(static_cast<int32_t>(b)).kind == BufferKind::kStep)
      return bad("buffer {} '{}' is used by no instruction", b,
                 quote_control(role.name(static_cast<int32_t>(b))));
  return ok_status();
}

Status check_arena(const char* what, int64_t stated, int64_t end) {
  if (stated == align_up(end)) return ok_status();
  return bad("{} of {} bytes is stated, but its buffers end at {}, and arenas at multiples of {}",
             what, stated, end, kAlignment);
}

Status check_arenas(const RoleProgram& role) {
  int64_t device = 0, host = 0;
  for (const Buffer& buffer : role.buffers) {
    const Tensor& tensor = role.tensor(buffer);
    int64_t& end = tensor.host ? host : device;
    end = std::max(end, buffer.offset + tensor.type.bytes());
  }
  PIPER_TRY(check_arena("an arena", role.arena_bytes, device));
  return check_arena("an arena on the host", role.host_bytes, host);
}

}  // namespace

Status check_sizes(const RoleProgram& role) {
  PIPER_TRY(check_uses(role));
  return check_arenas(role);
}

}  // namespace piper
