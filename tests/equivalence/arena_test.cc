// The memory that an executor takes is the memory that its plan states: what it asks the backend
// for, and what a step writes of it, painted before and looked at afterwards.
#include <thread>

#include "equivalence/jobs.h"
#include "piper/base/memory.h"
#include "piper/devices/cpu.h"

namespace piper::arena_test {
namespace {

using namespace jobs;

constexpr const char* kModel = "gpt-deep";
constexpr int64_t kGuard = 4096;  // bytes behind a block, which nobody may touch

// A CPU backend that remembers its blocks.
class Watched : public Backend {
 public:
  struct Block {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    std::vector<bool> written;  // by byte, the guard's included
  };

  std::string_view name() const override { return inner_->name(); }
  Result<std::byte*> allocate(int64_t bytes, Space space) override {
    if (space == Space::kHost) return inner_->allocate(bytes, space);
    PIPER_ASSIGN(std::byte * data, inner_->allocate(bytes + kGuard, space));
    blocks_.push_back({data, bytes, std::vector<bool>(static_cast<size_t>(bytes + kGuard))});
    return data;
  }
  RoleProgram prepare(RoleProgram role) const override { return inner_->prepare(std::move(role)); }
  Result<int32_t> load(const Program& program) override { return inner_->load(program); }
  int64_t workspace_bytes(int32_t program) const override {
    return inner_->workspace_bytes(program);
  }
  Result<int32_t> bind(int32_t program, std::span<std::byte* const> args,
                       std::byte* workspace) override {
    return inner_->bind(program, args, workspace);
  }
  void launch(int32_t binding, int32_t) override { inner_->launch(binding); }
  void copy(std::byte* to, const std::byte* from, int64_t bytes, int32_t) override {
    inner_->copy(to, from, bytes);
  }
  void fill(std::byte* to, const TensorType& type, double value, int32_t) override {
    inner_->fill(to, type, value);
  }

  // The first `kept` bytes of the first block hold what outlives a step.
  void paint(std::byte colour, int64_t kept) {
    for (size_t b = 0; b < blocks_.size(); ++b)
      for (int64_t i = b == 0 ? kept : 0; i < blocks_[b].bytes + kGuard; ++i)
        blocks_[b].data[i] = colour;
  }
  void look(std::byte colour, int64_t kept) {
    for (size_t b = 0; b < blocks_.size(); ++b)
      for (int64_t i = b == 0 ? kept : 0; i < blocks_[b].bytes + kGuard; ++i)
        if (blocks_[b].data[i] != colour) blocks_[b].written[static_cast<size_t>(i)] = true;
  }
  std::span<const Block> blocks() const { return blocks_; }

 private:
  std::unique_ptr<Backend> inner_ = make_cpu_backend();
  std::vector<Block> blocks_;
};

// Where the buffers that outlive a step end.
int64_t kept_bytes(const RoleProgram& role) {
  int64_t end = 0;
  for (const Buffer& buffer : role.buffers)
    if (const Tensor& tensor = role.tensor(buffer); tensor.kind != BufferKind::kStep)
      end = std::max(end, buffer.offset + align_up(tensor.type.bytes()));
  return end;
}

// Two steps of one rank, each on memory of another colour.
Status run_rank(const PlanSet& set, int64_t rank, const BatchSource& data, Transport& transport,
                Watched& backend) {
  PIPER_TRY(transport.control().agree({set.manifest.set_id, rank, set.world(), "test", "cpu"}));
  const RankSource source{&set, rank, &data};
  PIPER_ASSIGN(const auto executor,
               Executor::load(source, backend, transport.control(), transport.fabric()));
  const int64_t kept = kept_bytes(executor->role());
  PIPER_TRY(executor->run_prologue(0));
  int64_t step = 0;
  for (const std::byte colour : {std::byte{0xa5}, std::byte{0x5a}}) {
    backend.paint(colour, kept);
    PIPER_TRY(transport.control().barrier());  // nobody sends into memory that is being painted
    // Where steps overlap, what a step has left for the next one is painted over: no number counts.
    const Status done = executor->run_step(step++);
    if (!done && done.error().code != ExitCode::kNumeric) return done;
    PIPER_TRY(transport.control().barrier());
    backend.look(colour, kept);
  }
  return executor->run_epilogue(step);
}

std::vector<std::unique_ptr<Watched>> run_all(const PlanSet& set, const BatchSource& data) {
  const auto world = make_inproc_world(set.world(), TransportOptions{});
  std::vector<std::unique_ptr<Watched>> backends;
  std::vector<std::thread> threads;
  std::vector<Status> ended(static_cast<size_t>(set.world()), ok_status());
  for (int64_t rank = 0; rank < set.world(); ++rank)
    backends.push_back(std::make_unique<Watched>());
  for (int64_t rank = 0; rank < set.world(); ++rank)
    threads.emplace_back([&, rank] {
      const auto i = static_cast<size_t>(rank);
      ended[i] = run_rank(set, rank, data, world->rank(rank), *backends[i]);
      if (!ended[i]) world->rank(rank).control().abort(ended[i].error());
    });
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : ended)
    EXPECT_TRUE(status) << print_error(status ? Error{} : status.error());
  return backends;
}

int64_t end_of(const Watched::Block& block) {
  for (size_t i = block.written.size(); i > 0; --i)
    if (block.written[i - 1]) return static_cast<int64_t>(i);
  return 0;
}

// How the memory that a rank took differs from its plan's; empty: not at all.
std::string difference(const RoleProgram& role, const Watched& backend) {
  const auto blocks = backend.blocks();
  std::vector<int64_t> stated{role.arena_bytes + role.packed_bytes};
  stated.insert(stated.end(), role.workspace_bytes.begin(), role.workspace_bytes.end());
  if (blocks.size() != stated.size()) return fmt::format("{} blocks", blocks.size());
  for (size_t b = 0; b < blocks.size(); ++b) {
    if (blocks[b].bytes != stated[b])
      return fmt::format("block {}: {} bytes, stated {}", b, blocks[b].bytes, stated[b]);
    if (align_up(end_of(blocks[b])) != align_up(stated[b]))
      return fmt::format("block {}: written to {} of {}", b, end_of(blocks[b]), stated[b]);
  }
  // Of the arena the bytes of step buffers, and no others.
  std::vector<bool> named(blocks[0].written.size());
  for (const Buffer& buffer : role.buffers)
    std::fill_n(named.begin() + buffer.offset, role.tensor(buffer).type.bytes(), true);
  int64_t wanted = 0, written = 0;
  for (auto i = static_cast<size_t>(kept_bytes(role)); i < named.size(); ++i) {
    if (blocks[0].written[i] && !named[i]) return fmt::format("byte {} is no buffer's", i);
    wanted += named[i];
    written += blocks[0].written[i];
  }
  // A byte may be given the colour that it has, in both steps.
  if (static_cast<double>(written) < 0.999 * static_cast<double>(wanted))
    return fmt::format("{} bytes of {} are written", written, wanted);
  return "";
}

class Arena : public ::testing::TestWithParam<std::string> {};

TEST_P(Arena, IsWhatThePlanStates) {
  NEED_MODEL(kModel);
  const std::string text = library_text(GetParam());
  CompileOptions options;
  options.oracles = false;
  options.defines = definitions_of(text, {2, 2, 4});
  const auto compiled = compile_text(kModel, text, kAdamW, options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  const PlanSet& set = compiled->set;
  const auto data = open_batches(set, kModel);
  ASSERT_TRUE(data) << print_error(data.error());
  const auto backends = run_all(set, **data);
  for (size_t rank = 0; rank < backends.size(); ++rank)
    EXPECT_EQ(difference(set.roles[static_cast<size_t>(set.role_of_rank[rank])], *backends[rank]),
              "")
        << "rank " << rank;
}

// Memory that nobody uses and memory that no buffer names are seen.
TEST(ArenaControl, DifferencesAreSeen) {
  NEED_MODEL("mlp");
  CompileOptions options;
  options.oracles = false;
  auto compiled = compile_text("mlp", library_text("1f1b"), kAdamW, options);
  ASSERT_TRUE(compiled) << print_error(compiled.error());
  PlanSet& set = compiled->set;
  RoleProgram& role = set.roles[0];
  const auto data = open_batches(set, "mlp");
  ASSERT_TRUE(data) << print_error(data.error());
  EXPECT_EQ(difference(role, *run_all(set, **data)[0]), "");
  role.arena_bytes += kAlignment;
  EXPECT_TRUE(difference(role, *run_all(set, **data)[0]).starts_with("block 0: written to "));
  role.arena_bytes -= kAlignment;
  const auto backends = run_all(set, **data);
  for (const Buffer& buffer : role.buffers) {
    Tensor& tensor = role.tensors[static_cast<size_t>(buffer.tensor)];
    if (tensor.kind == BufferKind::kStep && buffer.offset + tensor.type.bytes() < role.arena_bytes)
      tensor.type.shape = {0};
  }
  EXPECT_TRUE(difference(role, *backends[0]).ends_with("is no buffer's"));
}

INSTANTIATE_TEST_SUITE_P(Library, Arena, ::testing::ValuesIn(library_files()),
                         [](const auto& info) { return identifier(info.param); });

}  // namespace
}  // namespace piper::arena_test
