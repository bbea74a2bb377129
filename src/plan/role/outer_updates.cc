// When outer updates run, and what runs beside a body.
#include "piper/plan/outer_updates.h"

#include <algorithm>
#include <numeric>

namespace piper {

bool runs_at(const OuterUpdate& update, int64_t t) {
  return t >= update.offset && (t - update.offset) % update.every == 0;
}

// Of steps a.offset + i * a.every and b.offset + j * b.every some are equal exactly where the
// offsets differ by a multiple of the greatest common divisor.
bool share_a_step(const OuterUpdate& a, const OuterUpdate& b) {
  return (a.offset - b.offset) % std::gcd(a.every, b.every) == 0;
}

bool runs_beside(const RoleProgram& role, const OuterUpdate& update) {
  return !update.instructions.empty() &&
         std::ranges::all_of(update.instructions, [&](const Instruction& one) {
           return role.streams[static_cast<size_t>(one.stream)].name == kBesideStream;
         });
}

std::vector<Instruction> instructions_beside(const RoleProgram& role, const OuterUpdate& update) {
  const std::vector<Instruction>& own = update.instructions;
  const auto receives = [](const Instruction& one) {
    return one.kind == InstructionKind::kRecv || is_collective(one.kind);
  };
  const auto early = static_cast<int32_t>(std::ranges::find_if(own, receives) - own.begin()),
             within = static_cast<int32_t>(role.body.size());
  std::vector<Instruction> all;
  all.reserve(own.size() + role.body.size());
  const auto add = [&](const Instruction& one, const auto& number) {
    for (int32_t& wait : all.emplace_back(one).waits) wait = number(wait);
  };
  const auto number = [&](int32_t i) { return i < early ? i : i + within; };
  for (int32_t i = 0; i < early; ++i) add(own[static_cast<size_t>(i)], number);
  for (const Instruction& one : role.body) add(one, [&](int32_t i) { return i + early; });
  for (size_t i = static_cast<size_t>(early); i < own.size(); ++i) add(own[i], number);
  return all;
}

}  // namespace piper
