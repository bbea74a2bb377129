#include <algorithm>

#include "files.h"

namespace piper {
namespace {

template <class... Args>
Error bad(fmt::format_string<Args...> text, Args&&... args) {
  return fail(fmt::runtime(text), std::forward<Args>(args)...).with_code(ExitCode::kPlan);
}

bool in_range(int64_t id, size_t count) { return id >= 0 && id < static_cast<int64_t>(count); }

Status check_sizes(const Program& program) {
  const size_t values = program.values.size();
  if (program.num_args < 0 || static_cast<size_t>(program.num_args) > values)
    return bad("{} of its {} values are args", program.num_args, values);
  const auto args = static_cast<size_t>(program.num_args);
  if (program.offsets.size() != values || program.arg_written.size() != args ||
      program.arg_read.size() != args)
    return bad("its tables have not the length of its values");
  if (program.workspace_bytes < 0) return bad("its workspace is negative");
  for (size_t v = 0; v < values; ++v)
    if (!bytes_of(program.values[v])) return bad("value {} has no possible type", v);
  return ok_status();
}

// Literals and args have no place in the workspace; all others have, inside it.
Status check_places(const Program& program, const std::vector<bool>& literal) {
  int64_t greatest = 0;
  for (size_t v = 0; v < program.values.size(); ++v) {
    const int64_t offset = program.offsets[v];
    if (v < static_cast<size_t>(program.num_args) || literal[v]) {
      if (offset != -1) return bad("value {} is no local, but has an offset", v);
      continue;
    }
    int64_t end = 0;
    if (offset < 0 || offset % 64 != 0 ||
        __builtin_add_overflow(offset, *bytes_of(program.values[v]), &end) ||
        end > program.workspace_bytes)
      return bad("value {} at {} with {} bytes is not inside the workspace of {}", v, offset,
                 *bytes_of(program.values[v]), program.workspace_bytes);
    greatest = std::max(greatest, end);
  }
  if (program.workspace_bytes != greatest && program.workspace_bytes != (greatest + 63) / 64 * 64)
    return bad("it states a workspace of {} bytes and uses {}", program.workspace_bytes, greatest);
  return ok_status();
}

Status check_literals(const Program& program, std::vector<bool>& literal) {
  literal.assign(program.values.size(), false);
  for (const auto& [value, data] : program.literals) {
    if (!in_range(value, program.values.size()) || value < program.num_args || literal[value])
      return bad("literal {} is no local value, or is there twice", value);
    if (data.size() > 64 || static_cast<int64_t>(data.size()) != *bytes_of(program.values[value]))
      return bad("literal {} has {} bytes, its type is {}", value, data.size(),
                 to_string(program.values[value]));
    literal[value] = true;
  }
  return ok_status();
}

// Walks the ops in order. Locals are made once, before they are read; args are read and written as
// the flags say.
Status check_order(const Program& program, std::vector<bool> ready) {
  const auto args = static_cast<size_t>(program.num_args);
  std::vector<bool> written(args);
  for (size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    const std::string name = quote_control(op.op);
    for (int32_t input : op.inputs) {
      if (input == -1) continue;
      if (!in_range(input, program.values.size()))
        return bad("op {} {} reads no value {}", o, name, input);
      if (static_cast<size_t>(input) >= args) {
        if (!ready[input]) return bad("op {} {} reads value {} before it is made", o, name, input);
      } else if (!written[input] && !program.arg_read[input]) {
        return bad("op {} {} reads arg {}, which the program says it does not", o, name, input);
      }
    }
    for (int32_t output : op.outputs) {
      if (!in_range(output, program.values.size()))
        return bad("op {} {} writes no value {}", o, name, output);
      if (static_cast<size_t>(output) >= args) {
        if (ready[output])
          return bad("op {} {} writes value {}, which is already made", o, name, output);
        ready[output] = true;
      } else {
        written[output] = true;
      }
    }
  }
  if (written != program.arg_written) return bad("the args that it writes are not those it says");
  return ok_status();
}

}  // namespace

Status check_program(const Program& program) {
  PIPER_TRY(check_sizes(program));
  std::vector<bool> literal;
  PIPER_TRY(check_literals(program, literal));
  PIPER_TRY(check_places(program, literal));
  return check_order(program, std::move(literal));
}

}  // namespace piper
