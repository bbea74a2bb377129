// From bytes to structures. Only what a structure cannot hold is refused here (enums, sizes of the
// file); check.cc judges the rest.
#include <google/protobuf/arena.h>

#include "bad.h"
#include "files.h"
#include "plan.pb.h"

namespace piper {
namespace {

constexpr size_t kEnvelope = 8 + 4 + 8 + 32;

template <class Field, class Value>
void copy_from(const Field& field, std::vector<Value>& values) {
  values.assign(field.begin(), field.end());
}

uint64_t integer_at(std::string_view bytes, size_t at, int width) {
  uint64_t value = 0;
  for (int i = width; i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

// Remembers the first thing that a structure cannot hold.
class Decoder {
 public:
  const std::string& wrong() const { return wrong_; }

  RoleProgram role(const proto::RoleProgram& from) {
    RoleProgram to;
    for (const proto::Axis& axis : from.mesh()) to.mesh.emplace_back(axis.name(), axis.size());
    for (const proto::Stream& stream : from.streams())
      to.streams.push_back({stream.name(), stream.priority(), stream.sms()});
    for (const proto::Group& group : from.groups()) {
      to.groups.push_back({group.name(), {}});
      copy_from(group.axes(), to.groups.back().axes);
    }
    for (const proto::Tensor& part : from.tensors()) to.tensors.push_back(tensor(part));
    for (const proto::Buffer& part : from.buffers())
      to.buffers.push_back({part.tensor(), part.micro(), part.offset()});
    for (const proto::Program& part : from.programs()) to.programs.push_back(program(part));
    for (const proto::DataInput& part : from.inputs()) to.inputs.push_back(input(part));
    for (const proto::SumTarget& part : from.sum_targets())
      to.sum_targets.push_back({part.name(), part.uses()});
    for (const proto::Instruction& one : from.prologue()) to.prologue.push_back(instruction(one));
    for (const proto::Instruction& one : from.body()) to.body.push_back(instruction(one));
    for (const proto::Instruction& one : from.epilogue()) to.epilogue.push_back(instruction(one));
    for (const proto::Report& report : from.reports())
      to.reports.push_back({report.name(), report.buffer()});
    to.steps_ahead = from.steps_ahead();
    to.batch = from.batch();
    to.arena_bytes = from.arena_bytes();
    copy_from(from.workspace_bytes(), to.workspace_bytes);
    to.transport_bytes = from.transport_bytes();
    to.scratch_bytes = from.scratch_bytes();
    to.host_bytes = from.host_bytes();
    return to;
  }

 private:
  int32_t enumerator(int32_t value, int32_t count, const char* what) {
    if (value >= 0 && value < count) return value;
    if (wrong_.empty()) wrong_ = fmt::format("there is no {} {}", what, value);
    return 0;
  }

  TensorType type(const proto::TensorType& from) {
    TensorType to;
    to.dtype = static_cast<DType>(enumerator(from.dtype(), kNumDTypes, "element type"));
    copy_from(from.shape(), to.shape);
    return to;
  }

  AttrValue attr(const proto::Attr& from) {
    switch (from.value_case()) {
      case proto::Attr::kInteger:
        return int64_t{from.integer()};
      case proto::Attr::kReal:
        return from.real();
      case proto::Attr::kText:
        return from.text();
      case proto::Attr::kIntegers: {
        std::vector<int64_t> list;
        copy_from(from.integers().values(), list);
        return list;
      }
      case proto::Attr::VALUE_NOT_SET:
        break;
    }
    if (wrong_.empty()) wrong_ = "an attribute has no value";
    return int64_t{0};
  }

  ProgramOp op(const proto::Op& from) {
    ProgramOp to;
    to.op = from.op();
    for (const proto::Attr& part : from.attrs()) to.attrs.set(part.name(), attr(part));
    copy_from(from.inputs(), to.inputs);
    copy_from(from.outputs(), to.outputs);
    return to;
  }

  Program program(const proto::Program& from) {
    Program to;
    to.label = from.label();
    for (const proto::TensorType& value : from.values()) to.values.push_back(type(value));
    to.num_args = from.num_args();
    copy_from(from.offsets(), to.offsets);
    for (const proto::Literal& literal : from.literals())
      to.literals.emplace_back(literal.value(), literal.data());
    for (const proto::View& view : from.views())
      to.views.push_back({view.value(), view.base(), view.offset()});
    for (const proto::Op& part : from.ops()) to.ops.push_back(op(part));
    copy_from(from.arg_written(), to.arg_written);
    copy_from(from.arg_read(), to.arg_read);
    to.workspace_bytes = from.workspace_bytes();
    to.work = work(from.work());
    return to;
  }

  Work work(const proto::Work& from) {
    Work to{from.ops(), from.recomputed(), {}};
    for (const proto::Products& products : from.products())
      to.products.emplace_back(
          static_cast<DType>(enumerator(products.dtype(), kNumDTypes, "element type")),
          products.count());
    return to;
  }

  Tensor tensor(const proto::Tensor& from) {
    Tensor to;
    to.name = from.name();
    to.type = type(from.type());
    to.kind = static_cast<BufferKind>(enumerator(from.kind(), 3, "kind of buffer"));
    to.host = from.host();
    to.init = from.init();
    to.fill = from.fill();
    to.param = from.param();
    copy_from(from.aliases(), to.aliases);
    for (const proto::TensorCut& cut : from.cuts())
      to.cuts.push_back({cut.axis(), cut.dim(), cut.outer(), cut.block()});
    to.part_of = from.part_of();
    copy_from(from.whole(), to.whole);
    to.previous_of = from.previous_of();
    to.packed_of = from.packed_of();
    return to;
  }

  static SampleRange samples(const proto::SampleRange& from) {
    SampleRange to{from.first(), from.count(), {}};
    copy_from(from.stride(), to.stride);
    return to;
  }

  static void sums(const proto::Instruction& from, Instruction& to) {
    for (const proto::Contribution& part : from.contributions())
      to.contributions.push_back({part.arg(), part.target(), part.use(), part.accumulates()});
    for (const proto::SumCombine& part : from.combines()) {
      to.combines.push_back({part.arg(), {}});
      copy_from(part.from(), to.combines.back().from);
    }
    for (const proto::SumRead& part : from.sum_reads())
      to.sum_reads.push_back({part.arg(), part.target()});
  }

  Instruction instruction(const proto::Instruction& from) {
    Instruction to;
    to.kind = static_cast<InstructionKind>(
        enumerator(from.kind(), kNumInstructionKinds, "kind of instruction"));
    to.stream = from.stream();
    to.program = from.program();
    copy_from(from.args(), to.args);
    copy_from(from.waits(), to.waits);
    copy_from(from.peer(), to.peer);
    to.group = from.group();
    to.root = from.root();
    to.reduction = static_cast<Reduction>(enumerator(from.reduction(), 2, "reduction"));
    if (from.has_blocks()) {
      to.dim = from.blocks().dim();
      to.outer = from.blocks().outer();
    }
    if (from.has_to_blocks()) {
      to.to_dim = from.to_blocks().dim();
      to.to_outer = from.to_blocks().outer();
    }
    to.turn = from.turn();
    to.owned = from.owned();
    to.channel = from.channel();
    to.input = from.input();
    to.samples = samples(from.samples());
    to.label = from.label();
    to.pass = static_cast<char>(enumerator(from.pass(), 127, "pass"));
    to.stage = from.stage();
    to.micro = from.micro();
    to.micros = from.micros();
    to.ahead = from.ahead();
    sums(from, to);
    return to;
  }

  DataInput input(const proto::DataInput& from) {
    return {from.name(), type(from.type()), from.batch_dim(),
            from.low(),  from.high(),       from.ignore()};
  }

  std::string wrong_;
};

}  // namespace

Result<std::string_view> unwrap(std::string_view magic, std::string_view file,
                                const std::string& path) {
  // The last character of the magic is the envelope's own version.
  const std::string_view start = file.substr(0, 7);
  if (start != magic.substr(0, start.size()))
    return bad_at(path, "this is not a plan file of this kind");
  if (file.size() < kEnvelope)
    return bad_at(path, "the file is truncated: {} bytes are left", file.size());
  const uint64_t version = integer_at(file, 8, 4), size = integer_at(file, 12, 8);
  if (file[7] != magic[7] || version != kPlanFormatVersion)
    return bad_at(path, "the plan has format version {}, this program reads version {}", version,
                  kPlanFormatVersion);
  const std::string_view payload = file.substr(kEnvelope);
  if (payload.size() < size)
    return bad_at(path, "the file is truncated: {} of {} bytes are left", payload.size(), size);
  if (payload.size() != size || digest(payload) != file.substr(20, 32))
    return bad_at(path, "the file was modified: its content does not match its digest");
  return payload;
}

Result<RoleProgram> decode_role(std::string_view payload, const std::string& path) {
  google::protobuf::Arena arena;
  auto& message = *google::protobuf::Arena::CreateMessage<proto::RoleProgram>(&arena);
  if (payload.size() > (size_t{1} << 28) ||
      !message.ParseFromArray(payload.data(), static_cast<int>(payload.size())))
    return bad_at(path, "the role program cannot be decoded");
  Decoder decoder;
  RoleProgram role = decoder.role(message);
  if (!decoder.wrong().empty()) return bad_at(path, "{}", decoder.wrong());
  if (auto checked = check_role(role); !checked) {
    checked.error().at = SourceSpan{path};
    return std::move(checked).error();
  }
  return role;
}

Result<RankHeader> decode_header(std::string_view payload, const std::string& path) {
  proto::RankHeader message;
  if (payload.size() > (size_t{1} << 16) ||
      !message.ParseFromArray(payload.data(), static_cast<int>(payload.size())))
    return bad_at(path, "the rank's header cannot be decoded");
  RankHeader header{message.rank(), {}, message.role(), message.set_id()};
  copy_from(message.coordinates(), header.coordinates);
  return header;
}

}  // namespace piper
