// What the passes of a program compute, and how profiles write it.
#include "piper/devices/work.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace piper {
namespace {

constexpr std::array<std::string_view, 4> kWorkWords = {"elements", "product", "attention",
                                                        "attention_grad"};

std::optional<double> number_in(std::string_view text) {
  double number = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool ok = problem == std::errc() && end == text.data() + text.size() && number >= 0;
  return ok ? std::optional(number) : std::nullopt;
}

std::optional<OpWork> parse_work(std::string_view text) {
  const std::vector<std::string> fields = split_text(text, ':');
  if (fields.size() != 7) return std::nullopt;
  OpWork work;
  const auto word = std::find(kWorkWords.begin() + 1, kWorkWords.end(), fields[0]);
  const auto dtype = parse_dtype(fields[1]);
  if (word == kWorkWords.end() || !dtype) return std::nullopt;
  work.kind = static_cast<OpWork::Kind>(word - kWorkWords.begin());
  work.dtype = *dtype;
  size_t field = 2;
  for (double* number : {&work.count, &work.m, &work.n, &work.k, &work.flops}) {
    const auto value = number_in(fields[field++]);
    if (!value) return std::nullopt;
    *number = *value;
  }
  return work;
}

// Returns whether the rows of all matrices among an op's operands and results are multiples of 16
// bytes, the least that tensor cores load at full speed.
bool has_aligned_rows(const FusedProgram& program, const ProgramOp& op) {
  constexpr int64_t kBytes = 16;
  const auto is_aligned = [&](int32_t value) {
    if (value < 0) return true;
    const TensorType& type = program.values[static_cast<size_t>(value)];
    return type.shape.size() < 2 || !info(type.dtype).is_float ||
           type.shape.back() * info(type.dtype).bytes % kBytes == 0;
  };
  return std::ranges::all_of(op.inputs, is_aligned) && std::ranges::all_of(op.outputs, is_aligned);
}

}  // namespace

Result<std::vector<PassWork>> passes_of(const FusedProgram& program) {
  std::vector<PassWork> passes;
  for (const PassTraffic& traffic : traffic_of(program)) {
    PassWork& pass = passes.emplace_back();
    for (const auto* moved : {&traffic.read, &traffic.written})
      for (const auto& [value, bytes] : *moved) pass.bytes += static_cast<double>(bytes);
  }
  for (size_t o = 0; o < program.ops.size(); ++o) {
    PIPER_ASSIGN(const OpWork work, work_of(program, program.ops[o]));
    PassWork& pass = passes[program.pass_of(o)];
    if (work.kind == OpWork::kElements)
      pass.flops += work.flops;
    else
      pass.products.push_back(work);
    if (work.kind == OpWork::kProduct && !has_aligned_rows(program, program.ops[o]))
      pass.aligned = false;
  }
  return passes;
}

std::vector<std::string> print_passes(std::span<const PassWork> passes) {
  std::vector<std::pair<std::string, int64_t>> runs;  // in the order of the first
  for (const PassWork& pass : passes) {
    std::string text;
    for (const OpWork& work : pass.products)
      text += fmt::format("{}:{}:{}:{}:{}:{}:{} ", kWorkWords[work.kind], info(work.dtype).name,
                          work.count, work.m, work.n, work.k, work.flops);
    text += fmt::format("{} {}", pass.flops, pass.bytes);
    const auto same = std::find_if(runs.begin(), runs.end(),
                                   [&](const auto& known) { return known.first == text; });
    if (same == runs.end())
      runs.emplace_back(std::move(text), 1);
    else
      ++same->second;
  }
  std::vector<std::string> texts;
  for (const auto& [text, count] : runs) texts.push_back(fmt::format("{} {}", count, text));
  return texts;
}

std::optional<std::pair<int64_t, PassWork>> parse_pass(std::string_view text) {
  constexpr double kMostRuns = 1e9;
  const std::vector<std::string> fields = split_text(text, ' ');
  if (fields.size() < 3) return std::nullopt;
  PassWork pass;
  for (size_t f = 1; f + 2 < fields.size(); ++f) {
    const auto work = parse_work(fields[f]);
    if (!work) return std::nullopt;
    pass.products.push_back(*work);
  }
  const auto runs = number_in(fields.front()), flops = number_in(fields[fields.size() - 2]),
             bytes = number_in(fields.back());
  if (!runs || *runs > kMostRuns || !flops || !bytes) return std::nullopt;
  pass.flops = *flops;
  pass.bytes = *bytes;
  return std::pair(static_cast<int64_t>(*runs), std::move(pass));
}

}  // namespace piper
