// Sizes as stated, constants unwritten, programs that keep their own values apart, equal copies of
// parameters.
#include <algorithm>
#include <map>

#include "model.h"

namespace piper {
namespace {

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

void check_arena(const RoleProgram& role, const std::string& who, Findings& findings) {
  int64_t end = 0;
  for (const Buffer& buffer : role.buffers)
    end = std::max(end, buffer.offset + buffer.type.bytes());
  if (role.arena_bytes != end && role.arena_bytes != aligned(end))
    findings.add("memory", "{} states an arena of {} bytes, its buffers end at {}", who,
                 role.arena_bytes, end);
  std::vector<int64_t> workspace(role.streams.size());
  for (const auto* list : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& one : *list)
      if (one.kind == InstructionKind::kCompute)
        workspace[one.stream] =
            std::max(workspace[one.stream], role.programs[one.program].workspace_bytes);
  for (size_t s = 0; s < workspace.size(); ++s)
    if (role.workspace_bytes[s] != workspace[s])
      findings.add("memory",
                   "{} states {} bytes of workspace for stream '{}', its programs need {}", who,
                   role.workspace_bytes[s], quote_control(role.streams[s].name), workspace[s]);
}

bool writes(const RoleFacts& facts, const Instruction& one, size_t arg) {
  return access_of(facts, one.kind, one.program, arg) & kWrites;
}

void check_constants(const RoleProgram& role, const RoleFacts& facts, const std::string& who,
                     Findings& findings) {
  for (const auto* list : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& one : *list)
      for (size_t a = 0; a < one.args.size(); ++a)
        if (facts.buffers[one.args[a]].kind == BufferKind::kConstant && writes(facts, one, a))
          findings.add("structure", "{} on {} writes the constant '{}'", name_of(one), who,
                       quote_control(role.buffers[one.args[a]].name));
}

// Kept values change at most once a step, and nothing is kept for nobody. (Parameters: see rule
// sum.)
void check_states(const RoleProgram& role, const RoleFacts& facts, const std::string& who,
                  Findings& findings) {
  std::vector<const Instruction*> writer(role.buffers.size());
  std::vector<bool> used(role.buffers.size());
  for (const auto* list : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& one : *list)
      for (size_t a = 0; a < one.args.size(); ++a) {
        const int32_t id = one.args[a];
        used[id] = true;
        if (list != &role.body || facts.buffers[id].kind != BufferKind::kState ||
            !writes(facts, one, a))
          continue;
        if (writer[id] && writer[id] != &one && role.buffers[id].param.empty())
          findings.add("structure",
                       "{} on {} writes the state '{}', which {} has already written in this step",
                       name_of(one), who, quote_control(role.buffers[id].name),
                       name_of(*writer[id]));
        writer[id] = &one;
      }
  for (size_t b = 0; b < role.buffers.size(); ++b)
    if (!used[b] && facts.buffers[b].kind == BufferKind::kState)
      findings.add("structure", "the state '{}' on {} is used by nothing",
                   quote_control(role.buffers[b].name), who);
}

// The life of each local value: from the op that makes it to the last that reads it or a view of
// it.
struct Life {
  int64_t first = -1, last = -1;
};
std::vector<Life> lives_of(const Program& program) {
  std::vector<Life> lives(program.values.size());
  const std::vector<int32_t> base = program.bases();
  for (size_t o = 0; o < program.ops.size(); ++o) {
    for (int32_t output : program.ops[o].outputs)
      if (lives[base[output]].first < 0)
        lives[base[output]].first = lives[base[output]].last = static_cast<int64_t>(o);
    for (int32_t input : program.ops[o].inputs)
      if (input >= 0) lives[base[input]].last = static_cast<int64_t>(o);
  }
  return lives;
}

// Two locals that share bytes are not alive at once; one may take the place of another in the op
// that reads it last.
void check_locals(const Program& program, const std::string& who, Findings& findings) {
  const std::vector<Life> lives = lives_of(program);
  std::vector<size_t> locals;
  for (size_t v = 0; v < program.values.size(); ++v)
    if (program.offsets[v] >= 0 && lives[v].first >= 0 && program.values[v].bytes() > 0)
      locals.push_back(v);
  std::sort(locals.begin(), locals.end(),
            [&](size_t a, size_t b) { return program.offsets[a] < program.offsets[b]; });
  for (size_t i = 0; i < locals.size(); ++i)
    for (size_t j = i + 1; j < locals.size(); ++j) {
      const size_t a = locals[i], b = locals[j];
      if (program.offsets[b] >= program.offsets[a] + program.values[a].bytes()) break;
      const bool in_place = program.offsets[a] == program.offsets[b] &&
                            program.values[a].bytes() == program.values[b].bytes() &&
                            (lives[a].last == lives[b].first || lives[b].last == lives[a].first) &&
                            lives[a].first != lives[b].first;
      if (lives[a].last < lives[b].first || lives[b].last < lives[a].first || in_place) continue;
      findings.add(
          "memory",
          "program '{}' of {} keeps values {} and {} in the same bytes while both are needed",
          quote_control(program.label), who, a, b);
    }
}

// A tied parameter that several roles hold starts with the same values everywhere.
void check_copies(const Model& model, Findings& findings) {
  struct First {
    const Buffer* buffer;
    int32_t cell;
  };
  std::map<std::string, First> first;
  for (size_t c = 0; c < model.cells.size(); ++c)
    for (const Buffer& buffer : model.cells[c].role->buffers) {
      if (buffer.param.empty() || buffer.kind != BufferKind::kState) continue;
      const auto [found, is_new] =
          first.emplace(buffer.param, First{&buffer, static_cast<int32_t>(c)});
      const Buffer& other = *found->second.buffer;
      if (is_new || (other.init == buffer.init && other.fill == buffer.fill &&
                     other.type == buffer.type && other.whole == buffer.whole))
        continue;
      findings.add("structure", "parameter '{}' starts differently on {} and {}",
                   quote_control(buffer.param), model.who(found->second.cell),
                   model.who(static_cast<int32_t>(c)));
    }
}

}  // namespace

void check_structure(const PlanSet& set, const Model& model, Findings& findings) {
  std::vector<bool> seen(set.roles.size());
  for (size_t c = 0; c < model.cells.size(); ++c) {
    const RoleProgram& role = *model.cells[c].role;
    const auto id = static_cast<size_t>(&role - set.roles.data());
    if (seen[id]) continue;
    seen[id] = true;
    const std::string who = model.who(static_cast<int32_t>(c));
    check_arena(role, who, findings);
    check_constants(role, model.facts[id], who, findings);
    check_states(role, model.facts[id], who, findings);
    for (const Program& program : role.programs) check_locals(program, who, findings);
  }
  check_copies(model, findings);
}

}  // namespace piper
