// ZeRO: what a rank holds, by the closed forms of formats/plan.md; and that the verifier sees what
// can go wrong with parts.
#include <algorithm>
#include <numeric>
#include <set>

#include "equivalence/jobs.h"
#include "piper/base/memory.h"
#include "piper/inspect/summary.h"
#include "piper/plan/verify.h"

namespace piper::zero_memory_test {
namespace {

using namespace jobs;

int64_t part_of(int64_t elements, int64_t replicas) { return (elements + replicas - 1) / replicas; }

struct Held {
  int64_t parameters = 0, optimizer = 0, gradients = 0, gathered = 0, previous = 0;
  bool operator==(const Held&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Held& held) {
  return out << held.parameters << " " << held.optimizer << " " << held.gradients << " "
             << held.gathered << " " << held.previous;
}

Held held_by(const RoleProgram& role) {
  Held held;
  int64_t pool_begin = INT64_MAX, pool_end = 0;
  for (const Buffer& buffer : role.buffers) {
    const Tensor& tensor = role.tensor(buffer);
    const int64_t bytes = tensor.type.bytes();
    if (tensor.kind == BufferKind::kState && tensor.name != "step")
      (tensor.previous_of >= 0 ? held.previous
       : tensor.param.empty()  ? held.optimizer
                               : held.parameters) += bytes;
    if (tensor.name.ends_with(".grad.use0")) held.gradients += bytes;
    if (tensor.kind != BufferKind::kStep || tensor.param.empty()) continue;
    pool_begin = std::min(pool_begin, buffer.offset);
    pool_end = std::max(pool_end, buffer.offset + align_up(bytes));
  }
  held.gathered = std::max<int64_t>(pool_end - pool_begin, 0);
  return held;
}

Result<PlanSet> plans_of(const std::string& order, int64_t dp,
                         const std::vector<Definition>& more = {}) {
  PIPER_ASSIGN(Compiled compiled,
               compile_model("mlp", strategy_text("mlp", kAdamW), {1, dp, 2, order}, false, more));
  return std::move(compiled.set);
}

TEST(ZeroMemory, IsTheClosedForm) {
  NEED_MODEL("mlp");
  for (const int64_t dp : {2, 4}) {
    const auto plain = plans_of("1f1b", dp);
    ASSERT_TRUE(plain) << print_error(plain.error());
    int64_t all = 0, cut = 0;  // elements
    std::map<std::string, int64_t> layers;
    for (const Tensor& tensor : plain->roles[0].tensors) {
      if (tensor.param.empty()) continue;
      const int64_t n = num_elements(tensor.type.shape);
      all += n;
      cut += part_of(n, dp);
      layers[tensor.param.substr(0, tensor.param.rfind('.'))] += align_up(4 * n);
    }
    std::vector<int64_t> sizes;
    for (const auto& [layer, bytes] : layers) sizes.push_back(bytes);
    std::sort(sizes.rbegin(), sizes.rend());
    const int64_t whole = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});

    const std::vector<Definition> each{{"reduce", "per_microbatch"}};
    EXPECT_EQ(held_by(plain->roles[0]), (Held{4 * all, 8 * all, 4 * all, 0}));
    EXPECT_EQ(held_by(plans_of("zero1", dp)->roles[0]), (Held{4 * all, 8 * cut, 4 * all, 0}));
    EXPECT_EQ(held_by(plans_of("zero2", dp)->roles[0]), (Held{4 * all, 8 * cut, 4 * all, 0}));
    EXPECT_EQ(held_by(plans_of("zero2", dp, each)->roles[0]), (Held{4 * all, 8 * cut, 4 * cut, 0}));
    // One bucket: the pool is one slot of all.
    EXPECT_EQ(held_by(plans_of("zero3", dp)->roles[0]), (Held{4 * cut, 8 * cut, 4 * all, whole}));
    EXPECT_EQ(held_by(plans_of("zero3", dp, each)->roles[0]),
              (Held{4 * cut, 8 * cut, 4 * cut, whole}));
  }
}

// What a rank gathers and scatters in a step, by the formulas of strategies/README.md: what is left
// in the pool between a forward and its backward is gathered once.
TEST(ZeroMemory, SendsWhatItsFormulasSay) {
  NEED_MODEL("mlp");
  const auto sent_by = [](const char* when, int64_t dp, int64_t microbatches) {
    const std::vector<Definition> more{{"gather", when}, {"bucket_kib", "1"}};
    const auto compiled = compile_model("gpt-deep", strategy_text("gpt-deep", kSgd),
                                        {1, dp, microbatches, "zero3"}, false, more);
    EXPECT_TRUE(compiled) << print_error(compiled.error());
    const Summary summary = summarise(compiled->set);
    std::map<InstructionKind, int64_t> sent;
    for (const TrafficSummary& each : summary.roles[0].traffic)
      sent[each.kind] += each.bytes * dp / (dp - 1);  // whole
    const Held held = held_by(compiled->set.roles[0]);
    return std::tuple(sent[InstructionKind::kAllGather], sent[InstructionKind::kReduceScatter],
                      dp * held.parameters, held.gathered);
  };
  for (const auto& [dp, m] : {std::pair{2, 2}, {2, 4}, {4, 2}}) {
    for (const auto& [when, times] : {std::pair{"per_step", 1}, {"per_microbatch", m}}) {
      const auto [gathered, scattered, all, pool] = sent_by(when, dp, m);
      EXPECT_EQ(gathered, times * all) << when;
      EXPECT_EQ(scattered, all) << when;
    }
    const auto [gathered, scattered, all, pool] = sent_by("per_pass", dp, m);
    EXPECT_EQ(scattered, all);
    EXPECT_EQ(gathered % m, 0);
    const int64_t left = 2 * all - gathered / m;
    EXPECT_GT(left, 0);
    EXPECT_LE(left, pool);
    EXPECT_LT(2 * pool, all);
  }
}

// Largest sum of the step buffers that are alive at once, of those that `counts`.
int64_t peak_of(const RoleProgram& role, const std::function<bool(const Tensor&)>& counts) {
  std::vector<std::pair<size_t, size_t>> alive(role.buffers.size(), {SIZE_MAX, 0});
  for (size_t i = 0; i < role.body.size(); ++i)
    for (const int32_t arg : role.body[i].args) {
      auto& [first, last] = alive[static_cast<size_t>(arg)];
      first = std::min(first, i);
      last = i + 1;
    }
  for (const Report& report : role.reports)
    alive[static_cast<size_t>(report.buffer)].second = role.body.size();
  std::vector<int64_t> change(role.body.size() + 1, 0);
  for (size_t b = 0; b < role.buffers.size(); ++b) {
    const Tensor& tensor = role.tensor(role.buffers[b]);
    if (tensor.kind != BufferKind::kStep || !counts(tensor) || alive[b].first == SIZE_MAX) continue;
    change[alive[b].first] += align_up(tensor.type.bytes());
    change[alive[b].second] -= align_up(tensor.type.bytes());
  }
  std::partial_sum(change.begin(), change.end(), change.begin());
  return *std::max_element(change.begin(), change.end());
}

// Messages that gather parameters, as they lie in the pool: where one begins is a slot; the largest
// bucket that takes it is its size.
std::map<int64_t, int64_t> slots_of(const RoleProgram& role) {
  std::map<int64_t, int64_t> slots;
  for (const Instruction& one : role.body) {
    if (one.kind != InstructionKind::kAllGather) continue;
    int64_t begin = INT64_MAX, bytes = 0;
    for (size_t a = 1; a < one.args.size(); a += 2) {
      const Buffer& whole = role.buffers[static_cast<size_t>(one.args[a])];
      const Tensor& tensor = role.tensor(whole);
      if (tensor.param.empty()) continue;
      begin = std::min(begin, whole.offset);
      bytes += align_up(tensor.type.bytes());
    }
    if (bytes > 0) slots[begin] = std::max(slots[begin], bytes);
  }
  return slots;
}

struct Arena {
  int64_t outlives = 0;     // a step, as it lies in memory
  int64_t gradients = 0;    // their sums
  int64_t activations = 0;  // and whatever else a step makes, at its fullest
};
Arena arena_of(const RoleProgram& role) {
  Arena arena;
  for (const Buffer& buffer : role.buffers) {
    const Tensor& tensor = role.tensor(buffer);
    const int64_t bytes = align_up(tensor.type.bytes());
    if (tensor.kind != BufferKind::kStep) arena.outlives += bytes;
    if (tensor.name.ends_with(".grad.use0")) arena.gradients += bytes;
  }
  arena.activations =
      peak_of(role, [](const Tensor& tensor) { return tensor.param.empty(); }) - arena.gradients;
  return arena;
}

void expect_closed_form(const std::string& model, int64_t dp, int64_t prefetch) {
  SCOPED_TRACE(fmt::format("{} dp={} prefetch={}", model, dp, prefetch));
  const auto compiled = [&](const char* order, const std::vector<Definition>& more) {
    auto made = compile_model(model, strategy_text(model, kAdamW), {1, dp, 2, order}, false, more);
    EXPECT_TRUE(made) << print_error(made.error());
    return made ? std::move(made->set.roles[0]) : RoleProgram{};
  };
  const RoleProgram plain = compiled("1f1b", {});
  const RoleProgram role = compiled(
      "zero3",
      {{"reduce", "per_microbatch"}, {"bucket_kib", "16"}, {"prefetch", std::to_string(prefetch)}});
  const Held all = held_by(plain), held = held_by(role);
  // Of 16 bytes a parameter each replica has its part.
  EXPECT_EQ(all.parameters + all.optimizer + all.gradients, 4 * all.parameters);
  EXPECT_EQ(held.parameters + held.optimizer + held.gradients, 4 * all.parameters / dp);
  const std::map<int64_t, int64_t> slots = slots_of(role);
  EXPECT_EQ(static_cast<int64_t>(slots.size()), prefetch + 1);
  int64_t pool = 0, largest = 0;
  for (const auto& [begin, bytes] : slots) {
    pool += bytes;
    largest = std::max(largest, bytes);
  }
  EXPECT_EQ(held.gathered, pool);
  // Nothing else lies in the arena. What lies badly, and gradients that keep their memory beside
  // the first product after their reduction has begun, are less than a thirtieth.
  const Arena whole = arena_of(plain), cut = arena_of(role);
  const auto expect_full = [](int64_t arena, int64_t bytes) {
    EXPECT_GE(arena, bytes);
    EXPECT_LE(arena, bytes + bytes / 30);
  };
  expect_full(plain.arena_bytes, whole.outlives + whole.gradients + whole.activations);
  expect_full(role.arena_bytes, cut.outlives + cut.gradients + held.gathered + cut.activations);
  // Beside the activations there are whole gradients on their way to their reduction.
  EXPECT_GE(cut.activations, whole.activations);
  EXPECT_LE(cut.activations, whole.activations + largest);
}

// The whole arena of ZeRO-3 with reductions in every microbatch: 16 bytes a parameter cut over the
// replicas, prefetch + 1 gathered buckets, and the activations. With two replicas and Adam that is
// twice the bytes of the parameters.
TEST(ZeroMemory, OfTheWholeArenaIsTheClosedForm) {
  NEED_MODEL("gpt");
  for (const char* model : {"gpt-deep", "gpt"})
    for (const int64_t dp : {2, 4})
      for (const int64_t prefetch : {0, 1, 2}) expect_closed_form(model, dp, prefetch);
}

// ---- Two versions of the weights ----------------------------------------------------------------

// One device, whose steps do not overlap, or a pipeline, whose steps do.
Result<PlanSet> two_versions(const std::string& model, int64_t pp, int64_t dp,
                             const std::string& shard) {
  std::string text = library_text("pipedream-2bw");
  const std::string bucket = "bucket: 25MiB";
  text.replace(text.find(bucket), bucket.size(), "bucket: 1KiB" + shard);
  CompileOptions options;
  options.defines = definitions_of(text, {pp, dp, 8 / dp});
  PIPER_ASSIGN(Compiled compiled, compile_text(model, text, kAdamW, options));
  return std::move(compiled.set);
}

// The numbers of a step, of which nothing grows with the replicas: one for each gradient.
TEST(ZeroMemory, OfTheNormDoesNotGrow) {
  NEED_MODEL("mlp");
  for (const char* file : {"zero1", "zero3"}) {
    const auto numbers = [&](int64_t dp) {
      int64_t elements = 0;
      const auto compiled =
          compile_model("gpt-deep", strategy_text("gpt-deep", kAdamW), {2, dp, 2, file});
      EXPECT_TRUE(compiled) << print_error(compiled.error());
      for (const Tensor& tensor : compiled->set.roles[0].tensors)
        if (tensor.type.dtype == DType::kF64) elements += num_elements(tensor.type.shape);
      return elements;
    };
    EXPECT_EQ(numbers(2), numbers(4)) << file;
    EXPECT_GT(numbers(2), 48) << file;
  }
}

// Each replica has its parts of both versions, of the gradients and of the optimizer's states: 20
// bytes a parameter cut over the replicas. Both versions take the same prefetch + 1 slots.
TEST(ZeroMemory, OfTwoVersionsIsTheClosedForm) {
  NEED_MODEL("mlp");
  for (const char* model : {"mlp", "gpt-deep"})
    for (const auto& [pp, dp, prefetch] :
         {std::tuple{1, 2, 0}, {1, 4, 1}, {2, 2, 0}, {2, 2, 1}, {4, 2, 1}}) {
      SCOPED_TRACE(fmt::format("{} pp={} dp={} prefetch={}", model, pp, dp, prefetch));
      const auto plain = two_versions(model, pp, dp, "");
      const auto cut =
          two_versions(model, pp, dp,
                       fmt::format(", shard: [optimizer, gradients, parameters], reduce: {{when: "
                                   "per_microbatch}}, gather: {{prefetch: {}}}",
                                   prefetch));
      ASSERT_TRUE(plain) << print_error(plain.error());
      ASSERT_TRUE(cut) << print_error(cut.error());
      for (int64_t rank = 0; rank < pp * dp; rank += dp) {
        const auto at = static_cast<size_t>(rank);
        const RoleProgram& role = cut->roles[static_cast<size_t>(cut->role_of_rank[at])];
        const RoleProgram& all = plain->roles[static_cast<size_t>(plain->role_of_rank[at])];
        EXPECT_EQ(role.steps_ahead, pp > 1 ? 1 : 0);
        int64_t elements = 0, parts = 0;
        for (const Tensor& tensor : all.tensors)
          if (!tensor.param.empty()) {
            elements += num_elements(tensor.type.shape);
            parts += part_of(num_elements(tensor.type.shape), dp);
          }
        int64_t pool = 0;
        const std::map<int64_t, int64_t> slots = slots_of(role);
        for (const auto& [begin, bytes] : slots) pool += bytes;
        EXPECT_LE(static_cast<int64_t>(slots.size()), prefetch + 1);
        EXPECT_EQ(held_by(all), (Held{4 * elements, 8 * elements, 4 * elements, 0, 4 * elements}));
        EXPECT_EQ(held_by(role), (Held{4 * parts, 8 * parts, 4 * parts, pool, 4 * parts}));
      }
    }
}

// ---- Mutations ----------------------------------------------------------------------------------

// Moves an instruction; waits follow, and those on what comes later now are dropped.
void move_to(RoleProgram& role, size_t from, size_t to) {
  std::vector<size_t> order;
  for (size_t i = 0; i < role.body.size(); ++i)
    if (i != from) order.push_back(i);
  order.insert(order.begin() + static_cast<ptrdiff_t>(to), from);
  std::vector<int32_t> now(order.size());
  for (size_t i = 0; i < order.size(); ++i) now[order[i]] = static_cast<int32_t>(i);
  std::vector<Instruction> body;
  for (size_t i : order) {
    Instruction one = role.body[i];
    std::vector<int32_t> waits;
    for (int32_t wait : one.waits)
      if (now[static_cast<size_t>(wait)] < now[i]) waits.push_back(now[static_cast<size_t>(wait)]);
    std::sort(waits.begin(), waits.end());
    one.waits = waits;
    body.push_back(std::move(one));
  }
  role.body = std::move(body);
}
void erase(RoleProgram& role, size_t at) {
  move_to(role, at, role.body.size() - 1);
  role.body.pop_back();
}
size_t find(const RoleProgram& role, InstructionKind kind, std::string_view label = "",
            size_t skip = 0) {
  for (size_t i = 0; i < role.body.size(); ++i)
    if (role.body[i].kind == kind && role.body[i].label.find(label) != std::string::npos &&
        skip-- == 0)
      return i;
  ADD_FAILURE() << "no " << to_string(kind) << " " << label;
  return 0;
}

std::set<std::string> rules_of(const PlanSet& set) {
  std::set<std::string> rules;
  const auto report = verify_plan_set(set);
  if (!report) return {"error"};
  for (const Finding& finding : report->findings) rules.insert(finding.rule);
  return rules;
}

struct Mutation {
  const char* name;
  const char* order;
  void (*change)(PlanSet& set);
  const char* rule;
};

TEST(ZeroVerify, SeesWhatGoesWrongWithParts) {
  NEED_MODEL("mlp");
  using Kind = InstructionKind;
  const Mutation mutations[] = {
      {"a gather before the update", "zero1",
       [](PlanSet& set) {
         RoleProgram& role = set.roles[0];
         move_to(role, find(role, Kind::kAllGather, "model."), find(role, Kind::kOwnPart) + 1);
       },
       "sum"},
      {"no gather after the update", "zero1",
       [](PlanSet& set) { erase(set.roles[0], find(set.roles[0], Kind::kAllGather, "model.")); },
       "sum"},
      {"a part that is not taken", "zero1",
       [](PlanSet& set) { erase(set.roles[0], find(set.roles[0], Kind::kOwnPart)); }, "order"},
      {"a gradient that is not reduced", "zero1",
       [](PlanSet& set) { erase(set.roles[0], find(set.roles[0], Kind::kReduceScatter)); },
       "order"},
      {"a gradient that is reduced twice", "zero1",
       [](PlanSet& set) {
         RoleProgram& role = set.roles[0];
         const size_t at = find(role, Kind::kReduceScatter);
         Instruction again = role.body[at];
         again.kind = Kind::kAllReduce;
         again.args = {again.args[0]};
         role.body.push_back(again);
         move_to(role, role.body.size() - 1, at);
       },
       "sum"},
      {"squares of one part alone", "zero1",
       [](PlanSet& set) {
         RoleProgram& role = set.roles[0];
         erase(role, find(role, Kind::kAllReduce, "U all_reduce"));
       },
       "update"},
      {"no gather before a use", "zero3",
       [](PlanSet& set) { erase(set.roles[0], find(set.roles[0], Kind::kAllGather, "model.")); },
       "order"},
      {"a bucket that is not gathered again", "zero3",
       [](PlanSet& set) {
         RoleProgram& role = set.roles[0];
         size_t last = 0;
         for (size_t i = 0; i < role.body.size(); ++i)
           if (role.body[i].kind == Kind::kAllGather) last = i;
         erase(role, last);
       },
       "memory"},
      {"a slot that is taken while it is read", "zero3",
       [](PlanSet& set) {
         for (Instruction& one : set.roles[0].body)
           if (one.kind == Kind::kAllGather) one.waits.clear();
       },
       "memory"},
      {"parts of another parameter", "zero3",
       [](PlanSet& set) {
         RoleProgram& role = set.roles[0];
         // Two gathers of equal sizes: biases of equal layers.
         for (Instruction& one : role.body)
           if (one.kind == Kind::kAllGather)
             for (size_t a = 0; a < one.args.size(); a += 2)
               for (size_t b = 0; b < role.buffers.size(); ++b) {
                 const Tensor &own = role.tensor(one.args[a]),
                              &other = role.tensor(role.buffers[b]);
                 if (other.part_of < 0 || other.param.empty() || other.param == own.param ||
                     other.whole != own.whole || other.type != own.type)
                   continue;
                 one.args[a] = static_cast<int32_t>(b);
                 return;
               }
         FAIL() << "no two parameters of one shape";
       },
       "sum"},
      {"ranks that gather in another order", "zero3",
       [](PlanSet& set) {
         RoleProgram other = set.roles[0];
         const size_t first = find(other, Kind::kAllGather, "model.", 0),
                      second = find(other, Kind::kAllGather, "model.", 1);
         move_to(other, second, first);
         set.roles.push_back(std::move(other));
         set.role_of_rank.back() = 1;
       },
       "collective"},
      {"an update without its gradients", "zero3",
       [](PlanSet& set) {
         RoleProgram& role = set.roles[0];
         for (Instruction& one : role.body)
           if (one.kind == Kind::kCompute && one.label == "U" && !one.sum_reads.empty())
             one.sum_reads.clear();
       },
       "sum"},
  };
  for (const Mutation& mutation : mutations) {
    const bool cut = std::string_view(mutation.order) == "zero3";
    auto set = plans_of(mutation.order, 2,
                        cut ? std::vector<Definition>{{"bucket_kib", "0"}, {"prefetch", "0"}}
                            : std::vector<Definition>{});
    ASSERT_TRUE(set) << print_error(set.error());
    EXPECT_EQ(rules_of(*set), std::set<std::string>{}) << mutation.name;
    mutation.change(*set);
    const std::set<std::string> rules = rules_of(*set);
    const std::vector<std::string> shown(rules.begin(), rules.end());
    EXPECT_TRUE(rules.contains(mutation.rule)) << mutation.name << ": " << join(shown, ", ");
  }
}

}  // namespace
}  // namespace piper::zero_memory_test
