// Checks a compute program: values are made before they are read, and each op is used as the table
// allows.
#include <algorithm>

#include "bad.h"
#include "files.h"
#include "piper/ir/ops.h"
#include "piper/ir/signatures.h"

namespace piper {
namespace {

Status check_sizes(const Program& program) {
  const size_t values = program.values.size();
  if (static_cast<size_t>(program.num_args) > values)
    return bad("{} of its {} values are args", program.num_args, values);
  const auto args = static_cast<size_t>(program.num_args);
  if (program.arg_written.size() != args || program.arg_read.size() != args)
    return bad("its tables have not the length of its values");
  for (size_t v = 0; v < values; ++v)
    if (!bytes_of(program.values[v])) return bad("value {} has no possible type", v);
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

// Returns an operand over which the op may write no result, but does. The last operand of a product
// that is added to it is what it adds to. Which result an operand may have depends on those that
// are left out, as an optimizer's moment.
std::optional<int32_t> overwritten(const ProgramOp& op) {
  const OpDef* def = find_op(op.op);
  const bool adds = op.attrs.integer("accumulate") != 0;
  for (size_t i = 0; i < op.inputs.size() - (adds ? 1 : 0); ++i) {
    const bool may_be = def && std::ranges::any_of(def->in_place, [&](const auto& way) {
                          return way.second == static_cast<int>(i);
                        });
    if (!may_be && std::ranges::find(op.outputs, op.inputs[i]) != op.outputs.end())
      return op.inputs[i];
  }
  return std::nullopt;
}

// Walks the ops in order. Locals are made once, before they are read; args are read and written as
// the flags say; each op is used as the table of ops allows it. `ready`: by value.
Status check_ops(const Program& program, std::vector<bool> ready) {
  const auto args = static_cast<size_t>(program.num_args);
  std::vector<bool> written(args);
  for (size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    const std::string name = quote_control(op.op);
    for (int32_t input : op.inputs) {
      if (input == -1) continue;
      if (!in_range(input, program.values.size()))
        return bad("op {} {} reads no value {}", o, name, input);
      const auto i = static_cast<size_t>(input);
      if (i >= args ? !ready[i] : !written[i] && !program.arg_read[i])
        return i >= args ? bad("op {} {} reads value {} before it is made", o, name, input)
                         : bad("op {} {} reads arg {}, which the program says it does not", o, name,
                               input);
    }
    if (op.outputs.empty()) return bad("op {} {} writes nothing", o, name);
    for (int32_t output : op.outputs) {
      if (!in_range(output, program.values.size()))
        return bad("op {} {} writes no value {}", o, name, output);
      const auto i = static_cast<size_t>(output);
      if (i >= args && ready[i])
        return bad("op {} {} writes value {}, which is already made", o, name, output);
      (i >= args ? ready : written)[i] = true;
    }
    if (const Status use =
            check_use(op.op, use_of(program.values, op.inputs, op.outputs, op.attrs));
        !use)
      return bad("op {} {}: {}", o, name, use.error().message);
    if (const std::optional<int32_t> arg = overwritten(op))
      return bad("op {} {} writes arg {} while it reads it", o, name, *arg);
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
  std::vector<bool> literal;
  PIPER_TRY(check_literals(program, literal));
  PIPER_TRY(check_work(program.work));
  return check_ops(program, std::move(literal));
}

}  // namespace piper
