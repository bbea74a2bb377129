#include <google/protobuf/arena.h>

#include "files.h"
#include "plan.pb.h"

namespace piper {
namespace {

template <class Values, class Field>
void copy_to(const Values& values, Field* field) {
  for (const auto& value : values) field->Add(value);
}

void encode(const TensorType& from, proto::TensorType* to) {
  to->set_dtype(static_cast<int32_t>(from.dtype));
  copy_to(from.shape, to->mutable_shape());
}

void encode(const std::string& name, const AttrValue& from, proto::Attr* to) {
  to->set_name(name);
  if (const auto* integer = std::get_if<int64_t>(&from)) to->set_integer(*integer);
  if (const auto* real = std::get_if<double>(&from)) to->set_real(*real);
  if (const auto* text = std::get_if<std::string>(&from)) to->set_text(*text);
  if (const auto* list = std::get_if<std::vector<int64_t>>(&from))
    copy_to(*list, to->mutable_integers()->mutable_values());
}

void encode(const ProgramOp& from, proto::Op* to) {
  to->set_op(from.op);
  for (const auto& [name, value] : from.attrs.items()) encode(name, value, to->add_attrs());
  copy_to(from.inputs, to->mutable_inputs());
  copy_to(from.outputs, to->mutable_outputs());
}

void encode(const Work& from, proto::Work* to) {
  to->set_ops(from.ops);
  to->set_recomputed(from.recomputed);
  for (const auto& [dtype, count] : from.products) {
    proto::Products* products = to->add_products();
    products->set_dtype(static_cast<int32_t>(dtype));
    products->set_count(count);
  }
}

void encode(const Program& from, proto::Program* to) {
  to->set_label(from.label);
  for (const TensorType& type : from.values) encode(type, to->add_values());
  to->set_num_args(from.num_args);
  copy_to(from.offsets, to->mutable_offsets());
  for (const auto& [value, data] : from.literals) {
    proto::Literal* literal = to->add_literals();
    literal->set_value(value);
    literal->set_data(data);
  }
  for (const ProgramView& from_view : from.views) {
    proto::View* view = to->add_views();
    view->set_value(from_view.value);
    view->set_base(from_view.base);
    view->set_offset(from_view.offset);
  }
  for (const ProgramOp& op : from.ops) encode(op, to->add_ops());
  for (bool written : from.arg_written) to->add_arg_written(written);
  for (bool read : from.arg_read) to->add_arg_read(read);
  to->set_workspace_bytes(from.workspace_bytes);
  encode(from.work, to->mutable_work());
}

void encode(const Tensor& from, proto::Tensor* to) {
  to->set_name(from.name);
  encode(from.type, to->mutable_type());
  to->set_kind(static_cast<int32_t>(from.kind));
  to->set_host(from.host);
  to->set_init(from.init);
  to->set_fill(from.fill);
  to->set_param(from.param);
  for (const std::string& alias : from.aliases) to->add_aliases(alias);
  for (const TensorCut& part : from.cuts) {
    proto::TensorCut* cut = to->add_cuts();
    cut->set_axis(part.axis);
    cut->set_dim(part.dim);
    cut->set_outer(part.outer);
    cut->set_block(part.block);
  }
  to->set_part_of(from.part_of);
  copy_to(from.whole, to->mutable_whole());
  to->set_previous_of(from.previous_of);
  to->set_packed_of(from.packed_of);
}

void encode(const Buffer& from, proto::Buffer* to) {
  to->set_tensor(from.tensor);
  to->set_micro(from.micro);
  to->set_offset(from.offset);
}

void encode(const SampleRange& from, proto::SampleRange* to) {
  to->set_first(from.first);
  to->set_count(from.count);
  copy_to(from.stride, to->mutable_stride());
}

void encode_sums(const Instruction& from, proto::Instruction* to) {
  for (const Contribution& part : from.contributions) {
    proto::Contribution* contribution = to->add_contributions();
    contribution->set_arg(part.arg);
    contribution->set_target(part.target);
    contribution->set_use(part.use);
    contribution->set_accumulates(part.accumulates);
  }
  for (const SumCombine& part : from.combines) {
    proto::SumCombine* combine = to->add_combines();
    combine->set_arg(part.arg);
    copy_to(part.from, combine->mutable_from());
  }
  for (const SumRead& part : from.sum_reads) {
    proto::SumRead* read = to->add_sum_reads();
    read->set_arg(part.arg);
    read->set_target(part.target);
  }
}

void encode(const Instruction& from, proto::Instruction* to) {
  to->set_kind(static_cast<int32_t>(from.kind));
  to->set_stream(from.stream);
  to->set_program(from.program);
  copy_to(from.args, to->mutable_args());
  copy_to(from.waits, to->mutable_waits());
  copy_to(from.peer, to->mutable_peer());
  to->set_group(from.group);
  to->set_root(from.root);
  to->set_reduction(static_cast<int32_t>(from.reduction));
  if (from.dim != -1 || from.outer != 1) {
    to->mutable_blocks()->set_dim(from.dim);
    to->mutable_blocks()->set_outer(from.outer);
  }
  if (from.to_dim != -1 || from.to_outer != 1) {
    to->mutable_to_blocks()->set_dim(from.to_dim);
    to->mutable_to_blocks()->set_outer(from.to_outer);
  }
  to->set_turn(from.turn);
  to->set_owned(from.owned);
  to->set_channel(from.channel);
  to->set_input(from.input);
  encode(from.samples, to->mutable_samples());
  to->set_label(from.label);
  to->set_pass(from.pass);
  to->set_stage(from.stage);
  to->set_micro(from.micro);
  to->set_micros(from.micros);
  to->set_ahead(from.ahead);
  encode_sums(from, to);
}

void encode(const DataInput& from, proto::DataInput* to) {
  to->set_name(from.name);
  encode(from.type, to->mutable_type());
  to->set_batch_dim(from.batch_dim);
  to->set_low(from.low);
  to->set_high(from.high);
  to->set_ignore(from.ignore);
}

void encode_names(const RoleProgram& from, proto::RoleProgram* to) {
  for (const auto& [name, size] : from.mesh) {
    proto::Axis* axis = to->add_mesh();
    axis->set_name(name);
    axis->set_size(size);
  }
  for (const Stream& part : from.streams) {
    proto::Stream* stream = to->add_streams();
    stream->set_name(part.name);
    stream->set_priority(part.priority);
    stream->set_sms(part.sms);
  }
  for (const Group& part : from.groups) {
    proto::Group* group = to->add_groups();
    group->set_name(part.name);
    copy_to(part.axes, group->mutable_axes());
  }
  for (const SumTarget& part : from.sum_targets) {
    proto::SumTarget* target = to->add_sum_targets();
    target->set_name(part.name);
    target->set_uses(part.uses);
  }
  for (const Report& part : from.reports) {
    proto::Report* report = to->add_reports();
    report->set_name(part.name);
    report->set_buffer(part.buffer);
  }
}

// There are no maps in a plan: equal messages have equal bytes.
std::string serialize(const google::protobuf::MessageLite& message) {
  std::string bytes;
  PIPER_CHECK(message.SerializeToString(&bytes));
  return bytes;
}

void append_integer(std::string& bytes, uint64_t value, int width) {
  for (int i = 0; i < width; ++i) bytes += static_cast<char>(value >> (8 * i));
}

}  // namespace

std::string encode_role(const RoleProgram& role) {
  google::protobuf::Arena arena;  // of the many small messages
  proto::RoleProgram& to = *google::protobuf::Arena::CreateMessage<proto::RoleProgram>(&arena);
  encode_names(role, &to);
  for (const Tensor& tensor : role.tensors) encode(tensor, to.add_tensors());
  for (const Buffer& buffer : role.buffers) encode(buffer, to.add_buffers());
  for (const Program& program : role.programs) encode(program, to.add_programs());
  for (const DataInput& input : role.inputs) encode(input, to.add_inputs());
  for (const Instruction& one : role.prologue) encode(one, to.add_prologue());
  for (const Instruction& one : role.body) encode(one, to.add_body());
  for (const Instruction& one : role.epilogue) encode(one, to.add_epilogue());
  to.set_steps_ahead(role.steps_ahead);
  to.set_batch(role.batch);
  to.set_arena_bytes(role.arena_bytes);
  copy_to(role.workspace_bytes, to.mutable_workspace_bytes());
  to.set_transport_bytes(role.transport_bytes);
  to.set_scratch_bytes(role.scratch_bytes);
  to.set_host_bytes(role.host_bytes);
  return serialize(to);
}

std::string role_digest(const RoleProgram& role) { return digest(encode_role(role)); }

std::string program_digest(const Program& program) {
  google::protobuf::Arena arena;
  proto::Program& to = *google::protobuf::Arena::CreateMessage<proto::Program>(&arena);
  encode(program, &to);
  to.clear_label();
  return digest(serialize(to));
}

std::string encode_header(const RankHeader& header) {
  proto::RankHeader to;
  to.set_rank(header.rank);
  copy_to(header.coordinates, to.mutable_coordinates());
  to.set_role(header.role);
  to.set_set_id(header.set_id);
  return serialize(to);
}

std::string wrap(std::string_view magic, std::string_view payload) {
  std::string bytes(magic);
  append_integer(bytes, kPlanFormatVersion, 4);
  append_integer(bytes, payload.size(), 8);
  bytes += digest(payload);
  bytes += payload;
  return bytes;
}

}  // namespace piper
