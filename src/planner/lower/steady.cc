// Makes a body that ends one step and goes on with later ones, for strategies whose steps overlap.
#include "steady.h"

#include "at.h"
#include "credit.h"
#include "delayed_readers.h"

namespace piper {
namespace {

// The second of a pair has a stream of its own.
void take_second_stream(std::vector<Instruction>& step, const StepOrder& order, int32_t stream) {
  for (const Overlap& pair : order.overlaps)
    for (int32_t t = pair.second; t < pair.end; ++t) {
      const auto task = at(order.body[at(t)]);
      for (int32_t i = order.starts[task]; i < order.starts[task + 1]; ++i)
        if (step[at(i)].kind == InstructionKind::kCompute && step[at(i)].stream == 0)
          step[at(i)].stream = stream;
    }
}

// Returns the pairs, given by task of the body, by instruction.
std::vector<Overlap> pairs_of(const StepOrder& order) {
  std::vector<int32_t> begins;  // by task of the body, and the end
  int32_t instructions = 0;
  for (int32_t task : order.body) {
    begins.push_back(instructions);
    instructions += order.starts[at(task) + 1] - order.starts[at(task)];
  }
  begins.push_back(instructions);
  std::vector<Overlap> pairs;
  for (const Overlap& pair : order.overlaps)
    pairs.push_back({begins[at(pair.first)], begins[at(pair.second)], begins[at(pair.end)]});
  return pairs;
}

// Instructions have been inserted, others moved.
void follow(Steady& steady, const RoleProgram& role, const std::vector<int32_t>& moved) {
  std::vector<int32_t> numbers(role.body.size(), -1);
  for (size_t i = 0; i < moved.size(); ++i) numbers[at(moved[i])] = steady.numbers[i];
  auto next = static_cast<int32_t>(moved.size());
  for (int32_t& number : numbers)
    if (number < 0) number = next++;
  steady.numbers = std::move(numbers);
  for (Overlap& pair : steady.pairs)
    pair = {moved[at(pair.first)], moved[at(pair.second)], moved[at(pair.end - 1)] + 1};
}

}  // namespace

Steady make_steady(RoleProgram& role, const StepOrder& order, const Dag& dag) {
  Steady steady;
  std::vector<Instruction> step = std::move(role.body);
  role.body.clear();
  role.body.reserve(step.size());
  if (!order.overlaps.empty()) {
    take_second_stream(step, order, static_cast<int32_t>(role.streams.size()));
    role.streams.push_back({"overlap"});
  }
  steady.pairs = pairs_of(order);
  std::vector<bool> stays;
  for (int32_t task : order.body)
    for (int32_t i = order.starts[at(task)]; i < order.starts[at(task) + 1]; ++i) {
      Instruction& one = role.body.emplace_back(std::move(step[at(i)]));
      one.waits.clear();
      one.ahead = order.ahead[at(task)];
      steady.numbers.push_back(i);
      stays.push_back(order.stays[at(task)]);
    }
  follow(steady, role, raise_reductions(role, dag, steady.pairs, stays));
  follow(steady, role, order_messages(role, dag, steady.pairs, steady.credits));
  follow(steady, role, delay_readers(role, dag, steady.pairs));
  if (!order.gathered.empty())
    follow(steady, role, insert_gathers(role, order.gathered, dag, steady.pool));
  if (!dag.offloads.empty())
    follow(steady, role, insert_copies(role, dag, order.offloaded, steady.pairs, steady.offloads));
  return steady;
}

}  // namespace piper
