// The fields of a Dag's structures, for its text form. Private to the dag room.
#pragma once

#include "piper/base/text_form.h"
#include "piper/planner/dag.h"

namespace piper {

constexpr const auto& names_of(Gather) { return kGatherNames; }

PIPER_FIELDS(DagAxis) {
  v("name", &DagAxis::name, kWord);
  v("size", &DagAxis::size);
  v("placed", &DagAxis::placed);
  v("replicated", &DagAxis::replicated);
  v("sharded", &DagAxis::sharded);
  v("twins", &DagAxis::twins);
}

PIPER_FIELDS(TaskStream) {
  v("name", &TaskStream::name, kWord);
  v("priority", &TaskStream::priority);
  v("sms", &TaskStream::sms);
  v("credit", &TaskStream::credit);
  v("flops_of_byte", &TaskStream::flops_of_byte);
  v("flops_of_message", &TaskStream::flops_of_message);
}

PIPER_FIELDS(SumRound) {
  v("size", &SumRound::size);
  v("stride", &SumRound::stride);
  v("twins", &SumRound::twins);
  v("axes", &SumRound::axes);
  v("stream", &SumRound::stream);
  v("dtype", &SumRound::dtype);
  v("scaled", &SumRound::scaled);
  v("block", &SumRound::block);
  v("fast", &SumRound::fast);
  v("bucket", &SumRound::bucket);
  v("slice", &SumRound::slice);
  v("line", &SumRound::line, kElsewhere);
  v("cuts", &SumRound::cuts);
}

PIPER_FIELDS(Variants) {
  v("of_micro", &Variants::of_micro);
  v("copies", &Variants::copies);
  v("made", &Variants::made);
}

PIPER_FIELDS(Part) {
  v("value", &Part::value);
  v("param", &Part::param);
  v("whole", &Part::whole);
  v("over", &Part::over);
  v("gather", &Part::gather);
  v("stream", &Part::stream);
  v("distance", &Part::distance);
  v("scaled", &Part::scaled);
  v("block", &Part::block);
  v("bucket", &Part::bucket);
  v("spreads", &Part::spreads);
  v("within", &Part::within);
  v("above", &Part::above);
}

PIPER_FIELDS(Copy) {
  v("master", &Copy::master);
  v("copy", &Copy::copy);
}

PIPER_FIELDS(Version) {
  v("newest", &Version::newest);
  v("previous", &Version::previous);
}

PIPER_FIELDS(PartsInBlocks) {
  v("scaled", &PartsInBlocks::scaled, kWord);
  v("block", &PartsInBlocks::block);
  v("piece", &PartsInBlocks::piece);
  v("outer", &PartsInBlocks::outer);
  v("run", &PartsInBlocks::run);
}

PIPER_FIELDS(TrainedPart) {
  v("value", &TrainedPart::value);
  v("dim", &TrainedPart::dim);
  v("index", &TrainedPart::index);
  v("count", &TrainedPart::count);
}

PIPER_FIELDS(Sum) {
  v("name", &Sum::name, kWord);
  v("value", &Sum::value);
  v("uses", &Sum::uses);
  v("into", &Sum::into);
  v("rounds", &Sum::rounds);
  v("twin", &Sum::twin);
  v("part", &Sum::part);
  v("larger", &Sum::larger);
  v("each_micro", &Sum::each_micro);
  v("in_blocks", &Sum::in_blocks);
}

PIPER_FIELDS(Chunk) {
  v("name", &Chunk::name, kWord);
  v("pass", &Chunk::pass);
  v("cell", &Chunk::cell);
  v("tags", &Chunk::tags);
  v("groups", &Chunk::groups);
  v("variants", &Chunk::variants);
  v("level", &Chunk::level);
  v("nodes", &Chunk::nodes);
  v("reads", &Chunk::reads);
  v("writes", &Chunk::writes);
}

PIPER_FIELDS(Item) {
  v("value", &Item::value);
  v("micro", &Item::micro);
  v("cell", &Item::cell);
  v("alias", &Item::alias);
  v("sum", &Item::sum);
}

PIPER_FIELDS(Accumulate) {
  v("into", &Accumulate::into);
  v("contribution", &Accumulate::contribution);
  v("sum", &Accumulate::sum);
  v("use", &Accumulate::use);
  v("reduced", &Accumulate::reduced);
}

PIPER_FIELDS(Combine) {
  v("into", &Combine::into);
  v("from", &Combine::from);
  v("sum", &Combine::sum);
}

PIPER_FIELDS(Task) {
  v("kind", &Task::kind, kWord);
  v("label", &Task::label, kElsewhere);
  v("cell", &Task::cell);
  v("pass", &Task::pass);
  v("chunk", &Task::chunk);
  v("micro", &Task::micro);
  v("micros", &Task::micros);
  v("peer", &Task::peer);
  v("stream", &Task::stream);
  v("distance", &Task::distance);
  v("group", &Task::group);
  v("fast", &Task::fast);
  v("scaled", &Task::scaled);
  v("block", &Task::block);
  v("slice", &Task::slice);
  v("region", &Task::region);
  v("reads", &Task::reads);
  v("writes", &Task::writes);
  v("within", &Task::within);
  v("nodes", &Task::nodes);
  v("accumulates", &Task::accumulates, kElsewhere);
  v("combines", &Task::combines, kElsewhere);
}

PIPER_FIELDS(Offload) {
  v("optimizer", &Offload::optimizer);
  v("parameters", &Offload::parameters);
  v("distance", &Offload::distance);
  v("in_flight", &Offload::in_flight);
  v("out", &Offload::out_stream);
  v("in", &Offload::in_stream);
  v("items", &Offload::items);
  v("names", &Offload::names);
}

PIPER_FIELDS(Dag) {
  v("replicas_in_turn", &Dag::replicas_in_turn);
  v("twins", &Dag::twins);
  v("twin_stride", &Dag::twin_stride);
  v("microbatches", &Dag::microbatches);
  v("split_backward", &Dag::split_backward);
  v("split_recompute", &Dag::split_recompute);
  v("split_update", &Dag::split_update);
  v("split_sums", &Dag::split_sums);
  v("groups", &Dag::group_of);
  v("tags", &Dag::region_tags);
  v("tokens", &Dag::tokens);
  v("cells", &Dag::cells);
  v("graph", &Dag::graph, kElsewhere);
  v("mesh", &Dag::mesh, kElsewhere);
  v("streams", &Dag::streams, kElsewhere);
  v("variants", &Dag::variants, kElsewhere);
  v("rounds", &Dag::rounds, kElsewhere);
  v("in_blocks", &Dag::in_blocks, kElsewhere);
  v("parts", &Dag::parts, kElsewhere);
  v("exchanges", &Dag::exchanges, kElsewhere);
  v("copies", &Dag::copies, kElsewhere);
  v("versions", &Dag::versions, kElsewhere);
  v("trained", &Dag::trained, kElsewhere);
  v("offloads", &Dag::offloads, kElsewhere);
  v("sliced", &Dag::sliced, kElsewhere);
  v("chunks", &Dag::chunks, kElsewhere);
  v("items", &Dag::items, kElsewhere);
  v("tasks", &Dag::tasks, kElsewhere);
  v("labels", &Dag::labels, kElsewhere);
  v("sums", &Dag::sums, kElsewhere);
  v("reports", &Dag::reports, kElsewhere);
}

// Visits the tables of which each element is a line, in an order in which lines only name what is
// above them.
template <class SomeDag, class Visit>
void each_table(SomeDag& dag, Visit&& visit) {
  visit("axis", dag.mesh);
  visit("stream", dag.streams);
  visit("round", dag.rounds);
  visit("part", dag.parts);
  visit("exchange", dag.exchanges);
  visit("copy", dag.copies);
  visit("version", dag.versions);
  visit("in_blocks", dag.in_blocks);
  visit("trained", dag.trained);
  visit("sum", dag.sums);
  visit("chunk", dag.chunks);
  visit("item", dag.items);
  visit("task", dag.tasks);
  visit("offload", dag.offloads);
}

}  // namespace piper
