// Rule order, for what outlives a step: the instruction that computes a state's next value comes
// after all others that compute with the old one.
#include "model.h"

namespace piper {

void check_state(const Model& model, const Section& section, const Clocks& clocks,
                 Findings& findings) {
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const RoleFacts& facts = *model.cells[c].facts;
    const auto& steps = section.steps[c];
    // By buffer: the first that computes the next value.
    std::vector<int32_t> writer(facts.buffers.size(), -1);
    const auto each_use = [&](auto use) {
      for (int32_t i = 0; i < static_cast<int32_t>(steps.size()); ++i) {
        const Step& step = steps[i];
        if (step.kind != InstructionKind::kCompute && step.kind != InstructionKind::kCopy) continue;
        const std::span<const int32_t> args = section.args_of(c, step);
        const Access access = access_of(facts, step);
        for (size_t a = 0; a < args.size(); ++a)
          if (facts.buffers[args[a]].kind == BufferKind::kState)
            use(args[a], (access[a] & kWrites) != 0, i);
      }
    };
    each_use([&](int32_t buffer, bool writes, int32_t i) {
      if (writes && writer[buffer] < 0) writer[buffer] = i;
    });
    std::vector<bool> said(facts.buffers.size());
    each_use([&](int32_t buffer, bool writes, int32_t i) {
      if (writes || writer[buffer] < 0 || said[buffer]) return;
      const Spot reader{c, i}, first{c, writer[buffer]};
      if (clocks.before(section, reader, first)) return;
      said[buffer] = true;
      findings.add("order", "{} reads '{}', which {} may have updated by then",
                   name_of(model, section, reader),
                   quote_control(model.cells[c].role->name(buffer)), name_of(section.at(first)));
    });
  }
}

}  // namespace piper
