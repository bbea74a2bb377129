// Plans on devices that only queue: every strategy of the library gives the bits of the CPU in any
// order that streams, events and communicators allow; and an executor that forgets one of these is
// found out in every order.

#include <deque>

#include "equivalence/jobs.h"
#include "equivalence/layouts.h"
#include "forwarding.h"
#include "piper/plan/verify.h"
#include "seed.h"

namespace piper::sim_test {
namespace {

using namespace jobs;

const uint64_t kSeeds = static_cast<uint64_t>(given_count().value_or(kSanitized ? 2 : 5));

// ---- The right executor -------------------------------------------------------------------------

// Messages, reductions and gathers on streams of their own, as far as a strategy has them.
const char* const kMessages =
    "  - stream: {where: {kind: send}, name: out}\n  - stream: {where: {kind: recv}, name: in}\n";
const char* const kSums = "  - stream: {where: {kind: [all_reduce, reduce_scatter]}, name: sums}\n";
const char* const kGathers = "  - stream: {where: {kind: all_gather}, name: gathers}\n";
const std::vector<std::string> kStreams{"", kSums, std::string(kMessages) + kSums,
                                        std::string(kSums) + kGathers,
                                        std::string(kMessages) + kSums + kGathers};

const char* const kOffload = "  - offload: {what: optimizer}\n";

Result<Compiled> compile_on(const std::string& file, const Shape2& shape,
                            const std::string& streams) {
  std::string text = strategy_text("mlp", kAdamW);
  Shape2 with = shape;
  with.order = file;
  if (!streams.empty()) text += "directives:\n" + streams;
  return compile_model("mlp", text, with);
}

// Plans for each shape: those of the strategy as it is, and those with most streams of their own of
// what it has; all others, too, if PIPER_COUNT says how many orders each is to have.
struct OnStreams {
  Shape2 shape;
  std::string streams;
  PlanSet set;
};
std::vector<OnStreams> plans_of(const std::string& file) {
  std::vector<OnStreams> plans;
  for (const Shape2& shape : {Shape2{2, 2, 4}, Shape2{1, 4, 2}, Shape2{4, 1, 4}})
    for (size_t k = kStreams.size(), found = 0; k-- > 0;) {
      if (found > 0 && k > 0 && !given_count()) continue;
      auto compiled = compile_on(file, shape, kStreams[k]);
      if (!compiled) continue;  // a strategy of another shape, or without such tasks
      plans.push_back({shape, kStreams[k], std::move(compiled->set)});
      ++found;
    }
  return plans;
}

class Simulated : public testing::TestWithParam<std::string> {};

TEST_P(Simulated, GivesTheBitsOfTheCpu) {
  NEED_MODEL("mlp");
  const std::vector<OnStreams> plans = plans_of(GetParam());
  EXPECT_FALSE(plans.empty());
  for (const auto& [shape, streams, set] : plans) {
    const auto want = train(set, "mlp", 3);
    ASSERT_TRUE(want) << print_error(want.error());
    for (uint64_t k = 0; k < kSeeds; ++k) {
      const uint64_t seed = given_seed().value_or(1) + k;
      const auto world = make_sim_world(set.world(), seed);
      const auto got = train_simulated(set, "mlp", *world, 3);
      const std::string what =
          fmt::format("pp {} dp {} mb {} seed {}\n{}", shape.pp, shape.dp, shape.mb, seed, streams);
      ASSERT_TRUE(got) << what << "\n" << print_error(got.error());
      expect_equal_bits(*got, *want, what);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Library, Simulated, testing::ValuesIn(library_files()),
                         [](const auto& info) { return identifier(info.param); });

// ---- Results that come when the next step is queued ---------------------------------------------

// The mlp's batches, whose numbers are none from some step on.
class Spoiled final : public BatchSource {
 public:
  Spoiled(const PlanSet& set, int64_t from) : needs_(*data_needs(set)), from_(from) {
    inner_ = *open_batches(set, "mlp");
  }
  Status read(int64_t step, int input, int64_t first, int64_t count, std::byte* to) const override {
    PIPER_TRY(inner_->read(step, input, first, count, to));
    const InputNeed& need = needs_[static_cast<size_t>(input)];
    const auto values =
        static_cast<size_t>(num_elements(need.type.shape) / need.type.shape[0] * count);
    if (step >= from_ && need.type.dtype == DType::kF32)
      std::fill_n(reinterpret_cast<float*>(to), values, NAN);
    return ok_status();
  }
  int64_t steps() const override { return inner_->steps(); }
  int64_t tokens_per_step() const override { return inner_->tokens_per_step(); }

 private:
  const std::vector<InputNeed> needs_;
  const int64_t from_;
  std::unique_ptr<BatchSource> inner_;
};

// A job of one rank, whose options may be changed; on a device that only queues, or on the CPU.
struct LateJob {
  PlanSet set;
  int64_t spoiled_from = INT64_MAX;
  std::function<void(JobOptions&)> change = [](JobOptions&) {};
  int64_t begun = 0;

  Result<JobResult> run(bool queued) {
    const Spoiled data(set, spoiled_from), again(set, spoiled_from);
    JobOptions options;
    options.steps = 30;
    options.threads = 1;
    change(options);
    begun = 0;
    options.before_step = [&](int64_t, int64_t, const Executor&) {
      ++begun;
      return ok_status();
    };
    const bool compares = options.verify.against != VerifyAgainst::kNone;
    const PlanSet* const reference = compares ? &set : nullptr;
    if (!queued) return run_job(set, &data, reference, &again, options);
    const auto world = make_sim_world(1, given_seed().value_or(1));
    return run_rank_here(set, &data, reference, &again, world->transport(0), options,
                         &world->device(0));
  }
};

class LateReports : public testing::Test {
 protected:
  void SetUp() override {
    NEED_MODEL("mlp");
    auto compiled = compile_model("mlp", strategy_text("mlp", kAdamW), {1, 1, 2});
    ASSERT_TRUE(compiled) << print_error(compiled.error());
    job_.set = std::move(compiled->set);
  }
  // As many as the job says it has done.
  size_t steps_of(bool queued) {
    const auto result = job_.run(queued);
    EXPECT_TRUE(result) << print_error(result.error());
    return result ? result->steps.size() : 0;
  }
  LateJob job_;
};

TEST_F(LateReports, TrainTheSameBits) {
  const auto want = job_.run(false), got = job_.run(true);
  ASSERT_TRUE(want && got);
  ASSERT_EQ(got->steps.size(), want->steps.size());
  for (size_t k = 0; k < got->steps.size(); ++k) {
    EXPECT_EQ(got->steps[k].step, static_cast<int64_t>(k));
    EXPECT_EQ(got->steps[k].loss, want->steps[k].loss);
  }
  ASSERT_EQ(got->parameters.size(), want->parameters.size());
  for (size_t i = 0; i < got->parameters.size(); ++i)
    EXPECT_TRUE(as_text(got->parameters[i].data.span()) == as_text(want->parameters[i].data.span()))
        << got->parameters[i].name;
}

// Why a job has ended: with what it had trained until then, or with nothing.
Error end_of(const Result<JobResult>& result) {
  if (!result) return result.error();
  return result->ended_by ? *result->ended_by : fail("it went on");
}

TEST_F(LateReports, SayThatALossIsNotFiniteOneStepLater) {
  job_.spoiled_from = 2;
  for (const bool queued : {false, true}) {
    const auto result = job_.run(queued);
    EXPECT_EQ(end_of(result).message, "step 3: the loss is nan");
    EXPECT_EQ(end_of(result).code, ExitCode::kNumeric);
    EXPECT_TRUE(result);
    EXPECT_EQ(job_.begun, queued ? 4 : 3);  // the next step has begun there, and ends, too
  }
}

TEST_F(LateReports, WaitForNothingWhereSomethingIsComparedBetweenSteps) {
  job_.spoiled_from = 2;
  for (const bool verifies : {false, true}) {
    job_.change = [verifies](JobOptions& options) {
      if (verifies)
        options.verify.against = VerifyAgainst::kSingle;
      else
        options.check_replicas = 1;
    };
    EXPECT_EQ(end_of(job_.run(true)).message, "step 3: the loss is nan");
    EXPECT_EQ(job_.begun, 3);
  }
  job_.spoiled_from = INT64_MAX;
  EXPECT_EQ(steps_of(true), 30u);  // and all that is compared is equal
}

TEST_F(LateReports, EndARunOneStepLater) {
  std::atomic<bool> stop{false};
  const auto stops = [&](JobOptions& options) {
    stop.store(false);
    options.stop = &stop;
    options.on_step = [&](const StepMetrics& metrics) {
      if (metrics.step == 4) stop.store(true);
      return ok_status();
    };
  };
  const auto aims = [](JobOptions& options) { options.target_loss = 1e9; };
  for (const bool overlap : {false, true}) {
    if (overlap) {
      RoleProgram& role = job_.set.roles[0];
      role.steps_ahead = 1;
      role.epilogue = role.body;
      role.staging_bytes = staging_of(role);
    }
    for (const bool queued : {false, true}) {
      const size_t more = (overlap ? 1 : 0) + (queued ? 1 : 0);  // steps under way
      job_.change = stops;
      EXPECT_EQ(steps_of(queued), 5 + more);
      job_.change = aims;
      EXPECT_EQ(steps_of(queued), 20 + more);
    }
  }
}

// By then others lie where they lay.
TEST_F(LateReports, AreReadBeforeTheNextStepButOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Spoiled data(job_.set, INT64_MAX);
  const auto world = make_sim_world(1, 1);
  const auto executor = Executor::load({&job_.set, 0, &data}, world->device(0),
                                       world->transport(0).control(), world->transport(0).fabric());
  ASSERT_TRUE(executor) << print_error(executor.error());
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE((*executor)->start_step(step));
  EXPECT_TRUE((*executor)->finish_step(1));
  EXPECT_DEATH(static_cast<void>((*executor)->finish_step(0)),
               "step 1 is asked for its results after step 3 began");
}

// ---- Plans that forget a wait -------------------------------------------------------------------

// Every wait of a plan left out: the proof from the plan alone and a run of it say the same. What
// neither misses follows from what other ranks wait for.
TEST_P(Simulated, AndTheVerifierMissTheSameWaits) {
  NEED_MODEL("mlp");
  int64_t waits = 0, missed = 0;
  const auto leave_out = [&](PlanSet& set, Instruction& one, size_t w) {
    const std::vector<int32_t> all = one.waits;
    one.waits.erase(one.waits.begin() + static_cast<std::ptrdiff_t>(w));
    const auto report = verify_plan_set(set);
    const bool is_refused = !report || !report->findings.empty();
    const auto world = make_sim_world(set.world(), 1);
    EXPECT_EQ(is_refused, !train_simulated(set, "mlp", *world, 2)) << one.label;
    one.waits = all;
    ++waits;
    missed += is_refused;
  };
  if (kSanitized) return;
  for (auto& [shape, streams, set] : plans_of(GetParam()))
    for (RoleProgram& role : set.roles)
      for (auto* section : {&role.prologue, &role.body, &role.epilogue})
        for (Instruction& one : *section)
          for (size_t w = 0; w < one.waits.size(); ++w) leave_out(set, one, w);
  EXPECT_GE(missed * 4, waits * 3);
}

// ---- Executors that forget something ------------------------------------------------------------

// What happens to the calls of rank 0's executor; a call of which nothing is said goes on as it is.
struct Meddling {
  // By the instruction that is being queued.
  std::function<bool(std::string_view label)> drops_wait, drops_record;
  // Of the events that prepare_queues makes, by turns that of a section and that of its reports.
  std::optional<size_t> drops_finish;
  bool shares_staging = false;  // one block for all that the host brings
  // Another stream for what is queued there.
  std::optional<int32_t> computes_on, copies_on, receives_on, reduces_on;
  // A reduction is queued behind the next one.
  bool swaps_reductions = false;
  // Groups on the first two communicators stand on each other's.
  bool swaps_communicators = false;
  // Of all ranks: messages of both directions between two stand on one communicator.
  bool joins_directions = false;
};

class MeddlingDevice final : public Backend {
 public:
  MeddlingDevice(Backend& inner, Control& control, const Meddling& with)
      : inner_(inner), control_(control), with_(with) {}
  std::string_view name() const override { return inner_.name(); }
  bool is_asynchronous() const override { return true; }
  Result<std::byte*> allocate(int64_t bytes, Space space) override {
    if (space != Space::kHost || !with_.shares_staging) return inner_.allocate(bytes, space);
    std::byte*& shared = shared_[bytes];
    if (shared != nullptr) return shared;
    PIPER_ASSIGN(shared, inner_.allocate(bytes, space));
    return shared;
  }
  bool runs(std::string_view target) const override { return inner_.runs(target); }
  RoleProgram prepare(RoleProgram role) const override { return inner_.prepare(std::move(role)); }
  Result<int32_t> load(const Program& program) override { return inner_.load(program); }
  int64_t workspace_bytes(int32_t program) const override {
    return inner_.workspace_bytes(program);
  }
  Result<int32_t> bind(int32_t program, std::span<std::byte* const> args,
                       std::byte* workspace) override {
    return inner_.bind(program, args, workspace);
  }
  Result<int32_t> add_stream(const Stream& like) override { return inner_.add_stream(like); }
  Result<int32_t> add_event() override {
    PIPER_ASSIGN(events_.emplace_back(), inner_.add_event());
    return events_.back();
  }
  void launch(int32_t binding, int32_t stream) override {
    inner_.launch(binding, with_.computes_on.value_or(stream));
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes, int32_t stream) override {
    inner_.copy(to, from, bytes, is_loaded() ? with_.copies_on.value_or(stream) : stream);
  }
  void fill(std::byte* to, const TensorType& type, double value, int32_t stream) override {
    inner_.fill(to, type, value, stream);
  }
  void record(int32_t event, int32_t stream) override {
    if (!with_.drops_record || !with_.drops_record(label())) inner_.record(event, stream);
  }
  void wait(int32_t event, int32_t stream) override {
    if (!with_.drops_wait || !with_.drops_wait(label())) inner_.wait(event, stream);
  }
  Result<bool> is_done(int32_t event) override {
    if (is_dropped(event)) return true;
    return inner_.is_done(event);
  }
  Status finish(int32_t event) override {
    return is_dropped(event) ? ok_status() : inner_.finish(event);
  }
  void host_uses(const std::byte* at, int64_t bytes, bool writes) override {
    inner_.host_uses(at, bytes, writes);
  }

 private:
  bool is_dropped(int32_t event) const {
    const auto number =
        static_cast<size_t>(std::find(events_.begin(), events_.end(), event) - events_.begin());
    return with_.drops_finish && *with_.drops_finish == number % 2 && is_loaded();
  }
  std::string_view label() const { return control_.activity().load(); }
  bool is_loaded() const { return label() != "its start"; }
  Backend& inner_;
  Control& control_;
  const Meddling& with_;
  std::map<int64_t, std::byte*> shared_;
  std::vector<int32_t> events_;
};

class MeddlingTransport final : public Transport, public Forwarding {
 public:
  MeddlingTransport(Transport& inner, const Meddling& with)
      : Forwarding(inner.fabric()), control_(inner.control()), with_(with) {}
  Control& control() override { return control_; }
  Fabric& fabric() override { return *this; }
  Result<int32_t> add_send(int64_t peer, int32_t communicator, int64_t most,
                           int32_t stream) override {
    if (with_.joins_directions) return add_both(peer, stream);
    return inner_.add_send(peer, communicator, most, stream);
  }
  Result<int32_t> add_recv(int64_t peer, int32_t communicator, int32_t stream) override {
    if (with_.joins_directions) return add_both(peer, stream);
    return inner_.add_recv(peer, communicator, with_.receives_on.value_or(stream));
  }
  Result<int32_t> add_group(std::span<const int64_t> ranks, int32_t communicator,
                            int32_t stream) override {
    if (with_.swaps_communicators && communicator < 2) communicator = 1 - communicator;
    return inner_.add_group(ranks, communicator, with_.reduces_on.value_or(stream));
  }
  Status send(int32_t end, const std::byte* data, int64_t bytes) override {
    if (!with_.joins_directions) return inner_.send(end, data, bytes);
    return exchange(end, {data, unwanted(bytes), bytes, lower_.at(end) ? 1 : 3});
  }
  Status recv(int32_t end, std::byte* to, int64_t bytes) override {
    if (!with_.joins_directions) return inner_.recv(end, to, bytes);
    return exchange(end, {unwanted(bytes), to, bytes, lower_.at(end) ? 3 : 1});
  }
  Status run(int32_t group, const Collective& collective) override {
    if (!with_.swaps_reductions || collective.kind != InstructionKind::kAllReduce)
      return inner_.run(group, collective);
    if (!held_) {
      held_ = collective;
      return ok_status();
    }
    PIPER_TRY(inner_.run(group, collective));
    return inner_.run(group, *std::exchange(held_, std::nullopt));
  }

 private:
  static constexpr int32_t kBoth = 1000;
  std::byte* unwanted(int64_t bytes) {
    return others_.emplace_back(static_cast<size_t>(bytes)).data();
  }
  Status exchange(int32_t end, const Turn& turn) {
    const Turn& kept = turns_.emplace_back(turn);
    return inner_.run(end, {.kind = InstructionKind::kRotate, .turns = {&kept, 1}});
  }
  Result<int32_t> add_both(int64_t peer, int32_t stream) {
    const int64_t ranks[] = {std::min(rank(), peer), std::max(rank(), peer)};
    PIPER_ASSIGN(const int32_t end, inner_.add_group(ranks, kBoth, stream));
    lower_[end] = rank() < peer;
    return end;
  }
  Control& control_;
  const Meddling& with_;
  std::optional<Collective> held_;
  // Between two, one turn and three are the same: messages of the lower rank and of the other.
  std::map<int32_t, bool> lower_;              // by end: whether the own rank is
  std::deque<std::vector<std::byte>> others_;  // what goes the other way
  std::deque<Turn> turns_;
};

class MeddledWorld final : public SimWorld {
 public:
  MeddledWorld(int64_t world, uint64_t seed, const Meddling& with)
      : inner_(make_sim_world(world, seed)),
        device_(inner_->device(0), inner_->transport(0).control(), with) {
    for (int64_t rank = 0; rank < (with.joins_directions ? world : 1); ++rank)
      transports_.emplace_back(inner_->transport(rank), with);
  }
  Backend& device(int64_t rank) override { return rank == 0 ? device_ : inner_->device(rank); }
  Transport& transport(int64_t rank) override {
    const auto at = static_cast<size_t>(rank);
    return at < transports_.size() ? transports_[at] : inner_->transport(rank);
  }
  Status drain() override { return inner_->drain(); }

 private:
  std::unique_ptr<SimWorld> inner_;
  MeddlingDevice device_;
  std::deque<MeddlingTransport> transports_;
};

std::function<bool(std::string_view)> of(std::string what) {
  return [what](std::string_view label) { return label.find(what) != label.npos; };
}

struct Planted {
  friend void PrintTo(const Planted& one, std::ostream* out) { *out << one.name; }
  const char* name;
  const char* file;
  Meddling with;
  const char* says;  // the beginning of the error
};
const Planted kPlanted[] = {
    {"nothing", "1f1b", {}, ""},
    {"nothing_cut", "zero", {}, ""},
    {"compute_does_not_wait_for_receive", "1f1b", {.drops_wait = of("(compute B")}, "race: "},
    {"receive_does_not_wait_for_its_memory", "gpipe", {.drops_wait = of("(recv")}, "race: "},
    {"message_leaves_before_it_is_made", "1f1b", {.drops_wait = of("(send")}, "race: "},
    {"sum_does_not_wait_for_gradients", "1f1b", {.drops_wait = of("(all_reduce")}, "race: "},
    {"update_does_not_wait_for_sums", "1f1b", {.drops_wait = of("(compute U")}, "race: "},
    {"receive_is_not_recorded", "1f1b", {.drops_record = of("(recv")}, "rank 0, stream "},
    {"sections_are_not_apart", "zero", {.drops_wait = of("the end of")}, "race: "},
    {"reports_are_read_at_once", "1f1b", {.drops_finish = 1}, "race: "},
    {"staging_is_refilled_at_once", "1f1b", {.drops_finish = 0}, "race: "},
    {"staging_is_shared", "1f1b", {.shares_staging = true}, "race: "},
    {"compute_on_another_stream", "1f1b", {.computes_on = 1}, "race: "},
    {"inputs_on_another_stream", "1f1b", {.copies_on = 1}, "race: "},
    {"receives_on_another_stream", "1f1b", {.receives_on = 1}, "race: "},
    {"sums_on_another_stream", "1f1b", {.reduces_on = 1}, "race: "},
    {"sums_in_another_order", "1f1b", {.swaps_reductions = true}, "deadlock: "},
    {"swapped_communicators", "zero", {.swaps_communicators = true}, "deadlock: "},
    {"one_communicator_for_both_directions", "offload", {.joins_directions = true}, "rank "},
    {"compute_does_not_wait_for_gather", "zero", {.drops_wait = of("(compute F")}, "race: "},
    {"scatter_does_not_wait_for_gradients", "zero", {.drops_wait = of("(reduce_sc")}, "race: "},
    {"copy_back_is_not_waited_for", "offload", {.drops_wait = of("(compute")}, "race: "},
};

// What the host brings to a device lies in memory that the plan states.
TEST(SimulatedStaging, IsWithinWhatThePlanStates) {
  NEED_MODEL("mlp");
  auto compiled = compile_on("1f1b", {2, 1, 4}, kOffload);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const int64_t stated = compiled->set.roles[0].staging_bytes--;
  const auto world = make_sim_world(2, 1);
  const auto got = train_simulated(compiled->set, "mlp", *world, 1);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().message,
            fmt::format("rank 0 takes {} bytes to stage what the host brings, the plan states {}",
                        stated, stated - 1));
  EXPECT_EQ(got.error().code, ExitCode::kPlan);
}

class SimulatedFaults : public testing::TestWithParam<Planted> {};

TEST_P(SimulatedFaults, AreNamedInEveryOrder) {
  NEED_MODEL("mlp");
  const Planted& planted = GetParam();
  const std::string_view file = planted.file;
  const auto compiled = file == "1f1b"    ? compile_on("1f1b", {2, 2, 4}, kStreams[2])
                        : file == "gpipe" ? compile_on("gpipe", {2, 1, 4}, kStreams[2])
                        : file == "zero"  ? compile_on("zero3", {1, 4, 2}, kStreams[3])
                                          : compile_on("1f1b", {2, 1, 4}, kOffload);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    MeddledWorld world(compiled->set.world(), seed, planted.with);
    const auto got = train_simulated(compiled->set, "mlp", world, 3);
    if (*planted.says == 0) {
      EXPECT_TRUE(got) << print_error(got.error());
      continue;
    }
    ASSERT_FALSE(got) << "seed " << seed;
    EXPECT_TRUE(got.error().message.find(planted.says) != std::string::npos)
        << print_error(got.error());
  }
}

INSTANTIATE_TEST_SUITE_P(Planted, SimulatedFaults, testing::ValuesIn(kPlanted),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace piper::sim_test
