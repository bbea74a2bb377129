// Reads batches ahead of the step that needs them.
#include "reader.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace piper {
namespace {

using State = Executor::State;

bool reads_data(const Op& op) { return op.kind == InstructionKind::kInput && op.handle >= 0; }

bool reads_data(const BoundSection& section) {
  return std::any_of(section.staged.begin(), section.staged.end(), [&](const Staged& one) {
    return reads_data(section.ops[static_cast<size_t>(one.op)]);
  });
}

// Writes the numbers that are always the same.
void write_numbers(const Op& op, std::byte* at) {
  auto* numbers = reinterpret_cast<int64_t*>(at);
  if (op.kind == InstructionKind::kPosition)
    std::memcpy(at, op.b, static_cast<size_t>(op.size));
  else
    std::iota(numbers, numbers + op.count, op.size);
}

Status stage(State& state, BoundSection& section, size_t index) {
  Op& op = section.ops[index];
  Staged& made = section.staged.emplace_back();
  made.op = static_cast<int32_t>(index);
  made.bytes = state.type((*section.instructions)[index].args[0]).bytes();
  for (std::byte*& at : made.at) {
    if (!reads_data(op) && made.at[0] != nullptr) {
      at = made.at[0];
      continue;
    }
    PIPER_ASSIGN(at, allocate_stage(state, made.bytes));
    if (reads_data(op)) continue;
    state.backend.host_uses(at, made.bytes, true);
    write_numbers(op, at);
  }
  op.staged = &made;
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<Reader>> Reader::start(State& state, bool has_thread) {
  std::unique_ptr<Reader> made(new Reader(state));
  if (!has_thread) return made;
  PIPER_ASSIGN(made->worker_,
               Worker::start([reader = made.get()] { reader->read(); }, state.source.helper_core));
  return made;
}

void Reader::begin(const BoundSection& section, int64_t step, size_t parity) {
  if (worker_) worker_->finish();
  order_ = {&section, step, parity, state_.data_of(section)};
  for (const Staged& one : section.staged)
    if (reads_data(section.ops[static_cast<size_t>(one.op)]))
      state_.backend.host_uses(one.at[parity], one.bytes, true);
  if (worker_)
    worker_->begin();
  else
    read();
}

Status Reader::take(const BoundSection& section, int64_t step, size_t parity) {
  if (order_ != Order{&section, step, parity, state_.data_of(section)})
    begin(section, step, parity);
  if (worker_) worker_->finish();
  return status_;
}

void Reader::forget() {
  if (worker_) worker_->finish();
  order_ = {};
}

void Reader::read() {
  status_ = ok_status();
  for (const Staged& one : order_.section->staged) {
    const Op& op = order_.section->ops[static_cast<size_t>(one.op)];
    if (!reads_data(op) || !status_) continue;
    // Steps of training data may have been left out.
    const int64_t later = order_.data == state_.source.data ? state_.left_out : 0;
    Status read = order_.data->read(order_.step + later + op.ahead, op.handle, op.size, op.count,
                                    one.at[order_.parity]);
    if (!read) status_ = located(op, order_.step, std::move(read).error());
  }
}

Status stage_inputs(State& state) {
  const bool has_thread = state.helper || state.backend.is_asynchronous();
  bool needs_reader = false;
  for (BoundSection* section : state.all_sections()) {
    for (size_t i = 0; i < section->ops.size(); ++i) {
      const Op& op = section->ops[i];
      const bool is_brought =
          op.kind == InstructionKind::kInput || op.kind == InstructionKind::kPosition;
      if (is_brought && (state.backend.is_asynchronous() || reads_data(op)))
        PIPER_TRY(stage(state, *section, i));
    }
    needs_reader = needs_reader || reads_data(*section);
  }
  if (needs_reader) {
    PIPER_ASSIGN(state.reader, Reader::start(state, has_thread));
  }
  return ok_status();
}

Status take_inputs(State& state, const BoundSection& section, int64_t step) {
  if (!reads_data(section)) return ok_status();
  return state.reader->take(section, step, static_cast<size_t>(state.sections % 2));
}

void read_ahead(State& state, const BoundSection& section, int64_t step) {
  const bool has_thread = state.helper || state.backend.is_asynchronous();
  const bool goes_on = &section == &state.prologue || &section == &state.body;
  if (!has_thread || !goes_on || !reads_data(state.body)) return;
  const int64_t next = &section == &state.prologue ? step : step + 1;
  state.reader->begin(state.body, next, static_cast<size_t>((state.sections + 1) % 2));
}

}  // namespace piper
