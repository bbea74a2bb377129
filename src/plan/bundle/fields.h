// The fields of all that a plan is made of: the one list that bytes (formats/plan.proto), text and
// checks are made by. Private to the bundle room.
//
// A field's place in its list is that in its message of the schema. A list that leaves out a member
// does not compile (lists_all_members).
#pragma once

#include <array>

#include "piper/base/text_form.h"
#include "piper/plan/bundle.h"

namespace piper {

// Says what an id is a position in; kArgs: of its instruction.
enum class Table : uint8_t {
  kNone,
  kAxes,
  kStreams,
  kGroups,
  kCommunicators,
  kTensors,
  kBuffers,
  kPrograms,
  kSums,
  kArgs,
};

struct How {
  Look look;
  Table table = Table::kNone;  // integers: each is an id, or -1 where that is its default
  // Integers that may be -1, or anything; else the least is 0, or the default if that is less.
  bool or_less = false, any = false;
  constexpr How as(const char* key) const { return with(Look{key}); }
  constexpr How with(Look other) const {
    How how = *this;
    how.look = other;
    return how;
  }
};
inline constexpr How kPlain{}, kOrLess{.or_less = true}, kAny{.or_less = true, .any = true};
inline constexpr How kName{kWord}, kOwnLines{kElsewhere};
constexpr How id_of(Table table) { return {.table = table}; }
constexpr How id_or_less(Table table) { return {.table = table, .or_less = true}; }

// Lists members that are a message of their own in the bytes, which is left out with their
// defaults.
template <class X>
struct BlocksOf {
  static constexpr size_t kMembers = 3;
  int32_t X::*dim;
  int64_t X::*outer;
  bool X::*mirrored;
  const char *dim_key = "dim", *outer_key = "outer", *mirrored_key = "mirrored";
  template <class V>
  constexpr void each_member(V&& v) const {
    v(dim_key, dim);
    v(outer_key, outer);
    v(mirrored_key, mirrored);
  }
};

using Axis = std::pair<std::string, int64_t>;
using Literal = std::pair<int32_t, std::string>;
using Products = std::pair<DType, int64_t>;

// ---- Names of enumerations ----------------------------------------------------------------------

template <size_t count>
using EnumNames = std::array<const char*, count>;
inline constexpr EnumNames<3> kBufferKinds = {"state", "constant", "step"};
inline constexpr EnumNames<2> kReductions = {"sum", "max"};
constexpr const auto& names_of(BufferKind) { return kBufferKinds; }
constexpr const auto& names_of(Reduction) { return kReductions; }

// ---- Lists --------------------------------------------------------------------------------------

PIPER_FIELDS(TensorType) {
  v("dtype", &TensorType::dtype);
  v("shape", &TensorType::shape);
}

PIPER_FIELDS(ProgramOp) {
  v("op", &ProgramOp::op, kPlain.with(kBare));
  v("attrs", &ProgramOp::attrs, kOwnLines);
  v("inputs", &ProgramOp::inputs, kOrLess.as("in"));
  v("outputs", &ProgramOp::outputs, kPlain.as("out"));
}

PIPER_FIELDS(Literal) {
  v("value", &Literal::first);
  v("data", &Literal::second);
}

PIPER_FIELDS(Products) {
  v("dtype", &Products::first);
  v("count", &Products::second);
}

PIPER_FIELDS(Work) {
  v("ops", &Work::ops);
  v("recomputed", &Work::recomputed);
  v("products", &Work::products, kOwnLines);
}

PIPER_FIELDS(Program) {
  v("label", &Program::label);
  v("values", &Program::values, kOwnLines);
  v("num_args", &Program::num_args, kPlain.as("args"));
  v("literals", &Program::literals, kOwnLines);
  v("ops", &Program::ops, kOwnLines);
  v("arg_written", &Program::arg_written, kOwnLines);
  v("arg_read", &Program::arg_read, kOwnLines);
  v("work", &Program::work, kOwnLines);
}

PIPER_FIELDS(TensorCut) {
  v("axis", &TensorCut::axis, id_or_less(Table::kAxes));
  v("dim", &TensorCut::dim);
  v("outer", &TensorCut::outer);
  v("block", &TensorCut::block);
}

PIPER_FIELDS(Tensor) {
  v("name", &Tensor::name, kOwnLines);
  v("type", &Tensor::type, kName);
  v("kind", &Tensor::kind, kName);
  v("host", &Tensor::host);
  v("init", &Tensor::init);
  v("fill", &Tensor::fill);
  v("param", &Tensor::param);
  v("aliases", &Tensor::aliases);
  v("part_of", &Tensor::part_of, id_or_less(Table::kGroups));
  v("whole", &Tensor::whole);
  v("previous_of", &Tensor::previous_of, id_or_less(Table::kBuffers));
  v("cuts", &Tensor::cuts);
  v("copy_of", &Tensor::copy_of, id_or_less(Table::kBuffers));
}

PIPER_FIELDS(Buffer) {
  v("tensor", &Buffer::tensor, id_of(Table::kTensors).with(kElsewhere));
  v("micro", &Buffer::micro, kOrLess.with(kElsewhere));
  v("offset", &Buffer::offset, kPlain.as("at"));
}

PIPER_FIELDS(SampleRange) {
  v("first", &SampleRange::first);
  v("count", &SampleRange::count);
  v("stride", &SampleRange::stride);
}

PIPER_FIELDS(Contribution) {
  v("arg", &Contribution::arg, id_of(Table::kArgs));
  v("target", &Contribution::target, id_of(Table::kSums));
  v("use", &Contribution::use);
  v("accumulates", &Contribution::accumulates);
}

PIPER_FIELDS(SumCombine) {
  v("arg", &SumCombine::arg, id_of(Table::kArgs));
  v("from", &SumCombine::from, id_of(Table::kArgs));
}

PIPER_FIELDS(SumRead) {
  v("arg", &SumRead::arg, id_of(Table::kArgs));
  v("target", &SumRead::target, id_of(Table::kSums));
}

PIPER_FIELDS(Instruction) {
  using I = Instruction;
  v("kind", &I::kind, kName);
  v("stream", &I::stream, id_of(Table::kStreams));
  v("program", &I::program, id_or_less(Table::kPrograms));
  v("args", &I::args, id_of(Table::kBuffers));
  v("waits", &I::waits);
  v("peer", &I::peer, kOrLess);
  v("group", &I::group, id_or_less(Table::kGroups));
  v("fast", &I::fast);
  v("communicator", &I::communicator, id_or_less(Table::kCommunicators));
  v("input", &I::input);
  v("samples", &I::samples, kOwnLines);
  v("label", &I::label, kPlain.with(kFirst));
  v("pass", &I::pass);
  v("stage", &I::stage, kOrLess);
  v("micro", &I::micro, kOrLess);
  v("micros", &I::micros);
  v("ahead", &I::ahead);
  v("contributions", &I::contributions, kOwnLines);
  v("combines", &I::combines, kOwnLines);
  v("sum_reads", &I::sum_reads, kOwnLines);
  v("blocks", BlocksOf<I>{&I::dim, &I::outer, &I::mirrored});
  v("reduction", &I::reduction);
  v("to_blocks",
    BlocksOf<I>{&I::to_dim, &I::to_outer, &I::to_mirrored, "to_dim", "to_outer", "to_mirrored"});
  v("turn", &I::turn);
  v("owned", &I::owned);
  v("scaled", &I::scaled);
  v("block", &I::block);
  v("slice_first", &I::first);
  v("slice_count", &I::count);
}

PIPER_FIELDS(Stream) {
  v("name", &Stream::name, kName);
  v("priority", &Stream::priority, kAny);
  v("sms", &Stream::sms);
}

PIPER_FIELDS(Axis) {
  v("name", &Axis::first, kName);
  v("size", &Axis::second, kName);
}

PIPER_FIELDS(Group) {
  v("name", &Group::name, kName);
  v("axes", &Group::axes, id_of(Table::kAxes));
}

PIPER_FIELDS(Communicator) {
  v("axes", &Communicator::axes, id_of(Table::kAxes));
  v("from", &Communicator::from, kOrLess);
  v("to", &Communicator::to, kOrLess);
  v("streams", &Communicator::streams, id_of(Table::kStreams));
  v("sms", &Communicator::sms);
}

PIPER_FIELDS(Report) {
  v("name", &Report::name, kName);
  v("buffer", &Report::buffer, id_of(Table::kBuffers));
}

PIPER_FIELDS(DataInput) {
  v("name", &DataInput::name, kName);
  v("type", &DataInput::type, kName);
  v("batch_dim", &DataInput::batch_dim, kOrLess);
  v("low", &DataInput::low, kAny);
  v("high", &DataInput::high, kAny);
  v("ignore", &DataInput::ignore, kAny);
  v("data", &DataInput::data);
  v("share", &DataInput::share);
  v("shares", &DataInput::shares);
  v("ranges", &DataInput::ranges, kAny);
}

PIPER_FIELDS(SumTarget) {
  v("name", &SumTarget::name, kName);
  v("uses", &SumTarget::uses);
}

PIPER_FIELDS(OuterUpdate) {
  v("every", &OuterUpdate::every);
  v("offset", &OuterUpdate::offset);
  v("instructions", &OuterUpdate::instructions, kOwnLines);
}

PIPER_FIELDS(RoleProgram) {
  using R = RoleProgram;
  v("mesh", &R::mesh, kOwnLines);
  v("streams", &R::streams, kOwnLines);
  v("groups", &R::groups, kOwnLines);
  v("communicators", &R::communicators, kOwnLines);
  v("tensors", &R::tensors, kOwnLines);
  v("buffers", &R::buffers, kOwnLines);
  v("programs", &R::programs, kOwnLines);
  v("inputs", &R::inputs, kOwnLines);
  v("sum_targets", &R::sum_targets, kOwnLines);
  v("prologue", &R::prologue, kOwnLines);
  v("body", &R::body, kOwnLines);
  v("epilogue", &R::epilogue, kOwnLines);
  v("evaluation", &R::evaluation, kOwnLines);
  v("outer_updates", &R::outer_updates, kOwnLines);
  v("reports", &R::reports, kOwnLines);
  v("evaluation_reports", &R::evaluation_reports, kOwnLines);
  v("steps_ahead", &R::steps_ahead);
  v("batch", &R::batch);
  v("arena_bytes", &R::arena_bytes, kPlain.as("arena"));
  v("host_bytes", &R::host_bytes, kPlain.as("host"));
  v("staging_bytes", &R::staging_bytes, kPlain.as("staging"));
  v("target", &R::target);
  v("table", &R::table);
  v("workspace_bytes", &R::workspace_bytes, kPlain.as("workspace"));
  v("packed_bytes", &R::packed_bytes, kPlain.as("packed"));
  v("transport_bytes", &R::transport_bytes, kPlain.as("transport"));
  v("scratch_bytes", &R::scratch_bytes, kPlain.as("scratch"));
}

PIPER_FIELDS(RankHeader) {
  v("rank", &RankHeader::rank);
  v("coordinates", &RankHeader::coordinates);
  v("role", &RankHeader::role);
  v("set_id", &RankHeader::set_id);
}

// Holds for structures with a list, which are messages of their own in the bytes.
template <class T>
concept Listed = requires {
  each_field(Of<T>(), [](auto&&...) {});
};

}  // namespace piper
