// A program -> the steps of its passes, in order.
#include "piper/devices/program.h"

#include "piper/ir/ops.h"
#include "pitch.h"

namespace piper {
namespace {

using namespace cuda_kernels;  // NOLINT: this room's own

// 16-bit ops stay what they are, but those that go element by element, which become one kernel with
// their neighbours.
bool stays_narrow(std::string_view op) {
  const OpDef* def = find_op(op);
  return !def || !def->pointwise;
}

// Of results that nobody reads, passes over rows store nothing; all else writes them, to places
// after all others. `widened` has the values as wide as they are placed.
void place_unread(const FusedProgram& program, const FusedProgram& widened, LocalPlaces& lie) {
  constexpr int64_t kAlign = 256;
  const std::vector<bool> inside = program.inside();
  for (const ProgramOp& op : program.ops) {
    if (goes_by_rows(program, op)) continue;
    for (const int32_t output : op.outputs) {
      const auto v = static_cast<size_t>(output);
      if (!inside[v] || lie.offsets[v] >= 0) continue;
      lie.offsets[v] = ceil_div(lie.bytes, kAlign) * kAlign;
      lie.bytes = lie.offsets[v] + widened.values[v].bytes();
    }
  }
}

std::vector<DeviceOperand> places_of(DeviceProgram& made, const Pitches& pitches,
                                     const LocalPlaces& lie) {
  const FusedProgram& program = made.fused;
  std::vector<DeviceOperand> places(program.values.size());
  for (size_t v = 0; v < places.size(); ++v) {
    if (static_cast<int32_t>(v) < program.num_args)
      places[v] = {DeviceOperand::kArgument, static_cast<int32_t>(v), 0};
    else if (lie.offsets[v] >= 0)
      places[v] = {DeviceOperand::kWorkspace, 0, lie.offsets[v]};
    if (places[v].kind != DeviceOperand::kAbsent) places[v].pitch = pitches.rows[v];
  }
  constexpr size_t kAlign = 256;
  for (const auto& [value, bytes] : program.literals) {
    places[static_cast<size_t>(value)] = {DeviceOperand::kLiteral, 0,
                                          static_cast<int64_t>(made.literals.size())};
    made.literals += bytes;
    made.literals.resize((made.literals.size() + kAlign - 1) / kAlign * kAlign);
  }
  for (const ProgramView& view : program.views) {
    DeviceOperand& place = places[static_cast<size_t>(view.value)];
    place = places[static_cast<size_t>(view.base)];
    const TensorType& base = program.values[static_cast<size_t>(view.base)];
    place.offset += place.pitch > 0 ? view.offset / base.shape.back() * place.pitch : view.offset;
  }
  return places;
}

// Emits a pass, a run or a single op.
Status make_ops(const FusedProgram& program, size_t first, size_t last, Emitter& emit) {
  const ProgramOp& op = program.ops[first];
  if (const RunMaker make = find_run_maker(op.op)) return make(run_of(program, first, last), emit);
  if (last > first + 1 || goes_by_rows(program, op)) return make_pass(program, first, last, emit);
  const Maker make = find_maker(op.op);
  if (!make) return fail("not supported: the cuda backend has no such op");
  return make(kernel_use(program, op), emit);
}

Status make_steps(const FusedProgram& program, std::span<const DeviceOperand> places,
                  Emitter& emit) {
  const size_t count = program.ops.size();
  for (size_t first = 0, last = 0; first < count; first = last) {
    if (find_run_maker(program.ops[first].op)) last = end_of_run(program, places, first);
    while (last < count && program.pass_of(last) == program.pass_of(first)) ++last;
    std::vector<DeviceOperand> operands;
    for (size_t o = first; o < last; ++o)
      for (const auto* values : {&program.ops[o].inputs, &program.ops[o].outputs})
        for (const int32_t value : *values)
          operands.push_back(value < 0 ? DeviceOperand{} : places[static_cast<size_t>(value)]);
    emit.begin(first, std::move(operands));
    Status made = make_ops(program, first, last, emit);
    if (made) continue;
    Error error = std::move(made).error();
    error.message =
        fmt::format("op {} {}: {}", first, quote_control(program.ops[first].op), error.message);
    return error;
  }
  return ok_status();
}

}  // namespace

FusedProgram joined_for_cuda(const Program& program) {
  FuseCounts counts;
  return join_rows(fuse(with_runs_together(widened(program, stays_narrow)), counts,
                        {.finishes_products = false}),
                   joins_rows);
}

namespace {

std::string source_of(std::string_view family) {
  std::string source;
  for (const DeviceText& text : device_texts())
    if (text.name == "prelude" || text.name == family) source += text.text;
  return source;
}

}  // namespace

std::string strided_source() { return source_of("strided"); }
std::string differences_source() { return source_of("differences"); }

Result<DeviceProgram> device_program(const Program& program) {
  DeviceProgram made;
  made.fused = joined_for_cuda(program);
  const std::vector<bool> args = aligned_args(program);
  const Pitches pitches = find_pitches(made.fused, args);
  for (size_t a = 0; a < args.size(); ++a)
    if (args[a] && pitches.rows[a] == 0)
      return fail(
          "argument {} is listed as '{}', but an op of the program takes no gaps between its rows",
          a, kAlignedArgs);
  const FusedProgram widened = widened_by(pitches, made.fused);
  LocalPlaces lie = place_locals(widened);
  place_unread(made.fused, widened, lie);
  const std::vector<DeviceOperand> places = places_of(made, pitches, lie);
  Emitter emit;
  PIPER_TRY(make_steps(made.fused, places, emit));
  emit.finish(made, lie.bytes);
  return made;
}

}  // namespace piper
