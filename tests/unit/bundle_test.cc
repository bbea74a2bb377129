#include <plan.pb.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

#include "communicators.h"
#include "piper/plan/worlds.h"
#include "unit/bundle_plans.h"

namespace piper {
namespace {

namespace fs = std::filesystem;

PlanSet small_set(int64_t replicas = 2) {
  PlanSet set;
  RoleProgram role = role_of(kStage0);
  role.mesh[1].second = replicas;
  for (Instruction& one : role.body) {
    const bool of_samples = one.kind == InstructionKind::kInput || !one.contributions.empty();
    one.samples.stride = of_samples ? std::vector<int64_t>{0, 0} : std::vector<int64_t>{};
  }
  set.roles.push_back(role);
  role.tensor(0).param = "h.1.w";
  for (size_t i : {size_t{2}, size_t{3}}) role.body[i].peer = {0, -1};
  set.roles.push_back(role);
  for (int64_t rank = 0; rank < 2 * replicas; ++rank)
    set.role_of_rank.push_back(rank < replicas ? 0 : 1);
  give_communicators(set);
  const float values[] = {1, 2, 3, 4};
  set.tensor_types.emplace_back("w", TensorType{DType::kF32, {2, 2}});
  set.tensors.emplace_back("w", Bytes::copy_of(values, sizeof values));
  set.manifest.compiler = "piperc test";
  set.manifest.model = "m.onnx";
  set.manifest.predictions["peak_bytes"] = 1e6;
  return set;
}

class BundleTest : public testing::Test {
 protected:
  BundleTest() : directory_(fs::temp_directory_path() / fmt::format("piper_bundle_{}", getpid())) {
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  ~BundleTest() override { fs::remove_all(directory_); }
  std::string path(const std::string& name) const { return (directory_ / name).string(); }
  static std::string slurp(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
  static void spit(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  static std::map<std::string, std::string> tree(const std::string& root) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(root))
      if (entry.is_regular_file())
        files[entry.path().lexically_relative(root)] = slurp(entry.path());
    return files;
  }
  static std::string error_of(const std::string& set) {
    const auto read = read_plan_set(set);
    if (read) return "accepted";
    EXPECT_EQ(read.error().code, ExitCode::kPlan) << read.error().message;
    return fs::path(read.error().at.file).filename().string() + ": " + read.error().message;
  }
  fs::path directory_;
};

TEST(PlanText, PrintsParsesAndPrintsTheSame) {
  const RoleProgram role = role_of(kStage0);
  const std::string once = print_plan(role);
  EXPECT_EQ(print_plan(role_of(once)), once);
  EXPECT_EQ(role.tensor(0).aliases[1], "x,\"y");
  EXPECT_EQ(role.streams[1].name, "re\"duce\\\x01");
  EXPECT_EQ(role.tensor(3).fill, -1e-300);
  EXPECT_EQ(role.programs[0].ops[2].attrs.integers("axes"), std::vector<int64_t>{0});
  EXPECT_EQ(role.body[1].samples.stride, (std::vector<int64_t>{0, 4}));
  EXPECT_TRUE(check_role(role)) << check_role(role).error().message;
}

TEST(PlanText, BlocksPrintParseAndPrintTheSame) {
  const RoleProgram role = role_of(kBlocks);
  EXPECT_EQ(print_plan(role), kBlocks);
  EXPECT_EQ(role.tensor(0).cuts, (std::vector<TensorCut>{{0, 1, 3}}));
  EXPECT_EQ(role.tensor(2).cuts, (std::vector<TensorCut>{{0, 0, 1}, {1, 1, 1}}));
  std::string padded = kBlocks;
  const std::string equal = "whole=[4,12] cuts=[S1/3@0]",
                    with_zeros = "whole=[4,9] cuts=[S1/3:2@0]";
  padded.replace(padded.find(equal), equal.size(), with_zeros);
  const RoleProgram other = role_of(padded);
  EXPECT_EQ(print_plan(other), padded);
  EXPECT_EQ(other.tensor(0).cuts, (std::vector<TensorCut>{{0, 1, 3, 2}}));
  EXPECT_TRUE(check_role(other)) << check_role(other).error().message;
  EXPECT_EQ(role.body[0].outer, 2);
  EXPECT_EQ(role.body[2].reduction, Reduction::kMax);
  EXPECT_EQ(role.body[3].dim, -1);
  EXPECT_EQ(std::pair(role.body[4].to_dim, role.body[4].to_outer), std::pair(1, int64_t{2}));
  EXPECT_TRUE(role.body[9].mirrored && role.body[10].to_mirrored && role.body[11].mirrored);
  EXPECT_FALSE(role.body[9].to_mirrored || role.body[10].mirrored);
  EXPECT_EQ(std::pair(role.body[8].dim, role.body[8].owned), std::pair(0, int64_t{4}));
  EXPECT_TRUE(check_role(role)) << check_role(role).error().message;
  EXPECT_TRUE(cuts_dims(role));
  EXPECT_FALSE(cuts_dims(role_of(kStage0)));
}

TEST(PlanText, MicrobatchesShareATensor) {
  const char* text = R"(plan arena=256
buffer 0 "h@0" f32[] step
buffer 1 "h@10" f32[] step
buffer 2 "h@3" f32[1] step
buffer 3 "h@01" f32[] step
buffer 4 "w@2" f32[] step
buffer 5 "v" f32[] state
buffer 6 "v" f32[] state
)";
  const RoleProgram role = role_of(text);
  EXPECT_EQ(print_plan(role), text);
  const Buffer buffers[] = {{0, 0}, {0, 10}, {1, 3}, {2, -1}, {3, 2}, {4, -1}, {5, -1}};
  EXPECT_TRUE(std::equal(role.buffers.begin(), role.buffers.end(), buffers, std::end(buffers)));
  EXPECT_EQ(role.tensors[2].name, "h@01");
}

TEST(PlanText, SaysWhatIsWrongInWhichLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"plan batch=x", "'x' is no integer"},
      {"plan\nstream 1 \"s\"", "position 1 should be 0"},
      {"plan bach=1", "'bach=1' is not expected here"},
      {"\nfrob", "a line cannot start with 'frob'"},
      {"buffer 0 \"b\" f33[2] step at=0", "'f33[2]' is no type"},
      {"buffer 0 \"b\" f32[2] stop at=0", "'stop' is none of state, constant, step"},
      {"body\n  0 jump",
       "'jump' is none of compute, input, send, recv, all_reduce, reduce_scatter, all_gather, "
       "all_to_all, rotate, copy, own_part, position, dispatch, combine"},
      {"  op Mul", "this line belongs to nothing"},
      {"buffer 0 \"b\" f32[2] state at=0 cuts=[0@1]", "'0@1' is no cut"},
      {"buffer 0 \"b\" f32[2] state at=0 cuts=[S0]", "'S0' is no cut"},
      {"buffer 0 \"b\" f32[2] state at=0 cuts=[S0/@1]", "'' is no integer"},
      {"body\n  0 compute\n    contribution count=1\n    contribution count=2",
       "contributions of one instruction are of the same samples"},
      {"body\n  0 compute program=99999999999", "99999999999 is too large"}};
  for (const auto& [text, message] : cases) {
    const auto role = parse_plan(text);
    ASSERT_FALSE(role) << text;
    EXPECT_EQ(role.error().message, message) << text;
  }
  EXPECT_EQ(parse_plan("plan\n\nfrob").error().at.line, 3);
}

TEST(PlanText, ProgramDigestIgnoresTheLabelOnly) {
  Program program = role_of(kStage0).programs[0], other = program;
  other.label = "another";
  EXPECT_EQ(program_digest(program), program_digest(other));
  other.ops[0].inputs[0] = 1;
  EXPECT_NE(program_digest(program), program_digest(other));
}

TEST(Mesh, RanksCoordinatesGroupsAndPeers) {
  RoleProgram role;
  role.mesh = {{"a", 2}, {"b", 3}, {"c", 2}};
  for (int64_t rank = 0; rank < 12; ++rank)
    EXPECT_EQ(rank_of(role.mesh, coordinates_of(role.mesh, rank)), rank);
  EXPECT_EQ(coordinates_of(role.mesh, 9), (std::vector<int64_t>{1, 1, 1}));
  EXPECT_EQ(group_ranks(role, {"b", {1}}, {1, 1, 1}), (std::vector<int64_t>{7, 9, 11}));
  EXPECT_EQ(group_ranks(role, {"ac", {0, 2}}, {1, 1, 1}), (std::vector<int64_t>{2, 3, 8, 9}));
  EXPECT_EQ(group_ranks(role, {"", {}}, {1, 1, 1}), (std::vector<int64_t>{9}));
  EXPECT_EQ(peer_rank(role, {0, -1, -1}, {1, 1, 1}), 3);
}

// The numbers of the elements that a rank holds, by cutting them step by step; -1: a zero behind.
std::vector<int64_t> numbers_held(const RoleProgram& role, const Tensor& tensor,
                                  const std::vector<int64_t>& at) {
  Shape shape = tensor.whole_type().shape;
  std::vector<int64_t> numbers(static_cast<size_t>(num_elements(shape)));
  std::iota(numbers.begin(), numbers.end(), 0);
  for (const TensorCut& cut : tensor.cuts) {
    const auto a = static_cast<size_t>(cut.axis), d = static_cast<size_t>(cut.dim);
    const int64_t parts = role.mesh[a].second, stretch = shape[d] / cut.outer,
                  block = cut.block > 0 ? cut.block : stretch / parts;
    int64_t inner = 1;
    for (size_t i = d + 1; i < shape.size(); ++i) inner *= shape[i];
    std::vector<int64_t> left;
    for (int64_t s = 0; s < std::ssize(numbers) / (stretch * inner); ++s)
      for (int64_t i = at[a] * block * inner; i < (at[a] + 1) * block * inner; ++i)
        left.push_back(i < stretch * inner ? numbers[s * stretch * inner + i] : -1);
    numbers = left;
    shape[d] = cut.outer * block;
  }
  if (tensor.part_of < 0) return numbers;
  const auto ranks = group_ranks(role, role.groups[static_cast<size_t>(tensor.part_of)], at);
  const int64_t k = std::find(ranks.begin(), ranks.end(), rank_of(role.mesh, at)) - ranks.begin(),
                own = num_elements(tensor.type.shape), size = std::ssize(numbers);
  return {numbers.begin() + std::min(k * own, size),
          numbers.begin() + std::min((k + 1) * own, size)};
}

void expect_held(const RoleProgram& role, const Tensor& tensor, const std::string& what) {
  std::map<std::string, std::vector<int64_t>> by_text;
  std::vector<int64_t> held_by(static_cast<size_t>(num_elements(tensor.whole_type().shape)));
  for (int64_t rank = 0; rank < 12; ++rank) {
    const auto at = coordinates_of(role.mesh, rank);
    const Held held = held_of(role, tensor, at);
    std::vector<int64_t> numbers(static_cast<size_t>(held.count), -1);
    held.for_each_run([&](const Held::Run& run) {
      for (int64_t i = 0; i < run.count; ++i) numbers[run.held + i] = run.whole + i;
    });
    EXPECT_EQ(numbers, numbers_held(role, tensor, at)) << what << " rank " << rank;
    EXPECT_EQ(held.is_whole(), held.blocks.empty() && numbers.size() == held_by.size()) << what;
    const auto same = by_text.emplace(to_string(held), numbers).first;
    EXPECT_EQ(same->second, numbers) << what;
    for (const int64_t number : numbers)
      if (number >= 0) ++held_by[static_cast<size_t>(number)];
  }
  EXPECT_EQ(std::count(held_by.begin(), held_by.end(), held_by[0]), std::ssize(held_by)) << what;
}

TEST(Held, IsWhatCutsLeave) {
  const uint32_t seed = 20261123;
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  for (int trial = 0; trial < 300; ++trial) {
    RoleProgram role;
    role.mesh = {{"a", 2}, {"b", 3}, {"c", 1}, {"d", 2}};
    Tensor tensor{.name = "t", .kind = BufferKind::kState};
    std::vector<int32_t> axes = {0, 1, 2, 3};
    std::shuffle(axes.begin(), axes.end(), random);
    Shape left(static_cast<size_t>(1 + below(3)), 1);
    tensor.whole = left;
    for (int64_t cuts = below(4); cuts > 0; --cuts) {  // from the last one to the first
      const int32_t axis = axes.back(), dim = static_cast<int32_t>(below(std::ssize(left)));
      axes.pop_back();
      const int64_t outer = 1 + below(2);
      tensor.cuts.insert(tensor.cuts.begin(), {axis, dim, outer});
    }
    // Every dim divides by all that cuts it.
    const auto ranks_of = [&](const TensorCut& cut) { return role.mesh[cut.axis].second; };
    for (const TensorCut& cut : tensor.cuts) tensor.whole[cut.dim] *= cut.outer * ranks_of(cut);
    for (int64_t& extent : tensor.whole) extent *= 1 + below(3);
    left = tensor.whole;
    for (TensorCut& cut : tensor.cuts) {
      const bool alone = std::count_if(tensor.cuts.begin(), tensor.cuts.end(),
                                       [&](const auto& c) { return c.dim == cut.dim; }) == 1;
      const int64_t equal = left[cut.dim] / cut.outer / ranks_of(cut);
      if (alone && ranks_of(cut) > 1 && below(2) == 0) cut.block = equal + 1 + below(3);
      left[cut.dim] = cut.outer * (cut.block > 0 ? cut.block : equal);
    }
    tensor.type.shape = left;
    if (below(2) == 0) {
      role.groups = {{"g", {axes.back()}}};
      tensor.part_of = 0;
      const int64_t members = role.mesh[static_cast<size_t>(axes.back())].second;
      tensor.type.shape = {(num_elements(left) + members - 1) / members};
    }
    if (tensor.is_whole()) tensor.whole.clear();
    expect_held(role, tensor, fmt::format("seed {} trial {}", seed, trial));
  }
}

TEST(Held, SaysWhat) {
  const RoleProgram role = role_of(kBlocks);
  EXPECT_EQ(to_string(held_of(role, role.tensor(1), {1, 2})),
            "f32[4,12] block 1 of 2 elements of dim 1/3, elements [18, 24)");
  EXPECT_EQ(
      to_string(held_of(role, role.tensor(3), {1, 2})),
      "f32[12] block 2 of 2 elements of dim 0/2, block 1 of 2 elements of dim 0, elements [0, 2)");
  EXPECT_EQ(held_of(role, role.tensor(3), {1, 2}).run_at(0).whole, 10);
}

TEST_F(BundleTest, RoundTripOfBlocks) {
  PlanSet set;
  set.roles = {role_of(kBlocks)};
  set.role_of_rank.assign(6, 0);
  set.tensor_types.emplace_back("w", TensorType{DType::kF32, {4, 12}});
  set.tensors.emplace_back("w", Bytes::zeros(4 * 12 * 4));
  ASSERT_TRUE(write_plan_set(set, nullptr, nullptr, path("plans"), {}));
  const auto read = read_plan_set(path("plans"));
  ASSERT_TRUE(read) << print_error(read.error());
  EXPECT_TRUE(read->roles[0] == set.roles[0]);
  set.tensor_types[0].second.shape = {4, 6};  // what one rank holds
  set.tensors[0].second = Bytes::zeros(4 * 6 * 4);
  ASSERT_TRUE(write_plan_set(set, nullptr, nullptr, path("other"), {}));
  EXPECT_EQ(error_of(path("other")),
            "init.safetensors: 'w' is f32[4,6], but buffer 'w' is f32[4,12]");
}

TEST_F(BundleTest, RoundTrip) {
  const PlanSet set = small_set();
  PlanSet single = small_set();
  ASSERT_TRUE(write_plan_set(set, &single, nullptr, path("plans"), {}));
  auto read = read_plan_set(path("plans"));
  ASSERT_TRUE(read) << print_error(read.error());
  EXPECT_EQ(read->role_of_rank, set.role_of_rank);
  for (size_t role = 0; role < 2; ++role)
    EXPECT_EQ(print_plan(read->roles[role]), print_plan(set.roles[role]));
  EXPECT_EQ(read->manifest.role_axes, (std::vector<std::string>{"pp"}));
  EXPECT_EQ(read->manifest.predictions.at("peak_bytes"), 1e6);
  ASSERT_TRUE(load_params(*read));
  EXPECT_EQ(as_text(read->tensors.at(0).second.made().span()),
            as_text(set.tensors[0].second.span()));
  auto oracle = read_plan_set(path("plans/single"));
  ASSERT_TRUE(oracle) << print_error(oracle.error());
  EXPECT_TRUE(load_params(*oracle));
  EXPECT_FALSE(fs::exists(path("plans/single/params")));
}

// The payloads of a set's role programs, without the envelope around each.
std::vector<std::string> payloads_of(const std::map<std::string, std::string>& files) {
  std::vector<std::string> payloads;
  for (const auto& [name, bytes] : files)
    if (name.starts_with("roles/")) payloads.push_back(bytes.substr(8 + 4 + 8 + 32));
  return payloads;
}

// What is written is what protobuf writes by formats/plan.proto, which knows every field.
TEST_F(BundleTest, BytesAreThoseOfTheSchema) {
  for (const char* text : {kStage0, kBlocks}) {
    const RoleProgram role = role_of(text);
    PlanSet alone;
    alone.roles = {role};
    alone.role_of_rank.assign(text == kBlocks ? 6 : 4, 0);
    alone.tensor_types.emplace_back(
        "w", TensorType{DType::kF32, text == kBlocks ? Shape{4, 12} : Shape{2, 2}});
    alone.tensors.emplace_back("w", Bytes::zeros(text == kBlocks ? 192 : 16));
    ASSERT_TRUE(write_plan_set(alone, nullptr, nullptr, path("plans"), {true}));
    const std::vector<std::string> payloads = payloads_of(tree(path("plans")));
    ASSERT_EQ(payloads.size(), 1u);
    proto::RoleProgram message;
    ASSERT_TRUE(message.ParseFromString(payloads[0]));
    EXPECT_EQ(message.GetReflection()->GetUnknownFields(message).field_count(), 0);
    EXPECT_EQ(message.SerializeAsString(), payloads[0]);
    EXPECT_EQ(message.body_size(), std::ssize(role.body));
    EXPECT_EQ(message.tensors(0).name(), role.tensors[0].name);
  }
}

// What a header says of itself, in bytes that no writer writes.
TEST_F(BundleTest, ForeignBytesAreRefused) {
  const auto field = [](int number, int wire) { return static_cast<char>(number << 3 | wire); };
  const std::string cases[] = {
      {field(3, 2), 9, 'r'},
      {field(1, 0), '\x80'},
      {field(2, 2), 2, 1, '\xff'},
      std::string(11, '\xff'),
  };
  ASSERT_TRUE(write_plan_set(small_set(), nullptr, nullptr, path("plans"), {}));
  const std::string good = slurp(path("plans/rank0.plan"));
  for (const std::string& payload : cases) {
    std::string file = good.substr(0, 12);
    for (int i = 0; i < 8; ++i) file += static_cast<char>(payload.size() >> (8 * i));
    spit(path("plans/rank0.plan"), file + digest(payload) + payload);
    EXPECT_EQ(error_of(path("plans")), "rank0.plan: the bytes cannot be decoded");
  }
}

// Pages of files in this process's memory.
int64_t file_pages() {
  std::ifstream in("/proc/self/statm");
  int64_t all = 0, resident = 0, of_files = 0;
  in >> all >> resident >> of_files;
  return of_files;
}

TEST_F(BundleTest, InitialValuesLeaveMemoryOnceRead) {
  constexpr int64_t kRows = int64_t{1} << 21;  // of two f32: 16 MiB
  PlanSet set = small_set();
  for (RoleProgram& role : set.roles) {
    role.tensor(0).type.shape = {kRows, 2};
    role.buffers[0].offset = role.arena_bytes;
    role.arena_bytes += role.tensor(0).type.bytes();
    role.programs.clear();
    role.workspace_bytes.assign(role.streams.size(), 0);
    std::erase_if(role.body, [](auto& one) { return one.kind == InstructionKind::kCompute; });
    for (Instruction& one : role.body) one.waits.clear();
  }
  set.tensor_types[0].second.shape = {kRows, 2};
  set.tensors[0].second = Bytes::zeros(16 << 20);
  ASSERT_TRUE(write_plan_set(set, nullptr, nullptr, path("plans"), {}));
  auto read = read_plan_set(path("plans"));
  ASSERT_TRUE(read) << print_error(read.error());
  ASSERT_TRUE(load_params(*read));
  const int64_t before = file_pages(), pages = (16 << 20) / sysconf(_SC_PAGESIZE);
  {
    const Bytes value = read->tensors.at(0).second.made();
    EXPECT_EQ(as_text(value.span()), as_text(set.tensors[0].second.span()));
    EXPECT_GE(file_pages() - before, pages * 3 / 4);
  }
  EXPECT_LT(file_pages() - before, pages / 4);
}

TEST_F(BundleTest, OneRank) {
  ASSERT_TRUE(write_plan_set(small_set(), nullptr, nullptr, path("plans"), {}));
  const auto read = read_rank_plan(path("plans/rank3.plan"));
  ASSERT_TRUE(read) << print_error(read.error());
  EXPECT_EQ(read->header.coordinates, (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(read->set.roles[1].tensor(0).param, "h.1.w");
  EXPECT_TRUE(read->set.roles[0].buffers.empty());
  fs::copy(path("plans/rank3.plan"), path("plans/rank9.plan"));
  EXPECT_EQ(read_rank_plan(path("plans/rank9.plan")).error().message,
            "this is the plan of rank 3; its file is named rank3.plan");
}

TEST_F(BundleTest, SameInputsSameBytes) {
  const PlanSet set = small_set();
  ASSERT_TRUE(write_plan_set(set, &set, &set, path("a"), {}));
  ASSERT_TRUE(write_plan_set(set, &set, &set, path("b"), {}));
  EXPECT_EQ(tree(path("a")), tree(path("b")));
  EXPECT_EQ(tree(path("a")).size(), 4 + 2 + 1 + 1 + 2 * (4 + 2 + 1));
}

TEST_F(BundleTest, ManifestDoesNotGrowWithReplicas) {
  ASSERT_TRUE(write_plan_set(small_set(2), nullptr, nullptr, path("a"), {}));
  ASSERT_TRUE(write_plan_set(small_set(1024), nullptr, nullptr, path("b"), {}));
  EXPECT_LE(slurp(path("b/manifest.json")).size(), slurp(path("a/manifest.json")).size() + 3);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(read_plan_set(path("b")));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  RecordProperty("read_2048_ranks_ms", fmt::format("{:.1f}", took.count()));
}

TEST_F(BundleTest, RolesFoldAlongAnyAxis) {
  PlanSet set = small_set();
  std::swap(set.role_of_rank[1], set.role_of_rank[2]);  // now by dp, not by pp
  ASSERT_TRUE(write_plan_set(set, nullptr, nullptr, path("plans"), {}));
  const auto read = read_plan_set(path("plans"));
  ASSERT_TRUE(read) << print_error(read.error());
  EXPECT_EQ(read->manifest.role_axes, (std::vector<std::string>{"dp"}));
  EXPECT_EQ(read->role_of_rank, set.role_of_rank);
}

TEST_F(BundleTest, EveryTruncationIsRefused) {
  ASSERT_TRUE(write_plan_set(small_set(), nullptr, nullptr, path("plans"), {}));
  for (const auto& [name, bytes] : tree(path("plans"))) {
    for (int part = 0; part < 64; ++part) {
      spit(path("plans/" + name), std::string_view(bytes).substr(0, bytes.size() * part / 64));
      if (name.starts_with("params")) {
        auto read = read_plan_set(path("plans"));
        EXPECT_FALSE(read && load_params(*read)) << name << " at " << part;
      } else {
        EXPECT_NE(error_of(path("plans")), "accepted") << name << " at " << part;
      }
    }
    spit(path("plans/" + name), bytes);
  }
  EXPECT_EQ(error_of(path("plans")), "accepted");
  const std::string bytes = slurp(path("plans/rank2.plan"));
  spit(path("plans/rank2.plan"), std::string_view(bytes).substr(0, bytes.size() - 2));
  EXPECT_EQ(error_of(path("plans")),
            fmt::format("rank2.plan: the file is truncated: {} of {} bytes are left",
                        bytes.size() - 54, bytes.size() - 52));
}

TEST_F(BundleTest, EveryFlippedBitIsRefused) {
  ASSERT_TRUE(write_plan_set(small_set(), nullptr, nullptr, path("plans"), {}));
  for (const auto& [name, bytes] : tree(path("plans"))) {
    const size_t step = std::max<size_t>(1, bytes.size() / 60);
    for (size_t at = 0; at < bytes.size(); at += step) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ 1 << at % 8);
      spit(path("plans/" + name), changed);
      auto read = read_plan_set(path("plans"));
      EXPECT_FALSE(read && load_params(*read)) << name << " byte " << at;
    }
    spit(path("plans/" + name), bytes);
  }
}

TEST_F(BundleTest, MixedCompilationsAreRefused) {
  PlanSet set = small_set();
  ASSERT_TRUE(write_plan_set(set, nullptr, nullptr, path("a"), {}));
  ++set.manifest.seed;
  ASSERT_TRUE(write_plan_set(set, nullptr, nullptr, path("b"), {}));
  const auto a = read_plan_set(path("a")), b = read_plan_set(path("b"));
  fs::copy(path("b/rank2.plan"), path("a/rank2.plan"), fs::copy_options::overwrite_existing);
  EXPECT_EQ(error_of(path("a")), fmt::format("rank2.plan: this plan is of another compilation: its "
                                             "plan set is {}, the manifest's is {}",
                                             b->manifest.set_id, a->manifest.set_id));
  fs::remove(path("a/rank2.plan"));
  EXPECT_NE(error_of(path("a")), "accepted");
}

TEST_F(BundleTest, OtherVersionsAreRefused) {
  EXPECT_NE(slurp(fs::path(PIPER_SOURCE_DIR) / "formats/plan.md")
                .find(fmt::format("Format version: **{}**", kPlanFormatVersion)),
            std::string::npos);
  ASSERT_TRUE(write_plan_set(small_set(), nullptr, nullptr, path("plans"), {}));
  std::string bytes = slurp(path("plans/rank0.plan"));
  bytes[8] = kPlanFormatVersion + 1;
  spit(path("plans/rank0.plan"), bytes);
  EXPECT_EQ(error_of(path("plans")),
            fmt::format("rank0.plan: the plan has format version {}, this program reads version {}",
                        kPlanFormatVersion + 1, kPlanFormatVersion));
  std::string manifest = slurp(path("plans/manifest.json"));
  const std::string version = fmt::format("\"format_version\": {}", kPlanFormatVersion);
  manifest.replace(manifest.find(version), version.size(), "\"format_version\": 77");
  spit(path("plans/manifest.json"), manifest);
  EXPECT_EQ(error_of(path("plans")),
            fmt::format("manifest.json: the plan set has format version 77, this program reads "
                        "version {}",
                        kPlanFormatVersion));
}

TEST_F(BundleTest, ModifiedManifestIsRefused) {
  ASSERT_TRUE(write_plan_set(small_set(), nullptr, nullptr, path("plans"), {}));
  const std::string good = slurp(path("plans/manifest.json"));
  const std::string changed =
      "manifest.json: the manifest was modified: its content does not match its set id";
  std::string text = good;
  text.replace(text.find("\"seed\": "), 8, "\"seed\": 1");
  spit(path("plans/manifest.json"), text);
  EXPECT_EQ(error_of(path("plans")), changed);
  spit(path("plans/manifest.json"), good + " ");
  EXPECT_EQ(error_of(path("plans")), changed);
  text = good;
  text.replace(text.find("params/init"), 11, "../../../etc");
  spit(path("plans/manifest.json"), text);
  EXPECT_EQ(error_of(path("plans")),
            "manifest.json: the manifest was modified: its fields are not those of a plan set");
}

TEST_F(BundleTest, ForceReplacesPlanSetsAndNothingElse) {
  const PlanSet set = small_set(), other = small_set(4);
  const auto message = [&](bool force) {
    const Status status = write_plan_set(set, nullptr, nullptr, path("plans"), {force});
    return status ? "ok" : status.error().message;
  };
  fs::create_directories(path("plans"));  // an empty directory is free
  EXPECT_TRUE(check_plan_folder(path("plans"), {}));
  EXPECT_TRUE(check_plan_folder(path("new/of/new"), {}));
  EXPECT_FALSE(check_plan_folder("/dev/null/plans", {}));
  EXPECT_EQ(message(false), "ok");
  EXPECT_FALSE(check_plan_folder(path("plans"), {}));
  EXPECT_TRUE(check_plan_folder(path("plans"), {true}));
  EXPECT_FALSE(fs::exists(path("new")));
  EXPECT_EQ(message(false), fmt::format("'{}' already holds a plan set", path("plans")));
  ASSERT_TRUE(write_plan_set(other, &set, nullptr, path("plans"), {true}));
  EXPECT_EQ(read_plan_set(path("plans"))->world(), 8);
  // A set of another version is one, too.
  for (const char* manifest : {"plans/manifest.json", "plans/single/manifest.json"}) {
    std::string text = slurp(path(manifest));
    text.replace(text.find("\"format_version\": "), 18, "\"format_version\": 9");
    spit(path(manifest), text);
  }
  EXPECT_FALSE(read_plan_set(path("plans")));
  EXPECT_EQ(message(false), fmt::format("'{}' already holds a plan set", path("plans")));
  EXPECT_EQ(message(true), "ok");
  EXPECT_EQ(read_plan_set(path("plans"))->world(), 4);
  EXPECT_FALSE(fs::exists(path("plans/rank7.plan")));
  EXPECT_FALSE(fs::exists(path("plans/single")));
  const auto before = tree(path("plans"));
  spit(path("plans/notes.txt"), "mine");
  const std::string foreign = fmt::format(
      "'{}' holds 'notes.txt', which belongs to no plan set; nothing was written", path("plans"));
  EXPECT_EQ(message(true), foreign);
  EXPECT_EQ(message(false), foreign);
  fs::remove(path("plans/notes.txt"));
  EXPECT_EQ(tree(path("plans")), before);
  // Nothing is left beside the target, whatever happened.
  EXPECT_EQ(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()), 1);
}

TEST_F(BundleTest, ForeignDirectoriesAndFilesStay) {
  fs::create_directories(path("home/below"));
  spit(path("home/below/thesis.tex"), "long work");
  spit(path("file"), "x");
  for (bool force : {false, true}) {
    EXPECT_EQ(
        write_plan_set(small_set(), nullptr, nullptr, path("home"), {force}).error().message,
        fmt::format(
            "'{}' holds 'below/thesis.tex', which belongs to no plan set; nothing was written",
            path("home")));
    EXPECT_EQ(write_plan_set(small_set(), nullptr, nullptr, path("file"), {force}).error().message,
              fmt::format("'{}' exists and is no directory", path("file")));
  }
  EXPECT_EQ(slurp(path("home/below/thesis.tex")), "long work");
}

}  // namespace
}  // namespace piper
