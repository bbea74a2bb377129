// A plan for one rank, run for two steps on the CPU backend: what is loaded touches no memory that
// is not its own, whatever the plan says and whatever the data are.
#include <cstring>

#include "piper/devices/cpu.h"
#include "piper/runtime/job.h"
#include "piper/runtime/transport.h"
#include "targets.h"

namespace piper::fuzz {
namespace {

constexpr int64_t kMostParameterBytes = 1 << 18;  // what runs is small
constexpr size_t kMostInstructions = 200;

// Whatever bytes a step asks for, indices out of every range among them.
class AnyData final : public BatchSource {
 public:
  explicit AnyData(std::vector<InputNeed> needs) : needs_(std::move(needs)) {}
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    const InputNeed& need = needs_[static_cast<size_t>(input)];
    int64_t bytes = need.type.bytes();
    if (need.batch_dim >= 0)
      bytes = bytes / std::max<int64_t>(need.type.shape[static_cast<size_t>(need.batch_dim)], 1) *
              count;
    std::mt19937 random(static_cast<uint32_t>(step * 31 + first));
    for (int64_t i = 0; i < bytes; i += 8) {
      const int64_t word = random() % 8 == 0 ? static_cast<int64_t>(random()) << 32 : random() % 40;
      std::memcpy(to + i, &word, static_cast<size_t>(std::min<int64_t>(8, bytes - i)));
    }
    return ok_status();
  }
  int64_t steps() const override { return INT64_MAX; }
  int64_t tokens_per_step() const override { return 1; }

 private:
  std::vector<InputNeed> needs_;
};

// Takes no time and memory that would hide other things.
bool is_small(const RoleProgram& role) {
  for (const auto& [name, size] : role.mesh)
    if (size != 1) return false;
  for (const auto* list : {&role.prologue, &role.body, &role.epilogue})
    if (list->size() > kMostInstructions) return false;
  for (const Program& program : role.programs)
    for (const TensorType& type : program.values)
      if (type.bytes() > kMostParameterBytes) return false;
  int64_t bytes = role.arena_bytes;
  for (const int64_t workspace : role.workspace_bytes) bytes = std::max(bytes, workspace);
  return bytes <= kMostParameterBytes;
}

// Args of one instruction that share bytes: the verifier's to refuse. Running it makes wrong
// numbers and copies over what it copies, but leaves the arena alone.
bool are_apart(const RoleProgram& role) {
  for (const auto* list : {&role.prologue, &role.body, &role.epilogue})
    for (const Instruction& one : *list)
      for (const int32_t a : one.args)
        for (const int32_t b : one.args) {
          const Buffer &x = role.buffers[static_cast<size_t>(a)],
                       &y = role.buffers[static_cast<size_t>(b)];
          if (a != b && x.offset < y.offset + role.tensor(y).type.bytes() &&
              y.offset < x.offset + role.tensor(x).type.bytes())
            return false;
        }
  return true;
}

PlanSet set_of(RoleProgram role) {
  PlanSet set;
  set.manifest.mesh = role.mesh;
  set.role_of_rank = {0};
  std::mt19937 random(1);
  for (const Tensor& tensor : role.tensors) {
    if (tensor.init.empty()) continue;
    const TensorType stored{role.original(tensor).type.dtype, tensor.type.shape};
    std::string bytes(static_cast<size_t>(stored.bytes()), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 5);
    set.tensors.emplace_back(tensor.init, Bytes::copy_of(bytes.data(), bytes.size()));
  }
  set.roles.push_back(std::move(role));
  return set;
}

}  // namespace

std::string why_not_run(std::string_view text) {
  Result<RoleProgram> role = parse_plan(text);
  if (!role) return role.error().message;
  if (const Status checked = check_role(*role); !checked) return checked.error().message;
  if (!is_small(*role)) return "it is large";
  if (!are_apart(*role)) return "args of one instruction share bytes";
  const PlanSet set = set_of(*std::move(role));
  Result<std::vector<InputNeed>> needs = data_needs(set);
  if (!needs) return needs.error().message;
  const AnyData data(*std::move(needs));
  const auto world = make_inproc_world(1, TransportOptions{5});
  Transport& transport = world->rank(0);
  if (const Status agreed = transport.control().agree({"set", 0, 1, "", ""}); !agreed)
    return agreed.error().message;
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  auto executor =
      Executor::load({&set, 0, &data, 0}, *backend, transport.control(), transport.fabric());
  if (!executor) {
    PIPER_CHECK(!executor.error().message.empty());
    return executor.error().message;
  }
  Status run = (*executor)->run_prologue(0);
  for (int64_t step = 0; run && step < 2; ++step) run = (*executor)->run_step(step);
  if (run) run = (*executor)->run_epilogue(2);
  return run ? "" : run.error().message;
}

void run_run(std::string_view text) { (void)why_not_run(text); }

// A number, an element type or a word of the text exchanged for another one: most changes by bytes
// are no plan.
std::string change_run(std::string_view text, std::mt19937& random) {
  if (random() % 8 == 0) return change_bytes(text, random);
  std::vector<std::pair<size_t, size_t>> numbers, words;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    const auto in = [&](auto kind) { return end < text.size() && kind(text[end]); };
    const auto digit = [](char c) { return c >= '0' && c <= '9'; };
    const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
    while (in(digit)) ++end;
    if (end > i) numbers.emplace_back(i, end - i);
    if (end == i)
      while (in([&](char c) { return letter(c) || (end > i && digit(c)); })) ++end;
    if (end > i && !digit(text[i])) words.emplace_back(i, end - i);
    i = std::max(end, i + 1);
  }
  std::string out(text);
  auto& list = random() % 4 == 0 ? words : numbers;
  if (list.empty()) return out;
  const auto [at, size] = list[random() % list.size()];
  const auto [other, other_size] = list[random() % list.size()];
  std::string fresh(text.substr(other, other_size));
  if (&list == &numbers && random() % 2 == 0) {
    constexpr std::string_view kNumbers[] = {
        "0", "1", "2", "3", "64", "4294967296", "9223372036854775807"};
    fresh = kNumbers[random() % std::size(kNumbers)];
  }
  return out.replace(at, size, fresh);
}

}  // namespace piper::fuzz
