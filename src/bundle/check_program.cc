#include <algorithm>
#include <numeric>

#include "bad.h"
#include "files.h"

namespace piper {
namespace {

Status check_sizes(const Program& program) {
  const size_t values = program.values.size();
  if (static_cast<size_t>(program.num_args) > values)
    return bad("{} of its {} values are args", program.num_args, values);
  const auto args = static_cast<size_t>(program.num_args);
  if (program.offsets.size() != values || program.arg_written.size() != args ||
      program.arg_read.size() != args)
    return bad("its tables have not the length of its values");
  for (size_t v = 0; v < values; ++v)
    if (!bytes_of(program.values[v])) return bad("value {} has no possible type", v);
  return ok_status();
}

// Views are locals that lie inside their base, which is no view and no literal.
Status check_views(const Program& program, const std::vector<bool>& literal,
                   std::vector<bool>& view) {
  view.assign(program.values.size(), false);
  int32_t last = program.num_args - 1;
  for (const ProgramView& one : program.views) {
    if (!in_range(one.value, program.values.size()) || one.value <= last || literal[one.value])
      return bad("view {} is no local value, or out of order", one.value);
    view[one.value] = true;
    last = one.value;
  }
  for (const ProgramView& one : program.views) {
    if (!in_range(one.base, program.values.size()) || view[one.base] || literal[one.base])
      return bad("value {} is a view of value {}, which is no argument or local", one.value,
                 one.base);
    const int64_t bytes = *bytes_of(program.values[one.value]);
    const int64_t base_bytes = *bytes_of(program.values[one.base]);
    if (bytes > base_bytes || one.offset > base_bytes - bytes ||
        one.offset % info(program.values[one.value].dtype).bytes != 0)
      return bad("view {} of {} bytes from {} on lies outside value {} of {}", one.value, bytes,
                 one.offset, one.base, base_bytes);
  }
  return ok_status();
}

// Literals, args and views have no place in the workspace; all others have, inside it.
Status check_places(const Program& program, const std::vector<bool>& placed) {
  int64_t greatest = 0;
  for (size_t v = 0; v < program.values.size(); ++v) {
    const int64_t offset = program.offsets[v];
    if (v < static_cast<size_t>(program.num_args) || placed[v]) {
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

// A name of an op or attribute, as the text form can hold it.
bool is_word(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

// Attributes that are read from plans before a kernel has checked its own are of one kind each.
bool has_its_kind(std::string_view name, const AttrValue& value) {
  const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_one_of({"accumulate", "axis", "kv_heads", "packed_b", "parts", "trans_a", "trans_b"}))
    return std::holds_alternative<int64_t>(value);
  if (is_one_of({"columns", "grad_columns", "perm", "starts", "steps"}))
    return std::holds_alternative<std::vector<int64_t>>(value);
  return !is_one_of({"expr", "then"}) || std::holds_alternative<std::string>(value);
}

Status check_words(const Program& program) {
  for (size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    if (!is_word(op.op)) return bad("op {} is named '{}'", o, quote_control(op.op));
    for (const auto& [name, value] : op.attrs.items()) {
      if (!is_word(name))
        return bad("op {} {} has an attribute named '{}'", o, op.op, quote_control(name));
      if (!has_its_kind(name, value))
        return bad("op {} {} has an attribute '{}' of a wrong kind", o, op.op, name);
    }
  }
  return ok_status();
}

// The whole of the base is written with the view.
bool covers(const Program& program, int32_t view, int32_t base) {
  return *bytes_of(program.values[view]) == *bytes_of(program.values[base]);
}

// Walks the ops in order. Locals are made once, before they are read, views with their base; args
// are read and written as the flags say.
Status check_order(const Program& program, std::vector<bool> ready) {
  const auto args = static_cast<size_t>(program.num_args);
  const std::vector<int32_t> base = program.bases();
  std::vector<bool> written(args);
  for (size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    const std::string& name = op.op;  // a word
    for (int32_t input : op.inputs) {
      if (input == -1) continue;
      if (!in_range(input, program.values.size()))
        return bad("op {} {} reads no value {}", o, name, input);
      const int32_t root = base[input];
      if (static_cast<size_t>(root) >= args) {
        if (!ready[root]) return bad("op {} {} reads value {} before it is made", o, name, input);
      } else if (!written[root] && !program.arg_read[root]) {
        return bad("op {} {} reads arg {}, which the program says it does not", o, name, root);
      }
    }
    if (op.outputs.empty()) return bad("op {} {} writes nothing", o, name);
    for (int32_t output : op.outputs) {
      if (!in_range(output, program.values.size()))
        return bad("op {} {} writes no value {}", o, name, output);
      const int32_t root = base[output];
      if (root != output && (static_cast<size_t>(root) >= args || !covers(program, output, root)))
        return bad("op {} {} writes view {}, which is not the whole of an arg", o, name, output);
      if (static_cast<size_t>(root) >= args) {
        if (ready[root])
          return bad("op {} {} writes value {}, which is already made", o, name, output);
        ready[root] = true;
      } else {
        written[root] = true;
      }
    }
  }
  if (written != program.arg_written) return bad("the args that it writes are not those it says");
  return ok_status();
}

// What is stated for people can be added up.
Status check_work(const Work& work) {
  if (work.recomputed > work.ops)
    return bad("it states {} ops, {} of them recomputed", work.ops, work.recomputed);
  int64_t products = 0;
  for (size_t i = 0; i < work.products.size(); ++i) {
    const auto& [dtype, count] = work.products[i];
    const bool ascends = i == 0 || work.products[i - 1].first < dtype;
    if (count < 1 || count > work.ops - products || !ascends)
      return bad("it states {} products in {} among {} ops, or types out of order", count,
                 info(dtype).name, work.ops);
    products += count;
  }
  return ok_status();
}

}  // namespace

Status check_program(const Program& program) {
  PIPER_TRY(check_sizes(program));
  std::vector<bool> literal, placed;
  PIPER_TRY(check_literals(program, literal));
  PIPER_TRY(check_views(program, literal, placed));
  for (size_t v = 0; v < literal.size(); ++v) placed[v] = placed[v] || literal[v];
  PIPER_TRY(check_places(program, placed));
  PIPER_TRY(check_words(program));
  PIPER_TRY(check_work(program.work));
  return check_order(program, std::move(literal));
}

std::vector<int32_t> Program::bases() const {
  std::vector<int32_t> base(values.size());
  std::iota(base.begin(), base.end(), 0);
  for (const ProgramView& view : views) base[static_cast<size_t>(view.value)] = view.base;
  return base;
}

}  // namespace piper
