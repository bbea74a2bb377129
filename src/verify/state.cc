// Rule order, for what outlives a step: the instruction that computes a state's next value comes
// after all others that compute with the old one.
#include <map>

#include "model.h"

namespace piper {

void check_state(const Model& model, const Section& section, const Clocks& clocks,
                 Findings& findings) {
  struct Uses {
    std::vector<Spot> readers, writers;
  };
  for (int32_t c = 0; c < static_cast<int32_t>(model.cells.size()); ++c) {
    const RoleProgram& role = *model.cells[c].role;
    std::map<int32_t, Uses> states;  // by buffer
    for (int32_t i = 0; i < static_cast<int32_t>(section.lists[c]->size()); ++i) {
      const Instruction& one = section.at({c, i});
      if (one.kind != InstructionKind::kCompute) continue;
      const Program& program = role.programs[one.program];
      for (size_t a = 0; a < one.args.size(); ++a)
        if (role.buffers[one.args[a]].kind == BufferKind::kState)
          (program.arg_written[a] ? states[one.args[a]].writers : states[one.args[a]].readers)
              .push_back({c, i});
    }
    const auto name = [&](Spot place) { return name_of(model, section, place); };
    for (const auto& [buffer, uses] : states) {
      if (uses.writers.empty()) continue;
      const std::string state = fmt::format("'{}'", quote_control(role.buffers[buffer].name));
      const Spot writer = uses.writers[0];
      for (Spot reader : uses.readers)
        if (!clocks.before(section, reader, writer)) {
          findings.add("order", "{} reads {}, which {} may have updated by then", name(reader),
                       state, name_of(section.at(writer)));
          break;
        }
    }
  }
}

}  // namespace piper
