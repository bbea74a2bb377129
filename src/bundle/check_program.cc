#include <algorithm>

#include "bad.h"
#include "files.h"

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
  if (is_one_of({"accumulate", "axis", "parts", "trans_a", "trans_b"}))
    return std::holds_alternative<int64_t>(value);
  return !is_one_of({"perm", "starts", "steps"}) ||
         std::holds_alternative<std::vector<int64_t>>(value);
}

// Of ops that backends have joined: what a verifier does not know.
bool is_of_backends(std::string_view name) {
  return name == "then" || name == "expr" || name == "columns" || name == "grad_columns" ||
         name == "kv_heads" || name == "packed_b";
}

Status check_words(const Program& program) {
  for (size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    if (!is_word(op.op)) return bad("op {} is named '{}'", o, quote_control(op.op));
    if (op.op == "Fused" || op.op == "Pack") return bad("a plan has no op {}", op.op);
    for (const auto& [name, value] : op.attrs.items()) {
      if (!is_word(name))
        return bad("op {} {} has an attribute named '{}'", o, op.op, quote_control(name));
      if (is_of_backends(name))
        return bad("op {} {} has an attribute '{}', which no op of a plan has", o, op.op, name);
      if (!has_its_kind(name, value))
        return bad("op {} {} has an attribute '{}' of a wrong kind", o, op.op, name);
    }
  }
  return ok_status();
}

// Walks the ops in order. Locals are made once, before they are read; args are read and written as
// the flags say. `ready`: by value.
Status check_order(const Program& program, std::vector<bool> ready) {
  const auto args = static_cast<size_t>(program.num_args);
  std::vector<bool> written(args);
  for (size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    const std::string& name = op.op;  // a word
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
  PIPER_TRY(check_words(program));
  PIPER_TRY(check_work(program.work));
  return check_order(program, std::move(literal));
}

}  // namespace piper
