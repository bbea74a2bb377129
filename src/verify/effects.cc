// What microbatches add to the sums of a step, as symbols, followed through programs, messages and
// copies in the order of the section: microbatches may cut their work differently between forward
// and backward, as where some keep what others make again.
#include <map>

#include "model.h"

namespace piper {
namespace {

class Effects {
 public:
  Effects(const Model& model, const Section& section) : model_(model), section_(section) {
    for (const Cell& cell : model.cells) {
      auto& held = held_.emplace_back();
      for (const Buffer& buffer : cell.role->buffers) {
        const Tensor& tensor = cell.role->tensor(buffer);
        held.push_back({tensor.kind == BufferKind::kStep ? 0 : symbol_of(tensor.name), -1});
      }
    }
  }

  bool agree() {
    for (Spot place : section_.order) run(place);
    std::map<int32_t, const Added*> first;  // by training step
    for (const auto& [step_and_micro, added] : added_) {
      const auto [known, is_new] = first.try_emplace(step_and_micro.first, &added);
      if (!is_new && *known->second != added) return false;
    }
    return true;
  }

 private:
  // What a buffer holds, and the microbatch whose it is; -1: of none.
  struct Held {
    uint64_t symbol = 0;
    int32_t micro = -1;
  };
  using Added = std::map<std::pair<int32_t, int32_t>, uint64_t>;  // by sum and use

  const RoleFacts& facts(int32_t cell) const { return *model_.cells[cell].facts; }

  void run(Spot place) {
    const auto c = static_cast<size_t>(place.cell);
    const auto i = static_cast<size_t>(place.index);
    if (const auto& joint = section_.joint[c]; !joint.empty() && joint[i] >= 0) {
      for (Spot member : section_.joints[static_cast<size_t>(joint[i])]) run_one(member);
      return;
    }
    run_one(place);
  }
  void run_one(Spot place) {
    const Step& step = section_.step(place);
    const auto args = section_.args_of(place.cell, step);
    switch (step.kind) {
      case InstructionKind::kCompute:
        return compute(place, step, args);
      case InstructionKind::kInput:
        return set(place.cell, args[0], {input_symbol(place), step.micro});
      case InstructionKind::kSend: {
        const Spot to =
            section_.partner[static_cast<size_t>(place.cell)][static_cast<size_t>(place.index)];
        for (int32_t arg : args)
          if (to.valid()) sent_[{to.cell, to.index}].push_back(get(place.cell, arg, -1));
        return;
      }
      case InstructionKind::kRecv: {
        const std::vector<Held>& message = sent_[{place.cell, place.index}];
        for (size_t a = 0; a < std::min(args.size(), message.size()); ++a)
          set(place.cell, args[a], message[a]);
        return;
      }
      case InstructionKind::kCopy:
        return set(place.cell, args[1], get(place.cell, args[0], -1));
      default:
        return collective(place, step, args);
    }
  }
  // What is read; of another microbatch than the reader's it is something else.
  Held get(int32_t cell, int32_t buffer, int32_t micro) const {
    const BufferFacts& one = facts(cell).buffers[static_cast<size_t>(buffer)];
    if (one.kind == BufferKind::kStep && one.param >= 0)  // gathered
      return {symbol_of(model_.params[one.param]), -1};
    Held held = held_[static_cast<size_t>(cell)][static_cast<size_t>(buffer)];
    if (micro >= 0 && held.micro >= 0 && held.micro != micro)
      held.symbol = join_symbols(held.symbol, static_cast<uint64_t>(held.micro) + 1);
    return held;
  }
  void set(int32_t cell, int32_t buffer, Held held) {
    held_[static_cast<size_t>(cell)][static_cast<size_t>(buffer)] = held;
  }
  uint64_t input_symbol(Spot place) const {
    const std::string& label = section_.at(place).label;
    return symbol_of(std::string_view(label).substr(0, label.rfind(" mb=")));
  }

  void compute(Spot place, const Step& step, std::span<const int32_t> args) {
    const Instruction& one = section_.at(place);
    const Program& program = model_.cells[place.cell].role->programs[one.program];
    const Access access = access_of(facts(place.cell), step);
    std::vector<uint64_t> before(args.size());
    for (size_t a = 0; a < args.size(); ++a) {
      const bool reads = access[a] & kReads;
      before[a] = reads ? get(place.cell, args[a], step.micro).symbol : initial_symbol(a);
    }
    std::vector<bool> sums(args.size());
    for (const Contribution& part : one.contributions) {
      sums[part.arg] = true;
      if (part.accumulates) before[part.arg] = initial_symbol(part.arg);
    }
    const std::vector<uint64_t>& after = meaning(program, before);
    for (size_t a = 0; a < args.size(); ++a)
      if (!sums[a] && (access[a] & kWrites)) set(place.cell, args[a], {after[a], step.micro});
    for (const Contribution& part : one.contributions) {
      const int32_t target = facts(place.cell).targets[part.target];
      const uint64_t more =
          after[part.arg] - (part.accumulates ? initial_symbol(part.arg) : uint64_t{0});
      const uint64_t so_far =
          part.accumulates ? get(place.cell, args[part.arg], -1).symbol : uint64_t{0};
      set(place.cell, args[part.arg], {so_far + more, -1});
      if (step.micro >= 0)
        added_[{section_.training_step(place), step.micro}][{target, part.use}] += more;
    }
  }
  const std::vector<uint64_t>& meaning(const Program& program, const std::vector<uint64_t>& args) {
    std::vector<uint64_t>& known = meanings_[{&program, args}];
    if (known.empty()) known = meaning_of(program, args);
    return known;
  }

  // What is read and written one by one has the same place among both.
  void collective(Spot place, const Step& step, std::span<const int32_t> args) {
    std::vector<Held> reads;
    std::vector<int32_t> writes;
    const Access accesses = access_of(facts(place.cell), step);
    for (int32_t arg = 0; arg < static_cast<int32_t>(args.size()); ++arg) {
      const auto a = static_cast<size_t>(arg);
      const uint8_t access = accesses[a];
      if (access & kReads) reads.push_back(get(place.cell, args[a], step.micro));
      if (access & kWrites) writes.push_back(args[a]);
    }
    for (size_t w = 0; w < writes.size(); ++w) {
      Held made{static_cast<uint64_t>(step.kind), step.micro};
      for (size_t r = 0; r < reads.size(); ++r)
        if (r == w || reads.size() != writes.size())
          made.symbol = join_symbols(made.symbol, reads[r].symbol);
      set(place.cell, writes[w], made);
    }
  }

  const Model& model_;
  const Section& section_;
  std::vector<std::vector<Held>> held_;                            // by cell and buffer
  std::map<std::pair<int32_t, int32_t>, std::vector<Held>> sent_;  // by receive
  std::map<std::pair<const Program*, std::vector<uint64_t>>, std::vector<uint64_t>> meanings_;
  std::map<std::pair<int32_t, int32_t>, Added> added_;  // by training step and microbatch
};

}  // namespace

bool microbatches_add_the_same(const Model& model, const Section& section) {
  return Effects(model, section).agree();
}

}  // namespace piper
